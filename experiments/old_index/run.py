"""Old indexes: are planted faults found and clean indexes left in peace, and how well do new models fit an old one?"""

from __future__ import annotations

import functools
from typing import Any

from experiments.harness.records import Results
from experiments.harness.script import arguments, finished
from experiments.old_index.faults import ROWS, Case, make_odd, plant
from experiments.old_index.models import MODELS, SIZES, adapted
from experiments.old_index.table import write_page

EXPERIMENT = "old_index"
#: Kind of fault -> how many are planted; 100 in all.
FAULTS = {
    "another model": 16,
    "prompt": 20,
    "pooling": 15,
    "normalisation": 15,
    "shuffled rows": 15,
    "mixed models": 19,
}
#: Oddity of a clean index -> how many; 100 in all.
CLEAN = {
    "as it is": 20,
    "float16 storage": 16,
    "bfloat16 weights": 16,
    "bfloat16 storage": 12,
    "batch size": 12,
    "the same prompt": 12,
    "repeated texts": 12,
}


def faulty(kind: str, count: int, seed: int) -> dict[str, Any]:
    """What the check says of indexes with one kind of fault."""
    cases = []
    for number in range(count):
        case = Case(1000 * (seed + 1) + 100 * list(FAULTS).index(kind) + number)
        which = plant(case, kind, number)
        found = case.check(number)
        kinds = [each.kind for each in found.findings]
        told = {row for each in found.findings for first, last in each.rows for row in range(first, last + 1)}
        exact = bool(told) and all(each.exact for each in found.findings)
        planted = {int(row) for row in case.wrong.nonzero()[0]}
        cases.append(
            {
                "which": which,
                "found": kinds,
                "right": kinds == [kind],
                "wrong_rows_among_told": len(told & planted) / len(told) if told else None,
                "told_among_wrong_rows": len(told & planted) / len(planted) if exact else None,
                "cosine": found.cosine,
            }
        )
    return {
        "cases": cases,
        "found": sum(bool(case["found"]) for case in cases),
        "right": sum(c["right"] for c in cases),
    }


def clean(kind: str, count: int, seed: int) -> dict[str, Any]:
    """What the check says of clean indexes."""
    accused, lowest = [], []
    for number in range(count):
        case = Case(90_000 + 1000 * seed + 100 * list(CLEAN).index(kind) + number)
        make_odd(case, kind, number)
        found = case.check(number)
        accused += [[each.kind for each in found.findings]] if found.findings else []
        lowest.append({"cosine": found.cosine, "least": found.least})
    return {"cases": count, "accused": accused, "cosines": lowest}


def main() -> None:
    parser = arguments(__file__, device=False)
    parser.add_argument("--part", choices=("check", "adapt"), help="only one of the two")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seed = options.seed
    results = Results(EXPERIMENT, {"seed": seed})
    if finished(options, results, write_page):
        return
    if options.part != "adapt":
        for kind, count in FAULTS.items():
            name = f"faults/{kind}-{seed}"
            results.run(name, functools.partial(faulty, kind, count, seed), cases=count, rows=ROWS)
        for kind, count in CLEAN.items():
            results.run(f"clean/{kind}-{seed}", functools.partial(clean, kind, count, seed), cases=count, rows=ROWS)
    if options.part != "check":
        for name in MODELS:
            results.run(f"adapt/{name}-{seed}", functools.partial(adapted, name, seed), sizes=SIZES)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
