"""The parts of `cross_tokenizer` without labels: `talas`'s comparison, DistillMoE's out-of-domain protocol."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from experiments.cross_tokenizer.rows import UNSUPERVISED
from experiments.harness.records import WORK, Results, Rows, committed
from experiments.harness.texts import shared_rows, write_rows
from experiments.talas.run import Bench
from experiments.talas.table import EXPERIMENT, ROWS

from distilvec.flow.start import make_student
from distilvec.flow.teach import Taught, teach_one, teacher_info
from distilvec.methods.table import build_method
from distilvec.recipe import TeacherSection
from distilvec.students import StudentTap
from distilvec.teachers import Reading
from distilvec.teachers.signals import NOTHING, Wanted
from distilvec.teachers.table import open_teacher

OUT_OF_DOMAIN = {"simcse": ROWS["simcse"], **UNSUPERVISED}


def joined(one: Wanted, other: Wanted) -> Wanted:
    """What either asks for."""
    return Wanted(
        tokens=tuple(sorted({*one.tokens, *other.tokens})),
        attention=tuple(sorted({*one.attention, *other.attention})),
        logits=one.logits or other.logits,
        alignment=tuple(dict.fromkeys([*one.alignment, *other.alignment])),
    )


def known(experiment: str) -> Rows:
    """Rows whose learning rate another part takes: the new ones, and committed ones where there are no new ones."""
    return {**committed(experiment), **Results(experiment).rows()}


class Unsupervised(Bench):
    """The comparison without labels of `talas`, for methods that look inside the teacher."""

    rows, like = UNSUPERVISED, {}
    part, work = "unsupervised/", WORK / "cross_tokenizer" / "unsupervised"

    def teach(self, section: TeacherSection) -> Taught:
        teacher = open_teacher(section, Reading())
        student = StudentTap(make_student(self.section, [], self.corpus, 0)).info
        wanted = NOTHING
        for method, options, _ in self.rows.values():
            needs = build_method(method, options).needs(student, [teacher_info(teacher)])
            wanted = joined(wanted, needs.of(0))
        return teach_one(section, self.corpus, self.work / "stores", teacher=teacher, wanted=wanted)


class OutOfDomain(Unsupervised):
    """DistillMoE's protocol: other training texts, the same nine sets; learning rates of the comparison above."""

    rows = OUT_OF_DOMAIN
    part, work = "out-of-domain/", WORK / "cross_tokenizer" / "out-of-domain"

    def tune(self, row: str, device: str | None) -> float:
        own = row in UNSUPERVISED
        name = f"{Unsupervised.part if own else ''}{self.name}/{row}-0"
        found = known(self.results.experiment if own else EXPERIMENT)
        if name not in found:
            raise SystemExit(f"Out of domain takes the learning rate of {row!r} from {name!r}: run that part first.")
        rate: float = found[name]["lr"]
        return rate

    def corpus_file(self) -> Path:
        file = self.work / "texts.jsonl"
        if not file.exists():
            write_rows(file, self._texts())
        return file

    @staticmethod
    def _texts() -> Iterable[dict[str, str]]:
        for name in ("banking77", "tweeteval_sentiment", "mrpc", "wic", "sick", "stsb"):
            rows = random.Random(0).sample(list(shared_rows(f"{name}.train")), 3000)
            for row in rows:
                yield from ({"text": row[key], "domain": name} for key in ("text", "text1", "text2") if key in row)
