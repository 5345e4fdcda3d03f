"""The merges by which byte-pair encoding builds its pieces, and how often each part is needed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any


def count_parts(
    model: dict[str, Any], pieces: dict[int, str], used: dict[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Uses of BPE pieces with the uses of what they are merged from, and the number of merges that build each.

    A part is used at least as often as the whole and takes fewer merges, so that cutting the list sorted by both
    never keeps a whole without its parts.
    """
    ids = {piece: index for index, piece in pieces.items()}
    merges = [tuple(merge_pair(merge)) for merge in model["merges"]]
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    prefix = model.get("continuing_subword_prefix") or ""
    suffix = model.get("end_of_word_suffix") or ""
    totals: dict[int, int] = dict(used)
    steps: dict[int, int] = {}
    for index, count in used.items():
        built = built_from(pieces[index], ranks, prefix, suffix)
        steps[index] = len(built)
        for part in {ids[piece] for piece in built if piece in ids} - {index}:
            totals[part] = totals.get(part, 0) + count
    for index in totals:
        if index not in steps:
            steps[index] = len(built_from(pieces[index], ranks, prefix, suffix))
    return totals, steps


def built_from(piece: str, ranks: dict[tuple[str, ...], int], prefix: str, suffix: str) -> list[str]:
    """All results of the merges that build a piece, in order, as byte-pair encoding applies them."""
    body = piece.removesuffix(suffix) if suffix else piece
    symbols = list(body.removeprefix(prefix) if prefix else body)
    if not symbols:
        return []
    symbols = [
        (prefix if prefix and (at > 0 or piece.startswith(prefix)) else "") + symbol
        for at, symbol in enumerate(symbols)
    ]
    if suffix and piece.endswith(suffix):
        symbols[-1] += suffix
    results: list[str] = []
    while len(symbols) > 1:
        pairs = [(ranks.get((left, right), len(ranks)), at) for at, (left, right) in enumerate(pairwise(symbols))]
        rank, at = min(pairs)
        if rank == len(ranks):
            break
        merged = symbols[at] + symbols[at + 1].removeprefix(prefix)
        symbols[at : at + 2] = [merged]
        results.append(merged)
    return results


def merge_pair(merge: str | list[str]) -> list[str]:
    """The two pieces of a merge, in either form that tokenizer.json has for it."""
    return merge.split(" ") if isinstance(merge, str) else merge
