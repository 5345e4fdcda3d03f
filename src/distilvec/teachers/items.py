"""A model of images or molecules as a teacher."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from distilvec.errors import DataError, DistilvecError
from distilvec.modules.opening import inner_folders
from distilvec.teachers.base import Capabilities, Teacher
from distilvec.teachers.cards import TeacherCard, bytes_of, describe_folder, fingerprint, licence_of

#: What decides how an image is cut, scaled and normalised before the network sees it.
_PREPARING = ("preprocessor_config.json", "processor_config.json")

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class ItemTeacher(Teacher):
    """A frozen `SentenceTransformer` whose items have no tokens: images, or molecules as graphs.

    Args:
        model: in eval mode.
        name: the name in the recipe.
        source: folder or file that it came from.
        batch_size: items per forward pass.

    Attributes:
        card: who it is. Its fingerprint covers the folder's files, or the one file.
        model: the `SentenceTransformer`.
    """

    can = Capabilities(local=True)
    model: SentenceTransformer

    def __init__(self, model: SentenceTransformer, *, name: str, source: Path, batch_size: int = 64) -> None:
        from sentence_transformers.base.modules import Normalize

        self.model, self._batch_size = model.eval(), batch_size
        model.requires_grad_(False)
        width = model.get_embedding_dimension()
        if width is None:
            raise DistilvecError("the model does not say how wide its vectors are", where=name)
        if source.is_dir():
            content: Any = describe_folder(source, inner_folders(source), _PREPARING)
        else:
            with source.open("rb") as file:
                content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
        self.card = TeacherCard(
            name=name,
            kind="model",
            source=str(source),
            fingerprint=fingerprint(content, width),
            width=int(width),
            normalized=isinstance(list(model.children())[-1], Normalize),
            licence=licence_of(source) if source.is_dir() else None,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            size_bytes=bytes_of(source, inner_folders(source)) if source.is_dir() else source.stat().st_size,
        )

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """Pairs (positions int64 [b], vectors float32 [b, D]), in the order of the items."""
        for start in range(0, len(texts), self._batch_size):
            rows = np.arange(start, min(start + self._batch_size, len(texts)))
            yield rows, self.together([texts[int(row)] for row in rows])

    @torch.inference_mode()
    def together(self, texts: Sequence[str], side: str | None = None) -> np.ndarray:
        """float32 [n, D], all items in one forward pass.

        Raises:
            DataError: an item that the model cannot read.
        """
        try:
            features: dict[str, Any] = dict(self.model.preprocess(list(texts)))
        except (OSError, ValueError) as problem:
            raise DataError(
                f"an item cannot be read ({problem})",
                where=self.card.name,
                remedy="Does the corpus hold what this model reads? corpus.modality says so.",
            ) from problem
        device = self.model.device
        features = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in features.items()}
        for module in self.model.children():
            features = module(features)
        vectors: np.ndarray = features["sentence_embedding"].float().cpu().numpy()
        return vectors

    def rendered(self, text: str) -> tuple[str, int]:
        """Return what the model is given, shortened; it has no tokens to count (0)."""
        return text[:60], 0


def open_network(path: Path, name: str, device: str | None) -> Teacher:
    """The teacher of one safetensors file: a network over images (`read_image_network`) or over molecules.

    Raises:
        DistilvecError, DataError: the file is not one of them.
    """
    from distilvec.modules.network_files import read_image_network

    network = read_image_network(path)
    if network is None:
        from distilvec.teachers.molecule import MoleculeTeacher

        return MoleculeTeacher(path, name=name, device=device)
    from distilvec.modules.cifar_resnet import image_model

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return ItemTeacher(image_model(network, chosen), name=name, source=path)
