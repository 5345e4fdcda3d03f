"""The optimiser and the schedule of a training, as the recipe's sections say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from distilvec.errors import DistilvecError
from distilvec.modules.blocks import token_head
from distilvec.recipe import OptimizerSection, SharpnessSection, TrainingSection, given
from distilvec.training.step import Distiller

if TYPE_CHECKING:
    from distilvec.optim import SharpnessAware


_RHO = {"disam": 0.01}  # where the recipe is silent; those of sam and asam are the optimizer's own
#: Names of what has no weight decay, beside all of a LayerNorm.
_UNDECAYED = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]


def make_optimizer(
    distiller: Distiller, training: TrainingSection, optimizer: OptimizerSection, *, narrow: bool
) -> torch.optim.Optimizer:
    """The optimiser of all trained parameters, of a training in bfloat16 if it is `narrow`."""
    groups = parameter_groups(distiller, optimizer)
    lr, betas = given(optimizer.lr, "optimizer.lr"), (training.adam_beta1, training.adam_beta2)
    adam: dict[str, Any] = {"lr": lr, "betas": betas, "eps": training.adam_epsilon}
    if training.optim == "adamw_torch_fused":
        adam["fused"] = True
    made: torch.optim.Optimizer
    if optimizer.muon:
        from distilvec.optim import Muon

        made = Muon(groups, dtype=torch.bfloat16 if narrow else torch.float32, **adam)
    elif training.optim == "sgd":
        made = torch.optim.SGD(groups, lr)
    elif training.optim == "adafactor":
        from transformers import Adafactor

        made = Adafactor(groups, lr, scale_parameter=False, relative_step=False)
    else:
        made = torch.optim.AdamW(groups, **adam)
    return made if optimizer.sharpness is None else _sharp(made, optimizer.sharpness)


def _sharp(base: torch.optim.Optimizer, section: SharpnessSection) -> SharpnessAware:
    from distilvec.optim import SharpnessAware

    return SharpnessAware(
        base,
        kind="sam" if section.kind == "disam" else section.kind,
        rho=_RHO.get(section.kind) if section.rho is None else section.rho,
        **section.model_dump(include={"eta", "every", "scale", "bias"}),
    )


def parameter_groups(distiller: Distiller, optimizer: OptimizerSection) -> list[dict[str, Any]]:
    """Student and heads, with and without weight decay, matrices apart; every trained parameter in exactly one."""
    from transformers.trainer_pt_utils import get_parameter_names

    decayed = set(get_parameter_names(distiller, [nn.LayerNorm], _UNDECAYED))
    students = {id(parameter) for parameter in distiller.student.parameters()}
    rates = distiller.method.rates()
    paces = {id(parameter): rate for module, rate in rates.items() for parameter in module.parameters()}
    matrices: set[int] = set()
    if optimizer.muon:
        from distilvec.optim import hidden_matrices

        head = token_head(distiller.student)  # logits of tokens are as little hidden as the table of tokens
        hidden = hidden_matrices(distiller.student)
        matrices = {id(each) for each in hidden if head is None or each is not head.weight}
    groups: dict[tuple[bool, bool, float, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in distiller.named_parameters():
        if parameter.requires_grad:
            own = id(parameter)
            key = own not in students, name not in decayed, paces.get(own, 1.0), own in matrices
            groups.setdefault((*key, isinstance(parameter, DTensor)), []).append(parameter)
    lr = given(optimizer.lr, "optimizer.lr")
    perturbs = optimizer.sharpness is None or optimizer.sharpness.heads
    return [
        {
            "params": groups[key],
            "lr": pace * (optimizer.heads_lr if heads and optimizer.heads_lr else lr),
            "weight_decay": 0.0 if plain else optimizer.weight_decay,
            "perturb": not heads or perturbs,
            **({"orthogonal": orthogonal} if optimizer.muon else {}),
        }
        for key in sorted(groups)
        for heads, plain, pace, orthogonal, _ in [key]
    ]


def make_schedule(training: TrainingSection, optimizer: torch.optim.Optimizer, steps: int) -> Any:
    """The schedule of the learning rates over the steps of a training."""
    from transformers import get_scheduler

    kind, warmup, options = training.lr_scheduler_type, training.warmup(steps), dict(training.lr_scheduler_kwargs)
    try:
        if options and kind.startswith("constant"):  # transformers passes over them
            raise TypeError(f"it takes none, not {', '.join(options)}")
        return get_scheduler(
            kind,
            optimizer,
            num_warmup_steps=warmup,
            num_training_steps=max(steps, warmup + 1),  # polynomial divides by those behind the warm-up
            scheduler_specific_kwargs=options,
        )
    except (TypeError, ValueError) as error:
        raise DistilvecError(
            f"the schedule {kind} refuses its options ({error})",
            where="training.lr_scheduler_kwargs",
        ) from error
