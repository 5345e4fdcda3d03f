"""The loop: terms in the log, learning rates, what stops it, what it saves, what the keys of `training` do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import tracking
from accelerate.tracking import GeneralTracker
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tests.disk import full_beyond
from tests.training import jobs
from tests.training.assembling import assemble, run, weights
from tests.training.starting import Starter

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.methods.base import Needs
from distilvec.methods.table import build_method
from distilvec.recipe import OptimizerSection, TrainingSection
from distilvec.training import Fitted
from distilvec.training.checks import check_training
from distilvec.training.log import Sums


def test_the_same_run_twice_gives_the_same_numbers(home: Path, tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        torch.rand(3)  # what happened before does not matter
        np.random.rand(3)
        optimizer = {"lr": 1e-2, "sharpness": {"kind": "asam"}}
        parts, fitted = run(home, tmp_path / name, "talas", optimizer=optimizer, logging_steps=2)
        runs.append((weights(parts, fitted), [entry for entry in fitted.log if "loss" in entry], fitted))
    assert all(torch.equal(runs[0][0][name], runs[1][0][name]) for name in runs[0][0])
    assert runs[0][1] == runs[1][1] and len(runs[0][1]) == 2
    assert {"loss", "grad_norm", "learning_rate", "term/tamd", "term/lasd", "term/simcse"} <= runs[0][1][0].keys()
    fitted = runs[0][2]
    assert (fitted.steps, fitted.truncated, fitted.skipped, len(fitted.free_map)) == (5, 0, 0, 1)
    assert fitted.free_map[0].shape == (32, jobs.WIDTH)
    assert fitted.tokens > 40 and fitted.seconds > 0 and fitted.heads == 2 * 32 * jobs.WIDTH
    lines = [json.loads(line) for line in (tmp_path / "a/run.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 5]


def test_terms_are_means_over_the_logged_steps(home: Path, tmp_path: Path) -> None:
    made = assemble(home, "talas", "still")
    loop = made.loop(tmp_path, {"gradient_accumulation_steps": 2, "logging_steps": 2}, {"lr": 1e-12})
    loop.train()
    entry = next(entry for entry in loop.state.log_history if "loss" in entry)
    made.distiller.train()
    results = [made.distiller(**batch) for batch in list(made.batches(8))[:4]]
    for name in ("tamd", "lasd", "simcse"):
        expected = np.mean([float(result["terms"][name]) for result in results])
        assert entry[f"term/{name}"] == pytest.approx(expected, rel=1e-5)
    assert entry["loss"] == pytest.approx(np.mean([float(result["loss"].detach()) for result in results]), rel=1e-5)


def result(**terms: float) -> dict[str, Any]:
    return {"terms": {name: torch.tensor(value) for name, value in terms.items()}, "counts": {}}


def test_a_term_is_the_mean_over_the_micro_batches_that_have_it() -> None:
    sums = Sums()
    for terms in ({"a": 1.0}, {"a": 2.0, "b": 5.0}, {"b": 7.0}, {"a": 6.0}):
        sums.add(result(**terms))
    entry = sums.entry(4)
    assert (entry["term/a"], entry["term/b"]) == (3.0, 6.0)


def test_terms_of_a_checkpoint_that_only_counts_micro_batches() -> None:
    sums = Sums(terms={"a": torch.tensor(4.0), "b": torch.tensor(3.0)}, batches=2)
    sums.add(result(a=2.0, c=1.0))
    entry = sums.entry(3)
    assert (entry["term/a"], entry["term/b"], entry["term/c"]) == (2.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("rows", "batch", "job"),
    [
        (12, 8, {"method": "cosine", "student": "still"}),
        (12, 8, {"method": "cosine", "student": "still", "optimizer": {"sharpness": {"kind": "sam", "per": "batch"}}}),
        (
            8,
            2,
            {"method": "sft", "student": "still-scribe", "corpus": "prompts", "live": "writer", "task": "generation"},
        ),
    ],
    ids=["a short micro-batch", "two gradients", "answers of different lengths"],
)
def test_micro_batches_count_as_what_is_in_them(
    start: Starter, home: Path, tmp_path: Path, rows: int, batch: int, job: dict[str, Any]
) -> None:
    """One step over all rows, in one batch and in several, for losses that are means over items or tokens."""
    plain = {"epochs": 1, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "use_cpu": True}
    optimizer = {"lr": 0.1, "weight_decay": 0.0} | job.get("optimizer", {})
    made = []
    for name, more in (
        ("whole", {"batch_size": rows}),
        ("parts", {"batch_size": batch, "gradient_accumulation_steps": -(-rows // batch)}),
    ):
        given = job | {"optimizer": optimizer, "training": plain | more, "train_rows": rows}
        code, output = start.train(home=home, out=tmp_path / name, **given).wait()
        assert code == 0, output
        made.append(load_file(tmp_path / name / "final-0.safetensors"))
    for name, value in made[0].items():
        torch.testing.assert_close(made[1][name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_micro_batches_count_as_the_items_that_have_a_lesson(home: Path, tmp_path: Path) -> None:
    class Gaps:
        """A teacher that lacks most of the shorter texts, which micro-batches of like lengths bring together."""

        def __init__(self, source: Any, lengths: np.ndarray) -> None:
            self.source, self.lengths = source, lengths

        def fetch(self, rows: Any) -> dict[str, Any]:
            signals = self.source.fetch(rows)
            lacks = torch.from_numpy((self.lengths[np.asarray(rows)] < 12) & (np.asarray(rows) % 4 > 0))
            return {**signals, "present": signals["present"] & ~lacks}

    made = []
    for size, batches in ((12, 1), (4, 3)):
        parts = assemble(home, "cosine", "still", rows=12)
        parts.collator.sources = [Gaps(parts.collator.sources[0], parts.collator.tokens.lengths)]
        training = {"batch_size": size, "gradient_accumulation_steps": batches, "optim": "sgd", "max_grad_norm": 0.0}
        loop = parts.loop(tmp_path / str(size), training, {"lr": 0.1})
        counts = [int(batch["teachers"][0]["present"].sum()) for batch in parts.batches(size)]
        loop.train()
        made.append(parts.state())
    assert len(set(counts)) > 1 and loop.steps == 1, counts
    for name, value in made[0].items():
        torch.testing.assert_close(made[1][name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_a_start_that_nothing_betters_is_the_best(home: Path, tmp_path: Path) -> None:
    scores = iter([0.9, 0.5, 0.4, 0.3])
    given = {"evaluate_every": 2, "best": "score", "eval_on_start": True, "save_total_limit": 1}
    parts, fitted = run(home, tmp_path, evaluate=lambda *_: {"score": next(scores)}, **given)
    before = jobs.parts(home)["student"].state_dict()
    assert all(torch.equal(value, before[name]) for name, value in parts["student"].state_dict().items())
    again, fitted = run(home, tmp_path, resume=True, evaluate=lambda *_: {"score": 0.0}, **given)
    assert all(torch.equal(value, before[name]) for name, value in again["student"].state_dict().items())
    assert fitted.steps == 5


def test_gradients_that_are_not_clipped_are_only_measured(home: Path, tmp_path: Path) -> None:
    made = assemble(home, "cosine")
    loop = made.loop(tmp_path, {"max_steps": 2, "max_grad_norm": 0.0, "logging_steps": 1}, {"lr": 1e-3})
    seen, step, move = [], loop.micro_step, loop.optimizer.step

    def watched(*args: Any, **kwargs: Any) -> Any:
        loss = step(*args, **kwargs)
        gradients = [each.grad for each in made.distiller.parameters() if each.grad is not None]
        seen.append((float(torch.cat([each.flatten() for each in gradients]).norm()), [g._version for g in gradients]))
        return loss

    def touched() -> None:
        versions = [each.grad._version for each in made.distiller.parameters() if each.grad is not None]
        assert versions == seen[-1][1], "written to between the backward pass and the optimiser"
        move()

    loop.micro_step, loop.optimizer.step = watched, touched  # type: ignore[method-assign, assignment]
    loop.train()
    logged = [entry["grad_norm"] for entry in loop.state.log_history if "grad_norm" in entry]
    assert logged == pytest.approx([norm for norm, _ in seen], rel=1e-5) and len(logged) == 2


def test_heads_have_a_learning_rate_of_their_own(home: Path, tmp_path: Path) -> None:
    made = assemble(home, "cosine")
    loop = made.loop(tmp_path, {"max_steps": 1}, {"lr": 1e-9, "heads_lr": 0.1, "weight_decay": 0.1})
    before = made.state()
    loop.train()
    moved = {name: float((value - before[name]).abs().max()) for name, value in made.state().items()}
    assert all(change < 1e-7 for name, change in moved.items() if name.startswith("student."))
    assert all(change > 1e-3 for name, change in moved.items() if name.startswith("method."))
    groups = loop.optimizer.param_groups
    listed = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(listed) == sorted(id(parameter) for parameter in made.distiller.parameters())
    names = {id(parameter): name for name, parameter in made.distiller.named_parameters()}
    for group in groups:
        plain = all("bias" in names[id(p)] or "LayerNorm" in names[id(p)] for p in group["params"])
        assert (group["weight_decay"] == 0) == plain


@pytest.mark.parametrize(
    ("options", "rate"), [({}, 0.1), ({"start": "random"}, 1.0), ({"head_rate": 0.3}, 0.3), ({"preset": "paper"}, 1.0)]
)
def test_an_expert_head_has_a_rate_of_its_own(home: Path, tmp_path: Path, options: dict[str, Any], rate: float) -> None:
    made = assemble(home, "distillmoe", moe_weight=1, width=16, **options)
    loop = made.loop(tmp_path, {"max_steps": 1}, {"lr": 1e-3, "heads_lr": 1e-2, "weight_decay": 0.1})
    rates = {id(p): group["lr"] for group in loop.optimizer.param_groups for p in group["params"]}
    assert len(rates) == len(list(made.distiller.parameters()))
    for name, parameter in made.distiller.named_parameters():
        expected = 1e-2 if name.startswith("method.") else 1e-3 * (rate if "expert_head" in name else 1)
        assert rates[id(parameter)] == pytest.approx(expected), name


def test_with_muon_the_matrices_of_the_students_layers_have_orthogonal_steps(home: Path, tmp_path: Path) -> None:
    made = assemble(home, "talas")
    loop = made.loop(tmp_path, {"max_steps": 1}, {"muon": True, "weight_decay": 0.1})
    loop.train()
    groups = loop.optimizer.param_groups
    orthogonal = {id(parameter): group["orthogonal"] for group in groups for parameter in group["params"]}
    assert len(orthogonal) == len(list(made.distiller.parameters()))
    for name, parameter in made.distiller.named_parameters():
        hidden = name.startswith("student.") and parameter.ndim == 2 and "embeddings" not in name
        assert orthogonal[id(parameter)] == hidden, name
    assert sum(orthogonal.values()) > 5


def test_head_only_stage_leaves_the_student_alone(home: Path, tmp_path: Path) -> None:
    made = assemble(home, "jasper_stella", heads_share=0.5)
    before = made.state()
    loop = made.loop(tmp_path, {"max_steps": 4, "logging_steps": 1}, {"weight_decay": 0.1})
    seen: list[dict[str, torch.Tensor]] = []
    step = loop.micro_step

    def noted(*args: Any, **kwargs: Any) -> Any:
        seen.append(made.state())
        return step(*args, **kwargs)

    loop.micro_step = noted  # type: ignore[method-assign]
    loop.train()
    students = [name for name in before if name.startswith("student.") and before[name].is_floating_point()]
    for state in seen[:3]:  # steps 1 and 2 are stage 1
        assert all(torch.equal(state[name], before[name]) for name in students)
    assert not torch.equal(seen[1]["method.heads.0.weight"], before["method.heads.0.weight"])
    assert any(not torch.equal(seen[3][name], before[name]) for name in students)


# stopping


@pytest.mark.parametrize("method", ["cosine", "relational"])
def test_a_teacher_s_nan_is_named_with_its_row(home: Path, tmp_path: Path, method: str) -> None:
    made = assemble(home, method)
    row = int(made.rows[7])
    made.collator.sources = [jobs.Poisoned(made.collator.sources[0], row)]
    made.collator.sources[0].calls = 1
    loop = made.loop(tmp_path, {"save_every": 1})
    with pytest.raises(DataError) as caught:
        loop.train()
    said = str(caught.value)
    assert f"corpus rows {row}: {made.corpus.texts([row])[0][:60]!r}" in said and "more" not in said
    assert f"terms {method}" in said and "step" in said
    for checkpoint in tmp_path.glob("checkpoints/checkpoint-*"):
        assert all(torch.isfinite(value).all() for value in load_file(checkpoint / "model.safetensors").values())


def test_a_step_that_the_device_has_no_room_for_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.\nmore")

    monkeypatch.setattr("distilvec.training.loop.Loop.micro_step", full)
    with pytest.raises(EnvironmentProblem, match=r"^training: .*step 1 \(.* 2\.00 MiB\.\).*mini_batch_size"):
        run(home, tmp_path)


@pytest.mark.parametrize("lacking", ["most", "a byte"])
def test_a_disk_that_fills_with_a_checkpoint_is_said(home: Path, tmp_path: Path, lacking: str) -> None:
    """Torch has another error for what lies in its buffer until the file is closed."""
    run(home, tmp_path / "whole")
    (state,) = (tmp_path / "whole/checkpoints").glob("checkpoint-*/optimizer.pt")
    size = state.stat().st_size
    limit = size - 1 if lacking == "a byte" else size * 3 // 4
    with full_beyond(limit), pytest.raises(EnvironmentProblem, match=r"checkpoint-5: the checkpoint cannot be written"):
        run(home, tmp_path / "full")
    assert not list((tmp_path / "full/checkpoints").iterdir())


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [16, 32, 40]), (1000.0, [40])])
def test_a_long_epoch_is_saved_by_time(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[int]
) -> None:
    monkeypatch.setattr("distilvec.training.loop.HALF_HOUR", seconds)
    run(home, tmp_path, batch_size=1, save_total_limit=9)
    steps = sorted(int(each.name.rpartition("-")[2]) for each in (tmp_path / "checkpoints").glob("checkpoint-*"))
    assert steps == expected


def test_a_gradient_that_is_not_finite_stops_before_it_reaches_the_weights(home: Path, tmp_path: Path) -> None:
    made = assemble(home, "cosine")
    loop = made.loop(tmp_path, {})
    next(made.distiller.method.parameters()).register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(DataError, match=r"^step 1: .*rows 24: '.*and 3 more.*optimizer\.lr"):
        loop.train()
    assert all(torch.isfinite(value).all() for value in made.state().values())


def test_no_rows_to_train_on(home: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^corpus: .*corpus\.holdout"):
        run(home, tmp_path, rows=0)


# evaluation, best, patience


def test_best_checkpoint_and_patience(home: Path, tmp_path: Path) -> None:
    states: list[dict[str, torch.Tensor]] = []
    scores = iter([0.1, 0.9, 0.5, 0.4])

    def evaluate(student: SentenceTransformer, method: Any) -> dict[str, float]:
        assert not student.training
        student.encode(["held out"])
        states.append({name: value.clone() for name, value in student.state_dict().items()})
        return {"score": next(scores)}

    parts, fitted = run(
        home, tmp_path, evaluate=evaluate, evaluate_every=1, best="score", patience=2, epochs=3, save_total_limit=1
    )
    assert fitted.steps == 4 and len(states) == 4
    assert [entry["eval_score"] for entry in fitted.log if "eval_score" in entry] == [0.1, 0.9, 0.5, 0.4]
    assert all(torch.equal(value, states[1][name]) for name, value in parts["student"].state_dict().items())
    assert {place.name for place in (tmp_path / "checkpoints").iterdir()} == {"checkpoint-2"}


@pytest.mark.parametrize(("scores", "best"), [([0.2, 0.5, 0.9, 0.8, 0.1], 3), ([0.9, 0.5, 0.4, 0.3, 0.1], 1)])
def test_the_best_evaluation_is_kept_though_checkpoints_are_rarer(
    home: Path, tmp_path: Path, scores: list[float], best: int
) -> None:
    states: list[dict[str, torch.Tensor]] = []

    def evaluate(student: SentenceTransformer, method: Any) -> dict[str, float]:
        states.append({name: value.clone() for name, value in student.state_dict().items()})
        return {"score": scores[len(states) - 1]}

    often = {"evaluate_every": 1, "save_every": 2, "best": "score", "max_steps": 5, "save_total_limit": 1}
    parts, fitted = run(home, tmp_path, evaluate=evaluate, **often)
    assert fitted.steps == 5
    assert all(torch.equal(value, states[best - 1][name]) for name, value in parts["student"].state_dict().items())


def test_fewer_items_than_a_batch_where_others_are_dropped(home: Path, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match=r"^training\.dataloader_drop_last: 5 items are no whole batch of 8"):
        run(home, tmp_path, rows=5, dataloader_drop_last=True, batch_size=8)


def test_a_metric_that_does_not_exist_is_named(home: Path, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match=r'^training\.best: .*"scor".*\bscore\b'):
        run(home, tmp_path, evaluate=lambda *_: {"score": 1.0}, evaluate_every=1, best="scor")


def test_lower_can_be_better(home: Path, tmp_path: Path) -> None:
    scores = iter([0.9, 0.1, 0.5, 0.6, 0.7])
    run(
        home,
        tmp_path,
        evaluate=lambda *_: {"gap": next(scores)},
        evaluate_every=1,
        best="gap",
        greater_is_better=False,
        save_total_limit=1,
    )
    assert {place.name for place in (tmp_path / "checkpoints").iterdir()} == {"checkpoint-2"}


# keys of the section at work


@pytest.fixture(scope="module")
def unadorned(home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Fitted]:
    """What comes out without any of the keys."""
    return run(home, tmp_path_factory.mktemp("unadorned"), logging_steps=1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"bf16": True},
        {"torch_compile": True, "torch_compile_backend": "eager"},
        {"gradient_checkpointing": True},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.5}, "warmup_steps": 0.4},
        {"dataloader_num_workers": 1},
        {"dataloader_drop_last": True, "rows": 36},
        {"optim": "adafactor"},
        {"optim": "sgd"},
        {"optim": "adamw_torch"},
        {"adam_beta1": 0.5},
        {"adam_epsilon": 1.0},
        {"max_grad_norm": 1e-3},
        {"eval_on_start": True, "evaluate_every": 2},
    ],
    ids=lambda given: next(iter(given)) + str(next(iter(given.values()))),
)
def test_keys_at_work(
    home: Path, tmp_path: Path, arguments: dict[str, Any], unadorned: tuple[dict[str, Any], Fitted]
) -> None:
    given = {"logging_steps": 1, "evaluate": lambda *_: {"score": 0.5}} | arguments
    parts, fitted = run(home, tmp_path, **given)
    plain_parts, plain = unadorned
    logs = [entry for entry in fitted.log if "loss" in entry]
    first, reference = weights(parts, fitted), weights(plain_parts, plain)
    difference = max(float((first[name] - reference[name]).abs().max()) for name in first)
    key = next(iter(arguments))
    if key == "bf16":
        assert 0 < difference < 0.1
        assert all(value.dtype != torch.bfloat16 for value in first.values())
    elif key in ("torch_compile", "gradient_checkpointing") or arguments.get("optim") == "adamw_torch":
        assert difference < 1e-3
    else:
        assert (difference == 0) == (key in ("dataloader_num_workers", "eval_on_start")), difference
    if key == "lr_scheduler_type":
        rates = [entry["learning_rate"] for entry in logs]
        assert rates[:3] == pytest.approx([0.0, 0.005, 0.01]) and 0.005 <= rates[-1] < 0.01
    if key == "dataloader_drop_last":
        assert (fitted.steps, plain.steps) == (4, 5)
    if key == "eval_on_start":
        assert [entry["step"] for entry in fitted.log if "eval_score" in entry] == [0, 2, 4, 5]


@pytest.mark.parametrize("method", ["cosine", "talas"])
def test_blocks_that_are_computed_again_keep_less(home: Path, tmp_path: Path, method: str) -> None:
    """Two views with dropout, and the states of the blocks: the same weights, from fewer kept activations."""
    kept: dict[bool, int] = {}
    found = {}
    for on in (False, True):
        sizes: list[int] = []

        def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            found[on] = weights(*run(home, tmp_path / str(on), method, max_steps=2, gradient_checkpointing=on))
        kept[on] = sum(sizes)
    assert all(torch.allclose(value, found[True][name], atol=1e-5) for name, value in found[False].items())
    assert kept[True] < 0.7 * kept[False] or method == "talas"


def test_maps_of_blocks_that_are_computed_again_are_refused(start: Starter, home: Path, tmp_path: Path) -> None:
    training = {"max_steps": 1, "gradient_checkpointing": True}
    code, output = start.train(home=home, out=tmp_path, method="emo", live="decoder", training=training).wait()
    assert code == 2 and "training.gradient_checkpointing: emo reads attention maps" in output, output


def test_blocks_that_cannot_be_computed_again_are_named(home: Path, tmp_path: Path, tiny_bert: Path) -> None:
    from distilvec.students import static
    from distilvec.training.network import gradient_checkpointing

    bag = static(str(tiny_bert), dimensions=8)
    with pytest.raises(DistilvecError, match=r"^training\.gradient_checkpointing: "):
        gradient_checkpointing(bag, on=True).__enter__()


def test_missing_trackers_and_unknown_scheduler_keywords_are_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match=r'^training\.report_to: .*"tensorbord".*"tensorboard"'):
        run(home, tmp_path, report_to="tensorbord")
    with pytest.raises(EnvironmentProblem, match=r'^training\.report_to: .*"clearml".*pip install'):
        run(home, tmp_path, report_to=["clearml"])
    with pytest.raises(DistilvecError, match=r"^training\.lr_scheduler_kwargs: .*linear.*cycles"):
        run(home, tmp_path, lr_scheduler_type="linear", lr_scheduler_kwargs={"cycles": 3})
    with pytest.raises(DistilvecError, match=r"^training\.lr_scheduler_kwargs: .*takes none.*num_warmup_steps"):
        run(home, tmp_path, lr_scheduler_type="constant_with_warmup", lr_scheduler_kwargs={"num_warmup_steps": 9})


def test_schedules_that_depend_on_the_rate_are_checked_with_the_recipes_own(home: Path) -> None:
    corpus = jobs.parts(home)["corpus"]

    def check(lr: float, end: float) -> None:
        training = TrainingSection(lr_scheduler_type="polynomial", lr_scheduler_kwargs={"lr_end": end}, batch_size=8)
        check_training(corpus.train_rows, corpus, training, OptimizerSection(lr=lr), blind=False, live=False)

    check(1e-2, 2e-3)
    with pytest.raises(DistilvecError, match=r"^training\.lr_scheduler_kwargs: .*0\.0005.*0\.0001"):
        check(1e-4, 5e-4)


def test_a_polynomial_schedule_may_end_with_the_warm_up(home: Path, tmp_path: Path) -> None:
    assert run(home, tmp_path, lr_scheduler_type="polynomial", warmup_steps=2, max_steps=2)[1].steps == 2


def test_evaluating_without_held_out_texts_is_said(home: Path, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match=r"^training\.evaluate_every: .*of 7 held-out .*\b20\b.*corpus\.holdout"):
        run(home, tmp_path, evaluate_every=1)


def test_several_visible_devices_do_not_split_a_batch(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    made = assemble(home, "cosine")
    loop = made.loop(tmp_path, {})
    assert loop.model is made.distiller and {len(batch["rows"]) for batch in loop.loader} == {8}


# what is told to others


class Tracker(GeneralTracker):
    """Keeps what it is given."""

    name, requires_logging_directory = "kept", False
    made: list[Any] = []

    def __init__(self, project: str, **options: Any) -> None:
        super().__init__()
        self.project, self.options, self.entries, self.ended = project, options, [], False
        Tracker.made.append(self)

    @property
    def tracker(self) -> Any:
        return self.entries

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.values = values

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.entries.append((step, values))

    def finish(self) -> None:
        self.ended = True


def test_a_tracker_gets_what_is_logged(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, "kept", Tracker)
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: ["kept"])
    given = {"evaluate": lambda *_: {"score": 0.5}, "evaluate_every": 4}
    _, fitted = run(home, tmp_path, report_to="kept", project="p", logging_steps=2, **given)
    (kept,) = Tracker.made
    assert kept.project == "p" and kept.ended and kept.values["lr"] == 1e-2 and kept.values["batch_size"] == 8
    assert [step for step, _ in kept.entries] == [entry["step"] for entry in fitted.log] == [2, 4, 4, 5, 5]
    assert "term/cosine" in kept.entries[0][1] and kept.entries[2][1]["eval_score"] == 0.5


def test_matryoshka_hands_on_lookup_and_stages(home: Path) -> None:
    method = build_method("matryoshka", {"dims": [4, 8], "of": {"name": "distilcse", "queue": 8}})
    method.lookup = lambda teacher, keys: torch.zeros(len(keys), jobs.WIDTH)
    seen: list[Any] = []

    class Told(Exception):
        pass

    for part in method.methods:
        part.register_forward_pre_hook(lambda module, _: seen.append(module.lookup))
    given = jobs.parts(home)
    from distilvec.students.tap import StudentTap
    from distilvec.training import Distiller, TokenizedCorpus
    from distilvec.training.data import Collator
    from distilvec.training.sample import make_sample

    corpus, student = given["corpus"], given["student"]
    tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), home / "tokens", fingerprint=corpus.fingerprint)
    tap = StudentTap(student)
    method.build(
        tap.info,
        given["teachers"],
        make_sample(student, tokens, given["sources"], corpus.train_rows, seed=0, needs=Needs()),
    )
    needs = method.needs(tap.info, given["teachers"])
    Distiller(student, method, needs)(**Collator(corpus, tokens, given["sources"])([0, 1, 2]))
    assert seen == [method.lookup] * 3
    staged = build_method("matryoshka", {"dims": [8], "of": {"name": "jasper_stella", "heads_share": 0.25}})
    assert [staged.trains_student(progress) for progress in (0.0, 0.2, 0.25, 1.0)] == [False, False, True, True]


def test_training_without_clipping_logs_the_gradient_norm(home: Path, tmp_path: Path) -> None:
    _, fitted = run(home, tmp_path, max_grad_norm=None, max_steps=1, logging_steps=1)
    assert fitted.steps == 1 and any("grad_norm" in entry for entry in fitted.log)
