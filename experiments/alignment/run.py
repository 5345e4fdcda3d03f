"""How many tokens of two tokenizers can be paired, in each mode, beside EMO's Table 6."""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np
from experiments.alignment.table import CUT, ONE_TO_ONE, SETS, write_page
from experiments.harness.records import Results
from experiments.harness.script import arguments, finished, shared
from experiments.harness.texts import shared_rows

from distilvec.alignment import Aligner
from distilvec.alignment.loading import load_tokenizer, vocabulary_of

EXPERIMENT = "alignment"
TOKENIZERS = ("bert-base-uncased", "mistral-7b-v0.1")


def texts_of(name: str, limit: int | None) -> list[str]:
    """Both sentences of each row of a test set."""
    rows = list(shared_rows(f"{name}.test"))[:limit]
    return [row[side] for row in rows for side in ("text1", "text2")]


def rates(name: str, tokenizers: list[Any], limit: int | None) -> dict[str, Any]:
    """Mode -> percent of the teacher's and the student's tokens."""
    texts = texts_of(name, limit)
    aligner = Aligner(*(vocabulary_of(tokenizer) for tokenizer in tokenizers))
    encoded, ids = encode(texts, tokenizers)
    _, plain = encode([re.sub(r"\d+", "", text) for text in texts], tokenizers)
    batched = [mode for mode in ONE_TO_ONE if mode != "spans"]
    found = aligner.batch(ids, batched)
    found["spans"] = [Aligner.span_pairs(a.offsets, b.offsets, text) for text, (a, b) in zip(texts, encoded)]
    cut = [(a[:CUT], b[:CUT]) for a, b in ids]
    modes = {mode: percent(found[mode], ids) for mode in ONE_TO_ONE}
    return {
        "set": name,
        "texts": len(texts),
        "student_tokens": float(np.mean([len(a) for a, _ in ids])),
        "teacher_tokens": float(np.mean([len(b) for _, b in ids])),
        "modes": modes,
        "strict_cut": percent(aligner.batch(cut, ["strict"])["strict"], cut),
        "strict_without_digits": percent(aligner.batch(plain, ["strict"])["strict"], plain),
        "teacher_per_student": {"all": tokens_per_token(ids), "without_digits": tokens_per_token(plain)},
    }


def encode(
    texts: list[str], tokenizers: list[Any]
) -> tuple[list[tuple[Any, Any]], list[tuple[np.ndarray, np.ndarray]]]:
    """Encodings and ids of every text, of the student and of the teacher."""
    encoded = list(zip(*(each.encode_batch(texts, add_special_tokens=False) for each in tokenizers)))
    return encoded, [(np.array(a.ids), np.array(b.ids)) for a, b in encoded]


def tokens_per_token(ids: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """The teacher's tokens for one of the student's."""
    return round(sum(len(b) for _, b in ids) / sum(len(a) for a, _ in ids), 3)


def percent(pairs: list[np.ndarray], ids: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """Of all tokens of either side."""
    count = sum(map(len, pairs))
    return {
        "teacher": round(100 * count / sum(len(b) for _, b in ids), 2),
        "student": round(100 * count / sum(len(a) for a, _ in ids), 2),
    }


def main() -> None:
    parser = arguments(__file__, device=False)
    parser.add_argument("--rows", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--limit", type=int, default=None, help="rows of each set")
    options = parser.parse_args()
    results = Results(EXPERIMENT, {"limit": options.limit, "cut": CUT})
    if finished(options, results, write_page):
        return
    folder = shared() / "data" / "tokenizers"
    tokenizers = [load_tokenizer(folder / name) for name in TOKENIZERS]
    for name in options.rows:
        results.run(name, functools.partial(rates, name, tokenizers, options.limit), tokenizers=TOKENIZERS)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
