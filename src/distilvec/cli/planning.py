"""`distilvec plan`: which student, and how large, before anything is trained in earnest."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distilvec.cli.options import Changes, Output, Quiet, integers, say
from distilvec.errors import DistilvecError

if TYPE_CHECKING:
    from distilvec.choosing.budget import Budget
    from distilvec.recipe import Recipe


def plan(
    recipe: Annotated[Path | None, typer.Argument(help="recipe in YAML; or --teacher and --corpus")] = None,
    changes: Changes = None,
    output: Output = None,
    teacher: Annotated[str | None, typer.Option(help="folder or hub id, instead of a recipe")] = None,
    corpus: Annotated[str | None, typer.Option(help="texts, instead of a recipe")] = None,
    text: Annotated[str | None, typer.Option(help="text column of --corpus; default text")] = None,
    tasks: Annotated[list[str] | None, typer.Option("--task", "-t", help="task beside those of the recipe")] = None,
    keep: Annotated[float | None, typer.Option(help="share of the teacher to be kept; default 0.95")] = None,
    parameters: Annotated[str | None, typer.Option(help="the best student of at most so many: 5.67M")] = None,
    megabytes: Annotated[
        str | None, typer.Option(help="the best student with float32 weights of at most so many")
    ] = None,
    latency: Annotated[str | None, typer.Option(help="the best student that reads a text in so many ms: 5ms")] = None,
    sample: Annotated[
        int | None, typer.Option(help="texts that the teacher encodes; default 4000, within a budget 30000")
    ] = None,
    probe_steps: Annotated[
        int | None, typer.Option(help="train every candidate for so many steps; default 0, within a budget 200", min=0)
    ] = None,
    layers: Annotated[str | None, typer.Option(help="numbers of layers to try: 1,2,3")] = None,
    vocabulary: Annotated[str | None, typer.Option(help="numbers of word pieces to try: 5000,10000")] = None,
    rows: Annotated[float | None, typer.Option(help="instead: time, disk and cost for so many texts, e.g. 1e9")] = None,
    devices: Annotated[str | None, typer.Option(help="with --rows: 8xH100, or 4 like this machine")] = None,
    price_per_hour: Annotated[float | None, typer.Option(help="with --rows: of one device")] = None,
    quiet: Quiet = False,
) -> None:
    """Compare candidate students before any training: size, speed here, and what they are predicted to keep."""
    search = {"--keep": keep, "--layers": layers, "--vocabulary": vocabulary, "--task": tasks or None}
    budgeted = {"--parameters": parameters, "--megabytes": megabytes, "--latency": latency}
    if rows is not None:
        _refuse({**search, **budgeted, "--sample": sample, "--probe-steps": probe_steps}, "--rows trains no candidates")
    else:
        _refuse({"--devices": devices, "--price-per-hour": price_per_hour}, "they are of --rows")
    if any(value is not None for value in budgeted.values()):
        _refuse(search, "a budget asks for the best student that fits")
    if recipe is not None:
        _refuse({"--text": text}, "a recipe names its column itself")
    with _planned(recipe, changes, output, teacher=teacher, corpus=corpus, text=text, tasks=tasks) as loaded:
        if rows is not None:
            from distilvec.choosing.scale.rates import scale
            from distilvec.choosing.scale.reckoning import Devices

            if not math.isfinite(rows):
                raise DistilvecError(f"this is a number of texts, not {rows}", where="--rows")
            say(scale(loaded, int(rows), Devices.read(devices or "1"), price_per_hour).text())
            return
        from distilvec.choosing.choose import choose

        if budget := _budget(parameters, megabytes, latency):
            _plan_budget(loaded, budget, output, sample=sample, steps=probe_steps or 0)
            return
        given: dict[str, Any] = {"keep": keep, "sample": sample, "probe_steps": probe_steps}
        given["layers"] = integers(layers, "--layers", "1,2,3")
        given["vocabularies"] = integers(vocabulary, "--vocabulary", "5000,10000")
        say(choose(loaded, **{name: value for name, value in given.items() if value is not None}).text())


def _plan_budget(recipe: Recipe, budget: Budget, output: Path | None, *, sample: int | None, steps: int) -> None:
    """The best student within a budget, in words and, with an output, as a picture."""
    from distilvec.choosing import write_plan
    from distilvec.choosing.compiled import compile_budget
    from distilvec.folders import claim

    if output is not None:
        claim(output)  # now, not when everything is measured
    sizes = {} if sample is None else {"sample": sample}
    compiled = compile_budget(recipe, budget, steps=steps, **sizes)
    say(compiled.text())
    if output is not None:
        say(f"picture     {write_plan(compiled, output)}")


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Refuse options that would change nothing."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise DistilvecError(f"{why}, so {' and '.join(given)} would change nothing", where="plan", remedy="Leave out.")


@contextlib.contextmanager
def _planned(
    recipe: Path | None,
    changes: list[str] | None,
    output: Path | None,
    *,
    teacher: str | None,
    corpus: str | None,
    text: str | None,
    tasks: Sequence[str] | None,
) -> Iterator[Any]:
    """Yield the recipe that `distilvec plan` is about: from a file, or made of a teacher and a corpus."""
    if (recipe is None) == (teacher is None) or (teacher is None) != (corpus is None):
        raise DistilvecError(
            "candidates are compared for a recipe, or for a teacher and a corpus",
            where="plan",
            remedy="Give a recipe, or both --teacher and --corpus.",
        )
    if recipe is None and changes:
        raise DistilvecError("--set changes a recipe, and there is none", where="plan", remedy="Give a recipe.")
    from distilvec.api import kept_or_temporary
    from distilvec.recipe import Recipe
    from distilvec.recipe.from_python import recipe_of

    if recipe is not None:
        loaded = Recipe.load(recipe, changes, output=output)
        loaded.judging.tasks += tasks or []
        yield loaded
        return
    with kept_or_temporary(output) as place:
        section = {"path": corpus, "text": text or "text"}
        yield recipe_of(teacher, None, section, None, place, judging={"tasks": list(tasks or [])})


def _budget(parameters: str | None, megabytes: str | None, latency: str | None) -> Budget:
    """Return what a student may be at most, by the section of recipes that says so too; false where nothing is said."""
    from pydantic import ValidationError

    from distilvec.choosing.settle_student import budget_of
    from distilvec.recipe import AutoSection
    from distilvec.validation import refusal

    limits = {"parameters": parameters, "megabytes": megabytes, "latency": latency}
    try:
        return budget_of(AutoSection.model_validate(limits))
    except ValidationError as error:
        raise refusal(error, AutoSection, "plan") from error
