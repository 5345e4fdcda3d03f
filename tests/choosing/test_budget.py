"""The best student within a budget: what fits is tried, the better half goes on, and the curves say what comes."""

from __future__ import annotations

import importlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Dense
from tests.jobs import Job

from distilvec.choosing import settle_student
from distilvec.choosing.budget import Budget, _electra, shapes
from distilvec.choosing.candidates import Candidate
from distilvec.choosing.choose import planned_steps
from distilvec.choosing.compiled import STEPS, Compiled, compile_budget, halve, probe_method
from distilvec.choosing.measuring import Measured
from distilvec.choosing.prediction import LATER, extrapolate, power, powers
from distilvec.choosing.probe import short_training
from distilvec.choosing.workers import Lesson, Trainings, Trial
from distilvec.cli.main import main
from distilvec.corpus import read_corpus
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.flow.run import run
from distilvec.methods.table import build_method
from distilvec.modules.blocks import parameters
from distilvec.recipe import OptimizerSection, Recipe, StudentSection
from distilvec.students import load_student, shrink, static
from distilvec.students.sizes import Sizes
from distilvec.words import amount


@pytest.fixture(autouse=True, scope="module")
def small_and_quick() -> Iterator[None]:
    """Tiny models have few pieces and units; speed is measured for a moment only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distilvec.choosing.measuring.SECONDS", 0.1)
        patch.setattr("distilvec.choosing.measuring.TIMED", 16)
        patch.setattr("distilvec.choosing.budget.FEWEST_PIECES", 300)
        patch.setattr("distilvec.choosing.budget.STATIC_WIDTHS", (16, 32))
        patch.setattr("distilvec.students.sizes.NARROW_HEADS", (1 / 2,))
        yield


def recipe_for(folder: Path, teacher: Path, texts: list[str], student: Any = "auto", **sections: Any) -> Recipe:
    (folder / "texts.txt").write_text("\n".join(" ".join(text.split()[:12]) for text in texts), encoding="utf-8")
    values = {
        "corpus": {"path": str(folder / "texts.txt"), "holdout": 0.3},
        "teachers": [{"name": "big", "model": str(teacher)}],
        "student": student,
        "method": {"name": "cosine"},
        "training": {"batch_size": 16, "epochs": 2},
        "output": str(folder / "out"),
    }
    return Recipe.build(values | sections)


# amounts


@pytest.mark.parametrize(
    "text", ["", "M", "0", "-3M", "5.67Q", "nan", "inf", "1e999", "5 ms", "9" * 5000, "5..6M", "½"]
)
def test_invalid_amounts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="5.67M"):
        amount(text)


@pytest.mark.parametrize(("text", "unit"), [("22M", "MB"), ("2k MB", "MB"), ("5m", "ms")])
def test_an_amount_has_its_unit_or_a_factor_behind_it_and_not_both(text: str, unit: str) -> None:
    with pytest.raises(ValueError, match=f"5 {unit}"):
        amount(text, unit)


@pytest.mark.parametrize(
    ("given", "read"), [({"parameters": "5.67M"}, 5.67e6), ({"megabytes": "22 MB"}, 22), ({"latency": "5ms"}, 5)]
)
def test_amounts_in_a_recipe(given: dict[str, Any], read: float, tmp_path: Path, tiny_bert: Path) -> None:
    (key,) = given
    auto = recipe_for(tmp_path, tiny_bert, ["a text"], {"auto": given}).student.auto
    assert getattr(auto, key) == read
    with pytest.raises(DistilvecError, match=r"student\.auto: .*keep"):
        recipe_for(tmp_path, tiny_bert, ["a text"], {"auto": {**given, "keep": 0.9}})


def test_the_smaller_limit_counts() -> None:
    assert Budget(1_000_000, 2.0).most == 500_000 and Budget(latency=3.0).most is None
    assert not Budget() and str(Budget(5_670_000, None, 5.0)) == "5.67 M parameters, 5 ms a text"


# shapes


@pytest.mark.parametrize(
    ("kind", "dense"),
    [("bert", False), ("bert", True), ("distilbert", False), ("xlmr", False), ("qwen3", False), ("modernbert", False)],
)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_candidates_use_a_budget_up_and_stay_within(
    kind: str, dense: bool, share: float, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    source, texts = load_student(tiny_model_folders[kind]), [" ".join(text.split()[:8]) for text in sentences]
    if dense:
        source.append(Dense(source.get_embedding_dimension() or 0, 64))
    most = int(share * parameters(source))
    try:
        found = shapes("big", source, most)
    except DistilvecError as refused:
        assert kind in ("qwen3", "modernbert") and "at most" in str(refused)  # their blocks stay whole
        return
    assert len({candidate.name for candidate in found}) == len(found) >= 1
    for candidate in found:
        ((part, given),) = candidate.source.items()
        options = {name: value for name, value in given.items() if name != "of"}
        made = shrink(source, **options, texts=texts)[0] if part == "shrink" else static(source, **options, texts=texts)
        assert parameters(made) <= most, candidate
        whole = part == "static" or {"inner", "embedding"} - options.keys()  # nothing is left that could grow
        assert whole or parameters(made) > 0.75 * most, (candidate, parameters(made), most)


def test_narrower_blocks_have_whole_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distilvec.students.sizes.NARROW_HEADS", (2 / 3, 1 / 2, 5 / 12))
    narrowed = Sizes(30_522, 256, 2, width=384, heads=12, units=1536, rank=384).narrowed()
    assert [(each.width, each.heads, each.whole) for each in narrowed] == [(256, 8, 384), (192, 6, 384), (160, 5, 384)]
    few = Sizes(1_000, 64, 2, width=32, heads=2, units=64, rank=32).narrowed()
    assert [(each.width, each.heads) for each in few] == [(16, 1)], "each width once, none as wide as before"


def test_a_budget_below_the_smallest_student(tiny_bert: Path) -> None:
    with pytest.raises(DistilvecError, match=r"^parameters: .*at most 500 parameters\. Allow more\."):
        shapes("big", load_student(tiny_bert), 500)


# curves


def test_errors_that_fall_by_a_power_law_are_predicted() -> None:
    curve = {0: 0.1, **{steps: 1 - 0.5 * steps**-0.25 for steps in (50, 100, 200)}}
    assert power(curve) == pytest.approx(0.25)
    found = extrapolate(curve, 6400, [0.25])
    assert found.middle == pytest.approx(1 - 0.5 * 200**-0.25 * 32 ** -(0.95 * 0.25)), "a little less than a power"
    assert found.low < found.middle < found.high < 1


def test_a_power_is_in_part_that_of_the_students_that_were_trained_longest() -> None:
    steep, long = ({steps: 1 - steps**-each for steps in steps_of} for each, steps_of in ((0.4, (1, 2)), (0.2, (2, 4))))
    assert powers([steep, long]) == pytest.approx([0.2]), "the one of two steps is not asked"
    one, more = (extrapolate(steep, 200, others).middle for others in ([0.4], [0.1, 0.2, 0.9]))
    assert 1 - one == pytest.approx(0.5**0.4 * 0.01**0.38) and 1 - more == pytest.approx(0.5**0.4 * 0.01**0.2375)


def test_a_curve_that_does_not_rise_promises_nothing() -> None:
    found = extrapolate({0: 0.5, 50: 0.6, 100: 0.58}, 1000, [0.2])
    assert found.low == found.middle == found.high == pytest.approx(0.58)
    shorter = extrapolate({0: 0.5, 50: 0.6, 100: 0.7}, 25, [0.2])
    assert shorter.low == shorter.middle == shorter.high == pytest.approx(0.7), "a shorter one is not extrapolated"


# the probes


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (None, ("cosine", {"map": False})),
        ({"name": "mse"}, ("mse", {})),
        ([{"name": "cosine"}, {"name": "token_states"}], ("cosine", {"map": True})),
        ({"name": "emo"}, ("cosine", {"map": False})),
        ({"name": "simcse"}, ("cosine", {"map": False})),
    ],
)
def test_candidates_are_trained_by_the_recipes_method_on_vectors(
    method: Any, expected: tuple[str, dict[str, Any]], tmp_path: Path, tiny_bert: Path
) -> None:
    values = recipe_for(tmp_path, tiny_bert, ["a text"]).model_dump(exclude={"method"})
    found = probe_method(Recipe.build(values | ({"method": method} if method else {})), 32, 32)
    assert found.name == expected[0]
    assert all(getattr(found.options, name) == value for name, value in expected[1].items())


# the whole


@pytest.fixture(scope="module")
def compiled(
    tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, sentences: list[str]
) -> tuple[Recipe, Compiled]:
    recipe = recipe_for(tmp_path_factory.mktemp("budget"), tiny_bert, sentences)
    return recipe, compile_budget(recipe, Budget(30_000), sample=160, steps=2)


def test_the_better_half_is_trained_further(compiled: tuple[Recipe, Compiled]) -> None:
    _, found = compiled
    assert found.rounds == [2, 4, 8] and len(found.rows) > 4
    assert all({0, 2, 4} <= row.curve.keys() and (row.parameters or 0) <= 30_000 for row in found.rows)
    for shorter, longer in zip(found.rounds[1:], found.rounds[2:], strict=False):
        began = sorted((row for row in found.rows if shorter in row.curve), key=lambda row: -row.curve[shorter])
        assert [row for row in began if longer in row.curve] == sorted(
            began[: max(3, len(began) // 2)], key=began.index
        )
    assert found.rounds[-1] in found.best.curve
    assert found.best.name in found.verdict() and "No test set" in found.text()
    line = [(row.speed["latency_p50_ms"], found.prediction(row).middle) for row in found.frontier()]
    assert line == sorted(line) and len({kept for _, kept in line}) == len(line)


@pytest.mark.parametrize(
    ("there", "to_come", "rounds"),
    [(10_000, 1000, [10, 20]), (320, 1000, [10, 20, 40, 80, 160]), (320, 80, [10, 20, 40])],
)
def test_texts_of_a_sample_are_not_read_again_and_again(
    there: int, to_come: int, rounds: list[int], tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 steps of 16 would read 320 texts twice: only where there are no others, and half of what is to come."""
    trainings = MagicMock(name="Trainings")
    trainings.return_value.__enter__.return_value.orders = lambda probes, steps: [0.5] * len(probes)
    monkeypatch.setattr("distilvec.choosing.compiled.Trainings", trainings)
    monkeypatch.setattr("distilvec.choosing.compiled.Lesson", MagicMock(return_value=MagicMock(order=lambda *_: 0.1)))
    bench = MagicMock(recipe=recipe_for(tmp_path, tiny_bert, ["a text"]))
    bench.taught[0].info.width = 32
    bench.held_out.return_value = [], []
    bench.whole.train_rows, bench.sample.train_rows = range(there), range(320)
    rows = [Measured(str(number), 1, 1) for number in range(24)]
    halve([MagicMock(**{"get_embedding_dimension.return_value": 32}) for _ in rows], rows, bench, 10, to_come)
    assert sorted({steps for row in rows for steps in row.curve if steps}) == rounds


@pytest.mark.parametrize("batches", [1, 4])
def test_the_first_round_is_a_share_of_a_short_training(
    batches: int, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """Of the steps that the trainer will take: an epoch ends with a step, and a step reads so many batches."""
    recipe = recipe_for(tmp_path, tiny_bert, sentences)
    training = {"batch_size": 16, "epochs": 50, "gradient_accumulation_steps": batches}
    steps = 50 * math.ceil(len(Job(recipe).corpus.train_rows) / 16 / batches)
    recipe = Recipe.build(recipe.model_dump() | {"training": training})
    with (
        patch("distilvec.choosing.compiled._fitting", return_value=([], [], [])),
        patch("distilvec.choosing.compiled.halve") as halved,
    ):
        found = compile_budget(recipe, Budget(30_000), sample=160)
    assert halved.call_args.args[-2:] == (min(STEPS, steps // 8), steps) and found.steps == steps


def test_a_pair_is_one_item_for_a_method_on_pairs(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    file = tmp_path / "pairs.jsonl"
    pairs = [{"one": first, "other": second} for first, second in zip(sentences[:60], sentences[60:120], strict=True)]
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    corpus = {"path": str(file), "text": ["one", "other"], "holdout": 0.0}
    steps = []
    for method in ([{"name": "cosine"}, {"name": "mnrl"}], {"name": "cosine"}):
        recipe = recipe_for(tmp_path, tiny_bert, sentences, corpus=corpus, method=method)
        steps.append(planned_steps(recipe, Job(recipe).corpus))
    assert steps == [2 * math.ceil(60 / 16), 2 * math.ceil(120 / 16)]


def test_short_trainings_publish_nothing_and_follow_nothing() -> None:
    training = {"report_to": "wandb", "eval_on_start": True, "best": "agreement_cosine", "patience": 2}
    corpus = MagicMock(train_rows=np.arange(3), holdout_rows=np.arange(1))
    with patch("distilvec.choosing.probe.fit") as fitted:
        short_training(MagicMock(), MagicMock(), corpus, [], {**training, "evaluate_every": 5}, OptimizerSection())
    given = fitted.call_args.args[3].training
    assert (given.report_to, given.eval_on_start) == ([], False)
    assert (given.best, given.evaluate_every, given.patience) == (None, None, None)


@pytest.mark.parametrize(("given", "expected"), [(None, None), (0.06, 0.06), (500, 0.25), (4000, 1 - 1e-9)])
def test_a_warm_up_given_in_steps_is_shortened_in_proportion(given: float | None, expected: float | None) -> None:
    lesson = Lesson(*[MagicMock()] * 4, {"warmup_steps": given} if given else {}, MagicMock(), 2000)
    with (
        patch("distilvec.choosing.workers.short_training") as trained,
        patch("distilvec.choosing.workers.Lesson.order", return_value=0.5),
    ):
        lesson.learnt(MagicMock(), 200)
    assert trained.call_args.args[4] == {"max_steps": 200} | ({"warmup_steps": expected} if expected else {})


def test_other_keys_of_a_section_with_auto_stay() -> None:
    template = StudentSection.model_validate(
        {"auto": {}, "revision": "abc", "lora": {"rank": 4}, "max_length": 16, "router_balance": 0.5}
    )
    cut = Candidate("cut", {"shrink": {"of": "big", "layers": 1}}).section(template)
    assert (cut.revision, cut.lora, cut.max_length) == ("abc", template.lora, 16) and cut.router_balance == 0.5
    table = Candidate("table", {"static": {"of": "big"}}).section(template)
    assert (table.revision, table.lora, table.max_length) == ("abc", None, 16)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cuts and two tables alone are tried, where a test does not ask how many there are."""

    def some(*args: Any, **options: Any) -> list[Candidate]:
        found = shapes(*args, **options)
        cuts = [candidate for candidate in found if "shrink" in candidate.source]
        return [*cuts[:2], *[candidate for candidate in found if "static" in candidate.source][:2]]

    monkeypatch.setattr("distilvec.choosing.compiled.shapes", some)


BROKEN = """
from distilvec.choosing.workers import Lesson, main
from distilvec.errors import DataError

learnt = Lesson.learnt


def broken(self, task, steps):
    if task.name.startswith("static, 16 "):
        raise DataError("the loss is not finite", where=f"step {steps}")
    return learnt(self, task, steps)


Lesson.learnt = broken
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two tables cannot be trained, in this process and in the workers'."""
    (tmp_path / "broken_lesson.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(Lesson, "learnt", Lesson.learnt)  # put back afterwards
    monkeypatch.delitem(sys.modules, "broken_lesson", raising=False)
    importlib.import_module("broken_lesson")
    monkeypatch.setattr("distilvec.choosing.workers.__name__", "broken_lesson")  # what a worker's process imports


def check_broken(found: Compiled) -> None:
    """It is left out and named; the other table is not."""
    assert ["16" in row.name for row in found.rows if row.name.startswith("static")] == [False]
    (note,) = (note for note in found.notes if "loss" in note)
    assert note.startswith("static, 16 ") and "left out, step 2: the loss is not finite" in note
    assert found.best.name in found.verdict()


def test_a_candidate_that_cannot_be_trained_is_left_out_and_named(
    few: None, broken: None, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    check_broken(compile_budget(recipe_for(tmp_path, tiny_bert, sentences), Budget(30_000), sample=160, steps=2))


def test_the_numbers_are_those_of_the_student(compiled: tuple[Recipe, Compiled], tmp_path: Path) -> None:
    from distilvec.flow.start import make_student
    from distilvec.recipe import StudentSection

    recipe, found = compiled
    section = StudentSection.model_validate(found.best.section)
    corpus = read_corpus(recipe.corpus.path, tmp_path, holdout=0.3)
    student = make_student(section, recipe.teachers, corpus, recipe.training.seed)
    assert parameters(student) == found.best.parameters


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers are started. That this process computes with two threads would take minutes on busy cores."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


def test_side_by_side_is_as_one_after_the_other(
    compiled: tuple[Recipe, Compiled], few: None, broken: None, two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one of them fails."""
    recipe, alone = compiled
    processes: list[Trainings] = []

    def entered(self: Trainings, enter: Any = Trainings.__enter__) -> Trainings:
        processes.append(self)
        return cast(Trainings, enter(self))

    monkeypatch.setattr(Trainings, "__enter__", entered)
    found = compile_budget(recipe, Budget(30_000), sample=160, steps=2)
    assert [each.workers for each in processes] == [2]
    assert all(worker.poll() is not None for worker in processes[0]._all), "nothing is left behind"
    check_broken(found)
    before = {row.name: row.curve for row in alone.rows}
    assert len(found.rows) == 3
    for row in found.rows:
        expected = {steps: before[row.name][steps] for steps in row.curve.keys() & before[row.name].keys()}
        assert len(expected) >= 3, "the start and two trainings"
        assert {steps: row.curve[steps] for steps in expected} == pytest.approx(expected, abs=2e-3)  # ranks turn round


def test_parts_that_cannot_be_pickled_stay_in_this_process(
    two_threads: None, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = load_student(tiny_bert, device="cpu")
    probes = [Trial(name, student, build_method("cosine", {})) for name in "ab"]
    lesson: Any = []
    assert Trainings(lesson, probes).workers == 2
    assert Trainings([lambda: None], probes).workers == 1  # type: ignore[arg-type]
    own = type("Own", (type(probes[0].method),), {"__module__": "__main__"})  # which no other process could import
    monkeypatch.setattr("__main__.Own", own, raising=False)
    assert Trainings(lesson, [replace(each, method=own()) for each in probes]).workers == 1


def test_a_worker_that_cannot_be_started_is_reported(
    two_threads: None, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "no python"))
    probes = [Trial(name, load_student(tiny_bert, device="cpu"), build_method("cosine", {})) for name in "ab"]
    lesson: Any = []
    with pytest.raises(EnvironmentProblem, match=r"candidates.*No such file.*OMP_NUM_THREADS=1"):
        Trainings(lesson, probes).__enter__()
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_killed_worker_is_reported(
    two_threads: None, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    probes = [Trial(name, load_student(tiny_bert, device="cpu"), build_method("cosine", {})) for name in "ab"]
    lesson: Any = []
    trainings = Trainings(lesson, probes)
    with pytest.raises(EnvironmentProblem, match=r"^a: .*ended with code -9.*OMP_NUM_THREADS=1"), trainings:
        trainings._all[0].kill()
        list(trainings.orders(probes, 2))
    assert len(trainings._all) == 2 and all(worker.poll() is not None for worker in trainings._all)
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_students_beyond_the_budget_are_named(few: None, tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    recipe = recipe_for(tmp_path, tiny_bert, sentences)
    with pytest.raises(DistilvecError, match=r"^plan: no candidate fits .*a text takes [\d.]+ ms"):
        compile_budget(recipe, Budget(20_000, latency=1e-6), sample=160, steps=2)


def test_a_run_compiles_its_budget(few: None, tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    """With a method whose map into the teacher's space ships, and counts."""
    student = {"auto": {"parameters": "20k", "probe_steps": 2}, "max_length": 16}
    quiet = {"speed": False, "agreement": False}
    recipe = recipe_for(tmp_path, tiny_bert, sentences, student, method={"name": "leaf"}, judging=quiet)
    made = run(settle_student(recipe))
    plan = json.loads((made.folder / "plan.json").read_text())
    (planned,) = (row["parameters"] for row in plan["rows"] if row["name"] == plan["chosen"])
    assert parameters(load_student(made.folder / "student")) == parameters(made.student) == planned <= 20_000
    assert plan["budget"]["parameters"] == 20_000 and plan["chosen"] in plan["verdict"]
    assert (made.folder / "plan.svg").read_text().lstrip().startswith("<?xml")
    assert Recipe.load(made.folder / "recipe.yaml").student.auto is None


@pytest.mark.parametrize("options", [["--keep", "0.9"], ["--layers", "1"], ["--parameters", "many"]])
def test_options_that_do_not_go_together(
    options: list[str], tmp_path: Path, tiny_bert: Path, sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe_for(tmp_path, tiny_bert, sentences).to_yaml())
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(tmp_path / "recipe.yaml"), "--parameters", "20k", *options])
    assert ended.value.code == 2
    assert (options[0] if "many" not in options else '"many"') in capsys.readouterr().err


def test_a_budget_on_the_command_line(
    few: None, tmp_path: Path, tiny_bert: Path, sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe_for(tmp_path, tiny_bert, sentences).to_yaml())
    with pytest.raises(SystemExit) as ended:
        main([
            *("plan", str(tmp_path / "recipe.yaml"), "--parameters", "20k", "--sample", "160", "--probe-steps", "2"),
            *("-o", str(tmp_path / "planned")),
        ])  # fmt: skip
    shown = capsys.readouterr().out
    assert not ended.value.code and "Best candidate within 0.02 M parameters" in shown
    assert {"plan.json", "plan.svg"} <= {file.name for file in (tmp_path / "planned").iterdir()}


def test_size_of_tables_is_predicted_from_tables() -> None:
    def row(name: str, falls: float, longest: int, part: str) -> Measured:
        curve = {0: 0.0, **{steps: 1 - steps**-falls for steps in (2, 4, longest)}}
        return Measured(name, 10, 40, curve=curve, section={part: {"of": "t"}})

    rows = [row("a", 0.3, 8, "shrink"), row("b", 0.1, 4, "static"), row("c", 0.3, 4, "shrink")]
    found = Compiled(Budget(10), Measured("t", 100, 400), rows, 100, 64)
    reached = [1 - found.prediction(each).middle for each in rows]
    expected = [
        longest**-falls * (64 / longest) ** -(LATER * falls) for falls, longest in ((0.3, 8), (0.1, 4), (0.3, 4))
    ]
    assert reached == pytest.approx(expected)


def test_measured_rows_keep_their_curves() -> None:
    row = Measured("a", 10, 40, curve={0: 0.5, 2: 0.6, 4: 0.75})
    found = Compiled(Budget(10), Measured("t", 100, 400), [row], 100, 64)
    assert found.to_dict()["rows"][0]["curve"] == {0: 0.5, 2: 0.6, 4: 0.75} and found.best is row


def test_a_teacher_with_a_narrow_table_is_cut_within_its_rank() -> None:
    """An earlier student as the teacher: its table has a rank, and no cut may have a larger one."""
    sizes = Sizes(20_000, 256, 2, width=384, heads=12, units=528, rank=80)
    assert sizes.table(0, 80) == (256 + 2) * 80 + 2 * 80 + 80 * 384 + 384
    for depth, share in ((1, 0.6), (2, 0.3), (3, 0.4)):
        made = _electra("teacher", sizes, depth, share, 4_000_000)
        assert made is not None and made.source["shrink"].get("embedding", 0) < 80, (depth, share)
