"""Text models as teachers: the same vectors as sentence-transformers, prompts, lengths, fingerprints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.judging import CachedEncoder
from distilvec.recipe import ModelSection
from distilvec.teachers import Reading, TeacherCard, load_teacher
from distilvec.teachers.encoding import cut_batches
from distilvec.teachers.signals import Wanted
from distilvec.teachers.table import open_teacher

KINDS = ["bert", "xlmr", "modernbert", "qwen3", "mistral"]


@pytest.mark.parametrize("kind", KINDS)
def test_same_vectors_as_sentence_transformers(
    kind: str, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    teacher = load_teacher(model=tiny_model_folders[kind], device="cpu")
    own = SentenceTransformer(str(tiny_model_folders[kind]), device="cpu").encode(sentences)
    assert teacher.tokens is not None  # the quick way is what is tested here
    assert np.abs(teacher.encode(sentences) - own).max() < 1e-5
    assert teacher.card.width == own.shape[1]
    norms = np.linalg.norm(own, axis=1)
    assert teacher.card.normalized == bool(np.allclose(norms, 1, atol=1e-4))


@pytest.mark.parametrize("kind", KINDS)
def test_same_vectors_without_the_quick_tokenizer(
    kind: str, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    teacher = load_teacher(model=tiny_model_folders[kind], device="cpu", prompt="note: ")
    quick = teacher.encode(sentences)
    teacher.tokens = None
    assert np.abs(teacher.encode(sentences) - quick).max() < 1e-5


def test_real_teacher(real_teacher_folder: Path, sentences: list[str]) -> None:
    teacher = load_teacher(name="minilm", model=real_teacher_folder, device="cpu")
    texts = sentences[:80]
    own = SentenceTransformer(str(real_teacher_folder), device="cpu").encode(texts)
    assert np.abs(teacher.encode(texts) - own).max() < 1e-5
    card = teacher.card
    assert (card.width, card.layers, card.pooling, card.max_length) == (384, 6, "mean", 256)
    assert card.licence == "apache-2.0"
    assert card.parameters == 22_713_216
    assert TeacherCard.from_dict(json.loads(json.dumps(card.to_dict()))) == card


def test_stream_gives_every_text_once(tiny_bert: Path, sentences: list[str]) -> None:
    teacher = load_teacher(model=tiny_bert, device="cpu", token_budget=256)
    rows, widths = [], set()
    for part, vectors in teacher.stream(sentences):
        assert vectors.dtype == np.float32
        assert len(part) == len(vectors)
        rows.extend(part.tolist())
        widths.add(vectors.shape[1])
    assert sorted(rows) == list(range(len(sentences)))
    assert widths == {32}


def test_stream_may_be_left_early(tiny_bert: Path, sentences: list[str]) -> None:
    teacher = load_teacher(model=tiny_bert, device="cpu", token_budget=64)
    stream = teacher.stream(sentences)
    next(stream)
    stream.close()
    assert teacher.encode(sentences[:3]).shape == (3, 32)


def test_no_texts_and_odd_texts(tiny_model_folders: dict[str, Path]) -> None:
    odd = ["", " ", "\n", "a\x00b", "🎉" * 300, "word " * 3000]
    for kind in KINDS:
        teacher = load_teacher(model=tiny_model_folders[kind], device="cpu")
        assert teacher.encode([]).shape == (0, 32)
        own = SentenceTransformer(str(tiny_model_folders[kind]), device="cpu")
        if kind != "qwen3":
            assert np.abs(teacher.encode(odd) - own.encode(odd)).max() < 1e-5
        assert np.isfinite(teacher.encode(odd)).all()


def test_batches_keep_the_budget_and_waste_little() -> None:
    lengths = np.random.default_rng(0).geometric(0.02, 3000).clip(1, 512)
    batches = cut_batches(lengths, 1024)
    assert sorted(np.concatenate(batches).tolist()) == list(range(3000))
    padded = [int(lengths[batch].max()) * len(batch) for batch in batches]
    assert all(size <= 1024 or len(batch) == 1 for size, batch in zip(padded, batches, strict=True))
    assert sum(padded) < 1.05 * lengths.sum()
    assert len(batches) < 1.3 * lengths.sum() / 1024
    assert cut_batches(np.array([], dtype=np.int64), 10) == []
    assert [batch.tolist() for batch in cut_batches(np.array([0, 0]), 10)] == [[0, 1]]


def test_prompts(tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    folder, texts = tiny_model_folders["qwen3"], sentences[:20]
    own = SentenceTransformer(str(folder), device="cpu")
    plain = load_teacher(model=folder, device="cpu")
    named = load_teacher(model=folder, device="cpu", prompt="query")
    literal = load_teacher(model=folder, device="cpu", prompt="passage: ")
    assert plain.card.prompt is None
    assert named.card.prompt == own.prompts["query"]
    assert np.abs(named.encode(texts) - own.encode(texts, prompt_name="query")).max() < 1e-5
    assert np.abs(literal.encode(texts) - own.encode(texts, prompt="passage: ")).max() < 1e-5
    assert np.abs(plain.encode(texts) - named.encode(texts)).max() > 0.01


def test_queries_and_documents(tiny_model_folders: dict[str, Path], tmp_path: Path, sentences: list[str]) -> None:
    texts = sentences[:20]
    own = SentenceTransformer(str(tiny_model_folders["qwen3"]), device="cpu")
    own.prompts = {"query": "ask: ", "passage": "", "note": "note: "}
    own.default_prompt_name = "note"
    own.save(str(tmp_path / "two-sided"))
    for prompt in (None, "query"):
        teacher = load_teacher(model=tmp_path / "two-sided", device="cpu", prompt=prompt)
        encoder = CachedEncoder(teacher)
        assert np.abs(encoder.query(texts) - own.encode(texts, prompt="ask: ")).max() < 1e-5
        assert np.abs(encoder.document(texts) - own.encode(texts, prompt="")).max() < 1e-5
        assert np.abs(encoder(texts) - own.encode(texts, prompt=teacher.prompt)).max() < 1e-5
    # what somebody writes out stands before every text, also where it is nothing
    for prompt in ("find: ", ""):
        literal = CachedEncoder(load_teacher(model=tmp_path / "two-sided", device="cpu", prompt=prompt))
        for found in (literal.query(texts), literal.document(texts)):
            assert np.abs(found - own.encode(texts, prompt=prompt)).max() < 1e-5


def test_default_prompt_of_the_model(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    model.prompts, model.default_prompt_name = {"note": "note: "}, "note"
    model.save(str(tmp_path / "with"))
    own = model.encode(sentences[:10])
    with_default = load_teacher(model=tmp_path / "with", device="cpu")
    assert with_default.card.prompt == "note: "
    assert np.abs(with_default.encode(sentences[:10]) - own).max() < 1e-5
    without = load_teacher(model=tmp_path / "with", device="cpu", prompt="")
    assert without.card.prompt is None
    assert np.abs(without.encode(sentences[:10]) - own).max() > 1e-3


def test_the_name_of_an_empty_prompt_adds_no_prompt(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    model.prompts, model.default_prompt_name = {"query": "ask: ", "document": ""}, "query"
    model.save(str(tmp_path / "with"))
    teacher = load_teacher(model=tmp_path / "with", device="cpu", prompt="document")
    assert teacher.rendered("a cat")[0].count("document") == 0 and teacher.card.prompt is None
    assert np.abs(teacher.encode(sentences[:10]) - model.encode_document(sentences[:10])).max() < 1e-5


def test_prompt_left_out_of_the_pooling(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    model[1].include_prompt = False
    model.save(str(tmp_path / "instructor"))
    teacher = load_teacher(model=tmp_path / "instructor", device="cpu", prompt="Represent the sentence: ")
    own = model.encode(sentences[:30], prompt="Represent the sentence: ")
    assert np.abs(teacher.encode(sentences[:30]) - own).max() < 1e-5
    assert (
        np.abs(load_teacher(model=tiny_bert, prompt="Represent the sentence: ").encode(sentences[:30]) - own).max()
        > 1e-3
    )


def test_maximum_length(tiny_bert: Path, sentences: list[str]) -> None:
    short = load_teacher(model=tiny_bert, device="cpu", max_length=16)
    own = SentenceTransformer(str(tiny_bert), device="cpu")
    own.max_seq_length = 16
    assert short.card.max_length == 16
    assert np.abs(short.encode(sentences) - own.encode(sentences)).max() < 1e-5
    with pytest.raises(DistilvecError, match=r"max_length.*4096.*128"):
        load_teacher(model=tiny_bert, device="cpu", max_length=4096)


def test_fingerprint_follows_what_decides_the_vectors(tiny_bert: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(tiny_bert, copy)

    def fingerprint(folder: Path = copy, **options: object) -> str:
        return load_teacher(model=folder, device="cpu", **options).card.fingerprint  # type: ignore[arg-type]

    plain = fingerprint(tiny_bert)
    assert fingerprint() == plain  # the place does not count
    assert fingerprint(dtype="bfloat16") == plain
    seen = {plain, fingerprint(prompt="query: "), fingerprint(max_length=64)}
    assert len(seen) == 3
    pooling = copy / "1_Pooling" / "config.json"
    kept = pooling.read_text()
    pooling.write_text(kept.replace('"mean"', '"cls"'))
    seen.add(fingerprint())
    pooling.write_text(kept)
    assert fingerprint() == plain
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "transformers_version": "5.99.0"}))
    assert fingerprint() == plain
    tokenizer = json.loads((copy / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    seen.add(fingerprint())
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (copy / "model.safetensors").write_bytes(bytes(weights))
    seen.add(fingerprint())
    assert len(seen) == 6


def test_bare_transformers_folders(tiny_model_folders: dict[str, Path], tmp_path: Path, sentences: list[str]) -> None:
    for kind, pooling in (("bert", "mean"), ("qwen3", "lasttoken")):
        model = SentenceTransformer(str(tiny_model_folders[kind]), device="cpu")
        model[0].model.save_pretrained(tmp_path / kind)
        model.tokenizer.save_pretrained(tmp_path / kind)
        teacher = load_teacher(model=tmp_path / kind, device="cpu")
        assert teacher.assumed_pooling
        assert teacher.card.pooling == pooling
        chosen = load_teacher(model=tmp_path / kind, device="cpu", pooling="cls")
        assert not chosen.assumed_pooling and chosen.card.pooling == "cls"
        assert chosen.card.fingerprint != teacher.card.fingerprint, "another store"
        if kind == "bert":  # mean pooling is what the folder with modules.json has, too
            assert np.abs(teacher.encode(sentences[:20]) - model.encode(sentences[:20])).max() < 1e-5


def test_pooling_is_for_models_that_say_nothing_about_it(tiny_bert: Path) -> None:
    assert load_teacher(model=tiny_bert, pooling="mean").card.pooling == "mean"
    with pytest.raises(DistilvecError, match="/bert: .*mean.*pooling: last"):
        load_teacher(model=tiny_bert, pooling="last")
    with pytest.raises(DistilvecError, match='^teacher, pooling: unknown key "pooling".*goes with model'):
        load_teacher(call=lambda texts: np.ones((len(texts), 2)), pooling="cls")


def test_half_precision_stays_close(real_teacher_folder: Path, sentences: list[str]) -> None:
    texts = sentences[:30]
    full = load_teacher(model=real_teacher_folder, device="cpu").encode(texts)
    half = load_teacher(model=real_teacher_folder, device="cpu", dtype="bfloat16").encode(texts)
    assert half.dtype == np.float32
    cosines = (full * half).sum(axis=1)
    assert cosines.min() > 0.999
    assert np.abs(full - half).max() > 1e-6  # it really was another precision
    with pytest.raises(DistilvecError, match="^teacher, dtype: .*'bfloat16'.*got 'bfloat'"):
        load_teacher(model=real_teacher_folder, dtype="bfloat")


def test_static_embedding_model(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    tokenizer = SentenceTransformer(str(tiny_bert), device="cpu").tokenizer.backend_tokenizer
    torch.manual_seed(0)
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=24)], device="cpu")
    model.save(str(tmp_path / "static"))
    teacher = load_teacher(model=tmp_path / "static", device="cpu")
    assert teacher.tokens is None
    assert teacher.card.width == 24
    assert np.abs(teacher.encode(sentences) - model.encode(sentences)).max() < 1e-5
    assert teacher.rendered("hello")[0] == "hello"


def test_signals(tiny_bert: Path, sentences: list[str]) -> None:
    teacher = load_teacher(model=tiny_bert, device="cpu")
    signals = teacher.signals(sentences[:5])
    assert signals.sentence is not None
    assert signals.sentence.shape == (5, 32)
    assert signals.sentence.dtype == torch.float32
    assert signals.present.tolist() == [True] * 5
    assert np.allclose(signals.sentence.numpy(), teacher.encode(sentences[:5]))
    assert not any(parameter.requires_grad for parameter in teacher.model.parameters())


def test_a_budget_of_tokens_bounds_what_is_read_at_once(tiny_bert: Path, sentences: list[str]) -> None:
    """Of a recipe, too: it is what lowers a model's memory."""
    teacher: Any = open_teacher(ModelSection(name="t", model=str(tiny_bert), token_budget=64), Reading())
    shapes: list[int] = []
    teacher.model[0].register_forward_pre_hook(lambda module, given: shapes.append(given[0]["input_ids"].numel()))
    found = teacher.encode(sentences[:40])
    assert len(shapes) > 5 and max(shapes) <= max(64, *(teacher.rendered(text)[1] for text in sentences[:40]))
    plain = load_teacher(model=tiny_bert)
    np.testing.assert_allclose(found, plain.encode(sentences[:40]), atol=1e-5)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"model": "m", "batch_size": 2}, 'unknown key "batch_size".*token_budget'),
        ({"model": "m", "rate_limit": 2.0}, 'unknown key "rate_limit".*goes with call or api'),
        ({"vectors": "v.npy", "batch_size": 2}, 'unknown key "batch_size".*goes with call or api'),
        ({"call": len, "dtype": "float16"}, 'unknown key "dtype".*goes with model'),
        ({"vectors": "v.npy", "token_budget": 2}, 'unknown key "token_budget".*goes with model'),
        ({"call": len, "promt": "x"}, 'unknown key "promt".*Did you mean "prompt"'),
        ({"model": "m", "call": len}, "exactly one of model, call"),
    ],
)
def test_options_that_a_source_has_no_use_for(given: dict[str, Any], word: str) -> None:
    with pytest.raises(DistilvecError, match=word):
        load_teacher(name="t", **given)


def test_a_model_leaves_its_gpu_and_comes_back_when_it_is_asked(
    tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = load_teacher(model=tiny_bert, device="cpu")
    expected, moved = teacher.encode(["a text"]), []
    monkeypatch.setattr(teacher.model, "to", lambda device: moved.append(str(device)))
    teacher.rest()
    teacher.wake()
    assert moved == [], "there is nowhere else to go"
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: moved.append("emptied"))
    teacher.device = torch.device("cuda")
    teacher.rest()
    assert moved == ["cpu", "emptied"]

    def back(device: Any) -> None:
        moved.append(str(device))
        teacher.device = torch.device("cpu")  # there is no GPU for what follows

    monkeypatch.setattr(teacher.model, "to", back)
    assert np.array_equal(teacher.encode(["a text"]), expected) and moved[-1] == "cuda"


def test_modules_behind_the_transformer_in_half_precision(
    tiny_bert: Path, tmp_path: Path, sentences: list[str]
) -> None:
    """As EmbeddingGemma's: held in the files' precision on a GPU, between states in float32."""
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    model.append(Dense(model.get_embedding_dimension() or 0, 16))
    model.to(torch.bfloat16).save(str(tmp_path))
    teacher = load_teacher(model=tmp_path, device="cpu", dtype="bfloat16")
    assert {each.dtype for each in teacher.model[-1].parameters()} == {torch.bfloat16}
    own = SentenceTransformer(str(tmp_path), device="cpu", model_kwargs={"dtype": "float32"}).encode(sentences)
    for found in (teacher.encode(sentences), teacher.signals(sentences, Wanted(tokens=(1,))).sentence):
        assert found is not None and found.dtype in (np.float32, torch.float32)
        cosines = (own * np.asarray(found)).sum(1) / np.linalg.norm(own, axis=1) / np.linalg.norm(found, axis=1)
        assert cosines.min() > 0.999


def full(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")


def test_a_batch_beyond_gpu_memory_is_read_in_halves(
    tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    teacher, plain = load_teacher(model=tiny_bert, device="cpu"), load_teacher(model=tiny_bert, device="cpu")
    wanted, first = Wanted(tokens=(1,), attention=(2,)), sentences[:60]
    read: list[int] = []

    def small(module: Any, given: Any) -> None:
        if given[0]["input_ids"].numel() > 300:
            full()
        read.append(len(given[0]["input_ids"]))

    teacher.model[0].register_forward_pre_hook(small)
    np.testing.assert_allclose(teacher.encode(first), plain.encode(first), atol=1e-5)
    assert sum(read) == 60 and "no room for" in caplog.text
    teacher._budget, read[:] = 10_000, []
    (tokens,) = (
        {
            int(row): seen.tokens[1][place]
            for rows, seen in plain.observe(first[:1], wanted)
            for place, row in enumerate(rows)
        },
    )
    found = {
        int(row): seen.tokens[1][place]
        for rows, seen in teacher.observe(first, wanted)
        for place, row in enumerate(rows)
    }
    assert len(found) == 60 == sum(read)
    real = tokens[0].abs().sum(-1) > 0
    torch.testing.assert_close(found[0][: len(real)][real], tokens[0][real], atol=1e-5, rtol=1e-5)
    monkeypatch.setattr(teacher, "_forward", full)
    with pytest.raises(EnvironmentProblem, match=r"no room for a single text .*max_length"):
        teacher.encode(first)


def test_a_model_that_is_too_large_for_the_gpu(tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distilvec.modules.opening.open_pipeline", full)
    with pytest.raises(EnvironmentProblem, match=r"does not fit into the memory that is left on the GPU.*dtype"):
        load_teacher(model=tiny_bert, device="cpu")
