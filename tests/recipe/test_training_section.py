"""The section `training`: what its keys mean, what becomes of other words, and what does not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from distilvec.errors import DistilvecError
from distilvec.recipe import Recipe, TrainingSection
from distilvec.recipe.sections import SharpnessSection
from distilvec.recipe.training_section import check_evaluations
from distilvec.training import bfloat16_pays
from distilvec.training.distributed import narrow_by_itself

#: Keys that transformers does not have, or names in two words.
OWN = {
    "epochs", "batch_size", "mini_batch_size", "gather", "evaluate_every", "save_every", "best", "patience",
}  # fmt: skip


def refused(training: dict[str, Any], **sections: Any) -> DistilvecError:
    with pytest.raises(DistilvecError) as caught:
        Recipe.build({"training": training, **sections})
    return caught.value


def test_keys_are_named_as_transformers_names_them() -> None:
    own = TrainingSection.model_fields.keys() - TrainingArguments.__dataclass_fields__.keys()
    assert own == OWN
    assert not TrainingSection.moved.keys() & TrainingSection.model_fields.keys()


@pytest.mark.parametrize("key", sorted(TrainingArguments.__dataclass_fields__.keys() - OWN))
def test_every_key_of_transformers_is_a_key_or_is_answered(key: str) -> None:
    if key in TrainingSection.model_fields:
        return
    error = refused({key: 1})
    assert error.where == f"training.{key}" and f'unknown key "{key}"' in str(error)
    assert error.remedy == TrainingSection.moved.get(key, error.remedy) != ""


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("num_train_epochs", "Write epochs"),
        ("per_device_train_batch_size", "batch_size"),
        ("learning_rate", "optimizer: {lr: ...}"),
        ("eval_steps", "evaluate_every"),
        ("push_to_hub", "distilvec push"),
        ("warmup_ratio", "warmup_steps"),
        ("learning_rat", ""),
        ("warmup_step", 'Did you mean "warmup_steps"?'),
    ],
)
def test_another_word_is_answered_with_the_right_one(key: str, remedy: str) -> None:
    assert remedy in str(refused({key: 1}))


@pytest.mark.parametrize(
    ("training", "optimizer", "said"),
    [
        ({"gradient_accumulation_steps": 0}, {}, "training.gradient_accumulation_steps: "),
        ({"gradient_accumulation_steps": "two"}, {}, "training.gradient_accumulation_steps: "),
        ({"optim": "nonsense"}, {}, "training.optim: "),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, {}, "training.lr_scheduler_type: "),
        ({"bf16": True, "fp16": True}, {}, "training.bf16: "),
        ({"fp16": True}, {"sharpness": {"kind": "sam"}}, "training.fp16: "),
        ({"fp16": True, "fsdp": True}, {}, "training.fp16: "),
        ({"fsdp": True}, {"muon": True}, "training.fsdp: "),
        ({"fsdp": True, "optim": "adafactor"}, {}, "training.fsdp: "),
        ({"fsdp": True}, {"sharpness": {"ascent": "local"}}, "training.fsdp: "),
        ({"optim": "adafactor"}, {"muon": True}, "Leave training.optim out"),
        ({"torch_compile_mode": "max-autotun"}, {}, 'knows no "max-autotun". Did you mean "max-autotune"?'),
        ({"torch_compile_backend": "inducto"}, {}, 'Did you mean "inductor"?'),
    ],
)
def test_impossible_training_settings_are_refused_with_the_recipe(
    training: dict[str, Any], optimizer: dict[str, Any], said: str
) -> None:
    assert said in str(refused(training, optimizer=optimizer))


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"best": "score"}, "Set training.evaluate_every"),
        ({"patience": 2}, "patience (2)"),
        ({"best": "score", "evaluate_every": 4, "save_every": 6}, "training.save_every: save_every (6)"),
    ],
)
def test_keys_that_depend_on_evaluation_need_it(training: dict[str, Any], said: str) -> None:
    with pytest.raises(DistilvecError) as caught:
        check_evaluations(TrainingSection(**training))
    assert said in str(caught.value)


def test_steps() -> None:
    plain, four = (
        TrainingSection(batch_size=8, epochs=2.5),
        TrainingSection(batch_size=8, gradient_accumulation_steps=4, dataloader_drop_last=True),
    )
    assert [plain.steps_per_epoch(items) for items in (100, 3, 96)] == [13, 1, 12]
    assert four.steps_per_epoch(100) == 3
    assert plain.steps(100) == 33
    assert TrainingSection(batch_size=8, max_steps=7).steps(100) == 7
    assert [TrainingSection(warmup_steps=warm).warmup(100) for warm in (0, 0.055, 1, 7)] == [0, 6, 1, 7]


def test_a_saved_section_has_what_was_written_and_what_all_have() -> None:
    saved = TrainingSection(warmup_steps=0, report_to="none").model_dump()
    assert saved.keys() == OWN | {"seed", "warmup_steps", "report_to"} and saved["report_to"] == []


@pytest.mark.parametrize(
    ("given", "cuda", "processor", "narrow"),
    [
        ({}, True, False, True),
        ({}, False, False, False),
        ({}, False, True, True),
        ({"bf16": False}, True, True, False),
        ({"fp16": True}, True, True, False),
        ({"use_cpu": True}, True, False, False),
        ({"use_cpu": True}, True, True, True),
        ({"use_cpu": False}, True, False, True),
    ],
)
def test_training_is_in_bfloat16_where_it_pays_unless_its_precision_is_named(
    given: dict[str, bool], cuda: bool, processor: bool, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: cuda)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags : avx512_bf16" if processor else "flags : sse")
    monkeypatch.setattr("distilvec.precision._product_seconds", lambda dtype: 0.5 if dtype is torch.bfloat16 else 1.0)
    monkeypatch.setattr("distilvec.training.distributed.bfloat16_pays", bfloat16_pays.__wrapped__)
    assert narrow_by_itself(TrainingSection.model_validate(given)) is narrow


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
        "distilvec.precision._product_seconds", lambda dtype: seconds if dtype is torch.bfloat16 else 1.0
    )
    assert bfloat16_pays.__wrapped__() is pays
    assert bfloat16_pays() in (True, False)


def test_domains_are_refused_for_other_kinds_than_disam() -> None:
    with pytest.raises(ValueError, match="asam does not compare domains"):
        SharpnessSection(kind="asam", domains=0.5)
    assert SharpnessSection(kind="disam", domains=0.5).domains == 0.5
