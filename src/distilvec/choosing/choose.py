"""Measure candidates for a recipe, and name the smallest that is predicted to keep enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from distilvec.choosing.candidates import attempted, candidates, own_candidate
from distilvec.choosing.measuring import GROUPS, Measured, MeasuringData, measure, measure_teacher
from distilvec.choosing.prediction import (
    KINDS,
    RUNS,
    Kind,
    Prediction,
    covered,
    kind_of,
    like,
    predict,
    residuals,
    shares,
    worst,
)
from distilvec.choosing.sample import COUNTED, counted, sampled
from distilvec.corpus import Corpus
from distilvec.corpus.groups import rows_with_companions
from distilvec.errors import DistilvecError
from distilvec.flow.defaults import training_defaults
from distilvec.flow.judge import knows_tasks
from distilvec.flow.lessons import fill_stores
from distilvec.flow.prepare import judging_tasks, named_tasks, open_corpus, open_teachers, require
from distilvec.flow.start import source_model, teacher_model
from distilvec.flow.teach import Taught
from distilvec.judging import judge, settle_tasks
from distilvec.recipe import Recipe, given
from distilvec.report.grid import Cell, Grid, escape_markdown
from distilvec.showing import Shown
from distilvec.teachers.sections import models_of
from distilvec.words import ABSENT

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SAMPLE = 4000
KEEP = 0.95
NAMES = {"all": "tasks", "retrieval": "retrieval", "agreement": "agreement"}


@dataclass(repr=False)
class Choice(Shown):
    """All candidates with what was measured, and the one that is named.

    Attributes:
        keep: share of the teacher that is to be kept, in (0, 1].
        rows: the candidates, from few parameters to many.
        read: texts that the training will read, repetitions counted.
        tasks: names of the tasks; without them, agreement decides.
        probe_steps: steps of the short training of each; 0 = none.
        notes: candidates that could not be made.
    """

    keep: float
    teacher: Measured
    rows: list[Measured]
    texts: int
    read: int
    tasks: list[str] = field(default_factory=list)
    probe_steps: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def measures(self) -> list[str]:
        """The scores that must each be kept; agreement if there are no tasks."""
        groups = [group for group in GROUPS if any(group in row.kept.get("free", {}) for row in self.rows)]
        return groups or ["agreement"]

    @property
    def by_tasks(self) -> bool:
        return self.measures != ["agreement"]

    def start(self, row: Measured, measure: str) -> float:
        """Return what a candidate keeps without training: as it is or behind the ridge map, whichever is more."""
        return max(row.kept[way][measure] for way in ("untrained", "free") if measure in row.kept.get(way, {}))

    def prediction(self, row: Measured) -> Prediction:
        """Return what it will keep once it is trained: of tasks and of retrieval, the one that promises less."""
        probe = row.kept.get("probe", {})
        predictions = [predict(self.start(row, each), self.read, _kind(row), probe.get(each)) for each in self.measures]
        return worst(predictions)

    @property
    def chosen(self) -> Measured | None:
        """The smallest whose prediction reaches `keep`; None where none does."""
        return next((row for row in self.rows if self.prediction(row).middle >= self.keep), None)

    @property
    def best(self) -> Measured:
        """The chosen one, or the most promising where none reaches `keep`."""
        return self.chosen or max(self.rows, key=lambda row: self.prediction(row).middle)

    def verdict(self) -> str:
        row, goal = self.best, f"{100 * self.keep:g} %"
        what = "the teacher on the tasks" if self.by_tasks else "the teacher (mean cosine on held-out texts)"
        if self.chosen is None:
            return (
                f"No candidate is predicted to keep {goal} of {what}; the most promising, {row.name}, is predicted to "
                f"keep {self.prediction(row)}."
            )
        sure = next((each for each in self.rows if self.prediction(each).low >= self.keep), None)
        safer = "no candidate reaches it at the low end of its interval"
        if sure is row:
            safer = "it does so even at the low end of its interval"
        elif sure is not None:
            safer = f"the smallest that does so even at the low end of its interval is {sure.name}"
        return f"Smallest candidate predicted to keep {goal} of {what}: {row.name}, {self.prediction(row)}; {safer}."

    def how(self) -> list[str]:
        misses = [abs(miss) for miss in residuals().values()]
        behind = f"the untrained candidate with a linear map to the teacher's vectors, fitted to {self.texts:,} texts"
        own, start = f"agreement: mean cosine of {behind}, with the teacher on held-out texts.", "agreement"
        if self.by_tasks:
            own = f"free: {behind}. agreement: its mean cosine with the teacher on held-out texts. untrained: no map."
            start = "the larger of free and untrained"
        lines = [
            own,
            f"predicted: {start}, plus the share of the remaining gap that training closed in our experiments: "
            f"{self._closed()}. There, such predictions missed by {median(misses):.1f} points (median), "
            f"{max(misses):.1f} at most; with other teachers and tasks, expect more.",
        ]
        if not covered(self.read):
            lines.append(
                f"This training reads {self.read:,} texts, our shortest experiment read "
                f"{min(run.read for run in RUNS):,}: the prediction does not cover it. Measure with --probe-steps 200."
            )
        if self.probe_steps:
            lines.append(f"probe: after {self.probe_steps} steps with cosine; a whole training should reach more.")
        if not self.by_tasks:
            lines.append(
                "Without tasks only agreement is predicted. Scores on tasks fall much more slowly; a task of kind "
                "neighbours needs no labels."
            )
        return [*lines, *self.notes]

    def _closed(self) -> str:
        """Return what trainings of this length closed, for each kind of candidate that there is."""
        parts = []
        for kind in [kind for kind in KINDS if any(_kind(row) == kind for row in self.rows)]:
            low, middle, high = (f"{100 * share:.0f}" for share in shares(self.read, kind))
            parts.append(f"{kind} {middle} % ({low} to {high}; {len(like(self.read, kind))} runs)")
        return ", ".join(parts)

    def grid(self) -> Grid:
        ways = [way for way in ("untrained", "free", "probe") if any(way in row.kept for row in self.rows)]
        shown = self.measures if self.by_tasks else (["agreement"] if self.probe_steps else [])
        header = ["student", "parameters", "on disk", "texts/s", "p50 / p95 ms", "agreement"]
        header += [f"{NAMES[each]} %: {' / '.join(self._ways(each, ways))}" for each in shown]
        rows = []
        for row in [self.teacher, *self.rows]:
            cells = [*row.cells(), ABSENT if row.agreement is None else f"{row.agreement:.3f}"]
            cells += ["" if row is self.teacher else _kept(row, each, self._ways(each, ways)) for each in shown]
            rows.append([Cell(text) for text in [*cells, "" if row is self.teacher else str(self.prediction(row))]])
        return Grid([*header, "predicted"], rows, [])

    def _ways(self, measure: str, ways: list[str]) -> list[str]:
        return [way for way in ways if any(measure in row.kept.get(way, {}) for row in self.rows)]

    def text(self) -> str:
        return "\n".join([self.grid().text(), "", self.verdict(), *self.how()])

    def _named(self) -> str:
        return self.best.name

    def _repr_markdown_(self) -> str:
        return "\n\n".join([self.grid().markdown(), *map(escape_markdown, [self.verdict(), *self.how()])])

    def to_dict(self) -> dict[str, Any]:
        candidates = [asdict(row) | {"predicted": asdict(self.prediction(row))} for row in self.rows]
        return asdict(self) | {"rows": candidates, "chosen": self.best.name, "verdict": self.verdict()}


def _kind(row: Measured) -> Kind:
    return kind_of(row.section or {})


def _kept(row: Measured, measure: str, ways: list[str]) -> str:
    return " / ".join(f"{100 * row.kept[way][measure]:.1f}" for way in ways)


def choose(
    recipe: Recipe,
    *,
    keep: float = KEEP,
    sample: int = SAMPLE,
    probe_steps: int = 0,
    layers: Sequence[int] | None = None,
    vocabularies: Sequence[int] | None = None,
) -> Choice:
    """Measure candidate students before any training, and name the smallest that will keep enough.

    The teachers encode a sample of the corpus, once, into the stores that a run of the recipe goes on with. Each
    candidate is made, saved, timed and scored: agreement of the free baseline (the untrained candidate behind a ridge
    map) with the teacher on held-out texts, and what untrained candidate and free baseline keep of the teacher's
    scores on the recipe's tasks (or on those that the corpus allows). What training will add is predicted as
    `distilvec.choosing.prediction` says.

    Args:
        recipe: its own student is one of the candidates, unless it is `auto`.
        keep: share of the teacher's score on the tasks (of retrieval too, where there is some); without tasks, mean
            cosine with the teacher. In (0, 1].
        sample: texts that are encoded and compared, at least 100.
        probe_steps: also train every candidate for so many steps with `cosine`; a better floor, at some cost.
        layers, vocabularies: sizes to try instead of the default ones.

    Raises:
        DistilvecError: no candidate can be made, a value is out of range, the items are no texts.
    """
    if not 0 < keep <= 1:
        raise DistilvecError(f"keep is {keep:g}, a share in (0, 1] is wanted", where="plan", remedy="For example 0.95.")
    recipe, corpus, few, taught = planned(recipe, sample)
    tasks = judging_tasks(recipe, corpus, named_tasks(recipe))
    encoder = taught[0].encoder(corpus)
    with_tasks = bool(tasks) and knows_tasks(taught[0], encoder, tasks)
    judged = None
    if with_tasks:
        settle_tasks(tasks, encoder)  # some take the teacher's own search for the truth
        judged = judge({encoder.name: encoder}, tasks)
    whole = counted(corpus)
    bench = MeasuringData(recipe, whole, few, taught, tasks if with_tasks else [], judged, probe_steps)
    of, source = source_of(recipe)
    own = own_candidate(recipe)
    wanted = [*([own] if own else []), *candidates(of, source, layers, vocabularies)]
    rows, notes = attempted(wanted, "measuring candidates", lambda candidate: measure(candidate, bench))
    rows.sort(key=lambda row: row.parameters or 0)
    if tasks and not with_tasks:
        notes.append("The teacher has no vectors of the tasks' texts and cannot be scored on them; agreement decides.")
    if whole is not corpus:
        notes.append(f"Word pieces were chosen by {COUNTED:,} of the texts; a run chooses by all.")
    names = [task.name for task in bench.tasks]
    read = texts_read(recipe, corpus)
    return Choice(keep, measure_teacher(bench), rows, len(few.train_rows), read, names, probe_steps, notes)


class Planned(NamedTuple):
    """A recipe without open settings, its corpus, a sample of it, and the teachers with vectors of the sample."""

    recipe: Recipe
    corpus: Corpus
    few: Corpus
    taught: list[Taught]


def planned(recipe: Recipe, sample: int) -> Planned:
    """Open what candidates are measured on."""
    if sample < 100:
        raise DistilvecError(f"a sample of {sample} texts says nothing", where="plan", remedy="Take at least 100.")
    require(recipe, "plan")
    corpus = open_corpus(recipe)
    # Candidates are of several kinds, so that an open method stays open.
    recipe = training_defaults(recipe, corpus).model_copy(update={"method": recipe.method})
    if corpus.kind.sizes is not None:
        raise DistilvecError(
            f"candidates are made for texts, and the corpus holds {corpus.kind.noun}",
            where="plan",
            remedy=corpus.kind.sizes,
        )
    few = sampled(corpus, sample)
    return Planned(recipe, corpus, few, fill_stores(recipe, few, open_teachers(recipe, corpus)))


def texts_read(recipe: Recipe, corpus: Corpus) -> int:
    """Texts that the recipe's training reads, repetitions and weights counted."""
    steps, texts = recipe.training.max_steps, corpus.epoch_items(corpus.train_rows)
    each = texts / max(_items(recipe, corpus), 1)
    if not steps:
        return int(given(recipe.training.epochs, "training.epochs") * texts)
    return int(steps * step_texts(recipe) * each)


def planned_steps(recipe: Recipe, corpus: Corpus) -> int:
    return recipe.training.steps(_items(recipe, corpus))


def _items(recipe: Recipe, corpus: Corpus) -> int:
    """Items that are trained on; where the method trains on pairs, a pair is one."""
    rows = corpus.train_rows
    if not recipe.method.is_open and recipe.method.build().trains_on_pairs and corpus.groups is not None:
        rows, _ = rows_with_companions(corpus, rows, None)
    return corpus.epoch_items(rows)


def step_texts(recipe: Recipe) -> int:
    """Texts that a step of the recipe's training reads, or pairs where it trains on these."""
    return recipe.training.batch * recipe.training.gradient_accumulation_steps


def source_of(recipe: Recipe) -> tuple[str | None, SentenceTransformer | None]:
    """Return name and model that students are cut from: of `auto` or `shrink`, else the first teacher that is one."""
    teachers = models_of(recipe.teachers)
    student = recipe.student
    named = None
    if student is not None and (cut := student.auto or student.shrink) is not None:
        named = cut.of
    of = named or next(iter(teachers), None)
    if of is None:
        return None, None
    return of, teacher_model(teachers[of]) if student is None else source_model(of, student, recipe.teachers)
