"""A whole job by defaults: sentence-transformers' documented distillation, and `distilvec run`.

    python benchmarks/out_of_the_box.py                # 8,000 texts, three rounds: a quarter of an hour on a free core
    python benchmarks/out_of_the_box.py --texts 2000 --fewer 1300

Both get the same teacher (all-MiniLM-L6-v2), the same untrained student (a quarter cut out of it), the same texts, one
epoch, batches of 64 and the learning rate 1e-3; everything else is what each does by itself. sentence-transformers:
`encode`, `EmbedDistillLoss` with cosine distance and its trainer, from the student that is cut already. distilvec: the
command `distilvec run`, which cuts the student, learns from the states of tokens besides vectors, judges the student
and writes a report. A third way is `distilvec run` on the first `--fewer` of the texts: what it takes to come to about
the cosine that sentence-transformers reaches with all of them.

Each is a process of its own on one thread; they take turns, in another order each round. Wall time on a machine with
other load says little, so processor time (user and system) of the same process stands next to it (beside a neighbour
that computes in bfloat16, ours loses more of both); ratios are medians over the rounds with the least and the greatest.
Quality is the mean cosine with the teacher's float32 vectors on texts that neither side was trained on. Results:
benchmarks/results/out_of_the_box.json and out_of_the_box.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from machine import processor

RESULTS = Path(__file__).parent / "results"
THEIRS, OURS, FEWER = "sentence-transformers", "distilvec", "distilvec, fewer texts"
#: Way -> file name of what it leaves.
WAYS = {THEIRS: "theirs", OURS: "ours", FEWER: "fewer"}
EPOCHS, BATCH, RATE, OTHERS = 1, 64, 1e-3, 1500
STAGES = ("teach", "train", "rest", "whole")
#: What distilvec's rest is made of; what is left of it are imports, opening models and cutting texts into tokens.
PARTS = ("cutting the student", "maps and free baseline", "judging", "report")
Clock = tuple[float, float]


def clock() -> Clock:
    """(wall, processor) seconds."""
    return time.perf_counter(), time.process_time()


def timed(stages: dict[str, Clock], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose (wall, processor) seconds are entered."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        wall, busy = clock()
        found = function(*args, **kwargs)
        after = clock()
        stages[name] = after[0] - wall, after[1] - busy
        return found

    return call


# what runs in a process of its own


def prepare(folder: Path, texts: int, fewer: int) -> str:
    """Write texts, the recipe, and the untrained student and training texts as `distilvec run` will have them.

    Returns:
        What the texts are.
    """
    from encode import _packaged_model, documentation
    from workload import real_texts, shared

    from distilvec.flow.defaults import with_defaults
    from distilvec.flow.prepare import make_start, open_corpus, open_teachers
    from distilvec.recipe import Recipe

    found = [row["text"] for row in real_texts(10**6)] if shared() else documentation(10**6)
    found = list(dict.fromkeys(found))
    used, others = found[:texts], found[texts : texts + OTHERS]
    (folder / "others.json").write_text(json.dumps(others))
    for way, many in ((FEWER, fewer), (OURS, texts)):
        path = folder / f"{WAYS[way]}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in used[:many]))
        recipe: dict[str, Any] = {
            "corpus": {"path": str(path)},
            "teachers": [{"name": "minilm", "model": str(_packaged_model())}],
            "training": {"epochs": EPOCHS, "batch_size": BATCH},
            "output": str(folder / "start-run"),
        }
        (folder / f"{WAYS[way]}.json").write_text(json.dumps(recipe))
    opened = Recipe.build(recipe)
    corpus = open_corpus(opened)
    opened = with_defaults(opened, corpus)
    assert opened.optimizer.lr == RATE
    make_start(opened, corpus, open_teachers(opened, corpus)).open().save(str(folder / "start"))
    (folder / "train.json").write_text(json.dumps(corpus.texts(corpus.train_rows)))
    (folder / "all.json").write_text(json.dumps(corpus.texts()))
    return "TALAS's corpus" if shared() else "documentation"


def theirs(folder: Path, output: Path) -> dict[str, Clock]:
    """As sentence-transformers' documentation distils embeddings."""
    from datasets import Dataset
    from encode import _packaged_model
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss

    stages: dict[str, Clock] = {}
    texts, train = (json.loads((folder / f"{name}.json").read_text()) for name in ("all", "train"))
    teacher = SentenceTransformer(str(_packaged_model()))
    vectors = dict(zip(texts, timed(stages, "teach", teacher.encode)(texts, show_progress_bar=False), strict=True))
    student = SentenceTransformer(str(folder / "start"))
    dataset = Dataset.from_dict({"text": train, "label": [vectors[text].tolist() for text in train]})
    arguments = Arguments(
        output_dir=str(output / "checkpoints"),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        report_to="none",
        disable_tqdm=True,
    )
    loss = EmbedDistillLoss(student, distance_metric="cosine")
    trainer = SentenceTransformerTrainer(model=student, args=arguments, train_dataset=dataset, loss=loss)
    timed(stages, "train", trainer.train)()
    student.save(str(output / "student"))
    return stages


def ours(recipe: Path, output: Path) -> dict[str, Clock]:
    """The command `distilvec run`."""
    from distilvec.cli.main import main as command
    from distilvec.flow import run
    from distilvec.training.loop import Loop

    stages: dict[str, Clock] = {}
    fitting = importlib.import_module("distilvec.training.fit")  # the package has the function under this name
    parts = ((run, "make_start"), (fitting, "_assemble"), (run, "judge"), (run, "report"))
    for name, (module, function) in zip(PARTS, parts, strict=True):
        setattr(module, function, timed(stages, name, getattr(module, function)))
    run.teach = timed(stages, "teach", run.teach)  # type: ignore[assignment]
    Loop.train = timed(stages, "train", Loop.train)  # type: ignore[method-assign]
    sys.argv = ["distilvec", "run", str(recipe), "--output", str(output)]
    try:
        command()
    except SystemExit as done:
        if done.code:
            raise
    return stages


def cosines(folder: Path, outputs: list[Path]) -> list[float]:
    """Mean cosine of each student with the teacher, on texts that neither has seen."""
    from encode import _packaged_model
    from sentence_transformers import SentenceTransformer

    texts = json.loads((folder / "others.json").read_text())
    true = SentenceTransformer(str(_packaged_model())).encode(texts, normalize_embeddings=True)
    found = []
    for output in outputs:
        vectors = SentenceTransformer(str(output)).encode(texts, normalize_embeddings=True)
        found.append(float((true * vectors).sum(1).mean()))
    return found


# what starts them


def child(*words: str | Path) -> tuple[dict[str, Any], float, float, int]:
    """What a process of this file prints last, its wall and processor seconds, and its peak memory."""
    command = [sys.executable, __file__, *map(str, words)]
    alone = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    begun = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.DEVNULL, env=os.environ | alone)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begun
        said.seek(0)
        lines = said.read().splitlines()
    if status:
        raise SystemExit(f"failed: {' '.join(command)}")
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return json.loads(lines[-1]), wall, usage.ru_utime + usage.ru_stime, peak


def one(way: str, folder: Path, output: Path) -> dict[str, Any]:
    """Stage -> [wall, processor] seconds of one process; its peak memory, bytes on the disk and quality."""
    output.mkdir()
    stages, wall, busy, peak = child("--one", WAYS[way], "--folder", folder, "--output", output)
    rest = [whole - stages["teach"][i] - stages["train"][i] for i, whole in enumerate((wall, busy))]
    quality = child("--judge", output / "student", "--folder", folder)[0]["cosine"]
    return {
        **stages,
        "rest": rest,
        "whole": [wall, busy],
        "peak_bytes": peak,
        "disk_bytes": sum(file.stat().st_size for file in output.rglob("*") if file.is_file()),
        "cosine": quality,
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def summary(rounds: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each way: medians, and ratios to sentence-transformers within the rounds."""
    rows = []
    for way, found in rounds.items():
        row: dict[str, Any] = {"way": way}
        pairs = list(zip(found, rounds[THEIRS], strict=False))
        for stage in STAGES:
            row[stage] = {
                kind: {
                    "seconds": statistics.median(each[stage][i] for each in found),
                    "ratio": spread([mine[stage][i] / other[stage][i] for mine, other in pairs]),
                }
                for i, kind in enumerate(("wall", "processor"))
            }
        row |= {name: statistics.median(each[name] for each in found) for name in ("peak_bytes", "disk_bytes")}
        row["parts"] = {name: statistics.median(each[name][1] for each in found) for name in PARTS if name in found[0]}
        row["cosine"] = spread([each["cosine"] for each in found])
        rows.append(row)
    return rows


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""

    def cell(row: dict[str, Any], stage: str, kind: str) -> str:
        found = row[stage][kind]
        ratio = found["ratio"]
        shown = f"{found['seconds']:.0f} s"
        if row["way"] == THEIRS:
            return shown
        return f"{shown}, {ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['greatest']:.2f})"

    lines = [
        "# A whole job by defaults",
        "",
        f"`{result['command']}`: {result['machine']}, one thread for each process, torch {result['torch']}, "
        f"sentence-transformers {result['sentence_transformers']}. Teacher all-MiniLM-L6-v2, student a quarter cut out "
        f"of it, {result['texts']:,} texts of {result['corpus']} (fewer: {result['fewer']:,}), {EPOCHS} epoch, batches "
        f"of {BATCH}, learning rate {RATE:g}. Medians of {result['rounds']} rounds in turn; ratios to "
        "sentence-transformers in the same round, median (least to greatest).",
    ]
    for kind in ("processor", "wall"):
        lines += [
            "",
            f"| {kind} time | teach | train | rest | whole process |",
            "|---|---|---|---|---|",
            *(f"| {row['way']} | {' | '.join(cell(row, stage, kind) for stage in STAGES)} |" for row in result["rows"]),
        ]
    parts = next(row["parts"] for row in result["rows"] if row["way"] == OURS)
    lines += [
        "",
        f"Of distilvec's rest: {', '.join(f'{name} {seconds:.0f} s' for name, seconds in parts.items())}. What is left "
        "are imports, opening models and cutting texts into tokens.",
        "",
        f"| | cosine on {OTHERS:,} other texts | peak memory | on the disk |",
        "|---|---|---|---|",
        *(
            f"| {row['way']} | {row['cosine']['median']:.3f} | {row['peak_bytes'] / 1e6:,.0f} MB "
            f"| {row['disk_bytes'] / 1e6:,.0f} MB |"
            for row in result["rows"]
        ),
        f"| untrained | {result['untrained']:.3f} | | |",
    ]
    return "\n".join(lines) + "\n"


def benchmark(options: argparse.Namespace) -> None:
    from importlib.metadata import version

    with tempfile.TemporaryDirectory(prefix="distilvec-box-") as name:
        folder = Path(name)
        prepared = ("--texts", str(options.texts), "--fewer", str(options.fewer), "--folder", folder)
        corpus = child("--prepare", *prepared)[0]["corpus"]
        untrained = child("--judge", folder / "start", "--folder", folder)[0]["cosine"]
        rounds: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for turn in range(options.rounds):
            for way in list(WAYS)[:: -1 if turn % 2 else 1]:
                rounds[way].append(one(way, folder, folder / f"{WAYS[way]}-{turn}"))
                print(way, json.dumps(rounds[way][-1]), flush=True)
            result = {
                "command": f"python benchmarks/out_of_the_box.py --texts {options.texts} --fewer {options.fewer} "
                f"--rounds {options.rounds}",
                "machine": f"{processor()}, {os.cpu_count()} cores",
                "torch": version("torch"),
                "sentence_transformers": version("sentence-transformers"),
                "texts": options.texts,
                "fewer": options.fewer,
                "corpus": corpus,
                "rounds": turn + 1,
                "untrained": untrained,
                "rows": summary(rounds),
                "each": rounds,
            }
            options.results.mkdir(parents=True, exist_ok=True)
            (options.results / "out_of_the_box.json").write_text(json.dumps(result, indent=1) + "\n")
            (options.results / "out_of_the_box.md").write_text(table(result))
    print(table(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=8000)
    parser.add_argument("--fewer", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    for hidden in ("--one", "--judge", "--folder", "--output"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder = Path(options.folder or "")
    if options.prepare:
        print(json.dumps({"corpus": prepare(folder, options.texts, options.fewer)}))
    elif options.judge:
        print(json.dumps({"cosine": cosines(folder, [Path(options.judge)])[0]}))
    elif options.one:
        output = Path(options.output)
        done = theirs(folder, output) if options.one == "theirs" else ours(folder / f"{options.one}.json", output)
        print(json.dumps(done))
    else:
        benchmark(options)


if __name__ == "__main__":
    main()
