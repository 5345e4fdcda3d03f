"""distilvec: large embedding models in, small fast students and an honest report out."""

__version__ = "0.1.0"
