"""What was found by reading training, methods and tasks: each as the smallest case that shows it."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.training import jobs
from tests.training.assembling import assemble
from tests.training.test_loop import run
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from distilvec import DistillationLoss, SignalStore
from distilvec.corpus import Corpus, content_keys
from distilvec.corpus.batch import Batch
from distilvec.errors import DataError, DistilvecError, Interrupted
from distilvec.methods.base import Needs, Sample, Term
from distilvec.methods.table import build_method
from distilvec.modules.cifar_resnet import CifarResNet, image_model
from distilvec.modules.task_head import TaskHead
from distilvec.optim import SharpnessAware
from distilvec.recipe import OptimizerSection, SharpnessSection, TrainingSection
from distilvec.students import StudentTap, load_student
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.tasks.labels import encode_labels
from distilvec.tasks.predictor import Predictor
from distilvec.teachers.signals import TeacherInfo, TeacherSignals
from distilvec.training import BucketedBatches, Material, Settings, TokenizedCorpus, attention, fit, free_maps
from distilvec.training import items as prepared
from distilvec.training.attention import choose_attention, rehearse
from distilvec.training.items import PreparedCorpus
from distilvec.training.log import Sums
from distilvec.training.loop import Loop
from distilvec.training.sharpness import SharpStep
from distilvec.training.step import Distiller, Extras


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As that of tests/training."""
    return jobs.prepare(tmp_path_factory.mktemp("training-home"))


# checkpoints and what is kept


def scored(*scores: float, then: Callable[[int], None] = lambda _: None) -> Callable[..., dict[str, float]]:
    """An evaluation with these scores, which does something else, too."""
    calls = iter(enumerate(scores, 1))

    def evaluate(*_: Any) -> dict[str, float]:
        number, score = next(calls)
        then(number)
        return {"score": score}

    return evaluate


BEST = {"evaluate_every": 1, "best": "score", "save_total_limit": 1}


def test_the_checkpoint_that_a_stop_reported_is_kept(home: Path, tmp_path: Path) -> None:
    def stop(number: int) -> None:
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="at step 4 of 5"):
        run(home, tmp_path, evaluate=scored(0.1, 0.9, 0.5, 0.4, then=stop), **BEST)
    assert {place.name for place in (tmp_path / "checkpoints").iterdir()} == {"checkpoint-2", "checkpoint-4"}


def test_somebodys_folder_stays_when_only_the_best_is_kept(home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "checkpoints" / "checkpoint-99" / "mine.txt"

    def write(_: int) -> None:
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text("mine")

    run(home, tmp_path, evaluate=scored(0.1, 0.9, 0.5, 0.4, 0.3, then=write), **BEST)
    assert mine.read_text() == "mine"
    assert {place.name for place in (tmp_path / "checkpoints").iterdir()} == {"checkpoint-2", "checkpoint-99"}


def test_the_sample_is_gone_before_training(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, train = fit.__globals__["make_sample"], fit.__globals__["_train"]
    samples: list[weakref.ref[Sample]] = []

    def made(*args: Any, **kwargs: Any) -> Sample:
        sample: Sample = make(*args, **kwargs)
        samples.append(weakref.ref(sample))
        return sample

    def trained(*args: Any) -> None:
        gc.collect()
        assert [each() for each in samples] == [None]
        train(*args)

    monkeypatch.setitem(fit.__globals__, "make_sample", made)
    monkeypatch.setitem(fit.__globals__, "_train", trained)
    _, fitted = run(home, tmp_path, max_steps=1)
    assert fitted.free_map[0].any()


def test_a_teacher_without_any_of_the_sampled_rows_has_a_map_of_zeros() -> None:
    signals = TeacherSignals(present=torch.zeros(4, dtype=torch.bool), sentence=torch.zeros(4, 5))
    (found,) = free_maps(Sample(StudentOutput(torch.ones(1, 4, 3)), [signals]))
    assert found.shape == (3, 5) and found.dtype == np.float32 and not found.any()


@pytest.mark.parametrize("content", ["", '{"kernel": ', '{"kernel": "none"}'])
def test_an_unreadable_choice_of_attention_is_made_again(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(attention, "_time", lambda student, kernel, step: float(kernel == "sdpa"))
    (tmp_path / attention.FILE).write_text(content)
    student = load_student(tiny_bert, device="cpu")
    for _ in range(2):
        chosen = choose_attention(student, lambda: None, tmp_path, steps=1000, device=torch.device("cpu"))
        assert chosen == "eager"
    assert [file.name for file in tmp_path.glob("[!.]*")] == [attention.FILE]


def test_offsets_are_no_file_with_holes_while_texts_are_read(tiny_bert: Path, tmp_path: Path) -> None:
    """Writing into the holes of a mapped file ends the process where the disk is full."""
    seen: list[Path] = []

    def texts(rows: np.ndarray) -> list[str]:
        seen.extend(tmp_path.glob(".offsets*"))
        return [f"text {row}" for row in rows]

    made = TokenizedCorpus.build(load_student(tiny_bert, device="cpu"), texts, 9, tmp_path, fingerprint="f")
    again = TokenizedCorpus.build(load_student(tiny_bert, device="cpu"), texts, 9, tmp_path, fingerprint="f")
    assert not seen and np.array_equal(made.offsets, again.offsets) and len(made.lengths) == 9


# batch norms


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, values: Tensor) -> Tensor:
        return self.norm(self.linear(values))


@pytest.mark.parametrize("slope", [1.0, float("inf")])
def test_batch_norms_keep_the_statistics_of_the_weights_themselves(slope: float) -> None:
    model, plain = Normed(), Normed()
    plain.load_state_dict(model.state_dict())
    batch = torch.randn(8, 3)
    plain(batch)
    model.linear.weight.register_hook(lambda gradient: gradient * slope)
    loop: Any = SimpleNamespace(
        optimizer=SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), kind="sam", rho=1.0),
        model=model,
        sums=Sums(),
        synchronised=lambda on: contextlib.nullcontext(),
        backward=Tensor.backward,
        forward=lambda inputs, perturbed=False: {
            **dict.fromkeys(("items", "domains", "counting")),
            "loss": model(inputs["batch"])[:, 0].exp().mean(),
        },
    )
    step = SharpStep(loop, SharpnessSection(kind="sam"))
    step({"batch": batch}, 1.0, last=True)
    found, expected = dict(model.named_buffers()), dict(plain.named_buffers())
    assert len(found) == 3 and all(torch.equal(found[name], value) for name, value in expected.items())


def test_gradient_caching_is_refused_for_batch_norms() -> None:
    student = image_model(CifarResNet(depth=8, width=4))
    with pytest.raises(DistilvecError, match=r"^training\.mini_batch_size: .*batch norms"):
        Distiller(student, build_method("cosine", {}), Needs(), extras=Extras(mini_batch_size=2))
    assert Distiller(student, build_method("cosine", {}), Needs()).mini_batch_size is None


# batches


def test_what_is_tried_before_training_is_as_large_as_a_mini_batch(home: Path, tmp_path: Path) -> None:
    made = assemble(home, "cosine")
    made.distiller.mini_batch_size = 3
    loop, tap, sizes = made.loop(tmp_path, {}), made.distiller.tap, []

    def tapped(features: dict[str, Tensor], *args: Any) -> StudentOutput:
        sizes.append(len(features["input_ids"]))
        return tap(features, *args)

    made.distiller.tap = tapped
    rehearse(loop)
    assert sizes == [3]


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that is made."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.most = max(self.most, made.numel())
        return made


def test_equal_items_are_found_without_a_cube_of_bytes() -> None:
    flat = torch.randint(0, 2, (1 + 40 * 16,), dtype=torch.uint8)[1:]  # where no word begins
    keys = flat.view(40, 16)
    keys[7], keys[8, :15] = keys[3], keys[3, :15]
    keys[8, 15] = 1 - keys[3, 15]
    keys[9] = keys[3]
    keys[9, 0] = 1 - keys[3, 0]
    expected = (keys[:, None] == keys[None]).all(-1)
    assert expected[3, 7] and not expected[3, 8] and not expected[3, 9]
    for given in (keys, keys.T.contiguous().T, keys[::3], keys[:0], keys[:1].expand(5, 16)):
        with Largest() as largest:
            found = Batch.equal_items(given)
        assert torch.equal(found, (given[:, None] == given[None]).all(-1))
        assert largest.most <= max(len(given) ** 2, given.numel())


def test_disam_compares_domains_by_the_rows_that_count() -> None:
    """Two domains of equal loss, of which one has more rows that do not count: nothing varies between them."""
    losses, domains = torch.tensor([2.0, 9.0, 9.0, 2.0]), torch.tensor([0, 0, 0, 1])
    counted = torch.tensor([True, False, False, True])
    terms = {"ranking": Term(losses, counted), "seen": Term(losses, None, 0.0)}
    result = Distiller._reduce(None, terms, domains, local=True)  # type: ignore[arg-type]
    loop: Any = SimpleNamespace(distiller=SimpleNamespace(gathers=False))
    step = SharpStep(loop, SharpnessSection(kind="disam", domains=5.0))
    assert float(step._objective(result)) == float(result["loss"]) == 2.0
    none = Distiller._reduce(None, {"ranking": Term(losses, counted & False)}, domains, local=True)  # type: ignore[arg-type]
    assert float(step._objective(none)) == 0.0


def test_a_live_teacher_and_workers_are_refused(home: Path, tmp_path: Path) -> None:
    given = jobs.parts(home, live="decoder")
    with pytest.raises(DistilvecError, match=r"^training\.dataloader_num_workers: .*live"):
        fit(
            given["student"],
            build_method("cosine", {}),
            Material(given["corpus"], given["teachers"], given["sources"]),
            Settings(TrainingSection(dataloader_num_workers=1, use_cpu=True), OptimizerSection(), tmp_path),
        )


class Squares:
    """A first module that prepares its items."""

    def prepare(self, texts: list[str]) -> list[np.ndarray]:
        return [np.full(10, int(text) ** 2) for text in texts]

    def collate(self, items: list[np.ndarray]) -> dict[str, Tensor]:
        return {"squares": torch.from_numpy(np.stack(items))}


class Kept:
    """A collator that says how much of the corpus a worker keeps."""

    def __init__(self, tokens: PreparedCorpus) -> None:
        self.tokens = tokens

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        return self.tokens.lengths[rows]

    def __call__(self, rows: list[int]) -> int:
        self.tokens.features(rows)
        return len(self.tokens._cache)


@pytest.mark.parametrize(("workers", "most"), [(0, 8), (2, 4)])
def test_workers_share_the_memory_for_prepared_items(workers: int, most: int) -> None:
    size = prepared._bytes(np.full(10, 0))
    tokens = PreparedCorpus([Squares()], lambda rows: [str(row) for row in rows], 40, cache_bytes=8 * size)  # type: ignore[arg-type]
    kept = Kept(tokens)
    loop: Any = SimpleNamespace(
        training=TrainingSection(dataloader_num_workers=workers),
        sampler=BucketedBatches(kept.lengths(np.arange(40)), 4, seed=0),
        collator=kept,
        rows=np.arange(40),
        device=torch.device("cpu"),
    )
    loader = Loop.loader.func(loop)
    assert max(loader) == max(loader) == most


def test_no_clipping_is_a_number_of_its_own(home: Path, tmp_path: Path) -> None:
    _, fitted = run(home, tmp_path, max_grad_norm=None, max_steps=1, logging_steps=1)
    assert fitted.steps == 1 and any("grad_norm" in entry for entry in fitted.log)


# methods and losses


def test_a_positive_that_fills_a_gap_counts_once() -> None:
    """Two anchors, the second of which has no negative: its positive stands in the batch twice."""
    keys = torch.tensor([1, 2, 3, 4, 5, 4], dtype=torch.uint8)[:, None].expand(-1, 16)
    group, role = torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([0, 0, 1, 1, 2, 1])
    vectors, targets = torch.randn(1, 6, 4), torch.randn(6, 4)
    vectors[0, 5], targets[5] = vectors[0, 3], targets[3]
    method = build_method("cosine", {"map": False, "beside": {"name": "mnrl"}})
    student, teacher = StudentInfo("s", 4, layers=None, hidden=4), TeacherInfo("t", 4)
    present = torch.ones(6, dtype=torch.bool)
    told = [TeacherSignals(present=present, sentence=targets)]
    method.build(student, [teacher], Sample(StudentOutput(vectors), told))
    batch = Batch(keys, Batch.equal_items(keys), group=group, role=role)
    term = method(StudentOutput(vectors), told, batch)["cosine"]
    once = term.values[0, :5].mean()
    result = Distiller._reduce(None, {"cosine": term}, None, local=True)  # type: ignore[arg-type]
    torch.testing.assert_close(result["loss"], once)


def test_the_experts_of_distillmoe_train_with_the_loss(home: Path, tiny_bert: Path) -> None:
    store, corpus = SignalStore.open(home / "store"), Corpus.open(home / "corpus")
    student, texts = load_student(tiny_bert, device="cpu"), corpus.texts(np.arange(6))
    loss = DistillationLoss(student, {"name": "distillmoe", "moe_weight": 1, "width": 16}, store, texts=texts)
    terms = loss([student.preprocess(texts)], torch.from_numpy(store.rows(content_keys(texts))))
    sum(terms.values(), torch.zeros(())).backward()
    head: Any = student.expert_head
    assert all(parameter.grad is not None for parameter in head.parameters())


# tasks


def test_a_model_of_images_answers(tmp_path: Path) -> None:
    Image.new("RGB", (32, 32), (200, 10, 10)).save(tmp_path / "red.png")
    model = image_model(CifarResNet(depth=8, width=4))
    width = StudentTap(model).info.width
    predictor = Predictor(model, TaskHead(width, labels=["red", "green"]))
    assert predictor.predict([str(tmp_path / "red.png")])[0] in ("red", "green")
    with pytest.raises(DataError, match=rf"width {width + 1}\b.*\b{width}\b"):
        Predictor(model, TaskHead(width + 1, labels=["red", "green"]))


def test_a_head_reads_whole_vectors_though_the_model_gives_short_ones(tiny_bert: Path) -> None:
    model = load_student(tiny_bert, device="cpu")
    model.truncate_dim = 8
    assert Predictor(model, TaskHead(32, labels=["a", "b"])).logits(["a text"]).shape == (1, 2)
    assert model.truncate_dim == 8


@pytest.mark.parametrize("label", ["007", "7e0", " 7", "7.5", "inf"])
def test_a_code_that_looks_like_a_number_is_no_other_class(label: str) -> None:
    with pytest.raises(DataError, match="is none of the 2 classes"):
        encode_labels([label], ["7", "8"], "f.csv")
    assert encode_labels(["7.0", 7.0, "8.00", 8, "7"], ["7", "8"], "f.csv").tolist() == [0, 0, 1, 1, 0]
