"""What `distilvec plan --parameters` predicts of the candidates within a budget, against what training then reached."""

from __future__ import annotations

import functools
from typing import Any

from experiments.budgets.table import BUDGETS, write_page
from experiments.harness.records import WORK, Results, digest
from experiments.harness.script import arguments, finished, settings_of
from experiments.quarter.run import NAME, likeness, recipe, trained
from experiments.quarter.shapes import RATES

from distilvec.choosing.budget import Budget
from distilvec.choosing.compiled import compile_budget
from distilvec.evenly import evenly_spaced
from distilvec.recipe import Recipe

EXPERIMENT = "budgets"
TRAINED, EPOCHS = 12, 1.0


def candidate(size: str, student: dict[str, Any]) -> Recipe:
    """The whole training of a student section."""
    made = recipe({}, 0, EPOCHS, token_states=0.0, lr=RATES[size])
    made["student"] = {"max_length": 256, "dropout": 0.0, **student}
    return Recipe.build({**made, "output": str(WORK / EXPERIMENT / f"run-{digest(made)}")})


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


def main() -> None:
    parser = arguments(__file__, device=False)
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
