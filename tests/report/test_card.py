"""The model card in a student's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tests.report.example import example, teacher

from distilvec.report import ScoreEntry
from distilvec.report.card import model_card, write_card
from distilvec.report.front_matter import front_matter


def test_a_new_card_can_be_read_by_hubs(tmp_path: Path) -> None:
    text = write_card(example(), tmp_path).read_text()
    _, front, body = text.split("---\n", 2)
    data = yaml.safe_load(front)
    assert data["library_name"] == "sentence-transformers" and data["license"] == "apache-2.0"
    assert 'SentenceTransformer("path/to/this/folder")' in body
    assert "trust_remote_code" not in body
    for part in ("layers 1 and 6 of all-MiniLM-L6-v2", "9f3c1a52d07be8846a1f0c2b7d95e310", "apache-2.0", "talas"):
        assert part in body
    assert "somebody" not in body


def test_scores_are_a_model_index_that_the_hub_reads(tmp_path: Path) -> None:
    """By the hub's own reader, there and back."""
    from huggingface_hub import ModelCard

    record = example()
    student = record["scores"].model("student")
    first, *others = student.scores
    student.scores[first].dataset = "mteb/some-set"
    student.scores["mine, too"] = ScoreEntry(metric="ndcg@10", value=0.25, kind="retrieval")
    student.scores["own search"] = ScoreEntry(metric="ndcg@10", value=0.9, kind="neighbours")
    student.scores["broken"] = ScoreEntry(metric="accuracy", value=float("nan"), kind="classification")
    card = ModelCard.load(write_card(record, tmp_path))
    found = {each.dataset_name: each for each in card.data.eval_results or ()}
    assert found.keys() == {first, *others, "mine, too"}
    assert len({each.unique_identifier for each in found.values()}) == len(found)
    for name, each in found.items():
        assert each.metric_value == round(student.scores[name].value, 6)
    assert found[first].dataset_type == "mteb/some-set"
    mine = found["mine, too"]
    assert (mine.dataset_type, mine.metric_type, mine.task_type) == ("mine-too", "ndcg_at_10", "Retrieval")
    assert card.data.model_name == record.title


def test_tasks_whose_names_are_one_word_to_the_hub_stay_apart(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    record = example()
    student = record["scores"].model("student")
    names = ["情感分类", "意图", "My set", "my-set"]
    for number, name in enumerate(names):
        student.scores[name] = ScoreEntry(metric="macro_f1", value=number / 10, kind="classification")
    card = ModelCard.load(write_card(record, tmp_path))
    found = {each.dataset_name: each.metric_value for each in card.data.eval_results or ()}
    assert [found.get(name) for name in names] == [0.0, 0.1, 0.2, 0.3]


def test_data_sets_and_licences() -> None:
    def told(**parts: Any) -> dict[str, Any]:
        return dict(yaml.safe_load(front_matter(example(**parts)).split("---\n")[1]))

    def licence(*names: str | None) -> dict[str, Any]:
        found = told(lineage={"teachers": [teacher(f"t{number}", licence=name) for number, name in enumerate(names)]})
        return {key: value for key, value in found.items() if key.startswith("license")}

    assert told(corpus={"source": "hub:me/texts@en:train"})["datasets"] == ["me/texts"]
    assert "datasets" not in told(corpus={"source": "texts.jsonl"})
    assert licence("apache-2.0", "mit") == {} and licence("mit", None) == {} and licence(None) == {}
    assert licence("Apache-2.0", "apache-2.0") == {"license": "apache-2.0"}
    assert licence("Jina Research: only") == {"license": "other", "license_name": "jina-research-only"}
    assert told(lineage={"teachers": [], "student": {"provenance": "x", "licence": "mit"}})["license"] == "mit"
    bound = {
        "teachers": [teacher("t", licence="apache-2.0")],
        "student": {"provenance": "x", "licence": "cc-by-nc-4.0"},
    }
    assert "license" not in told(lineage=bound), "there are two licences"
    assert "trained from is licensed as cc-by-nc-4.0" in model_card(example(lineage=bound))


def test_writing_again_replaces_the_section_and_keeps_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("---\ntags: [mine]\n---\n\n# Mine\n\nBefore.\n")
    write_card(example(), tmp_path)
    file.write_text(file.read_text() + "\nAfter.\n")
    write_card(example(title="Second run"), tmp_path)
    text = file.read_text()
    assert text.startswith("---\ntags: [mine]\n---\n\n# Mine\n\nBefore.\n")
    assert text.rstrip().endswith("After.")
    assert text.count("<!-- distilvec:begin -->") == text.count("<!-- distilvec:end -->") == 1
    assert "Second run" in text and "TALAS: all" not in text


def test_it_says_how_a_student_with_its_own_code_and_one_in_the_teachers_space_are_used() -> None:
    student = {"provenance": "x", "remote_code": True, "space": "teacher"}
    text = model_card(example(lineage={"student": student}))
    assert "trust_remote_code=True" in text
    assert "index of the teacher's vectors" in text


def test_nothing_from_outside_becomes_markup() -> None:
    hostile = "<script>x</script> [a](javascript:b)"
    teachers = [teacher(hostile, licence=hostile, prompt=hostile)]
    text = model_card(example(title=hostile, lineage={"teachers": teachers}))
    assert "<script>" not in text and "[a](" not in text


def front(**parts: Any) -> dict[str, Any]:
    return dict(yaml.safe_load(front_matter(example(**parts)).split("---\n")[1]))


def test_card_shows_the_separator_of_prompts() -> None:
    told = {"provenance": "x", "writes": True}
    for separator, shown in (("", "''"), (None, "'\\n'")):
        recipe = {"recipe": {"task": {"separator": separator}}}
        assert f'"your prompt" + {shown}' in model_card(example(lineage={"student": told}, rerun=recipe))


def test_front_matter_depends_on_the_kind_of_items() -> None:
    def front_of(items: str) -> dict[str, Any]:
        return front(**{name: {"items": items} for name in example().sections})

    assert front()["pipeline_tag"] == "sentence-similarity"
    image = front_of("images")
    assert image["pipeline_tag"] == "image-feature-extraction" and "sentence-similarity" not in image["tags"]
    molecule = front_of("molecules")
    assert "pipeline_tag" not in molecule and "sentence-similarity" not in molecule["tags"]
