"""What the report's sections say of what is in the record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.example import example
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from distilvec.report import ModelRow, Record, ScoreDifference, ScoreEntry
from distilvec.report.blocks import Bullets
from distilvec.report.render.markdown import render_markdown
from distilvec.report.sections.layers import pooled_blocks
from distilvec.report.sections.slices import remedies
from distilvec.report.sections.tokenisation import _pieces
from distilvec.report.summary import verdict
from distilvec.students import load_student


def test_kinds_of_texts_that_are_behind_come_with_what_helps() -> None:
    record = example()
    page = render_markdown(record)
    assert "texts cut into other pieces than the teacher's | 21.3 % | 60.1 % | 57.0 % to 63.2 % | 70.9 %" in page
    assert "below the others" in page and "a larger student.shrink.vocabulary" in page
    assert "by more than chance" not in page


def test_where_no_kind_is_behind_it_says_so_and_advises_nothing() -> None:
    even = [replace(each, behind=False) for each in example()["slices"].slices]
    page = render_markdown(example(slices={"slices": even, "remedies": remedies(even, {})}))
    assert "No kind of texts is below the others by more than chance." in page
    shown = page.split("Where they differ most")[0].split("Which texts it knows")[1]
    assert "vocabulary" not in shown and "|  |" not in shown, "there is no empty column"


@pytest.mark.parametrize(
    ("student", "advice"),
    [
        ({"shrink": {"of": "teacher", "vocabulary": 5000}}, "a larger student.shrink.vocabulary."),
        (
            {"shrink": {"of": "teacher", "vocabulary": 5000, "embedding": 64}},
            "a larger student.shrink.vocabulary, at a lower rank of the table.",
        ),
        ({"static": {"of": "teacher", "vocabulary": 5000}}, "a larger student.static.vocabulary."),
        ({"model": "somebody/small"}, "a student with a larger vocabulary."),
    ],
)
def test_advice_names_keys_that_the_recipe_has(student: dict[str, Any], advice: str) -> None:
    assert remedies(example()["slices"].slices, student) == [f"Other pieces than the teacher's: {advice}"]


def test_being_worse_than_a_second_teacher_is_not_an_alarm() -> None:
    scores = example()["scores"]
    scores.models.insert(1, scores.models[0].model_copy(update={"name": "another teacher"}))
    scores.comparisons = [ScoreDifference(a="student", b="another teacher", value=-0.1, low=-0.2, high=-0.05)]
    (said,) = [each for each in scores.blocks() if isinstance(each, Bullets)]
    assert list(said.tones) == [""]


def test_the_first_sentence_without_a_teachers_scores() -> None:
    record = example()
    record["scores"].models = [row for row in record["scores"].models if row.role != "teacher"]
    assert verdict(record).startswith("The student reaches an average over 9 tasks of ")


def test_neighbours_are_reported_with_untrained_student_and_free_baseline() -> None:
    """The only scores where the corpus allows no task."""
    record = example(scores={"comparisons": []})
    scores = record["scores"]
    for row in scores.models:
        row.scores, row.averages = {}, {}
    assert "neighbours" not in render_markdown(record).split("How far it agrees")[0]
    for row, value in zip(scores.models, (1.0, 0.41, 0.52, 0.687), strict=True):
        row.averages = {"neighbours": ScoreEntry(value=value, low=value - 0.01, high=value + 0.01)}
    scores.comparisons = [
        ScoreDifference(a="student", b="free baseline", group="neighbours", value=-0.01, low=-0.02, high=-0.005)
    ]
    page = render_markdown(record)
    assert "The student finds 68.7 % of the teacher's nearest neighbours among held-out texts (95 % interval" in page
    assert "On the teacher's nearest neighbours, student is worse than free baseline (−1.0 points" in page
    assert "| free baseline | 52.0" in page and "the teacher's ten nearest among the held-out texts" in page


def test_a_teacher_that_is_its_own_measure_is_not_compared_and_not_divided_by() -> None:
    """On a task of kind neighbours the teacher has 100 by definition: the score is the percentage."""

    def row(name: str, role: str, value: float) -> ModelRow:
        score = ScoreEntry(metric="ndcg@10", value=value, low=max(0, value - 0.01), high=value, kind="neighbours")
        return ModelRow(name=name, role=role, scores={"search": score})

    record = Record(title="x", sections={"scores": {"models": [row("t", "teacher", 1.0), row("s", "student", 0.278)]}})
    assert record["scores"].main_grid().header == ["model", "retrieval"]
    assert verdict(record) == "The student reaches a retrieval score of 27.8 (95 % interval 26.8–27.8)."
    other = Record(title="x", sections={"scores": {"models": [row("t", "teacher", 0.9), row("s", "student", 0.45)]}})
    assert verdict(other).endswith("(45.0 of 90.0, 95 % interval of the 45.0: 44.0–45.0).")
    assert other["scores"].main_grid().header == ["model", "retrieval", "kept"], "another model's search is the measure"


def test_layers_are_read_with_prompts_and_pairs(tiny_bert: Path) -> None:
    model = load_student(tiny_bert, device="cpu").eval()
    texts = [f"text {number}" for number in range(4)]
    plain = pooled_blocks(model, [f"query: {text}" for text in texts])
    pair = pooled_blocks(model, ["one\x1etwo"])
    model.prompts, model.default_prompt_name = {"query": "query: "}, "query"
    prompted = pooled_blocks(model, texts)
    assert plain is not None and prompted is not None and pair is not None
    np.testing.assert_allclose(prompted, plain, atol=1e-5)
    vector = model.encode([("one", "two")], prompt="")
    pooled = load_student(tiny_bert, device="cpu").eval()
    np.testing.assert_allclose(pooled.encode([("one", "two")]), vector, atol=1e-5)
    np.testing.assert_allclose(
        pair[-1] / np.linalg.norm(pair[-1]), vector / np.linalg.norm(vector), atol=1e-4, err_msg="a pair as one"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [("don't go", 3), ("हिन्दी में लिखा", 3), ("cafe\u0301", 1), ("می\u200cشود", 1), ("東京です。", 4), ("ไปกิน", 4)],
)
def test_pieces_per_word_count_whole_words_of_other_scripts(text: str, words: int) -> None:
    """Vowel signs, accents that stand alone and joiners are within a word."""
    at_spaces = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    at_spaces.pre_tokenizer = WhitespaceSplit()
    found = _pieces("a domain", [text], (at_spaces, at_spaces), 0)
    assert found.student == found.teacher == pytest.approx(len(text.split()) / words)


@pytest.mark.parametrize(("origin", "said"), [("head", "after the trained linear head"), ("space", "lives in the")])
def test_searches_of_the_teachers_index_say_whose_vectors_they_are(origin: str, said: str) -> None:
    """A student in its own space ships without the map that these searches went through."""
    agreement = example()["agreement"]
    agreement.values["cosine_from"] = origin
    page = render_markdown(example(agreement={"values": agreement.values}))
    (line,) = [each for each in page.splitlines() if each.startswith("| on the teacher's index")]
    assert said in line and ("which ships with space: teacher only" in line) == (origin == "head")
