"""Students that are cross-encoders, from recipe to shipped folder, report and comparison."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from tests.english import sentences
from tests.scorers.settings import overlap
from tests.tiny_models import build_writer
from tests.training.starting import Starter

from distilvec import plain_yaml
from distilvec.choosing.dry_run import plan
from distilvec.corpus import read_corpus
from distilvec.errors import DistilvecError
from distilvec.flow.compare import compare
from distilvec.flow.prepare import require
from distilvec.flow.run import Run, run
from distilvec.judging import RetrievalTask
from distilvec.judging.reranking import RerankingTask, as_found
from distilvec.kinds.ranking.running import MOST_QUERIES, held_out_task
from distilvec.kinds.ranking.students import load_ranker
from distilvec.modules.ranker import as_cross_encoder
from distilvec.recipe import Recipe
from distilvec.report import Record
from distilvec.scorers.base import score_pairs
from distilvec.scorers.load import load_scorer
from distilvec.training.checkpoint import newest_checkpoint

QUERIES = 80
ALIKE = [{"text1": "a", "text2": "b", "label": 1}, {"text1": "c", "text2": "d", "label": 0}]
PAIRS = [("what is rain", "water that falls"), ("who sings", "birds do " * 90), ("a", "b")]  # one is too long


def rows() -> list[dict[str, Any]]:
    """Queries with an answer and two negatives, of which every fifth lacks the second; all texts differ."""
    words = sorted({word for each in sentences() for word in each.lower().split() if word.isalpha() and len(word) > 3})
    draw = np.random.default_rng(0)
    texts = [" ".join(draw.choice(words, 8, replace=False)) for _ in range(3 * QUERIES)]
    return [
        {
            "q": " ".join(texts[at].split()[:3]),
            "d": texts[at],
            "n1": texts[at + QUERIES],
            "n2": None if at % 5 == 0 else texts[at + 2 * QUERIES],
        }
        for at in range(QUERIES)
    ]


def recipe(place: Path, tiny: Path, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "corpus": {"path": rows(), "text": ["q", "d", "n1", "n2"], "holdout": 0.4},
        "scorers": [{"name": "words", "call": overlap}],
        "student": {"model": str(tiny), "cross_encoder": True, "max_length": 48},
        "training": {"epochs": 2, "batch_size": 8, "use_cpu": True},
        "optimizer": {"lr": 3e-3},
        "output": str(place / "out"),
    }
    for key, values in changes.items():
        made[key] = {**made[key], **values} if isinstance(values, dict) and key in made else values
    return made


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Run:
    made = recipe(tmp_path_factory.mktemp("ranking"), tiny_bert, training={"epochs": 8})
    return run(Recipe.build(made | {"scorers": [{"name": "words", "call": early}]}))


def early(pairs: list[tuple[str, str]]) -> list[float]:
    """A number of the document that a student of a few steps can learn: how many words begin with early letters."""
    return [(sum(word[0] < "m" for word in document.split()) - 4) / 2 for _, document in pairs]


def test_the_student_learns_the_order_of_the_scorer(done: Run, tiny_bert: Path) -> None:
    pairs = [(row["q"], row[key]) for row in rows() for key in ("d", "n1")]
    untrained = as_cross_encoder(load_ranker(tiny_bert))
    said = [spearmanr(early(pairs), model.predict(pairs)).statistic for model in (untrained, done.student)]  # type: ignore[operator]
    assert said[1] > max(0.35, said[0] + 0.2)


LOADING = """
import json, sys
from sentence_transformers import CrossEncoder
model = CrossEncoder(sys.argv[1], device="cpu")
print(model.predict(json.loads(sys.argv[2])).tolist())
"""


def test_the_shipped_folder_loads_as_a_cross_encoder_without_distilvec(
    start: Starter, done: Run, tmp_path: Path
) -> None:
    folder = str(done.folder / "student")
    told = json.loads(start.elsewhere(LOADING, folder, json.dumps(PAIRS), place=tmp_path).splitlines()[-1])
    np.testing.assert_allclose(told, done.student.predict(PAIRS), atol=1e-5)  # type: ignore[operator]
    np.testing.assert_allclose(told, score_pairs(load_scorer(model=folder, device="cpu"), PAIRS), atol=1e-5)


def test_what_ships_is_what_was_trained(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distilvec.kinds.ranking import students

    trained: list[Any] = []
    monkeypatch.setattr(
        students, "as_cross_encoder", lambda student: trained.append(student) or as_cross_encoder(student)
    )
    done = run(
        Recipe.build(
            recipe(tmp_path, tiny_bert, training={"max_steps": 2, "mini_batch_size": 5}, judging={"agreement": False})
        )
    )
    features = trained[0].preprocess(PAIRS)
    with torch.no_grad():
        numbers = trained[0].eval()(features)["sentence_embedding"][:, 0]
    np.testing.assert_allclose(numbers, done.student.predict(PAIRS), atol=1e-5)  # type: ignore[operator]
    transformers = json.loads((done.folder / "student" / "config.json").read_text())
    assert transformers["architectures"] == ["BertForSequenceClassification"]
    assert transformers["sentence_transformers"]["activation_fn"].endswith("Identity")  # for versions 4 and 5


def test_the_report_compares_with_the_search_and_the_scorer(done: Run) -> None:
    record = Record.load(done.folder)
    found = {each.model: each for each in record["reranking"].scores}
    assert found.keys() == {"words", "BM25 alone", "untrained student", "student"}
    assert found["student"].ndcg.low < found["student"].ndcg.value < found["student"].ndcg.high
    assert found["student"].mrr.low < found["student"].mrr.value < found["student"].mrr.high
    assert [row.name for row in record["scores"].models if row.role == "teacher"] == ["words"]
    compared = {(each.a, each.b) for each in record["scores"].comparisons}
    assert ("student", "BM25 alone") in compared and ("student", "words") in compared
    report, page, card = (
        (done.folder / name).read_text() for name in ("report.md", "report.html", "student/README.md")
    )
    for text in (report, page):
        assert "MRR@10" in text and "first 50 documents that BM25 finds" in text
        assert "mean cosine" not in text and "nearest neighbours" not in text
    assert "CrossEncoder(" in card and "pipeline_tag: text-ranking" in card and "SentenceTransformer(" not in card


def test_documents_alone_are_read_and_padding_does_not_matter(tiny_bert: Path) -> None:
    student = load_ranker(tiny_bert).eval()
    features = student.preprocess(PAIRS)
    with torch.no_grad():
        every = student(dict(features))["sentence_embedding"]
        some = student({**features, "asked": torch.tensor([True, False, True])})["sentence_embedding"]
        alone = student(student.preprocess(PAIRS[2:]))["sentence_embedding"]
    assert every.shape == (3, 1) and not some[1].any()
    torch.testing.assert_close(some[[0, 2]], every[[0, 2]])
    torch.testing.assert_close(alone, every[2:], rtol=1e-4, atol=1e-6)


def test_a_student_is_cut_out_of_a_cross_encoder_with_its_head(done: Run, tmp_path: Path) -> None:
    folder = str(done.folder / "student")
    section = {"model": None, "shrink": {"of": folder, "layers": 2, "vocabulary": 300}}
    smaller = run(Recipe.build(recipe(tmp_path, done.folder, student=section, method={"name": "score_bce"})))
    head = "classifier.weight"
    start = load_ranker(folder)[0].model.state_dict()[head]
    cut: Any = smaller.student[0]  # type: ignore[index]
    assert cut.model.config.num_hidden_layers == 2 and cut.model.config.vocab_size <= 300
    assert torch.cosine_similarity(cut.model.state_dict()[head].cpu(), start).item() > 0.9  # it goes on from there


def test_a_killed_training_is_resumed(start: Starter, tmp_path: Path, tiny_bert: Path) -> None:
    """The same numbers to the bit as without the kill."""
    made = recipe(tmp_path, tiny_bert, training={"save_every": 2, "epochs": 6}, output=str(tmp_path / "killed"))
    made["scorers"] = [{"name": "words", "call": "tests.scorers.settings:overlap"}]
    (tmp_path / "killed.yaml").write_text(plain_yaml.write(json.loads(json.dumps(made))))
    command = ["train", str(tmp_path / "killed.yaml")]
    running = start(arguments=command, folder=str(tmp_path))
    running.until(lambda: newest_checkpoint(tmp_path / "killed" / "checkpoints") is not None)
    running.kill(signal.SIGKILL)
    assert running.wait()[0] == -signal.SIGKILL and not (tmp_path / "killed" / "student").exists()
    for changes in (["--resume"], ["--set", f"output={tmp_path / 'whole'}"]):
        code, said = start(arguments=[*command, *changes], folder=str(tmp_path)).wait()
        assert code == 0, said
    weights = [(tmp_path / name / "student" / "model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert weights[0] == weights[1]


def test_methods_are_compared_and_tuned_on_held_out_queries(tmp_path: Path, tiny_bert: Path) -> None:
    made = Recipe.build(recipe(tmp_path, tiny_bert, training={"epochs": 1}, corpus={"holdout": 0.6}))
    found = compare(made, ["margin_mse", "score_bce"], seeds=1, tune=True)
    assert found.rates.keys() == {"margin_mse", "score_bce"}
    assert all(name in found.table() for name in ("margin_mse", "score_bce", "untrained student"))


def test_every_answer_of_a_query_is_right(tmp_path: Path) -> None:
    """Also those in rows that are not among the sample of queries."""
    answers = [{"q": f"query {row // 4}", "d": f"answer {row} of {row // 4}"} for row in range(1200)]
    task = held_out_task(read_corpus(answers, tmp_path / "corpus", text=["q", "d"], holdout=0.4))
    assert task is not None and MOST_QUERIES / 4 < len(task.search.queries) <= MOST_QUERIES
    for query, right in zip(task.search.queries, task.search.relevance, strict=True):
        assert {task.search.documents[row] for row in right} == {row["d"] for row in answers if row["q"] == query}


def test_a_pair_that_is_labelled_0_is_no_answer(tmp_path: Path) -> None:
    pairs = [{"q": f"query {row}", "d": f"document {row}", "label": row % 2} for row in range(200)]
    task = held_out_task(read_corpus(pairs, tmp_path / "corpus", text=["q", "d"], label="label", holdout=0.5))
    assert task is not None and all(int(query.split()[1]) % 2 for query in task.search.queries)
    assert len(task.search.documents) == len(pairs)
    named = [{**row, "label": "no" if row["label"] == 0 else "yes"} for row in pairs]
    assert held_out_task(read_corpus(named, tmp_path / "named", text=["q", "d"], label="label", holdout=0.5)) is None


def test_a_dry_run_trains_a_few_steps(tmp_path: Path, tiny_bert: Path) -> None:
    shown = str(plan(Recipe.build(recipe(tmp_path, tiny_bert))))
    assert "reranking (of the corpus)" in shown and "scorer words" in shown and "margin_mse" in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scorers": []}, "scorers: .*no scorer.*Name one"),
        ({"corpus": {"text": "d"}}, "corpus.text"),
        ({"method": {"name": "cosine"}, "teachers": []}, 'method.name: .*"cosine".*margin_mse, score_kl, score_bce'),
        ({"teachers": [{"name": "t", "call": "numpy:array"}]}, "teachers: .*scorers alone"),
        ({"training": {"evaluate_every": 1}}, "training.evaluate_every"),
        ({"judging": {"compression": True}}, "judging.compression"),
        ({"judging": {"tasks": [{"name": "p", "kind": "pairs", "test": ALIKE}]}},
         "task p: .*kind retrieval"),
        ({"student": {"fresh": {}, "model": None}}, "cross_encoder is for model or shrink"),
        ({"student": {"lora": {}}}, "lora is not for a cross-encoder"),
        ({"student": {"interpolate": 0.5}}, "interpolate is not for a cross-encoder"),
        ({"student": {"shrink": {"of": "x", "layers": 1, "heads": 1}, "model": None}}, "shrink.heads"),
        ({"student": {"model": "nowhere/to/be/found"}}, "nowhere/to/be/found: "),
        ({"student": {"cross_encoder": False}, "method": {"name": "score_bce"}}, "student.cross_encoder: true"),
    ],
)  # fmt: skip
def test_impossible_recipes_are_refused_before_training(
    tmp_path: Path, tiny_bert: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(DistilvecError, match=said) as caught:
        run(Recipe.build(recipe(tmp_path, tiny_bert, **changes)))
    assert "\n" not in str(caught.value)


def test_planning_is_refused_before_teachers_are_asked_for(tmp_path: Path, tiny_bert: Path) -> None:
    with pytest.raises(DistilvecError, match=r"student\.cross_encoder: .*plan goes by vectors"):
        require(Recipe.build(recipe(tmp_path, tiny_bert)), "plan")


def test_folders_that_say_no_number_are_refused(tmp_path: Path, tiny_bert: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    writer = build_writer("gpt2", tmp_path / "gpt2")
    classes = AutoModelForSequenceClassification.from_pretrained(str(tiny_bert), num_labels=3)
    classes.save_pretrained(tmp_path / "classes")
    for folder, said in ((writer, "this model writes"), (tmp_path / "classes", "3 classes")):
        with pytest.raises(DistilvecError, match=f"{said}.*Give a cross-encoder"):
            load_ranker(folder)
    with pytest.raises(DistilvecError, match="neither modules.json nor config.json"):
        load_ranker(tmp_path)


def test_reranking_keeps_the_order_of_equal_numbers_and_what_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = ["red apples", "green pears", "a word that stands nowhere else"]
    documents = ["apples that are red", "pears that are green", "green apples", "unseen"]
    search = RetrievalTask("fruit", queries, documents, {0: {0: 1.0}, 1: {1: 1.0}, 2: {3: 1.0}})
    for package, first in (("bm25s", "BM25"), (None, "tf-idf")):
        if package is None:
            monkeypatch.setattr(RetrievalTask, "found_by_bm25", lambda self: None)
        task = RerankingTask(search)
        assert task.first == first
        plain, best = task.score(as_found), task.score(overlap_scores)
        worst = task.score(lambda pairs: -overlap_scores(pairs))
        assert best.value == pytest.approx(2 / 3) and worst.value < best.value
        assert plain.details["found"] == best.details["found"] == pytest.approx(2 / 3)
        assert plain.outputs is not None and plain.outputs.predicted[2] == 0


def overlap_scores(pairs: Any) -> np.ndarray:
    return np.asarray(overlap(list(pairs)))
