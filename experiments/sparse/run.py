"""A sparse student: a SPLADE teacher of two blocks distilled into one block and a third of its word pieces."""

from __future__ import annotations

import copy
import functools
import time
from pathlib import Path
from typing import Any

from datasets import Dataset
from experiments.harness.records import WORK, Results
from experiments.harness.script import arguments, finished, shared
from experiments.sparse import models
from experiments.sparse.method import SparseOptions, SparseVectors
from experiments.sparse.table import write_page
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from torch import nn

from distilvec import DistillationLoss, SignalStore
from distilvec.allocator import keep_freed_memory
from distilvec.corpus import content_keys
from distilvec.judging import CachedEncoder, Score, judge, load_task
from distilvec.judging.bootstrap import paired_bootstrap
from distilvec.store import fill
from distilvec.teachers import load_teacher

EXPERIMENT = "sparse"
HOME = WORK / EXPERIMENT
BATCH, TRAINED_LENGTH = 32, 64
EPOCH = models.PARTS["train"] // BATCH
STEPS = 2 * EPOCH
#: Tried in half an epoch, on held-out texts: rates with the first weight of FLOPS, then its other weights.
RATES, WEIGHTS, PROBE = (1e-4, 3e-4, 1e-3), (0.1, 0.01, 0.001), EPOCH // 2
SETTINGS = {"parts": models.PARTS, "pieces": models.PIECES, "layers": models.LAYERS, "batch_size": BATCH}


@functools.cache
def store(folder: str) -> SignalStore:
    """The teacher's vectors of the corpus, as ordinary dense rows."""
    call = functools.partial(models.lesson, folder)
    teacher = load_teacher(name="splade", call=call, batch_size=256)
    filled = SignalStore.create(HOME / "store", teacher.card, teacher.card.width)
    corpus = models.texts()["train"]
    fill(filled, teacher, corpus, content_keys(corpus))
    return SignalStore.open(HOME / "store")


def trained(folder: str, rate: float, flops: float, seed: int, steps: int) -> tuple[SentenceTransformer, float]:
    """A student after so many steps, and the minutes that they took."""
    student, lessons = copy.deepcopy(models.cut(folder)[0]), store(folder)
    student.max_seq_length = TRAINED_LENGTH
    for module in student.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    loss = DistillationLoss(student, SparseVectors(SparseOptions(flops=flops)), lessons)
    trainer = SentenceTransformerTrainer(
        model=student,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(HOME / "trainer"),
            learning_rate=rate,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            warmup_steps=0.1,
            seed=seed,
            report_to="none",
            save_strategy="no",
            logging_steps=10,
            use_cpu=True,
        ),
        train_dataset=lessons.attach(Dataset.from_dict({"text": models.texts()["train"]}), text="text"),
        loss=loss,
    )
    keep_freed_memory()
    begun = time.perf_counter()
    loss.bind(trainer).train()
    student.max_seq_length = models.LENGTH
    return student.eval(), (time.perf_counter() - begun) / 60


@functools.cache
def target(folder: str, part: str) -> Any:
    """The teacher's vectors of held-out texts, of all its pieces."""
    return models.dense(models.teacher(folder), models.texts()[part])


def probed(folder: str, rate: float, flops: float) -> dict[str, Any]:
    """What a short training makes of the texts that choose."""
    student, minutes = trained(folder, rate, flops, seed=100, steps=PROBE)
    found = models.likeness(models.dense(student, models.texts()["choice"]), target(folder, "choice"))
    return {"lr": rate, "flops": flops, "minutes": minutes, **found}


def choose(results: Results, folder: str) -> dict[str, float]:
    """The rate that is nearest to the teacher; then the weight of FLOPS, among those that are no denser than it."""

    def probe(rate: float, flops: float) -> dict[str, Any]:
        name = f"probe/lr {rate:g}, flops {flops:g}-100"
        return results.run(name, functools.partial(probed, folder, rate, flops), lr=rate, flops=flops, steps=PROBE)

    rate = max((probe(rate, WEIGHTS[0]) for rate in RATES), key=lambda row: row["neighbours"])["lr"]
    rows = [probe(rate, weight) for weight in WEIGHTS]
    sparse = [row for row in rows if row["active"] <= row["teacher_active"]]
    best = max(sparse, key=lambda row: row["neighbours"]) if sparse else min(rows, key=lambda row: row["active"])
    return {"lr": rate, "flops": best["flops"]}


@functools.cache
def cranfield() -> Any:
    files = {name: f"cranfield.{name}.jsonl.gz" for name in ("queries", "corpus", "qrels")}
    return load_task({"name": "cranfield", "kind": "retrieval", **files}, shared() / "data")


@functools.cache
def whole(folder: str) -> CachedEncoder:
    """The teacher, which reads each text once for both of its rows."""
    return CachedEncoder(models.teacher(folder), batch_size=32)


def judged(folder: str, encode: Any, model: Any) -> dict[str, Any]:
    """A model on Cranfield, its likeness to the teacher on held-out texts, and its size."""
    searched = models.Searched(encode)
    score = judge({"model": CachedEncoder(searched)}, [cranfield()]).scores["model"]["cranfield"]
    likeness = models.likeness(encode(models.texts()["report"]), target(folder, "report"))
    return {
        "cranfield": score.to_dict(outputs=True),
        "active": searched.active,
        "likeness": likeness,
        **models.size(model),
    }


def judged_teacher(folder: str, cut: bool) -> dict[str, Any]:
    """The teacher with all its pieces, or with those alone that the student has."""
    rows = models.cut(folder)[1] if cut else slice(None)
    return judged(folder, lambda asked: whole(folder)(asked)[:, rows], models.teacher(folder))


def judged_start(folder: str) -> dict[str, Any]:
    start = models.cut(folder)[0]
    return judged(folder, functools.partial(models.dense, start), start)


def judged_student(folder: str, lr: float, flops: float, seed: int) -> dict[str, Any]:
    """A student as it ships."""
    student, minutes = trained(folder, lr, flops, seed, STEPS)
    opened = models.shipped(student, HOME / f"student-{seed}")
    some = models.texts()["report"][:100]
    gap = float(abs(models.dense(opened, some) - models.dense(student, some)).max())
    found = judged(folder, functools.partial(models.dense, opened), opened)
    return {**found, "seed": seed, "minutes": minutes, "texts": STEPS * BATCH, "reload_gap": gap}


def differences(rows: dict[str, dict[str, Any]], seeds: list[int]) -> dict[str, Any]:
    """nDCG@10 of the students less that of each other model, paired by query, with the seeds' own spread."""
    students = [Score.from_dict(rows[f"student-{seed}"]["cranfield"]) for seed in seeds]
    found = {}
    for name in ("teacher", "teacher, kept pieces", "untrained"):
        other = Score.from_dict(rows[f"{name}-0"]["cranfield"])
        runs = [[student.value - other.value for student in students]]
        paired = paired_bootstrap(students, [other] * len(students), runs=runs)
        found[name] = {"value": paired.value, "interval": paired.interval}
    return found


def main() -> None:
    parser = arguments(__file__, device=False)
    parser.add_argument("--teacher", type=Path, metavar="FOLDER", help="the SPLADE model")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    results = Results(EXPERIMENT, SETTINGS)
    if finished(options, results, write_page):
        return
    if options.teacher is None:
        parser.error("--teacher names the folder of the SPLADE model")
    folder = str(options.teacher)
    chosen = choose(results, folder)
    for seed in options.seeds:
        made = functools.partial(judged_student, folder, **chosen, seed=seed)
        results.run(f"student-{seed}", made, seed=seed, steps=STEPS, **chosen)
    results.run("untrained-0", functools.partial(judged_start, folder))
    results.run("teacher-0", functools.partial(judged_teacher, folder, cut=False))
    results.run("teacher, kept pieces-0", functools.partial(judged_teacher, folder, cut=True))
    made = functools.partial(differences, results.rows(), options.seeds)
    results.run("differences-0", made, seeds=options.seeds, **chosen)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
