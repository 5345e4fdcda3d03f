"""What a third reading found: each as the smallest case that shows it."""

from __future__ import annotations

import json
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.faults.test_read_by_eyes import recipe

import distilvec
from distilvec import plain_yaml
from distilvec.choosing.dry_run import plan
from distilvec.choosing.scale import scale
from distilvec.corpus import content_keys, read_corpus
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.flow.bench import FACTORS
from distilvec.flow.compare import compare
from distilvec.flow.run import run, train
from distilvec.flow.start import _with_dropout
from distilvec.flow.variants import changed
from distilvec.folders import claim
from distilvec.judging import CachedEncoder, Outputs, RegressionTask, RetrievalTask, SimilarityTask, paired_bootstrap
from distilvec.judging.bootstrap import make_score
from distilvec.judging.compression import CompressedEncoder, Form
from distilvec.methods.table import available
from distilvec.recipe import Recipe
from distilvec.scorers.load import load_scorer
from distilvec.store import SignalStore, fill, remote
from distilvec.students import fresh, load_student
from distilvec.teachers import Capabilities, Teacher, load_teacher


class Counted:
    """A teacher that counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def embed(self, texts: list[str]) -> np.ndarray:
        self.asked += len(texts)
        return np.array([[len(text), text.count("e"), text.count("a"), 1.0] for text in texts], np.float32)


# runs and their folders


def test_another_corpus_under_an_equal_recipe_is_another_run(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    own = Counted()
    sections: dict[str, Any] = {"training": {"max_steps": 2, "batch_size": 8, "use_cpu": True}}
    first = distilvec.distill(
        own.embed, student=str(tiny_bert), corpus=sentences[:60], method="cosine", output=tmp_path / "out", **sections
    )
    student = (first.folder / "student" / "model.safetensors").read_bytes()
    distilvec.train(
        own.embed,
        student=str(tiny_bert),
        corpus=sentences[60:140],
        method="cosine",
        output=tmp_path / "out",
        **sections,
    )
    before = tmp_path / "out" / "before-1"
    assert (before / "student" / "model.safetensors").read_bytes() == student and (before / "report.json").is_file()
    assert not (tmp_path / "out" / "report.json").exists()
    distilvec.train(
        own.embed,
        student=str(tiny_bert),
        corpus=sentences[60:140],
        method="cosine",
        output=tmp_path / "out",
        **sections,
    )
    assert not (tmp_path / "out" / "before-2").exists()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"training": {"best": "agreement_cosine"}}, "needs evaluations"),
        ({"training": {"patience": 3, "evaluate_every": 1}}, "patience"),
        ({"training": {"best": "agreement_cosine", "evaluate_every": 4, "save_every": 6}}, "multiple"),
        ({"training": {"dataloader_drop_last": True, "batch_size": 500}}, "no whole batch"),
        ({"corpus": {"holdout": 0.01}, "training": {"evaluate_every": 1}}, "nothing to evaluate on"),
        ({"optimizer": {"sharpness": {"kind": "disam"}}}, "compares domains"),
        ({"student": {"router_balance": 0.1}}, "mixtures"),
        (
            {"method": {"name": "relational"}, "training": {"best": "agreement_index_recall", "evaluate_every": 1}},
            "rec",
        ),
    ],
)
def test_what_training_refuses_is_refused_before_the_teacher_is_asked(
    sections: dict[str, Any], said: str, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """And before anything of the run before is moved; a dry run says it too."""
    own = Counted()
    plain = {
        "corpus": {"path": sentences[:120], "holdout": 0.35},
        "teachers": [{"name": "own", "call": own.embed}],
        "student": {"model": str(tiny_bert)},
        "training": {"max_steps": 2, "batch_size": 8, "use_cpu": True},
    }
    merged = {**plain, **{key: {**plain.get(key, {}), **value} for key, value in sections.items()}}  # type: ignore[dict-item]
    (claim(tmp_path / "out") / "student").mkdir()
    shutil.copytree(tiny_bert, tmp_path / "out" / "student", dirs_exist_ok=True)
    (tmp_path / "out" / "recipe.yaml").write_text(recipe(tmp_path, tiny_bert, sentences[:60]).to_yaml())
    wrong = recipe(tmp_path, tiny_bert, sentences[:60], **merged)
    for call in (train, plan):
        with pytest.raises(DistilvecError, match=said):
            call(wrong)  # type: ignore[operator]
    assert own.asked <= 2  # how wide its vectors are, twice
    assert not (tmp_path / "out" / "before-1").exists()


def test_the_card_of_train_is_about_what_ships(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    own = Counted()
    given = recipe(
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


def test_code_that_may_run_runs_when_the_student_is_compressed(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    strange = tmp_path / "strange"
    shutil.copytree(tiny_bert, strange)
    config = json.loads((strange / "config.json").read_text())
    names = {"AutoConfig": "code.StrangeConfig", "AutoModel": "code.StrangeModel"}
    (strange / "config.json").write_text(json.dumps({**config, "model_type": "strange", "auto_map": names}))
    (strange / "code.py").write_text(
        "from transformers import BertConfig, BertModel\n\n\nclass StrangeConfig(BertConfig):\n"
        "    model_type = 'strange'\n\n\nclass StrangeModel(BertModel):\n    config_class = StrangeConfig\n"
    )
    student = {"model": str(strange), "trust_remote_code": True}
    judging = {"speed": False, "compression": True}
    found = run(recipe(tmp_path, tiny_bert, sentences[:90], student=student, judging=judging))
    assert any(row.name == "float16 weights" for row in found.record["compressed"].rows)


def test_a_combined_store_is_checked_for_damage(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    first, second = Counted(), Counted()
    teachers = [{"name": "t", "call": first.embed}, {"name": "u", "call": second.embed}]
    given = recipe(tmp_path, tiny_bert, sentences[:60], teachers=teachers, combine="concatenate")
    train(given)
    (folder,) = (tmp_path / "out" / "stores").glob("t+u-concatenate-*")
    part = next(folder.glob("sentence-*.arrow"))
    damaged = bytearray(part.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    part.write_bytes(damaged)
    again = recipe(
        tmp_path, tiny_bert, sentences[:60], teachers=teachers, combine="concatenate", training={"max_steps": 3}
    )
    try:
        train(again)
    except DistilvecError as error:
        assert part.name in str(error) or str(folder) in str(error)
    store = next((tmp_path / "out" / "stores").glob("t+u-concatenate-*"))
    assert bytes(damaged) not in [each.read_bytes() for each in store.glob("sentence-*.arrow")]


# recipes


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("task", [None, {"kind": "classification"}])
def test_a_resolved_recipe_can_be_read_again(name: str, task: dict[str, Any] | None) -> None:
    made = {
        "corpus": {"path": "texts.jsonl", "text": ["q", "a"] if task is None else "text", "label": task and "label"},
        "teachers": [{"name": "t", "model": "some/model"}],
        "student": {"model": "some/student"},
        "method": {"name": name},
        "task": task,
    }
    try:
        first = Recipe.build(made)
    except DistilvecError:
        return  # a method for other items
    again = Recipe.build(plain_yaml.read(first.to_yaml()))
    assert again.to_yaml() == first.to_yaml()
    assert task is None or first.student is None or first.student.space == "own"


def test_live_is_about_models(tmp_path: Path, tiny_bert: Path) -> None:
    for source in ({"call": len}, {"api": {"url": "http://localhost:1", "model": "m"}}, {"vectors": "v.npy"}):
        with pytest.raises(DistilvecError, match="live is about a model's token states"):
            recipe(tmp_path, tiny_bert, "texts.jsonl", teachers=[{"name": "t", "live": True, **source}])


# comparisons


def test_a_tuned_rate_warms_up_for_its_share_and_is_not_evaluated(tmp_path: Path, tiny_bert: Path) -> None:
    training = {"epochs": 3, "batch_size": 8, "warmup_steps": 9}
    given = recipe(
        tmp_path, tiny_bert, "texts.jsonl", training={**training, "best": "agreement_cosine", "evaluate_every": 5}
    )
    short = changed(given, epochs=1.0, items=48)
    assert short.training.warmup_steps == pytest.approx(9 / 18) and short.training.best is None
    steps = recipe(tmp_path, tiny_bert, "texts.jsonl", training={"max_steps": 30, "batch_size": 8, "warmup_steps": 3})
    short = changed(steps, epochs=1.0, items=48)
    assert short.training.max_steps == 6
    assert short.training.warmup_steps == pytest.approx(3 / 30)


def test_rates_of_a_training_that_keeps_its_best_can_be_tuned(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    training = {
        "epochs": 1, "batch_size": 8, "use_cpu": True,
        "best": "agreement_cosine", "evaluate_every": 3, "save_every": 3,
    }  # fmt: skip
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"text1": sentences[n], "text2": sentences[n + 1], "score": n % 5} for n in range(20)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = [{"name": "pairs", "kind": "similarity", "test": str(pairs)}]
    given = recipe(
        tmp_path,
        tiny_bert,
        None,
        corpus={"path": sentences[:120], "holdout": 0.4},
        training=training,
        judging={"speed": False, "tasks": tasks},
    )
    found = compare(given, ["cosine"], seeds=1, tune=True)
    assert len(found.tried["cosine"]) == len(FACTORS)
    assert (tmp_path / "out" / "baselines" / "recipe.yaml").is_file()


# teachers and stores


def routed(folder: Path, seed: int) -> Path:
    """A router of two tables of random vectors."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Router, StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"a": 0, "cat": 1, "dog": 2, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    draw = np.random.default_rng(seed)
    tables = [StaticEmbedding(tokenizer, draw.normal(size=(4, 6)).astype(np.float32)) for _ in range(2)]
    router = Router.for_query_document(query_modules=[tables[0]], document_modules=[tables[1]])
    router.default_route = "document"
    SentenceTransformer(modules=[router, Normalize()], device="cpu").save_pretrained(str(folder))
    return folder


def test_a_router_of_other_weights_is_another_teacher(tmp_path: Path) -> None:
    first, second = (load_teacher(model=str(routed(tmp_path / str(seed), seed))) for seed in (1, 2))
    assert not np.allclose(first.encode(["a cat"]), second.encode(["a cat"]))
    assert first.card.fingerprint != second.card.fingerprint
    again = load_teacher(model=str(routed(tmp_path / "again", 1)))
    assert again.card.fingerprint == first.card.fingerprint


def lengths(texts: list[str], scale: float = 1.0) -> np.ndarray:
    return np.array([[scale * len(text), text.count("e"), 1.0] for text in texts], np.float32)


def turned(texts: list[str], scale: float = 1.0) -> np.ndarray:
    return np.array([[1.0, text.count("e"), scale * len(text)] for text in texts], np.float32)


def wrapping(function: Any) -> Any:
    def wrapped(texts: list[str]) -> np.ndarray:
        return np.asarray(function(texts))

    return wrapped


class Held:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, texts: list[str]) -> np.ndarray:
        return np.asarray(self.function(texts))


@pytest.mark.parametrize("hold", [partial(partial, scale=2.0), wrapping, Held])
def test_what_calls_another_function_is_another_teacher(hold: Any) -> None:
    marks = [load_teacher(call=hold(function)).card.fingerprint for function in (lengths, turned, lengths)]
    assert marks[0] != marks[1] and marks[0] == marks[2]


def test_a_scorer_with_gradients_is_told_what_to_return() -> None:
    layer = torch.nn.Linear(1, 1)
    with pytest.raises(DataError, match="numbers were expected, found Tensor"):
        load_scorer(call=lambda pairs: layer(torch.ones(len(pairs), 1))[:, 0])


def test_paid_answers_are_kept_when_writing_fails(tmp_path: Path) -> None:
    """Whatever ends the writing, the teacher's stream is closed before anything else goes on."""

    class Streaming(Teacher):
        card = load_teacher(call=lengths).card
        can, closed = Capabilities(paid=True, chunk=4), False

        def stream(self, texts: list[str]) -> Any:
            try:
                for place, text in enumerate(texts):
                    yield np.array([place]), lengths([text]) * (1e6 if place == 2 else 1.0)
            finally:
                self.closed = True

    teacher: Any = Streaming()
    store = SignalStore.create(tmp_path / "store", teacher.card, 3, "float16")
    texts = [f"text {number}" for number in range(8)]
    with pytest.raises(DistilvecError) as caught:
        fill(store, teacher, texts, content_keys(texts))
    assert teacher.closed and caught.tb is not None


def test_mined_pairs_are_all_there(tmp_path: Path, tiny_bert: Path) -> None:
    """Also those whose query is a text that other pairs are trained on."""
    draw = np.random.default_rng(0)
    pairs = {tuple(sorted(draw.choice(60, 2, replace=False).tolist())) for _ in range(150)}
    rows = [{"q": f"question number {a}", "a": f"question number {b}"} for a, b in pairs]
    found = distilvec.mine(
        lengths, {"path": rows, "text": ["q", "a"], "holdout": 0.2}, tmp_path / "mined", ranks=[1, 9]
    )
    written = [json.loads(line) for line in found.file.read_text().splitlines()]
    one, other = found.columns[:2]
    assert {(row[one], row[other]) for row in written} == {(row["q"], row["a"]) for row in rows}
    assert found.pairs == len(written) == len(rows) and found.shared > 0


def test_a_misspelt_text_column_is_told_with_those_there_are(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "v.parquet"
    pq.write_table(pa.table({"sentences": ["a", "b"], "vector": [[1.0, 0.0], [0.0, 1.0]]}), file)
    with pytest.raises(DataError, match='no column "sentence" .*sentences'):
        load_teacher(vectors=str(file), texts="sentence")


def test_a_source_that_may_not_be_read_is_not_called_a_corpus(tmp_path: Path) -> None:
    def rows() -> Any:
        yield "a text"
        raise PermissionError(13, "Permission denied", str(tmp_path / "secret.txt"))

    with pytest.raises(PermissionError):
        read_corpus(rows(), tmp_path / "corpus")


def test_labels_that_are_none_are_counted(tmp_path: Path) -> None:
    import pandas as pd

    rows = [{"text": "a", "label": np.array([0, 1])}, {"text": "b", "label": pd.NA}, {"text": "c", "label": "x"}]
    corpus = read_corpus(rows, tmp_path, label="label", holdout=0.0)
    assert corpus.audit.rejected == {"bad label": 1, "missing label": 1}


def test_a_storage_that_fails_for_a_while_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With errors of its own, which are no OSError."""
    texts = [f"text {number}" for number in range(8)]
    store = SignalStore.create(tmp_path / "store", load_teacher(call=lengths).card, 3, "float32")
    real, tries = remote.push, []

    def push(folder: Path, url: str) -> int:
        tries.append(url)
        if len(tries) == 1:
            raise RuntimeError("EndpointConnectionError")
        return real(folder, url)

    monkeypatch.setattr(remote, "push", push)
    monkeypatch.setattr(remote, "_SECONDS", 0.05)
    url = f"file://{tmp_path / 'copy'}"
    with remote.mirrored(store.path, url):
        fill(store, load_teacher(call=lengths), texts, content_keys(texts))
        begun = time.monotonic()
        while len(tries) < 3 and time.monotonic() - begun < 20:
            time.sleep(0.02)
    assert len(tries) >= 3


def test_a_storage_says_what_failed(tmp_path: Path) -> None:
    with (
        pytest.raises(EnvironmentProblem, match="cannot be used .NoCredentials"),
        remote._storage(f"file://{tmp_path}"),
    ):
        raise RuntimeError("NoCredentials")


# judging and choosing


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_methods_rarely_win(seeds: int) -> None:
    """Of seeds alone, without errors of items: at most every twentieth interval of two equal methods leaves 0 out."""
    draw = np.random.default_rng(seeds)
    truth = np.arange(40) % 2
    outputs = Outputs("accuracy", truth, truth)
    same = make_score(task="t", kind="classification", domain=None, outputs=outputs)
    won = 0
    for trial in range(200):
        group = draw.normal(size=seeds)
        centre = float(group.mean())
        found = paired_bootstrap(same, same, resamples=400, seed=trial, runs=[group.tolist()])
        low, high = (edge + centre for edge in found.interval)
        won += low > 0 or high < 0
    assert won <= 20


def test_words_of_one_letter_are_no_words_to_bm25() -> None:
    task = RetrievalTask.from_pairs("letters", ["x", "y"], ["a", "b"])
    assert task.score(CachedEncoder(lengths)).kind == "retrieval"


def test_tasks_that_can_say_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="all scores are 3"):
        SimilarityTask("flat", ["a", "b"], ["c", "d"], [3, 3])
    with pytest.raises(DataError, match="1 training rows"):
        RegressionTask("one", (["a"], [1.0]), (["b", "c"], [1.0, 2.0]), protocol="tuned")


def test_compressed_vectors_read_queries_as_the_model_does(tiny_bert: Path) -> None:
    model = load_student(tiny_bert, device="cpu")
    model.prompts = {"query": "find: ", "document": ""}
    form = Form(32)
    encoder = CompressedEncoder(CachedEncoder(model), form, 1.0)
    wrapped = CachedEncoder(encoder)
    assert wrapped.has_side("query")
    np.testing.assert_allclose(wrapped.query(["a cat"]), encoder.query(["a cat"]), atol=1e-6)
    assert not np.allclose(wrapped.query(["a cat"]), wrapped(["a cat"]), atol=1e-4)


@pytest.mark.parametrize("vectors", [True, False])
def test_neighbours_need_a_teacher_that_can_be_asked(
    vectors: bool, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """Said before any training."""
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences[:60]))
    np.save(tmp_path / "v.npy", lengths(sentences[:60]))
    given = {"name": "t", "vectors": str(tmp_path / "v.npy"), "texts": str(corpus)}
    sections: dict[str, Any] = {"teachers": [given]} if vectors else {"teachers": [], "method": {"name": "simcse"}}
    judging = {"speed": False, "tasks": [{"name": "near", "kind": "neighbours", "corpus": str(corpus)}]}
    with pytest.raises(DistilvecError, match=r"task near.*nearest neighbours .* teacher: FOLDER"):
        train(recipe(tmp_path, tiny_bert, str(corpus), judging=judging, **sections))
    assert not (tmp_path / "out" / "student").exists()


def test_the_report_states_what_the_untrained_student_is(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    """Not what ships, which has a map into the teacher's space."""
    own = Counted()
    teachers = [{"name": "own", "call": own.embed}]
    found = run(
        recipe(
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


def test_rows_of_a_paid_service_are_not_measured(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    service = {"name": "paid", "api": {"url": "http://localhost:9", "model": "m"}}
    with pytest.raises(DistilvecError, match="teacher paid.*--dry-run"):
        scale(recipe(tmp_path, tiny_bert, sentences[:120], teachers=[service]), rows=1000)


# students


#: One step that changes nothing.
STILL: dict[str, Any] = {
    "optimizer": {"lr": 1e-12, "heads_lr": 1e-12},
    "training": {"max_steps": 1, "batch_size": 8, "use_cpu": True},
}


def vectors_of(folder: Path, texts: list[str]) -> np.ndarray:
    found = np.asarray(distilvec.load(folder).encode(texts), np.float64)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize("width", [4, 32])
def test_a_student_in_the_teachers_space_goes_on_from_there(
    width: int, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """With what it learnt, as no step is taken that changes it."""

    def own(texts: list[str]) -> np.ndarray:
        seen = np.array([[len(text), text.count("e"), text.count("a"), 1.0] for text in texts], np.float32)
        return np.tile(seen, width // 4) * np.arange(1, width + 1)

    teachers = [{"name": "own", "call": own}]
    leaf = {"teachers": teachers, "method": {"name": "leaf"}}
    first = train(recipe(tmp_path / "first", tiny_bert, sentences[:60], **leaf))
    again = train(recipe(tmp_path / "again", tiny_bert, sentences[:60], student={"model": str(first)}, **leaf, **STILL))
    before, after = (vectors_of(folder, sentences[:20]) for folder in (first, again))
    wanted = own(sentences[:20])
    wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    assert (after * wanted).sum(1).mean() > (before * wanted).sum(1).mean() - 0.05


def test_a_student_with_an_expert_head_goes_on_behind_it(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    moe = {"method": {"name": "distillmoe", "moe_weight": 1.0}}
    far = {"optimizer": {"lr": 1e-3, "heads_lr": 0.3}, "training": {"max_steps": 12, "batch_size": 8, "use_cpu": True}}
    first = train(recipe(tmp_path / "first", tiny_bert, sentences[:60], **moe, **far))
    again = train(recipe(tmp_path / "again", tiny_bert, sentences[:60], student={"model": str(first)}, **moe, **STILL))
    before, after = (vectors_of(folder, sentences[:20]) for folder in (first, again))
    assert (before * after).sum(1).min() > 0.99
    assert sum(type(module).__name__ == "ExpertHead" for module in distilvec.load(again).children()) == 2


def test_padding_of_a_fresh_student_stands_behind_the_text(tiny_model_folders: dict[str, Path]) -> None:
    student = fresh(layers=2, width=16, tokenizer=tiny_model_folders["qwen3"], max_length=64)
    texts = ["a small text", "a much longer text with many more words than the other one has, so that it is padded"]
    np.testing.assert_allclose(student.encode(texts)[0], student.encode(texts[:1])[0], atol=1e-5)


def test_a_fresh_student_of_a_teacher_with_other_names(tiny_model_folders: dict[str, Path]) -> None:
    for kind in ("distilbert", "gpt2"):
        teacher = load_student(tiny_model_folders[kind], device="cpu")
        width = teacher.get_embedding_dimension()
        assert width is not None
        student = fresh(layers=1, width=width, tokenizer=tiny_model_folders["bert"], init_from=teacher)
        assert student.encode(["a text"]).shape == (1, width)


def test_a_decoder_without_a_padding_token_is_padded(tmp_path: Path, tiny_model_folders: dict[str, Path]) -> None:
    folder = tmp_path / "gpt2"
    shutil.copytree(tiny_model_folders["gpt2"], folder)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            content = json.loads((folder / name).read_text())
            content.pop("pad_token", None)
            content.setdefault("eos_token", "</s>")
            (folder / name).write_text(json.dumps(content))
    model = load_student(folder, device="cpu")
    texts = ["a small text", "a longer text, so that the first one has to be padded"]
    np.testing.assert_allclose(model.encode(texts)[0], model.encode(texts[:1])[0], atol=1e-5)


@pytest.mark.parametrize("method", [{"name": "talas", "tamd_weight": 0}, {"name": "dskd", "sentence_weight": 0}])
def test_a_space_without_a_map_is_refused_before_teaching(
    method: dict[str, Any], tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    given = recipe(
        tmp_path, tiny_bert, sentences[:60], method=method, student={"model": str(tiny_bert), "space": "teacher"}
    )
    with pytest.raises(DistilvecError, match="no map into the teacher's space"):
        train(given)
    assert not (tmp_path / "out" / "stores").exists() or not list((tmp_path / "out" / "stores").rglob("*.arrow"))


def test_dropout_of_a_decoder_is_dropout(tiny_model_folders: dict[str, Path]) -> None:
    student = _with_dropout(load_student(tiny_model_folders["qwen3"], device="cpu"), 0.5).train()
    features = student.preprocess(["a text of some words"])
    one, other = (student(dict(features))["sentence_embedding"] for _ in range(2))
    assert not torch.allclose(one, other)


def test_one_molecule_is_a_batch() -> None:
    pytest.importorskip("rdkit")
    from distilvec.modules.smiles_network import SmilesEncoder, codes_of

    network = SmilesEncoder().train()
    found = network({"codes": torch.from_numpy(codes_of(["CCO"]))})["sentence_embedding"]
    assert found.shape == (1, 196) and torch.isfinite(found).all()
