"""The parts of cross_tokenizer.py without labels: talas_table.py's comparison, DistillMoE's out-of-domain protocol."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path

import talas_table
from common import WORK, Results, shared
from cross_rows import UNSUPERVISED
from records import Rows, committed

from distilvec.flow.start import make_student
from distilvec.flow.teach import Taught, teach_one, teacher_info
from distilvec.methods.table import build_method
from distilvec.recipe import TeacherSection
from distilvec.students import StudentTap
from distilvec.teachers import Reading
from distilvec.teachers.signals import NOTHING, Wanted
from distilvec.teachers.table import open_teacher

OUT_OF_DOMAIN = {"simcse": talas_table.ROWS["simcse"], **UNSUPERVISED}


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


class Unsupervised(talas_table.Bench):
    """The comparison without labels of talas_table.py, for methods that look inside the teacher."""

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
        found = known(self.results.experiment if own else talas_table.EXPERIMENT)
        if name not in found:
            raise SystemExit(f"Out of domain takes the learning rate of {row!r} from {name!r}: run that part first.")
        rate: float = found[name]["lr"]
        return rate

    def corpus_file(self) -> Path:
        file = self.work / "texts.jsonl"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(row) + "\n" for row in self._texts()), encoding="utf-8")
        return file

    @staticmethod
    def _texts() -> Iterable[dict[str, str]]:
        for name in ("banking77", "tweeteval_sentiment", "mrpc", "wic", "sick", "stsb"):
            with gzip.open(shared() / "data" / f"{name}.train.jsonl.gz", "rt", encoding="utf-8") as lines:
                rows = random.Random(0).sample([json.loads(line) for line in lines], 3000)
            for row in rows:
                yield from ({"text": row[key], "domain": name} for key in ("text", "text1", "text2") if key in row)
