"""The rows of every experiment as the claims compare them: scores by seed and set, their rates, and where they began.

A `Setting` is one student of one experiment. Its names are those of the column "student" of CLAIMS.md:

- `bpe`: 4 layers x 256 with a tokenizer of its own; `cut`: two layers kept from the teacher; `embedder`: `bpe` after it
  has learnt the teacher's vectors of other texts, for five epochs (talas_table.py; methods on tokens
  cross_tokenizer.py).
- `embedder/own radius`: `embedder` for five epochs, each kind of step with its own radius; `longer`: for fifteen
  (sharpness.py).
- `labelled`, `out-of-domain`: the student `bpe`; `labelled/embedder`: `embedder` (cross_tokenizer.py). 690 to 1,080
  steps of 16 with labels; the task's weight is the papers', not searched here.
- `texts`: `bpe`, taught by one good teacher and four weak ones (many_text.py). `similar/static`: a table of word
  pieces, taught by four versions of one MiniLM (similar_teachers.py).
- `molecules`: GINE, 5 layers x 128, on 20,000 molecules (molecules.py); `molecules/long`: on 40,000
  (molecules_long.py).
- `images`: a residual network of 8 layers from random weights, on 9,000 images (images.py); `images/pretrained`:
  CIFAR-10's resnet20, trained further (image_starts.py).
- `mixtures`: `embedder-bpe` upcycled, twice; the seeds of both starts count as seeds (mixtures.py).
- `writing`: a causal language model of 2.6 M parameters, judged by ROUGE-L on seven sets (writing.py).
- `none`: counts and times, for which nothing was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import cross_table
import image_starts_table
import image_tables
import many_text_table
import mixture_table
import molecule_tables
import molecules_long_table
import numpy as np
import sharpness_table
import similar_teachers_table
import talas_table
import writing_table
from cross_rows import ROWS as LABELLED_ROWS
from molecule_rows import NUMBERS
from molecule_rows import SETS as FILES
from rates import at_an_end, fell, tuned
from records import Rows, below, committed, pairs_of_seeds, seeds
from verdicts import OPEN, UNTESTED, Differences, Finding, figure, judge, untested

#: Seed -> set -> score in points; the seed is None for models that are not trained here.
Scores = Mapping[int | None, Mapping[str, float]]
#: Epochs of each setting of sharpness.py.
EPOCHS = {"embedder/own radius": "5", "embedder/own radius, longer": "15"}
#: Of a comparison over fewer sets than this, sets on which options were chosen stay in it.
ENOUGH = 3
UNTRAINED = "untrained student"
#: Of experiments in which nothing is tuned.
ONE_RATE = [("one rate for all rows", "")]
END, RADIUS = "rate at the end of the grid", "radius at the end of the grid"
#: Groups of sets that one metric judges.
PARTS = {
    "classification": many_text_table.KINDS["classification"],
    "AUROC": tuple(name for name in FILES if name not in NUMBERS),
    "in the domain": talas_table.IN_DOMAIN,
    "out of domain": talas_table.OUT_OF_DOMAIN,
    "labels never seen": ("Fashion-MNIST", "MNIST"),
    **mixture_table.GROUPS,
}
Note = tuple[str, str]


@dataclass(frozen=True)
class Setting:
    """One student of one experiment.

    Attributes:
        scores: of a row.
        notes: what to know about a row: (what, of which row), such as that its best rate was an end of the grid.
        start: of a row, that of the student before training; "" where there is none to compare with.
        like: the row whose rate a row takes.
        resolve: the row behind a name such as "best single"; None where rows are missing.
        chosen: the sets on whose validation data options of a row were chosen.
        stuck: the sets on which a row answers the same to everything.
        whole: the scores that a row is held against its start by, where they are not those that are compared.
        unfit: why no comparison in this setting has a verdict.
    """

    scores: Callable[[str], Scores]
    notes: Callable[[str], list[Note]]
    start: Callable[[str], str] = lambda row: ""
    like: Callable[[str], str] = str
    resolve: Callable[[str], str | None] = str
    chosen: Callable[[str], tuple[str, ...]] = lambda row: ()
    stuck: Callable[[str], set[str]] = lambda row: set()
    whole: Callable[[str], Scores] | None = None
    unfit: str = ""

    def fallen(self, row: str) -> str:
        """Why a row is withdrawn: it, or the row whose rate it takes, ended below the student before training."""
        scores, begun = self.whole or self.scores, self.start(row)
        if not begun or begun == row:
            return ""
        start = _mean(scores(begun))
        for each in dict.fromkeys((row, self.like(row))):
            reached = _mean(scores(each))
            if fell(reached, start):
                found = f"`{each}` ended at {reached:.2f}, the untrained student has {start:.2f}"
                return found if each == row else f"{found}, and `{row}` has its rate"
        return ""


def compare(setting: Setting, first: str, second: str, part: str = "", kind: str = "") -> Finding:
    """The paired difference of two rows over sets and seeds, in points. Columns of one molecule file are one set."""
    found = setting.resolve(second)
    if found is None:
        return untested(f"not every row behind the {second} is there")
    rows = {row: setting.scores(row) for row in (first, found)}
    missing = [row for row, scores in rows.items() if not scores]
    if missing:
        return untested(f"no run of {' and of '.join(missing)}")
    fallen = dict.fromkeys(reason for row in rows if (reason := setting.fallen(row)))
    if fallen:
        return untested(f"withdrawn: {'; '.join(fallen)}")
    differences = _differences(*rows.values(), PARTS.get(part, ()))
    if not differences:
        return untested(f"no run of {first} and {found} on one set")
    stuck = {row: setting.stuck(row) & differences.keys() for row in rows}
    left = {name: each for name, each in differences.items() if not any(name in sets for sets in stuck.values())}
    told = [*([found] if found != second else []), *([part] if part else []), *grouped(map(setting.notes, rows))]
    judged = judge(kind, left, "; ".join(told))
    judged = _without(judged, kind, left, {name for row in rows for name in setting.chosen(row)} & left.keys())
    why = [f"{row} did not train on {_and(sets)}" for row, sets in stuck.items() if sets]
    why += [setting.unfit] if setting.unfit else []
    return judged.not_tested("; ".join(why)) if why else judged


def _without(judged: Finding, kind: str, differences: Differences, chosen: set[str]) -> Finding:
    """A verdict has to stand without the sets on which options of a row were chosen, too, where enough are left."""
    rest = {name: each for name, each in differences.items() if name not in chosen}
    if not chosen or len(rest) < ENOUGH:
        return replace(judged, basis=f"{judged.basis}; options chosen on {_and(chosen)}") if chosen else judged
    other = judge(kind, rest)
    note = f"without {_and(chosen)}, on which options were chosen, {figure(other.value, other.interval)}"
    stands = judged.verdict in (other.verdict, UNTESTED)
    return replace(judged, basis=f"{judged.basis}; {note}", verdict=judged.verdict if stands else OPEN)


def grouped(notes: Iterable[list[Note]]) -> list[str]:
    """The notes of several rows, each kind once."""
    found: dict[str, list[str]] = {}
    for what, row in (note for each in notes for note in each):
        if row not in found.setdefault(what, []):
            found[what].append(row)
    return [f"{what}: {', '.join(rows)}" if any(rows) else what for what, rows in found.items()]


def compare_ranks(results: Path, first: str, second: str) -> Finding:
    """The difference of two average ranks over the columns of each molecule file."""
    found, differences = molecule_tables.paired_ranks(committed("molecules", results), first, second)
    if not differences:
        return untested(f"no run of {first} or of {found}")
    return judge("rank", differences, "; ".join([*([found] if found != second else []), *grouped([ONE_RATE])]))


def setting(name: str, results: Path) -> Setting:
    """The setting of that name, of the result files in a folder."""
    kind, _, detail = name.partition("/")
    if name in talas_table.COMPARED:
        return _talas(results, name)
    if name in EPOCHS:
        return _sharpness(results, EPOCHS[name])
    makers: dict[str, Callable[[], Setting]] = {
        "out-of-domain": lambda: _out_of_domain(results),
        "labelled": lambda: _labelled(committed("cross_tokenizer", results), detail),
        "texts": lambda: _texts(below(committed("many_text", results), "talas")),
        "similar": lambda: _similar(committed("similar_teachers", results), detail),
        "molecules": lambda: _long(results) if detail else _molecules(results),
        "images": lambda: _starts(results) if detail else _images(results),
        "mixtures": lambda: _mixtures(committed("mixtures", results)),
        "writing": lambda: _writing(committed("writing", results)),
    }
    return makers[kind]()


def _talas(results: Path, student: str) -> Setting:
    home, crossed = committed("talas_table", results), committed("cross_tokenizer", results)
    own, others = below(home, student), below(crossed, f"unsupervised/{student}")
    fixed = {**home.get("teacher", {}).get("models", {}), **own.get("references", {}).get("models", {})}
    return Setting(
        scores=lambda row: _clean({None: fixed[row]} if row in fixed else seeds(own, row) or seeds(others, row)),
        notes=lambda row: (
            _end({**own, **others}, talas_table.LIKE.get(row, row), "tuning/") + cross_table.one_expert(others, row)
        ),
        start=lambda row: UNTRAINED,
        like=lambda row: talas_table.LIKE.get(row, row),
        chosen=lambda row: talas_table.IN_DOMAIN if row in ("emo", "distillmoe") else (),
    )


def _out_of_domain(results: Path) -> Setting:
    crossed, without = committed("cross_tokenizer", results), _talas(results, "bpe")
    rows = below(crossed, "out-of-domain/bpe")
    return Setting(
        scores=lambda row: _clean(seeds(rows, row)) or (without.scores(row) if row == UNTRAINED else {}),
        notes=without.notes,  # its rates are those of that comparison
        start=without.start,
    )


def _sharpness(results: Path, epochs: str) -> Setting:
    rows, before = committed("sharpness", results), _talas(results, "embedder")

    def notes(row: str) -> list[Note]:
        name = sharpness_table.OPTIMIZER_OF.get(row, row)
        return [(RADIUS, name)] if sharpness_table.radius_at_an_end(rows, name) else []

    def scores(row: str) -> Scores:
        name = sharpness_table.OPTIMIZER_OF.get(row, row)
        return before.scores(row) if row == UNTRAINED else _clean(seeds(rows, f"{epochs}/{name}"))

    return Setting(scores=scores, notes=notes, start=before.start)


def _labelled(rows: Rows, detail: str) -> Setting:
    """`row` may have a setting of its own before a slash."""

    def split(row: str) -> tuple[str, str]:
        own, slash, rest = row.partition("/")
        return (rest, own) if slash else (row, detail)

    def scores(row: str) -> Scores:
        found: dict[int | None, dict[str, float]] = {}
        if split(row)[0] in LABELLED_ROWS:
            for (name, seed), value in cross_table.scores(rows, *split(row)).items():
                if name != cross_table.JOINT:
                    found.setdefault(seed, {})[name] = value
        return found

    def notes(row: str) -> list[Note]:
        at = [name for name in cross_table.edges(rows, *split(row)) if name != cross_table.JOINT]
        whose = LABELLED_ROWS[split(row)[0]].like or row  # the row whose rate it takes
        return [*([(END, f"{whose} ({_and(at)})")] if at else []), *cross_table.one_expert(rows, *split(row))]

    def chosen(row: str) -> tuple[str, ...]:
        about = LABELLED_ROWS[split(row)[0]]
        ours = about.method in ("emo", "distillmoe") and "preset" not in about.options
        return cross_table.CHOOSING if ours else ()

    return Setting(scores, notes, chosen=chosen, stuck=lambda row: cross_table.untrained_sets(rows, *split(row)))


def _texts(rows: Rows) -> Setting:
    """Of these runs only averages without test rows that are in the corpus were kept, so the sets without any count."""
    before = {"untrained": {None: rows["references/untrained"]}} if "references/untrained" in rows else {}

    def runs(row: str) -> Mapping[int | None, Mapping]:
        return before.get(row) or dict(seeds(rows, row))

    def scores(row: str) -> Scores:
        clean = many_text_table.CLEAN
        return {s: {name: 100 * run["tasks"][name]["value"] for name in clean} for s, run in runs(row).items()}

    return Setting(
        scores,
        notes=lambda row: _end(rows, many_text_table.like(row), "tuning/"),
        # A student of one teacher may end below its start because the teacher is there itself.
        start=lambda row: "" if " from " in row else "untrained",
        like=many_text_table.like,
        whole=lambda row: {s: {"all": 100 * run["clean_averages"]["all"]} for s, run in runs(row).items()},
        resolve=lambda row: many_text_table.best_single(rows) if row == many_text_table.BEST_SINGLE else row,
    )


def _similar(rows: Rows, student: str) -> Setting:
    def resolve(row: str) -> str | None:
        varied = row.removesuffix(similar_teachers_table.BEST_SINGLE)
        return row if varied == row else similar_teachers_table.best_single(rows, student, varied)

    def scores(row: str) -> Scores:
        own = {None: rows[f"references/{student}"]} if row == "before" and f"references/{student}" in rows else {}
        return _clean(own or dict(seeds(rows, f"{student}/{row}")))

    return Setting(scores, lambda row: _end(rows, f"{student}/{_first(row)}"), lambda row: "before", _first, resolve)


def _molecules(results: Path) -> Setting:
    rows = committed("molecules", results)
    return Setting(lambda row: _points(molecule_tables.task_scores(rows, row)), lambda row: ONE_RATE)


def _long(results: Path) -> Setting:
    rows, table = committed("molecules_long", results), molecules_long_table
    return Setting(
        lambda row: _points(table.scores(rows, row)),
        lambda row: _end(rows, _first(row)),
        lambda row: table.BEFORE,
        resolve=lambda row: next(iter(table.chosen(rows)), None) if row == table.BEST_SINGLE else row,
    )


def _images(results: Path) -> Setting:
    rows, table = committed("images", results), image_tables

    def resolve(row: str) -> str | None:
        best = {table.BEST_SINGLE: table.best_single, table.BEST_TEACHER: table.best_teacher}.get(row)
        return best(rows) if best else row

    def scores(row: str) -> Scores:
        found: dict[int | None, Mapping] = dict(seeds(rows, row))
        if f"teacher-{row}" in rows:
            found[None] = rows[f"teacher-{row}"]
        return {seed: {name: table.accuracies(run)[name] for name in table.SETS} for seed, run in found.items()}

    start = "untrained"
    return Setting(
        scores, lambda row: ONE_RATE, lambda row: f"vit {start}" if row.startswith("vit ") else start, resolve=resolve
    )


def _starts(results: Path) -> Setting:
    rows, table = committed("image_starts", results), image_starts_table
    return Setting(
        lambda row: _points(table.scores(rows, row)),
        lambda row: _end(rows, _first(row)),
        lambda row: table.START,
        resolve=lambda row: table.best_single(rows) if row == table.BEST_SINGLE else row,
    )


def _mixtures(rows: Rows) -> Setting:
    def scores(row: str) -> Scores:
        return {
            run: {task: 100 * found["tasks"][task]["value"] for task in mixture_table.TASKS}
            for run, found in mixture_table.runs_of(rows, row).items()
        }

    return Setting(scores, lambda row: [], unfit=mixture_table.premise(rows))


def _writing(rows: Rows) -> Setting:
    return Setting(
        lambda row: _points(writing_table.scores(rows, row)),
        lambda row: [(END, row)] if at_an_end(writing_table.tried(rows, row)) else [],
        lambda row: UNTRAINED,
    )


def _end(rows: Rows, row: str, folder: str = "tuning") -> list[Note]:
    """Whether the best rate of a row of `tuning` was an end of the grid."""
    return [(END, row)] if at_an_end(tuned(rows, row, folder)) else []


def _first(row: str) -> str:
    """The row that rows of one teacher vary: "cosine, ours" of "cosine, ours, from minilm"."""
    return row.partition(" from ")[0].rstrip(",")


def _clean(runs: Mapping) -> Scores:
    """Main metrics without the test rows that share a text with the training corpus."""
    return {seed: {name: 100 * value for name, value in run["clean"].items()} for seed, run in runs.items()}


def _points(scores: Mapping) -> Scores:
    return {seed: {name: 100 * value for name, value in run.items()} for seed, run in scores.items()}


def _mean(scores: Scores) -> float:
    """Over the seeds, of the means over the sets; of nothing not a number."""
    return float(np.mean([np.mean(list(each.values())) for each in scores.values()])) if scores else float("nan")


def _differences(first: Scores, second: Scores, part: tuple[str, ...]) -> Differences:
    """Set -> seed -> points; what is not trained here stands next to every seed."""
    made: dict[str, dict[int | None, float]] = {}
    for one, other in pairs_of_seeds(first, second):
        each: dict[str, list[float]] = {}
        for task in first[one].keys() & second[other].keys():
            if not part or task.startswith(part):
                each.setdefault(task.partition(" ")[0], []).append(first[one][task] - second[other][task])
        for name, gaps in sorted(each.items()):
            made.setdefault(name, {})[one if one is not None else other] = float(np.mean(gaps))
    return made


def _and(names: set[str] | list[str]) -> str:
    *most, last = sorted(names)
    return f"{', '.join(most)} and {last}" if most else last
