"""Speed and size on disk of students of a quarter, an eighth and a twentieth, in torch and ONNX, on 1 and 2 threads.

    python benchmarks/sizes.py [--texts 512] [--rounds 5]

Models: all-MiniLM-L6-v2; the shapes of experiments/quarter; two layers of the teacher with 5,000 word pieces, which
was the shape before; a static table. All untrained: speed depends on shapes and tokenizers, not on what weights say.
Each is saved as it ships and opened again: by plain sentence-transformers in float32, as exported ONNX in float32 and
int8. All take turns in every round, in alternating order, so that a busy machine slows them alike; the median over
rounds stands with the least and the largest ratio to the teacher's torch of the same round and threads. Texts: as
benchmarks/static.py. Results: benchmarks/results/sizes.json and sizes.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from encode import RESULTS, _instructions
from sentence_transformers import SentenceTransformer
from static import texts

from distilvec.export import export_onnx, load_onnx
from distilvec.flow.demo import demo_teacher
from distilvec.judging import speed
from distilvec.modules.blocks import parameters
from distilvec.students import ship, shrink, static

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from experiments.quarter.shapes import SIZES

TEACHER, BEFORE = "all-MiniLM-L6-v2", "two layers, 5,000 pieces"
POSITIONS = 256


def made(chosen_by: list[str]) -> dict[str, SentenceTransformer]:
    """Every model by name."""
    found = {TEACHER: SentenceTransformer(demo_teacher(), device="cpu")}
    for name, shape in SIZES.items():
        found[name], _ = shrink(demo_teacher(), positions=POSITIONS, texts=chosen_by, **shape)
    found[BEFORE], _ = shrink(demo_teacher(), layers=[1, 6], vocabulary=5_000, texts=chosen_by)
    found["static, 256 numbers"] = static(demo_teacher(), dimensions=256, vocabulary=21_500, texts=chosen_by)
    return found


def opened(folder: Path, name: str, threads: int) -> dict[str, Any]:
    """Form -> something with encode; a static table has no ONNX."""
    models: dict[str, Any] = {"torch": SentenceTransformer(str(folder / name / "model"), device="cpu")}
    onnx = folder / name / "onnx"
    if onnx.is_dir():
        models["ONNX"] = load_onnx(onnx, precision="float32", threads=threads)
        models["ONNX int8"] = load_onnx(onnx, precision="int8", threads=threads)
    return models


def measured(folder: Path, names: list[str], encoded: list[str], rounds: int, threads: int) -> dict[str, Any]:
    """Name -> form -> rounds of texts per second and median latency."""
    torch.set_num_threads(threads)
    models = {(name, form): model for name in names for form, model in opened(folder, name, threads).items()}
    found: dict[str, Any] = {name: {} for name in names}
    order = list(models)
    for number in range(rounds):
        for name, form in order if number % 2 == 0 else order[::-1]:
            timed = speed(models[name, form], encoded, singles=30, seconds=0.0)
            row = {key: timed[key] for key in ("texts_per_second", "latency_p50_ms")}
            found[name].setdefault(form, []).append(row)
    return found


def page(result: dict[str, Any]) -> str:
    lines = [
        "# Speed and size of students",
        "",
        f"`python benchmarks/sizes.py` on {result['machine']}. {result['texts']} texts (median of {result['words']} "
        f"words), batches of 32; medians of {result['rounds']} rounds in turns. Times: of the teacher's texts per "
        "second in torch on as many threads, in the same round (least to largest).",
    ]
    header = ["model", "parameters", "form", "on disk", "texts/s", "times the teacher", "p50 of one text"]
    for threads, rows in result["threads"].items():
        lines += ["", f"## {threads} thread{'' if threads == '1' else 's'}", ""]
        lines += [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
        for name, forms in rows.items():
            about = result["models"][name]
            for form, each in forms.items():
                pairs = zip(each, rows[TEACHER]["torch"], strict=True)
                ratios = sorted(own["texts_per_second"] / top["texts_per_second"] for own, top in pairs)
                fast = statistics.median(row["texts_per_second"] for row in each)
                late = statistics.median(row["latency_p50_ms"] for row in each)
                cells = [name, f"{about['parameters'] / 1e6:.2f} M", form, f"{about['bytes'][form] / 1e6:.1f} MB"]
                cells += [f"{fast:,.0f}", f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"]
                lines.append(f"| {' | '.join([*cells, f'{late:.1f} ms'])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    encoded, chosen_by = texts(options.texts)
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_instructions()}, torch {torch.__version__}",
        "texts": len(encoded),
        "words": int(statistics.median(len(text.split()) for text in encoded)),
        "rounds": options.rounds,
        "models": {},
        "threads": {},
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, model in made(chosen_by).items():
            (folder / name).mkdir()
            ship(model.to("cpu").float().eval(), folder / name / "model")
            sizes = {"torch": sum(file.stat().st_size for file in (folder / name / "model").rglob("*.safetensors"))}
            if not name.startswith("static"):
                written = export_onnx(folder / name / "model", folder / name / "onnx", texts=encoded[:8])
                sizes["ONNX"] = written.variant("onnx float32").size_bytes
                sizes["ONNX int8"] = written.variant("onnx int8").size_bytes
            result["models"][name] = {"parameters": parameters(model), "bytes": sizes}
        for threads in (1, 2):
            rows = measured(folder, list(result["models"]), encoded, options.rounds, threads)
            result["threads"][str(threads)] = rows
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "sizes.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "sizes.md").write_text(page(result))
    print(page(result))


if __name__ == "__main__":
    main()
