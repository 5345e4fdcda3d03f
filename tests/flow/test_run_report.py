"""What the report and the card of a whole run say."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.functions import CountingFunction
from tests.jobs import Job, tiny_recipe

import distilvec
from distilvec.flow.judge import choice_notes
from distilvec.flow.run import run, train
from distilvec.judging import ON_INDEX, CachedEncoder, Encode, JudgingTask, RetrievalTask, Score
from distilvec.recipe import Recipe
from distilvec.report import Record
from distilvec.students import load_student
from distilvec.teachers import load_teacher


def test_speed_of_a_vectors_file_is_not_reported(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    texts = sorted(set(sentences))
    vectors = np.random.default_rng(0).standard_normal((len(texts), 8)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    (tmp_path / "t.txt").write_text("\n".join(texts))
    teachers = [{"name": "elsewhere", "vectors": str(tmp_path / "v.npy"), "texts": str(tmp_path / "t.txt")}]
    run(tiny_recipe(tmp_path, tiny_bert, texts, teachers=teachers, judging={"speed": True}))
    rows = {row.role: row for row in Record.load(tmp_path / "out")["scores"].models}
    assert rows["student"].texts_per_second and rows["teacher"].texts_per_second is None


def test_card_written_by_train_has_the_shipped_dimensions(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = CountingFunction()
    given = tiny_recipe(
        tmp_path,
        tiny_bert,
        sentences[:60],
        teachers=[{"name": "own", "call": own.embed}],
        method={"name": "leaf"},
    )
    folder = train(given)
    told = [line for line in (folder / "README.md").read_text().splitlines() if "dimensions |" in line]
    assert load_student(folder).get_embedding_dimension() == 4 and told
    assert all(line.replace(" ", "").startswith("|dimensions|4|") for line in told), told


def test_untrained_student_is_reported_without_the_map(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    """Not what ships, which has a map into the teacher's space."""
    own = CountingFunction()
    teachers = [{"name": "own", "call": own.embed}]
    found = run(
        tiny_recipe(
            tmp_path, tiny_bert, sentences[:120], teachers=teachers, method={"name": "leaf"}, judging={"speed": True}
        )
    )
    rows = {row.role: row for row in found.record["scores"].models}
    before = load_student(tiny_bert)
    assert found.record["lineage"].student.width == 4
    assert rows["untrained"].parameters == sum(each.numel() for each in before.parameters())
    assert rows["untrained"].parameters is not None and rows["student"].parameters is not None
    assert rows["untrained"].parameters < rows["student"].parameters
    assert rows["untrained"].texts_per_second is None and rows["student"].texts_per_second


def test_searches_on_the_teacher_s_index_have_a_row(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    pairs = [{"query": one, "document": other} for one, other in zip(sentences[100:140], sentences[140:180])]
    judging = {"speed": False, "tasks": [{"name": "search", "kind": "retrieval", "test": pairs}]}
    teachers = [{"name": "tiny", "model": str(tiny_bert), "dtype": "float32"}]
    how: dict[str, Any] = {"method": {"name": "leaf"}, "judging": judging, "teachers": teachers}
    found = run(tiny_recipe(tmp_path, tiny_bert, sentences[:90], **how))
    rows = {row.name: row for row in found.record["scores"].models}
    task = RetrievalTask.from_pairs("search", *zip(*((pair["query"], pair["document"]) for pair in pairs), strict=True))
    student, teacher = load_student(tmp_path / "out/student"), load_teacher(model=str(tiny_bert), dtype="float32")
    vectors = {"query": student.encode(task.queries), "document": teacher.encode(task.documents)}
    both = SimpleNamespace(
        encode=None, encode_query=lambda _: vectors["query"], encode_document=lambda _: vectors["document"]
    )
    score = task.score(CachedEncoder(both))
    assert rows[ON_INDEX].scores["search"].value == pytest.approx(score.value, abs=0.03)  # stored in float16
    assert ON_INDEX in (tmp_path / "out/report.md").read_text()


def test_missing_table_of_compressed_forms_is_explained(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
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


def test_report_notes_the_test_items_used_in_choosing(tmp_path: Path, tiny_bert: Path) -> None:
    cut = {"shrink": {"of": "somebody/model", "layers": 1}}
    pinned = Job(tiny_recipe(tmp_path, tiny_bert, ["a"], student={**cut, "revision": "0" * 40}))  # as a run writes it
    row = {"name": "one layer", "section": cut}
    birds = [RetrievalTask.from_pairs("birds", ["tit", "jay"], ["a small bird", "a blue bird"])]
    pinned.output.mkdir()
    (pinned.output / "plan.json").write_text(json.dumps({"rows": [row], "chosen": row["name"], "tasks": ["birds"]}))
    assert "with the test items of birds in view" in " ".join(choice_notes(pinned.recipe, pinned.output, birds))
    other = Job(tiny_recipe(tmp_path, tiny_bert, ["a"], student={"shrink": {"of": "somebody/model", "layers": 2}}))
    assert choice_notes(other.recipe, other.output, birds) == []


def test_a_teacher_is_timed_with_its_prompt(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its student, too, is timed with the prompt that it takes over."""
    read: list[np.ndarray] = []
    monkeypatch.setattr("distilvec.judging.verdict.speed", lambda model, *_, **__: read.append(model.encode("a")) or {})
    teachers = [{"name": "tiny", "model": str(tiny_bert), "prompt": "search for: "}]
    run(tiny_recipe(tmp_path, tiny_bert, sentences[:120], teachers=teachers, judging={"speed": True}))
    np.testing.assert_allclose(read[0], load_student(tiny_bert).encode("search for: a"), atol=1e-5)


class SearchOfMteb(JudgingTask):
    kind = "mteb"

    def test_items(self) -> list[tuple[str, ...]]:
        return []

    def score(self, encode: Encode) -> Score:
        return Score(self.name, "retrieval", "ndcg_at_10", 0.5, None, 0)


def test_searches_on_the_index_have_no_row_if_the_average_is_over_others(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = RetrievalTask.from_pairs("search", sentences[100:140], sentences[140:180])
    monkeypatch.setattr("distilvec.flow.run.named_tasks", lambda _: [own, SearchOfMteb("elsewhere")])
    found = run(tiny_recipe(tmp_path, tiny_bert, sentences[:90], method={"name": "leaf"}))
    rows = {row.name: row for row in found.record["scores"].models}
    assert set(rows["student"].scores) == {"search", "elsewhere"} and ON_INDEX not in rows
