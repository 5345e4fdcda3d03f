"""What a reading of the whole with fresh eyes has found, each once seen to fail."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.cli.main import _keeps_nothing
from distilvec.corpus import content_keys, read_corpus
from distilvec.errors import DataError, DistilvecError
from distilvec.flow.job import Job
from distilvec.judging.probes import ClassificationTask
from distilvec.judging.spec import TaskSpec
from distilvec.judging.talas_sets import talas_spec
from distilvec.judging.verdict import judge_run
from distilvec.recipe import Recipe
from distilvec.recipe.sections import SharpnessSection
from distilvec.sealing import refuse_unlisted, seal
from distilvec.store import SignalStore, fill
from distilvec.store.axes import settle_axes
from distilvec.store.layout import add_signal
from distilvec.students import load_student, ship, shrink
from distilvec.teachers.signals import Wanted
from distilvec.teachers.vector_files import read_vectors
from distilvec.teachers.vectors import VectorsTeacher

WIDTH = 6


class Constant:
    """A student that has collapsed."""

    def encode(self, texts: list[str], **_: object) -> np.ndarray:
        return np.ones((len(texts), WIDTH), np.float32)


@pytest.mark.parametrize("with_agreement", [True, False])
def test_collapse_is_seen_without_agreement(with_agreement: bool) -> None:
    texts = [f"text {number}" for number in range(40)]
    vectors = np.random.default_rng(0).normal(size=(40, WIDTH)).astype(np.float32)
    models = {"student": Constant(), "untrained student": Constant()}
    verdict = judge_run(models, [], texts, vectors, teacher="teacher", with_agreement=with_agreement, with_speed=False)
    assert any("collapsed" in alarm for alarm in verdict.alarms)
    assert bool(verdict.agreement) == with_agreement


def test_validation_rows_that_nothing_is_chosen_on_are_told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    rows = (["a", "b", "c", "d"], ["x", "y", "x", "y"])
    with caplog.at_level(logging.WARNING):
        ClassificationTask("t", rows, rows, rows, protocol="tuned")
        assert "validation" not in caplog.text
        ClassificationTask("t", rows, rows, rows)
    assert 'task t: nothing is chosen on its validation rows; `protocol: "tuned"`' in caplog.text
    for split in ("train", "validation", "test"):
        (tmp_path / f"banking77.{split}.jsonl.gz").touch()
    assert "validation" not in talas_spec("banking77", tmp_path)
    assert "validation" in talas_spec("banking77", tmp_path, protocol="tuned")


@pytest.mark.parametrize(
    ("command", "nothing"),
    [
        ("evaluate m -t x", True),
        ("evaluate m -t x --results=there", False),
        ("--debug export m", True),
        ("plan --teacher a --corpus b", True),
        ("plan --teacher a --corpus b -o there", False),
        ("plan recipe.yaml", False),
        ("run recipe.yaml", False),
    ],
)
def test_an_interrupted_command_says_whether_it_kept_something(command: str, nothing: bool) -> None:
    assert _keeps_nothing(command.split()) == nothing


def test_scores_go_to_the_home_folder(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    rows = [{"text1": f"one {n}", "text2": f"two {n % 3}", "score": float(n)} for n in range(8)]
    task = {"name": "t", "kind": "similarity", "test": rows}
    distilvec.evaluate(str(tiny_bert), task, "~/scores.json")
    assert (tmp_path / "home/scores.json").is_file() and not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"kind": "perceptron", "log": True}, "target: classification does not read log"),
        ({"kind": "perceptron", "target": "regression", "label": "y"}, "target: regression does not read label"),
        ({"kind": "retrieval", "text": "y"}, "not text"),
    ],
)
def test_keys_of_another_target_are_refused(given: dict[str, object], told: str) -> None:
    rows = [{"query": "a", "document": "b"}]
    with pytest.raises(ValueError, match=told):
        TaskSpec.model_validate({"name": "t", "train" if given["kind"] == "perceptron" else "test": rows, **given})


def test_a_prompt_with_a_colon_is_told_how_to_write(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "corpus: {path: a.txt}\nteachers: [{name: t, model: m}]\nstudent: {model: m}\nmethod: {name: cosine}\n"
        "output: o\n"
    )
    with pytest.raises(DistilvecError, match=r"teachers\.0\.prompt: a text belongs here.*quotation marks"):
        Recipe.load(recipe, ["teachers.0.prompt=query: "])
    assert Recipe.load(recipe, ['teachers.0.prompt="query: "']).teachers[0].prompt == "query: "


def test_domains_are_disams() -> None:
    with pytest.raises(ValueError, match="asam does not compare domains"):
        SharpnessSection(kind="asam", domains=0.5)
    assert SharpnessSection(kind="disam", domains=0.5).domains == 0.5


def test_an_export_replaces_what_its_list_names_alone(tmp_path: Path) -> None:
    place = tmp_path / "export"
    place.mkdir()
    (place / "model.onnx").touch()
    seal(place, "export")
    refuse_unlisted(place, ["model.onnx", "README.md"], "export")
    (place / "README.md").write_text("mine")
    with pytest.raises(DistilvecError, match="holds README.md"):
        refuse_unlisted(place, ["model.onnx", "README.md"], "export")


def test_a_student_that_ships_over_another_keeps_what_lay_beside_it(
    tiny_bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    student = load_student(tiny_bert, device="cpu")
    for _ in range(2):
        ship(student, tmp_path / "student")
        (tmp_path / "student/README.md").touch()
        assert [file.name for file in tmp_path.iterdir()] == ["student"], "nothing but a student: it is replaced"
    (tmp_path / "student/onnx").mkdir()
    (tmp_path / "student/onnx/model.onnx").write_text("mine")
    ship(student, tmp_path / "student")
    assert (tmp_path / "student.before-1/onnx/model.onnx").read_text() == "mine" and "before-1" in caplog.text
    SentenceTransformer(str(tmp_path / "student"), device="cpu")


def test_a_vectors_file_is_known_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "index.parquet").mkdir()
    np.save(tmp_path / "index.parquet/vectors.npy", np.eye(3, dtype=np.float32))
    vectors, texts = read_vectors(tmp_path / "index.parquet/vectors.npy", ["a", "b", "c"])
    assert vectors.shape == (3, 3) and len(texts) == 3


def test_too_few_texts_for_narrower_blocks(tiny_bert: Path) -> None:
    with pytest.raises(DistilvecError, match="^width: 6 texts are too few"):
        shrink(load_student(tiny_bert, device="cpu"), embedding=12, width=24, texts=["some text of ours"] * 6)


def test_a_report_without_the_table_of_forms_says_why(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:60]))
    recipe = {
        "corpus": {"path": str(tmp_path / "texts.txt"), "holdout": 0.05},
        "teachers": [{"name": "t", "model": str(tiny_bert)}],
        "student": {"model": str(tiny_bert)},
        "method": {"name": "cosine"},
        "training": {"max_steps": 1, "batch_size": 8, "use_cpu": True},
        "judging": {"compression": True, "speed": False},
        "output": str(tmp_path / "out"),
    }
    distilvec.run(Recipe.build(recipe))
    notes = json.loads((tmp_path / "out/report.json").read_text())["sections"]["notes"]["lines"]
    assert any("No table of compressed forms" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("list.jsonl", b'["a", "b", "c"]', r"one list is a \.json\."),
        ("spread.jsonl", b'[\n {\n  "text": "a"\n }\n]', r"one list is a \.json\."),
        ("old.txt", "Grüße\nBäume".encode("cp1252"), r"iconv -f windows-1252"),
        ("empty.txt", b"", r"0 rows read.*right file"),
        ("semicolons.csv", b"id;text\n1;a, b\n2;c, d\n", r"commas separate fields"),
    ],
)
def test_a_corpus_of_which_nothing_can_be_used_says_what_to_do(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DistilvecError, match=told):
        read_corpus(tmp_path / name, tmp_path / "cache")


@pytest.mark.parametrize(
    ("first", "kind"), [('{"text": "a"}', ".jsonl"), ("id,text,label", ".csv"), ("Dear, all", ""), ("a text", "")]
)
def test_texts_that_look_like_a_table_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str, kind: str
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join([first, *(f"{number},b,c" for number in range(30))]))
    read_corpus(tmp_path / "texts.txt", tmp_path / "cache", holdout=0.0)
    assert ("looks like" in caplog.text) == bool(kind) and kind in caplog.text


def combined(place: Path, storages: tuple[str, str] = ("float32", "float32")) -> tuple[np.ndarray, str]:
    """Stored vectors of the two teachers beside `place`, and how they are stored."""
    names = zip("ab", storages, strict=True)
    recipe = {
        "corpus": {"path": str(place / "texts.txt")},
        "teachers": [
            {"name": n, "vectors": str(place / f"{n}.npy"), "texts": str(place / "texts.txt"), "storage": s}
            for n, s in names
        ],
        "combine": "concatenate",
        "output": str(place / "out"),
    }
    store = Job(Recipe.build(recipe)).teach(vectors_only=True)[0].store
    return store.read(store.rows(content_keys(TEXTS))), store.dtype


TEXTS = [f"sentence number {number} of many" for number in range(60)]


def test_combined_vectors_follow_a_store_that_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    for seed, name in enumerate("ab"):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(seed).normal(size=(60, 8)).astype(np.float32))
    coarse, dtype = combined(tmp_path, ("float32", "int8"))
    assert dtype == "float32", "the finest of what the teachers ask for"
    shutil.rmtree(tmp_path / "out/stores/b")
    fine, _ = combined(tmp_path)
    halves = [np.load(tmp_path / f"{name}.npy") for name in "ab"]
    units = [half / np.linalg.norm(half, axis=1, keepdims=True) for half in halves]
    expected = np.sqrt(0.5) * np.concatenate(units, axis=1)
    assert np.abs(coarse - expected).max() > 1e-4 and np.abs(fine - expected).max() < 1e-6
    before = {folder.name for folder in (tmp_path / "out/stores").iterdir()}
    combined(tmp_path)
    assert {folder.name for folder in (tmp_path / "out/stores").iterdir()} == before, "nothing has changed"


def test_axes_are_not_fitted_for_a_store_of_whole_states(tmp_path: Path) -> None:
    class Teacher:
        hidden = 32

    SignalStore.create(tmp_path, {"fingerprint": "1111"}, 4)
    add_signal(tmp_path, "tokens-3", 32, "float16")
    with pytest.raises(DistilvecError, match="layer 3 whole"):
        settle_axes(tmp_path, Teacher(), ["a text"], Wanted(tokens=(3,), axes=8))
    assert not list(tmp_path.glob("axes-*"))


def test_an_item_with_two_vectors_is_told(caplog: pytest.LogCaptureFixture) -> None:
    teacher = VectorsTeacher(np.eye(3, dtype=np.float32), texts=["shoes", "shoes", "hat"], name="index")
    assert "1 rows have an item that comes before" in caplog.text
    assert teacher.encode(["shoes"]).tolist() == [[1, 0, 0]]
    caplog.clear()
    VectorsTeacher(np.ones((3, 3), np.float32), texts=["shoes", "shoes", "hat"], name="index")
    assert not caplog.text


def test_whole_numbers_with_a_gap_are_domains_and_roles(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "domain": d, "role": r} for n, d, r in zip("abc", (0.0, 1.0, None), (0.0, 1.0, 0.0))]
    corpus = read_corpus(rows, tmp_path, domain="domain", role="role", holdout=0.0)
    assert corpus.domain_names == ["0", "1"] and corpus.audit.rejected == {"missing domain": 1}


def test_a_vector_that_float16_cannot_hold_names_its_text(tmp_path: Path) -> None:
    vectors = np.ones((3, 4), np.float32)
    vectors[1] = 4e5
    teacher = VectorsTeacher(vectors, texts=["a", "the long one", "c"], name="index")
    store = SignalStore.create(tmp_path, teacher.card, 4, "float16")
    with pytest.raises(DataError, match="the text 'the long one' has a value of 4e\\+05.*float32"):
        fill(store, teacher, ["a", "the long one", "c"], content_keys(["a", "the long one", "c"]))


def test_a_data_set_with_a_missing_text_is_told(tmp_path: Path) -> None:
    store = SignalStore.from_vectors(tmp_path, {"fingerprint": "1"}, content_keys(["a"]), np.ones((1, 3), np.float32))
    with pytest.raises(DataError, match="row 1 of the dataset"):
        store.attach(Dataset.from_dict({"text": ["a", None]}))


def test_a_quote_too_many_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = ["id,text", '0,"open', *(f"{number},row {number}" for number in range(20)), '21,end"', "22,last"]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    assert len(read_corpus(tmp_path / "rows.csv", tmp_path / "cache", holdout=0.0)) == 2
    assert "line 2" in caplog.text and "is a quote too many?" in caplog.text
    caplog.clear()
    letter = '0,"Dear all,\nthis is one text\nof several lines\nwith no row\nin it"\n1,another\n'
    (tmp_path / "rows.csv").write_text("id,text\n" + letter)
    assert (
        len(read_corpus(tmp_path / "rows.csv", tmp_path / "more", holdout=0.0)) == 2 and "is a quote" not in caplog.text
    )


def test_old_line_ends_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "old.txt").write_bytes(b"one line\rtwo line\rthree line\r")
    read_corpus(tmp_path / "old.txt", tmp_path / "cache", holdout=0.0)
    assert "carriage returns within a line" in caplog.text
