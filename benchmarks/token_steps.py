"""Time per step and peak memory of the methods that look inside the teacher, from the store and live, against SimCSE.

    OMP_NUM_THREADS=1 python benchmarks/token_steps.py                  # student-bpe, all methods: some minutes
    python benchmarks/token_steps.py --student base --methods emo,distillmoe --batches 2 --rounds 3
    python benchmarks/token_steps.py --texts 128 --methods emo --batches 1 --rounds 2       # a quick look

A step is what step.py measures, and before it what brings the batch together: reading token states and attention from
the store, or the live teacher's forward pass. All take turns batch by batch on the same batches of texts, each with its
own copy of the student. "Collating" is that first part of a step alone, for the store. Without labels, SimCSE is a part
of every method's step, too. "Labelled" rows have a classification task in its place (the texts' domains), which methods
on class logits must have; `sft` is that task alone. Ratios are of processor time, medians over rounds with least and
greatest.

Aims: from the store at most twice a SimCSE step; what a live teacher adds to that is at most its plain forward pass
(sentence vectors alone) plus 20 %. Peak memory as in step.py; only live variants have the teacher in memory.
Teacher: all-MiniLM-L6-v2, with a task head that was trained for one step. Texts: TALAS's corpus from the shared data,
else docstrings.
Results: benchmarks/results/token_steps.json and .md.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from step import RESULTS, Times, describe, measure, peak_bytes, ratio
from workload import Workload, make_student, real_texts

from distilvec.corpus import read_corpus
from distilvec.flow.demo import demo_teacher
from distilvec.flow.finetune import finetune
from distilvec.flow.teach import teacher_info
from distilvec.methods.base import Method
from distilvec.methods.table import build_method
from distilvec.store import SignalStore, fill
from distilvec.students import StudentTap
from distilvec.tasks.base import Task
from distilvec.tasks.section import TaskSection
from distilvec.tasks.table import build_task
from distilvec.teachers import Teacher, load_teacher
from distilvec.teachers.signals import TeacherInfo
from distilvec.training import Collator, Distiller, LiveSource, StoreSource, TokenizedCorpus
from distilvec.training.loop import Loop
from distilvec.training.sample import make_sample
from distilvec.training.step import describe as describe_student

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "emo": ("emo", {}),
    "distillmoe": ("distillmoe", {}),
    "dskd": ("dskd", {}),
    "cdm": ("cdm", {}),
    "mined": ("mined", {}),
    "emo paper": ("emo", {"preset": "paper"}),
    "distillmoe paper": ("distillmoe", {"preset": "paper"}),
    **{
        f"{name} labelled": (name, {})
        for name in ("sft", "uld", "multilevel_ot", "mined", "cdm", "dskd", "emo", "distillmoe")
    },
}
BASELINE, FORWARD = "simcse", "teacher's forward"
STORE, LIVE, COLLATING = "store", "live", "collating"
#: TALAS's figures for its authors' code, relative to SimCSE.
PAPER = {"emo": 8.1, "dskd": 6.6, "cdm": 7.1}
STORE_AIM, LIVE_AIM, AIMED = 2.0, 1.2, ("emo", "distillmoe")


@dataclass
class TokenWorkload(Workload):
    """The step benchmark's parts with a real teacher, whose token signals are in the store. Batches are rows."""

    info: TeacherInfo | None = None
    collators: dict[str, Collator] = field(default_factory=dict)
    opened: list[Teacher] = field(default_factory=list)

    @classmethod
    def prepare(cls, kind: str, folder: Path, *, texts: int, batch_size: int, device: str) -> TokenWorkload:
        """The corpus, the student, and the store, which is filled where it is not there yet."""
        import torch

        rows = real_texts(texts)
        corpus = read_corpus(rows, folder / "corpus", domain="domain", label="domain", holdout=0.0)
        student = make_student(kind, corpus.texts()).to(device)
        finetune(
            demo_teacher(),
            rows,
            folder / "teacher",
            label="domain",
            training={"max_steps": 1, "batch_size": 8, **({"use_cpu": True} if device == "cpu" else {})},
        )
        facts = folder / "teacher.json"
        if not facts.exists():
            _fill(student, corpus, folder, device)
        tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), folder / "tokens")
        info = TeacherInfo(**json.loads(facts.read_text()))
        store = SignalStore.open(folder / "store")
        return cls(corpus, store, student, tokens, folder, batch_size, torch.device(device), info)

    @property
    def teacher(self) -> Teacher:
        if not self.opened:
            self.opened.append(_open_teacher(self.folder, str(self.device)))
        return self.opened[0]

    def batches(self, count: int) -> list[Any]:
        return self.batch_rows()[:count]

    def loop(self, name: str, steps: int = 1000) -> Loop:
        """As the base class' for a method of `METHODS`, with the source that the name says."""
        word, _, where = name.rpartition(" ")
        method = _method(word if word in METHODS else name)
        assert self.info is not None
        student, task = copy.deepcopy(self.student), _task(name, self.corpus, self.student)
        needs = method.needs(describe_student(StudentTap(student).info, task), [self.info])
        wanted = needs.of(0)
        store = StoreSource(self.store, self.corpus)
        store.prepare(wanted, self.tokens)
        sample = make_sample(student, self.tokens, [store], self.rows, seed=0, needs=needs, limit=512)
        source: StoreSource | LiveSource = store
        if where == LIVE:
            source = LiveSource(self.teacher, self.corpus, self.folder / "alignments")
            source.prepare(wanted, self.tokens)
        method.build(describe_student(StudentTap(student).info, task), [self.info], sample)
        method.attach(student)
        self.collators[name] = Collator(self.corpus, self.tokens, [source])
        return self.around(Distiller(student, method, needs, task), name, self.collators[name], steps)

    def step(self, name: str) -> Callable[[Any], Any]:
        """What happens with the rows of a batch: the teacher's forward, collating alone, or collating and a step."""
        if name == FORWARD:
            return self._read_texts
        if name.endswith(COLLATING):
            self.loop(name)
            return self.collators[name]
        train = self.method_step(name)
        return lambda rows: train(self.collators[name](rows))

    def _read_texts(self, rows: list[int]) -> None:
        self.teacher.encode(self.corpus.texts(rows))


def _method(name: str) -> Method:
    word, options = METHODS.get(name, (name, {}))
    return build_method(word, options)


def _task(name: str, corpus: Any, student: Any) -> Task | None:
    """The texts' domains as classes, for a labelled row."""
    if "labelled" not in name:
        return None
    width = StudentTap(student).info.width
    return build_task(TaskSection(kind="classification"), width, corpus.labels, corpus.label_names)


def _open_teacher(folder: Path, device: str) -> Teacher:
    return load_teacher(name="minilm", model=str(folder / "teacher"), device=device)


def _fill(student: Any, corpus: Any, folder: Path, device: str) -> None:
    """Teach the texts once, with all that any of the methods wants."""
    teacher = _open_teacher(folder, device)
    info, seen = teacher_info(teacher), StudentTap(student).info
    store = SignalStore.create(folder / "store", teacher.card, teacher.card.width)
    for name in METHODS:
        needs = _method(name).needs(describe_student(seen, _task(name, corpus, student)), [info])
        wanted = needs.of(0)
        fill(store, teacher, corpus.texts(), corpus.keys, wanted)
    (folder / "teacher.json").write_text(json.dumps(asdict(info)))


def variants(methods: list[str]) -> list[str]:
    """SimCSE, the teacher's plain forward pass, and each method from the store, its collating, and live."""
    found = [BASELINE, FORWARD]
    for method in methods:
        # The task alone has no teacher.
        found += [f"{method} {where}" for where in ((STORE,) if method == "sft labelled" else (STORE, COLLATING, LIVE))]
    return found


def peaks(options: argparse.Namespace, folder: str, names: list[str]) -> dict[str, dict[str, int]]:
    """Every variant that trains, in a process of its own, on the store that is there already."""
    found = {}
    for name in names:
        if name == FORWARD or name.endswith(COLLATING):
            continue
        same = {"student": options.student, "batch-size": options.batch_size, "device": options.device}
        words = [str(word) for key, value in {**same, "texts": options.texts}.items() for word in (f"--{key}", value)]
        command = [sys.executable, __file__, "--peak", name, "--folder", folder, *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr}")
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def added_by_live(times: Times, method: str) -> dict[str, float]:
    """What a live teacher adds to the step from the store, in plain forward passes of the teacher."""
    store, live = times[f"{method} {STORE}"], times[f"{method} {LIVE}"]
    values = [(a[1] - b[1]) / c[1] for a, b, c in zip(live, store, times[FORWARD], strict=True)]
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def result(
    facts: dict[str, Any], times: Times, memory: dict[str, dict[str, int]], methods: list[str]
) -> dict[str, Any]:
    rows = [
        {
            "name": name,
            "milliseconds": 1e3 * statistics.median(wall for wall, _ in seconds),
            "processor_milliseconds": 1e3 * statistics.median(busy for _, busy in seconds),
            "ratio": ratio(times, name, BASELINE, 0),
            "ratio_processor_time": ratio(times, name, BASELINE, 1),
            "paper": PAPER.get(name.removesuffix(f" {STORE}").removesuffix(f" {LIVE}")),
            **({"peak_bytes": memory[name]["peak"]} if name in memory else {}),
            **({"added_bytes": memory[name]["peak"] - memory[name]["before"]} if name in memory else {}),
        }
        for name, seconds in times.items()
    ]
    aimed = [method for method in AIMED if method in methods]
    aims = [
        {
            "text": f"{method} from the store, in steps of SimCSE",
            "aim": STORE_AIM,
            "found": ratio(times, f"{method} {STORE}", BASELINE, 1),
        }
        for method in aimed
    ]
    aims += [
        {
            "text": f"what live {method} adds, in plain forward passes of the teacher",
            "aim": LIVE_AIM,
            "found": added_by_live(times, method),
        }
        for method in aimed
    ]
    return {**facts, "rows": rows, "aims": aims}


def _cell(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} ({found['least']:.2f} to {found['greatest']:.2f})"


def _line(row: dict[str, Any], base: int) -> str:
    memory = [""] * 3
    if "peak_bytes" in row:
        peak, added = row["peak_bytes"], row["added_bytes"]
        memory = [f"{peak / 2**20:.0f}", f"{added / 2**20:.0f}", f"{peak / base:.2f}"]
    times = [f"{row[key]:.1f}" for key in ("milliseconds", "processor_milliseconds")]
    ratios = [_cell(row[key]) for key in ("ratio", "ratio_processor_time")]
    return f"| {' | '.join([row['name'], *times, *ratios, str(row['paper'] or ''), *memory])} |"


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    base = found["rows"][0].get("peak_bytes", 1)
    lines = [
        "# Cost of a step of the methods that look inside the teacher",
        "",
        f"`{found['command']}`: {found['machine']}, {found['device']}, torch {found['torch']}; student "
        f"{found['student']}; {found['texts']} texts of {found['corpus']}, {found['tokens_per_text']:.1f} tokens each, "
        f"batch {found['batch_size']}. Median (least to greatest) over {found['rounds']} rounds of "
        f"{found['batches_per_round']} batches, in turn. Collating, which data workers can do aside, is in every step. "
        "Rows without `labelled` have SimCSE beside the method, those with it a classification task.",
        "",
        "| step | ms | processor ms | relative to SimCSE | by processor time | the paper's | peak MiB | added by steps "
        "| peak relative to SimCSE |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(row, base) for row in found["rows"]),
        "",
        "| aim (processor time) | at most | measured | met |",
        "|---|---|---|---|",
        *(
            f"| {aim['text']} | {aim['aim']} | {_cell(aim['found'])} "
            f"| {'yes' if aim['found']['median'] <= aim['aim'] else 'no'} |"
            for aim in found["aims"]
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", choices=["bpe", "base", "tiny"], default="bpe")
    parser.add_argument("--methods", default="all", help=f"separated by commas: {', '.join(METHODS)}")
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=3, help="batches of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--no-memory", action="store_true", help="leave the measurement of memory out")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    sizes = {"texts": options.texts, "batch_size": options.batch_size, "device": options.device}
    if options.peak:
        print(json.dumps(peak_bytes(TokenWorkload.prepare(options.student, options.folder, **sizes), options.peak, 8)))
        return
    methods = list(METHODS) if options.methods == "all" else options.methods.split(",")
    with tempfile.TemporaryDirectory(prefix="distilvec-token-steps-") as folder:
        work = TokenWorkload.prepare(options.student, Path(folder), **sizes)
        names = variants(methods)
        times = measure(work, names, options.batches, options.rounds)
        memory = {} if options.no_memory else peaks(options, folder, names)
        facts = {**describe(work, options), "command": " ".join(["python", "benchmarks/token_steps.py", *sys.argv[1:]])}
    found = result(facts, times, memory, methods)
    options.results.mkdir(parents=True, exist_ok=True)
    stem = "token_steps" if options.student == "bpe" else f"token_steps-{options.student}"
    (options.results / f"{stem}.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.results / f"{stem}.md").write_text(table(found))
    print(table(found))


if __name__ == "__main__":
    main()
