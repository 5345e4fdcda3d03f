"""Claims about what was counted, timed or looked at once, and about settings of teachers; `claims.py` judges them.

Kinds of claims:

    rate      percent of one side's tokens that pair, of one set (alignment.py)
    time      what something adds to a step or to a text, as a share of the time without it, at most `limit`
              (benchmarks/expert_head.py on an H200, benchmarks/many_teachers.py on processors)
    geometry  a figure over the tokens of a few checkpoints (mixtures.py)
    teachers  better, over labelled sets and seeds: a row with other teachers against one with the usual one
              (cross_tokenizer.py)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cross_table
import mixture_table
import numpy as np
from claim import LABELLED, MIXTURES, NONE, Claim
from cross_rows import ROWS
from records import committed
from verdicts import FAILS, HOLDS, NEAR, OPEN, UNLIKE, Finding, figure, judge, untested, verdict

import alignment

#: The sides of a pair of tokens, as alignment.py keeps them.
SIDES = ("teacher", "student")
#: (batch, tokens) -> DistillMoE's figure in percent: its tables 17, 18 (throughput) and 19.
HEAD = {(1, 32): 11.7, (32, 32): 3.63, (1, 128): 8.58, (1, 512): 1.44}
#: On the device that the paper measured on.
HEADS = "expert_head-cuda"
_OTHER_STEPS = "theirs a graph network on a GPU, ours 256 texts of 128 tokens on two threads"
TWO, ONE = "two-teachers", "distillmoe layers 2"


def _pairing() -> tuple[Claim, ...]:
    return tuple(
        Claim(
            "EMO",
            "Table 6",
            f"One-to-one pairs, % of the {side}'s tokens, {called}",
            f"{percent:g}",
            "rate",
            name,
            side,
            students=NONE,
        )
        for name, called in alignment.SETS.items()
        for side, percent in zip(SIDES, alignment.PAPER[name], strict=True)
    )


def _head() -> tuple[Claim, ...]:
    found = []
    for (batch, tokens), percent in HEAD.items():
        where = "Table 17" if (batch, tokens) == (1, 32) else "Table 18" if batch > 1 else "Table 19"
        given = f"{batch} texts of {tokens} tokens" if batch > 1 else f"a text of {tokens} tokens"
        text = f"What the head adds to {given}, % of the time"
        shape = f"{batch}x{tokens}"
        found.append(
            Claim("DistillMoE", where, text, f"{percent:g}", "time", HEADS, shape, percent / 100, students=NONE)
        )
    return tuple(found)


def _geometry(where: str, text: str, said: str, key: str, of: str = "") -> Claim:
    return Claim("SBA", where, text, said, "geometry", key, of, students=(MIXTURES,))


def _per_teacher(text: str, said: str, limit: float, unlike: str = "") -> Claim:
    unit = "share" if limit else "milliseconds"
    return Claim("Many teachers", "Figure 15", text, said, "time", "many_teachers", unit, limit, NONE, unlike)


MEASURED: tuple[Claim, ...] = (
    _per_teacher("What one more teacher adds, % of a step", "under 1", 0.01),
    _per_teacher("What one more teacher adds, ms", "1.57", 0.0, _OTHER_STEPS),
    *_pairing(),
    *_head(),
    Claim(
        "DistillMoE",
        "Table 12",
        "Two teachers beat one",
        "Patent 66.8 > 66.2",
        "teachers",
        f"{TWO}/distillmoe",
        ONE,
        students=(LABELLED,),
    ),
    _geometry("Figure 1", "Active experts are equally long (ratio of norms)", "around 1", "norm_ratio"),
    _geometry("Figure 2", "Most angles of active experts exceed 40 degrees, %", "most", "wide"),
    _geometry("Figure 5", "The linear sum is shorter than its experts (ratio)", "below 1", "angular", "linear"),
    _geometry("Figure 5", "The spherical one is as long as its experts (ratio)", "around 1", "angular", "sba"),
)


def compare_rates(claim: Claim, results: Path, benchmarks: Path) -> Finding:
    """Our rate in the published mode, of the test set alone; it is counted, so that no interval belongs to it."""
    found = committed(alignment.EXPERIMENT, results).get(claim.a)
    if found is None:
        return untested(f"no {claim.a}")
    rate, published = found["modes"]["strict"][claim.b], alignment.PAPER[claim.a][SIDES.index(claim.b)]
    gap = rate - published
    basis = f"{found['texts']:,} texts of the test set, theirs of all splits"
    near = f"{FAILS} ({abs(gap):.1f} points {'above' if gap > 0 else 'below'})"
    return Finding(rate, None, basis, HOLDS if abs(gap) <= NEAR else near)


def compare_time(claim: Claim, results: Path, benchmarks: Path) -> Finding:
    """What is added, in percent, or in milliseconds."""
    file = benchmarks / f"{claim.a}.json"
    found = json.loads(file.read_text()) if file.exists() else {"rows": []}
    value, interval, basis = (_added if claim.a == HEADS else _of_teachers)(found, claim.b)
    if value is None or interval is None:
        return untested(f"no {file.name} with this row")
    if claim.unlike:
        return Finding(value, interval, basis, f"{UNLIKE}: {claim.unlike}")
    return Finding(value, interval, basis, verdict("time", interval, 100 * claim.limit))


Timed = tuple[float | None, tuple[float, float] | None, str]


def _added(found: dict[str, Any], shape: str) -> Timed:
    rows = [row for row in found["rows"] if f"{row['batch']}x{row['tokens']}" == shape]
    if not rows:
        return None, None, ""
    low, high = rows[0]["added"]["quartiles"]
    basis = f"quartiles of {found['rounds']} rounds, {found['machine']}, {found['device']}; theirs an H200"
    return 100 * rows[0]["added"]["median"], (100 * low, 100 * high), basis


def _of_teachers(found: dict[str, Any], unit: str) -> Timed:
    if not found["rows"]:
        return None, None, ""
    each = [
        100 * row["per_teacher"] if unit == "share" else 1000 * row["seconds"] / row["teachers"]
        for row in found["rows"]
    ]
    counts = [row["teachers"] for row in found["rows"]]
    basis = f"{min(counts)} to {max(counts)} teachers, {found['threads']} threads, {found['device']}"
    return each[0], (min(each), max(each)), basis


def compare_geometry(claim: Claim, results: Path, benchmarks: Path) -> Finding:
    """A figure of all mixtures of a checkpoint together, the mean over checkpoints; in brackets the middle nine tenths
    of their tokens. Lengths are compared with the router's mass taken out, as weights that sum to 1 would have them.
    """
    rows = committed("mixtures", results)
    each = [row["mixtures"][0] for start in mixture_table.starts_of(rows) if (row := rows.get(f"{start}/geometry"))]
    if not each:
        return untested("no geometry")
    spreads = [whole[claim.a][claim.b] if claim.b else whole[claim.a] for whole in each]
    if claim.a == "wide":
        value, interval = 100 * float(np.mean(spreads)), None
    else:
        value, low, high = (float(np.mean([spread[key] for spread in spreads])) for key in ("median", "low", "high"))
        interval = (low, high)
    count = f"{len(each)} checkpoint{'s'[: len(each) > 1]}"
    tokens = f"{sum(whole['tokens'] for whole in each):,} tokens"
    said = {1: "one checkpoint", 2: "two checkpoints"}.get(len(each), count)
    return Finding(value, interval, f"{tokens}, {count}", f"{said}: {figure(value, interval, '')}, {OPEN}")


def compare_teachers(claim: Claim, results: Path, benchmarks: Path) -> Finding:
    """The difference of test scores in points, paired by labelled set and seed; `a` is "SETTING/ROW"."""
    rows = committed("cross_tokenizer", results)
    setting, _, row = claim.a.partition("/")
    usual = cross_table.scores(rows, claim.b) if claim.b in ROWS else {}
    differences: dict[str, dict[int | None, float]] = {}
    for (name, seed), score in cross_table.scores(rows, row, setting).items():
        if (name, seed) in usual:
            differences.setdefault(name, {})[seed] = score - usual[name, seed]
    return judge("teachers", differences, "beside all-MiniLM-L6-v2 a weaker one, two layers compared")


Compare = Callable[[Claim, Path, Path], Finding]
COMPARE: dict[str, Compare] = {
    "rate": compare_rates,
    "time": compare_time,
    "geometry": compare_geometry,
    "teachers": compare_teachers,
}
