"""A student behind HTTP, in the shape of OpenAI's `/embeddings`: for trying things out and for small loads."""

from distilvec.serving.app import application
from distilvec.serving.batcher import Batcher, BusyError

__all__ = ["Batcher", "BusyError", "application"]
