"""What a step is fed: the student's own token ids, batches that depend on seed and epoch alone, equal sources."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from tests.training import jobs

from distilvec.errors import DataError, DistilvecError
from distilvec.methods.base import Needs, WantedOfStudent
from distilvec.students import load_student
from distilvec.students.tap import StudentTap
from distilvec.training import BucketedBatches, Collator, LiveSource, StoreSource, TokenizedCorpus
from distilvec.training.sample import make_sample


def build(student: SentenceTransformer, texts: Sequence[str], folder: Path, fingerprint: str = "") -> TokenizedCorpus:
    return TokenizedCorpus.build(
        student, lambda rows: [texts[row] for row in rows], len(texts), folder, fingerprint=fingerprint
    )


KINDS = ["bert", "xlmr", "modernbert", "qwen3", "mistral"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompt", [None, "search query: "])
def test_ids_are_those_of_preprocess(
    tiny_model_folders: dict[str, Path], sentences: list[str], tmp_path: Path, kind: str, prompt: str | None
) -> None:
    student = load_student(tiny_model_folders[kind], max_length=32)
    if prompt:
        student.prompts["mine"] = prompt
        student.default_prompt_name = "mine"
    texts = [*sentences[:60], "", "  spaced  ", "Ünïcödé 你好 \u200d🙂"]
    tokens = build(student, texts, tmp_path)
    for rows in ([0, 1, 2, 3, 60], [62, 61], [59]):
        expected = student.preprocess([texts[row] for row in rows], prompt=prompt)
        found = tokens.features(np.array(rows))
        assert torch.equal(found["input_ids"], expected["input_ids"])
        assert torch.equal(found["attention_mask"], expected["attention_mask"])
        assert ("prompt_length" in found) == (prompt is not None)
        if prompt:
            assert found["prompt_length"].tolist() == [expected["prompt_length"]] * len(rows)
    long = student.tokenizer([(prompt or "") + text for text in texts])["input_ids"]
    assert tokens.truncated == sum(len(ids) > 32 for ids in long) > 0
    assert tokens.lengths.tolist() == [min(len(ids), 32) for ids in long]


@pytest.mark.parametrize("kind", ["bert", "mistral"])
def test_a_prompt_left_out_of_the_pooling_stays_out(
    tiny_model_folders: dict[str, Path], sentences: list[str], tmp_path: Path, kind: str
) -> None:
    student = load_student(tiny_model_folders[kind], device="cpu")
    student.prompts["mine"] = "represent this text for searching: "
    student.default_prompt_name = "mine"
    texts = sentences[:6]
    with_prompt = student.encode(texts)
    next(module for module in student if isinstance(module, Pooling)).include_prompt = False
    expected = student.encode(texts)
    assert np.abs(expected - with_prompt).max() > 1e-3
    output = StudentTap(student)(build(student, texts, tmp_path).features(range(6)), views=2, layers=True)
    for view in (0, 1):
        np.testing.assert_allclose(output.embedding[view].detach().numpy(), expected, atol=1e-5)
    if kind == "bert":  # its last block's state is what is pooled
        assert output.layers is not None
        np.testing.assert_allclose(output.layers[0, -1].detach().numpy(), expected, atol=1e-5)


def test_static_students_get_bags(tiny_bert: Path, sentences: list[str], tmp_path: Path) -> None:
    tokenizer = load_student(tiny_bert).tokenizer.backend_tokenizer
    student = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")
    texts = [*sentences[:5], ""]
    tokens = build(student, texts, tmp_path)
    output = StudentTap(student)(tokens.features([5, 2, 0]), views=1)
    np.testing.assert_allclose(
        output.embedding[0].detach().numpy(), student.encode([texts[5], texts[2], texts[0]]), atol=1e-6
    )


def test_a_student_that_changes_its_texts_is_refused(
    tiny_bert: Path, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = load_student(tiny_bert)
    plain = student.preprocess
    monkeypatch.setattr(student, "preprocess", lambda texts, **how: plain([f"chat: {text}" for text in texts], **how))
    with pytest.raises(DistilvecError, match="^student: .*" + re.escape(repr(sentences[0][:40]))):
        build(student, sentences[:5], tmp_path)


def test_ids_are_reused_for_the_same_texts_only(tiny_bert: Path, sentences: list[str], tmp_path: Path) -> None:
    student = load_student(tiny_bert)
    first = build(student, sentences[:20], tmp_path, "a")
    student.tokenizer(["x"], truncation=True, max_length=3)  # leaves its mark on the tokenizer
    again = build(load_student(tiny_bert), sentences[:20], tmp_path, "a")
    assert len(list(tmp_path.glob("[!.]*"))) == 2
    assert isinstance(again.ids, np.memmap) and np.array_equal(first.ids, again.ids)
    other = build(student, sentences[20:40], tmp_path, "b")
    assert len(list(tmp_path.glob("[!.]*"))) == 4
    assert other.features([0])["input_ids"].tolist() == student.preprocess([sentences[20]])["input_ids"].tolist()
    student.max_seq_length = 5
    assert build(student, sentences[:20], tmp_path, "a").lengths.max() == 5


# batches


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 300),
    batch=st.integers(1, 8),
    world=st.sampled_from([1, 2, 4]),
    pool=st.integers(1, 9),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 4),
    drop_last=st.booleans(),
)
def test_batches_and_their_slices(
    count: int, batch: int, world: int, pool: int, seed: int, epoch: int, drop_last: bool
) -> None:
    lengths = np.random.default_rng(count).integers(1, 60, count)
    batch *= world

    def batches(rank: int = 0, ranks: int = 1) -> list[list[int]]:
        sampler = BucketedBatches(lengths, batch, seed=seed, pool=pool, rank=rank, world=ranks, drop_last=drop_last)
        sampler.set_epoch(epoch)
        made = list(sampler)
        assert len(made) == len(sampler)
        return made

    whole = batches()
    rows = [row for one in whole for row in one]
    assert len(rows) == len(set(rows))
    assert len(rows) == (count // batch * batch if drop_last else count)
    assert sum(len(one) != batch for one in whole) <= 1
    shares = [batches(rank, world) for rank in range(world)]
    assert len({tuple(len(one) for one in share) for share in shares}) == 1  # equally many on all ranks, step by step
    joined = [[row for part in parts for row in part] for parts in zip(*shares, strict=True)]
    if count % batch % world == 0 or drop_last:
        assert joined == whole
    else:  # what cannot be shared evenly is left out, at most world - 1 rows
        assert len(rows) - sum(map(len, joined)) < world
        full = [sorted(one for one in made if len(one) == batch) for made in (joined, whole)]
        assert full[0] == full[1]


def test_batches_mix_and_hold_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(4, 200, 10_000)

    def batches(epoch: int, **how: Any) -> list[list[int]]:
        sampler = BucketedBatches(lengths, 32, seed=1, **how)
        sampler.set_epoch(epoch)
        return list(sampler)

    def padding(made: list[list[int]]) -> float:
        width = sum(len(rows) * lengths[rows].max() for rows in made)
        return float(1 - lengths.sum() / width)

    assert padding(batches(0)) < 0.05 < 0.4 < padding(batches(0, pool=1))
    assert batches(0) == batches(0) != batches(1)
    together = [{frozenset(rows) for rows in batches(epoch)} for epoch in (0, 1)]
    assert not together[0] & together[1]


def test_ids_of_another_cut_are_not_reused(tiny_bert: Path, tmp_path: Path) -> None:
    texts = ["one two three four five six seven eight nine ten eleven twelve"] * 2
    names = []
    for side in ("right", "left"):
        student = load_student(tiny_bert, device="cpu", max_length=6)
        student.tokenizer.truncation_side = side
        tokens = build(student, texts, tmp_path)
        expected = student.preprocess(texts[:1])["input_ids"][0].tolist()
        assert tokens.features([1])["input_ids"][0].tolist() == expected, side
        names.append(tokens.name)
    assert names[0] != names[1]


# sources and collator


@pytest.fixture
def given_parts(home: Path) -> dict[str, Any]:
    return jobs.parts(home)


def test_nothing_here_touches_the_global_generators(given_parts: dict[str, Any], home: Path) -> None:
    corpus, student = given_parts["corpus"], given_parts["student"]
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), home / "tokens", fingerprint=corpus.fingerprint)
    collator = Collator(corpus, tokens, given_parts["sources"])
    for rows in BucketedBatches(tokens.lengths, 8, seed=0):
        collator(rows)
    make_sample(
        student, tokens, given_parts["sources"], corpus.train_rows, seed=0, needs=Needs(WantedOfStudent(layers=True))
    )
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before[1:]  # type: ignore[index]


def test_a_batch_is_a_plain_dictionary_of_tensors(given_parts: dict[str, Any], home: Path) -> None:
    corpus = given_parts["corpus"]
    tokens = TokenizedCorpus.build(
        given_parts["student"], corpus.texts, len(corpus), home / "tokens", fingerprint=corpus.fingerprint
    )
    batch = Collator(corpus, tokens, given_parts["sources"])([3, 1])
    assert type(batch) is dict and set(batch) == {"features", "teachers", "keys", "rows", "domain"}
    assert batch["rows"].tolist() == [3, 1]
    assert torch.equal(batch["keys"], torch.from_numpy(np.array(corpus.keys[[3, 1]])))
    assert batch["domain"].tolist() == [corpus.domains[3], corpus.domains[1]]
    assert batch["teachers"][0]["present"].tolist() == [True, True]


class Vectors:
    """A teacher that knows its vectors by heart; unknown texts get NaN."""

    def __init__(self, known: dict[str, np.ndarray], width: int) -> None:
        self.known, self.width = known, width

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self.known.get(text, np.full(self.width, np.nan, np.float32)) for text in texts])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 1e-3)])
def test_store_and_live_teacher_give_the_same_loss(home: Path, tmp_path: Path, dtype: str, tolerance: float) -> None:
    from distilvec.methods.table import build_method
    from distilvec.store import SignalStore
    from distilvec.training import Distiller

    given = jobs.parts(home, "still")
    corpus, student, infos = given["corpus"], given["student"].eval(), given["teachers"]
    exact = given["sources"][0].store.read(np.arange(len(corpus)))
    texts = corpus.texts()
    live = LiveSource(Vectors(dict(zip(texts[1:], exact[1:], strict=True)), jobs.WIDTH), corpus)  # type: ignore[arg-type]
    store = SignalStore.create(tmp_path / "store", jobs.CARD, jobs.WIDTH, dtype)
    with store.writer("all") as writer:
        writer.add(corpus.keys[1:], exact[1:])
    sources = {"live": live, "store": StoreSource(SignalStore.open(tmp_path / "store"), corpus)}
    tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), home / "tokens", fingerprint=corpus.fingerprint)
    for name in ("cosine", "talas", "relational"):
        losses = {}
        method = build_method(name, {})
        needs = method.needs(StudentTap(student).info, infos)
        sample = make_sample(student, tokens, [sources["store"]], corpus.train_rows, seed=0, needs=needs)
        method.build(StudentTap(student).info, infos, sample)
        for kind, source in sources.items():
            batch = Collator(corpus, tokens, [source])(range(12))
            assert batch["teachers"][0]["present"].tolist() == [False] + [True] * 11
            assert not batch["teachers"][0]["sentence"][0].any()
            with torch.no_grad():
                losses[kind] = Distiller(student, method, needs)(**batch)["loss"].item()
        assert losses["store"] == pytest.approx(losses["live"], rel=tolerance, abs=tolerance)
        assert losses["live"] > 1e-3


@pytest.mark.parametrize("name", ["uld", "mined", "multilevel_ot", "cdm"])
def test_class_logits_of_store_and_live_teacher_give_the_same_loss(home: Path, tmp_path: Path, name: str) -> None:
    from distilvec.methods.table import build_method
    from distilvec.recipe import TaskSection
    from distilvec.store import SignalStore, fill
    from distilvec.tasks.table import build_task
    from distilvec.training import Distiller
    from distilvec.training.step import describe

    given = jobs.parts(home, "still", "labelled", "classifier")
    corpus, student, infos, live = given["corpus"], given["student"].eval(), given["teachers"], given["sources"][0]
    torch.manual_seed(0)
    task = build_task(TaskSection(kind="classification"), infos[0].width, corpus.labels, corpus.label_names)
    method = build_method(name, {})
    info = describe(StudentTap(student).info, task)
    needs = method.needs(info, infos)
    wanted = needs.of(0)
    teacher = live.teacher
    store = SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width, "float32")
    fill(store, teacher, corpus.teacher_texts(), corpus.teacher_keys, wanted)
    tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), home / "tokens", fingerprint=corpus.fingerprint)
    found = []
    for source in (StoreSource(store, corpus), live):
        source.prepare(wanted, tokens)
        if not found:
            sample = make_sample(student, tokens, [source], corpus.train_rows, seed=0, needs=needs)
            method.build(info, infos, sample)
        batch = Collator(corpus, tokens, [source])(range(12))
        result = Distiller(student, method, needs, task)(**batch)
        assert result["terms"].keys() > {"task"}
        (gradient,) = torch.autograd.grad(result["loss"], student[0].model.embeddings.word_embeddings.weight)
        found.append((result["loss"].item(), gradient))
    (stored, first), (exact, second) = found
    tolerance = 1e-3 if wanted.tokens else 1e-6  # a store keeps token states in float16
    assert stored == pytest.approx(exact, rel=tolerance)
    assert (first - second).norm() < 10 * tolerance * second.norm()


@pytest.mark.parametrize("name", ["uld", "mined"])
def test_a_batch_of_which_the_store_has_nothing_trains_on_the_labels_alone(
    home: Path, tmp_path: Path, name: str
) -> None:
    """A store of a part of the corpus: also where the teacher's classes stand in another order than the task's."""
    from distilvec.methods.table import build_method
    from distilvec.recipe import TaskSection
    from distilvec.store import SignalStore, fill
    from distilvec.tasks.table import build_task
    from distilvec.training import Distiller
    from distilvec.training.step import describe

    given = jobs.parts(home, "still", "labelled", "classifier")
    corpus, student, infos, teacher = given["corpus"], given["student"], given["teachers"], given["sources"][0].teacher
    task = build_task(TaskSection(kind="classification"), infos[0].width, corpus.labels, corpus.label_names)
    info, method = describe(StudentTap(student).info, task), build_method(name, {})
    needs, store = method.needs(info, infos), SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width)
    fill(store, teacher, corpus.teacher_texts(np.arange(8, 20)), corpus.teacher_keys[8:20], needs.of(0))
    tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), home / "tokens", fingerprint=corpus.fingerprint)
    source = StoreSource(store, corpus, classes=np.arange(infos[0].classes)[::-1])
    source.prepare(needs.of(0), tokens)
    method.build(info, infos, make_sample(student, tokens, [source], np.arange(8, 20), seed=0, needs=needs))
    result = Distiller(student, method, needs, task)(**Collator(corpus, tokens, [source])(range(4)))
    assert result["terms"][name] == 0
    assert result["loss"].item() == pytest.approx(0.5 * result["terms"]["task"].item())


def test_a_store_of_another_corpus_is_said(home: Path, tmp_path: Path) -> None:
    from distilvec.store import SignalStore

    corpus = jobs.parts(home)["corpus"]
    store = SignalStore.create(tmp_path / "store", jobs.CARD, jobs.WIDTH, "float32")
    with store.writer("other") as writer:
        writer.add(np.arange(32, dtype=np.uint8).reshape(2, 16), np.ones((2, jobs.WIDTH), np.float32))
    with pytest.raises(DataError, match=r"/store: .*`distilvec teach`"):
        StoreSource(SignalStore.open(tmp_path / "store"), corpus)


def test_fresh_batch_norms_see_some_batches_before_the_sample() -> None:
    """In eval mode a new residual network says what it says in training; one that has seen batches is left alone."""
    from distilvec.modules.cifar_resnet import CifarResNet, image_model
    from distilvec.training.sample import settle_norms

    class Images:
        pixels = 3 + 2 * torch.randn(96, 3, 16, 16, generator=torch.Generator().manual_seed(0))

        def features(self, rows: np.ndarray) -> dict[str, Any]:
            return {"pixel_values": self.pixels[torch.as_tensor(rows)]}

    torch.manual_seed(0)
    student, tokens, rows = image_model(CifarResNet(depth=8, width=4)), Images(), np.arange(96)

    def said(mode: bool) -> torch.Tensor:
        network = copy.deepcopy(student).train(mode)
        with torch.no_grad():
            return network(tokens.features(rows))["sentence_embedding"]

    assert (said(False) - said(True)).norm() > 0.5 * said(True).norm()
    settle_norms(student, tokens, rows, 32)  # type: ignore[arg-type]
    assert (said(False) - said(True)).norm() < 0.1 * said(True).norm()
    norms = [module for module in student.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert all(norm.momentum == 0.1 and not norm.training for norm in norms)
    before = copy.deepcopy(student.state_dict())
    settle_norms(student, tokens, rows[:10], 5)  # type: ignore[arg-type]
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())


def test_offsets_are_not_a_sparse_file_while_texts_are_read(tiny_bert: Path, tmp_path: Path) -> None:
    """Writing into the holes of a mapped file ends the process where the disk is full."""
    seen: list[Path] = []

    def texts(rows: np.ndarray) -> list[str]:
        seen.extend(tmp_path.glob(".offsets*"))
        return [f"text {row}" for row in rows]

    made = TokenizedCorpus.build(load_student(tiny_bert, device="cpu"), texts, 9, tmp_path, fingerprint="f")
    again = TokenizedCorpus.build(load_student(tiny_bert, device="cpu"), texts, 9, tmp_path, fingerprint="f")
    assert not seen and np.array_equal(made.offsets, again.offsets) and len(made.lengths) == 9
