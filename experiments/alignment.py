"""How many tokens of two tokenizers can be paired, in each mode, beside EMO's Table 6.

    python experiments/alignment.py

Student bert-base-uncased (WordPiece), teacher Mistral 7B's tokenizer (SentencePiece with byte fallback), both sentences
of every row of SciTail's, ConTRoL's and ANLI R2's test sets, aligned one by one, special tokens left out. A rate is the
share of all tokens of a side that are in a pair (in modes strict, path, spans and reciprocal, which are one-to-one).
Besides, texts as the models see them: cut to 512 tokens on either side; and texts without their digits, which the
teacher's tokenizer cuts one by one. No model is needed; it takes a minute on one core.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from common import Results, arguments, finished, shared
from layout import head, line
from records import Rows

from distilvec.alignment import MODES, Aligner
from distilvec.alignment.loading import load_tokenizer, vocabulary_of

EXPERIMENT = "alignment"
SETS = {"scitail": "SciTail", "control": "ConTRoL", "anli_r2": "ANLI R2"}
#: EMO, Table 6: teacher and student, in percent, over train, dev and test together.
PAPER = {"scitail": (71.03, 80.22), "control": (68.86, 75.48), "anli_r2": (66.37, 74.47)}
ONE_TO_ONE = [mode for mode in MODES if mode != "full"]
CUT = 512
TOKENIZERS = ("bert-base-uncased", "mistral-7b-v0.1")


def texts_of(name: str, limit: int | None) -> list[str]:
    """Both sentences of each row of a test set."""
    with gzip.open(shared() / "data" / f"{name}.test.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines][:limit]
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


def write_page(rows: Rows, folder: Path) -> str:
    """The Markdown table of the sets that are there, also written to `table.md`."""
    found = [rows[name] for name in SETS if name in rows]
    lines = [
        HEADER,
        *head("mode", *(SETS[result["set"]] for result in found)),
        line("EMO, Table 6 (published)", *("{:.2f} / {:.2f}".format(*PAPER[result["set"]]) for result in found)),
    ]
    for mode in ONE_TO_ONE:
        lines.append(_row(mode, [result["modes"][mode] for result in found]))
    lines.append(_row(f"strict, texts cut to {CUT} tokens", [result["strict_cut"] for result in found]))
    lines.append(_row("strict, without digits", [result["strict_without_digits"] for result in found]))
    told = {result["set"]: result for result in found}
    if {"control", "anli_r2"} <= set(told):
        lines += ["", unexplained(told["control"], told["anli_r2"])]
    sizes = "; ".join(
        f"{SETS[result['set']]} {result['texts']:,} texts of {result['student_tokens']:.1f} (student) and "
        f"{result['teacher_tokens']:.1f} (teacher) tokens"
        for result in found
    )
    page = "\n".join([*lines, "", sizes + "."]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(page)
    return page


def unexplained(control: dict[str, Any], anli: dict[str, Any]) -> str:
    """Where the strict rates of the teacher's tokens are far from the published ones, and what was looked at."""
    (low, ours), high = PAPER["anli_r2"], PAPER["control"][0]
    strict, without = anli["modes"]["strict"]["teacher"], anli["strict_without_digits"]["teacher"]
    ratio = anli["teacher_per_student"]
    more = control["modes"]["strict"]["teacher"] - high
    return (
        f"Unexplained: strict pairs {low - strict:.1f} points fewer of the teacher's tokens than published on ANLI R2, "
        f"and {more:.1f} more on ConTRoL. On ANLI R2 most of it are numbers, which the teacher's tokenizer cuts into "
        f"single digits: without digits {without:.1f} % pair. The published rates imply {ours / low:.2f} of the "
        f"teacher's tokens for one of the student's; here there are {ratio['all']:.2f}, without digits "
        f"{ratio['without_digits']:.2f}. So the paper's texts may have had fewer digits or none; nearly all of them "
        "are training rows, which are not here. What differs on ConTRoL (other rows, special tokens, cut passages) was "
        "not found."
    )


def _row(name: str, cells: list[dict[str, float]]) -> str:
    return line(name, *(f"{cell['teacher']:.2f} / {cell['student']:.2f}" for cell in cells))


HEADER = """# Mapping rates between bert-base-uncased and Mistral

Percent of the teacher's / the student's tokens that are in a one-to-one pair. Made by `python
experiments/alignment.py`; its header says how. Ours are of the test sets, the paper's of all splits; it does not
say whether special tokens count.
"""


def main() -> None:
    parser = arguments(__doc__, device=False)
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
