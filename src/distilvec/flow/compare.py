"""Several methods on the same data, steps and seeds, and one table that claims no more than its intervals allow.

Corpus, token ids and stores are shared; every run is finished by itself, so that an interrupted comparison goes on
where it was. Per-item results are kept, and differences to the reference method get a paired bootstrap interval.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from distilvec.errors import DistilvecError, nearest
from distilvec.files import alone_in, read_record, whole, write_text
from distilvec.flow.bench import Bench, Scores, made_of_held_out
from distilvec.flow.defaults import log_chosen, with_defaults
from distilvec.flow.pin import SAVED, pin
from distilvec.flow.prepare import named_tasks, open_corpus, open_teachers, require
from distilvec.flow.variants import Spec, changed, row_of, slug, variants_of
from distilvec.folders import claim
from distilvec.recipe import Recipe
from distilvec.recipe.sections import MOST_SEEDS
from distilvec.report import CompareTable, compare_table
from distilvec.report.plots import save_svg, style
from distilvec.report.ranks import ranks_figure
from distilvec.showing import Shown


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """A finished comparison.

    Attributes:
        folder: holds `compare.json`, `.md`, `.csv` and `.tex`, where there are tasks enough `ranks.svg`, and
            `runs/METHOD/seed-N/`.
        compared: means, deviations and differences to the reference.
        rates: method -> learning rate chosen by tuning; empty without.
        notes: what one has to know to read the table.
    """

    folder: Path
    compared: CompareTable
    rates: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tried: dict[str, dict[float, float | None]] = field(default_factory=dict)

    def table(self) -> str:
        """Return what `distilvec compare` prints."""
        return "\n".join([self.compared.grid().text(), "", *self.notes, f"results  {self.folder / 'compare.json'}"])

    text = table

    def _named(self) -> str:
        return repr(str(self.folder))

    def _repr_markdown_(self) -> str:
        return "\n".join([self.compared.grid().markdown(), "", *(f"- {note}" for note in self.notes)])

    def write(self) -> None:
        """Write the table as `compare.json`, `.md`, `.csv` and `.tex`, and where there are ranks `ranks.svg`."""
        content = {**self.compared.to_dict(), "rates": self.rates, "tried": self.tried, "notes": self.notes}
        write_text(self.folder / "compare.json", json.dumps(content, indent=1) + "\n")
        lines = [self._repr_markdown_()]
        if self.compared.ranking is not None:
            with style(), whole(self.folder / "ranks.svg") as partial:
                save_svg(ranks_figure(self.compared.ranking), partial)
            lines += ["", "![Average ranks](ranks.svg)"]
        write_text(self.folder / "compare.md", "\n".join(lines) + "\n")
        write_text(self.folder / "compare.csv", self.compared.csv())
        grid = self.compared.grid()
        write_text(self.folder / "compare.tex", replace(grid, notes=[*grid.notes, *self.notes]).latex() + "\n")


def compare(
    recipe: Recipe,
    methods: Spec | Sequence[Spec],
    seeds: int = 3,
    *,
    tune: bool = False,
    reference: str | None = None,
) -> Comparison:
    """Train every method with every seed, judge all students by the same code, and compare.

    Args as for `distilvec.compare`, whose recipe has data, student, steps and tasks. Its `output` gets the results; its
    `cache` (default: its `output`) the shared corpus and stores.
    """
    variants = variants_of(recipe, methods)
    first = row_of(reference, variants) if reference else next(iter(variants))
    if first not in variants:
        raise DistilvecError(f'no method "{first}" is compared', where="reference", remedy=nearest(first, variants))
    if both := {each.name for each in recipe.teachers} & variants.keys():
        raise DistilvecError(
            f'a teacher and a row of the table would both be called "{min(both)}"',
            where="teachers",
            remedy="Give the teacher another name.",
        )
    _check_seeds(recipe.training.seed, seeds)
    for variant in variants.values():
        require(variant, "compare")
    pinned = Path(recipe.output) / "baselines" / SAVED
    recipe = pin(recipe, pinned)
    named = named_tasks(recipe)
    corpus = open_corpus(recipe)
    # The settings of a comparison do not follow one of its methods; a row that is "auto" takes what suits the student.
    recipe = log_chosen(with_defaults(recipe, corpus, choose_method=False))
    rows = variants_of(recipe, methods)
    variants = {name: log_chosen(with_defaults(row, corpus)) for name, row in rows.items()}
    kept = _kept_options(recipe, rows)
    with alone_in(claim(recipe.output)):
        write_text(pinned, recipe.to_yaml())  # seeds that are added later take the same models and data
        bench = Bench(recipe, variants, corpus, open_teachers(recipe, corpus), named, tune=tune)
        return _compared(bench, first, seeds, tune, kept=kept, of_held_out=made_of_held_out(recipe, named))


def _check_seeds(first: int, seeds: int) -> None:
    """Refuse what is not a number of seeds, or would go beyond the largest seed."""
    if isinstance(seeds, bool) or not isinstance(seeds, int):
        raise DistilvecError(
            f"seeds is the number of runs, not a {type(seeds).__name__}",
            where="seeds",
            remedy="seeds=3 takes the recipe's training.seed and the two after it.",
        )
    if seeds < 1:
        raise DistilvecError(f"seeds is at least 1, not {seeds}", where="seeds")
    if first + seeds > MOST_SEEDS:
        raise DistilvecError(
            f"the last seed would be {first + seeds - 1:,}, and seeds are below {MOST_SEEDS:,}", where="training.seed"
        )


def _compared(
    bench: Bench, first: str, seeds: int, tune: bool, *, kept: Sequence[str], of_held_out: bool
) -> Comparison:
    """Train and judge all of them, in a folder that is held; `first` is what the others are compared with."""
    recipe, variants = bench.recipe, bench.variants
    bench.check()
    bench.teach()
    rates = {name: bench.tuned_rate(name) for name in variants} if tune else {}
    results: dict[str, list[Scores]] = {name: [] for name in variants}
    for seed in range(recipe.training.seed, recipe.training.seed + seeds):
        for name, variant in variants.items():
            results[name].append(bench.run(name, changed(variant, seed=seed, lr=rates.get(name))))
    baselines, notes = bench.baselines(), _notes(recipe, seeds, rates, of_held_out)
    notes += kept
    notes += [
        f"{name}: the best rate, {rates[name]:g}, is the {'largest' if rates[name] == max(tried) else 'smallest'} that "
        "was tried; a better one may lie beyond it."
        for name, tried in bench.tried.items()
        if rates[name] in (min(tried), max(tried))
    ]
    if "scores" not in read_record(bench.baseline_file):
        notes.append(
            "Teacher, untrained student and free baseline are missing: their scores are no longer in baselines/. "
            f"Remove runs/{slug(first)} and compare again to have them."
        )
    table = compare_table({**baselines, **results}, first, beside=baselines)
    comparison = Comparison(bench.folder, table, rates, notes, bench.tried)
    comparison.write()
    bench.forget()
    return comparison


def _notes(recipe: Recipe, seeds: int, rates: Mapping[str, float], of_held_out: bool) -> list[str]:
    steps = recipe.training.max_steps
    length = f"{steps:,} steps" if steps else f"{recipe.training.epochs:g} epochs"
    length += f", batches of {recipe.training.batch_size}"
    notes = [
        f"{seeds} seed(s) per method, {length}; ± is the standard deviation over seeds, intervals are over test items"
        + (" and seeds." if seeds > 1 else " alone: another seed moves a difference, too.")
    ]
    if rates:
        shown = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
        notes.append(
            f"Learning rates chosen on {recipe.kind.tuned_by} after one epoch, or all of a shorter training: {shown}."
        )
    else:
        notes.append("Learning rates as the recipe says, not tuned per method.")
    if of_held_out:
        half = ", the half that no rate was chosen on" if rates else ""
        notes.append(f"Tasks were made of the corpus' held-out items{half}.")
        if recipe.training.best_by_agreement:
            notes.append("Checkpoints were chosen by agreement on all held-out items, also on those that are judged.")
    return notes


def _kept_options(recipe: Recipe, variants: Mapping[str, Recipe]) -> list[str]:
    """Return which rows have options that only the recipe names."""
    own = [name for name, variant in variants.items() if variant.method.first.name == recipe.method.first.name]
    first, *others = recipe.method.entries
    told = [f"{key}={value}" for key, value in first.items() if key != "name"] + [str(each) for each in others]
    if not own or not told:
        return []
    return [f"What else the recipe says of {first['name']} holds for {', '.join(own)}, too: {', '.join(told)}."]
