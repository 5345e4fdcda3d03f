"""What a comparison's results hold for, by content: everything but the methods and the seeds."""

from __future__ import annotations

from pathlib import Path

from distilvec.flow.job import Job
from distilvec.flow.start import start_key
from distilvec.judging.identity import content_digest
from distilvec.teachers.cards import hash_files


def comparison_identity(job: Job) -> str:
    """32 hex digits, equal where corpus, teachers, scorers, untrained student, tasks and labelled files are equal.

    To be asked before the teacher settles what is right in a task (`Job.settle_tasks`).
    """
    section, task = job.student_section, job.recipe.task
    folder = Path(section.model or "").expanduser()
    files = [file for file in folder.rglob("*") if file.is_file()] if section.model and folder.is_dir() else []
    if folder.is_file():  # of a pretrained network
        folder, files = folder.parent, [folder]
    seed = 0 if section.model else job.recipe.training.seed  # what is made by chance is another student with another
    student = [hash_files(folder, files), start_key(section, job.recipe.teachers, job.corpus, seed)]
    teachers = [
        job.recipe.combine,
        *([teacher.card.fingerprint, each.weight] for teacher, each in zip(job.teachers, job.recipe.teachers)),
    ]
    labelled = [Path(file) for file in (task.validation, task.test) if file] if task is not None else []
    supervised = None if task is None else task.model_dump(mode="json")
    scorers = [scorer.card.fingerprint for scorer in job.scorers]
    return content_digest([job.corpus.fingerprint, student, teachers, scorers, job.tasks, supervised, labelled])
