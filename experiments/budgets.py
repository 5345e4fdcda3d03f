"""What `distilvec plan --parameters` predicts of the candidates within a budget, against what training then reached.

    python experiments/budgets.py                      # twentieth and eighth: an hour of a core
    python experiments/budgets.py --sizes twentieth
    python experiments/budgets.py --table

Teacher: all-MiniLM-L6-v2. Corpus: the 100,000 texts of quarter.py, a hundredth of them held out; recipe: its batches,
schedule and rate for the size, `cosine` without token states, all texts once. For each budget `plan` probes what fits
it and predicts the order (Spearman's correlation of all cosines with the teacher's on held-out texts) after the whole
training. Then twelve candidates, evenly spaced from the first to the last of its table, are trained whole.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from common import WORK, Results, arguments, finished, settings_of
from layout import head, line
from quarter import NAME, likeness, recipe, trained
from quarter_shapes import RATES
from records import Rows

from distilvec.choosing.budget import Budget
from distilvec.choosing.compiled import compile_budget
from distilvec.choosing.curves import extrapolate, powers
from distilvec.choosing.prediction import Prediction
from distilvec.evenly import evenly_spaced
from distilvec.recipe import Recipe

EXPERIMENT = "budgets"
BUDGETS = {"twentieth": 1_100_000, "eighth": 2_840_000}
TRAINED, EPOCHS = 12, 1.0
#: Points within which a prediction is to be.
NEAR = 1.0

HEADER = """# What plan predicts within a budget, and what training reached

Made by `python experiments/budgets.py` (its header says what was trained on what). Order: Spearman's correlation of
all cosines with the teacher's on held-out texts, in percent, at the start and after short trainings. Predicted: as
`plan` does now, from the probes. One seed. Trained were twelve, evenly spaced in the table's order, and those for which
earlier orders had asked.
"""


def candidate(size: str, student: dict[str, Any]) -> Recipe:
    """The whole training of a student section."""
    made = recipe({}, 0, EPOCHS, token_states=0.0, lr=RATES[size])
    made["student"] = {"max_length": 256, "dropout": 0.0, **student}
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]
    return Recipe.build({**made, "output": str(WORK / EXPERIMENT / f"run-{digest}")})


def planned(size: str) -> dict[str, Any]:
    """The candidates with the curves of their probes, the best first."""
    made = candidate(size, {"auto": {"parameters": BUDGETS[size], "of": NAME}})
    found = compile_budget(made, Budget(parameters=BUDGETS[size]))
    ranked = sorted(found.rows, key=lambda row: (-max(row.curve), -found.prediction(row).middle))
    rows = [
        {"name": row.name, "parameters": row.parameters, "section": row.section, "curve": row.curve} for row in ranked
    ]
    return {"rows": rows, "steps": found.steps, "texts": found.texts, "notes": found.notes}


def reached(made: Recipe) -> dict[str, Any]:
    """A candidate after its whole training."""
    folder, about = trained(made)
    return {**about, **likeness(folder / "student")}


def predictions(plan: dict[str, Any]) -> dict[str, Prediction]:
    """Name -> what `plan` says of a candidate, from its curve and the others'."""
    curves = {row["name"]: {int(steps): value for steps, value in row["curve"].items()} for row in plan["rows"]}
    others = powers(list(curves.values()))
    return {name: extrapolate(curve, plan["steps"], others) for name, curve in curves.items()}


def write_page(rows: Rows, folder: Path) -> str:
    """The tables of what is there, also written to `table.md`."""
    lines = [HEADER, "## How far off", ""]
    lines += head(
        "budget", "candidates", "steps", "trained", "off by, mean", "at most", "within 1 point", "in interval"
    )
    there = [size for size in BUDGETS if f"{size}/plan" in rows]
    lines += [_summary(rows, size) for size in there]
    for size in there:
        lines += ["", f"## {size}: at most {BUDGETS[size] / 1e6:.2f} M parameters", "", *_table(rows, size)]
    page = "\n".join(lines) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(page, encoding="utf-8")
    return page


def _misses(rows: Rows, size: str) -> dict[str, tuple[float, float, bool]]:
    """Candidate -> what training reached, how much more that is than predicted, whether it is in the interval."""
    found = {}
    for name, said in predictions(rows[f"{size}/plan"]).items():
        if trained_row := rows.get(f"{size}/{name}"):
            value = trained_row["agreement"]["similarity_spearman"]
            found[name] = 100 * value, 100 * (value - said.middle), said.low <= value <= said.high
    return found


def _summary(rows: Rows, size: str) -> str:
    plan, misses = rows[f"{size}/plan"], _misses(rows, size).values()
    off = [abs(each) for _, each, _ in misses]
    values = (f"{np.mean(off):.1f}", f"{max(off):.1f}") if off else ("", "")
    near, inside = sum(each <= NEAR for each in off), sum(within for _, _, within in misses)
    counts = (str(len(plan["rows"])), f"{plan['steps']:,}", str(len(off)))
    return line(size, *counts, *values, f"{near} of {len(off)}", f"{inside} of {len(off)}")


def _table(rows: Rows, size: str) -> list[str]:
    plan, misses = rows[f"{size}/plan"], _misses(rows, size)
    said = predictions(plan)
    rounds = sorted({int(steps) for row in plan["rows"] for steps in row["curve"]})
    shown = ("start", *(f"{each} steps" for each in rounds if each))
    lines = head("candidate", "parameters", *shown, "predicted", "reached", "off by")
    for row in plan["rows"]:
        reached, off, _ = misses.get(row["name"], (None, None, None))
        came = ["", ""] if reached is None else [f"{reached:.1f}", f"{off:+.1f}"]
        curve = [f"{100 * row['curve'][str(each)]:.1f}" if str(each) in row["curve"] else "" for each in rounds]
        lines.append(line(row["name"], f"{row['parameters'] / 1e6:.2f} M", *curve, str(said[row["name"]]), *came))
    return lines


def main() -> None:
    parser = arguments(__doc__, device=False)
    parser.add_argument("--sizes", nargs="+", choices=list(BUDGETS), default=list(BUDGETS))
    options = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    for size in options.sizes:
        asked = settings_of(candidate(size, {"auto": {"parameters": BUDGETS[size], "of": NAME}}))
        plan = results.run(f"{size}/plan", functools.partial(planned, size), recipe=asked)
        for place in evenly_spaced(len(plan["rows"]), TRAINED):
            row = plan["rows"][place]
            made = candidate(size, row["section"])
            results.run(f"{size}/{row['name']}", functools.partial(reached, made), recipe=settings_of(made))
            write_page(results.rows(), results.home)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
