"""All that is judged at the end of a run: scores, agreement, collapse and speed of teacher and student."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from distilvec.evenly import evenly_spaced
from distilvec.judging.agreement import agreement
from distilvec.judging.collapse import collapse
from distilvec.judging.encoder import CachedEncoder, RidgeMapped
from distilvec.judging.hardest import HardItem, hardest
from distilvec.judging.shared import SharedNeighbours, shared_neighbours
from distilvec.judging.speed import speed
from distilvec.judging.suite import Judgement, alarm, judge
from distilvec.judging.tasks import JudgingTask, settle_tasks

#: Names of the rows that every report has, beside the teacher's.
UNTRAINED, FREE, TRAINED = "untrained student", "free baseline", "student"
#: Held-out items that student and teacher are compared on, at least.
FEWEST = 20
#: Share of the teacher's neighbours beyond which an untrained student is the teacher itself; a store rounds.
_THE_SAME = 0.99


@dataclass
class Verdict:
    """What judging found.

    Attributes:
        judged: scores of every model; None without tasks.
        agreement: of the student with the teacher on held-out texts.
        neighbours: untrained student, free baseline and student -> the teacher's nearest neighbours among the held-out
            texts, and the model's.
        hardest: the held-out texts on which student and teacher disagree most.
        collapse: model -> signs of collapse on held-out texts.
        speed: model -> latency and throughput.
        vectors: model -> [n, width] of the held-out texts.
        alarms: sentences.
        seconds: all of it.
    """

    judged: Judgement | None = None
    agreement: dict[str, Any] = field(default_factory=dict)
    neighbours: dict[str, SharedNeighbours] = field(default_factory=dict)
    hardest: list[HardItem] = field(default_factory=list)
    collapse: dict[str, dict[str, Any]] = field(default_factory=dict)
    speed: dict[str, dict[str, Any]] = field(default_factory=dict)
    vectors: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)
    seconds: float = 0.0


def too_few(held: int) -> str:
    """That so many held-out items tell nothing, as dry run, log and report say it."""
    counted = "1 held-out item is" if held == 1 else f"{held} held-out items are"
    return f"{counted} too few to compare student and teacher on; {FEWEST} are needed"


def judge_run(
    models: Mapping[str, Any],
    tasks: Sequence[JudgingTask],
    texts: Sequence[str],
    teacher_vectors: npt.NDArray[Any] | None,
    *,
    teacher: str | None,
    teacher_map: npt.NDArray[Any] | None = None,
    shared_space: bool = False,
    with_agreement: bool = True,
    with_speed: bool = True,
    timed: Mapping[str, Any] | None = None,
    timed_texts: int = 256,
) -> Verdict:
    """Judge teacher, untrained student, free baseline and student by the same code.

    Args:
        models: name -> model; `UNTRAINED`, `FREE` and `TRAINED` are looked for by name.
        tasks: may be empty.
        texts: held-out texts, for agreement, collapse and speed; may be empty.
        teacher_vectors: [n, D] of these texts; None without a teacher.
        teacher: the teacher's name; None without one.
        teacher_map: see `agreement`.
        shared_space: the student lives in the teacher's space.
        with_agreement, with_speed: the recipe's switches; collapse is looked for in any case.
        timed: name -> what is timed, through the same `encode` for all; None = the models. A teacher that is not in it
            has no speed.
        timed_texts: how many texts the throughput is measured on.
    """
    begun = time.perf_counter()
    verdict = Verdict()
    encoders = {
        name: model if isinstance(model, CachedEncoder | RidgeMapped) else CachedEncoder(model, name=name)
        for name, model in models.items()
    }
    if tasks:
        if teacher in encoders:
            settle_tasks(tasks, encoders[teacher])
        verdict.judged = judge(encoders, tasks)
        references = [name for name in (UNTRAINED, FREE) if name in encoders]
        verdict.alarms += verdict.judged.alarms(TRAINED, references)
    if len(texts) >= FEWEST:
        verdict.vectors = {name: encoders[name](texts) for name in (UNTRAINED, TRAINED) if name in encoders}
        if with_agreement and teacher is not None and teacher_vectors is not None:
            verdict.vectors[teacher] = teacher_vectors
            verdict.agreement = agreement(
                teacher_vectors, verdict.vectors[TRAINED], teacher_map, shared_space=shared_space
            )
            verdict.hardest = hardest(texts, teacher_vectors, verdict.vectors[TRAINED])
            ours = {name: encoders[name](texts) for name in (UNTRAINED, FREE, TRAINED) if name in encoders}
            verdict.neighbours = {name: shared_neighbours(teacher_vectors, vectors) for name, vectors in ours.items()}
            untrained = verdict.neighbours.get(UNTRAINED)
            # Tasks say it better, and a student that starts as its teacher can only lose by this measure.
            if not tasks and not (untrained is not None and untrained.value > _THE_SAME):
                for name in (each for each in ours if each != TRAINED):
                    gap = verdict.neighbours[TRAINED].minus(verdict.neighbours[name])
                    verdict.alarms += alarm("the teacher's nearest neighbours", TRAINED, name, gap.value, gap.interval)
        verdict.collapse = {name: collapse(vectors) for name, vectors in verdict.vectors.items()}
        verdict.alarms += verdict.collapse[TRAINED].pop("alarms", [])
    if with_agreement and not tasks and not verdict.agreement:
        few = teacher is not None and len(texts) < FEWEST
        why = too_few(len(texts)) if few else "there is nothing to measure it by"
        verdict.alarms.append(
            f"Nothing says how good the student is: {why}. Give more texts, a larger corpus.holdout, or judging.tasks."
        )
    if with_speed and len(texts):
        sample = [texts[row] for row in evenly_spaced(len(texts), timed_texts)]
        for name, model in (models if timed is None else timed).items():
            if name in (teacher, TRAINED):
                verdict.speed[name] = speed(model, sample, seconds=2.0)
    verdict.seconds = time.perf_counter() - begun
    return verdict
