"""The teacher that a model folder, a hub id or a file of weights is."""

from __future__ import annotations

from pathlib import Path

from distilvec.errors import DistilvecError
from distilvec.kinds.base import find_kind
from distilvec.teachers.base import Teacher
from distilvec.teachers.sections import ModelSection, Reading


def open_model(section: ModelSection, reading: Reading) -> Teacher:
    """Open the teacher that a model is for the items that are read, as their kind says.

    Raises:
        DistilvecError: no such model, or one of another kind of items; a key that its kind has no use for.
    """
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
    from distilvec.teachers.items import ItemTeacher, open_network

    path, name, modality = Path(section.model), section.name, reading.modality
    kind = find_kind(modality)
    if path.suffix == ".safetensors" and not path.exists():
        raise DistilvecError("there is no such file", where=section.model, remedy="Check the path.")
    if path.is_file():
        _refuse_of_texts(section, modality)
        return open_network(path, name, reading.device)
    import torch

    from distilvec.modules.opening import locate, open_model
    from distilvec.modules.pipeline import item_kinds, reads_texts

    folder = locate(section.address, section.trust_remote_code)
    opened = open_model(
        folder,
        name=section.address,
        device=reading.device,
        dtype=torch.float32,
        trust_remote_code=section.trust_remote_code,
    ).eval()
    if modality not in item_kinds(opened):
        if kind.also_texts and reads_texts(opened):
            from distilvec.teachers.text import TextTeacher

            return TextTeacher(section, reading)
        raise DistilvecError(
            f"it reads {' and '.join(item_kinds(opened))} items, and the corpus holds {kind.noun}",
            where=name,
            remedy="Choose another model, or set corpus.modality if the corpus was taken for something else.",
        )
    _refuse_of_texts(section, modality)
    return ItemTeacher(opened, name=name, source=folder)


def _refuse_of_texts(section: ModelSection, modality: str) -> None:
    """Refuse keys that only a model of texts has a use for."""
    for word in ("max_length", "pooling", "dtype", "prompt", "token_budget", "adapters", "causal", "load"):
        if getattr(section, word) not in (None, "", []):
            raise DistilvecError(
                f"{word} has no effect on a teacher of {modality}s", where=section.name, remedy="Leave it out."
            )
