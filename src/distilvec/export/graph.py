"""A student as an ONNX graph: token ids and mask in, the vector that encode() returns out."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.export.encoder import INPUTS
from distilvec.modules.routing import mixtures
from distilvec.system_errors import REMEDIES

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

OPSET = 18
#: Above this the weights go into a file beside the graph: protobuf ends at 2 GB.
INSIDE_LIMIT = 1_500_000_000
OUTPUT, STATES = "sentence_embedding", "last_hidden_state"
_EXAMPLES = ["a short text", "and a text that is somewhat longer than the first"]


def check_model(student: SentenceTransformer, where: str) -> None:
    """Refuse what would export into something else than what encode() does."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    parts = list(student.children())
    readable = bool(parts) and isinstance(parts[0], Transformer) and hasattr(student.tokenizer, "backend_tokenizer")
    if not readable and not is_static(student):
        kind = type(parts[0]).__name__ if parts else "nothing"
        raise DistilvecError(
            f"only a text transformer with a fast tokenizer, or a static table, can be exported; this model starts "
            f"with {kind}",
            where=where,
            remedy="For a Router, export the two models one by one.",
        )
    first: Any = parts[0]
    if not is_static(student) and mixtures(first.model):
        raise DistilvecError(
            "this is a mixture of experts, whose sparse dispatch depends on its input and cannot become a fixed graph",
            where=where,
            remedy="Distil it into a dense student, and export that.",
        )
    prompts = any(student.prompts.values())
    if prompts and any(isinstance(part, Pooling) and not part.include_prompt for part in parts):
        raise DistilvecError(
            "this model leaves its prompt out of the pooling, which the exported graph cannot know of", where=where
        )


def is_static(student: SentenceTransformer) -> bool:
    """Tell whether this is a table of word vectors and their mean."""
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    return bool(len(student)) and isinstance(student[0], StaticEmbedding)


def backend_tokenizer(student: SentenceTransformer) -> Any:
    """The `tokenizers.Tokenizer` of a student that `check_model` let through."""
    return getattr(student.tokenizer, "backend_tokenizer", student.tokenizer)


def weight_bytes(student: SentenceTransformer) -> int:
    """Count the bytes of all parameters, in memory."""
    return sum(parameter.numel() * parameter.element_size() for parameter in student.parameters())


class _Pipeline(nn.Module):
    """The modules of a student as one function of the named tensors.

    Args:
        states: also give the token states [B, S, d] of the transformer.
    """

    def __init__(self, parts: Sequence[nn.Module], names: Sequence[str], states: bool) -> None:
        super().__init__()
        self.parts, self.names, self.states = nn.ModuleList(parts), tuple(names), states

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        features: dict[str, Any] = self.parts[0](dict(zip(self.names, inputs, strict=True)))
        tokens: Any = features.get("token_embeddings")
        for part in self.parts[1:]:
            features = part(features)
        return (features[OUTPUT], tokens) if self.states else features[OUTPUT]


class _Table(nn.Module):
    """A static table [n, d] and its mean; a text without pieces has the vector zero, as in an `EmbeddingBag`."""

    def __init__(self, table: nn.Parameter) -> None:
        super().__init__()
        self.table = table

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        counted = features["attention_mask"].unsqueeze(-1).to(self.table.dtype)  # [B, S, 1]
        total = (nn.functional.embedding(features["input_ids"], self.table) * counted).sum(dim=1)
        return {OUTPUT: total / counted.sum(dim=1).clamp(min=1)}


def write_graph(student: SentenceTransformer, file: Path, *, states: bool = False) -> list[str]:
    """Export, name the free axes, check that they are free; returns the graph's inputs.

    Args:
        student: one that `check_model` let through, in eval mode.
        states: a second output `last_hidden_state` with the token states of its transformer.

    Raises:
        DistilvecError: torch cannot export this model, or an axis has become fixed.
        OSError: the disk is full.
    """
    import onnx

    parts: list[Any] = list(student.children())
    if is_static(student):
        parts[0] = _Table(parts[0].embedding.weight)
        features = {name: torch.ones(2, 3, dtype=torch.long) for name in INPUTS[:2]}  # any ids will do
    else:
        features = student.preprocess(_EXAMPLES)
    names = [name for name in INPUTS if name in features]
    free = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
    try:
        with torch.no_grad(), warnings.catch_warnings(), quiet("torch.onnx"):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Pipeline(parts, names, states).eval(),
                tuple(features[name] for name in names),
                str(file),
                input_names=names,
                output_names=[OUTPUT, STATES] if states else [OUTPUT],
                dynamic_shapes=(tuple(free for _ in names),),
                opset_version=OPSET,
                external_data=weight_bytes(student) > INSIDE_LIMIT,
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # the exporter's errors have no common base that is public
        _raise_disk_problem(error)
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DistilvecError(f"torch cannot export this model ({first})") from error
    model = onnx.load(str(file), load_external_data=False)
    _name_axes(model)
    onnx.save(model, str(file))
    return names


def _raise_disk_problem(error: BaseException | None) -> None:
    """Let the system's own error through where one lies behind an exporter's: a full disk is no fault of the model."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in REMEDIES:
            raise error
        error = error.__cause__ or error.__context__


def _name_axes(model: Any) -> None:
    """Call the free axes `batch` and `sequence` in inputs and outputs, and forget the shapes in between.

    The exporter leaves shapes from before its own folding of transposed weights, on which quantising stumbles;
    whoever needs shapes infers them anew.
    """
    named: dict[str, str] = {}
    for value in model.graph.input:
        for axis, name in zip(value.type.tensor_type.shape.dim, ("batch", "sequence"), strict=True):
            if not axis.dim_param:
                raise DistilvecError(f"the exported graph has a fixed {name} axis of {axis.dim_value}")
            named[axis.dim_param] = name
    del model.graph.value_info[:]
    for value in [*model.graph.input, *model.graph.output]:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in named:
                axis.dim_param = named[axis.dim_param]


def quantize(source: Path, target: Path) -> None:
    """Weights of matrix products and embedding tables as uint8, one scale per output channel.

    Unsigned weights: signed ones overflow in the 16-bit sums of processors without VNNI instructions.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quiet(""):  # it warns on the root logger that it would like preprocessing, which brings nothing here
        quantize_dynamic(str(source), str(target), weight_type=QuantType.QUInt8, per_channel=True)


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Only errors from this logger."""
    talkative = logging.getLogger(name)
    level = talkative.level
    talkative.setLevel(logging.ERROR)
    try:
        yield
    finally:
        talkative.setLevel(level)
