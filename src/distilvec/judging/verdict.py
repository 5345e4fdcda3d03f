"""All that is judged at the end of a run: scores, agreement, collapse and speed of teacher and student."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from distilvec.evenly import evenly_spaced
from distilvec.judging.agreement import agreement
from distilvec.judging.collapse import collapse
from distilvec.judging.encoder import CachedEncoder, RidgeMapped
from distilvec.judging.scores import THE_SAME, alarm
from distilvec.judging.shared import HardItem, SharedNeighbours, hardest, shared_neighbours
from distilvec.judging.speed import speed
from distilvec.judging.tasks import JudgingTask, settle_tasks

if TYPE_CHECKING:
    from distilvec.judging.suite import Judgement

#: Names of the rows that every report has, beside the teacher's.
UNTRAINED, FREE, TRAINED = "untrained student", "free baseline", "student"
#: The student's queries among the teacher's documents, where both share a space.
ON_INDEX = "student on the teacher's index"
#: Held-out items that student and teacher are compared on, at least.
FEWEST = 20
#: Texts that throughput is measured on.
TIMED = 256


@dataclass
class Verdict:
    """The results of judging a student.

    Attributes:
        judged: scores of every model; None without tasks.
        agreement: of the student with the teacher on held-out texts.
        neighbours: untrained student, free baseline and student -> the teacher's nearest neighbours among the held-out
            texts, and the model's.
        hardest: the held-out texts on which student and teacher disagree most.
        collapse: model -> signs of collapse on held-out texts.
        speed: model -> latency and throughput.
        vectors: model -> [n, width] of the held-out texts.
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


@dataclass(frozen=True)
class HeldOutTexts:
    """Held-out texts, and how a teacher's vectors of them are compared with a student's.

    Attributes:
        texts: may be empty.
        vectors: [n, D], the teacher's; None without a teacher.
        teacher: its name; None without one.
        teacher_map: see `agreement`.
        shared_space: the student lives in the teacher's space.
    """

    texts: Sequence[str] = ()
    vectors: npt.NDArray[Any] | None = None
    teacher: str | None = None
    teacher_map: npt.NDArray[Any] | None = None
    shared_space: bool = False


def judge_run(
    models: Mapping[str, Any],
    tasks: Sequence[JudgingTask],
    held_out: HeldOutTexts,
    *,
    with_agreement: bool = True,
    timed: Mapping[str, Any] | None = None,
) -> Verdict:
    """Judge teacher, untrained student, free baseline and student by the same code.

    Args:
        models: name -> model; `UNTRAINED`, `FREE` and `TRAINED` are looked for by name.
        tasks: may be empty.
        held_out: for agreement, collapse and speed.
        with_agreement: compare with the teacher; collapse is looked for in any case.
        timed: name -> what is timed, through the same `encode` for all.
    """
    begun = time.perf_counter()
    verdict, texts = Verdict(), held_out.texts
    encoders = {
        name: model if isinstance(model, RidgeMapped) else CachedEncoder.of(model, name)
        for name, model in models.items()
    }
    if tasks:
        from distilvec.judging.suite import judge

        if held_out.teacher in encoders:
            settle_tasks(tasks, encoders[held_out.teacher])
        verdict.judged = judge(encoders, tasks)
        references = [name for name in (UNTRAINED, FREE) if name in encoders]
        verdict.alarms += verdict.judged.alarms(TRAINED, references)
    if len(texts) >= FEWEST:
        verdict.vectors = {name: encoders[name](texts) for name in (UNTRAINED, TRAINED) if name in encoders}
        if with_agreement and held_out.teacher is not None and held_out.vectors is not None:
            _compare(verdict, encoders, held_out, alarms=not tasks)
        verdict.collapse = {name: collapse(vectors) for name, vectors in verdict.vectors.items()}
        verdict.alarms += verdict.collapse[TRAINED].pop("alarms", [])
    if timed and len(texts):
        sample = [texts[row] for row in evenly_spaced(len(texts), TIMED)]
        verdict.speed = {name: speed(model, sample, seconds=1.0) for name, model in timed.items()}
    verdict.seconds = time.perf_counter() - begun
    return verdict


def _compare(verdict: Verdict, encoders: Mapping[str, Any], held_out: HeldOutTexts, *, alarms: bool) -> None:
    """Compare all models with the teacher on the held-out texts; `alarms`: no task says better who is behind."""
    trained, vectors = verdict.vectors[TRAINED], held_out.vectors
    assert held_out.teacher is not None and vectors is not None
    verdict.vectors[held_out.teacher] = vectors
    verdict.agreement = agreement(vectors, trained, held_out.teacher_map, shared_space=held_out.shared_space)
    verdict.hardest = hardest(held_out.texts, vectors, trained)
    ours = {name: encoders[name](held_out.texts) for name in (UNTRAINED, FREE, TRAINED) if name in encoders}
    verdict.neighbours = {name: shared_neighbours(vectors, each) for name, each in ours.items()}
    untrained = verdict.neighbours.get(UNTRAINED)
    if not alarms or (untrained is not None and untrained.value > THE_SAME):
        return  # a student that starts as its teacher can only lose by this measure
    for name in (each for each in ours if each != TRAINED):
        gap = verdict.neighbours[TRAINED].minus(verdict.neighbours[name])
        verdict.alarms += alarm("the teacher's nearest neighbours", TRAINED, name, gap.value, gap.interval)
