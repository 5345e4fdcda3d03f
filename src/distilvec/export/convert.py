"""From a student's folder to ONNX, checked against torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from distilvec.errors import DistilvecError
from distilvec.export.encoder import CONFIG, LAYOUTS, Precision, as_read, load_onnx
from distilvec.export.graph import OPSET, OUTPUT, backend_tokenizer, check_model, quantize, write_graph
from distilvec.extras import need
from distilvec.files import temporary, writing
from distilvec.folders import check, publish
from distilvec.modules.invariance import cosine_distances, probe_model
from distilvec.modules.layouts import has_head, has_kernels
from distilvec.modules.opening import locate
from distilvec.modules.pipeline import token_limit
from distilvec.progress import Ticker, at_work

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Layout = Literal["plain", "web"]
LEAST_COSINE = 0.999
INT8_COSINE = 0.97
SPEED_TEXTS = 16
COPIED = ("tokenizer_config.json", "special_tokens_map.json", "modules.json", "config_sentence_transformers.json")
#: What an export writes into its folder.
_WEIGHTS = tuple(name for file in LAYOUTS["plain"].values() for name in (file, f"{file}.data"))
_NAMES = (CONFIG, *_WEIGHTS, "tokenizer.json", "pooling.json", *COPIED)
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


@dataclass(frozen=True)
class Variant:
    """One form of the model.

    Attributes:
        name: torch, onnx float32 or onnx int8.
        file: its file in the export's folder; None for torch.
        size_bytes: of the weights (and, for ONNX, the graph).
        cosine_min, cosine_mean: against torch, over the texts of the check.
        texts_per_second, latency_p50_ms, latency_p95_ms: on this machine; latency is of one text.
    """

    name: str
    file: str | None
    size_bytes: int
    cosine_min: float
    cosine_mean: float
    texts_per_second: float
    latency_p50_ms: float
    latency_p95_ms: float


@dataclass(frozen=True)
class ExportReport:
    """The outcome of `export_onnx`. `notes` say what a user should look at before shipping."""

    folder: Path
    variants: list[Variant]
    texts: int
    notes: list[str] = field(default_factory=list)

    def variant(self, name: str) -> Variant:
        """The variant of this name (KeyError where it was not made)."""
        return {variant.name: variant for variant in self.variants}[name]

    def table(self) -> str:
        """Size, agreement and speed before and after, as plain text."""
        from distilvec.report.blocks import table
        from distilvec.words import number, size

        rows = []
        for each in self.variants:
            cells = [each.name, each.file or "—", size(each.size_bytes), f"{each.cosine_mean:.5f}"]
            cells += [f"{each.cosine_min:.5f}", number(each.texts_per_second)]
            rows.append([*cells, f"{each.latency_p50_ms:.1f} / {each.latency_p95_ms:.1f}"])
        header = ["model", "file", "size", "cosine to torch, mean", "least", "texts/s", "p50 / p95 ms"]
        about = f"Agreement over {self.texts} texts; speed on this machine."
        return table(header, rows, about, *self.notes).grid.text()


@at_work
def export_onnx(
    model_folder: str | Path, out_folder: str | Path, *, quantize: bool = True, texts: Sequence[str] | None = None
) -> ExportReport:
    """Write `model.onnx`, `model_int8.onnx` and what `load_onnx` needs into a folder, and check them against torch.

    The graph holds everything after the tokenizer: transformer or static table, pooling, Dense, Normalize. Its batch
    and sequence axes are free. Nothing is written unless the float model agrees with torch.

    Args:
        model_folder: a sentence-transformers folder, or hub id, that starts with a transformer or a static table.
        out_folder: where the files go; files of an older export there are replaced.
        quantize: also make the int8 model (weights only, dynamically scaled activations).
        texts: what agreement and speed are measured on; default are sentences of many lengths.

    Raises:
        DistilvecError: the folder holds files of these names that no export wrote, the model cannot be exported, or
            the float model's cosine to torch is under 0.999.
        EnvironmentProblem: the extra `onnx` is not installed, or the folder cannot be written.
    """
    return write_export(model_folder, out_folder, quantized=quantize, texts=texts)


def write_export(
    model_folder: str | Path,
    out_folder: str | Path,
    *,
    layout: Layout = "plain",
    names: Sequence[str] = (),
    states: Callable[[SentenceTransformer], bool] = lambda _: False,
    quantized: bool = True,
    texts: Sequence[str] | None = None,
    beside: Callable[[SentenceTransformer, Path], None] = lambda student, made: None,
) -> ExportReport:
    """Do what both layouts need: refuse, write into a folder of its own, check, and rename into place.

    Args:
        layout: where the graphs lie; all that is not named here is as for `export_onnx`.
        names: further files and folders at the top of the export.
        states: whether the graph gives token states too.
        beside: writes these further files into the unfinished folder, once the graphs are checked.
    """
    need("ONNX", "onnx", "onnx", "onnxscript", "onnxruntime")
    out, source, student = begun(model_folder, out_folder, "export", (*_NAMES, *names))
    check_model(student, str(model_folder))
    chosen = list(texts) if texts is not None else check_texts(student)
    if not chosen:
        raise DistilvecError("agreement needs texts to encode", where="texts")
    files, ticker = LAYOUTS[layout], Ticker("exporting", "steps", kept=False)
    with made_whole(out, "export", CONFIG) as made:
        (made / files["float32"]).parent.mkdir(exist_ok=True)
        ticker(0, 4, "writing the graph")
        inputs = write_graph(student, made / files["float32"], states=states(student))
        _write_companions(student, source, made, inputs)
        ticker(1, 4, "quantizing")
        if quantized:
            quantize(made / files["float32"], made / files["int8"])
        ticker(2, 4, "comparing with torch")
        variants, notes = _measure(student, source, made, chosen, files, quantized)
        ticker(3, 4, "writing the other files")
        beside(student, made)
    ticker(4, 4)
    found = probe_model(student)
    notes += [] if found.passed else [f"The model itself: {found.warning}"]
    return ExportReport(out, variants, len(chosen), [*notes, *left_behind(source)])


def _write_companions(student: SentenceTransformer, source: Path, made: Path, inputs: Sequence[str]) -> None:
    """The tokenizer, the settings of encode(), and the folder's own descriptions of its modules."""
    from distilvec.students.vocabulary import plain_backend

    tokenizer: Any = student.tokenizer
    truncation = backend_tokenizer(student).truncation or {}
    try:
        # The lengths of the last batch that it read are no part of it.
        plain_backend(tokenizer).save(str(made / "tokenizer.json"))
    except Exception as problem:  # tokenizers wraps what the system says in an error without a kind
        raise OSError(str(problem)) from problem
    bare = tokenizer is backend_tokenizer(student)
    # An empty prompt says something where another is the default, or would be taken for documents.
    prompts = {name: text or "" for name, text in student.prompts.items()}
    config = {
        "inputs": list(inputs),
        "output": OUTPUT,
        "width": student.get_embedding_dimension(),
        "max_length": token_limit(student),
        "padding_side": "right" if bare else tokenizer.padding_side,
        "truncation_side": truncation.get("direction", "right") if bare else tokenizer.truncation_side,
        "pad_id": 0 if bare else tokenizer.pad_token_id or 0,
        "pad_type_id": 0 if bare else tokenizer.pad_token_type_id,
        "add_special_tokens": not bare,
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


def _measure(
    student: SentenceTransformer,
    source: Path,
    made: Path,
    texts: list[str],
    files: dict[str, str],
    quantized: bool,
) -> tuple[list[Variant], list[str]]:
    """Agreement and speed of every variant, and notes."""
    expected = student.encode([as_read(text) for text in texts], show_progress_bar=False)
    weights = sum(file.stat().st_size for file in source.rglob("*.safetensors"))
    variants = [Variant("torch", None, weights, 1.0, 1.0, **_timed(student, texts))]
    notes = []
    wanted: tuple[Precision, ...] = ("float32", "int8") if quantized else ("float32",)
    for precision in wanted:
        encoder = load_onnx(made, precision=precision, threads=torch.get_num_threads())
        cosines = row_cosines(encoder.encode(texts), expected)
        least = float(cosines.min())
        if precision == "float32":
            check_agreement(cosines, texts, LEAST_COSINE, str(source))
        if precision == "int8" and least < INT8_COSINE:
            notes.append(f"int8 changes some vectors visibly (cosine down to {least:.3f}): evaluate it before use.")
        size = sum(file.stat().st_size for file in made.glob(files[precision] + "*"))
        timed = _timed(encoder, texts)
        mean = float(cosines.mean())
        variants.append(Variant(f"onnx {precision}", files[precision], size, least, mean, **timed))
    return variants, notes


def begun(
    model_folder: str | Path, out_folder: str | Path, kind: str, names: Collection[str]
) -> tuple[Path, Path, SentenceTransformer]:
    """Refuse folders that an export cannot use before the student is opened; returns target, source and student.

    Args:
        kind, names: of the export and of its files (`folders.check`).
    """
    from distilvec.students import load_student

    out, source = Path(out_folder).expanduser(), locate(model_folder)
    if source.resolve() == out.resolve():
        raise DistilvecError(
            "the export would replace the model that it is made of", where=str(out), remedy="Name another folder (-o)."
        )
    check(out, kind, names)
    return out, source, load_student(source, device="cpu").eval()


@contextmanager
def made_whole(out: Path, kind: str, last: str) -> Iterator[Path]:
    """A folder for the files of an export; they take their places in `out` together, `last` behind the others."""
    is_new = not out.exists()
    try:
        with writing("export", out):
            out.mkdir(parents=True, exist_ok=True)
            with temporary(out) as made:
                made.mkdir()
                yield made
                publish(made, out, kind, last=last)
    except BaseException:
        if is_new:
            with suppress(OSError):  # what others put there meanwhile stays
                out.rmdir()
        raise


def left_behind(folder: Path) -> list[str]:
    """Return what lies beside a student and is no part of its vectors, so that no export has it."""
    parts = [("task head stays", "predict")] * has_head(folder) + [("kernels stay", "explain")] * has_kernels(folder)
    return [f"The {part} behind: {use}() needs the student's own folder." for part, use in parts]


def _timed(model: Any, texts: list[str]) -> dict[str, float]:
    """Speed on a few of the texts, evenly taken: this is a glance, not a benchmark."""
    from distilvec.judging import speed

    few = texts[:: max(1, len(texts) // SPEED_TEXTS)][:SPEED_TEXTS]
    measured = speed(model, few, singles=10, seconds=0.5)
    return {name: float(measured[name]) for name in ("texts_per_second", "latency_p50_ms", "latency_p95_ms")}


def row_cosines(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Cosine of each row of [n, d] with the same row of the other; equal zero vectors agree, others have -1."""
    return 1 - cosine_distances(found, expected)


def check_agreement(cosines: npt.NDArray[Any], texts: Sequence[str], least: float, where: str) -> None:
    """Refuse an export with a lower cosine [n] to the student's vectors than `least`; the error names the text."""
    if cosines.min() < least:
        worst = int(np.argmin(cosines))
        raise DistilvecError(
            f"the exported model gives other vectors: cosine {cosines[worst]:.5f} for the text {texts[worst][:80]!r}, "
            f"at least {least} is needed",
            where=where,
            remedy="Nothing was written. Please report this model's architecture.",
        )


def check_texts(student: SentenceTransformer) -> list[str]:
    """Sentences, and texts from one word up to somewhat more than the model reads (at most 512 words)."""
    longest = min(token_limit(student) or 512, 512)
    words = " ".join(_SENTENCES).split()
    many = words * (1 + longest // len(words))
    return [*_SENTENCES, *(" ".join(many[: 1 + round(longest * (row / 15) ** 2)]) for row in range(16))]
