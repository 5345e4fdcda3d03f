"""The identity of a comparison's results, by content: everything but the methods and the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distilvec.corpus import Corpus
from distilvec.flow.prepare import Teachers
from distilvec.flow.start import start_key
from distilvec.judging.identity import content_digest
from distilvec.judging.tasks import JudgingTask
from distilvec.recipe import Recipe, given
from distilvec.scorers.load import open_scorer
from distilvec.teachers.cards import hash_files


def comparison_identity(recipe: Recipe, corpus: Corpus, teachers: Teachers, tasks: Sequence[JudgingTask]) -> str:
    """32 hex digits, equal where corpus, teachers, scorers, untrained student, tasks and labelled files are equal.

    To be asked before the teacher settles what is right in a task (`settle_tasks`).
    """
    section, task = given(recipe.student, "student"), recipe.task
    folder = Path(section.model or "").expanduser()
    files = [file for file in folder.rglob("*") if file.is_file()] if section.model and folder.is_dir() else []
    if folder.is_file():  # of a pretrained network
        folder, files = folder.parent, [folder]
    seed = 0 if section.model else recipe.training.seed  # what is made by chance is another student with another
    student = [hash_files(folder, files), start_key(section, recipe.teachers, corpus, seed)]
    taught = [
        recipe.combine,
        *(
            [teacher.card.fingerprint, each.weight]
            for teacher, each in zip(teachers.each, recipe.teachers, strict=True)
        ),
    ]
    labelled = [Path(file) for file in (task.validation, task.test) if file] if task is not None else []
    supervised = None if task is None else task.model_dump(mode="json")
    scorers = [open_scorer(each).card.fingerprint for each in recipe.scorers]
    return content_digest([corpus.fingerprint, student, taught, scorers, list(tasks), supervised, labelled])
