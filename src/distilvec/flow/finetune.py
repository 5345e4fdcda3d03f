"""Fine-tune a model on a labelled file: the supervised teacher, ready to be frozen, or a model for its own sake.

It is a run like any other, with the method `sft` and no teacher. What comes out is a plain sentence-transformers folder
with the task's head and `finetune.json` (scores and settings) in `task/`, and the run's report in `report/`. The run's
own folder lies beside it while it is made; the same call goes on from there, or finds the work done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distilvec import folders
from distilvec.errors import DistilvecError, Interrupted, nearest
from distilvec.files import alone_in, home, read_record, write_record, write_text
from distilvec.flow.pin import pin
from distilvec.flow.run import Run, run
from distilvec.folders import check_model
from distilvec.judging import TRAINED
from distilvec.modules.pipeline import PoolingChoice
from distilvec.modules.task_head import Encoding
from distilvec.progress import at_work
from distilvec.recipe import Recipe, given
from distilvec.recipe.from_python import recipe_of
from distilvec.recipe.student_sections import LoraSection as Lora
from distilvec.report.data import short_source
from distilvec.students.ship import named, put_in_place
from distilvec.system_errors import system_problem
from distilvec.tasks.examples import Examples, read_examples
from distilvec.tasks.predictor import Predictor
from distilvec.tasks.scores import metric_names
from distilvec.tasks.section import Kind
from distilvec.tasks.table import TABLE
from distilvec.teachers.cards import fingerprint, hash_files
from distilvec.training.distributed import launched

logger = logging.getLogger(__name__)
RECORD, REPORT = "finetune.json", "report"
#: Learning rate of all weights.
RATE = 2e-5
#: Every row counts, also a text that occurs twice; only absurdly long ones are left out.
_AS_GIVEN = {"holdout": 0.0, "repeated": True, "max_characters": 100_000}
_USES = ("train", "validation", "test")
#: Of a run's folder, what goes with the model.
KEPT = ("report.md", "report.html", "report.json", "figures", "recipe.yaml", "run.jsonl", "rejected.jsonl")

__all__ = ["Lora", "finetune", "finetune_scores"]


@at_work
def finetune(
    model: str | Path,
    data: Any,
    output: str | Path,
    *,
    task: Kind = "classification",
    text: str | Sequence[str] | None = None,
    label: str = "label",
    encoding: Encoding | None = None,
    validation: Any = None,
    test: Any = None,
    max_length: int | None = None,
    pooling: PoolingChoice | None = None,
    lora: Lora | Mapping[str, Any] | bool = False,
    training: Mapping[str, Any] | None = None,
    optimizer: Mapping[str, Any] | None = None,
) -> Path:
    """Fine-tune `model` with a task head and write it to `output`.

    With validation data the best epoch by accuracy or Spearman is kept, else the last one. Test data is scored once, by
    the model as it was written.

    Args:
        model: sentence-transformers or transformers folder, or hub id.
        data: labelled texts, whatever `distill` takes as a corpus.
        output: folder of the new model; a model there that an equal call made is left as it is.
        task: "classification" of texts, "pairs" (classification of pairs) or "similarity" (scores of pairs).
        text: text column, or the two of a pair; default "text", or "text1" and "text2".
        label: column with class names or scores.
        encoding: of pairs, "joint" (default) or "separate".
        validation, test: more labelled data with the same columns.
        max_length: tokens per text, or per joint pair.
        pooling: of a bare transformers folder.
        lora: train low-rank adapters and merge them, instead of all weights; True for the defaults of `Lora`.
        training: the recipe's training section; default 3 epochs in batches of 16.
        optimizer: the recipe's optimizer section; default rate 2e-5 (1e-4 with lora), and 1e-3 for the head.

    Returns:
        `output`.

    Raises:
        DistilvecError: arguments that make no sense, no such model, or another call that is making the same model.
        DataError: a labelled file that cannot be used.
        EnvironmentProblem: peft is missing, or no room.
        Interrupted: Ctrl-C or SIGTERM, after a checkpoint is saved; the same call goes on.
    """
    target = named(home(str(output)))
    if launched()[1] > 1:
        raise DistilvecError("fine-tuning runs in one process", remedy="Start it without torchrun.")
    check_model(target)
    _finetune_into(
        target,
        student=_student(model, max_length, pooling, lora),
        corpus={"path": data, "text": _columns(task, text), "label": label, **_AS_GIVEN},
        task={"kind": task, "alpha": 1.0, "encoding": encoding, "label": label, "validation": validation, "test": test},
        training={"epochs": 3, "batch_size": 16, **(training or {})},
        optimizer={"lr": RATE if lora is False else 1e-4, "heads_lr": 1e-3, **(optimizer or {})},
    )
    return target


def _finetune_into(target: Path, **sections: Any) -> None:
    """Fine-tune by a recipe of these sections, in a folder of its own beside the target, one call at a time."""
    with alone_in(target.absolute().parent, f".{target.name}.finetune.lock"):
        work = target.absolute().parent / f".{target.name}.finetune"
        try:
            _finetune(recipe_of(None, method="sft", output=work, **sections), target, work)
        finally:
            # Ours, and nothing to go on from.
            if folders.read(work) and not any(work.glob("checkpoints/checkpoint-*/trainer_state.json")):
                folders.remove_all(work)


def _finetune(recipe: Recipe, target: Path, work: Path) -> None:
    """Run the recipe and put its model in place, unless an equal call did so."""
    files, model = _files(recipe), str(given(recipe.student, "student").model)
    digest = _digest(recipe, files)
    if read_record(target / "task" / RECORD).get("digest") == digest:
        logger.info("%s is fine-tuned already, by an equal call; remove it to do it again", target)
        if folders.read(work).get("digest") == digest:  # that call was killed at its very end
            folders.remove_all(work)
        return
    if Path(model).expanduser().resolve() == target.expanduser().resolve():
        raise DistilvecError(
            "this is the model that is to be fine-tuned", where=str(target), remedy="Choose another output."
        )
    if (target / "modules.json").is_file():
        logger.warning("%s is of another call, and will be set aside when this one is done", target)
    begun = time.perf_counter()
    done = _run(_measured(recipe, len(files["train"])), digest)
    settings = {**_settings(recipe), "model": short_source(model)}  # it may be published
    seconds = round(time.perf_counter() - begun, 1)
    _keep(done, target, {"digest": digest, **settings, "seconds": seconds, **_scores(done, files)})
    folders.remove_all(work / "checkpoints")


def finetune_scores(folder: str | Path) -> dict[str, dict[str, float]]:
    """Return what `finetune` measured: "validation" and "test" -> metric -> value, where there was such data."""
    record = read_record(Path(folder) / "task" / RECORD)
    return {name: record[name]["scores"] for name in ("validation", "test") if name in record}


# what is asked


def _student(
    model: str | Path, max_length: int | None, pooling: PoolingChoice | None, lora: Lora | Mapping[str, Any] | bool
) -> dict[str, Any]:
    """The student section: a model that is trained."""
    length = {} if max_length is None else {"max_length": max_length, "extend_length": True}
    adapters = None if lora is False else {} if lora is True else dict(lora)
    return {"model": str(model), "pooling": pooling, "lora": adapters, **length}


def _columns(task: Kind, text: str | Sequence[str] | None) -> str | list[str]:
    """The text columns."""
    if task == "generation":
        raise DistilvecError(
            "a model that writes is fine-tuned by a recipe",
            where="task",
            remedy="Run a recipe with method sft, no teachers, and a task of kind generation.",
        )
    paired = task != "classification"
    columns = text if text is not None else ("text1", "text2") if paired else "text"
    columns = columns if isinstance(columns, str) else list(columns)
    if (not isinstance(columns, str) and len(columns) == 2) != paired:
        needed = "two text columns" if paired else "one text column"
        shown = columns if isinstance(columns, str) else " and ".join(columns)
        remedy = "Name both columns." if paired else "Set the task to pairs or similarity."
        raise DistilvecError(f"{task} reads {needed}, not {shown}", where="text", remedy=remedy)
    return columns


def _measured(recipe: Recipe, rows: int) -> Recipe:
    """The recipe, in which with validation data an evaluation per epoch chooses the best checkpoint."""
    training, task = recipe.training, given(recipe.task, "task")
    if task.validation is None:
        asked = [key for key in ("best", "evaluate_every", "patience") if getattr(training, key) is not None]
        if asked:
            raise DistilvecError(f"{asked[0]} needs validation data", where=f"training.{asked[0]}")
        return recipe
    known = metric_names(task.kind)
    best = (training.best or TABLE[task.kind].metric).removeprefix("eval_").removeprefix("task_")
    if best not in known:
        raise DistilvecError(f'there is no metric "{best}"', where="training.best", remedy=nearest(best, known))
    every = training.steps_per_epoch(rows)
    measures = {"best": f"task_{best}", "evaluate_every": training.evaluate_every or every}
    return recipe.model_copy(update={"training": training.model_copy(update=measures)})


def _files(recipe: Recipe) -> dict[str, Examples]:
    """The labelled files by use: "train", and "validation" and "test" where they are given."""
    corpus, task = given(recipe.corpus, "corpus"), given(recipe.task, "task")
    sources = {"train": corpus.path, "validation": task.validation, "test": task.test}
    label = corpus.label or "label"
    files = {name: read_examples(each, corpus.text, label) for name, each in sources.items() if each is not None}
    known = set(files["train"].inputs)
    for name in ("validation", "test"):
        if name in files and (count := sum(each in known for each in files[name].inputs)):
            logger.warning(
                "%d of %d items of the %s file are trained on too: scores on them flatter",
                count,
                len(files[name]),
                name,
            )
    return files


def _settings(recipe: Recipe, *, changed: bool = False) -> dict[str, Any]:
    """Return what was asked, as JSON values; of the sections all keys, or those that are not at their defaults."""
    corpus, student, task = given(recipe.corpus, "corpus"), given(recipe.student, "student"), given(recipe.task, "task")
    sections = {"lora": student.lora, "training": recipe.training, "optimizer": recipe.optimizer}
    return {
        "model": student.model,
        "task": task.model_dump(mode="json", exclude={"validation", "test"}, exclude_defaults=changed),
        "text": corpus.text,
        "label": corpus.label,
        "max_length": student.max_length,
        "pooling": student.pooling,
        **{
            name: None if section is None else section.model_dump(mode="json", exclude_defaults=changed)
            for name, section in sections.items()
        },
    }


def _digest(recipe: Recipe, files: Mapping[str, Examples]) -> str:
    """Equal for calls that give equal models: by content, because copied files are the same files.

    Keys at their defaults have no part in it, so that a key that a later version adds does not undo finished work.
    """
    settings = _settings(recipe, changed=True)
    if settings["optimizer"].get("lr") == RATE:  # as it was known while this was every recipe's rate
        del settings["optimizer"]["lr"]
    folder = Path(settings["model"])
    named = [file for kind in ("safetensors", "json") for file in folder.rglob(f"*.{kind}")]
    hashes = hash_files(folder, [file for file in named if file.is_file()])
    if hashes:
        settings.pop("model")
    contents = [(files[name].inputs, files[name].labels) if name in files else None for name in _USES]
    return fingerprint(settings, hashes, contents)


# what is done


def _run(recipe: Recipe, digest: str) -> Run:
    """Run it, or go on with what an equal call began; checkpoints of an unequal one are removed."""
    work, recipe = folders.claim(recipe.output), pin(recipe)
    if folders.read(work).get("digest") != digest:
        folders.remove_all(work / "checkpoints")
    folders.update(work, digest=digest, finished=False)  # that one was stopped at its end
    write_text(work / "recipe.yaml", recipe.to_yaml())  # an equal call's files may lie elsewhere now
    try:
        return run(recipe, resume=True)
    except Interrupted as stopped:
        remedy = "Run the same command again to go on."
        raise Interrupted(stopped.what, where=stopped.where, remedy=remedy, number=stopped.exit_code - 128) from stopped


def _scores(done: Run, files: Mapping[str, Examples]) -> dict[str, Any]:
    """Rows of each file, and the scores of the model as it was written."""
    by_file: dict[str, Any] = {
        name: {"rows": len(examples), "left_out": examples.left_out} for name, examples in files.items()
    }
    supervised = done.record["supervised"]
    measured = {"test": supervised.scores.get(TRAINED, {}) if supervised else {}}
    if "validation" in files:
        measured["validation"] = Predictor.load(done.folder / "student").evaluate(files["validation"])
    for name in files.keys() & measured.keys():
        scores = by_file[name]["scores"] = {metric: round(value, 5) for metric, value in measured[name].items()}
        shown = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items())
        logger.info("%s (%s rows): %s", name, f"{len(files[name]):,}", shown)
    return by_file


def _keep(done: Run, target: Path, record: Mapping[str, Any]) -> None:
    """Put the model where it belongs, with record and report."""
    student = done.folder / "student"
    try:
        write_record(student / "task" / RECORD, record)
        (student / REPORT).mkdir(exist_ok=True)
        for name in KEPT:
            if (done.folder / name).exists():
                (done.folder / name).rename(student / REPORT / name)
        put_in_place(student, target, keep=True)
    except OSError as error:
        after = "The same call then goes on."
        raise system_problem(error, "the model cannot be put into its place", target, after) from error
