"""Many models on many tasks: every distinct text is encoded once per model."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distilvec.errors import DistilvecError, nearest
from distilvec.judging.encoder import CachedEncoder
from distilvec.judging.loading import read_tasks
from distilvec.judging.scores import Difference, Score, alarm, can_be_kept, grouped, is_the_teachers
from distilvec.judging.tasks import JudgingTask, check_tasks
from distilvec.progress import Ticker
from distilvec.showing import Shown
from distilvec.words import points

logger = logging.getLogger(__name__)
#: From so many tasks on, lines say which of how many is finished.
MANY = 10
_AVERAGES = {"in": "in-domain", "out": "out-of-domain", "all": "average", "retrieval": "retrieval average"}


@dataclass(repr=False)
class Judgement(Shown):
    """All scores of a suite.

    Attributes:
        scores: model -> task -> score, in the order given.
        seconds: model -> time spent encoding.
        texts: model -> distinct texts encoded.
    """

    scores: dict[str, dict[str, Score]]
    seconds: dict[str, float] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)

    def averages(self, model: str) -> dict[str, float]:
        """Plain means over the tasks there are: `in`, `out`, `all` (without retrieval), `retrieval`."""
        return {key: float(np.mean([s.value for s in scores])) for key, scores in self._groups(model).items()}

    def retention(self, model: str, teacher: str) -> dict[str, float]:
        """Scores and averages in percent of the teacher's; left out where that is next to nothing, or may be."""
        own, other = (
            {name: (score.value, (score.interval or (None,))[0]) for name, score in self._of(each).items()}
            | {f"average:{name}": (value, None) for name, value in self.averages(each).items()}
            for each in (model, teacher)
        )
        kept = [name for name in own if name in other and can_be_kept(*other[name])]
        return {name: 100 * own[name][0] / other[name][0] for name in kept}

    def difference(self, a: str, b: str, group: str = "all") -> Difference:
        """a - b over the tasks of a group (`in`, `out`, `all`, `retrieval`) or of one task, with paired interval.

        Raises:
            DistilvecError: an unknown model, group or task.
        """
        from distilvec.judging.bootstrap import paired_bootstrap

        return paired_bootstrap(self._chosen(a, group), self._chosen(b, group))

    def paired(self, a: str, b: str, group: str = "all") -> bool:
        """Tell whether `difference` can compare two models: all their scores keep the results of enough items."""
        return all(score.pairable for model in (a, b) for score in self._chosen(model, group))

    def alarms(self, student: str, references: Sequence[str]) -> list[str]:
        """Sentences on where the student is not better than the untrained student or the free baseline.

        Args:
            references: names of the models it has to beat, on the average and on retrieval. What stands behind one that
                is the teacher itself was made of it: on its own search a student can only lose to both.
        """
        alarms = []
        for group, named in (("all", "the average"), ("retrieval", "retrieval")):
            for reference in references:
                own, other = self._groups(student).get(group), self._groups(reference).get(group)
                if not own or not other:
                    continue
                if is_the_teachers(other):
                    break
                gap = float(np.mean([s.value for s in own]) - np.mean([s.value for s in other]))
                paired = self.paired(student, reference, group)
                interval = self.difference(student, reference, group).interval if paired else None
                alarms += alarm(named, student, reference, gap, interval)
        return alarms

    def without(self, tasks: Sequence[JudgingTask], texts: Iterable[str]) -> Judgement:
        """The same scores on the test items none of whose texts is in `texts`, without encoding again.

        A task of which nothing is left that its metric could be taken of, or that keeps no per-item results, is left
        out of all models' scores, and a warning names it.

        Args:
            texts: for example the training corpus; compared case-folded.

        Raises:
            DistilvecError: a task is missing, or nothing is left of any.
        """
        by_name, left_out = {task.name: task for task in tasks}, list(texts)
        names = dict.fromkeys(name for by_task in self.scores.values() for name in by_task)
        if missing := sorted(names.keys() - by_name.keys()):
            raise DistilvecError(f"the tasks {', '.join(missing)} were judged but not given")
        scores: dict[str, dict[str, Score]] = {model: {} for model in self.scores}
        reasons: dict[str, str] = {}
        for name in names:
            judged = {model: by_task[name] for model, by_task in self.scores.items() if name in by_task}
            try:
                found = {model: by_name[name].without(score, left_out) for model, score in judged.items()}
            except DistilvecError as error:
                reasons[name] = error.what
                continue
            undefined = [score.metric for score in found.values() if not np.isfinite(score.value)]
            if undefined:
                reasons[name] = f"of the items that are left {undefined[0]} is not defined"
                continue
            for model, score in found.items():
                scores[model][name] = score
        if reasons and not any(scores.values()):
            raise DistilvecError("; ".join(f"{name}: {why}" for name, why in reasons.items()), where="without")
        for name, why in reasons.items():
            logger.warning("%s is left out: %s", name, why)
        return Judgement(scores, dict(self.seconds), dict(self.texts))

    def text(self) -> str:
        """A line per model and task: metric, score and interval, times 100; then the model's averages."""
        rows = []
        for model, by_task in self.scores.items():
            for name, score in by_task.items():
                span = " to ".join(map(points, score.interval)) if score.interval else ""
                rows.append((model, name, score.metric, points(score.value), span))
            averages = self.averages(model).items() if len(by_task) > 1 else ()
            rows += [(model, _AVERAGES[group], "", points(value), "") for group, value in averages]
        widths = [max(len(row[place]) for row in rows) for place in range(4)] if rows else []
        return "\n".join("  ".join([*map(str.ljust, row[:4], widths), row[4]]).rstrip() for row in rows)

    def _named(self) -> str:
        tasks = {task for by_task in self.scores.values() for task in by_task}
        return f"{', '.join(self.scores)}: {len(tasks)} tasks"

    def to_dict(self, outputs: bool = False) -> dict[str, Any]:
        """JSON values, with per-item results where asked."""
        return {
            "scores": {
                model: {task: score.to_dict(outputs) for task, score in by_task.items()}
                for model, by_task in self.scores.items()
            },
            "averages": {model: self.averages(model) for model in self.scores},
            "seconds": self.seconds,
            "texts": self.texts,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Judgement:
        scores = {
            model: {task: Score.from_dict(score) for task, score in by_task.items()}
            for model, by_task in data["scores"].items()
        }
        return cls(scores, dict(data.get("seconds", {})), dict(data.get("texts", {})))

    def _of(self, model: str) -> dict[str, Score]:
        if model not in self.scores:
            raise DistilvecError(f'no model "{model}" was judged', remedy=nearest(model, self.scores))
        return self.scores[model]

    def _groups(self, model: str) -> dict[str, list[Score]]:
        return grouped(self._of(model).values())

    def _chosen(self, model: str, group: str) -> list[Score]:
        groups, scores = self._groups(model), self._of(model)
        if group not in groups and group not in scores:
            raise DistilvecError(f'no task or group "{group}"', remedy=nearest(group, [*groups, *scores]))
        return groups[group] if group in groups else [scores[group]]


def judge(
    models: Mapping[str, Any],
    tasks: Any,
    *,
    batch_size: int = 64,
    progress: Callable[[str, Score], None] | None = None,
) -> Judgement:
    """Score models on tasks.

    Args:
        models: name -> `SentenceTransformer`, `Teacher`, function, `RidgeMapped` or a `CachedEncoder` (used
            as it is, so that its vectors can be kept for agreement and collapse).
        tasks: one or several of: name, file or description (dictionary), and from `talas_tasks` or constructed; names
            differ.
        batch_size: of `SentenceTransformer`s.
        progress: called with the model's name after every score.

    Raises:
        DistilvecError: no tasks, one that cannot be read, or two of one name; whatever a task raises.
    """
    tasks = read_tasks(tasks)
    if not tasks:
        raise DistilvecError("there are no tasks to judge on", where="tasks", remedy="Give at least one task.")
    result = Judgement({})
    for name, model in models.items():
        check_tasks(tasks, CachedEncoder.of(model, name))
    ticker, done = Ticker("judging", "scores", kept=False), 0
    for name, model in models.items():
        encoder = CachedEncoder.of(model, name, batch_size)  # its vectors go when it goes
        result.scores[name] = {}
        for number, task in enumerate(tasks, start=1):
            ticker(done, len(models) * len(tasks), f"{task.name} of {name}")
            begun, done = time.perf_counter(), done + 1
            score = task.score(encoder)
            result.scores[name][task.name] = score
            taken = time.perf_counter() - begun
            place = f" {number}/{len(tasks)}" if len(tasks) >= MANY else ""
            logger.info("%s,%s %s: %s %.4f (%.1f s)", name, place, task.name, score.metric, score.value, taken)
            if progress is not None:
                progress(name, score)
        result.seconds[name], result.texts[name] = encoder.seconds, encoder.encoded
    ticker(done, done)
    return result
