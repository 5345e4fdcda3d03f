"""`DistillationLoss` under sentence-transformers' own trainer: terms, ridge start, checkpoints, what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from tests.disk import full_beyond

from distilvec import DistillationLoss, DistilvecError, SignalStore
from distilvec.corpus import Corpus, content_keys
from distilvec.errors import EnvironmentProblem
from distilvec.judging import linear_map
from distilvec.store import fill
from distilvec.students import load_student
from distilvec.teachers import load_teacher
from distilvec.training.loss import HEADS

METHODS = [
    "talas",
    {"name": "talas", "simcse_weight": 0.0},
    "simcse",
    "cosine",
    "mse",
    "relational",
    "leaf",
    "distilcse",
    "distillcse",
    {"name": "matryoshka", "dims": [8, 16]},
]


@pytest.fixture(scope="module")
def texts(sentences: list[str]) -> list[str]:
    return [text for text in sentences if len(text) < 90][:48]


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, tiny_model_folders: dict[str, Path], texts: list[str]
) -> SignalStore:
    teacher = load_teacher(name="tiny", model=tiny_model_folders["xlmr"])
    filled = SignalStore.create(tmp_path_factory.mktemp("store"), teacher.card, teacher.card.width)
    fill(filled, teacher, texts, content_keys(texts))
    return filled


@pytest.fixture
def student(tiny_bert: Path) -> SentenceTransformer:
    return SentenceTransformer(str(tiny_bert), device="cpu")


def attached(store: SignalStore, texts: list[str]) -> Any:
    from datasets import Dataset

    return store.attach(Dataset.from_dict({"text": texts}))


def make_trainer(
    folder: Path,
    student: SentenceTransformer,
    loss: DistillationLoss,
    store: SignalStore,
    texts: list[str],
    **more: Any,
) -> Any:
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_train_epochs": 1,
        "learning_rate": 1e-3,
        "seed": 5,
        "save_steps": 3,
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
    }
    return loss.bind(
        SentenceTransformerTrainer(
            model=student,
            args=SentenceTransformerTrainingArguments(**{**settings, **more}),
            train_dataset=attached(store, texts),
            loss=loss,
        )
    )


def parts(loss: DistillationLoss) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in loss.state_dict().items()}


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_named_terms_with_gradients(
    method: Any, student: SentenceTransformer, store: SignalStore, texts: list[str]
) -> None:
    loss = DistillationLoss(student, method, store, texts=texts)
    student.train()
    rows = torch.from_numpy(store.rows(content_keys(texts[:6])))
    terms = loss([student.preprocess(texts[:6])], rows)
    assert terms and all(value.dim() == 0 and torch.isfinite(value) for value in terms.values())
    torch.stack(list(terms.values())).sum().backward()
    trained = [p for p in student.parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    assert len(trained) > 10
    heads = list(loss.method.parameters())
    assert all(p.grad is not None for p in heads if p.requires_grad)


def test_the_terms_are_those_of_the_main_trainer(
    student: SentenceTransformer, store: SignalStore, texts: list[str]
) -> None:
    """Without dropout the loss equals the cosine distance computed by hand from encode() and the head."""
    loss = DistillationLoss(student, "cosine", store, texts=texts)
    student.eval()
    rows = store.rows(content_keys(texts[:8]))
    value = loss([student.preprocess(texts[:8])], torch.from_numpy(rows))
    mapped = student.encode(texts[:8], show_progress_bar=False) @ linear_map(loss.method.teacher_map())
    target = store.read(rows)
    cosine = (mapped * target).sum(1) / np.linalg.norm(mapped, axis=1) / np.linalg.norm(target, axis=1)
    (term,) = value.values()
    assert float(term.detach()) == pytest.approx(float(1 - cosine.mean()), abs=1e-5)


def test_the_ridge_start_fits_better_than_chance(
    student: SentenceTransformer, store: SignalStore, texts: list[str]
) -> None:
    rows = torch.from_numpy(store.rows(content_keys(texts)))
    student.eval()
    features = [student.preprocess(texts)]
    found = {}
    for name, given in (("ridge", texts), ("random", None)):
        torch.manual_seed(0)
        loss = DistillationLoss(student, {"name": "cosine", "init": name}, store, texts=given)
        found[name] = float(sum(loss(features, rows).values()).detach())
    assert found["ridge"] < 0.5 * found["random"]


def test_a_resumed_run_equals_the_uninterrupted_one(
    tmp_path: Path, tiny_bert: Path, store: SignalStore, texts: list[str]
) -> None:
    def run(folder: Path, stop: int | None = None, resume: bool = False) -> DistillationLoss:
        torch.manual_seed(1)
        student = SentenceTransformer(str(tiny_bert), device="cpu")
        loss = DistillationLoss(student, {"name": "talas", "anchored_layers": 2}, store, texts=texts)
        trainer = make_trainer(folder, student, loss, store, texts)
        if stop is not None:
            trainer.add_callback(_stop_at(stop))
        trainer.train(resume_from_checkpoint=resume or None)
        return loss

    whole = parts(run(tmp_path / "whole"))
    run(tmp_path / "cut", stop=3)
    checkpoint = tmp_path / "cut" / "checkpoint-3"
    assert (checkpoint / HEADS).is_file() and (checkpoint / "modules.json").is_file()
    resumed = parts(run(tmp_path / "cut", resume=True))
    assert any(name.startswith("method.") for name in whole)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name

    (checkpoint / HEADS).unlink()
    for later in (tmp_path / "cut").glob("checkpoint-*"):
        (later / HEADS).unlink(missing_ok=True)
    with pytest.raises(DistilvecError, match=r"/cut/checkpoint-\d+: .*loss\.bind\(trainer\)"):
        run(tmp_path / "cut", resume=True)


def test_an_evaluation_leaves_no_trace(
    tmp_path: Path, student: SentenceTransformer, store: SignalStore, texts: list[str]
) -> None:
    """Evaluated texts get into no queue, and the loss of the same texts is the same again."""
    loss = DistillationLoss(student, "distilcse", store, texts=texts)
    trainer = make_trainer(tmp_path, student, loss, store, texts[:24], max_steps=2)
    trainer.train()
    before = parts(loss)
    found = [trainer.evaluate(attached(store, texts[24:]))["eval_loss"] for _ in range(2)]
    assert found[0] == found[1]
    for name, value in parts(loss).items():
        assert torch.equal(value, before[name]), name


def test_two_losses_of_one_trainer_keep_their_own_heads(
    tmp_path: Path, tiny_bert: Path, store: SignalStore, texts: list[str]
) -> None:
    student = SentenceTransformer(str(tiny_bert), device="cpu")
    losses = {
        name: DistillationLoss(student, {"name": "cosine", "init": "random"}, store, texts=texts)
        for name in ("日本", "中国", "an/other")
    }
    data = store.attach(Dataset.from_dict({"text": texts}), text="text")
    arguments = SentenceTransformerTrainingArguments(str(tmp_path), max_steps=2, use_cpu=True, report_to="none")
    trainer = SentenceTransformerTrainer(
        model=student, args=arguments, train_dataset=dict.fromkeys(losses, data), loss=losses
    )
    for loss in losses.values():
        loss.bind(trainer)
    trainer.save_model(str(tmp_path / "kept"))
    kept = {name: parts(loss) for name, loss in losses.items()}
    assert any(not torch.equal(value, kept["中国"][name]) for name, value in kept["日本"].items())
    for name, loss in losses.items():
        with torch.no_grad():
            for parameter in loss.method.parameters():
                parameter.zero_()
        loss.load_heads(tmp_path / "kept")
        assert all(torch.equal(value, parts(loss)[key]) for key, value in kept[name].items())


def _stop_at(step: int) -> Any:
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step >= step

    return Stop()


def test_terms_are_logged_and_the_card_says_what_was_trained(
    tmp_path: Path, student: SentenceTransformer, store: SignalStore, texts: list[str]
) -> None:
    loss = DistillationLoss(student, "talas", store, texts=texts)
    trainer = make_trainer(tmp_path, student, loss, store, texts, max_steps=2, save_strategy="no")
    trainer.train()
    logged = trainer.state.log_history[0]
    assert {"simcse", "tamd", "lasd"} <= set(logged)
    assert logged["loss"] == pytest.approx(sum(logged[name] for name in ("simcse", "tamd", "lasd")), abs=2e-3)
    assert loss.get_config_dict()["method"] == "talas" and "TALAS" in loss.citation
    student.save(str(tmp_path / "final"))
    card = (tmp_path / "final" / "README.md").read_text(encoding="utf-8")
    assert "DistillationLoss" in card and "Teacher-Anchored" in card
    plain = SentenceTransformer(str(tmp_path / "final"), device="cpu")
    assert plain.encode(["hello"], show_progress_bar=False).shape == (1, 32)


def test_stages_follow_the_trainers_progress(
    tmp_path: Path, student: SentenceTransformer, store: SignalStore, texts: list[str]
) -> None:
    method = {"name": "jasper_stella", "heads_share": 0.5}
    loss = DistillationLoss(student, method, store, texts=texts)
    rows = torch.from_numpy(store.rows(content_keys(texts[:4])))
    with pytest.raises(DistilvecError, match=r"^jasper_stella: .*trainer = loss\.bind\(trainer\)"):
        loss([student.preprocess(texts[:4])], rows)
    before = {name: value.clone() for name, value in student.state_dict().items()}
    heads = parts(loss)
    trainer = make_trainer(tmp_path, student, loss, store, texts, max_steps=4, save_strategy="no")
    trainer.add_callback(_stop_at(2))
    trainer.train()
    assert all(torch.equal(before[name], value) for name, value in student.state_dict().items()), "stage 1: heads only"
    assert any(not torch.equal(heads[n], v) for n, v in parts(loss).items() if n.startswith("method."))


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WORLD_SIZE", "2")
    yield


@pytest.mark.usefixtures("two_processes")
def test_several_processes_are_refused(student: SentenceTransformer, store: SignalStore, texts: list[str]) -> None:
    with pytest.raises(DistilvecError, match="^DistillationLoss: .*2 processes.*`distilvec train`"):
        DistillationLoss(student, "cosine", store, texts=texts)


def test_what_it_refuses(student: SentenceTransformer, store: SignalStore, texts: list[str], tmp_path: Path) -> None:
    for method in ("cosine", "gaussian", {"name": "distillmoe", "moe_weight": 1, "init": "random"}):
        with pytest.raises(DistilvecError, match=r"^(cosine|gaussian|distillmoe): .*Give texts=.*init: random"):
            DistillationLoss(student, method, store)
    DistillationLoss(student, {"name": "gaussian", "init": "random"}, store)
    with pytest.raises(DistilvecError, match=re.escape(f"{store.path}: ")):
        DistillationLoss(student, "cosine", store, texts=["A text that nobody has taught."])
    with pytest.raises(DistilvecError, match='"cosin".*"cosine"'):
        DistillationLoss(student, "cosin", store)
    for method in ("mnrl", "score_kl", [{"name": "relational"}, {"name": "score_kl"}]):
        with pytest.raises(DistilvecError, match=r"^(mnrl|score_kl|relational \+ score_kl): .*distilvec run"):
            DistillationLoss(student, method, store, texts=texts)
    loss = DistillationLoss(student, "relational", store)
    features = student.preprocess(texts[:4])
    rows = torch.from_numpy(store.rows(content_keys(texts[:4])))
    with pytest.raises(DistilvecError, match=r"^DistillationLoss: .*\b2\. .*dataset\.select_columns"):
        loss([features, features], rows)
    with pytest.raises(DistilvecError, match=r"^DistillationLoss: .*store\.attach\(dataset"):
        loss([features], rows.float())
    other = DistillationLoss(student, "cosine", store, texts=texts)
    other.save_heads(tmp_path)
    with pytest.raises(DistilvecError, match=r"/distilvec_heads\.safetensors: .*\bMatryoshka\b"):
        DistillationLoss(student, {"name": "matryoshka", "dims": [8]}, store, texts=texts).load_heads(tmp_path)
    before = (tmp_path / HEADS).read_bytes()
    with full_beyond(500), pytest.raises(EnvironmentProblem, match=r"/distilvec_heads\.safetensors: .*ulimit -f"):
        other.save_heads(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [HEADS] and (tmp_path / HEADS).read_bytes() == before


def test_experts_of_distillmoe_get_gradients(home: Path, tiny_bert: Path) -> None:
    store, corpus = SignalStore.open(home / "store"), Corpus.open(home / "corpus")
    student, texts = load_student(tiny_bert, device="cpu"), corpus.texts(np.arange(6))
    loss = DistillationLoss(student, {"name": "distillmoe", "moe_weight": 1, "width": 16}, store, texts=texts)
    terms = loss([student.preprocess(texts)], torch.from_numpy(store.rows(content_keys(texts))))
    sum(terms.values(), torch.zeros(())).backward()
    head: Any = student.expert_head
    assert all(parameter.grad is not None for parameter in head.parameters())
