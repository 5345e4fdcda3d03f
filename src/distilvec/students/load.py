"""Opening a model as a student: in float32, from safetensors, without what is never used."""

from __future__ import annotations

import inspect
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from distilvec.errors import DataError, DistilvecError
from distilvec.modules.blocks import find_blocks, find_transformer, parameters
from distilvec.modules.pipeline import PoolingChoice, item_kinds, open_pipeline, set_length, set_pooling, token_limit
from distilvec.modules.vision import is_vision, open_vision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_HUB_ID = re.compile(r"[\w.\-]+(/[\w.\-]+)?")


def load_student(
    model: str | Path,
    *,
    max_length: int | None = None,
    pooling: PoolingChoice | None = None,
    trust_remote_code: bool = False,
    device: str | None = None,
) -> SentenceTransformer:
    """Open a sentence-transformers or bare transformers model, ready to be trained.

    A vision model of transformers gets the pooling of its kind. A bare transformers model of texts gets `pooling`, else
    mean pooling, or last-token pooling where its attention is causal.
    Weights stored in half precision are read as float32, because training updates are lost in half-precision weights.
    A pooler that nothing reads (BERT's, XLM-R's) is dropped.

    Args:
        model: folder, or model id on the hub.
        max_length: tokens per text; default is the model's own, at most what its positions allow.
        pooling: of a bare transformers model; "cls" is the first token, "last" the last.
        trust_remote_code: whether code that comes with the model may run.
        device: where the student is put; default is the best device there is.

    Raises:
        DistilvecError: no such folder or model, not a model, it demands code of its own, its weights are pickled,
            `max_length` is more than its positions allow, or `pooling` is another than its own.
        DataError: the weights file is damaged.
    """
    source = _locate(model)
    if is_vision(source):
        if pooling is not None or max_length is not None:
            raise DistilvecError(
                "pooling and max_length are for text models, and this one reads images",
                where=str(model),
                remedy="Leave them out.",
            )
        return open_vision(source, device=device)
    student = _open(source, trust_remote_code, device)
    student.float()
    transformer = find_transformer(student)
    if transformer is not None:
        transformer.model.config.dtype = torch.float32
        drop_pooler(transformer)
        set_length(student, max_length, str(model))
    set_pooling(student, pooling, bare=_is_bare(source), name=str(model))
    return student


def drop_pooler(transformer: Any) -> bool:
    """Remove the pooler of a `Transformer` module whose token states are what is read.

    Only models that can be built without one (`add_pooling_layer`) are touched. Returns whether there was one.
    """
    model = transformer.model
    if transformer.module_output_name != "token_embeddings" or not can_omit_pooler(model):
        return False
    had_one = model.pooler is not None
    model.pooler = None
    return had_one


def can_omit_pooler(model: nn.Module) -> bool:
    """Whether the model's class can be built without its pooler."""
    return "add_pooling_layer" in inspect.signature(type(model)).parameters and hasattr(model, "pooler")


def lacks_pooler(folder: str | Path) -> bool:
    """Whether a saved model could have a pooler and its weights hold none: building one would make it up."""
    from safetensors import safe_open
    from transformers import MODEL_MAPPING, AutoConfig

    from distilvec.modules import moe_encoder  # noqa: F401  it registers its type

    weights = Path(folder) / "model.safetensors"
    if not weights.is_file() or not (Path(folder) / "config.json").is_file():
        return False
    try:
        model_class: Any = MODEL_MAPPING[type(AutoConfig.from_pretrained(str(folder)))]
    except (KeyError, ValueError):
        return False
    if "add_pooling_layer" not in inspect.signature(model_class).parameters:
        return False
    with safe_open(weights, framework="numpy") as file:
        return not any(name.startswith("pooler.") or ".pooler." in name for name in file.keys())  # noqa: SIM118


def describe_student(student: SentenceTransformer) -> dict[str, Any]:
    """What a person wants to know of a student before training it.

    Returns:
        parameters, embedding_parameters (tables of token, position and type embeddings), block_parameters, bytes
        (of the weights on disk), layers (None = no blocks), width, max_length (None = any), tokenizer (kind),
        vocabulary (number of pieces; both None where it reads no texts), pooling (None = no pooling).
    """
    from sentence_transformers.sentence_transformer.modules import Pooling

    transformer = find_transformer(student)
    found = None if transformer is None else find_blocks(transformer.model)
    tables = {
        id(module.weight): module.weight.numel()
        for module in student.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    pooling = next((module.pooling_mode for module in student.children() if isinstance(module, Pooling)), None)
    tokenizer = getattr(student[0], "tokenizer", None) if "text" in item_kinds(student) else None
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return {
        "parameters": parameters(student),
        "embedding_parameters": sum(tables.values()),
        "block_parameters": 0 if found is None else parameters(found[1]),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in student.parameters()),
        "layers": None if found is None else len(found[1]),
        "width": student.get_embedding_dimension(),
        "max_length": token_limit(student),
        "tokenizer": None if backend is None else tokenizer_kind(backend),
        "vocabulary": None if backend is None else backend.get_vocab_size(with_added_tokens=True),
        "pooling": pooling,
    }


def tokenizer_kind(backend: Any) -> str:
    """WordPiece, Unigram, BPE, byte-level BPE or WordLevel, from a `tokenizers.Tokenizer`."""
    kind = type(backend.model).__name__
    byte_level = "ByteLevel" in repr(backend.pre_tokenizer) or "ByteLevel" in repr(backend.normalizer)
    return f"byte-level {kind}" if kind == "BPE" and byte_level else kind


def _locate(model: str | Path) -> str:
    """The folder's path or the hub id, once it is clear that it can be opened safely."""
    folder = Path(model).expanduser()
    if not folder.exists():
        if isinstance(model, Path) or not _HUB_ID.fullmatch(model) or model.startswith("."):
            raise DistilvecError(
                "there is no such folder", where=str(model), remedy="Check the path of the model's folder."
            )
        return model
    if not folder.is_dir():
        raise DistilvecError(
            "a model is a folder, and this is a file", where=str(model), remedy="Give the folder that holds it."
        )
    if not (folder / "modules.json").exists() and not (folder / "config.json").exists():
        raise DistilvecError(
            "this folder holds no model: neither modules.json nor config.json is in it",
            where=str(model),
            remedy="Give a folder saved by sentence-transformers or transformers.",
        )
    _refuse_pickles(folder)
    return str(folder)


def _refuse_pickles(folder: Path) -> None:
    for place in [folder, *(child for child in folder.iterdir() if child.is_dir())]:
        files = {file.suffix: file.name for file in sorted(place.iterdir())}
        pickled = [files[suffix] for suffix in _PICKLES if suffix in files and files[suffix] != "training_args.bin"]
        if pickled and ".safetensors" not in files:
            raise DistilvecError(
                f"the weights are pickled ({pickled[0]}), and reading a pickle can run any code",
                where=str(place),
                remedy="Save the model again as safetensors (transformers: save_pretrained does so).",
            )


def _open(source: str, trust_remote_code: bool, device: str | None) -> SentenceTransformer:
    from safetensors import SafetensorError

    try:
        return open_pipeline(
            source,
            device=device,
            trust_remote_code=trust_remote_code,
            model_kwargs={
                "use_safetensors": True,
                "dtype": torch.float32,
                **({"add_pooling_layer": False} if lacks_pooler(source) else {}),
            },
        )
    except SafetensorError as problem:
        raise DataError(
            f"the weights cannot be read: {problem}", where=source, remedy="Copy or download the model again."
        ) from problem
    except (OSError, ValueError, ImportError, KeyError, TypeError, RuntimeError) as problem:
        raise _explain(source, problem) from problem


def _explain(source: str, problem: Exception) -> DistilvecError:
    message = str(problem).strip() or type(problem).__name__
    if "trust_remote_code" in message:
        return DistilvecError(
            "this model runs code that comes with it",
            where=source,
            remedy="Read that code; if you trust it, set trust_remote_code to true.",
        )
    if not Path(source).exists():
        return DistilvecError(
            f"neither a folder here nor a model that the hub gives ({message.splitlines()[0]})",
            where=source,
            remedy="Check the spelling, the network, and HF_HUB_OFFLINE.",
        )
    return DistilvecError(f"the model cannot be opened: {message.splitlines()[0]}", where=source)


def _is_bare(source: str) -> bool:
    from sentence_transformers.util import is_sentence_transformer_model

    return not is_sentence_transformer_model(source)
