"""Agreement: how much of the teacher's geometry a student kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError
from distilvec.judging.encoder import apply_map
from distilvec.judging.metrics import measure
from distilvec.judging.shared import NEIGHBOURS
from distilvec.judging.tasks import cosines, nearest_others, overlap, unit

Array = npt.NDArray[Any]
#: Items that are compared, and pairs of them whose similarities are; similarity matrices grow with its square.
SAMPLE, PAIRS = 2_000, 500_000


def agreement(
    teacher_vectors: Array,
    student_vectors: Array,
    teacher_map: Array | None = None,
    *,
    shared_space: bool = False,
    sample: int = SAMPLE,
    seed: int = 0,
) -> dict[str, Any]:
    """Agreement of a student with its teacher on the same texts.

    Args:
        teacher_vectors: [n, D].
        student_vectors: [n, d], in the same order.
        teacher_map: [d, D] or [d + 1, D] (last row: offset), the trained head or the ridge map from the
            student's space into the teacher's; `linear_map` makes it from an nn.Linear.
        shared_space: the student's vectors already lie in the teacher's space (`student.space: teacher`).
        sample: seeded sample of items for everything.

    Returns:
        `cosine`: mean cosine of the mapped student with the teacher, and `cosine_from`: "head" (the map
        given), "space" (shared) or "ridge" (neither: a ridge map fitted on one half and used on the other,
        both ways; it says what a linear map could reach, not what the student does). `similarity_pearson` and
        `similarity_spearman`: the correlation of the two models' cosines over all pairs. `neighbours`: mean
        overlap of the ten nearest neighbours, in [0, 1]. `cka`: linear CKA, debiased. `index_recall`: share of
        the teacher's own nearest that the student's query finds on the teacher's index (each text is a query
        for the others); None without map or shared space. `items`.

    Raises:
        DataError: different numbers of rows, fewer than four, or not finite.
    """
    teacher, student = _sampled(teacher_vectors, student_vectors, sample, seed)
    mapped = student if teacher_map is None else apply_map(student, np.asarray(teacher_map))
    known = teacher_map is not None or shared_space
    if known and mapped.shape[1] != teacher.shape[1]:
        raise DataError(f"vectors of width {mapped.shape[1]} cannot share a space of width {teacher.shape[1]}")
    where = "head" if teacher_map is not None else "space" if shared_space else "ridge"
    cosine = cosines(mapped, teacher) if known else _crossed_ridge(student, teacher, seed)
    near, own = _nearest(teacher, teacher), _nearest(student, student)
    return {
        "cosine": float(cosine.mean()),
        "cosine_from": where,
        **_matrices(unit(teacher), unit(student), seed),
        "neighbours": overlap(near, own),
        "cka": debiased_cka(teacher, student),
        "index_recall": overlap(near, _nearest(mapped, teacher)) if known else None,
        "items": len(teacher),
    }


def _sampled(one: Array, other: Array, sample: int, seed: int) -> tuple[Array, Array]:
    """At most so many rows of two models' vectors, float32; see `agreement` for what is refused."""
    one, other = np.asarray(one), np.asarray(other)
    if len(one) != len(other) or len(one) < 4:
        raise DataError(
            f"{len(one)} and {len(other)} vectors cannot be compared",
            remedy="Give both models' vectors of the same texts, at least four.",
        )
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        raise DataError("a vector holds NaN or infinity")
    if len(one) > sample:
        rows = np.sort(np.random.default_rng(seed).choice(len(one), sample, replace=False))
        one, other = one[rows], other[rows]
    return one.astype(np.float32), other.astype(np.float32)


def likeness(reference: Array, other: Array) -> dict[str, float]:
    """Return how alike two sets of vectors of the same texts are, whatever their widths: part of `agreement`.

    Args:
        reference: [n, D].
        other: [n, d], in the same order.

    Returns:
        `neighbours` and `similarity_spearman`.

    Raises:
        DataError: different numbers of rows, fewer than four, or not finite.
    """
    reference, other = _sampled(reference, other, SAMPLE, 0)
    return {
        "neighbours": overlap(_nearest(reference, reference), _nearest(other, other)),
        "similarity_spearman": _matrices(unit(reference), unit(other), 0)["similarity_spearman"],
    }


def linear_map(linear: Any) -> Array:
    """An `nn.Linear` as the map [d, D], with a last row for its bias where it has one."""
    weight = linear.weight.detach().float().cpu().numpy().T
    if linear.bias is None:
        return np.ascontiguousarray(weight)
    return np.vstack([weight, linear.bias.detach().float().cpu().numpy()[None]])


def free_map(source: Array, target: Array, penalty: float = 1e-2) -> Array:
    """W [d, D] with the smallest ||E W - T||^2 + g ||W||^2, g = penalty * tr(E'E) / d: the free baseline."""
    source, target = np.asarray(source, dtype=np.float64), np.asarray(target, dtype=np.float64)
    gram = source.T @ source
    width = len(gram)
    strength = max(penalty * np.trace(gram) / width, 1e-12)
    return np.asarray(np.linalg.solve(gram + strength * np.eye(width), source.T @ target), dtype=np.float32)


def debiased_cka(x: Array, y: Array) -> float:
    """Linear CKA of [n, p] and [n, q] with unbiased HSIC, in [-1, 1]; 0 where one is constant."""
    import torch

    from distilvec.functional.cka import linear_cka

    first, second = (torch.from_numpy(np.asarray(side, np.float64)) for side in (x, y))
    return linear_cka(first, second, debiased=True).item()


def _crossed_ridge(student: Array, teacher: Array, seed: int) -> Array:
    order = np.random.default_rng(seed).permutation(len(teacher))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    cosine = np.empty(len(teacher))
    for fitted, judged in (halves, halves[::-1]):
        cosine[judged] = cosines(student[judged] @ free_map(student[fitted], teacher[fitted]), teacher[judged])
    return cosine


def _matrices(teacher: Array, student: Array, seed: int) -> dict[str, float]:
    upper = np.triu_indices(len(teacher), k=1)
    if len(upper[0]) > PAIRS:
        chosen = np.random.default_rng(seed).choice(len(upper[0]), PAIRS, replace=False)
        upper = upper[0][chosen], upper[1][chosen]
    a, b = (teacher @ teacher.T)[upper], (student @ student.T)[upper]
    return {
        "similarity_pearson": measure("pearson", a.astype(np.float64), b.astype(np.float64)),
        "similarity_spearman": measure("spearman", a, b),
    }


def _nearest(queries: Array, documents: Array) -> Array:
    """Rows of the ten nearest documents of each query, the one in its own row left out."""
    return nearest_others(unit(queries), unit(documents), min(NEIGHBOURS, len(documents) - 1))
