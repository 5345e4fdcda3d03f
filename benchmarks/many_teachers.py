"""What one more teacher adds to a training step of `gaussian`: time and memory, 1 to 16 teachers of width 1024.

    OMP_NUM_THREADS=2 python benchmarks/many_teachers.py                     # ten minutes on two cores
    python benchmarks/many_teachers.py --device cuda --dtype bfloat16
    python benchmarks/many_teachers.py --rounds 1 --student 2x64 --items 16 --timed 1     # a quick look
    python benchmarks/many_teachers.py --table                               # only the page again, from the .json

Student: 12 layers of width 768 (BERT-base's size, random weights), a step over 256 items of 128 tokens, optimizer
(AdamW) included. The student's part of a step is timed in micro-batches of 8 items, forward and backward, and one step
of its optimizer; on a CPU only `--timed` of the 32 micro-batches are run and their median counts for the others. The
kernels' part (forward, likelihood, backward, optimizer, for all 256 items at once) is run whole. "Adds" is that part,
over the number of teachers, as a share of the student's part. `one by one` are networks of the kernels' sizes in a
plain list, one after the other, with the likelihood alone: they lack the ridge maps, the standardising, the masks of
constant coordinates and the two logged figures (explained variance, calibration) of the library's kernels. The ratio
of both is thus of stacking and of that work together.
Results: benchmarks/results/many_teachers.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from machine import stem
from torch import Tensor, nn
from workload import real_texts

from distilvec.corpus.batch import Batch
from distilvec.functional import gaussian_nll
from distilvec.methods.base import Sample
from distilvec.methods.table import build_method
from distilvec.students import StudentTap, fresh
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals

RESULTS = Path(__file__).parent / "results"
WIDTH, TOKENS, MICRO = 1024, 128, 8
#: One more teacher adds at most this share of a step.
AIM = 0.01
COUNTS = (1, 2, 4, 8, 16)


def student_seconds(options: argparse.Namespace) -> dict[str, float]:
    """One step of the bare student: seconds of all micro-batches, and of its optimizer."""
    layers, width = map(int, options.student.split("x"))
    torch.manual_seed(0)
    texts = [row["text"] for row in real_texts(500)]
    model = fresh(layers=layers, width=width, vocabulary=options.vocabulary, texts=texts, max_length=TOKENS)
    model = model.to(options.device).train()
    tap, optimizer = StudentTap(model), torch.optim.AdamW(model.parameters(), 1e-5)
    ids = torch.randint(10, 1000, (MICRO, TOKENS), device=options.device)
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def micro() -> None:
        with autocast(options):
            embedding = tap(dict(features), views=1).embedding
        embedding.float().square().mean().backward()

    micro()
    optimizer.step()
    passes = [timed(micro, options.device) for _ in range(options.timed)]
    steps = [timed(optimizer.step, options.device) for _ in range(3)]
    count = -(-options.items // MICRO)
    return {
        "micro_batches": count,
        "passes": count * statistics.median(passes),
        "optimizer": statistics.median(steps),
        "width": model.get_embedding_dimension() or 0,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def kernels_step(options: argparse.Namespace, width: int, count: int) -> tuple[Callable[[], Any], int]:
    """A step of the kernels of `count` teachers, and their number of parameters."""
    teachers = [TeacherInfo(f"teacher{k}", WIDTH) for k in range(count)]
    embedding, signals = inputs(options, width, count)
    torch.manual_seed(0)
    method = build_method("gaussian", {})
    method.build(student_info(width), teachers, Sample(StudentOutput(embedding.detach().cpu()), on_cpu(signals)))
    method = method.to(options.device).train()
    optimizer = torch.optim.AdamW(method.parameters(), 1e-4)
    keys = torch.zeros(options.items, 16, dtype=torch.uint8, device=options.device)
    batch = Batch(keys, torch.zeros(options.items, options.items, dtype=torch.bool, device=options.device))

    def step() -> None:
        optimizer.zero_grad()
        with autocast(options):
            terms = method(StudentOutput(embedding), signals, batch)
        sum(term.weight * term.values.mean() for term in terms.values() if term.weight).backward()
        optimizer.step()

    return step, sum(parameter.numel() for parameter in method.parameters())


def one_by_one_step(options: argparse.Namespace, width: int, count: int) -> Callable[[], Any]:
    """Plain networks of the kernels' sizes, one teacher after the other.

    Less work than `kernels_step`: no ridge map beside the network, no standardising, no mask of constant coordinates,
    no `explained` and no `calibration`.
    """
    embedding, signals = inputs(options, width, count)
    sizes = [width, 1024, 1024, 1024, 2 * WIDTH]
    kernels = nn.ModuleList()
    for _ in range(count):
        layers: list[nn.Module] = []
        for number in range(4):
            layers += [nn.Linear(sizes[number], sizes[number + 1]), *([nn.ReLU()] if number < 3 else [])]
        kernels.append(nn.Sequential(*layers))
    kernels = kernels.to(options.device)
    optimizer = torch.optim.AdamW(kernels.parameters(), 1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss: Tensor | float = 0.0
        for kernel, signal in zip(kernels, signals, strict=True):
            with autocast(options):
                mean, spread = kernel(embedding[0]).chunk(2, -1)
            assert signal.sentence is not None
            loss = loss + gaussian_nll(signal.sentence, mean, 10 * torch.tanh(spread.float() / 10)).mean()
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()

    return step


def inputs(options: argparse.Namespace, width: int, count: int) -> tuple[Tensor, list[TeacherSignals]]:
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(1, options.items, width, generator=generator).to(options.device).requires_grad_()
    present = torch.ones(options.items, dtype=torch.bool, device=options.device)
    return embedding, [
        TeacherSignals(present, torch.randn(options.items, WIDTH, generator=generator).to(options.device))
        for _ in range(count)
    ]


def on_cpu(signals: list[TeacherSignals]) -> list[TeacherSignals]:
    return [
        TeacherSignals(each.present.cpu(), None if each.sentence is None else each.sentence.cpu()) for each in signals
    ]


def student_info(width: int) -> StudentInfo:
    from distilvec.students.output import StudentInfo

    return StudentInfo("student", width, 12, width)


def autocast(options: argparse.Namespace) -> Any:
    enabled = options.dtype == "bfloat16"
    return torch.autocast(options.device, torch.bfloat16, enabled=enabled)


def timed(step: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def measure(options: argparse.Namespace) -> dict[str, Any]:
    student = student_seconds(options)
    whole = student["passes"] + student["optimizer"]
    rows = []
    for count in COUNTS:
        step, parameters = kernels_step(options, int(student["width"]), count)
        plain = one_by_one_step(options, int(student["width"]), count)
        step(), plain()
        found: dict[str, list[float]] = {"batched": [], "one by one": []}
        for _ in range(options.rounds):  # in turns, so that a busy moment hits both
            found["batched"].append(timed(step, options.device))
            found["one by one"].append(timed(plain, options.device))
        seconds = statistics.median(found["batched"])
        rows.append(
            {
                "teachers": count,
                "seconds": seconds,
                "one_by_one": statistics.median(found["one by one"]),
                "parameters": parameters,
                "per_teacher": seconds / count / whole,
                "bytes_per_teacher": 16 * parameters // count,
            }
        )
        print(f"{count} teachers: {seconds:.3f} s, {100 * rows[-1]['per_teacher']:.3f} % of a step each", flush=True)
    return {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "items": options.items,
        "tokens": TOKENS,
        "timed_micro_batches": options.timed,
        "student": {**student, "seconds": whole},
        "rows": rows,
    }


def table(result: dict[str, Any]) -> str:
    student = result["student"]
    lines = [
        "# What one more teacher costs",
        "",
        "Made by `python benchmarks/many_teachers.py` (its header says what is timed).",
        f"Student of {student['parameters'] / 1e6:.1f} M parameters, {result['items']} items of {result['tokens']} "
        f"tokens a step: {student['seconds']:.2f} s ({result['device']}, {result['dtype']}, {result['threads']} "
        f"threads, torch {result['torch']}; {result['timed_micro_batches']} of {student['micro_batches']:.0f} "
        "micro-batches timed).",
        f"Aim: one more teacher of width {WIDTH} at most {100 * AIM:.0f} % of a step.",
        "",
        "| teachers | kernels, s | share of the step, each | aim | one by one, s | one by one / kernels "
        "| memory each |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        met = "met" if row["per_teacher"] <= AIM else "missed"
        lines.append(
            f"| {row['teachers']} | {row['seconds']:.4f} | {100 * row['per_teacher']:.3f} % | {met} | "
            f"{row['one_by_one']:.4f} | {row['one_by_one'] / row['seconds']:.2f}x | "
            f"{row['bytes_per_teacher'] / 2**20:.0f} MiB |"
        )
    first, last = result["rows"][0], result["rows"][-1]
    longer, plain = (last[key] / first[key] for key in ("seconds", "one_by_one"))
    lines += [
        "",
        "Kernels: the library's, those of equal shape stacked into one product per layer. One by one: plain networks "
        "of the same sizes in a list, which lack the ridge maps, the standardising, the masks of constant coordinates, "
        f"the explained variance and the calibration. {last['teachers']} teachers take {longer:.1f} times the time of "
        f"{first['teachers']} stacked, {plain:.1f} times one by one. Medians over rounds; their spread was not kept.",
        "",
        "Memory: weights, gradients and AdamW's two moments in float32.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--student", default="12x768", help="layers x width")
    parser.add_argument("--vocabulary", type=int, default=2000, help="only read by the embedding; costs no time")
    parser.add_argument("--items", type=int, default=256)
    parser.add_argument("--timed", type=int, default=3, help="micro-batches of the student that are run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--table", action="store_true", help="only write the page of the figures that are there")
    options = parser.parse_args()
    name = stem("many_teachers", options.device)
    if options.table:
        (RESULTS / f"{name}.md").write_text(table(json.loads((RESULTS / f"{name}.json").read_text())))
        return
    result = measure(options)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(table(result))
    print(table(result))


if __name__ == "__main__":
    main()
