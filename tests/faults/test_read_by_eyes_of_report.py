"""What a reading of the report, the card and the exports has found, each once seen to fail."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from sentence_transformers import SentenceTransformer
from tests.report.example import example, teacher

import distilvec
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.flow.push import push
from distilvec.judging import GenerationTask
from distilvec.judging.writing import rouge_l
from distilvec.report.card import model_card
from distilvec.report.front_matter import front_matter
from distilvec.report.grid import Cell, Grid
from distilvec.report.plots import style
from distilvec.report.sections.lineage import forbids_commercial_use, origin
from distilvec.students import load_student
from distilvec.teachers import load_teacher

TEXTS = ["A cat sleeps.", "Water boils.", "Nobody knows why the committee met.", "Yes", "One more text of its own"]


def front(**parts: Any) -> dict[str, Any]:
    return dict(yaml.safe_load(front_matter(example(**parts)).split("---\n")[1]))


def cut(source: Path, folder: Path, size: int) -> Path:
    model = SentenceTransformer(str(source), device="cpu", truncate_dim=size)
    model.save_pretrained(str(folder))
    assert json.loads((folder / "config_sentence_transformers.json").read_text())["truncate_dim"] == size
    return folder


def test_a_model_that_cuts_its_vectors_is_one_everywhere(tiny_bert: Path, tmp_path: Path) -> None:
    folder = cut(tiny_bert, tmp_path / "short", 8)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert expected.shape == (5, 8)
    teacher, whole = load_teacher(model=folder, device="cpu", dtype="float32"), load_teacher(model=tiny_bert)
    assert teacher.card.width == 8 and teacher.card.fingerprint != whole.card.fingerprint
    assert np.allclose(teacher.encode(TEXTS), expected, atol=1e-6)

    student = load_student(folder, device="cpu")
    assert np.allclose(student.encode(TEXTS), expected, atol=1e-6)
    student.save_pretrained(str(tmp_path / "again"))
    plain = SentenceTransformer(str(tmp_path / "again"), device="cpu")
    assert plain.truncate_dim is None and np.allclose(plain.encode(TEXTS), expected, atol=1e-6)
    assert torch.equal(plain[-1].linear.weight, torch.eye(8, 32)), "the first numbers, as they are"


def test_it_is_exported_and_distilled_as_it_is(tiny_bert: Path, tmp_path: Path) -> None:
    from distilvec.export import export_onnx, load_onnx

    folder = cut(tiny_bert, tmp_path / "short", 8)
    export_onnx(folder, tmp_path / "onnx", quantize=False, texts=TEXTS)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert np.allclose(load_onnx(tmp_path / "onnx").encode(TEXTS), expected, atol=1e-4)
    made = distilvec.distill(
        str(tiny_bert),
        str(folder),
        {"path": [f"{text} {number}" for number in range(8) for text in TEXTS], "holdout": 0.2},
        "cosine",
        tmp_path / "out",
        training={"max_steps": 2, "batch_size": 8},
        judging={"tasks": [], "agreement": False, "speed": False},
    )
    assert (made.folder / "report.html").exists()


@pytest.mark.parametrize(
    ("answer", "other", "share"),
    [
        ("Привет, мир", "привет мир!", 1.0),
        ("Привет, мир", "мир и труд", 0.4),
        ("東京都に住む", "東京に住む", 10 / 11),
        ("नमस्ते दुनिया", "नमस्ते", 2 / 3),
        ("Größe zählt", "größe", 2 / 3),
        ("the cats sat", "The cat sat.", 1.0),
        ("👍", "👍", 1.0),
        ("no", "да", 0.0),
    ],
)
def test_answers_in_other_letters_are_compared_by_their_words(answer: str, other: str, share: float) -> None:
    assert rouge_l([answer], [other])[0] == pytest.approx(share, abs=1e-6)


def test_english_answers_are_scored_as_by_rouge_score() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    pairs = [
        ("It's the U.S. Open, isn't it?", "the us open is it"),
        ("snake_case names running", "snake case named runs"),
        ("A 3.5 % rise", "3 5 rising"),
    ]
    plain = RougeScorer(["rougeL"], use_stemmer=True)
    assert rouge_l(*zip(*pairs, strict=True)).tolist() == pytest.approx(
        [plain.score(*pair)["rougeL"].fmeasure for pair in pairs]
    )


def test_what_measures_answers_is_missed_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rouge_score" else found(name))
    with pytest.raises(EnvironmentProblem, match="rouge-score"):
        GenerationTask("mine", ["a"], ["b"])


def test_a_student_made_of_another_model_has_no_licence_but_that_models(tmp_path: Path) -> None:
    empty = {"model": None, "shrink": None, "static": None, "fresh": None, "revision": None}
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    bound = {"licence": "cc-by-nc-4.0", "derived": True}
    assert origin({**empty, "model": str(folder)}, {"t": None}) == bound
    assert origin({**empty, "shrink": {"of": str(folder)}}, {"t": None}) == bound
    assert origin({**empty, "static": {"of": "t"}}, {"t": None}) == {} == origin(empty, {"t": None}), (
        "the teacher says it"
    )
    assert origin({**empty, "fresh": {"embeddings_from": str(folder)}}, {"t": None}) == bound
    unknown = origin({**empty, "model": "nobody/has-this-model-here"}, {"t": None})
    assert unknown == {"base": "nobody/has-this-model-here", "licence": None, "derived": True}
    taught = {"lineage": {"teachers": [teacher("t", licence="mit")], "student": {"provenance": "x", **unknown}}}
    assert "license" not in front(**taught)
    assert "licence of the model that this student was trained from is not known" in model_card(example(**taught))


def test_the_base_of_a_card_is_a_model_without_its_revision() -> None:
    empty = {"shrink": None, "static": None, "fresh": None, "revision": None}
    assert origin({**empty, "model": "nobody/has-this-model-here@main"}, {})["base"] == "nobody/has-this-model-here"


def test_the_base_of_a_student_that_was_cut_is_its_teacher(tmp_path: Path) -> None:
    cut = {"model": None, "shrink": {"of": "t", "layers": 2}, "static": None, "fresh": None, "revision": None}
    assert origin(cut, {"t": "somebody/large@v1", "u": "somebody/other"}) == {"base": "somebody/large"}
    assert origin(cut, {"t": str(tmp_path)}) == {}, "a place on a disk is nobody's base"
    assert origin(cut, {"t": None}) == {}, "nor has a function one"


@pytest.mark.parametrize(
    ("licence", "bound"),
    [
        ("apple-amlr", True),
        ("https://creativecommons.org/licenses/by-nc/4.0/", True),
        ("Research only", True),
        ("Academic Free License v3.0", False),
        ("ncsa", False),
    ],
)
def test_which_licences_forbid_commercial_use(licence: str, bound: bool) -> None:
    assert forbids_commercial_use(licence) is bound


def test_the_licence_of_a_model_of_the_hub_is_read_where_it_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    asked = []

    def kept(name: str, file: str, revision: str | None = None) -> str:
        asked.append((name, file, revision))
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", kept)
    parts = {"model": "me/small@v2", "shrink": None, "static": None, "fresh": None, "revision": None}
    assert origin(parts, {})["licence"] == "mit" and asked == [("me/small", "README.md", "v2")]


@pytest.mark.parametrize(("names", "teachers", "lines"), [(34, 5, 5), (10, 10, 4), (3, 1, 1)])
def test_many_teachers_leave_room_for_their_scores(names: int, teachers: int, lines: int) -> None:
    record = example()
    scores = record["scores"]
    rows = {row.name: row for row in scores.models}
    first = rows["student"]
    more = [first.model_copy(update={"name": f"{n:0{names}d}", "role": "teacher"}) for n in range(teachers)]
    scores.models = [*more, *scores.models]
    with style(), warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = scores.figure()
        figure.draw_without_rendering()
        axes = figure.axes[0]
        legend = axes.get_legend()
        assert legend is not None
        box, whole = legend.get_window_extent(), figure.bbox
    assert axes.get_position().width > 0.6
    assert len({round(text.get_window_extent().y0) for text in legend.get_texts()}) == lines
    assert box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1, "all names are on the figure"


def test_a_table_for_the_terminal_has_all_of_its_numbers() -> None:
    names = [f"TaskNumber{number}Classification" for number in range(40)]
    grid = Grid(["model", *names], [[Cell("mine"), *(Cell(f"{number}.25") for number in range(40))]], [])
    text = grid.text()
    assert all(name in text for name in names) and all(f" {number}.25" in text for number in range(40))


def test_the_size_of_a_teacher_is_that_of_its_files(tiny_bert: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu").to(torch.bfloat16)
    model.save_pretrained(str(tmp_path / "half"))
    files = sum(file.stat().st_size for file in (tmp_path / "half").rglob("*.safetensors"))
    card = load_teacher(model=tmp_path / "half", device="cpu").card
    assert card.size_bytes == files and card.parameters is not None and files < 3 * card.parameters


def test_a_prompt_without_a_separator_is_shown_without_one() -> None:
    told = {"provenance": "x", "writes": True}
    for separator, shown in (("", "''"), (None, "'\\n'")):
        recipe = {"recipe": {"task": {"separator": separator}}}
        assert f'"your prompt" + {shown}' in model_card(example(lineage={"student": told}, rerun=recipe))


@pytest.mark.parametrize("name", ["https://huggingface.co/me/small", "my student", "a/b/c"])
def test_a_name_that_is_no_repositorys_is_told_as_such(name: str, tiny_bert: Path, tmp_path: Path) -> None:
    SentenceTransformer(str(tiny_bert), device="cpu").save_pretrained(str(tmp_path / "student"))
    (tmp_path / "student" / "README.md").write_text("A card.")
    with pytest.raises(DistilvecError, match="no name of a repository") as caught:
        push(tmp_path, name)
    assert not isinstance(caught.value, EnvironmentProblem)


def test_a_card_says_what_kind_of_items_its_student_reads() -> None:
    def front_of(items: str) -> dict[str, Any]:
        return front(**{name: {"items": items} for name in example().sections})

    assert front()["pipeline_tag"] == "sentence-similarity"
    image = front_of("images")
    assert image["pipeline_tag"] == "image-feature-extraction" and "sentence-similarity" not in image["tags"]
    molecule = front_of("molecules")
    assert "pipeline_tag" not in molecule and "sentence-similarity" not in molecule["tags"]


def test_written_answers_wrap(tmp_path: Path) -> None:
    css = (Path(distilvec.__file__).parent / "report" / "render" / "page.css").read_text()
    assert "table.texts td:nth-child(2) { white-space: nowrap" not in css
    assert "table.hardest td:nth-child(2) { white-space: nowrap" in css


def test_a_model_of_the_hub_is_exported_with_its_size_and_its_files(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    from distilvec.cli.measures import export_student

    SentenceTransformer(str(tiny_bert), device="cpu").save_pretrained(str(tmp_path / "small"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path / "small"))
    told = export_student("me/small", tmp_path / "onnx", quantize=False)
    assert "torch" in told and " 0 B" not in told
    assert (tmp_path / "onnx" / "modules.json").exists()
