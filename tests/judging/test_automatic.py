"""Tasks made of a corpus: which there are, and that their items are the held-out ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilvec.corpus import Corpus, read_corpus
from distilvec.corpus.keys import PAIR
from distilvec.corpus.sources import Part
from distilvec.judging import JudgingTask, automatic_tasks
from distilvec.judging.automatic import halves


@pytest.fixture(scope="module")
def texts(sentences: list[str]) -> list[str]:
    return list(dict.fromkeys(text.strip() for text in sentences))[:198]


def made(folder: Path, rows: list[dict[str, Any]], **options: Any) -> tuple[Corpus, dict[str, JudgingTask]]:
    corpus = read_corpus(rows, folder, holdout=0.4, **options)
    return corpus, {task.name: task for task in automatic_tasks(corpus)}


def held_out(corpus: Corpus) -> set[str]:
    return set(corpus.texts(corpus.holdout_rows))


def letters(texts: Any) -> np.ndarray:
    return np.array([[text.lower().count(letter) + 0.01 for letter in map(chr, range(97, 123))] for text in texts])


def test_labels_and_domains_give_probes(tmp_path: Path, texts: list[str]) -> None:
    rows = [
        {"text": t, "label": "long" if len(t) > 80 else "short", "source": "ab"[i % 2]} for i, t in enumerate(texts)
    ]
    corpus, tasks = made(tmp_path, rows, label="label", domain="source")
    assert {name: task.kind for name, task in tasks.items()} == {"label": "classification", "domain": "classification"}
    for task in tasks.values():
        tested = {text for (text,) in task.test_items()}
        assert tested == held_out(corpus)
        assert set(task.texts()) - tested == set(corpus.texts(corpus.train_rows)), "probes are fitted on training texts"
    score = tasks["label"].score(letters)
    assert score.value > 0.65, "the number of letters tells long from short"
    assert {*np.unique(score.outputs.truth)} == {0, 1}


def test_tasks_about_the_same_items_say_so(tmp_path: Path, texts: list[str]) -> None:
    rows = [{"text": t, "label": "ab"[len(t) % 2], "source": "cd"[i % 2]} for i, t in enumerate(texts)]
    _, tasks = made(tmp_path / "texts", rows, label="label", domain="source")
    assert {score.items for score in (task.score(letters) for task in tasks.values())} == {"held-out items"}
    pairs = [{"q": a, "d": b, "source": "cd"[len(a) % 2]} for a, b in zip(texts[::2], texts[1::2], strict=True)]
    _, tasks = made(tmp_path / "pairs", pairs, text=["q", "d"], domain="source")
    asked = {text for (text,) in tasks["domain"].test_items()}
    assert asked and asked <= {row["q"] for row in pairs}, "a pair is one item"


def test_halves_have_other_items_and_whole_pairs(tmp_path: Path, texts: list[str]) -> None:
    rows = [{"q": a, "d": b} for a, b in zip(texts[::2], texts[1::2], strict=True)]
    corpus, _ = made(tmp_path, rows, text=["q", "d"])
    sides = [set(half.texts(half.holdout_rows)) for half in halves(corpus)]
    assert sides[0] | sides[1] == held_out(corpus) and not sides[0] & sides[1]
    assert abs(len(sides[0]) - len(sides[1])) <= 2
    for row in rows:
        assert all((row["q"] in side) == (row["d"] in side) for side in sides)


def test_halves_share_no_text_where_texts_recur(tmp_path: Path, texts: list[str]) -> None:
    rows = [{"q": texts[i % 40], "d": texts[40 + i % 100]} for i in range(200)]
    corpus, _ = made(tmp_path, rows, text=["q", "d"])
    first, second = ([*half.texts(half.holdout_rows)] for half in halves(corpus))
    assert first and second and not set(first) & set(second)
    asked = set(texts[:40]) & held_out(corpus)
    assert {text for text in asked if text in first or text in second} == asked
    every = corpus.texts(corpus.holdout_rows)
    assert all((first + second).count(text) == every.count(text) for text in asked), "all pairs of one question"


def test_halves_share_no_text_behind_prompts_roles_and_in_joint_pairs(tmp_path: Path, texts: list[str]) -> None:
    pairs = [{"q": a, "d": b} for a, b in pairwise(texts)]
    single = [{"text": text, "role": role} for text in texts for role in ("query", "document")]
    joint = [{"a": texts[row // 4], "b": text} for row, text in enumerate(texts)]
    corpora: list[tuple[Any, dict[str, Any]]] = [
        ([Part(pairs, "p", prompt=["query: ", "passage: "])], {"text": ["q", "d"]}),
        ([Part([{"text": text} for text in texts], name, prompt=f"{name}: ") for name in "pq"], {}),
        (single, {"role": "role"}),
        (joint, {"text": ["a", "b"], "joint": True}),
    ]
    for number, (source, options) in enumerate(corpora):
        corpus = read_corpus(source, tmp_path / str(number), holdout=0.4, **options)
        one, other = (
            {text.split(PAIR)[0] for text in half.bare(np.asarray(half.holdout_rows))} for half in halves(corpus)
        )
        assert len(one) > 3 and len(other) > 3 and not one & other, (number, len(one & other))


def test_scores_give_a_regression_and_whole_numbers_classes(tmp_path: Path, texts: list[str]) -> None:
    _, tasks = made(tmp_path / "a", [{"text": t, "label": len(t) / 7} for t in texts], label="label")
    assert tasks["label"].kind == "regression" and tasks["label"].score(letters).value > 0.9
    _, tasks = made(tmp_path / "b", [{"text": t, "label": len(t) % 3} for t in texts], label="label")
    assert tasks["label"].kind == "classification"
    # As a frame spells whole numbers of which one is missing.
    rows = [{"text": t, "label": float(len(t) % 3) if i else None} for i, t in enumerate(texts)]
    _, tasks = made(tmp_path / "c", rows, label="label")
    assert tasks["label"].kind == "classification"
    _, tasks = made(tmp_path / "d", [{"text": t, "label": float(i)} for i, t in enumerate(texts)], label="label")
    assert "label" not in tasks or tasks["label"].kind == "regression"


def test_pairs_give_retrieval_on_held_out_pairs(tmp_path: Path, texts: list[str]) -> None:
    rows = [{"q": a, "d": b, "n": a[::-1]} for a, b in zip(texts[::2], texts[1::2], strict=True)]
    corpus, tasks = made(tmp_path, rows, text=["q", "d", "n"])
    task = tasks["retrieval"]
    assert list(tasks) == ["retrieval"] and task.kind == "retrieval"
    answers = {row["q"]: row["d"] for row in rows}
    queries = [text for (text,) in task.test_items()]
    assert queries and set(queries) <= held_out(corpus)
    assert set(task.texts()) == set(queries) | {answers[query] for query in queries}
    place = {text: number for number, text in enumerate(dict.fromkeys(answers.values()))}

    def perfect(asked: Any) -> np.ndarray:
        return np.array([np.eye(len(place))[place[answers.get(text, text)]] for text in asked])

    assert task.score(perfect).value == pytest.approx(1.0)


def test_pairs_with_scores_and_with_yes_or_no(tmp_path: Path, texts: list[str]) -> None:
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    graded = [{"q": a, "d": b, "label": i % 5 + 0.5} for i, (a, b) in enumerate(pairs)]
    corpus, tasks = made(tmp_path / "graded", graded, text=["q", "d"], label="label")
    assert "similarity" in tasks
    scores = {(row["q"], row["d"]): row["label"] for row in graded}
    items = tasks["similarity"].test_items()
    assert tasks["similarity"].scores.tolist() == [scores[item] for item in items]  # type: ignore[attr-defined]
    assert {text for item in items for text in item} == held_out(corpus)

    alike = [{"q": a, "d": b, "label": int(i % 4 != 0)} for i, (a, b) in enumerate(pairs)]
    _, tasks = made(tmp_path / "alike", alike, text=["q", "d"], label="label")
    assert set(tasks) == {"pairs", "retrieval"}
    right = {row["q"] for row in alike if row["label"]}
    assert {query for (query,) in tasks["retrieval"].test_items()} <= right, "only pairs that are alike have an answer"

    codes = [{"q": a, "d": b, "label": i % 3} for i, (a, b) in enumerate(pairs)]
    corpus, tasks = made(tmp_path / "codes", codes, text=["q", "d"], label="label")
    assert tasks == {}, "entailment, neutral, contradiction: no degrees"
    assert [task.name for task in automatic_tasks(corpus, "similarity")] == ["similarity"]
    stars = [{"q": a, "d": b, "label": i % 5} for i, (a, b) in enumerate(pairs)]
    corpus, tasks = made(tmp_path / "stars", stars, text=["q", "d"], label="label")
    assert "similarity" in tasks and automatic_tasks(corpus, "pairs") == []

    named = [{"q": a, "d": b, "label": "xyz"[i % 3]} for i, (a, b) in enumerate(pairs)]
    _, tasks = made(tmp_path / "named", named, text=["q", "d"], label="label")
    assert tasks == {}


def test_pairs_of_which_none_is_alike_have_no_answers(tmp_path: Path, texts: list[str]) -> None:
    pairs = [{"q": a, "d": b, "label": 0} for a, b in zip(texts[::2], texts[1::2], strict=True)]
    corpus, _ = made(tmp_path / "first", pairs, text=["q", "d"], label="label")
    held = held_out(corpus)
    rows = [{**row, "label": int(row["q"] not in held)} for row in pairs]
    assert made(tmp_path / "zeros", rows, text=["q", "d"], label="label")[1] == {}
    rows = [{**row, "label": int(row["q"] in held)} for row in pairs]
    assert set(made(tmp_path / "ones", rows, text=["q", "d"], label="label")[1]) == {"retrieval"}


def test_many_whole_numbers_give_a_regression(tmp_path: Path, texts: list[str]) -> None:
    rows = [{"text": f"{text} {turn}", "label": 1000 * turn + i} for turn in (1, 2) for i, text in enumerate(texts)]
    _, tasks = made(tmp_path, rows, label="label")
    assert tasks["label"].kind == "regression"


def test_too_little_gives_nothing(tmp_path: Path, texts: list[str]) -> None:
    assert made(tmp_path / "plain", [{"text": t} for t in texts])[1] == {}
    one = [{"text": t, "label": "same"} for t in texts]
    assert made(tmp_path / "one", one, label="label")[1] == {}
    few = [{"text": t, "label": "ab"[i % 2]} for i, t in enumerate(texts[:20])]
    assert made(tmp_path / "few", few, label="label")[1] == {}
