"""`compare`: the same work for every method, resumable run by run, and a table that claims no more than it may."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.functions import lengths
from tests.jobs import Job, identity_of, tiny_recipe

from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DistilvecError, DivergedError
from distilvec.flow import bench
from distilvec.flow import compare as comparison
from distilvec.flow.compare import compare
from distilvec.flow.prepare import Prepared
from distilvec.flow.variants import variants_of
from distilvec.judging import CachedEncoder, NeighbourTask
from distilvec.judging.automatic import automatic_tasks, halves
from distilvec.recipe import Recipe
from distilvec.recipe.defaults import DEFAULTS

METHODS = ["cosine", "mse:init=random", {"name": "talas", "anchored_layers": 1, "lasd_weight": 0.0}]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("data")
    texts = [text for text in sentences if len(text) < 90][:160]
    rows = [{"text": text, "label": "long" if len(text) > 45 else "short"} for text in texts]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / "texts.jsonl"


def make_recipe(data: Path, teacher: Path, folder: Path, **sections: Any) -> Recipe:
    return Recipe.build(
        {
            "corpus": {"path": str(data), "label": "label", "holdout": 0.4},
            "teachers": [{"name": "tiny", "model": str(teacher)}],
            "student": {"shrink": {"of": "tiny", "layers": 1}},
            "optimizer": {"lr": 1e-3},
            "training": {"epochs": 1, "batch_size": 16, "seed": 4},
            "output": str(folder / "out"),
            "cache": str(folder / "cache"),
            **sections,
        }
    )


@pytest.fixture(scope="module")
def compared(
    tmp_path_factory: pytest.TempPathFactory, data: Path, tiny_bert: Path
) -> tuple[Recipe, comparison.Comparison]:
    recipe = make_recipe(data, tiny_bert, tmp_path_factory.mktemp("compared"))
    return recipe, compare(recipe, METHODS, seeds=2)


def test_every_method_and_seed_is_there(compared: tuple[Recipe, comparison.Comparison]) -> None:
    recipe, found = compared
    table = found.compared
    names = ["cosine", "mse:init=random", "talas:anchored_layers=1,lasd_weight=0.0"]
    assert list(table.entries) == ["tiny", "untrained student", "free baseline", *names]
    assert table.reference == "cosine"
    for name in names:
        entry = table.entries[name]["label"]
        assert entry.seeds == 2 and entry.deviation is not None and 0 <= entry.value <= 1
    for name, differences in table.differences.items():
        assert name != "cosine"
        gap = differences["label"]
        assert gap.low <= gap.value <= gap.high
        expected = table.entries[name]["label"].value - table.entries["cosine"]["label"].value
        assert gap.value == pytest.approx(expected, abs=1e-9)
    runs = Path(recipe.output) / "runs"
    first = runs / "mse-init=random" / "seed-4"
    assert (first / "student" / "modules.json").is_file() and not (first / "checkpoints").exists()
    assert (runs / "cosine" / "seed-5" / "run.jsonl").is_file()
    seeds = [Recipe.load(runs / "cosine" / f"seed-{seed}" / "recipe.yaml") for seed in (4, 5)]
    assert [each.training.seed for each in seeds] == [4, 5] and seeds[0].place == recipe.place


def test_what_is_written_and_said(compared: tuple[Recipe, comparison.Comparison]) -> None:
    recipe, found = compared
    saved = json.loads((Path(recipe.output) / "compare.json").read_text(encoding="utf-8"))
    assert saved["entries"]["cosine"]["label"]["seeds"] == 2 and saved["differences"]["mse:init=random"]["label"]
    page = (Path(recipe.output) / "compare.md").read_text(encoding="utf-8")
    assert "| cosine |" in page and "not tuned per method" in page and "held-out items" in page
    shown = found.table()
    assert str(found) == found.text() == shown and repr(found) == f"Comparison({recipe.output!r})"
    assert found._repr_markdown_() == page.strip("\n").replace("\n\n![Average ranks](ranks.svg)", "")
    assert "2 seed(s) per method" in shown and "interval" in shown
    told = {sentence for sentence in found.compared.statements() if "better" in sentence or "worse" in sentence}
    supported = [
        gap for gaps in found.compared.differences.values() for gap in (gaps["all"],) if gap.low > 0 or gap.high < 0
    ]
    assert len(told) == len(supported), "a winner is named exactly where the interval leaves out zero"


def test_the_table_as_csv_and_for_latex(compared: tuple[Recipe, comparison.Comparison]) -> None:
    recipe, _ = compared
    with (Path(recipe.output) / "compare.csv").open(encoding="utf-8", newline="") as source:
        rows = {(row["method"], row["column"]): row for row in csv.DictReader(source)}
    saved = json.loads((Path(recipe.output) / "compare.json").read_text(encoding="utf-8"))
    assert set(rows) == {(name, column) for name, entries in saved["entries"].items() for column in entries}
    for (name, column), row in rows.items():
        entry, gap = saved["entries"][name][column], saved["differences"].get(name, {}).get(column)
        assert float(row["mean"]) == entry["value"] and int(row["seeds"]) == entry["seeds"]
        assert row["deviation"] == ("" if entry["deviation"] is None else str(entry["deviation"]))
        told = [row[key] for key in ("difference", "low", "high")]
        assert told == (["", "", ""] if gap is None else [str(gap[key]) for key in ("value", "low", "high")])
    assert rows["mse:init=random", "label"]["difference"] and not rows["cosine", "label"]["difference"]

    lines = (Path(recipe.output) / "compare.tex").read_text(encoding="utf-8").splitlines()
    assert lines[0] == r"\begin{tabular}{lrrr}" and r"\toprule" in lines and r"\end{tabular}" in lines
    (ours,) = [line for line in lines if line.startswith("talas:")]
    assert r"talas:anchored\_layers=1,lasd\_weight=0.0 & " in ours and r"$\pm$" in ours and ours.endswith(r" \\")
    assert not any(sign in line for line in lines if not line.startswith("%") for sign in "±−—")
    assert any(line.startswith("% ") and "2 seed(s) per method" in line for line in lines)


def test_how_many_comparisons_there_are_is_said(compared: tuple[Recipe, comparison.Comparison]) -> None:
    _, found = compared
    shown = sum("label" in gaps for gaps in found.compared.differences.values())
    assert shown == 5 and "5 differences to cosine are given, each with its own 95 % interval" in found.table()
    one = replace(found.compared, differences={"tiny": found.compared.differences["tiny"]})
    assert "of its own" not in one.grid().text()


def test_finished_runs_are_read_back_and_lost_ones_made_again(
    compared: tuple[Recipe, comparison.Comparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, found = compared
    trained: list[str] = []
    fit = bench.fit

    def watched(prepared: Prepared, *given: Any, **more: Any) -> Any:
        trained.append(str(prepared.output))
        return fit(prepared, *given, **more)

    monkeypatch.setattr(bench, "fit", watched)
    again = compare(recipe, METHODS, seeds=2)
    assert trained == [] and again.compared.to_dict() == found.compared.to_dict()
    lost = Path(recipe.output) / "runs" / "cosine" / "seed-5" / "scores.json"
    lost.write_text(lost.read_text()[:100])
    again = compare(recipe, METHODS, seeds=2)
    assert trained == [str(lost.parent)]
    assert again.compared.to_dict() == found.compared.to_dict(), "the same run gives the same scores"
    (baselines,) = (each for each in (Path(recipe.output) / "baselines").glob("*.json") if "-found" not in each.name)
    content = baselines.read_text()
    baselines.unlink()
    without = compare(recipe, METHODS, seeds=2)
    assert "tiny" not in without.compared.entries and "Remove runs/cosine and compare again" in without.table()
    baselines.write_text(content)
    other = compare(recipe, METHODS[:2], seeds=1, reference="mse:init=random")
    assert len(trained) == 1 and other.compared.reference == "mse:init=random"


def test_keys_without_effect_on_the_student_train_nothing_again(
    compared: tuple[Recipe, comparison.Comparison], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder was moved, nobody times anything, and batches are read by another process."""
    recipe, found = compared
    shutil.copytree(recipe.output, tmp_path / "moved")
    monkeypatch.setattr(bench, "fit", lambda one, *_, **__: pytest.fail(f"{one.output} is trained again"))
    changes = {
        "output": str(tmp_path / "moved"),
        "judging": recipe.judging.model_copy(update={"speed": False}),
        "training": recipe.training.model_copy(update={"dataloader_num_workers": 1}),
    }
    again = compare(recipe.model_copy(update=changes), METHODS, seeds=2)
    assert again.compared.to_dict() == found.compared.to_dict()


def test_what_the_teacher_found_first_holds_for_seeds_that_are_added(
    data: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher that rounds otherwise on another device finds other documents, and the scores could not be compared."""
    task = {"name": "near", "kind": "neighbours", "corpus": str(data), "depth": 3}
    sections: dict[str, Any] = {"judging": {"tasks": [task], "speed": False}, "training": {"max_steps": 2}}
    first = compare(make_recipe(data, tiny_bert, tmp_path, **sections), ["cosine", "mse"], seeds=1)
    take = NeighbourTask._take_truth

    def elsewhere(self: NeighbourTask, teacher: Any) -> None:
        take(self, lambda texts: -(teacher(texts)[:, ::-1] ** 3))

    monkeypatch.setattr(NeighbourTask, "_take_truth", elsewhere)
    again = compare(make_recipe(data, tiny_bert, tmp_path, **sections), ["cosine", "mse"], seeds=2)
    values = [each.compared.entries["cosine"]["near"].values for each in (first, again)]
    assert len(values[1]) == 2 and values[1][0] == values[0][0]


def test_another_set_belongs_to_another_comparison(
    compared: tuple[Recipe, comparison.Comparison], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, where every method and seed was trained again and replaced without a word."""
    recipe, _ = compared
    monkeypatch.setattr(bench, "fit", lambda one, *_, **__: pytest.fail(f"{one.output} is trained again"))
    task = {"name": "more", "kind": "neighbours", "corpus": str(data), "depth": 3}
    more = recipe.model_copy(update={"judging": recipe.judging.model_copy(update={"tasks": [task]})})
    with pytest.raises(DistilvecError, match=r"/out: this comparison was begun with .* other tasks"):
        compare(Recipe.build(more.model_dump()), METHODS, seeds=2)


def test_another_recipe_in_the_same_folder_is_refused(compared: tuple[Recipe, comparison.Comparison]) -> None:
    recipe, _ = compared
    longer = recipe.model_copy(update={"training": recipe.training.model_copy(update={"epochs": 2})})
    told = r"/out: this comparison .* another recipe \(runs/cosine/seed-4: training\.epochs: 1\.0 there, 2\.0 here\)"
    with pytest.raises(DistilvecError, match=told):
        compare(longer, ["cosine"], seeds=1)


def test_a_labelled_row_with_other_options_is_refused_by_its_option(
    data: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    """Also where its training was interrupted."""
    recipe = make_recipe(data, tiny_bert, tmp_path, training={"max_steps": 2, "batch_size": 16})
    row = {"name": "cosine", "label": "ours", "init": "random"}
    compare(recipe, [row], seeds=1)
    scores = tmp_path / "out" / "runs" / "ours" / "seed-0" / "scores.json"
    for interrupted in (False, True):
        if interrupted:
            scores.unlink()
        with pytest.raises(DistilvecError, match=r"ours/seed-0: method\.init: random there, ridge here.*another label"):
            compare(recipe, [{**row, "init": "ridge"}], seeds=1)


def test_the_true_length_of_the_training_is_reported(data: Path, tiny_bert: Path, tmp_path: Path) -> None:
    recipe = make_recipe(data, tiny_bert, tmp_path, training={"max_steps": 2, "batch_size": 16})
    table = compare(recipe, ["cosine"], seeds=1).table()
    assert "2 steps, batches of 16" in table and "epochs" not in table


def test_tuning_takes_the_best_of_three_rates(data: Path, tiny_bert: Path, tmp_path: Path) -> None:
    recipe = make_recipe(data, tiny_bert, tmp_path)
    found = compare(recipe, ["cosine"], seeds=1, tune=True)
    values = {
        float(file.parent.name.removeprefix("lr-")): json.loads(file.read_text())["value"]
        for file in (tmp_path / "out" / "tuning" / "cosine").glob("*/agreement.json")
    }
    assert sorted(values) == pytest.approx([3.33e-4, 1e-3, 3e-3])
    assert found.rates == {"cosine": max(values, key=lambda rate: values[rate])}
    used = Recipe.load(tmp_path / "out" / "runs" / "cosine" / "seed-4" / "recipe.yaml")
    assert used.optimizer.lr == found.rates["cosine"]
    shown, saved = found.table(), json.loads((tmp_path / "out" / "compare.json").read_text(encoding="utf-8"))
    assert "chosen on held-out agreement" in shown
    assert saved["tried"]["cosine"] == {str(rate): pytest.approx(value) for rate, value in values.items()}
    assert ("that was tried" in shown) == (found.rates["cosine"] in (min(values), max(values)))


def test_rates_are_not_chosen_on_the_items_that_are_judged(
    data: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    whole = bench.held_out

    def watched(*given: Any) -> Any:
        texts, vectors = whole(*given)
        asked.extend(texts)  # what is measured while training is asked for elsewhere, and chooses nothing
        return texts, vectors

    monkeypatch.setattr(bench, "held_out", watched)
    found = compare(make_recipe(data, tiny_bert, tmp_path), ["cosine"], seeds=1, tune=True)
    assert "the half that no rate was chosen on" in found.table()
    corpus = Corpus.open(tmp_path / "cache" / "corpus")
    held = corpus.texts(corpus.holdout_rows)
    judged = {text for task in automatic_tasks(halves(corpus)[1]) for (text,) in task.test_items()}
    assert asked and judged and {*asked, *judged} <= set(held) and not judged & set(asked)
    scores = json.loads((tmp_path / "out" / "runs" / "cosine" / "seed-4" / "scores.json").read_text())["scores"]
    assert {score["n"] for score in scores.values()} == {len(judged)}
    few = make_recipe(data, tiny_bert, tmp_path / "few")
    few.corpus.holdout = 0.25
    with pytest.raises(DistilvecError, match=r"^corpus\.holdout: .*--tune"):
        compare(few, ["cosine"], seeds=1, tune=True)


def test_neighbours_are_those_of_what_the_teacher_reads(tiny_bert: Path, tmp_path: Path) -> None:
    rows = [{"text": f"fremd {number}", "english": f"{'a' * (1 + number % 9)} e{number}"} for number in range(90)]
    corpus = read_corpus(rows, tmp_path / "corpus", teacher_text="english", holdout=0.4)
    recipe = make_recipe(tmp_path, tiny_bert, tmp_path)
    recipe.corpus.label = None
    (task,) = bench.compared_tasks(recipe, corpus, [])
    asked: list[str] = []

    def teacher(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return lengths(texts)

    task.settle(CachedEncoder(teacher))
    held = np.asarray(corpus.holdout_rows)
    assert set(asked) == set(corpus.teacher_texts(held)) and set(task.texts()) == set(corpus.texts(held))


def test_method_words(data: Path, tiny_bert: Path, tmp_path: Path) -> None:
    recipe = make_recipe(data, tiny_bert, tmp_path, method={"name": "talas", "anchored_layers": 1})
    words = ["talas", "talas:temperature=0.1,optimizer.sharpness.kind=asam", "leaf", "jasper_stella:prefixes=[8, 16]"]
    found = variants_of(recipe, words)
    (note,) = comparison._kept_options(recipe, found)
    assert note.endswith(f"holds for {words[0]}, {words[1]}, too: anchored_layers=1.")
    assert found["talas"].method.first.options == {"anchored_layers": 1}, "the recipe's own options"
    sharp = found[words[1]]
    assert sharp.method.first.options == {"anchored_layers": 1, "temperature": 0.1}
    assert sharp.optimizer.sharpness is not None and sharp.optimizer.sharpness.kind == "asam"
    assert recipe.optimizer.sharpness is None
    assert found["leaf"].student.space == "teacher" and found["leaf"].method.first.options == {}
    assert found[words[3]].method.first.options == {"prefixes": [8, 16]}


def test_a_row_without_options_takes_the_methods_defaults(
    data: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe names no method, and the row before it has options."""
    recipe = make_recipe(data, tiny_bert, tmp_path, training={"max_steps": 2, "batch_size": 16})
    rows = ["cosine:init=random", "cosine"]
    found = compare(recipe, rows, seeds=1)
    runs = Path(recipe.output) / "runs"
    used = [Recipe.load(runs / name / "seed-0" / "recipe.yaml").method for name in ("cosine-init=random", "cosine")]
    assert [each.entries for each in used] == [[{"name": "cosine", "init": "random"}], [{"name": "cosine"}]]
    assert "the recipe says of" not in found.table()
    monkeypatch.setattr(bench, "fit", lambda one, *_, **__: pytest.fail(f"{one.output} is trained again"))
    assert compare(recipe, rows, seeds=1, reference="cosine").compared.reference == "cosine"


def test_a_space_that_the_recipe_gives_holds_for_every_row(data: Path, tiny_bert: Path, tmp_path: Path) -> None:
    student = {"shrink": {"of": "tiny", "layers": 1}, "space": "own"}
    recipe = make_recipe(data, tiny_bert, tmp_path, student=student)
    assert [each.student.space for each in variants_of(recipe, ["cosine", "leaf"]).values()] == ["own", "own"]


@pytest.mark.parametrize("own", [{}, {"method": {"name": "mse", "init": "random"}}])
def test_the_default_method_is_a_row(data: Path, tiny_bert: Path, tmp_path: Path, own: dict[str, Any]) -> None:
    recipe = make_recipe(data, tiny_bert, tmp_path, training={"max_steps": 2, "batch_size": 16}, **own)
    found = compare(recipe, ["auto", {"name": "auto", "label": "light", "map": True}, "cosine"], seeds=1)
    assert list(found.compared.entries)[3:] == ["auto", "light", "cosine"]
    runs = Path(recipe.output) / "runs"
    auto, cosine = (Recipe.load(runs / name / "seed-0" / "recipe.yaml") for name in ("auto", "cosine"))
    row = DEFAULTS["wide"]
    assert auto.method.entries == row.method and cosine.method.entries == [{"name": "cosine"}]
    assert auto.student is not None and cosine.student is not None
    assert [auto.student.space, auto.student.dropout] == [row.student["space"], row.student["dropout"]]
    assert cosine.student.dropout is None, "the table's student is the default row's alone"
    with pytest.raises(DistilvecError, match='^method: .*"leef".*"leaf"'):
        compare(make_recipe(tmp_path / "nothing", tiny_bert, tmp_path), ["auto", "leef"])


def test_options_as_dictionaries_and_rows_with_names(data: Path, tiny_bert: Path, tmp_path: Path) -> None:
    recipe = make_recipe(data, tiny_bert, tmp_path)
    sharp = {"lr": 3e-4, "sharpness": {"kind": "sam"}}
    methods = [
        {"name": "cosine", "label": "ours-1.0", "optimizer": sharp},
        {"name": "mse", "init": "random", "optimizer": {"lr": 5e-4}},
        "cosine:label=plain",
    ]
    found = variants_of(recipe, methods)
    assert list(found) == ["ours-1.0", "mse:init=random,optimizer.lr=0.0005", "plain"]
    ours = found["ours-1.0"].optimizer
    assert ours.lr == 3e-4 and ours.sharpness is not None and ours.sharpness.kind == "sam"
    assert found["mse:init=random,optimizer.lr=0.0005"].optimizer.lr == 5e-4
    assert found["plain"].optimizer == recipe.optimizer and found["plain"].method.first.options == {}
    for alone in ("cosine", {"name": "cosine"}):
        assert list(variants_of(recipe, alone)) == ["cosine"]


@pytest.mark.parametrize("seeds", [[0, 1, 2], "3", 2.0, True])
def test_seeds_are_a_number(data: Path, tiny_bert: Path, tmp_path: Path, seeds: Any) -> None:
    with pytest.raises(DistilvecError, match=rf"^seeds: .*\b{type(seeds).__name__}\b.*seeds=3"):
        compare(make_recipe(data, tiny_bert, tmp_path), ["cosine"], seeds=seeds)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("methods", "reference", "told"),
    [
        (["cosin"], None, '^method: .*"cosin".*"cosine"'),
        (["cosine:inti=random"], None, '^method.inti: .*"inti".*"init"'),
        (["cosine:init"], None, '^methods: "init" in "cosine:init" .*key=value'),
        (["cosine", "cosine"], None, '^methods: "cosine" .*twice'),
        (["cosine"], "mse", '^reference: .*"mse".*cosine'),
        ([], None, "^methods: .*methods to compare"),
        (None, None, "^methods: .*methods to compare"),
        (3, None, "^methods: .*int.*list"),
        (["cosine", 3], None, "^methods: .*int.*name"),
        ([{"name": "cosine", "label": "../runs"}], None, r'^methods.label: .*"\.\./runs".*letter'),
        ([{"name": "cosine", "label": "mse"}, "mse"], None, '^methods: "mse" .*twice'),
        (["jasper_stella:prefixes=[8, 16]", "jasper_stella:prefixes=[8,16]"], None, "^methods: .*prefixes=-8-16"),
        ([{"name": "cosine", "optimizer": {"lrr": 1}}], None, '^optimizer.lrr: .*"lr"'),
    ],
)
def test_mistakes_are_said_before_anything_is_trained(
    data: Path, tiny_bert: Path, tmp_path: Path, methods: Any, reference: str | None, told: str
) -> None:
    recipe = make_recipe(data, tiny_bert, tmp_path)
    with pytest.raises(DistilvecError, match=told):
        compare(recipe, methods, reference=reference)
    assert not (tmp_path / "out").exists() and not (tmp_path / "cache").exists()


def test_a_method_that_cannot_work_is_said_first(data: Path, tiny_bert: Path, tmp_path: Path) -> None:
    recipe = make_recipe(data, tiny_bert, tmp_path)
    with pytest.raises(
        DistilvecError, match=r"^student: anchored_layers is 2, .*\b1\. .* -m talas:anchored_layers=1\)"
    ):
        compare(recipe, ["cosine", "talas"])
    # What the recipe says of `method` would not reach such a row.
    with pytest.raises(DistilvecError, match=r"^student: distillmoe is to use 3 layers, .* -m distillmoe:layers=1\)"):
        compare(recipe, ["cosine", "distillmoe"])
    assert not (tmp_path / "out" / "runs").exists()


def test_nothing_to_judge_on(data: Path, tiny_bert: Path, tmp_path: Path) -> None:
    given = {"path": str(data), "holdout": 0.0}
    with pytest.raises(DistilvecError, match=r"^judging\.tasks: .*corpus\.holdout"):
        compare(make_recipe(data, tiny_bert, tmp_path, corpus=given), ["cosine"])


def test_methods_are_judged_by_the_teachers_neighbours_without_labels(
    data: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    recipe = make_recipe(data, tiny_bert, tmp_path, corpus={"path": str(data), "holdout": 0.3})
    found = compare(recipe, ["cosine", "mse"], seeds=1).compared.entries
    assert {"cosine", "mse", "untrained student"} <= set(found)
    assert all("neighbours" in entries for entries in found.values())
    assert found["cosine"]["neighbours"].value > 0


def test_a_rate_at_which_training_fails_is_the_worst(
    data: Path, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = bench.fit

    def diverging(prepared: Prepared, *given: Any, **more: Any) -> Any:
        if (prepared.recipe.optimizer.lr or 0) > 2e-3:
            raise DivergedError("the loss is not finite", where="step 3")
        return trained(prepared, *given, **more)

    monkeypatch.setattr(bench, "fit", diverging)
    found = compare(make_recipe(data, tiny_bert, tmp_path), ["cosine"], seeds=1, tune=True)
    assert found.tried["cosine"][3e-3] is None and found.rates["cosine"] < 2e-3
    monkeypatch.setattr(bench, "fit", fail)
    with pytest.raises(DivergedError, match="the loss is not finite"):
        compare(make_recipe(data, tiny_bert, tmp_path / "other"), ["cosine"], seeds=1, tune=True)


def fail(*_: Any, **__: Any) -> None:
    raise DivergedError("the loss is not finite", where="step 1")


def test_changed_scores_change_the_comparison_identity(tmp_path: Path, tiny_bert: Path) -> None:
    rows = [{"query": f"query {number}", "document": f"document {number}"} for number in range(40)]
    found = []
    for factor in (1, 2):
        (tmp_path / "scores.jsonl").write_text(
            "".join(json.dumps({**row, "score": factor * number}) + "\n" for number, row in enumerate(rows))
        )
        given = tiny_recipe(
            tmp_path,
            tiny_bert,
            rows,
            corpus={"path": rows, "text": ["query", "document"], "holdout": 0.0},
            teachers=[],
            scorers=[{"name": "judge", "scores": str(tmp_path / "scores.jsonl")}],
            method={"name": "score_kl"},
        )
        found.append(identity_of(Job(given)))
    assert found[0] != found[1]


def test_teacher_without_vectors_for_the_tasks_is_not_compared(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    texts = sorted(set(sentences))

    def some(asked: list[str]) -> list[np.ndarray | None]:
        return [None if "strange" in text else np.array([len(text), text.count("e"), 1.0]) for text in asked]

    rows = [{"text1": "a strange text", "text2": f"text {number}", "score": number} for number in range(30)]
    task = {"name": "closeness", "kind": "similarity", "test": rows}
    given = tiny_recipe(
        tmp_path, tiny_bert, texts, teachers=[{"name": "some", "call": some}], judging={"tasks": [task]}
    )
    found = compare(given, ["cosine"], seeds=1)
    assert "some" not in found.compared.entries and "cosine" in found.compared.entries
