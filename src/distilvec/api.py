"""The Python interface: `distill`, `run`, `compare`, `choose`, `mine`, `teach`, `train`, `evaluate`, `load`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DistilvecError
from distilvec.files import home, write_text
from distilvec.folders import check, check_file
from distilvec.judging.loading import read_tasks
from distilvec.progress import at_work
from distilvec.recipe import Recipe
from distilvec.recipe.from_python import GIVEN, corpus_section, opened_recipe, recipe_of, sized

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.choosing.choose import Choice
    from distilvec.export import OnnxEncoder
    from distilvec.flow.compare import Comparison
    from distilvec.flow.run import Run
    from distilvec.flow.variants import Spec
    from distilvec.judging import Judgement
    from distilvec.methods.base import Method
    from distilvec.mining.outcome import Mined
    from distilvec.store import SignalStore


@at_work
def distill(
    teacher: Any,
    corpus: Any,
    output: str | Path = "out",
    *,
    student: Any = None,
    parameters: float | str | None = None,
    method: str | type[Method] | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    resume: bool = False,
    **sections: Any,
) -> Run:
    """Distil a student: teach, train, judge, report.

    Teacher and corpus are enough: the student is cut out of the teacher, a quarter of its parameters, and method,
    learning rate, epochs and batch size follow from the kind of student and the number of texts
    (`distilvec.recipe.defaults`). What was chosen, and why, is printed and stands in the report.

    Args:
        teacher: folder or hub id, a function from a list of texts to vectors [n, D], a dictionary with the keys of the
            recipe's teacher section (`vectors` and `texts` may be values), or a list of these; None for a method
            without a teacher (simcse, mnrl, sft, margin_mse, score_kl). Of an object, a method of one or a lambda the
            saved recipe says that it can be given from Python alone.
        corpus: file, folder or hub:NAME; a list or generator of texts or of dictionaries, a frame of pandas or polars,
            an Arrow table, a `datasets.Dataset`; or the recipe's corpus section, in which `path` may be any of these.
        output: folder of the run.
        student: folder or hub id, or the recipe's student section, e.g. `{"shrink": {"of": "teacher", "layers": 2}}`;
            `"auto"` measures candidates before training, as `choose` does. None: cut out of the teacher.
        parameters: of a student that is cut out of the teacher, at most, e.g. "10M"; None: a quarter of the teacher's.
        method: name, "module:Class" or a class derived from `distilvec.methods.Method`; a dictionary with one of
            these as `name`, and options; or a list of these, each with its `weight`. None: by the kind of student.
        resume: go on where an interrupted run in that folder stopped.
        **sections: `optimizer`, `training`, `judging` and `task` as dictionaries, `scorers` as a list of them, and
            `cache`. The task's `validation` and `test`, and a scorer's `scores`, may be values as `corpus` may.

    Returns:
        The run: `student` (a plain SentenceTransformer), `text()` (the table a person reads; `report` as markdown),
        `folder`, `record`.

    Raises:
        DistilvecError: with what happened, where, and what to do.
    """
    from distilvec.choosing import settle_student
    from distilvec.flow.run import run

    recipe = recipe_of(teacher, sized(student, parameters), corpus, method, output, **sections)
    return run(settle_student(recipe, resume=resume), resume=resume)


@at_work
def run(recipe: Recipe | str | Path, *, resume: bool = False) -> Run:
    """Distil as a recipe says: `distilvec run`.

    Args:
        recipe: a `Recipe`, or the path of its file.
        resume: go on where an interrupted run stopped.

    Raises:
        DistilvecError: with what happened, where, and what to do.
    """
    from distilvec.choosing import settle_student
    from distilvec.flow.run import run as start

    return start(settle_student(opened_recipe(recipe), resume=resume), resume=resume)


@at_work
def compare(
    teacher: Any,
    student: Any = None,
    corpus: Any = None,
    methods: Spec | Sequence[Spec] = (),
    output: str | Path | None = None,
    *,
    seeds: int = 3,
    tune: bool = False,
    reference: str | None = None,
    **sections: Any,
) -> Comparison:
    """Several methods on the same data, steps and seeds, and one table: `distilvec compare`.

    A recipe stands for teacher, student, corpus and sections: `compare("recipe.yaml", methods=["talas", "cosine"])`.

    Args:
        teacher, student, corpus: as for `distill`; or, first and alone, a `Recipe` or the path of a recipe's file.
        methods: one or several of: "name" or "name:key=value,key=value" with options of the method, or of the optimizer
            ("talas:optimizer.sharpness.kind=asam"); or dictionaries with `name`, options, `optimizer` (a dictionary)
            and `label`, the row's name in the table and below `runs/`. A class of one's own is "module:Class", or the
            class; "auto" is what a run without a method takes for this student. The recipe's own method keeps the
            recipe's options where none are given.
        output: folder of the results; default the recipe's, or "out". The same call goes on where it was interrupted.
        seeds: runs per method, with the recipe's seed and the following ones.
        tune: choose each method's learning rate among a third of the recipe's, itself and three times it, by the
            correlation of similarities with the teacher's on held-out texts after one epoch.
        reference: the row that the others are compared with; default the first.
        **sections: as for `distill`.

    Returns:
        The comparison: `text()` is the table, `folder` has it as markdown, CSV, LaTeX and JSON.

    Raises:
        DistilvecError: an unknown method or option, no tasks, or a folder with runs of another recipe.
    """
    from distilvec.flow.compare import compare as start

    if isinstance(teacher, Recipe) or (isinstance(teacher, str | Path) and Path(teacher).suffix in (".yaml", ".yml")):
        if not methods:  # compare(recipe, methods)
            methods, student = student, None
        named = {"student": student, "corpus": corpus, **sections}
        if double := next((key for key, value in named.items() if value is not None), None):
            raise DistilvecError(
                f"the recipe says what {double} is",
                where="compare",
                remedy="Change the recipe; seeds, tune, reference and output are given by name.",
            )
        return start(opened_recipe(teacher, output), methods, seeds, tune=tune, reference=reference)
    if corpus is None:
        remedy = "Give both as for distill, or a Recipe or the path of its file (.yaml) alone."
        raise DistilvecError("teacher and corpus, or a recipe, are needed", where="compare", remedy=remedy)
    if "method" in sections:
        raise DistilvecError("a comparison takes methods, a list", where="method", remedy="Give methods=[...].")
    recipe = recipe_of(teacher, student, corpus, None, output or "out", **sections)
    return start(recipe, methods, seeds, tune=tune, reference=reference)


@at_work
def train(
    teacher: Any,
    corpus: Any,
    output: str | Path = "out",
    *,
    student: Any = None,
    parameters: float | str | None = None,
    method: str | type[Method] | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    resume: bool = False,
    **sections: Any,
) -> SentenceTransformer:
    """As `distill`, without judging and report; returns the student as it ships (`output/student`)."""
    from distilvec.choosing import settle_student
    from distilvec.flow.run import shipped_student
    from distilvec.flow.run import train as start

    recipe = recipe_of(teacher, sized(student, parameters), corpus, method, output, **sections)
    recipe = settle_student(recipe, resume=resume)
    start(recipe, resume=resume)
    return shipped_student(recipe)


@at_work
def teach(
    teacher: Any,
    corpus: Any,
    output: str | Path = "out",
    *,
    shard: tuple[int, int] | None = None,
    cache: str | Path | None = None,
    remote: str | None = None,
) -> SignalStore:
    """Fill the store of one teacher with what it lacks of a corpus; `distill` into the same folder goes on from it.

    Args:
        teacher, corpus, output: as for `distill`, one teacher.
        shard: (i, n): only this share of the texts, so that n processes can teach at once.
        cache: where the store is kept instead of `output`.
        remote: address on object storage where a copy of the stores is kept.

    Raises:
        DistilvecError: several teachers or none, or whatever teaching raises.
    """
    from distilvec.flow.lessons import fill_stores
    from distilvec.flow.prepare import open_corpus, open_teachers

    recipe = recipe_of(teacher, None, corpus, None, output, cache=cache, remote=remote)
    if len(recipe.teachers) != 1:
        what = f"teach fills one teacher's store, and {len(recipe.teachers) or 'none'} are given"
        raise DistilvecError(what, where="teacher", remedy="Call it once per teacher.")
    read = open_corpus(recipe)
    return fill_stores(recipe, read, open_teachers(recipe, read), shard=shard)[0].store


@at_work
def mine(
    teacher: Any,
    corpus: Any,
    output: str | Path = "mined",
    *,
    documents: Any = None,
    seed: int = 0,
    cache: str | Path | None = None,
    **options: Any,
) -> Mined:
    """Hard negatives for a corpus of pairs from one teacher's vectors: `distilvec mine`.

    Exact, in bounded memory; killed and called again it goes on where it was.

    Args:
        teacher: as for `distill`; its store is filled with what it lacks. The folder of a student, or
            `{"vectors": ..., "texts": ...}`, are teachers as well.
        corpus: as for `distill`, with the columns of query and answer: `{"path": ..., "text": ["query", "answer"]}`.
        output: folder for mined.jsonl, mining.md, mining.json and, without `cache`, the store.
        documents: more documents that may be negatives: a file, a list of texts, or a corpus section.
        seed: of what is drawn at random.
        cache: where the prepared corpus and the store are kept, to be shared with runs.
        **options: keys of the recipe's `mining` section: negatives, ranks, absolute_margin, relative_margin, max_score,
            duplicates, random.

    Returns:
        What was found: `file`, `columns` (for `corpus.text` of a recipe), `text()`.

    Raises:
        DistilvecError: a corpus without pairs, an unknown option, or whatever teaching raises.
    """
    from distilvec.flow.mine import mine_recipe

    output = home(str(output))
    if documents is not None:
        options["documents"] = corpus_section(documents, Path(output) / GIVEN, "documents.jsonl")
    sections = {"mining": options, "training": {"seed": seed}, "cache": cache}
    return mine_recipe(recipe_of(teacher, None, corpus, None, output, **sections))


@at_work
def choose(
    teacher: Any,
    corpus: Any,
    tasks: Sequence[Any] = (),
    *,
    keep: float = 0.95,
    output: str | Path | None = None,
    method: str | type[Method] | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    **options: Any,
) -> Choice:
    """Candidate students before any training, and the smallest that is predicted to keep enough: `distilvec plan`.

    Args:
        teacher, corpus: as for `distill`.
        tasks: what the student has to be good at; without any, agreement with the teacher decides.
        keep: share of the teacher that is to be kept, in (0, 1].
        output: folder in which the teacher's vectors are kept, for a later `distill` into it; None: nowhere.
        method: of the later training; candidates that it cannot train are left out. None: any.
        **options: `sample`, `probe_steps`, `layers` and `vocabularies` of `distilvec.choosing.choose`.

    Returns:
        The choice: `text()` is the table, `best.section` the student section for `distill`.

    Raises:
        DistilvecError: see `distilvec.choosing.choose`.
    """
    from distilvec.choosing.choose import choose as start

    with kept_or_temporary(output) as place:
        recipe = recipe_of(teacher, None, corpus, method, place, judging={"tasks": list(tasks)})
        return start(recipe, keep=keep, **options)


def kept_or_temporary(output: str | Path | None) -> AbstractContextManager[str]:
    """A folder that stays, or one that goes when it is left."""
    return tempfile.TemporaryDirectory(prefix="distilvec-plan-") if output is None else nullcontext(str(output))


@at_work
def evaluate(
    model: Any,
    tasks: Any,
    output: str | Path | None = None,
    *,
    name: str | None = None,
    results: str | Path | None = None,
) -> Judgement:
    """Score any model with the evaluators that score teachers and students.

    Args:
        model: folder or hub id, exported ONNX folder, `SentenceTransformer`, teacher, or a function from texts to
            vectors [n, d]; a causal language model's folder where all tasks are of kind generation.
        tasks: one or several of: name of a task or a whole benchmark of MTEB's ("MTEB(eng, v2)"), description
            (dictionary), file with one description or with a list of them, `JudgingTask` of your own.
        output: JSON file for the scores, with per-item results.
        name: of the model in the result; default from its folder.
        results: folder for MTEB's result files, one for each of its tasks, written as they finish; a task whose file
            is there already, of a model with these weights, is not run again.

    Raises:
        DistilvecError: no such model, a task that cannot be read, or `output` holds something else than scores.
    """
    from distilvec.judging import judge
    from distilvec.judging.encoder import is_sentence_transformer
    from distilvec.modules.invariance import warn_of_batches
    from distilvec.modules.writing import open_writer

    output = None if output is None else Path(home(str(output)))
    if output is not None:
        check_file(output, lambda content: "scores" in content)
    chosen = read_tasks(tasks)
    opened: Any = model
    if isinstance(model, str | Path):
        writes = bool(chosen) and all(task.kind == "generation" for task in chosen)
        opened = open_writer(model).eval() if writes else load(model)
    called = name or (Path(model).resolve().name if isinstance(model, str | Path) else "model") or "model"
    if is_sentence_transformer(opened):
        warn_of_batches(opened, called)
    if results is not None:
        _keep_results(chosen, Path(home(str(results))), called, model)
    judgement = judge({called: opened}, chosen)
    if output is not None:
        write_text(output, json.dumps(judgement.to_dict(outputs=True)) + "\n")
    return judgement


def _keep_results(tasks: Sequence[Any], folder: Path, name: str, model: Any) -> None:
    """Let MTEB's tasks find and keep their result files.

    Raises:
        DistilvecError: none of the tasks is MTEB's, or the model has no files that tell it from others.
    """
    from distilvec.judging import MtebTask
    from distilvec.judging.results import ResultFiles, revision_of

    own = [task for task in tasks if isinstance(task, MtebTask)]
    if not own:
        raise DistilvecError("only tasks of MTEB have result files", where="results", remedy="Leave it out.")
    check(folder, "results", ())
    files = ResultFiles(folder, name, revision_of(model))
    for task in own:
        task.results = files


@at_work
def load(path: str | Path, *, trust_remote_code: bool = False) -> SentenceTransformer | OnnxEncoder:
    """Open a student: a sentence-transformers folder or hub id, or a folder that `distilvec export` wrote.

    Both have `encode(list of texts)`. A student of `gaussian` that kept its kernels has `explain(items)` too: by
    teacher, how well it reproduces the teacher's vector of an item (`distilvec.students.explain`). A student of a
    supervised run and a fine-tuned model have `predict(inputs)`: label names, or scores (`distilvec.tasks.answering`).
    `trust_remote_code`: whether code of somebody else's that comes with the model may run.

    Raises:
        DistilvecError: there is no such model.
        DataError: files beside the model are damaged.
    """
    if (Path(path).expanduser() / "distilvec_onnx.json").is_file():
        from distilvec.export import load_onnx

        return load_onnx(path)
    from distilvec.tasks.answering import finished_student

    return finished_student(path, trust_remote_code=trust_remote_code)
