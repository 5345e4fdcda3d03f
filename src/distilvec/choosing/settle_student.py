"""A recipe that leaves the student open becomes one that names it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DistilvecError
from distilvec.files import alone_in, read_record, whole, write_record
from distilvec.flow.judge import PLAN, chosen_section
from distilvec.folders import claim
from distilvec.recipe import AutoSection, Recipe
from distilvec.training.distributed import launched

if TYPE_CHECKING:
    from distilvec.choosing.budget import Budget
    from distilvec.choosing.choose import Choice
    from distilvec.choosing.compiled import Compiled


logger = logging.getLogger(__name__)
#: What was measured within a budget.
PICTURE = "plan.svg"


def settle_student(recipe: Recipe, *, resume: bool = False) -> Recipe:
    """A recipe with `student: auto` as one that names its student; any other as it is.

    What was measured is kept in `plan.json` in the output folder, within a budget with a picture. With `resume` the
    student of the run that is there is taken, and nothing is measured again.

    Raises:
        DistilvecError: whatever `choose` or `compile_budget` refuse, there are several processes, or a run that is to
            go on did not choose its student, or chose it for something else.
    """
    auto = None if recipe.student is None else recipe.student.auto
    if auto is None:
        return recipe
    processes = launched()[1]
    if processes > 1:
        raise DistilvecError(
            f"{processes} processes would each choose a student",
            where="student.auto",
            remedy="Run `distilvec plan RECIPE` first, and write the student that it names into the recipe.",
        )
    out = Path(recipe.output)
    asked = {"auto": auto.model_dump(mode="json"), "tasks": recipe.judging.model_dump(mode="json")["tasks"]}
    if resume and (out / "recipe.yaml").is_file():
        known = _same_choice(out, asked)
        section = chosen_section(known) if "asked" in known else None  # `plan -o` writes there too, for no run
        if section is not None:  # a run before may lie there still, where this one was killed before it began
            return _settled(recipe, section)
        return recipe.model_copy(update={"student": Recipe.load(out / "recipe.yaml").student})
    with alone_in(claim(out)):  # now, not when the choice has been measured
        choice = _chosen(recipe, auto)
        write_plan(choice, out, asked)
    row = choice.best
    logger.info("%s", choice.text())
    assert row.section is not None
    from distilvec.choosing.compiled import Compiled

    enough = isinstance(choice, Compiled) or choice.chosen is not None
    logger.log(logging.INFO if enough else logging.WARNING, "student: auto has chosen %s", row.name)
    return _settled(recipe, row.section)


def _settled(recipe: Recipe, section: dict[str, Any]) -> Recipe:
    """The recipe with a chosen student, through its own validation, so that a saved recipe is one that loads."""
    settled = Recipe.build(recipe.model_dump() | {"student": section})
    return recipe.model_copy(update={name: getattr(settled, name) for name in Recipe.model_fields})


def _same_choice(out: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured; refuse a student not chosen, or chosen for another `auto` or by other tasks."""
    known = read_record(out / PLAN)
    if known and known.get("asked", asked) == asked:
        return known
    what = "was chosen for something else" if known else "was not chosen, but named"
    raise DistilvecError(
        f"the student of the run in this folder {what}",
        where=str(out / (PLAN if known else "recipe.yaml")),
        remedy="Choose another output, or resume with the recipe of that run (recipe.yaml there names its student).",
    )


def _chosen(recipe: Recipe, auto: AutoSection) -> Choice | Compiled:
    if budget := budget_of(auto):
        from distilvec.choosing.compiled import compile_budget

        return compile_budget(recipe, budget, steps=auto.probe_steps)
    from distilvec.choosing.choose import KEEP, choose

    return choose(recipe, keep=auto.keep or KEEP, probe_steps=auto.probe_steps)


def budget_of(auto: AutoSection) -> Budget:
    """The limits that a section names; false where it names none."""
    from distilvec.choosing.budget import Budget

    return Budget(None if auto.parameters is None else int(auto.parameters), auto.megabytes, auto.latency)


def write_plan(choice: Choice | Compiled, folder: Path, asked: dict[str, Any] | None = None) -> Path:
    """Write what was measured into a folder, and within a budget the picture; returns the last of them.

    Args:
        asked: what it was chosen for.
    """
    content = choice.to_dict() | ({} if asked is None else {"asked": asked})
    write_record(folder / PLAN, content)
    from distilvec.choosing.compiled import Compiled

    if not isinstance(choice, Compiled):
        return folder / PLAN
    from distilvec.report.plots import save_svg, style

    with style(), whole(folder / PICTURE) as partial:
        save_svg(choice.figure(), partial)
    return folder / PICTURE
