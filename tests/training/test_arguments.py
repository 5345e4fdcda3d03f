"""Every key of transformers.TrainingArguments works or is refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from distilvec.recipe.training_keys import ELSEWHERE, REFUSED
from distilvec.training.arguments import (
    _narrow_by_itself,
    bfloat16_pays,
    steps_in_all,
    steps_per_epoch,
    training_arguments,
)
from transformers import TrainingArguments

from distilvec.errors import DistilvecError
from distilvec.recipe import OptimizerSection, TrainingSection

PASSED: dict[str, Any] = {
    "max_steps": 7,
    "lr_scheduler_type": "linear",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "warmup_steps": 0.25,
    "optim": "adafactor",
    "optim_args": "beta1=0.8",
    "adam_beta1": 0.8,
    "adam_beta2": 0.9,
    "adam_epsilon": 1e-6,
    "gradient_accumulation_steps": 3,
    "max_grad_norm": 0.5,
    "bf16": True,
    "fp16": False,
    "tf32": None,
    "torch_compile": True,
    "torch_compile_backend": "eager",
    "torch_compile_mode": "default",
    "torch_empty_cache_steps": 5,
    "logging_strategy": "epoch",
    "logging_steps": 3,
    "logging_first_step": True,
    "log_on_each_node": False,
    "include_num_input_tokens_seen": "non_padding",
    "log_level": "warning",
    "log_level_replica": "error",
    "disable_tqdm": False,
    "report_to": [],
    "run_name": "one",
    "project": "other",
    "trackio_space_id": "a/b",
    "trackio_bucket_id": "c",
    "trackio_static_space_id": "a/d",
    "eval_delay": 4,
    "eval_on_start": True,
    "save_on_each_node": True,
    "save_total_limit": 5,
    "push_to_hub": True,
    "hub_token": "t",
    "hub_private_repo": True,
    "hub_model_id": "me/it",
    "hub_strategy": "end",
    "hub_always_push": True,
    "hub_revision": "dev",
    "greater_is_better": False,
    "restore_callback_states_from_checkpoint": False,
    "full_determinism": False,
    "data_seed": 3,
    "use_cpu": True,
    "dataloader_drop_last": True,
    "dataloader_num_workers": 1,
    "dataloader_pin_memory": False,
    "dataloader_persistent_workers": True,
    "dataloader_prefetch_factor": 2,
    "ddp_bucket_cap_mb": 10,
    "ddp_timeout": 60,
    "skip_memory_metrics": False,
}
OWN = {"seed"}  # a field of the section itself
IN_PROCESSES = {"ddp_backend"}  # test_processes.py sets it
FIELDS = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}


def arguments(items: int = 100, optimizer: dict[str, Any] | None = None, **training: Any) -> TrainingArguments:
    return training_arguments(
        TrainingSection(**{"batch_size": 8, **training}), OptimizerSection(**(optimizer or {})), Path("unused"), items
    )


def test_no_key_is_forgotten() -> None:
    known = set(PASSED) | REFUSED.keys() | ELSEWHERE.keys() | OWN | IN_PROCESSES
    if transformers.__version__.startswith("5.23."):
        assert FIELDS - known == set()
        assert set(PASSED) - FIELDS == set()
    assert not REFUSED.keys() & ELSEWHERE.keys()
    assert not set(PASSED) & (REFUSED.keys() | ELSEWHERE.keys())


@pytest.mark.parametrize("key", [key for key in PASSED if key in FIELDS])
def test_passed_keys_arrive(key: str) -> None:
    companions = {
        "dataloader_prefetch_factor": {"dataloader_num_workers": 1},
        "dataloader_persistent_workers": {"dataloader_num_workers": 1},
        "greater_is_better": {"best": "score", "evaluate_every": 2},
        "lr_scheduler_kwargs": {"lr_scheduler_type": "cosine_with_min_lr"},
    }
    made = arguments(**{key: PASSED[key]}, **companions.get(key, {}))
    found = getattr(made, key)
    assert ([PASSED[key]] if isinstance(found, list) and PASSED[key] else PASSED[key]) == found


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_refused_keys_are_named_with_the_reason(key: str) -> None:
    with pytest.raises(DistilvecError) as caught:
        arguments(**{key: True})
    assert f'"{key}" ' in str(caught.value) and REFUSED[key] in str(caught.value)
    assert caught.value.where == f"training.{key}"


@pytest.mark.parametrize("key", sorted(ELSEWHERE))
def test_keys_with_another_place_name_it(key: str) -> None:
    with pytest.raises(DistilvecError) as caught:
        arguments(**{key: 1})
    assert f'"{key}" ' in str(caught.value) and ELSEWHERE[key] in str(caught.value)


@pytest.mark.parametrize(
    ("training", "optimizer", "said"),
    [
        ({"learning_rat": 1}, {}, 'training.learning_rat: unknown key "learning_rat"'),
        ({"warmup_step": 1}, {}, '"warmup_steps"'),
        ({"best": "score"}, {}, "Set training.evaluate_every"),
        ({"patience": 2}, {}, "patience (2)"),
        ({"best": "score", "evaluate_every": 4, "save_every": 6}, {}, "training.save_every: save_every (6)"),
        ({"gradient_accumulation_steps": 0}, {}, "training.gradient_accumulation_steps: 0 "),
        ({"gradient_accumulation_steps": "two"}, {}, "training.gradient_accumulation_steps: 'two' "),
        ({"optim": "schedule_free_adamw"}, {}, '"schedule_free_adamw"'),
        ({"optim": "lomo"}, {}, '"lomo"'),
        ({"optim": "nonsense"}, {}, "nonsense is not a valid OptimizerNames"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, {}, "Set training.best"),
        ({"lr_scheduler_type": "nonsense"}, {}, "nonsense is not a valid SchedulerType"),
        ({"fp16": True}, {"sharpness": {"kind": "sam"}}, "Set bf16"),
        ({"optim": "adafactor"}, {"muon": True}, "Leave training.optim out"),
        (
            {"torch_compile_mode": "max-autotun"},
            {},
            'knows no "max-autotun". Did you mean "max-autotune"?',
        ),
        ({"torch_compile_backend": "inducto"}, {}, 'Did you mean "inductor"?'),
    ],
)
def test_what_cannot_work_is_said_before_the_run(
    training: dict[str, Any], optimizer: dict[str, Any], said: str
) -> None:
    with pytest.raises(DistilvecError) as caught:
        arguments(optimizer=optimizer, **training)
    assert said in str(caught.value)


def test_a_batch_that_the_processes_cannot_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(DistilvecError, match=r"^training\.batch_size: .*\b8\b.*\b3 processes"):
        arguments()


def test_defaults() -> None:
    made = arguments(items=1000, epochs=3, batch_size=10)
    assert (made.save_steps, made.logging_steps, made.num_train_epochs) == (100, 10, 3)
    assert made.eval_strategy == "no" and not made.load_best_model_at_end
    made = arguments(items=1000, best="score", evaluate_every=7)
    assert (made.save_steps, made.eval_steps, made.greater_is_better) == (7, 7, True)
    assert made.metric_for_best_model == "score" and made.load_best_model_at_end


def test_steps() -> None:
    plain, four = (
        TrainingSection(batch_size=8, epochs=2.5),
        TrainingSection(batch_size=8, gradient_accumulation_steps=4),
    )
    assert [steps_per_epoch(plain, items) for items in (100, 3, 96)] == [13, 1, 12]
    assert steps_per_epoch(four, 100) == 4
    assert steps_in_all(plain, 100) == 33
    assert steps_in_all(TrainingSection(batch_size=8, max_steps=7), 100) == 7


@pytest.mark.parametrize(
    ("given", "cuda", "narrow"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"bf16": False}, True, False),
        ({"fp16": True}, True, False),
        ({"use_cpu": True}, True, False),
        ({"use_cpu": False}, True, True),
    ],
)
def test_on_cuda_training_is_in_bfloat16_unless_its_precision_is_named(
    given: dict[str, bool], cuda: bool, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: cuda)
    assert _narrow_by_itself(given) is narrow


@pytest.mark.skipif(torch.cuda.is_available(), reason="an accelerator answers by its kind")
@pytest.mark.parametrize(
    ("flags", "seconds", "pays"),
    [
        ("avx512f avx512_bf16", 0.5, True),
        ("avx512f avx512_bf16", 0.95, False),
        ("avx512f avx512_bf16", 2.0, False),
        ("avx512f", 0.5, False),
    ],
)
def test_bfloat16_pays_where_its_products_are_faster(
    flags: str, seconds: float, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"flags : fpu {flags} sse")
    monkeypatch.setattr(
        "distilvec.training.arguments._product_seconds", lambda dtype: seconds if dtype is torch.bfloat16 else 1.0
    )
    assert bfloat16_pays.__wrapped__() is pays
    assert bfloat16_pays() in (True, False)
