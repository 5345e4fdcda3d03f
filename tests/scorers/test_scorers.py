"""Scorers: models, functions and tables; their stores; and runs that learn from them."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.jobs import Job
from tests.scorers.settings import settings
from tests.tiny_models import build_writer
from tests.training.starting import Starter
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertForSequenceClassification

import distilvec
from distilvec.choosing import dry_run
from distilvec.choosing.dry_run import plan
from distilvec.corpus.keys import content_keys
from distilvec.errors import DataError, DistilvecError
from distilvec.flow.ray import teach_alone
from distilvec.flow.run import run as run_recipe
from distilvec.recipe import Recipe
from distilvec.report import Record
from distilvec.scorers import model
from distilvec.scorers.base import pair_keys, score_pairs
from distilvec.scorers.load import load_scorer
from distilvec.scorers.score_file import TableScorer
from distilvec.store import SignalStore

PAIRS = [("what is rain", "water that falls"), ("who sings", "birds do\x1eand people"), ("a", "b")]


def overlap(pairs: list[tuple[str, str]]) -> list[float]:
    """Words that both have."""
    return [float(len(set(query.lower().split()) & set(document.lower().split()))) for query, document in pairs]


@pytest.fixture(scope="module")
def cross_encoders(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> dict[int, Path]:
    """Number of classes -> a cross-encoder with random weights."""
    tokenizer, found = AutoTokenizer.from_pretrained(tiny_bert), {}
    for classes in (1, 3):
        torch.manual_seed(classes)
        config = BertConfig(
            vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=64, num_labels=classes, initializer_range=0.3,
        )  # fmt: skip
        found[classes] = tmp_path_factory.mktemp(f"cross-{classes}")
        BertForSequenceClassification(config).save_pretrained(found[classes])
        tokenizer.save_pretrained(found[classes])
    return found


def test_a_cross_encoder_says_its_logit_and_of_classes_the_log_odds(cross_encoders: dict[int, Path]) -> None:
    from sentence_transformers import CrossEncoder

    for classes, folder in cross_encoders.items():
        theirs = CrossEncoder(str(folder), device="cpu", max_length=32, activation_fn=torch.nn.Identity())
        logits = theirs.predict([(query, document.replace("\x1e", " ")) for query, document in PAIRS])
        options = {} if classes == 1 else {"label": "LABEL_1"}
        scorer = load_scorer(model=folder, max_length=32, device="cpu", **options)
        found = score_pairs(scorer, PAIRS)
        if classes > 1:
            share = torch.from_numpy(logits).double().softmax(-1)[:, 1].numpy()
            logits = np.log(share / (1 - share))
        np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-5)
        assert (scorer.card.kind, scorer.card.width, scorer.card.max_length) == ("scorer", 1, 32)
    others = [
        load_scorer(model=cross_encoders[3], label=label, device="cpu").card.fingerprint
        for label in ("LABEL_0", "LABEL_1")
    ]
    assert len({*others, scorer.card.fingerprint}) == 3, "another class or length is another scorer"


def test_a_cross_encoder_reads_the_tokens_that_its_folder_promises(
    cross_encoders: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(cross_encoders[1], tmp_path / "model")
    words, settings = (folder / name for name in ("tokenizer.json", "tokenizer_config.json"))
    words.write_text(json.dumps(json.loads(words.read_text()) | {"post_processor": None}))
    lacking = score_pairs(load_scorer(model=folder, device="cpu"), PAIRS)
    named = {"bos_token": "[CLS]", "eos_token": "[SEP]", "add_bos_token": True, "add_eos_token": True}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | named))
    scorer = load_scorer(model=folder, device="cpu")
    assert scorer._model.tokenizer("hello").tokens()[0] == "[CLS]"  # type: ignore[attr-defined]
    assert scorer._model.tokenizer("hello").tokens()[-1] == "[SEP]"  # type: ignore[attr-defined]
    assert np.abs(score_pairs(scorer, PAIRS) - lacking).max() > 1e-3
    monkeypatch.setattr(model, "tokens_put", lambda _: [])
    assert load_scorer(model=folder, device="cpu").card.fingerprint != scorer.card.fingerprint


def test_a_cross_encoder_in_the_hubs_cache_which_links_its_files_is_a_scorer(
    cross_encoders: dict[int, Path], tmp_path: Path
) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123"
    shutil.copytree(cross_encoders[1], blobs)
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    found, own = (score_pairs(load_scorer(model=each, device="cpu"), PAIRS) for each in (snapshot, cross_encoders[1]))
    np.testing.assert_array_equal(found, own)


def test_a_language_model_says_by_how_much_yes_is_likelier_than_no(tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    build_writer("qwen3", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["yes", "no"])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for made in (model, tokenizer):
        made.save_pretrained(tmp_path)
    theirs = CrossEncoder(str(tmp_path), device="cpu", activation_fn=torch.nn.Identity()).predict(PAIRS[::2])
    assert np.ptp(theirs) > 1e-3
    np.testing.assert_allclose(score_pairs(load_scorer(model=tmp_path, device="cpu"), PAIRS[::2]), theirs, rtol=1e-4)


def test_models_that_judge_no_pairs_are_refused(cross_encoders: dict[int, Path], tiny_bert: Path) -> None:
    for options, told in (
        ({"model": tiny_bert}, r"\['BertModel'\].*finetune --task pairs"),
        ({"model": cross_encoders[1], "max_length": 65}, "max_length is 65, .*allow 64"),
        ({"model": cross_encoders[3]}, "3 classes.*label: LABEL_2"),
        ({"model": cross_encoders[3], "label": "LABEL_9"}, '"LABEL_9".*LABEL_'),
        ({"model": cross_encoders[1], "label": "yes"}, '"yes"'),
        ({"call": overlap, "label": "yes"}, "label.*goes with model"),
        ({}, "exactly one of model, call and scores"),
        ({"call": overlap, "scores": []}, "exactly one of model, call and scores"),
    ):
        with pytest.raises(DistilvecError, match=told):
            load_scorer(device="cpu", **options)  # type: ignore[arg-type]


def test_a_model_finetuned_on_pairs_is_a_scorer(tmp_path: Path, tiny_bert: Path) -> None:
    from distilvec.flow.finetune import finetune
    from distilvec.tasks.predictor import Predictor

    rows = [
        {"text1": f"word {n}", "text2": f"word {n + n % 2}", "label": "same" if n % 2 else "other"} for n in range(16)
    ]
    folder = finetune(tiny_bert, rows, tmp_path / "joint", task="pairs", training={"epochs": 1, "use_cpu": True})
    scorer = load_scorer(model=folder, device="cpu")
    logits = Predictor.load(folder, device="cpu").logits(PAIRS[::2])
    np.testing.assert_allclose(score_pairs(scorer, PAIRS[::2]), logits[:, 1] - logits[:, 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda pairs: [1.0] * (len(pairs) + 1), r"1 pairs, found \[2\]"),
        (lambda pairs: [[1.0, 2.0] for _ in pairs], r"1 pairs, found \[1, 2\]"),
        (lambda pairs: ["high" for _ in pairs], "found list"),
        (lambda pairs: [float("inf") for _ in pairs], "not finite"),
        (lambda pairs: 3.0, r"found \[\]"),
    ],
)
def test_a_function_that_gives_no_number_per_pair_is_refused(answer: Any, told: str) -> None:
    with pytest.raises(DataError, match=f"^mine: .*{told}"):
        load_scorer(call=answer, name="mine")


def test_a_function_may_have_nothing_for_a_pair() -> None:
    asked: list[Any] = []

    def some(pairs: list[tuple[str, str]]) -> list[float | None]:
        asked.extend(pairs)
        return [None if query == "a" else float(len(document)) for query, document in pairs]

    found = score_pairs(load_scorer(call=some, batch_size=2), PAIRS)
    np.testing.assert_array_equal(found, np.array([16, 19, np.nan], np.float32))
    assert asked[1:] == [(query, document.replace("\x1e", " ")) for query, document in PAIRS]
    log = {PAIRS[0]: 2.0}  # nor for the pair that it is tried with
    found = score_pairs(load_scorer(call=lambda pairs: [log.get(pair) for pair in pairs]), PAIRS)
    np.testing.assert_array_equal(found, np.array([2, np.nan, np.nan], np.float32))


ROWS = [{"query": query, "document": document, "score": number} for number, (query, document) in enumerate(PAIRS)]


def test_a_table_is_found_by_both_texts(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([*ROWS, {**ROWS[0], "query": " what is rain\n"}]), tmp_path / "scores.parquet")
    for source in (tmp_path / "scores.parquet", str(tmp_path / "scores.parquet"), ROWS):
        scorer = TableScorer(source)
        asked = [*PAIRS, ("water that falls", "what is rain"), ("a", "")]
        np.testing.assert_array_equal(score_pairs(scorer, asked), np.array([0, 1, 2, np.nan, np.nan], np.float32))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"score": float("nan")}, "row 3, column score: .*nan"),
        ({"score": None}, "row 3, column score: .*None"),
        ({"score": 1e300}, "row 3, column score: "),
        ({"document": None}, "row 3, column document: .*None"),
        ({"query": " "}, "row 3, column query: "),
        ({**ROWS[0], "score": 5}, "row 3, column score: .*score 0 above, and 5 here"),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "rows"])
def test_rows_of_a_table_that_cannot_be_are_named(change: Any, told: str, kind: str, tmp_path: Path) -> None:
    rows: Any = [ROWS[0], ROWS[1], {**ROWS[2], **change}]
    if kind == "parquet":
        kinds = pa.schema([("query", pa.string()), ("document", pa.string()), ("score", pa.float64())])
        pq.write_table(pa.Table.from_pylist(rows, schema=kinds), tmp_path / "scores.parquet")
        rows = tmp_path / "scores.parquet"
    with pytest.raises(DataError, match=told):
        TableScorer(rows)


def test_tables_without_a_column_or_rows_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "scores.parquet"
    pq.write_table(pa.Table.from_pylist([{"query": "a", "doc": "b", "score": 1.0}]), file)
    with pytest.raises(DataError, match="row 1, column document: "):
        load_scorer(scores=file)
    pq.write_table(pa.table({"query": pa.array([], pa.string())}), file)
    with pytest.raises(DataError, match=r"scores\.parquet: "):
        load_scorer(scores=file)
    file.write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"scores\.parquet: "):
        load_scorer(scores=file)


def rows_of(sentences: list[str]) -> list[dict[str, Any]]:
    """Queries, answers and two negatives each, of which every fifth lacks the second."""
    return [
        {
            "q": sentence.rsplit(" ", 3)[0],
            "d": sentence,
            "n1": sentences[number - 7],
            "n2": None if number % 5 == 0 else sentences[number - 13],
        }
        for number, sentence in enumerate(sentences)
    ]


def test_scores_lie_in_a_store_under_both_keys_and_training_reads_them(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    made = Recipe.build(settings(tmp_path, tiny_bert, sentences[:60]))
    stages = dict(plan(made).lines)
    assert "of 168 pairs to score" in stages["scorer words"], stages
    job = Job(made)
    scores, corpus = job.scores, job.corpus
    assert scores is not None and corpus.roles is not None
    texts = corpus.texts()
    anchors = [number for number in range(len(corpus)) if corpus.roles[number] == 0]
    assert np.isnan(scores[anchors]).all() and np.isfinite(np.delete(scores, anchors)).all()
    store = SignalStore.open(tmp_path / "out" / "stores" / "words")
    assert (store.width, store.dtype, store.card["kind"]) == (1, "float32", "scorer")
    group = {int(corpus.groups[row]): row for row in anchors}  # type: ignore[index]
    for row in np.delete(np.arange(len(corpus)), anchors)[::11]:
        query = texts[group[int(corpus.groups[row])]]  # type: ignore[index]
        (expected,) = overlap([(query, texts[row])])
        assert scores[row] == expected
        key = pair_keys(content_keys([query]), content_keys([texts[row]]))
        assert store.read(store.rows(key))[0, 0] == expected
    assert dict(plan(made).lines)["scorer words"].startswith("0 of 168 pairs"), "what is scored costs nothing"

    def nobody(pairs: list[tuple[str, str]]) -> list[float]:
        assert len(pairs) == 1, "only tried, not asked"
        return overlap(pairs)

    shared = settings(tmp_path, tiny_bert, sentences[:60], cache=str(tmp_path / "out"), output=str(tmp_path / "second"))
    again = Job(Recipe.build(shared))
    again.scorers[0]._function = nobody  # type: ignore[attr-defined]
    np.testing.assert_array_equal(again.scores, scores)


def test_a_run_learns_the_scores_and_says_whose_they_are(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    given = settings(
        tmp_path, tiny_bert, sentences[:60],
        teachers=[{"name": "tiny", "model": str(tiny_bert)}],
        student={"shrink": {"of": "tiny", "layers": 1}},
        method=[{"name": "cosine"}, {"name": "score_kl", "weight": 0.5}],
        training={"max_steps": 24, "batch_size": 8, "use_cpu": True},
        optimizer={"lr": 3e-3},
    )  # fmt: skip
    run = run_recipe(Recipe.build(given))
    losses = [line["term/listwise"] for line in run.record["training"].log if "term/listwise" in line]
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert {"cosine", "listwise"} <= set(run.record["reproduced"].terms)
    record = Record.load(run.folder)
    (facts,) = record["lineage"].scorers
    assert (facts.card.name, facts.pairs, facts.absent) == ("words", 168, 0)
    assert "cosine with score_kl: tiny and words" in record.title
    for page in ("report.md", "report.html", "student/README.md"):
        assert "Scorer words" in (run.folder / page).read_text(encoding="utf-8")
    saved = Recipe.load(run.folder / "recipe.yaml")
    assert saved.method.entries == [{"name": "cosine"}, {"name": "score_kl", "weight": 0.5}]


@pytest.mark.parametrize("wrong", ["store", "label"])
def test_a_scorer_that_cannot_score_is_refused_before_teachers_are_asked(
    tmp_path: Path, tiny_bert: Path, cross_encoders: dict[int, Path], sentences: list[str], wrong: str
) -> None:
    given = settings(tmp_path, tiny_bert, sentences[:20])
    if wrong == "store":
        Job(Recipe.build(given)).score()  # by a function of the same name
    model = cross_encoders[3 if wrong == "label" else 1]
    asked: list[str] = []

    def teach(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return np.random.default_rng(0).normal(size=(len(texts), 8))

    given |= {"scorers": [{"name": "words", "model": str(model)}], "teachers": [{"name": "asked", "call": teach}]}
    told = "/stores/words: .*fingerprint" if wrong == "store" else "knows 3 classes"
    with pytest.raises(DistilvecError, match=told):
        teach_alone(Recipe.build(given))
    assert len(asked) <= 1, "only tried, not asked"


def test_several_scorers_count_by_their_deviation(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    def louder(pairs: list[tuple[str, str]]) -> list[float]:
        return [1000 * each + 5 for each in overlap(pairs)]

    both = [{"name": "words", "call": overlap}, {"name": "louder", "call": louder}]
    one, two = (
        Job(Recipe.build(settings(tmp_path / str(n), tiny_bert, sentences[:40], scorers=both[:n]))).scores
        for n in (1, 2)
    )
    assert one is not None and two is not None
    told = one[np.isfinite(one)]
    np.testing.assert_allclose(two[np.isfinite(two)], (told - told.mean()) / told.std(), rtol=1e-4, atol=1e-5)


def test_a_table_that_covers_half_and_knows_other_pairs(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    rows = rows_of(sentences[:40])
    told = [
        {"query": row["q"], "document": row[side], "score": 2.0 - (side == "n1")}
        for row in rows
        for side in ("d", "n1")
    ]
    told += [{"query": "nobody asks this", "document": "of this", "score": 1.0}]
    tables = [{"name": "clicks", "scores": told}]
    run = distilvec.distill(
        None, student={"shrink": {"of": str(tiny_bert), "layers": 1}},
        corpus={"path": rows, "text": ["q", "d", "n1", "n2"], "holdout": 0.3}, method={"name": "score_kl"},
        output=tmp_path / "out", scorers=tables,
        training={"max_steps": 2, "batch_size": 8, "use_cpu": True}, judging={"speed": False},
    )  # fmt: skip
    (facts,) = run.record["lineage"].scorers
    assert (facts.pairs, facts.absent) == (112, 32)
    assert any("clicks: 1 of its 81 scores" in message for message in caplog.messages)
    assert {"query", "document", "score"} == set(
        json.loads((tmp_path / "out/given/clicks-scores.jsonl").open().readline())
    )
    with pytest.raises(DataError, match=r"^scorer clicks: .* 112 pairs"):
        Job(
            Recipe.build(
                settings(tmp_path / "other", tiny_bert, sentences[:40],
                         scorers=[{"name": "clicks", "scores": str(write(tmp_path / "s.jsonl", told[-1:]))}])
            )
        ).score()  # fmt: skip


def test_dry_run_does_not_take_its_few_pairs_for_the_corpus(
    tmp_path: Path,
    tiny_bert: Path,
    sentences: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dry_run, "PROBE_TEXTS", 2)
    told = [{"query": row["q"], "document": row["d"], "score": 1.0} for row in rows_of(sentences[:40])]

    def stages(scores: list[dict[str, Any]]) -> dict[str, str]:
        table = str(write(tmp_path / "clicks.jsonl", scores))
        scorers = [{"name": "clicks", "scores": table}, {"name": "words", "call": overlap}]
        given = settings(tmp_path, tiny_bert, sentences[:40], scorers=scorers)
        return dict(plan(Recipe.build(given), teaching_only=True).lines)

    assert "of 112 pairs to score" in stages(told)["scorer clicks"]
    assert "tried without a score" in stages(told[20:21])["scorer clicks"]
    assert not [message for message in caplog.messages if "about no pair" in message]
    with pytest.raises(DataError, match=r"^scorer clicks: it has no score for any of the 112 pairs"):
        stages([{"query": "nobody asks this", "document": "of this", "score": 1.0}])


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_recipes_that_make_no_sense_with_scores(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    def refused(told: str, **changes: Any) -> None:
        with pytest.raises(DistilvecError, match=told):
            job = Job(Recipe.build(settings(tmp_path, tiny_bert, sentences[:40], **changes)))
            job.require("run")
            _ = job.needs

    refused(r'^scorers: .*"margin_mse"', scorers=[])
    refused(
        r'^corpus\.text: .*"simcse \+ score_kl"',
        method=[{"name": "simcse"}, {"name": "score_kl"}],
        corpus={"path": sentences[:40]},
    )
    refused(r"^scorers\.0: .*model, call and scores", scorers=[{"name": "words"}])
    refused(r'two scorers.*"words"', scorers=[{"name": "words", "call": overlap}] * 2)
    refused(r'"words"', teachers=[{"name": "words", "model": str(tiny_bert)}])
    refused(r"^method.*: .*no method \"scorekl\"", method=[{"name": "cosine"}, {"name": "scorekl"}])


def test_scorers_that_nothing_learns_from_are_not_asked(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """So that `compare` sets methods with and without scores side by side."""
    job = Job(Recipe.build(settings(tmp_path, tiny_bert, sentences[:40], method={"name": "mnrl"})))
    assert job.scores is None and job.scored == [] and "mnrl does not use scores" in caplog.text
    assert not (tmp_path / "out/stores/words").exists()
    assert len(job.score()[0].store) == 112, "teach asks them all the same"


def test_an_error_in_a_scorer_shows_its_input() -> None:
    def two(query: str, document: str) -> float:
        return float(query == document)

    with pytest.raises(DistilvecError, match=r"one list of pairs, \(query, document\); try it by itself"):
        load_scorer(name="mine", call=two)


def test_scorers_without_scores_are_named(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    row = rows_of(sentences[:60])[0]
    scores = write(tmp_path / "clicks.jsonl", [{"query": row["q"], "document": row["d"], "score": 1.0}])
    given = settings(tmp_path, tiny_bert, sentences[:60], scorers=[{"name": "clicks", "scores": str(scores)}])
    Job(Recipe.build(given)).score()
    assert "clicks has nothing for 167 of 168 items" in caplog.text


def test_shards_and_a_killed_scoring_leave_the_same_scores(
    start: Starter, tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is killed while its function is asked; what was written stays, and the rest is asked for."""
    file = write(tmp_path / "pairs.jsonl", rows_of(sentences[:60]))
    (tmp_path / "slow.py").write_text(
        "import os, signal, pathlib\n"
        "def score(pairs):\n"
        "    calls = pathlib.Path('calls')\n"
        "    calls.write_text((calls.read_text() if calls.exists() else '') + 'x' * len(pairs))\n"
        "    if pathlib.Path('die').exists() and len(calls.read_text()) > 60:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return [float(len(a) + 2 * len(b)) for a, b in pairs]\n"
    )
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"corpus: {{path: {file}, text: [q, d, n1, n2]}}\n"
        "scorers: [{name: slow, call: 'slow:score', batch_size: 10}]\n"
        f"output: {tmp_path / 'out'}\n"
    )
    code = (
        "import sys; from distilvec.store import writer; from distilvec.cli.main import main\n"
        "writer.PART_SECONDS = 0.0\n"  # a part for every call
        "main(['teach', sys.argv[1]])\n"
    )
    (tmp_path / "die").touch()
    ended, output = start.code(code, recipe, folder=str(tmp_path)).wait()
    assert ended == -signal.SIGKILL, output
    kept = len(SignalStore.open(tmp_path / "out/stores/slow"))
    assert 0 < kept < 168
    (tmp_path / "die").unlink()
    (tmp_path / "calls").unlink()
    monkeypatch.chdir(tmp_path)
    for share in ((0, 2), (1, 2)):
        ((store, filled),) = teach_alone(Recipe.load(recipe), share)
    assert len((tmp_path / "calls").read_text()) == 168 - kept + 4, (
        "nothing twice, but each tries before it is asked and before teachers are"
    )
    assert len(SignalStore.open(store.path, verify=True)) == 168 and filled.taught


def test_scorer_that_returns_a_tensor_with_gradients_is_refused() -> None:
    layer = torch.nn.Linear(1, 1)
    with pytest.raises(DataError, match="numbers were expected, found Tensor"):
        load_scorer(call=lambda pairs: layer(torch.ones(len(pairs), 1))[:, 0])
