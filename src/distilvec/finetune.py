"""Fine-tune a model on a labelled file: the supervised teacher, ready to be frozen, or a model for its own sake.

What comes out is a plain sentence-transformers folder, with the task's head and `finetune.json` (scores and settings)
in `task/`. Checkpoints lie beside it while it is made; the same call goes on from them, or finds the work done.
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor
from transformers import EarlyStoppingCallback, set_seed

from distilvec.allocator import keep_freed_memory
from distilvec.errors import DataError, DistilvecError, Interrupted, nearest
from distilvec.interruption import StopSignals
from distilvec.modules.blocks import find_transformer
from distilvec.modules.lora import add_lora, merge_lora
from distilvec.modules.pipeline import PoolingChoice
from distilvec.modules.task_head import Encoding
from distilvec.recipe import OptimizerSection, TrainingSection
from distilvec.report.parts import short_source
from distilvec.students import check_place, load_student, ship
from distilvec.students.tap import StudentTap
from distilvec.tasks.base import Task
from distilvec.tasks.examples import Examples, read_examples
from distilvec.tasks.labels import class_names, encode_labels
from distilvec.tasks.predictor import Predictor
from distilvec.tasks.scores import metric_names
from distilvec.tasks.section import Kind, TaskSection
from distilvec.tasks.table import build_task, resolve
from distilvec.teachers.cards import fingerprint, hash_files, licence_of
from distilvec.training.arguments import steps_per_epoch, training_arguments
from distilvec.training.callbacks import Progress, RunLog, StopPolitely, Ticker
from distilvec.training.checkpoints import newest_checkpoint, tidy
from distilvec.training.finetuner import TaskModel, TaskTrainer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
RECORD, MARK = "finetune.json", "digest"


class Lora(BaseModel):
    """Low-rank adapters beside every linear map; the defaults are those of EMO and DistillMoE."""

    model_config = ConfigDict(extra="forbid")

    rank: int = Field(256, gt=0)
    alpha: float = Field(32, gt=0, description="adapters count alpha / rank")
    dropout: float = Field(0.1, ge=0, lt=1)


@dataclass(frozen=True)
class _Plan:
    """What is done, as the arguments say it."""

    model: str
    task: TaskSection
    text: str | tuple[str, ...]
    label: str
    max_length: int | None
    pooling: PoolingChoice | None
    lora: Lora | None
    training: TrainingSection
    optimizer: OptimizerSection

    def settings(self, *, changed: bool = False) -> dict[str, Any]:
        """As JSON values; of the sections all keys, or those that are not at their defaults."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            name: value.model_dump(mode="json", exclude_defaults=changed) if isinstance(value, BaseModel) else value
            for name, value in found.items()
        }


@dataclass(frozen=True)
class _Data:
    train: Examples
    validation: Examples | None
    test: Examples | None


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
        data: labelled texts, whatever `read_corpus` takes.
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
        DistilvecError: arguments that make no sense, or no such model.
        DataError: a labelled file that cannot be used.
        EnvironmentProblem: peft is missing, or no room.
        Interrupted: Ctrl-C or SIGTERM, after a checkpoint is saved; the same call goes on.
    """
    target = Path(output)
    plan = _plan(model, task, text, label, encoding, max_length, pooling, lora, training, optimizer)
    files = [None if each is None else read_examples(each, plan.text, label) for each in (data, validation, test)]
    assert files[0] is not None
    found = _Data(files[0], files[1], files[2])
    digest = _digest(plan, files)
    if _is_done(target, digest):
        logger.info("%s is fine-tuned already, by an equal call; remove it to do it again", target)
        return target
    if Path(model).expanduser().resolve() == target.expanduser().resolve():
        raise DistilvecError(
            "this is the model that is to be fine-tuned", where=str(target), remedy="Choose another output."
        )
    _check_labels(plan, found)
    if (target / "modules.json").is_file():
        logger.warning("%s is of another call, and will be replaced when this one is done", target)
    work = _work_folder(target, digest)
    start = time.perf_counter()
    try:
        student, trained = _train(plan, found, work)
    except BaseException:
        if {each.name for each in work.iterdir()} <= {MARK}:  # nothing to go on from
            shutil.rmtree(work, ignore_errors=True)
        raise
    seconds = time.perf_counter() - start
    ship(student, target)
    trained.head.save(target)
    _write_card(target, plan, found)
    settings = {**plan.settings(), "model": short_source(plan.model)}  # it may be published
    record = {"digest": digest, **settings, "seconds": round(seconds, 1), **_scores(target, found)}
    _write(target / "task" / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    shutil.rmtree(work, ignore_errors=True)
    return target


def finetune_scores(folder: str | Path) -> dict[str, dict[str, float]]:
    """What `finetune` measured: "validation" and "test" -> metric -> value, where there was such data."""
    record = json.loads((Path(folder) / "task" / RECORD).read_text(encoding="utf-8"))
    return {name: record[name]["scores"] for name in ("validation", "test") if name in record}


# arguments


def _plan(
    model: str | Path,
    task: Kind,
    text: str | Sequence[str] | None,
    label: str,
    encoding: Encoding | None,
    max_length: int | None,
    pooling: PoolingChoice | None,
    lora: Lora | Mapping[str, Any] | bool,
    training: Mapping[str, Any] | None,
    optimizer: Mapping[str, Any] | None,
) -> _Plan:
    section = _valid(TaskSection, {"kind": task, "label": label, "alpha": 1.0, "encoding": encoding}, "task")
    adapters = None if lora is False else _valid(Lora, {} if lora is True else lora, "lora")
    columns = text if text is not None else ("text1", "text2") if section.paired else "text"
    columns = columns if isinstance(columns, str) else tuple(columns)
    if (not isinstance(columns, str) and len(columns) == 2) != section.paired:
        needed = "two text columns" if section.paired else "one text column"
        given = columns if isinstance(columns, str) else " and ".join(columns)
        remedy = "Set the task to pairs or similarity." if not section.paired else "Name both columns."
        raise DistilvecError(f"{task} reads {needed}, not {given}", where="text", remedy=remedy)
    rates = {"lr": 2e-5 if adapters is None else 1e-4, "heads_lr": 1e-3}
    return _Plan(
        model=str(model),
        task=section,
        text=columns,
        label=label,
        max_length=max_length,
        pooling=pooling,
        lora=adapters,
        training=_valid(TrainingSection, {"epochs": 3, "batch_size": 16, **(training or {})}, "training"),
        optimizer=_valid(OptimizerSection, {**rates, **(optimizer or {})}, "optimizer"),
    )


def _valid(schema: type[Any], given: Any, where: str) -> Any:
    try:
        return schema.model_validate(given if isinstance(given, schema) else dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([where, *map(str, first["loc"])])
        raise DistilvecError(first["msg"].removeprefix("Value error, "), where=place) from error


def _digest(plan: _Plan, files: Sequence[Examples | None]) -> str:
    """Equal for calls that give equal models: by content, because copied files are the same files.

    Keys at their defaults have no part in it, so that a key that a later version adds does not undo finished work.
    """
    settings, folder = plan.settings(changed=True), Path(plan.model)
    hashes = hash_files(folder, [file for kind in ("safetensors", "json") for file in folder.rglob(f"*.{kind}")])
    if hashes:
        settings.pop("model")
    return fingerprint(settings, hashes, [None if file is None else (file.inputs, file.labels) for file in files])


def _is_done(target: Path, digest: str) -> bool:
    """Whether an equal call finished this folder.

    Raises:
        DistilvecError: something that is not a model lies there.
    """
    check_place(target)
    try:
        record = json.loads((target / "task" / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(record.get("digest") == digest)


def _work_folder(target: Path, digest: str) -> Path:
    """Where checkpoints lie; those of an unequal call are removed."""
    work = target.absolute().parent / f".{target.name}.finetune"
    mark = work / MARK
    if not mark.is_file() or mark.read_text() != digest:
        shutil.rmtree(work, ignore_errors=True)
        _write(mark, digest)
    return work


# training


def _train(plan: _Plan, data: _Data, work: Path) -> tuple[SentenceTransformer, Task]:
    """Train, or go on; the model is merged and holds the weights to keep."""
    settings = _settings(plan, data)
    args = training_arguments(settings, plan.optimizer, work / "checkpoints", len(data.train))
    if args.world_size > 1:
        raise DistilvecError("fine-tuning runs in one process", remedy="Start it without torchrun.")
    set_seed(settings.seed)
    student = load_student(plan.model, max_length=plan.max_length, pooling=plan.pooling, device=str(args.device))
    if args.device.type == "cpu":
        keep_freed_memory()
    task, labels = _make_task(plan, data.train, StudentTap(student).info.width)
    adapted = _adapt(student, plan)
    task.to(args.device)
    validation = data.validation
    checkpoints = work / "checkpoints"
    tidy(checkpoints, resume=True)
    checkpoint = newest_checkpoint(checkpoints)
    args.eval_on_start = args.eval_on_start and checkpoint is None
    trainer = TaskTrainer(
        TaskModel(student, task),
        args,
        data.train,
        labels,
        heads_lr=plan.optimizer.heads_lr,
        measure=None if validation is None else lambda: Predictor(student, task.head).evaluate(validation),
        callbacks=_callbacks(settings, work, checkpoint),
    )
    _run(trainer, checkpoint)
    if adapted is not None:
        merge_lora(adapted)
    student.eval()
    return student, task


def _settings(plan: _Plan, data: _Data) -> TrainingSection:
    """The training section; with validation data an evaluation per epoch chooses the best checkpoint."""
    if plan.optimizer.sharpness is not None:
        raise DistilvecError("fine-tuning takes plain steps only", where="optimizer.sharpness", remedy="Leave it out.")
    if plan.training.arguments.get("push_to_hub"):
        raise DistilvecError("a fine-tuned model is not uploaded", where="training.push_to_hub", remedy="Leave it out.")
    settings = plan.training.model_copy()
    if data.validation is None:
        asked = [key for key in ("best", "evaluate_every", "patience") if getattr(settings, key) is not None]
        if asked:
            raise DistilvecError(f"{asked[0]} needs validation data", where=f"training.{asked[0]}")
        return settings
    accumulation = settings.arguments.get("gradient_accumulation_steps", 1)
    every = steps_per_epoch(len(data.train), settings.batch_size, accumulation)
    settings.evaluate_every = settings.evaluate_every or every
    settings.best = settings.best or resolve(plan.task.kind).metric
    best, known = settings.best.removeprefix("eval_"), metric_names(plan.task.kind)
    if best not in known:
        raise DistilvecError(f'there is no metric "{best}"', where="training.best", remedy=nearest(best, known))
    return settings


def _make_task(plan: _Plan, examples: Examples, width: int) -> tuple[Task, Tensor]:
    """The task with a fresh head, and the labels as its loss takes them."""
    if plan.task.kind == "similarity":
        scores = examples.numbers().astype(np.float32)
        return build_task(plan.task, width, scores), torch.from_numpy(scores)
    _refuse_scores(examples)
    names = class_names(examples.labels)
    codes = encode_labels(examples.labels, names, examples.source)
    return build_task(plan.task, width, codes, names), torch.from_numpy(codes)


def _check_labels(plan: _Plan, data: _Data) -> None:
    """What is wrong with the labels is said before anything is trained."""
    head = _make_task(plan, data.train, 1)[0].head
    for examples in (data.validation, data.test):
        if examples is not None:
            examples.targets(head)


def _refuse_scores(examples: Examples) -> None:
    try:
        numbers = examples.numbers()
    except DataError:
        return
    if (numbers != np.round(numbers)).any():
        raise DistilvecError(
            "the labels are scores, not classes", where=examples.source, remedy="Choose the task similarity."
        )


def _adapt(student: SentenceTransformer, plan: _Plan) -> Any:
    """Adapters where they are asked for, else None."""
    if plan.lora is None:
        return None
    transformer = find_transformer(student)
    if transformer is None:
        raise DistilvecError("this model has no transformer to put adapters in", where=plan.model)
    return add_lora(transformer.model, **plan.lora.model_dump())


def _callbacks(settings: TrainingSection, work: Path, checkpoint: Path | None) -> list[Any]:
    step = int(checkpoint.name.removeprefix("checkpoint-")) if checkpoint else None
    found: list[Any] = [Progress(Ticker("fine-tuning", "steps")), RunLog(work / "run.jsonl", step)]
    return [*found, *([EarlyStoppingCallback(settings.patience)] if settings.patience else [])]


def _run(trainer: TaskTrainer, checkpoint: Path | None) -> None:
    with StopSignals() as signals:
        polite = StopPolitely(signals)
        trainer.add_callback(polite)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if polite.stopped or signals.number is not None:
        raise Interrupted(
            f"stopped by {signals.name} at step {trainer.state.global_step} of {trainer.state.max_steps}; a checkpoint "
            "is saved",
            where=str(trainer.home),
            remedy="Run the same command again to go on.",
            number=signals.number or signal.SIGINT,
        )


# what is left


def _scores(folder: Path, data: _Data) -> dict[str, Any]:
    """Rows of each file, and the scores of the model as it was written."""
    predictor = Predictor.load(folder)
    found: dict[str, Any] = {"train": {"rows": len(data.train), "left_out": data.train.left_out}}
    for name, examples in (("validation", data.validation), ("test", data.test)):
        if examples is not None:
            scores = {metric: round(value, 5) for metric, value in predictor.evaluate(examples).items()}
            found[name] = {"rows": len(examples), "left_out": examples.left_out, "scores": scores}
            shown = ", ".join(f"{metric} {value:.4f}" for metric, value in scores.items())
            logger.info("%s (%s rows): %s", name, f"{len(examples):,}", shown)
    return found


def _write_card(folder: Path, plan: _Plan, data: _Data) -> None:
    """A short card; it keeps the licence of the model that this one was made from."""
    local = Path(plan.model).is_dir()
    facts = {
        "base_model": None if local else plan.model,
        "license": licence_of(Path(plan.model)) if local else None,
    }
    head = ["---", *(f"{key}: {json.dumps(value)}" for key, value in facts.items() if value)]
    body = [
        f"# {Path(plan.model).name}, fine-tuned ({plan.task.kind})",
        "",
        f"Trained on {len(data.train):,} labelled rows of {Path(data.train.source).name} with `distilvec finetune`.",
        "A plain sentence-transformers model; its task head, label names and scores are in `task/`.",
    ]
    _write(folder / "README.md", "\n".join([*head, "---", "", *body, ""]))


def _write(file: Path, content: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(content, encoding="utf-8")
    partial.replace(file)
