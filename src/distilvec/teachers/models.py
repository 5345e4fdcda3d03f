"""The teacher that a model folder, a hub id or a file of weights is."""

from __future__ import annotations

from pathlib import Path

from distilvec.errors import DistilvecError
from distilvec.kinds.base import find_kind
from distilvec.teachers.base import Teacher
from distilvec.teachers.sections import ModelSection, Reading


def open_model(section: ModelSection, reading: Reading) -> Teacher:
    """A model that writes, that reads images or molecules, or that reads texts.

    Raises:
        DistilvecError: no such model, or one of another kind of items; a key that its kind has no use for.
    """
    if reading.separator is not None:
        from distilvec.teachers.writing import WritingTeacher

        return WritingTeacher(section, reading)
    if reading.modality != "text" or Path(section.model).suffix == ".safetensors":
        teacher = _of_items(section, reading)
        if teacher is not None:
            return teacher
    from distilvec.teachers.text import TextTeacher

    return TextTeacher(section, reading)


def _of_items(section: ModelSection, reading: Reading) -> Teacher | None:
    """The teacher of other items than texts that a file or folder holds; None if a text model can read them, too."""
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
    from distilvec.modules.pipeline import item_kinds

    folder = locate(section.address, section.trust_remote_code)
    opened = open_model(
        folder,
        name=section.address,
        device=reading.device,
        dtype=torch.float32,
        trust_remote_code=section.trust_remote_code,
    ).eval()
    if modality not in item_kinds(opened):
        if kind.also_texts and "text" in item_kinds(opened):
            return None
        raise DistilvecError(
            f"it reads {' and '.join(item_kinds(opened))} items, and the corpus holds {kind.noun}",
            where=name,
            remedy="Choose another model, or set corpus.modality if the corpus was taken for something else.",
        )
    _refuse_of_texts(section, modality)
    return ItemTeacher(opened, name=name, source=folder)


def _refuse_of_texts(section: ModelSection, modality: str) -> None:
    """Refuse keys that only a model of texts has a use for."""
    for word in ("max_length", "pooling", "dtype", "prompt", "token_budget", "adapters", "causal"):
        if getattr(section, word) not in (None, "", []):
            raise DistilvecError(
                f"{word} has no effect on a teacher of {modality}s", where=section.name, remedy="Leave it out."
            )
