"""Choosing before training: what is measured is what a run would measure, and what is named follows from it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.jobs import Job

import distilvec
from distilvec.choosing import settle_student
from distilvec.choosing.choose import Choice, choose
from distilvec.choosing.measuring import Measured
from distilvec.choosing.prediction import (
    LONG,
    RUNS,
    Kind,
    KnownRun,
    Prediction,
    kind_of,
    predict,
    residuals,
    shares,
    worst,
)
from distilvec.choosing.sample import sampled
from distilvec.corpus import read_corpus
from distilvec.corpus.sources import Part
from distilvec.errors import DataError, DistilvecError
from distilvec.flow.run import run
from distilvec.flow.start import make_student
from distilvec.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]
SHORT = 30_000  # texts read
CUT: Kind = "fewer pieces"


@pytest.fixture(scope="module")
def texts(sentences: list[str]) -> list[str]:
    return [" ".join(text.split()[:12]) for text in sentences]


@pytest.fixture(autouse=True, scope="module")
def quickly() -> Iterator[None]:
    """Speed is measured for a moment only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distilvec.choosing.measuring.SECONDS", 0.1)
        patch.setattr("distilvec.choosing.measuring.TIMED", 32)
        yield


def recipe_for(folder: Path, teacher: Path | str, texts: list[str], **sections: Any) -> Recipe:
    corpus = folder / "texts.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    values = {
        "corpus": {"path": str(corpus), "holdout": 0.3},
        "teachers": [{"name": "big", "model": str(teacher)}],
        "student": "auto",
        "method": {"name": "cosine"},
        "output": str(folder / "out"),
    }
    return Recipe.build(values | sections)


# the prediction


def committed(experiment: str) -> dict[str, Any]:
    """Name -> result of an experiment's committed rows."""
    file = ROOT / "experiments/results" / experiment / "results.jsonl"
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {record["name"]: record["result"] for record in found}


def test_the_known_runs_are_the_committed_ones() -> None:
    rows = committed("talas")

    def average(scores: dict[str, Any]) -> float:
        return float(scores["averages"]["all"])

    teacher = average(rows["teacher"]["models"]["teacher"])
    for known in RUNS:
        if known.read != 27_000:
            continue
        before = rows[f"{known.student}/references"]["models"]
        start = max(average(before["untrained student"]), average(before["free baseline"])) / teacher
        runs = [run for name, run in rows.items() if name.rpartition("-")[0] == f"{known.student}/{known.method}"]
        kept = np.mean([average(run) for run in runs]) / teacher
        assert runs and (known.start, known.kept) == pytest.approx((start, kept), abs=6e-5), known


def test_the_known_runs_on_the_large_pool_are_the_committed_ones() -> None:
    headline, compression = committed("headline"), committed("compression")
    long = [known for known in RUNS if known.read > LONG and known.kind not in ("static", "narrower")]
    static = [known for known in RUNS if known.read > LONG and known.kind == "static"]
    assert {known.method for known in long} == {"cosine", "distilcse"} and len(static) == 3
    for known in long:
        averages = headline[known.method]["averages"]
        assert known.kept == pytest.approx(averages["student"]["all"] / averages["teacher"]["all"], abs=6e-5)
    teacher = headline["cosine"]["averages"]["teacher"]["all"]
    for known in static:
        averages = compression[known.student]["averages"]
        found = [averages[model]["all"] / teacher for model in ("untrained", "trained")]
        assert [known.start, known.kept] == pytest.approx(found, abs=1.1e-4), known


def test_the_known_runs_of_the_candidates_are_the_committed_ones() -> None:
    made = committed("choosing")
    teacher, rows = made["teacher"]["average"], made["plan"]["rows"]
    # The two cut ones are, but for the corpus' held-out part, students of the other runs.
    twins = {"2 layers, 5,000 pieces": "cut", "3 layers, 5,000 pieces": "cut3"}
    found = {known.student: known for known in RUNS if known.read == 26_000}
    assert len(rows) == 13
    for each in rows:
        trained = made[each["name"]]
        known = found[twins.get(each["name"], each["name"])]
        start = max(ways["all"] for ways in each["kept"].values() if "all" in ways)
        assert (known.start, known.kept) == pytest.approx((start, trained["average"] / teacher), abs=6e-5), known
        assert known.kind == kind_of(each["section"])
        assert known.read == pytest.approx(32 * trained["steps"], rel=0.01)


def test_the_known_runs_of_narrower_students_are_the_committed_ones() -> None:
    rows = committed("quarter")

    def kept(row: dict[str, Any]) -> float:
        averages = row["nine"]["averages"]
        return float(averages["student"]["all"] / averages["teacher"]["all"])

    pages = {
        40_600: ("cost/quarter, 0.2", "quarter, more texts"),
        162_000: ("cost/quarter, 0.8", "quarter, more texts"),
        381_000: ("quarter", "quarter"),
        778_000: ("quarter, more texts", "quarter, more texts"),
        2_350_000: ("quarter, all texts, Muon", "quarter, all texts, Muon"),
        2_320_000: ("quarter, 26,000 pieces, all texts, 1 made of each, Muon",) * 2,
        793_000: ("twentieth", "twentieth"),
    }
    found = [known for known in RUNS if known.kind == "narrower"]
    assert len(found) == 9
    for known in found:
        name, before = pages.get(known.read, (f"{known.student}, more texts",) * 2)
        trained = [row for each, row in sorted(rows.items()) if each.rpartition("-")[0] == name]
        start = next(row for each, row in sorted(rows.items()) if each.rpartition("-")[0] == f"start/{before}")
        assert known.start == pytest.approx(kept(start), abs=6e-5), known
        assert known.kept == pytest.approx(np.mean([kept(row) for row in trained]), abs=6e-5), known
        batch = 128 if name.endswith("Muon") else 64
        assert known.read == pytest.approx(batch * trained[0]["steps"], rel=0.01)
        assert trained[0]["parameters"] == start["parameters"]


def test_the_interval_covers_the_runs_that_it_is_made_of() -> None:
    for known in RUNS:
        found = predict(known.start, known.read, known.kind)
        assert found.low - 1e-9 <= known.kept <= found.high + 1e-9
    assert {"bpe", "cut", "cut3"} < set(residuals())


def test_runs_of_the_kind_and_length_count() -> None:
    def of(student: str, kind: Kind, read: int, share: float) -> KnownRun:
        return KnownRun(student, kind, "cosine", read, 0.5, 0.5 + share / 2)

    short = [of(f"s{n}", "all pieces", 1000, share) for n, share in enumerate((-0.1, 0.2, 0.3))]
    runs = [*short, of("l", "all pieces", 10**6, 0.6), of("p", "other", 1000, 0.9), of("t", "static", 1000, 0.05)]
    assert shares(2000, "all pieces", runs) == pytest.approx((-0.1, 0.2, 0.3))
    assert shares(10**7, "all pieces", runs) == pytest.approx((-0.1, 0.6, 0.6)), "one student alone makes no range"
    assert shares(10**7, "other", runs) == pytest.approx((-0.1, 0.9, 0.9)), "nor does it for a kind"
    assert shares(10**7, "static", runs) == pytest.approx((0.05, 0.05, 0.05)), "tables are no relatives of the others"
    assert predict(0.8, 2000, "all pieces", runs=runs).low == pytest.approx(0.78), "it may end below its start"


def test_the_kind_of_a_section() -> None:
    cut = {"of": "bge"}
    assert kind_of({"shrink": {**cut, "layers": 1, "vocabulary": 5000}}) == "one block"
    assert kind_of({"shrink": {**cut, "layers": [6]}}) == "one block"
    assert kind_of({"shrink": {**cut, "layers": [1, 6]}}) == "all pieces"
    assert kind_of({"shrink": {**cut, "vocabulary": 5000}}) == "fewer pieces"
    assert kind_of({"fresh": {"layers": 1}}) == kind_of({"model": "m"}) == "other"
    assert kind_of({"static": cut}) == "static"
    for inside in ({"embedding": 64}, {"inner": 416}, {"width": 128}):
        assert kind_of({"shrink": {**cut, "layers": 4, "vocabulary": 5000, **inside}}) == "narrower"
        assert kind_of({"shrink": {**cut, "layers": 1, **inside}}) == "other", "no such student was trained"
    assert kind_of({"shrink": {**cut, "layers": 4, "heads": 6}}) == "other", "nor one with fewer heads"


def test_the_worst_of_several_predictions_is_so_at_both_ends() -> None:
    found = worst([Prediction(0.911, 0.933, 0.941), Prediction(0.915, 0.915, 0.940)])
    assert found == Prediction(0.911, 0.915, 0.940)


def test_a_prediction_grows_with_its_start_and_a_probe_is_a_floor() -> None:
    starts = [0.2, 0.5, 0.8, 0.95, 1.0]
    found = [predict(start, SHORT, CUT) for start in starts]
    assert all(each.low <= each.middle <= each.high <= 1 for each in found)
    assert [each.middle for each in found] == sorted(each.middle for each in found)
    longer = [predict(start, 10 * LONG, CUT) for start in starts]
    assert all(one.middle < other.middle for one, other in list(zip(found, longer, strict=True))[:-1])
    assert predict(1.1, SHORT, CUT).low == predict(1.1, SHORT, CUT).high == 1.1, "above the teacher it stays there"
    probed = predict(0.5, SHORT, CUT, probe=0.9)
    assert (probed.low, probed.middle) == (0.9, 0.9) and 0.9 < probed.high < 1
    assert predict(0.5, SHORT, CUT, probe=0.1) == predict(0.5, SHORT, CUT), "a worse probe says nothing"


# the choice


def row(name: str, parameters: int, start: float, **more: float) -> Measured:
    kept = {"untrained": {"all": start / 2}, "free": {"agreement": 0.5, "all": start, **more}}
    section = {"shrink": {"of": "big", "layers": 2, "vocabulary": 5000}}
    return Measured(name, parameters, 4 * parameters, {}, 0.5, kept, section)


def choice(*rows: Measured, keep: float = 0.95, **more: Any) -> Choice:
    return Choice(keep, Measured("big", 10**8, 4 * 10**8), list(rows), 1000, SHORT, ["answers"], **more)


def test_the_smallest_that_keeps_enough_is_named() -> None:
    found = choice(row("tiny", 10**6, 0.7), row("small", 2 * 10**6, 0.93), row("middle", 10**7, 0.96))
    assert found.chosen is not None and found.chosen.name == "small"
    assert "small, 95 % (93–96)" in found.verdict() and "at the low end of its interval is middle" in found.verdict()
    assert repr(found) == "Choice(small)" and str(found) == found.text()
    assert "| small | 2.00 M |" in found._repr_markdown_() and found.verdict() in found._repr_markdown_()
    only = choice(row("middle", 10**7, 0.96))
    assert "it does so even at the low end" in only.verdict()


def test_retrieval_is_not_hidden_in_the_average() -> None:
    found = choice(row("small", 10**6, 0.97, retrieval=0.6), row("middle", 10**7, 0.97, retrieval=0.95))
    assert found.chosen is not None and found.chosen.name == "middle"
    assert found.prediction(found.rows[0]) == predict(0.6, SHORT, CUT)


def test_the_most_promising_student_is_named_if_all_keep_too_little() -> None:
    found = choice(row("tiny", 10**6, 0.4), row("small", 10**7, 0.7), row("odd", 2 * 10**7, 0.6))
    assert found.chosen is None and found.best.name == "small"
    assert found.verdict().startswith("No candidate is predicted to keep 95 %")
    assert json.loads(json.dumps(found.to_dict()))["chosen"] == "small"


def test_a_training_shorter_than_every_committed_one_is_reported() -> None:
    found = choice(row("small", 10**6, 0.9))
    assert "does not cover" not in found.text()
    found.read = 96
    assert "This training reads 96 texts, our shortest experiment read 26,000" in found.text()


# the sample


def test_a_sample_is_the_same_texts_under_new_numbers(tmp_path: Path, texts: list[str]) -> None:
    corpus = read_corpus([{"text": text} for text in texts], tmp_path / "corpus", holdout=0.3)
    few = sampled(corpus, 100)
    again = pickle.loads(pickle.dumps(few))  # as workers get it
    assert again.texts() == few.texts() and again.fingerprint == few.fingerprint
    sent = pickle.dumps(few)
    read_corpus([{"text": text} for text in texts[:150]], tmp_path / "corpus", holdout=0.3)
    with pytest.raises(DataError, match=r"/corpus: another run .*caches of their own"):
        pickle.loads(sent)
    assert len(few) == 100 and len(few.holdout_rows) == 20 and len(few.train_rows) == 80
    whole = {key.tobytes(): text for key, text in zip(corpus.keys, corpus.texts())}
    assert [whole[key.tobytes()] for key in few.keys] == few.texts()
    held = set(corpus.texts(corpus.holdout_rows))
    assert set(few.texts(few.holdout_rows)) <= held and not set(few.texts(few.train_rows)) & held
    assert few.fingerprint != corpus.fingerprint and few.modality == "text"


def test_without_held_out_texts_some_training_texts_stand_in(tmp_path: Path, texts: list[str]) -> None:
    corpus = read_corpus([{"text": text} for text in texts], tmp_path / "corpus", holdout=0.0)
    few = sampled(corpus, 150)
    assert len(few.holdout_rows) == 30 and not set(few.holdout_rows) & set(few.train_rows)
    small = read_corpus([{"text": text} for text in texts[:30]], tmp_path / "small", holdout=0.0)
    with pytest.raises(DataError, match=r"^corpus: 10 .*\b20\b"):
        sampled(small, 150)


def test_texts_that_stand_in_for_held_out_ones_are_not_trained_on(tmp_path: Path) -> None:
    """A query of five pairs is one text in five rows."""
    rows = [{"q": f"query {number % 40}", "d": f"document {number}"} for number in range(200)]
    few = sampled(read_corpus(rows, tmp_path, text=["q", "d"], holdout=0.0), 300)
    held, trained = few.texts(few.holdout_rows), few.texts(few.train_rows)
    assert len(held) == 60 and len(trained) > 150
    assert not set(held) & set(trained)


def test_a_held_out_text_of_many_pairs_is_sampled_once(tmp_path: Path) -> None:
    rows = [{"q": f"query {number % 40}", "d": f"document {number}"} for number in range(800)]
    corpus = read_corpus(rows, tmp_path / "held", text=["q", "d"], holdout=0.2)
    held = corpus.texts(corpus.holdout_rows)
    few = sampled(corpus, 2000)
    assert sorted(few.texts(few.holdout_rows)) == sorted(set(held)) and len(set(held)) < len(held)
    none = sampled(read_corpus(rows, tmp_path / "none", text=["q", "d"], holdout=0.0), 1000)
    stand_in = none.texts(none.holdout_rows)
    assert len(set(stand_in)) == len(stand_in) >= 100


def test_a_sample_counts_and_reads_its_own_rows(tmp_path: Path) -> None:
    """Rows of the first part alone, which weighs little, would give an epoch of another length."""
    parts = [
        Part([f"a text number {number}" for number in range(2000)], "many", weight=0.01, prompt="one: "),
        Part([f"other words {number} here" for number in range(2000)], "few", prompt="two: "),
    ]
    few = sampled(read_corpus(parts, tmp_path), 500)
    rows = few.train_rows
    assert few.weights is not None and few.domains is not None
    assert few.epoch_items(rows) == round(few.weights[few.domains[rows]].sum()) > 100
    assert few.bare(rows) == [text.removeprefix("one: ").removeprefix("two: ") for text in few.texts(rows)]
    assert few.bare(rows) != few.texts(rows)


# measured with the real teacher


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory, real_teacher_folder: Path, texts: list[str], quickly: None
) -> Any:
    """A recipe with its own one-layer student and a task of pairs, and the choice between it and a few others."""
    folder = tmp_path_factory.mktemp("choosing")
    rows = [{"text1": a, "text2": b, "score": len(a) / (1 + len(b))} for a, b in zip(texts[:40], texts[40:80])]
    recipe = recipe_for(
        folder,
        real_teacher_folder,
        texts,
        student={"shrink": {"of": "big", "layers": 1, "vocabulary": 2500}, "max_length": 32},
        judging={"tasks": [{"name": "alike", "kind": "similarity", "test": rows}]},
    )
    return recipe, choose(recipe, sample=160, layers=[1, 3], vocabularies=[2500])


def test_the_table_has_all_kinds_of_candidates_from_small_to_large(measured: tuple[Recipe, Choice]) -> None:
    recipe, found = measured
    names = [each.name for each in found.rows]
    for name in ("the recipe's", "1 layer, 2,500 pieces", "3 layers, 2,500 pieces", "fresh, 2 layers of 192"):
        assert name in names
    assert any(name.startswith("static, 256 dimensions, 2,500") for name in names), names
    sizes = [each.parameters for each in found.rows]
    assert sizes == sorted(sizes) and all(each.size_bytes > 3.9 * each.parameters for each in found.rows)
    for each in [found.teacher, *found.rows]:
        assert 0 < each.speed["latency_p50_ms"] <= each.speed["latency_p95_ms"] and each.speed["texts_per_second"] > 0
    for each in found.rows:  # what is written down makes the very candidate that was measured
        section = Recipe.build({"corpus": {"path": "x"}, "teachers": [{"model": "y"}], "student": each.section}).student
        corpus = Job(recipe).corpus
        again = make_student(section, recipe.teachers, corpus, recipe.training.seed)
        assert sum(parameter.numel() for parameter in again.parameters()) == each.parameters, each.name
    shown = found.text()
    assert all(name in shown for name in names) and "tasks %: untrained / free" in shown
    static = next(each for each in found.rows if each.name.startswith("static"))
    assert found.prediction(static) == predict(found.start(static, "all"), found.read, "static")
    assert f"reads {found.read:,} texts" in shown and found.verdict() in shown


def test_the_free_score_is_what_a_ridge_map_by_hand_gives(measured: tuple[Recipe, Choice]) -> None:
    from sentence_transformers import SentenceTransformer

    recipe, found = measured
    own = next(each for each in found.rows if each.name == "the recipe's")
    corpus = Job(recipe).corpus
    student = make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed)
    assert own.parameters == sum(parameter.numel() for parameter in student.parameters())
    teacher = SentenceTransformer(recipe.teachers[0].model)
    few = sampled(corpus, 160)
    train, held = few.texts(few.train_rows), few.texts(few.holdout_rows)
    source, target = student.encode(train).astype(np.float64), teacher.encode(train).astype(np.float64)
    gram = source.T @ source
    free = np.linalg.solve(gram + 1e-2 * np.trace(gram) / len(gram) * np.eye(len(gram)), source.T @ target)
    mapped, wanted = student.encode(held) @ free, teacher.encode(held)
    lengths = np.linalg.norm(mapped, axis=1) * np.linalg.norm(wanted, axis=1)
    cosine = float(((mapped * wanted).sum(1) / lengths).mean())
    assert own.agreement == pytest.approx(cosine, abs=2e-3)

    from distilvec.judging import judge, load_tasks

    judged = judge({"student": student, "teacher": teacher}, load_tasks(recipe.judging.tasks))
    kept = judged.retention("student", "teacher")["average:all"] / 100
    assert own.kept["untrained"]["all"] == pytest.approx(kept, abs=5e-3)


def test_the_teachers_vectors_stay_for_the_run(measured: tuple[Recipe, Choice]) -> None:
    from distilvec.store import SignalStore

    recipe, _ = measured
    assert len(SignalStore.open(Path(recipe.output) / "stores" / "big")) == 160


# student: auto


def test_auto_is_chosen_trained_and_saved(tmp_path: Path, tiny_bert: Path, texts: list[str]) -> None:
    auto = {"auto": {"keep": 0.5, "probe_steps": 2}, "max_length": 16}
    recipe = recipe_for(tmp_path, tiny_bert, texts, student=auto, training={"max_steps": 2}, judging={"speed": False})
    finished = run(settle_student(recipe))
    saved = Recipe.load(tmp_path / "out/recipe.yaml")
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    chosen = next(each for each in plan["rows"] if each["name"] == plan["chosen"])
    assert saved.student.auto is None and saved.student.max_length == 16
    assert saved.student == Recipe.build(saved.model_dump() | {"student": chosen["section"]}).student
    assert chosen["parameters"] == sum(p.numel() for p in finished.student.parameters())
    assert set(chosen["kept"]) == {"untrained", "free", "probe"}
    assert any("chosen (student: auto) by agreement" in note for note in finished.record["notes"].lines)
    written = (tmp_path / "out/plan.json").stat().st_mtime_ns
    assert settle_student(recipe, resume=True).student == saved.student, "nothing is measured again"
    assert (tmp_path / "out/plan.json").stat().st_mtime_ns == written
    assert run(settle_student(recipe, resume=True), resume=True).folder == finished.folder
    more = recipe_for(tmp_path, tiny_bert, texts, student=auto | {"auto": {"keep": 0.9}}, training={"max_steps": 2})
    with pytest.raises(DistilvecError, match=r"plan\.json: the student .* chosen for something else"):
        settle_student(more, resume=True)


def test_auto_has_to_be_chosen_before_anything_is_made_of_it(
    tmp_path: Path, tiny_bert: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from distilvec.choosing.dry_run import plan

    recipe = recipe_for(tmp_path, tiny_bert, texts)
    assert recipe.student.auto is not None and recipe.student.auto.keep is None
    with pytest.raises(DistilvecError, match=r"^student\.auto: .*`distilvec plan RECIPE`"):
        plan(recipe)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DistilvecError, match=r"^student\.auto: 2 processes .*`distilvec plan RECIPE`"):
        settle_student(recipe)


def test_candidates_that_the_method_cannot_train_are_left_out(
    tmp_path: Path, tiny_bert: Path, texts: list[str]
) -> None:
    recipe = recipe_for(tmp_path, tiny_bert, texts, method={"name": "talas", "anchored_layers": 2})
    found = choose(recipe, sample=100, layers=[1, 2])
    names = [each.name for each in found.rows]
    assert "2 layers, all pieces" in names and "1 layer, all pieces" not in names
    assert any(note.startswith("1 layer, all pieces: left out") for note in found.notes)


def test_from_python_nothing_stays_unless_asked(
    tmp_path: Path, tiny_bert: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = distilvec.choose(str(tiny_bert), texts, keep=0.9, sample=100, layers=[1])
    assert not any(tmp_path.iterdir())
    assert found.keep == 0.9 and not found.tasks and "predicted to keep" in found.verdict()
    student = Recipe.build({"corpus": {"path": "x"}, "teachers": [{"model": "y"}], "student": found.best.section})
    assert student.student.auto is None


def test_the_teachers_own_search_can_be_the_task(tmp_path: Path, tiny_bert: Path, texts: list[str]) -> None:
    rows = [{"text": text} for text in texts[:40]]
    task = {"name": "search", "kind": "neighbours", "corpus": rows}
    found = choose(recipe_for(tmp_path, tiny_bert, texts, judging={"tasks": [task]}), sample=100, layers=[1])
    assert found.measures == ["retrieval"] and found.tasks == ["search"]


@pytest.mark.parametrize(
    ("options", "told"),
    [({"keep": 0.0}, r"keep is 0\.?0?,"), ({"keep": 95}, "keep is 95,"), ({"sample": 10}, r"sample of 10\b.*\b100")],
)
def test_values_out_of_range_are_refused(
    tmp_path: Path, tiny_bert: Path, texts: list[str], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(DistilvecError, match=f"^plan: .*{told}"):
        choose(recipe_for(tmp_path, tiny_bert, texts), **options)


def test_images_are_refused_before_anything_is_encoded(tmp_path: Path, tiny_bert: Path) -> None:
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    for number in range(3):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"pictures/{number}.png")
    recipe = recipe_for(tmp_path, tiny_bert, [], corpus={"path": str(tmp_path / "pictures")})
    with pytest.raises(DistilvecError, match=r"^plan: .*\bimages\b.*docs/images\.md"):
        choose(recipe)
    assert not (tmp_path / "out/stores").exists()
