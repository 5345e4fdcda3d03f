"""Token states on leading principal axes: a store of a tenth of the size, and what was lost by it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from distilvec.corpus.lazy import take
from distilvec.errors import DataError, DistilvecError
from distilvec.evenly import evenly_spaced
from distilvec.files import temporary
from distilvec.store.files import disk_problems
from distilvec.store.layout import read_signals, store_lock

if TYPE_CHECKING:
    from distilvec.teachers.base import Teacher
    from distilvec.teachers.signals import Wanted

#: Texts that the axes are fitted to, evenly spaced over those that are taught.
FITTED_TO = 512
#: Names of the files that keep them.
AXES = "axes-tokens-*.safetensors"


@dataclass(frozen=True)
class TokenAxes:
    """The axes of one layer.

    Attributes:
        matrix: float32 [H, k], orthonormal columns.
        retained: share of the variance of the states around their mean that the axes keep, 0 to 1.
        texts: that they were fitted to.
    """

    matrix: np.ndarray
    retained: float
    texts: int

    def reduce(self, states: np.ndarray) -> np.ndarray:
        """[T, H] -> [T, k]. Not centred: products of states, and so their cosines, stay what they were."""
        return np.asarray(states, np.float32) @ self.matrix


def axes_of(folder: Path) -> dict[int, TokenAxes]:
    """Layer -> axes of a store; empty where token states are whole."""
    return {int(file.stem.removeprefix("axes-tokens-")): _read(file) for file in sorted(folder.glob(AXES))}


def settle_axes(folder: Path, teacher: Teacher, texts: Sequence[str], wanted: Wanted) -> dict[int, TokenAxes]:
    """The axes of the wanted layers: those of the store, or where it has none fitted to a part of the texts.

    Writers that begin at the same time agree on the first file that is there.

    Args:
        texts: all that are to be taught, also by other writers.

    Raises:
        DistilvecError: more axes than the states have, or the store's have another number.
    """
    if wanted.axes is None:
        return {}
    assert teacher.hidden is not None  # `refuse` has been asked
    if wanted.axes >= teacher.hidden:
        raise DistilvecError(
            f"{wanted.axes} axes were asked for, and the teacher's token states have {teacher.hidden} numbers",
            where="token_axes",
            remedy="Ask for fewer, or leave it out.",
        )
    stored = axes_of(folder)
    lacking = [layer for layer in wanted.tokens if layer not in stored]
    known = read_signals(folder) if lacking and (folder / "store.json").exists() else {}
    for layer in lacking:
        if known.get(f"tokens-{layer}", {}).get("width") == teacher.hidden:
            raise DistilvecError(
                f"this store keeps token states of layer {layer} whole, and {wanted.axes} axes are wanted",
                where=str(folder),
                remedy="Leave token_axes out, or use another folder.",
            )
    if lacking and len(texts):
        for layer, axes in _fit(teacher, texts, lacking, wanted).items():
            _write(folder / f"axes-tokens-{layer}.safetensors", axes)
        stored = axes_of(folder)
    for layer in wanted.tokens:
        if layer in stored and stored[layer].matrix.shape != (teacher.hidden, wanted.axes):
            raise DistilvecError(
                f"this store keeps token states on {stored[layer].matrix.shape[1]} axes, and {wanted.axes} are wanted",
                where=str(folder),
                remedy="Use the number that it has, or another folder.",
            )
    return {layer: stored[layer] for layer in wanted.tokens if layer in stored}


class _TokenMoments:
    """Sums over tokens of states and of their products."""

    def __init__(self, size: int) -> None:
        self.first = torch.zeros(size, dtype=torch.float64)
        self.second = torch.zeros(size, size, dtype=torch.float64)
        self.tokens = 0

    def add(self, states: torch.Tensor) -> None:
        """Take in states [T, H]."""
        exact = states.double()
        self.second += exact.T @ exact
        self.first += exact.sum(0)
        self.tokens += len(states)

    def axes(self, count: int, texts: int) -> TokenAxes:
        """Leading eigenvectors of the second moments."""
        vectors = torch.linalg.eigh(self.second)[1][:, -count:].flip(1)
        mean = self.first / max(self.tokens, 1)
        centred = self.second / max(self.tokens, 1) - torch.outer(mean, mean)
        kept = float((vectors * (centred @ vectors)).sum() / centred.trace().clamp_min(1e-30))
        return TokenAxes(vectors.float().numpy(), min(max(kept, 0.0), 1.0), texts)


def _fit(teacher: Teacher, texts: Sequence[str], layers: Sequence[int], wanted: Wanted) -> dict[int, TokenAxes]:
    """Axes of the states of real tokens."""
    assert wanted.axes is not None and teacher.hidden is not None
    rows = evenly_spaced(len(texts), FITTED_TO)
    moments = {layer: _TokenMoments(teacher.hidden) for layer in layers}
    for _, seen in teacher.observe(take(texts, rows), wanted):
        for layer, sums in moments.items():
            sums.add(seen.tokens[layer][seen.mask])
    return {layer: sums.axes(wanted.axes, len(rows)) for layer, sums in moments.items()}


def _write(file: Path, axes: TokenAxes) -> None:
    """Make the file, unless another writer was first."""
    about = {"retained": repr(axes.retained), "texts": str(axes.texts)}
    content = save({"axes": np.ascontiguousarray(axes.matrix)}, about)
    with store_lock(file.parent), disk_problems(file), temporary(file.parent) as partial:
        if not file.exists():
            partial.write_bytes(content)  # safetensors' own error for a full disk is none of the system's
            os.replace(partial, file)


def _read(file: Path) -> TokenAxes:
    try:
        with safe_open(str(file), "np") as opened:
            about = opened.metadata() or {}
            return TokenAxes(opened.get_tensor("axes"), float(about["retained"]), int(about["texts"]))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DataError(
            f"the axes of token states cannot be read ({error})",
            where=str(file),
            remedy="Without them the token states mean nothing: remove the store and teach again.",
        ) from error
