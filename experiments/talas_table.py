"""The comparison of TALAS's paper (its Tables 1, 2 and 9) on real data, with a real teacher and two students.

    python experiments/talas_table.py --student bpe --rows main --seeds 3
    python experiments/talas_table.py --student bpe --rows parts --seeds 3    # Table 2
    python experiments/talas_table.py --student bpe --rows all
    python experiments/talas_table.py --student cut --rows main
    python experiments/talas_table.py --student remade --rows cosine --seeds 3 --lr 1e-3
    python experiments/talas_table.py --student embedder --rows main --seeds 3
    python experiments/talas_table.py --student embedder --rows "talas at 0.0003" --seeds 3
    python experiments/talas_table.py --table

Teacher: all-MiniLM-L6-v2. Corpus and the nine evaluation sets: TALAS's protocol from the shared data. Students:
`bpe` (4 layers x 256, its own byte-level BPE, masked-word pre-trained only), `cut` (two layers kept from the teacher,
at most 5,000 word pieces) and `cut3` (three layers). `remade` is `bpe` in a folder whose student-bpe is the one that
data/student_bpe.py made there, with the learning rate that was chosen for `bpe`. `embedder` is `bpe` after embedder.py:
five epochs, with learning rates chosen at that length, and further ones tried where the best is at an end. Every method
gets the same steps, the same batches of similar length and the same small grid: three learning rates at one epoch,
chosen on validation data (emotion, STS-B, WiC).
Every row is kept as soon as it is there, so the script goes on where it stopped.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import WORK, Results, arguments, finished, shared
from embedder import embedder
from layout import cell, head, line
from rates import ENDS, GRID, best_rate, fell, shown, tuned, withdrawn
from records import Rows, below, folders, seeds

from distilvec.corpus import read_corpus
from distilvec.flow.demo import demo_teacher
from distilvec.flow.fit import store_lookup
from distilvec.flow.start import make_student
from distilvec.flow.teach import Taught, teach_one
from distilvec.judging import CachedEncoder, RidgeMapped, judge, talas_tasks
from distilvec.methods.base import Needs
from distilvec.methods.table import build_method
from distilvec.recipe import ModelSection, OptimizerSection, StudentSection, TeacherSection, TrainingSection
from distilvec.students import ship
from distilvec.teachers import load_teacher
from distilvec.training import Material, Settings, StoreSource, bfloat16_pays, fit

EPOCHS, WHOLE = 2.0, {"embedder": 5.0}
PROBE_ROWS = 10_000
DTYPE = "bfloat16" if bfloat16_pays() else "float32"
EXPERIMENT = "talas_table"
#: Students that the claims are compared with.
COMPARED = ("bpe", "cut", "embedder")
IN_DOMAIN = ("emotion", "wic", "stsb")  # texts of their training splits are the corpus
OUT_OF_DOMAIN = ("banking77", "tweeteval_sentiment", "mrpc", "scitail", "sick", "sts12")
CLEAN_COLUMNS = ("Avg-In, clean", "Avg-Out, clean", "Avg without overlap")
SETTINGS = {"probe_rows": PROBE_ROWS, "dtype": DTYPE, "batch": 32}

ASAM = {"kind": "asam"}
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "simcse": ("simcse", {}, None),
    "mse": ("mse", {}, None),
    "cosine": ("cosine", {}, None),
    "relational": ("relational", {}, None),
    "leaf": ("leaf", {}, None),
    "jasper_stella": ("jasper_stella", {}, None),
    "distilcse": ("distilcse", {}, None),
    "distillcse": ("distillcse", {}, None),
    "talas": ("talas", {}, None),
    "talas+asam": ("talas", {}, ASAM),
    "talas+asam rho 0.05": ("talas", {}, {**ASAM, "rho": 0.05}),
    "talas+asam rho 0.1": ("talas", {}, {**ASAM, "rho": 0.1}),
    "talas+asam rho 1.0": ("talas", {}, {**ASAM, "rho": 1.0}),
    "talas+sam": ("talas", {}, {"kind": "sam"}),
    "talas+disam": ("talas", {}, {"kind": "disam", "rho": 0.01}),
    "talas without simcse": ("talas", {"simcse_weight": 0}, None),
    "talas without tamd": ("talas", {"tamd_weight": 0}, None),
    "talas without lasd": ("talas", {"lasd_weight": 0}, None),
    "tamd only": ("talas", {"simcse_weight": 0, "lasd_weight": 0}, None),
    "tamd only+asam": ("talas", {"simcse_weight": 0, "lasd_weight": 0}, ASAM),
    "talas without simcse+asam": ("talas", {"simcse_weight": 0}, ASAM),
    "talas without lasd+asam": ("talas", {"lasd_weight": 0}, ASAM),
    "talas anchored 1": ("talas", {"anchored_layers": 1}, None),
    "talas anchored 3": ("talas", {"anchored_layers": 3}, None),
    "talas anchored 4": ("talas", {"anchored_layers": 4}, None),
    "talas lasd layers 2": ("talas", {"layers": 2}, None),
    "talas lasd layers 3": ("talas", {"layers": 3}, None),
    "talas detached guide": ("talas", {"guide": "detached"}, None),
    "talas random start": ("talas", {"init": "random"}, None),
    "talas code": (
        "talas",
        {"preset": "code"},
        {"kind": "asam", "rho": 0.05, "eta": 0.0, "bias": "abs", "fresh_dropout": True},
    ),
}
MAIN = ("simcse", "cosine", "leaf", "distillcse", "talas", "talas+asam")
BASELINES = ("mse", "relational", "jasper_stella", "distilcse")
#: The paper's Table 2, from SimCSE alone to everything.
PARTS = (
    "simcse",
    "talas without lasd",
    "talas",
    "tamd only+asam",
    "talas without simcse+asam",
    "talas without lasd+asam",
    "talas+asam",
)
#: Rows that take the learning rate chosen for another row: they differ from it in one part only.
LIKE = {name: "talas" for name in ROWS if name.startswith(("talas", "tamd")) and name != "talas"}
#: Rows at a rate that validation data did not choose, but scarcely told from the best: not part of the comparison.
AT = {"talas at 0.0003": 3e-4}
ROWS |= dict.fromkeys(AT, ROWS["talas"])


def student_section(name: str) -> StudentSection:
    if name in ("bpe", "remade"):
        return StudentSection(model=str(shared() / "models" / "student-bpe"), max_length=128)
    if name == "embedder":
        return StudentSection(model=str(embedder()), max_length=128)
    layers = {"cut": 2, "cut3": 3}[name]
    return StudentSection(shrink={"of": demo_teacher(), "layers": layers, "vocabulary": 5000}, max_length=128)


class Bench:
    """Corpus, teacher, store and tasks, made once.

    Attributes:
        rows, like: name -> method, options and sharpness-aware steps; name -> the row whose learning rate it takes.
        holdout, limit: of the corpus.
        part: before the names of its rows, "" or one that ends in a slash.
        work: what the results are made from.
        results: where they are kept.
    """

    rows, like = ROWS, LIKE
    part, work = "", WORK / "talas"
    lr: float | None = None
    holdout, limit = 0.0, None

    def __init__(self, student: str, results: Results) -> None:
        data, self.results = shared() / "data", results
        self.name, self.section = student, student_section(student)
        self.epochs = WHOLE.get(student, EPOCHS)
        about: dict[str, Any] = {"domain": "domain", "holdout": self.holdout, "limit": self.limit}
        self.corpus = read_corpus(self.corpus_file(), self.work / "corpus", **about)
        self.taught = self.teach(ModelSection(name="minilm", model=demo_teacher(), dtype=DTYPE))
        self.source = StoreSource(self.taught.store, self.corpus)
        self.tests = talas_tasks(data, max_train=PROBE_ROWS)
        self.validation = talas_tasks(data, max_train=4000, split="validation", names=["emotion", "wic", "stsb"])
        self.texts = set(self.corpus.texts())

    def corpus_file(self) -> Path:
        return shared() / "data" / "talas_corpus.jsonl.gz"

    def teach(self, section: TeacherSection) -> Taught:
        return teach_one(section, self.corpus, self.work / "stores")

    def train(
        self,
        row: str,
        lr: float,
        epochs: float,
        seed: int,
        device: str | None,
        evaluate: Callable[[Any, Any], dict[str, float]] | None = None,
        **training: Any,
    ) -> tuple[Any, Any]:
        method, options, sharpness = self.rows[row]
        student = make_student(self.section, [], self.corpus, seed)
        out = self.work / "runs" / f"{self.name}-{row.replace(' ', '_')}-{lr}-{epochs}-{seed}"
        shutil.rmtree(out, ignore_errors=True)
        learnt = Material(
            self.corpus,
            [self.taught.info],
            [self.source],
            evaluate=evaluate,
            lookup=store_lookup([self.taught.store]),
        )
        section = TrainingSection(
            epochs=epochs, batch_size=32, seed=seed, save_every=100_000, **self.arguments(device), **training
        )
        optimizer = OptimizerSection(lr=lr, heads_lr=max(lr, 1e-4), sharpness=sharpness)
        settings = Settings(section, optimizer, out, cache=self.work / self.name)
        fitted = fit(student, build_method(method, options), learnt, settings)
        shutil.rmtree(out, ignore_errors=True)
        return student, fitted

    @staticmethod
    def arguments(device: str | None) -> dict[str, Any]:
        return {"bf16": bfloat16_pays(), **({"use_cpu": True} if device == "cpu" else {})}

    @staticmethod
    def encoder(student: Any) -> CachedEncoder:
        """The student in the fast encoding loop, in bfloat16 where that pays: all models are judged alike."""
        with tempfile.TemporaryDirectory() as folder:
            ship(student, Path(folder) / "student")
            return CachedEncoder(load_teacher(model=Path(folder) / "student", dtype=DTYPE))

    def tune(self, row: str, device: str | None) -> float:
        """The learning rate with the best validation average, or the one that is given."""
        if self.lr is not None:
            return self.lr
        if row in AT:
            return AT[row]
        row = self.like.get(row, row)
        # Where rates are chosen at full length, the best has neighbours on both sides.
        return best_rate(lambda lr: self.tuned(row, lr, device), GRID, extended=self.name in WHOLE)

    def tuned(self, row: str, lr: float, device: str | None) -> float:
        epochs = WHOLE.get(self.name, 1.0)
        make = functools.partial(self.tuning_run, row, lr, epochs, device)
        found = self.results.run(self.called("tuning", f"{row}-{lr}"), make, **self.options(row, lr, epochs, 0))
        validation: float = found["validation"]
        return validation

    def tuning_run(self, row: str, lr: float, epochs: float, device: str | None) -> dict[str, Any]:
        student, _ = self.train(row, lr, epochs, 0, device)
        found = judge({"student": self.encoder(student)}, self.validation)
        return {"row": row, "lr": lr, "validation": found.averages("student")["all"]}

    def called(self, *names: str) -> str:
        """The name of a row of this student."""
        return self.part + "/".join([self.name, *names])

    def options(self, row: str, lr: float, epochs: float, seed: int) -> dict[str, Any]:
        """What a row is made of, beside the settings of the run."""
        method, given, sharpness = self.rows[row]
        about = {"method": method, "options": given, "sharpness": sharpness, "student": self.section.model_dump()}
        return {**about, "corpus": self.corpus_file(), "lr": lr, "epochs": epochs, "seed": seed}

    def score(self, models: dict[str, Any]) -> dict[str, Any]:
        """Scores on all rows, and averages without the rows whose texts are in the corpus."""
        judged = judge(models, self.tests)
        result: dict[str, Any] = {}
        for model, scores in judged.scores.items():
            clean = {task.name: task.without(scores[task.name], self.texts).value for task in self.tests}
            result[model] = {
                "tasks": {name: {"value": s.value, "interval": s.interval} for name, s in scores.items()},
                "averages": judged.averages(model),
                "clean": clean,
                "clean_averages": {
                    group: float(np.mean([clean[t.name] for t in self.tests if group in (t.domain, "all")]))
                    for group in ("in", "out", "all")
                },
            }
        return result

    def references(self) -> None:
        """Teacher, untrained student and free baseline."""
        self.results.run(self.called("references"), self.untrained, student=self.section.model_dump())
        self.results.run("teacher", self.teacher)

    def untrained(self) -> dict[str, Any]:
        from distilvec.training import TokenizedCorpus, free_maps
        from distilvec.training.sample import make_sample

        student = make_student(self.section, [], self.corpus, 0)
        tokens = TokenizedCorpus.build(student, self.corpus.texts, len(self.corpus), self.work / self.name / "tokens")
        rows = np.asarray(self.corpus.train_rows)
        sample = make_sample(student, tokens, [self.source], rows, seed=0, needs=Needs())
        untrained = self.encoder(student)
        free = RidgeMapped(untrained, free_maps(sample)[0])
        models = {"untrained student": untrained, "free baseline": free}
        parameters = sum(p.numel() for p in student.parameters())
        return {"models": self.score(models), "parameters": parameters}

    def teacher(self) -> dict[str, Any]:
        return {"models": self.score({"teacher": CachedEncoder(self.taught.teacher)})}

    def row(self, row: str, seed: int, device: str | None) -> None:
        lr = self.tune(row, device)
        make = functools.partial(self.trained_run, row, lr, seed, device)
        self.results.run(self.called(f"{row}-{seed}"), make, **self.options(row, lr, self.epochs, seed))

    def trained_run(self, row: str, lr: float, seed: int, device: str | None) -> dict[str, Any]:
        student, fitted = self.train(row, lr, self.epochs, seed, device)
        scores = self.score({"student": self.encoder(student)})["student"]
        last = [entry for entry in fitted.log if "loss" in entry]
        return {
            "row": row,
            "lr": lr,
            "seed": seed,
            "steps": fitted.steps,
            "training_seconds": round(fitted.seconds, 1),
            "skipped_steps": fitted.skipped,
            "last_terms": {k: v for k, v in (last[-1] if last else {}).items() if k.startswith(("term/", "loss"))},
            **scores,
        }


def write_page(rows: Rows, folder: Path) -> str:
    """The Markdown tables of everything that is there, also written to `table.md`."""
    lines: list[str] = []
    teacher = rows["teacher"]["models"] if "teacher" in rows else {}
    top = teacher["teacher"]["averages"]["all"] if teacher else None
    for student in folders(rows):
        found = below(rows, student)
        columns = ("row", "seeds", "lr", "Avg-In", "Avg-Out", "Avg", "retention", *CLEAN_COLUMNS)
        lines += ["", f"### Student `{student}`", "", *head(*columns)]
        fixed = {**teacher, **found.get("references", {"models": {}})["models"]}
        lines += [_line(name, [scores], top, "") for name, scores in fixed.items()]
        start, down = fixed.get("untrained student"), dict[str, tuple[float, float, str]]()
        for row in ROWS:
            if runs := list(seeds(found, row).values()):
                lr = shown(runs[0]["lr"], tuned(found, LIKE.get(row, row)))
                reached, before = (clean_average(each) for each in (runs, [start or {"clean": {}}]))
                if fell(reached, before) or LIKE.get(row) in down:
                    down[row] = (reached, before, lr)
                else:
                    lines.append(_line(row, runs, top, lr))
        lines += withdrawn(down)
    page = HEADER + "\n".join(lines) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(page)
    return page


def _line(name: str, runs: list[dict[str, Any]], top: float | None, lr: str) -> str:
    averages = [cell([run["averages"][group] for run in runs]) for group in ("in", "out", "all")]
    kept = f"{100 * np.mean([run['averages']['all'] for run in runs]) / top:.1f} %" if top else ""
    return line(name, len(runs), lr, *averages, kept, *clean_cells(runs, IN_DOMAIN))


def clean_average(runs: list[dict[str, Any]]) -> float:
    """In percent, over the runs and all sets, without test rows that are in the corpus; of nothing not a number."""
    every = [value for run in runs for value in run["clean"].values()]
    return 100 * float(np.mean(every)) if every else float("nan")


def clean_cells(runs: list[dict[str, Any]], inside: tuple[str, ...]) -> list[str]:
    """Averages over the sets in and out of the domain and over all, without test rows that are in the corpus.

    STS12 counts as in-domain: its texts are part of STS-B, and texts of STS-B are in the corpora of all these runs.
    """
    groups: list[list[float]] = [[], [], []]
    for run in runs:
        of = {name: value for name, value in run["clean"].items() if name in (*inside, "sts12")}
        out = [value for name, value in run["clean"].items() if name not in of]
        for group, values in zip(groups, (list(of.values()), out, list(run["clean"].values())), strict=True):
            group.append(float(np.mean(values)))
    return [cell(group) for group in groups]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--student", choices=["bpe", "remade", "embedder", "cut", "cut3"], default="bpe")
    parser.add_argument("--rows", default="main", help="main, baselines, parts, all, or names with commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--lr", type=float, help="of all rows; otherwise each has the best of the grid")
    options = parser.parse_args()
    results = Results(EXPERIMENT, SETTINGS)
    if finished(options, results, write_page):
        return
    bench = Bench(options.student, results)
    bench.lr = options.lr
    bench.references()
    named = {"main": MAIN, "baselines": BASELINES, "parts": PARTS, "all": tuple(ROWS)}
    rows = named.get(options.rows) or tuple(options.rows.split(","))
    for seed in range(options.seeds):
        for row in rows:
            bench.row(row, seed, options.device)
            write_page(results.rows(), results.home)
    print(write_page(results.rows(), results.home))


HEADER = (
    """# TALAS's comparison, on real data

Made by `python experiments/talas_table.py` (see its header for teacher, students, corpus and tuning). Two epochs
(`embedder`: five), batch 32 with texts of similar length, probes trained on at most 10,000 seeded rows. ± is the
standard deviation over seeds. "Clean" and "without overlap" leave out the test rows whose texts are in the training
corpus; "clean" also counts STS12 as in-domain, because STS-B, whose texts are in the corpus, contains it. Averages are
plain means of the nine sets' main metrics (macro-F1, average precision, Spearman) in percent.
"""
    + ENDS
    + "\n"
)


if __name__ == "__main__":
    main()
