"""Both embedding spaces as the report draws them: in the plane, and block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distilvec.corpus.keys import PAIR, split_pair
from distilvec.evenly import evenly_spaced
from distilvec.judging import TRAINED, Verdict
from distilvec.modules.pipeline import default_prompt
from distilvec.report.record import LayerSimilarity, SpaceMap
from distilvec.report.record_parts import short_source

LAYER_TEXTS = 400
MAX_GROUPS = 12


def labels_of(items: Sequence[str], modality: str, held_out: Sequence[str] | None = None) -> list[str]:
    """What stands beside a point of the map: the item, or of an image its folder and name, or its held-out number."""
    if modality != "image":
        return [item.replace(PAIR, " | ") for item in items]
    numbers: dict[str, int] = {}
    for number, item in enumerate(items if held_out is None else held_out, start=1):
        numbers.setdefault(item, number)
    return [f"held-out image {numbers[item]}" if item.startswith("data:") else short_source(item) for item in items]


def spaces_of(verdict: Verdict, teacher: str | None, texts: Sequence[str], corpus: Any, rows: Any) -> SpaceMap | None:
    if teacher is None or teacher not in verdict.vectors or TRAINED not in verdict.vectors or len(texts) < 20:
        return None
    names, groups = corpus.domain_names, None
    if names and 1 < len(names) <= MAX_GROUPS:
        groups = [names[int(code)] for code in np.asarray(corpus.domains)[rows]]
    return space_map(verdict.vectors[teacher], verdict.vectors[TRAINED], texts, groups)


def layers_of(untrained: Any, student: Any, teacher: np.ndarray | None, texts: Sequence[str]) -> LayerSimilarity | None:
    """How near each block's states come to the teacher's vectors, before and after; None without blocks."""
    if teacher is None or len(texts) < 20:
        return None
    rows = evenly_spaced(len(texts), LAYER_TEXTS)
    chosen = [texts[row] for row in rows]
    after, before = _pooled_blocks(student, chosen), _pooled_blocks(untrained, chosen)
    return None if after is None else layer_similarity(after, teacher[rows], before)


def _pooled_blocks(model: Any, texts: Sequence[str], batch_size: int = 64) -> np.ndarray | None:
    """[L, n, d] pooled states of the blocks."""
    import torch

    from distilvec.students import StudentTap

    tap = StudentTap(model)
    if tap.info.layers is None:
        return None
    parts = []
    with torch.no_grad():
        for start in range(0, len(texts), batch_size):
            part = [split_pair(text) for text in texts[start : start + batch_size]]
            features = model.preprocess(part, prompt=default_prompt(model) or None)
            moved = {
                name: value.to(model.device) if hasattr(value, "to") else value for name, value in features.items()
            }
            layers = tap(moved, views=1, layers=True).layers
            if layers is None:
                return None
            parts.append(layers[0].float().cpu().numpy())
    return np.concatenate(parts, axis=1)


def space_map(
    teacher: np.ndarray, student: np.ndarray, texts: Sequence[str], groups: Sequence[str] | None = None
) -> SpaceMap:
    """Both spaces in the plane: the teacher's two main axes, and the student's turned to lie on them as well as it can.

    Args:
        teacher: [n, D]; student: [n, d], same texts.
    """
    from scipy.linalg import orthogonal_procrustes

    flat_teacher, flat_student = _plane(teacher), _plane(student)
    turn, _ = orthogonal_procrustes(flat_student, flat_teacher)
    return SpaceMap(
        teacher=flat_teacher.tolist(),
        student=(flat_student @ turn).tolist(),
        texts=list(texts),
        groups=list(groups) if groups is not None else None,
        projection="principal axes of unit vectors; the student's are turned onto the teacher's",
    )


def _plane(vectors: np.ndarray) -> np.ndarray:
    """[n, D] -> [n, 2], centred, unit scale."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(lengths, 1e-12)
    centred = unit - unit.mean(0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
    flat = centred @ axes.T
    return flat / max(float(flat.std()), 1e-12)


def layer_similarity(layers: np.ndarray, teacher: np.ndarray, untrained: np.ndarray | None = None) -> LayerSimilarity:
    """Linear CKA (debiased, floored at 0) of each student block's pooled states with the teacher's vectors.

    Args:
        layers: [L, n, d] of the trained student.
        teacher: [n, D].
        untrained: [L, n, d] of the student before training, as a second column.
    """
    from distilvec.judging.agreement import debiased_cka

    columns = [layers] if untrained is None else [layers, untrained]
    names = ["after training"] if untrained is None else ["after training", "before"]
    values = [
        [max(0.0, min(1.0, debiased_cka(column[block], teacher))) for column in columns] for block in range(len(layers))
    ]
    return LayerSimilarity(
        values=values,
        student_layers=[f"block {block + 1}" for block in range(len(layers))],
        teacher_layers=names,
        columns="likeness to the teacher's vectors",
    )
