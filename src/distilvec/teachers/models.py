"""The teacher that a model folder, a hub id or a file of weights is."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from distilvec.errors import DataError, DistilvecError
from distilvec.kinds.base import find_kind
from distilvec.modules.opening import inner_folders, locate, open_model
from distilvec.modules.pipeline import item_kinds, reads_texts
from distilvec.teachers.base import Capabilities, Teacher
from distilvec.teachers.cards import TeacherCard, bytes_of, describe_folder, fingerprint, hash_file, licence_of
from distilvec.teachers.sections import ModelSection, Reading

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_BATCH = 64
#: What decides how an image is cut, scaled and normalised before the network sees it.
_PREPARING = ("preprocessor_config.json", "processor_config.json")
#: Keys that only a model of texts has a use for.
_OF_TEXTS = ("max_length", "pooling", "dtype", "prompt", "token_budget", "adapters", "causal", "load")


def open_teacher(section: ModelSection, reading: Reading) -> Teacher:
    """Open the teacher that a model is for the items that are read, as their kind says."""
    teacher: Teacher = reading.kind.teacher(section, reading)
    return teacher


def text_teacher(section: ModelSection, reading: Reading) -> Teacher:
    """A model that reads texts; a file of weights is a network of another kind, and says so."""
    if Path(section.model).suffix == ".safetensors":
        return item_teacher(section, reading)
    from distilvec.teachers.text import TextTeacher

    return TextTeacher(section, reading)


def item_teacher(section: ModelSection, reading: Reading) -> Teacher:
    """A file or folder that reads other items than texts, or a model of texts where these can be read as such."""
    path, name, kind = Path(section.model), section.name, find_kind(reading.modality)
    if path.suffix == ".safetensors" and not path.exists():
        raise DistilvecError("there is no such file", where=section.model, remedy="Check the path.")
    if path.is_file():
        _refuse_of_texts(section, kind.name)
        return _open_network(path, name, reading.device)
    folder = locate(section.address, section.trust_remote_code)
    opened = open_model(
        folder,
        name=section.address,
        device=reading.device,
        dtype=torch.float32,
        trust_remote_code=section.trust_remote_code,
    )
    if kind.name not in item_kinds(opened):
        if kind.also_texts and reads_texts(opened):
            from distilvec.teachers.text import TextTeacher

            return TextTeacher(section, reading)
        raise DistilvecError(
            f"it reads {' and '.join(item_kinds(opened))} items, and the corpus holds {kind.noun}",
            where=name,
            remedy="Choose another model, or set corpus.modality if the corpus was taken for something else.",
        )
    _refuse_of_texts(section, kind.name)
    return ItemTeacher(opened, name=name, source=folder)


class ItemTeacher(Teacher):
    """A frozen `SentenceTransformer` whose items have no tokens: images, or molecules as graphs.

    Args:
        source: folder or file that it came from, whose content its fingerprint covers.
    """

    can = Capabilities(local=True)
    model: SentenceTransformer

    def __init__(self, model: SentenceTransformer, *, name: str, source: Path) -> None:
        from sentence_transformers.base.modules import Normalize

        self.model = model.eval()
        model.requires_grad_(False)
        width = model.get_embedding_dimension()
        if width is None:
            raise DistilvecError("the model does not say how wide its vectors are", where=name)
        if source.is_dir():
            content: Any = describe_folder(source, inner_folders(source), _PREPARING)
        else:
            content = hash_file(source)
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
        for start in range(0, len(texts), _BATCH):
            some = texts[start : start + _BATCH]
            yield np.arange(start, start + len(some)), self.together(some)

    @torch.inference_mode()
    def together(self, texts: Sequence[str], side: str | None = None) -> np.ndarray:
        """float32 [n, D], all items in one forward pass."""
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


def _refuse_of_texts(section: ModelSection, modality: str) -> None:
    for word in _OF_TEXTS:
        if getattr(section, word) not in (None, "", []):
            raise DistilvecError(
                f"{word} has no effect on a teacher of {modality}s", where=section.name, remedy="Leave it out."
            )


def _open_network(path: Path, name: str, device: str | None) -> Teacher:
    """The teacher of one safetensors file: a network over images (`read_image_network`) or over molecules."""
    from distilvec.modules.network_files import read_image_network

    network = read_image_network(path)
    if network is None:
        from distilvec.teachers.molecule import MoleculeTeacher

        return MoleculeTeacher(path, name=name, device=device)
    from distilvec.modules.cifar_resnet import image_model

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return ItemTeacher(image_model(network, chosen), name=name, source=path)
