"""One recipe, opened: every part is made once, when first asked for, and is the same object for everybody."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from distilvec.corpus import Corpus, read_corpus
from distilvec.corpus.key_set import distinct_rows
from distilvec.errors import DistilvecError
from distilvec.evenly import sampled_rows
from distilvec.flow.combine import CombinedTeacher, combine
from distilvec.flow.score import QueryDocuments, ScoredCorpus, open_scorer, score_one, scores_of
from distilvec.flow.start import Start, student_start
from distilvec.flow.teach import Taught, class_order, open_teacher, teach_one, teacher_info
from distilvec.flow.writing import check_writing, writing_tasks
from distilvec.judging import automatic_tasks, load_tasks, settle_tasks
from distilvec.judging.tasks import JudgingTask
from distilvec.locking import locked
from distilvec.marker import claim
from distilvec.methods.base import Method, Needs
from distilvec.methods.code import code_of
from distilvec.methods.contract import check_needs
from distilvec.methods.table import build_method, resolve
from distilvec.methods.token_states import check_pieces
from distilvec.modules.blocks import find_writer
from distilvec.modules.lora import check_lora
from distilvec.modules.routing import hand_out_routing
from distilvec.recipe import CorpusSection, Recipe, ScorerSection, StudentSection, TeacherSection, given
from distilvec.scorers.base import Scorer
from distilvec.store import SignalStore
from distilvec.store.remote import mirrored
from distilvec.students import StudentTap
from distilvec.students.output import StudentInfo
from distilvec.students.ship import refuse_foreign
from distilvec.tasks.base import Task
from distilvec.tasks.table import build_task
from distilvec.teachers import Teacher, TeacherInfo
from distilvec.teachers.signals import NOTHING, Wanted
from distilvec.training import SignalSource, Ticker
from distilvec.training.items import check_modality
from distilvec.training.step import check_caching, describe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
#: How a store keeps vectors, from coarse to exact.
_FINER = ("int8", "float16", "float32")
#: What each command must find in a recipe, "or" of two. `teachers` is for the methods that learn from one.
REQUIRED: dict[str, tuple[str, ...]] = {
    "run": ("corpus", "teachers or student"),
    "train": ("corpus", "teachers or student"),
    "compare": ("corpus", "teachers or student"),
    "dry-run": ("corpus", "teachers or student"),
    "teach": ("corpus", "teachers or scorers"),
    "mine": ("corpus", "teachers"),
    "plan": ("corpus", "teachers"),
    "scale": ("corpus", "teachers"),
}


class Job:
    """A recipe and all that it stands for.

    Seeds are set in one place, in this order: student (`student`), head of the task (`task`), heads of the method
    (when training builds them).

    Args:
        recipe: what is to be done.
        resume: go on where an interrupted training stopped.

    Attributes:
        output: the run's folder.
        place: where the prepared corpus, token ids and stores are kept.
    """

    def __init__(self, recipe: Recipe, *, resume: bool = False) -> None:
        self.recipe, self.resume = recipe, resume
        self.output, self.place = Path(recipe.output), recipe.place
        self._spare: SentenceTransformer | None = None

    def require(self, command: str) -> None:
        """See that the recipe names what a command needs.

        Raises:
            DistilvecError: naming the section that is missing.
        """
        for key in REQUIRED[command]:
            first, _, other = key.partition(" or ")
            given(getattr(self.recipe, first) or (getattr(self.recipe, other) if other else None) or None, key)
        check_writing(self.recipe, command)
        if "teachers or student" not in REQUIRED[command] or self.recipe.method.is_open:
            return
        if resolve(self.recipe.method.name).needs_teacher and not self.recipe.teachers:
            raise DistilvecError(
                f'this key is missing, and method "{self.recipe.method.name}" learns from a teacher',
                where="teachers",
                remedy="Add one, or take a method without a teacher (simcse, mnrl, sft, margin_mse, score_kl).",
            )

    def changed(self, recipe: Recipe, *keep: str) -> Job:
        """A job of another recipe that shares parts of this one, by name, as far as they have been made."""
        job = Job(recipe, resume=self.resume)
        job.__dict__.update({name: self.__dict__[name] for name in keep if name in self.__dict__})
        return job

    def on(self, corpus: Corpus) -> Job:
        """The same job on other items, with the same opened teachers."""
        job = self.changed(self.recipe, "teachers")
        job.corpus = corpus
        return job

    # sections

    @property
    def corpus_section(self) -> CorpusSection:
        return given(self.recipe.corpus, "corpus")

    @property
    def student_section(self) -> StudentSection:
        return given(self.recipe.student, "student")

    # parts

    @cached_property
    def corpus(self) -> Corpus:
        """Read, audited and split, or what an equal section left."""
        section, task = self.corpus_section, self.recipe.task
        claim(self.place, "cache" if self.recipe.cache else "output")
        options = section.model_dump(exclude={"path"})
        if task is not None:
            options |= {"label": task.label or section.label, "joint": task.joint}
        # Of several processes the first prepares it, the others find it; and no other recipe's moves in meanwhile.
        with locked(self.place / "corpus.lock", wait=True):
            return read_corpus(section.path, self.place / "corpus", **options)

    @cached_property
    def named_tasks(self) -> list[JudgingTask]:
        """What the recipe names to judge students by."""
        return load_tasks(self.recipe.judging.tasks)

    @cached_property
    def tasks(self) -> list[JudgingTask]:
        """What students are judged by: the named tasks, or those that the corpus' held-out items allow."""
        return self.tasks_on(self.corpus)

    def tasks_on(self, corpus: Corpus) -> list[JudgingTask]:
        """The same, with the held-out items of a corpus."""
        if self.separator is not None:
            return writing_tasks(self.recipe, corpus, self.named_tasks)
        task = self.recipe.task
        return self.named_tasks or automatic_tasks(corpus, task.kind if task else None)

    @cached_property
    def teachers(self) -> list[Teacher]:
        """Opened, in the recipe's order; [] where it names none.

        Raises:
            DistilvecError: pairs are read as one item each, and a teacher is given plain texts.
        """
        self._check_joint()
        components = self.recipe.corpus.components if self.recipe.corpus else "largest"
        modality, separator = self.corpus.modality, self.separator
        return [open_teacher(section, components, modality, separator) for section in self.recipe.teachers]

    def _check_joint(self) -> None:
        task, corpus = self.recipe.task, self.recipe.corpus
        if task is None or task.writes or not task.joint or corpus is None or isinstance(corpus.text, str):
            return
        for section in self.recipe.teachers:
            if section.model is None and section.keys is None:
                raise DistilvecError(
                    f"{section.name} is given texts, and pairs are read as one item each",
                    where="task.encoding",
                    remedy="Use encoding: separate, or a teacher that is a model.",
                )

    @property
    def separator(self) -> str | None:
        """Between prompt and answer, where the student is to write; None elsewhere."""
        return self.recipe.task.separator if self.recipe.task is not None else None

    @cached_property
    def each_info(self) -> list[TeacherInfo]:
        """What a method may know of every teacher before it has taught."""
        pairs = zip(self.teachers, self.recipe.teachers, strict=True)
        return [teacher_info(teacher, section.token_axes) for teacher, section in pairs]

    @property
    def combines(self) -> bool:
        """Whether several teachers teach as one."""
        return self.recipe.combine != "separate" and len(self.recipe.teachers) > 1

    @cached_property
    def infos(self) -> list[TeacherInfo]:
        """As `each_info`, of the teachers as the student meets them: combined ones are one."""
        if not self.combines:
            return self.each_info
        weights = [section.weight for section in self.recipe.teachers]
        return [teacher_info(CombinedTeacher(self.teachers, weights, self.recipe.combine))]  # type: ignore[arg-type]

    @cached_property
    def start(self) -> Start:
        """The untrained student on disk."""
        section = self.student_section
        seed = self.recipe.training.seed
        claim(self.output)  # teaching may come first, and a run takes no folder with files of unknown origin
        return student_start(section, self.recipe.teachers, self.corpus, seed, self.output, self.separator)

    def student(self) -> SentenceTransformer:
        """A fresh copy of the untrained student; the same recipe always gives the same one."""
        spare, self._spare = self._spare, None
        return spare if spare is not None else self.start.open()

    def let_go(self) -> None:
        """Of the copy that was looked at, where nobody takes it."""
        self._spare = None

    @cached_property
    def student_info(self) -> StudentInfo:
        """What a method may know of the student.

        Raises:
            DistilvecError: it reads other items than the corpus holds, could not ship, or cannot have the adapters or
            the balance of experts that are asked for.
            EnvironmentProblem: peft, which makes adapters, is not installed.
        """
        student = self.looked_at()
        check_modality(student, self.corpus.modality, "student")
        if find_writer(student) is None:
            refuse_foreign(student)
        if self.student_section.lora is not None:
            check_lora(student)
        if self.student_section.router_balance:
            hand_out_routing(student).remove()
        return StudentTap(student).info

    def looked_at(self) -> SentenceTransformer:
        """A copy to look at, which goes to the next who asks for one."""
        if self._spare is None:
            self._spare = self.start.open()
        return self._spare

    @cached_property
    def task(self) -> Task | None:
        """The supervised task with a fresh head, which training trains."""
        if self.recipe.task is None:
            return None
        width = self.student_info.width
        torch.manual_seed(self.recipe.training.seed)
        return build_task(self.recipe.task, width, self.corpus.labels, self.corpus.label_names)

    @cached_property
    def method(self) -> Method:
        """Not built yet: training makes its heads."""
        section = self.recipe.method
        return build_method(section.name, section.options, section.matryoshka)

    @cached_property
    def code(self) -> str | None:
        """What the method's text is known by, where it is not ours; read once, as it is when the job begins."""
        return code_of(self.method)

    @cached_property
    def needs(self) -> Needs:
        """What the method wants to find in a step.

        Raises:
            DistilvecError: it cannot work with this student or these teachers.
        """
        if self.combines and self.method.inside:
            self._refuse_combined()
        static = self.student_section.static is not None
        if static and self.each_info and self.recipe.task is None:
            # A table takes a while to make, and what a method can know of it is known: it has no layers.
            width = self.each_info[0].width
            table = StudentInfo("a static student", width, layers=None, hidden=width)
            check_needs(self.method, self.method.needs(table, self.infos), table)
        info = describe(self.student_info, self.task)
        needs = self.method.needs(info, self.infos)
        check_needs(self.method, needs, info)
        if self.recipe.method.token_states and self.teachers:
            first, pieces = self.teachers[0], list(self.looked_at().tokenizer.get_vocab())
            check_pieces(pieces, first.vocabulary, first.card.name)
        cached = self.recipe.training.mini_batch_size
        check_caching(self.method, needs, cached, None if cached is None else self.looked_at())
        if needs.scores and not self.recipe.scorers:
            raise DistilvecError(
                f'method "{self.recipe.method.name}" learns from scores, and there is no scorer',
                where="scorers",
                remedy="Name one: a model, a function, or a table of scores.",
            )
        if self.recipe.scorers and not needs.scores:
            logger.warning(
                "%s has no use for scores, and the scorers are not asked; margin_mse and score_kl have",
                self.recipe.method.name,
            )
        return needs

    @cached_property
    def wanted(self) -> list[Wanted]:
        """What the method wants of each teacher besides sentence vectors.

        Raises:
            DistilvecError: a teacher cannot give it.
        """
        if self.combines and self.method.inside:
            self._refuse_combined()
        if self.combines or not self.method.inside:
            return [NOTHING for _ in self.teachers]
        sections = self.recipe.teachers
        wants = [replace(self.needs.of(number), axes=each.token_axes) for number, each in enumerate(sections)]
        for teacher, wanted in zip(self.teachers, wants, strict=True):
            teacher.refuse(wanted)
            class_order(teacher, wanted, self.task)
            if wanted.logits and self.recipe.task is not None and self.recipe.task.encoding == "separate":
                raise DistilvecError(
                    f"{self.method.name} compares class probabilities, and with encoding: separate the teacher reads "
                    "single texts, of which none has a class",
                    where=teacher.card.name,
                    remedy="Use encoding: joint, or fine-tune the teacher with --encoding separate and take a method "
                    "on vectors or token states.",
                )
        return wants

    def _refuse_combined(self) -> None:
        """What looks inside the teachers cannot look inside a combined one."""
        needs = self.method.needs(describe(self.student_info, self.task), self.each_info)
        if any(needs.of(number).signals for number in range(len(self.teachers))):
            raise DistilvecError(
                f"with these options {self.method.name} looks at the tokens or class predictions of each teacher, "
                "which cannot be combined",
                where="combine",
                remedy="Use combine: separate, or a method on sentence vectors (`distilvec methods`); distillmoe is "
                "one with moe_weight: 1.",
            )

    @cached_property
    def taught(self) -> list[Taught]:
        """The teachers with filled stores; [] where the recipe names none.

        Raises:
            DistilvecError: the method cannot work with this student or these teachers, said before any teaching.
        """
        _ = self.needs
        return self.teach()

    @property
    def first(self) -> Taught | None:
        """The teacher that agreement is measured with."""
        return self.taught[0] if self.taught else None

    def teach(self, *, shard: tuple[int, int] | None = None, vectors_only: bool = False) -> list[Taught]:
        """Fill the stores of all teachers with what they lack; only a share of it with `shard` = (i, n).

        Args:
            vectors_only: sentence vectors, whatever the method wants; the recipe's student is not looked at.

        Raises:
            DistilvecError: they are to be averaged and have different widths, or a store is another teacher's; said
                before any teaching.
            Interrupted: Ctrl-C or SIGTERM; all that was encoded is kept.
        """
        wanted = [NOTHING for _ in self.teachers] if vectors_only else self.wanted
        if self.combines:
            _ = self.infos  # teachers that do not fit together are not asked for hours first
        stores, taught = self.place / "stores", []
        for section, teacher in zip(self.recipe.teachers, self.teachers, strict=True):
            if (stores / section.name / "store.json").exists():  # another teacher's is refused before any is asked
                SignalStore.create(stores / section.name, teacher.card, teacher.card.width, section.storage)
        for section, teacher, each in zip(self.recipe.teachers, self.teachers, wanted, strict=True):
            with copied(self.recipe, section):
                taught.append(teach_one(section, self.corpus, stores, shard, teacher=teacher, wanted=each))
        how = self.recipe.combine
        if how == "separate" or len(taught) <= 1 or shard is not None:
            return taught
        ticker = Ticker("combining the teachers", f"{self.corpus.modality}s")
        teacher, store, filled, seen = combine(taught, how, self.corpus, stores, self.combined_storage, ticker)
        return [Taught(teacher, seen, store, filled)]

    @property
    def combined_storage(self) -> str:
        """How the store of combined teachers keeps vectors: as finely as any of them asks for."""
        return max((section.storage for section in self.recipe.teachers), key=_FINER.index)

    @cached_property
    def scorers(self) -> list[Scorer]:
        """Opened, in the recipe's order; [] where it names none."""
        return [open_scorer(section) for section in self.recipe.scorers]

    @cached_property
    def pairs(self) -> QueryDocuments:
        """Every document beside its query."""
        return QueryDocuments.of(self.corpus)

    @cached_property
    def scored(self) -> list[ScoredCorpus]:
        """The scorers with filled stores; [] where the method learns nothing from them."""
        return self.score() if self.needs.scores else []

    def score(self, *, shard: tuple[int, int] | None = None) -> list[ScoredCorpus]:
        """Fill the stores of all scorers with what they lack; only a share of it with `shard` = (i, n).

        Raises:
            Interrupted: Ctrl-C or SIGTERM; all that was scored is kept.
        """
        stores, scored = self.place / "stores", []
        for section, scorer in zip(self.recipe.scorers, self.scorers, strict=True):
            with copied(self.recipe, section):
                scored.append(score_one(section, scorer, self.pairs, stores, shard))
        return scored

    @property
    def scores(self) -> np.ndarray | None:
        """float32 [rows of the corpus], what the scorers say of each document and its query; None without them."""
        return scores_of(self.scored, self.pairs) if self.scored else None

    def settle_tasks(self) -> None:
        """Tasks whose truth is the teacher's own search (the first one's, or that of all combined) take it."""
        if self.first is None:
            return
        teacher = self.first.teacher
        if all(each.card.kind != "vectors" for each in getattr(teacher, "teachers", [teacher])):
            settle_tasks(self.tasks, self.first.encoder(self.corpus.modality))

    def sources(self, rows: np.ndarray | None = None, cache: Path | None = None) -> list[SignalSource]:
        """Where training gets each teacher's signals from, for corpus rows; None = those trained on or held out."""
        if rows is None:
            rows = np.concatenate([self.corpus.train_rows, self.corpus.holdout_rows])
        return [each.source(self.corpus, rows, cache or self.place, self.task) for each in self.taught]

    def held_out(self, limit: int = 1000, corpus: Corpus | None = None) -> tuple[list[str], np.ndarray | None]:
        """Held-out texts, and the first teacher's vectors [n, D] for them; None without a teacher."""
        rows = self.held_out_rows(limit, corpus)
        if self.first is None:
            return self.corpus.texts(rows), None
        store: SignalStore = self.first.store
        return self.corpus.texts(rows), store.read(store.rows(self.corpus.teacher_keys[rows]))

    def held_out_rows(self, limit: int = 1000, corpus: Corpus | None = None) -> np.ndarray:
        """A sample of their corpus rows, without those that the first teacher has no vector for.

        Each item is there once: any model finds its copies, which would pass for neighbours.
        """
        rows = np.asarray((corpus or self.corpus).holdout_rows)
        if self.first is not None:
            rows = rows[self.first.store.rows(self.corpus.teacher_keys[rows]) >= 0]
        return sampled_rows(distinct_rows(self.corpus.keys, rows), limit)


def copied(recipe: Recipe, section: TeacherSection | ScorerSection) -> AbstractContextManager[None]:
    """While the block fills the store of a teacher or scorer, its copy on `remote`, where there is one, grows too."""
    if recipe.remote is None:
        return nullcontext()
    return mirrored(recipe.place / "stores" / section.name, f"{recipe.remote.rstrip('/')}/{section.name}")
