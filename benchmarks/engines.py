"""One student in every way that runs it without a GPU: torch, ONNX and OpenVINO, in float and int8, on the same texts.

    OMP_NUM_THREADS=1 python benchmarks/engines.py [--student FOLDER] [--texts 256] [--rounds 5] [--threads 1]

Models: the demo's student as it is cut out of its teacher (or another one), its teacher all-MiniLM-L6-v2, and a static
table of 10,000 pieces; untrained, because speed depends on shapes alone. Texts: sentences of the shared pool
(DISTILVEC_DATA), else documentation of the standard library. All ways take turns in every round; a ratio is that of a
round's times, the median over rounds with the least and the largest. "One text" is the median of single texts.
Results: benchmarks/results/engines.json and engines.md. Needs the extra openvino.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from encode import RESULTS, measure
from machine import processor
from static import texts as sentences

from distilvec.export import export_onnx, load_onnx
from distilvec.export.convert import row_cosines
from distilvec.flow.demo import TABLE_PIECES, demo_teacher
from distilvec.students import load_student, ship, shrink, static

SINGLES = 64
#: A quarter of the demo's teacher, with all of its pieces.
SHAPE = {"layers": 4, "embedding": 64, "inner": 416, "positions": 128}
#: name -> engine and precision.
WAYS: dict[str, Any] = {
    "ONNX": ("onnxruntime", "float32"),
    "ONNX int8": ("onnxruntime", "int8"),
    "OpenVINO": ("openvino", "float32"),
    "OpenVINO int8": ("openvino", "int8"),
}


def models(place: Path, chosen_by: list[str], given: Path | None) -> dict[str, Path]:
    """Name -> folder."""
    if given is not None:
        return {given.name: given}
    student, _ = shrink(demo_teacher(), texts=chosen_by[:2000], **SHAPE)
    student.max_seq_length = SHAPE["positions"]
    ship(student, place / "student")
    ship(static(demo_teacher(), vocabulary=TABLE_PIECES, texts=chosen_by), place / "table")
    return {
        "the demo's student": place / "student",
        "all-MiniLM-L6-v2": Path(demo_teacher()),
        "static table": place / "table",
    }


def measured(folder: Path, place: Path, texts: list[str], rounds: int, threads: int) -> dict[str, Any]:
    """Agreement with torch, megabytes, times of a round, and of one text, by way."""
    export_onnx(folder, place, texts=texts[:8])
    plain = load_student(folder, device="cpu").eval()
    encoders: dict[str, Any] = {
        name: load_onnx(place, engine=engine, precision=precision, threads=threads)
        for name, (engine, precision) in WAYS.items()
    }
    wanted = plain.encode(texts)
    ways = {"torch": lambda: plain.encode(texts)}
    ways |= {name: lambda model=model: model.encode(texts) for name, model in encoders.items()}
    times = {name: [wall for wall, _ in rows] for name, rows in measure(ways, rounds).items()}
    found: dict[str, Any] = {}
    for name, seconds in times.items():
        model = encoders.get(name, plain)
        cosines = row_cosines(model.encode(texts), wanted)
        ratios = sorted(slow / fast for slow, fast in zip(times["torch"], seconds, strict=True))
        singles = []
        for text in texts[:SINGLES]:
            begun = time.perf_counter()
            model.encode([text])
            singles.append(time.perf_counter() - begun)
        file = {"float32": "model.onnx", "int8": "model_int8.onnx"}.get(WAYS.get(name, ("", ""))[1])
        weights = [place / file] if file else list(folder.glob("**/*.safetensors"))
        found[name] = {
            "cosine_min": float(cosines.min()),
            "cosine_mean": float(cosines.mean()),
            "megabytes": sum(each.stat().st_size for each in weights) / 1e6,
            "texts_per_second": len(texts) / statistics.median(seconds),
            "times_torch": [statistics.median(ratios), ratios[0], ratios[-1]],
            "one_text_ms": 1e3 * statistics.median(singles),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", type=Path)
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    encoded, chosen_by = sentences(options.texts)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        result = {
            "command": f"python benchmarks/engines.py --threads {options.threads}",
            "texts": len(encoded),
            "rounds": options.rounds,
            "threads": options.threads,
            "models": {
                name: measured(folder, place / f"onnx-{number}", encoded, options.rounds, options.threads)
                for number, (name, folder) in enumerate(models(place, chosen_by, options.student).items())
            },
            "versions": {package: version(package) for package in ("torch", "onnxruntime", "openvino")},
            "machine": {"processor": processor(), "cores": os.cpu_count(), "system": platform.platform()},
        }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "engines.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "engines.md").write_text(markdown(result))
    print(markdown(result))


def markdown(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {each}" for name, each in result["versions"].items())
    lines = [
        "# One student, every engine",
        "",
        f"`{result['command']}`: {result['texts']} texts, {result['rounds']} rounds in turns, {result['threads']} "
        f"thread, {result['machine']['processor']}; {versions}.",
        "",
        "| model, engine | MB | cosine to torch, least | texts/s | times torch | one text, ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, ways in result["models"].items():
        for way, each in ways.items():
            middle, least, most = each["times_torch"]
            cells = [
                f"{name}, {way}",
                f"{each['megabytes']:.1f}",
                f"{each['cosine_min']:.5f}",
                f"{each['texts_per_second']:,.0f}",
                f"{middle:.2f} ({least:.2f} to {most:.2f})",
                f"{each['one_text_ms']:.2f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
