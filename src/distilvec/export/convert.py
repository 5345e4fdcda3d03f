"""From a student's folder to ONNX: token ids and mask in, the vector that encode() returns out."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.export.encoder import CONFIG, FILES, INPUTS, Precision, load_onnx, need
from distilvec.export.outcome import ExportReport, Variant
from distilvec.files import read_object, refuse_foreign
from distilvec.modules.routing import mixtures
from distilvec.sealing import SEAL, seal, sealed

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
OPSET = 18
LEAST_COSINE = 0.999
INT8_COSINE = 0.97
SPEED_TEXTS = 16
#: Above this the weights go into a file beside the graph: protobuf ends at 2 GB.
INSIDE_LIMIT = 1_500_000_000
OUTPUT = "sentence_embedding"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.EIO}
COPIED = ("tokenizer_config.json", "special_tokens_map.json", "modules.json", "config_sentence_transformers.json")
#: What an export writes.
_WEIGHTS = tuple(name for file in FILES.values() for name in (file, f"{file}.data"))
_NAMES = (SEAL, CONFIG, *_WEIGHTS, "tokenizer.json", "pooling.json", *COPIED)
_SENTENCES = (
    "A cat sleeps on the warm stones.",
    "How do I reset my password?",
    "The committee postponed its decision until the budget had been discussed in full.",
    "def area(radius): return 3.14159 * radius ** 2",
    "Ja, das Gespräch dauerte länger als geplant.",
    "Yes",
    "In 1969, two people walked on the Moon; about 600 million watched them.",
    "Water boils at a lower temperature high up in the mountains, because the air presses less on it.",
)


def export_onnx(
    model_folder: str | Path, out_folder: str | Path, *, quantize: bool = True, texts: Sequence[str] | None = None
) -> ExportReport:
    """Write `model.onnx`, `model_int8.onnx` and what `load_onnx` needs into a folder, and check them against torch.

    The graph holds everything after the tokenizer: transformer, pooling, Dense, Normalize. Its batch and sequence
    axes are free. Nothing is written unless the float model agrees with torch.

    Args:
        model_folder: a sentence-transformers folder that starts with a transformer.
        out_folder: where the files go; files of an older export there are replaced.
        quantize: also make the int8 model (weights only, dynamically scaled activations).
        texts: what agreement and speed are measured on; default are sentences of many lengths.

    Raises:
        DistilvecError: the folder holds files of these names that no export wrote, the model cannot be exported, or
            the float model's cosine to torch is under 0.999.
        EnvironmentProblem: the extra `onnx` is not installed, or the folder cannot be written.
    """
    need("onnx", "onnxscript", "onnxruntime")
    out = Path(out_folder)
    refuse_foreign(out, _NAMES, _is_export)
    from distilvec.students import load_student

    student = load_student(model_folder, device="cpu").eval()
    _check_model(student, str(model_folder))
    chosen = list(texts) if texts is not None else _check_texts(student)
    if not chosen:
        raise DistilvecError("agreement needs texts to encode", where="texts")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".export-") as name:
            made = Path(name)
            names = _write_graph(student, made / FILES["float32"])
            _write_companions(student, Path(model_folder), made, names)
            if quantize:
                _quantize(made / FILES["float32"], made / FILES["int8"])
            variants, notes = _measure(student, Path(model_folder), made, chosen, quantize)
            seal(made)
            _move(made, out)
    except OSError as error:
        raise EnvironmentProblem(f"the export cannot be written ({error.strerror or error})", where=str(out)) from error
    return ExportReport(out, variants, len(chosen), notes)


class _Pipeline(nn.Module):
    """All modules of a student as one function of tensors."""

    def __init__(self, student: SentenceTransformer, names: Sequence[str]) -> None:
        super().__init__()
        self.parts, self.names = nn.ModuleList(student.children()), tuple(names)

    def forward(self, *inputs: Tensor) -> Tensor:
        features: dict[str, Any] = dict(zip(self.names, inputs, strict=True))
        for part in self.parts:
            features = part(features)
        return features[OUTPUT]


def _check_model(student: SentenceTransformer, where: str) -> None:
    """Refuse what would export into something else than what encode() does."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    parts = list(student.children())
    if not parts or not isinstance(parts[0], Transformer) or not hasattr(student.tokenizer, "backend_tokenizer"):
        kind = type(parts[0]).__name__ if parts else "nothing"
        raise DistilvecError(
            f"only a text transformer with a fast tokenizer can be exported; this model starts with {kind}",
            where=where,
            remedy="For a Router, export the two models one by one.",
        )
    if mixtures(parts[0].model):
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


def _write_graph(student: SentenceTransformer, file: Path) -> list[str]:
    """Export, name the free axes, check that they are free; returns the graph's inputs."""
    import onnx

    features = student.preprocess(["a short text", "and a text that is somewhat longer than the first"])
    names = [name for name in INPUTS if name in features]
    size = sum(parameter.numel() * parameter.element_size() for parameter in student.parameters())
    free = torch.export.Dim.DYNAMIC
    try:
        with torch.no_grad(), warnings.catch_warnings(), _quiet("torch.onnx"):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Pipeline(student, names).eval(),
                tuple(features[name] for name in names),
                str(file),
                input_names=names,
                output_names=[OUTPUT],
                dynamic_shapes=(tuple({0: free, 1: free} for _ in names),),
                opset_version=OPSET,
                external_data=size > INSIDE_LIMIT,
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
        if isinstance(error, OSError) and error.errno in _DISK:
            raise error
        error = error.__cause__ or error.__context__


def _name_axes(model: Any) -> None:
    """Call the free axes `batch` and `sequence` in inputs and output, and forget the shapes in between.

    The exporter leaves shapes from before its own folding of transposed weights, on which quantising stumbles;
    whoever needs shapes infers them anew.

    Raises:
        DistilvecError: an axis has become fixed.
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


def _write_companions(student: SentenceTransformer, source: Path, made: Path, names: Sequence[str]) -> None:
    """The tokenizer, the settings of encode(), and the folder's own descriptions of its modules."""
    tokenizer: Any = student.tokenizer
    try:
        tokenizer.backend_tokenizer.save(str(made / "tokenizer.json"))
    except Exception as problem:  # tokenizers wraps what the system says in an error without a kind
        raise OSError(str(problem)) from problem
    prompts = {name: text for name, text in student.prompts.items() if text}
    length = student.max_seq_length
    config = {
        "inputs": list(names),
        "output": OUTPUT,
        "width": student.get_embedding_dimension(),
        "max_length": int(length) if length and length < 10**6 else None,
        "padding_side": tokenizer.padding_side,
        "truncation_side": tokenizer.truncation_side,
        "pad_id": tokenizer.pad_token_id or 0,
        "pad_type_id": tokenizer.pad_token_type_id,
        "prompts": prompts,
        "default_prompt_name": student.default_prompt_name if student.default_prompt_name in prompts else None,
        "opset": OPSET,
    }
    (made / CONFIG).write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in COPIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, made / name)
    for pooling in source.glob("*_Pooling/config.json"):
        shutil.copyfile(pooling, made / "pooling.json")


def _quantize(source: Path, target: Path) -> None:
    """Weights of matrix products and embedding tables as uint8, one scale per output channel.

    Unsigned weights: signed ones overflow in the 16-bit sums of processors without VNNI instructions.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet(""):  # it warns on the root logger that it would like preprocessing, which brings nothing here
        quantize_dynamic(str(source), str(target), weight_type=QuantType.QUInt8, per_channel=True)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Only errors from this logger."""
    talkative = logging.getLogger(name)
    level = talkative.level
    talkative.setLevel(logging.ERROR)
    try:
        yield
    finally:
        talkative.setLevel(level)


def _measure(
    student: SentenceTransformer, source: Path, made: Path, texts: list[str], quantized: bool
) -> tuple[list[Variant], list[str]]:
    """Agreement and speed of every variant, and notes.

    Raises:
        DistilvecError: the float model does not agree with torch.
    """
    expected = student.encode(texts, show_progress_bar=False)
    weights = sum(file.stat().st_size for file in source.rglob("*.safetensors"))
    variants = [Variant("torch", None, weights, 1.0, 1.0, **_timed(student, texts))]
    notes = []
    wanted: tuple[Precision, ...] = ("float32", "int8") if quantized else ("float32",)
    for precision in wanted:
        encoder = load_onnx(made, precision=precision, threads=torch.get_num_threads())
        cosines = _cosines(encoder.encode(texts), expected)
        least = float(cosines.min())
        if precision == "float32" and not least >= LEAST_COSINE:
            worst = texts[int(np.argmin(np.nan_to_num(cosines, nan=-1)))]
            raise DistilvecError(
                f"the exported model disagrees with torch: cosine {least:.5f} for the text {worst[:80]!r}, "
                f"at least {LEAST_COSINE} is needed",
                where=str(source),
                remedy="Nothing was written. Please report this model's architecture.",
            )
        if precision == "int8" and not least >= INT8_COSINE:
            notes.append(f"int8 changes some vectors visibly (cosine down to {least:.3f}): evaluate it before use.")
        size = sum(file.stat().st_size for file in made.glob(FILES[precision] + "*"))
        timed = _timed(encoder, texts)
        mean = float(cosines.mean())
        variants.append(Variant(f"onnx {precision}", FILES[precision], size, least, mean, **timed))
    return variants, notes


def _timed(model: Any, texts: list[str]) -> dict[str, float]:
    """Speed on a few of the texts, evenly taken: this is a glance, not a benchmark."""
    from distilvec.judging import speed

    few = texts[:: max(1, len(texts) // SPEED_TEXTS)][:SPEED_TEXTS]
    found = speed(model, few, singles=10, seconds=0.5)
    return {name: float(found[name]) for name in ("texts_per_second", "latency_p50_ms", "latency_p95_ms")}


def _cosines(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Per row; two zero vectors agree."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    both_zero = (np.abs(a).max(axis=1) == 0) & (np.abs(b).max(axis=1) == 0)
    return np.where(both_zero, 1.0, (a * b).sum(axis=1) / np.maximum(lengths, 1e-30))


def _check_texts(student: SentenceTransformer) -> list[str]:
    """Sentences, and texts from one word up to somewhat more than the model reads (at most 512 words)."""
    longest = min(student.max_seq_length or 512, 512)
    words = " ".join(_SENTENCES).split()
    many = words * (1 + longest // len(words))
    return [*_SENTENCES, *(" ".join(many[: 1 + round(longest * (row / 15) ** 2)]) for row in range(16))]


def _move(made: Path, out: Path) -> None:
    """Rename into place: the list first, so that a killed export is known as one, and the settings last."""
    (out / CONFIG).unlink(missing_ok=True)
    os.replace(made / SEAL, out / SEAL)
    for name in _NAMES[1:]:
        (out / name).unlink(missing_ok=True)
    for file in sorted(made.iterdir(), key=lambda file: file.name == CONFIG):
        os.replace(file, out / file.name)


def _is_export(folder: Path) -> bool:
    """Whether an export lies here, or what a killed one left; those of versions before have no list."""
    return sealed(folder) is not None or "opset" in read_object(folder / CONFIG)
