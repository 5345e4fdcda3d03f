"""The compressed forms of a student, and what each of them costs."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from distilvec.corpus.keys import distinct_rows
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.evenly import evenly_spaced, sampled_rows
from distilvec.judging import CachedEncoder, speed
from distilvec.judging.agreement import likeness
from distilvec.judging.compression import CompressedEncoder, Form, calibrated, forms
from distilvec.judging.tasks import JudgingTask, check_tasks
from distilvec.progress import Ticker
from distilvec.report.rows import entry_of
from distilvec.report.sections.compressed import CompressedRow, Compression
from distilvec.students import load_student, ship

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.flow.prepare import Prepared

MILLION = 1_000_000
TIMED_TEXTS = 256
#: Held-out texts of a run: fewer say nothing, more take time.
FEWEST, MOST = 20, 1000
#: Smaller models that are made of a student: float16, and ONNX in float32 and int8.
_MODELS = 3


def compress(
    student: SentenceTransformer,
    texts: Sequence[str],
    calibration: Sequence[str],
    tasks: Sequence[JudgingTask] = (),
    *,
    widths: Sequence[int] | None = None,
    with_speed: bool = True,
    trust_remote_code: bool = False,
) -> Compression:
    """Measure a student's compressed forms.

    Vectors: the whole width and prefixes of it, each as float32, int8 and bits. Model: float16 weights and, of text
    transformers if the extra `onnx` is installed, ONNX in float32 and int8.

    Args:
        student: as it ships.
        texts: what similarity to the whole float32 vectors, and speed, are measured on; at least 20.
        calibration: other texts, for the range of int8 vectors.
        tasks: scored in every form.
        widths: prefixes; None = halves down to 32.

    Raises:
        DistilvecError: a prefix wider than the vectors, too few texts, or a task that cannot score the student.
    """
    if len(texts) < FEWEST:
        raise DistilvecError(f"{len(texts)} texts are too few to compare vectors on", remedy=f"At least {FEWEST}.")
    whole = CachedEncoder(student)
    check_tasks(tasks, whole)
    reference, seen = whole(texts), whole(calibration)
    rows, notes = list[CompressedRow](), list[str]()
    tried = forms(reference.shape[1], widths)
    total, ticker = len(tried) + _MODELS, Ticker("compressing", "forms", kept=False)
    for form in tried:
        ticker(len(rows), total, f"{form.precision} vectors of width {form.width}")
        encode = CompressedEncoder(whole, form, calibrated(seen, form.width))
        rows.append(_row(f"{form.precision} vectors", form, encode, reference, texts, tasks))
    with tempfile.TemporaryDirectory(prefix="distilvec-compress-") as place:
        ship(copy.deepcopy(student), Path(place) / "float32")
        rows[0].size_bytes = _weights(Path(place) / "float32")
        if with_speed:
            _time(rows[0], student, texts)
        ticker(len(tried), total, "float16 weights")
        for name, model, size in _models(student, Path(place), texts, notes, trust_remote_code):
            ticker(len(rows), total, name)
            form = Form(reference.shape[1])
            row = _row(name, form, CompressedEncoder(CachedEncoder(model), form, 1.0), reference, texts, tasks)
            row.size_bytes = size
            if with_speed:
                _time(row, model, texts)
            rows.append(row)
    ticker(total, total)
    return Compression(rows=rows, texts=len(texts), calibrated_on=len(calibration), notes=notes)


def compress_run(prepared: Prepared, student: SentenceTransformer) -> Compression | None:
    """The table for a run's report: held-out texts, calibrated on training texts; prefixes are the method's.

    None if fewer than 20 texts are held out.
    """
    recipe, corpus = prepared.recipe, prepared.corpus
    held = sampled_rows(distinct_rows(corpus.keys, corpus.holdout_rows), MOST)
    if len(held) < FEWEST:
        return None
    return compress(
        student,
        corpus.texts(held),
        corpus.texts(sampled_rows(np.asarray(corpus.train_rows), MOST)),
        prepared.tasks,
        widths=list(recipe.method.build().prefixes) or None,
        with_speed=recipe.judging.speed,
        trust_remote_code=prepared.section.trust_remote_code,
    )


def _row(
    name: str, form: Form, encode: Any, reference: np.ndarray, texts: Sequence[str], tasks: Sequence[JudgingTask]
) -> CompressedRow:
    measured = likeness(reference, encode(texts))
    return CompressedRow(
        name=name,
        width=form.width,
        bytes_per_million=MILLION * form.bytes_per_vector,
        neighbours=measured["neighbours"],
        similarity=measured["similarity_spearman"],
        scores={task.name: entry_of(task.score(encode)) for task in tasks},
    )


def _models(
    student: SentenceTransformer, place: Path, texts: Sequence[str], notes: list[str], trust_remote_code: bool
) -> Iterator[tuple[str, Any, int]]:
    """(name, something with encode, bytes of its weights) of what can be made of the student in `place/float32`."""
    ship(copy.deepcopy(student).half(), place / "float16")
    half = load_student(place / "float16", device=str(student.device), trust_remote_code=trust_remote_code)
    if student.device.type == "cuda":
        half.half()
    else:
        notes.append(
            "Float16 weights are read as float32 here: smaller on disk, equally fast. On CUDA they stay float16."
        )
    yield "float16 weights", half, _weights(place / "float16")
    try:
        from distilvec.export import export_onnx, load_onnx

        made = export_onnx(place / "float32", place / "onnx", texts=list(texts[:16]))
    except DistilvecError as error:
        remedy = f" ({error.remedy})" if isinstance(error, EnvironmentProblem) else ""
        notes.append(f"No rows for ONNX: {error.what}{remedy}.")
        return
    if student.device.type != "cpu":
        notes.append(f"ONNX is timed on the processor, the other rows on {student.device.type}: do not compare them.")
    for precision in ("float32", "int8"):
        variant = made.variant(f"onnx {precision}")
        encoder = load_onnx(place / "onnx", precision=precision, threads=torch.get_num_threads())
        yield variant.name, encoder, variant.size_bytes


def _weights(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors"))


def _time(row: CompressedRow, model: Any, texts: Sequence[str]) -> None:
    few = [texts[place] for place in evenly_spaced(len(texts), TIMED_TEXTS)]
    measured = speed(model, few, singles=20, seconds=1.0)
    row.texts_per_second = measured["texts_per_second"]
    row.latency_p50_ms, row.latency_p95_ms = measured["latency_p50_ms"], measured["latency_p95_ms"]
