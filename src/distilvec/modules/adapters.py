"""Low-rank adapters (Hu et al. 2021) beside the folder of their base or while a student is trained; models in parts.

LLM2Vec (BehnamGhader et al. 2024, arXiv:2404.05961) publishes its embedders like that: a causal base, adapters from
masked next-token prediction, and adapters from contrastive training on top, all read without the causal mask.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from distilvec.errors import DataError, DistilvecError
from distilvec.extras import need
from distilvec.modules.blocks import find_transformer
from distilvec.modules.settings import read_json

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.(?:\w+\.)?weight")
#: Settings of PEFT that choose the modules and their training, and change nothing about what is added.
_PLAIN = {
    "auto_mapping",
    "base_model_name_or_path",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "target_modules",
    "task_type",
    "use_rslora",
}
#: First values of the two matrices that leave the base as it is; others (PiSSA, OLoRA, CorDA) take a part out of it.
_PLAIN_STARTS = (True, "gaussian", "orthogonal", "eva")


def merge_adapters(model: SentenceTransformer, folders: Iterable[Path]) -> None:
    """Add low-rank adapters, one folder after the other, to the weights of a model's transformer, in place.

        W <- W + s B A,  s = alpha / r, or alpha / sqrt(r) where the adapters are rank-stabilised

    The sum is made in float32 and kept in the weights' own type.

    Args:
        model: a transformer with pooling.
        folders: as PEFT writes them, with `adapter_config.json` and `adapter_model.safetensors`. The base model that
            they name is not looked at: the weights they are added to are the model's.

    Raises:
        DistilvecError: adapters of another kind than LoRA, or for modules that the model does not have.
        DataError: a file is missing or damaged, or shapes do not fit.

    Source: Hu et al. 2021, LoRA, equation 3.
    """
    transformer = find_transformer(model)
    if transformer is None:
        raise DistilvecError("adapters are for transformers, and this model has none", where="adapters")
    for folder in folders:
        _merge(transformer.model, folder)


def read_both_ways(model: SentenceTransformer) -> None:
    """Take the causal mask off a decoder, and let it pad on the left, in place.

    It is written into the model's configuration (`is_causal: false`), so that a folder saved of it opens likewise. A
    tokenizer without padding pads with its end of text.
    """
    from distilvec.modules.pipeline import is_causal

    transformer = find_transformer(model)
    own = None if transformer is None else getattr(transformer.model.config, "is_causal", None)
    if transformer is None or not (is_causal(transformer.model) or own is False):
        raise DistilvecError(
            "there is no causal mask to take off: this model reads both ways",
            where="causal",
            remedy="Leave it out.",
        )
    transformer.model.config.is_causal = False
    tokenizer = transformer.tokenizer
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token


def leave_out_prompt(model: SentenceTransformer) -> None:
    """Pool without the tokens of the prompt and what stands before it, as LLM2Vec does with instructions, in place."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    for module in model.children():
        if isinstance(module, Pooling):
            module.include_prompt = False


def check_lora(student: SentenceTransformer) -> None:
    """Refuse a student without a transformer to put adapters in, and a machine without peft."""
    if find_transformer(student) is None:
        raise DistilvecError(
            "this model has no transformer to put adapters in", where="student.lora", remedy="Leave it out."
        )
    need("student.lora", "lora", "peft")


@contextmanager
def adapters(student: SentenceTransformer, *, rank: int, alpha: float, dropout: float, seed: int) -> Iterator[None]:
    """A student with adapters beside every linear map of its transformer, in place; only they can be trained inside.

    `check_lora` has seen that it can have them.

    At the end they are added to the weights and taken out again. Where the block fails they stay.

    Args:
        rank: r of the adapters, >= 1.
        alpha: their output is multiplied by alpha / rank.
        dropout: on their input, in [0, 1).
        seed: of their start.
    """
    from peft import LoraConfig, LoraModel

    transformer = find_transformer(student)
    assert transformer is not None
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules="all-linear")  # type: ignore[arg-type]  # a fraction is fine
    adapted = LoraModel(transformer.model, config, "default")
    yield
    adapted.merge_and_unload()


def _merge(model: nn.Module, folder: Path) -> None:
    config = _config(folder)
    pairs = _pairs(folder)
    scale = float(config["lora_alpha"]) / (config["r"] ** (0.5 if config.get("use_rslora") else 1))
    modules = dict(model.named_modules())
    for name, sides in pairs.items():
        # Adapters of a model with a language head name what is inside it: model.layers.0 for layers.0.
        module: Any = modules.get(name) or modules.get(name.removeprefix("model."))
        if not isinstance(module, nn.Linear):
            raise DistilvecError(
                f"the adapters are for {name}, and the model has no such linear map",
                where=str(folder),
                remedy="Adapters go with the base that their adapter_config.json names.",
            )
        change = scale * (sides["B"].float() @ sides["A"].float())
        if change.shape != module.weight.shape:
            raise DataError(
                f"the adapters of {name} are for weights {list(change.shape)}, the model's are "
                f"{list(module.weight.shape)}",
                where=str(folder),
            )
        with torch.no_grad():
            module.weight.copy_(module.weight.float() + change.to(module.weight.device))


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / CONFIG)
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise DistilvecError(f"these are no LoRA adapters (peft_type {kind!r})", where=str(folder / CONFIG))
    for key, value in sorted(config.items()):
        plain = key in _PLAIN or (key == "bias" and value == "none")
        plain = plain or (key == "init_lora_weights" and value in _PLAIN_STARTS)
        if value and not plain:  # settings that are off are empty
            raise DistilvecError(
                f"adapters with {key}: {str(value)[:80]!r} are not merged here",
                where=str(folder / CONFIG),
                remedy="Merge it with PEFT first (merge_and_unload), save the whole model, and give that folder.",
            )
    if not isinstance(config.get("r"), int) or config["r"] < 1 or not isinstance(config.get("lora_alpha"), int | float):
        raise DataError("r and lora_alpha are missing, or no numbers", where=str(folder / CONFIG))
    return dict(config)


def _pairs(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Module name -> its matrices "A" [r, in] and "B" [out, r]."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / WEIGHTS
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as problem:
        raise DataError(f"the adapters cannot be read ({problem})", where=str(file)) from problem
    pairs: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        found = _KEY.fullmatch(key)
        if found is None or tensor.dim() != 2:
            raise DataError(f'"{key}" is no matrix of a LoRA adapter', where=str(file))
        pairs.setdefault(found["module"], {})[found["side"]] = tensor
    single = next((name for name, sides in pairs.items() if len(sides) < 2), None)
    if single is not None or not pairs:
        raise DataError(f"one of the two matrices of {single or 'any module'} is missing", where=str(file))
    wrong = next((name for name, sides in pairs.items() if len(sides["A"]) != sides["B"].shape[1]), None)
    if wrong is not None:
        raise DataError(f"the two matrices of {wrong} do not fit together", where=str(file))
    return pairs
