"""The one wrapped module: student and method, one forward to the terms of a batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from distilvec.corpus.batch import Batch
from distilvec.errors import DistilvecError
from distilvec.functional import cosine_distance
from distilvec.methods.base import Method, Needs, Term, WantedOfStudent
from distilvec.methods.contract import check_terms
from distilvec.modules.blocks import token_head
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.students.tap import StudentTap
from distilvec.teachers.signals import TeacherSignals
from distilvec.training.distributed import gather_rows, gather_student, gather_teacher, sum_over_ranks, world_size

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.tasks.base import Task


@dataclass(frozen=True)
class Extras:
    """The parts of a step besides the terms of the method and the task.

    Attributes:
        router_balance: weight of the loss that keeps the load of a mixture-of-experts student's routers even; added to
            all else.
        mini_batch_size: how many items the student reads at a time (gradient caching); None = the whole batch.
        former: the student before training, frozen; never part of the module.
        remember: weight of the cosine distance between the student's vectors and those of `former`; added to all else.
        gather: False = rows meet those of their own process alone, also where the method compares them.
    """

    router_balance: float = 0.0
    mini_batch_size: int | None = None
    former: SentenceTransformer | None = None
    remember: float = 0.0
    gather: bool = True


class Distiller(nn.Module):
    """Student and method as one module, so that heads are synchronised, checkpointed and resumed like the rest.

    Live teachers are never part of it. The method sees the whole batch where its needs say that rows enter each
    other's loss (unless `gather` is False); otherwise every process computes its own rows and the means are taken over
    all of them.

    Args:
        student: the model that is trained.
        method: built before the optimiser is made (its heads exist).
        needs: what the method wants to find in a step.
        task: a supervised task beside the method: L = alpha * task + (1 - alpha) * (the method's terms).
        extras: what is added to the loss, or to how it is computed.

    Attributes:
        trains_student: False in a method's stages that train the heads alone; the loop sets it.
        labels_alone: whether the task has the whole weight now; the loop sets it.
    """

    def __init__(
        self,
        student: SentenceTransformer,
        method: Method,
        needs: Needs,
        task: Task | None = None,
        extras: Extras | None = None,
    ) -> None:
        super().__init__()
        self.student, self.method, self.task = student, method, task
        self.extras = extras = extras or Extras()
        self.router_balance, self.mini_batch_size = extras.router_balance, extras.mini_batch_size
        if self.router_balance:
            from distilvec.modules.routing import hand_out_routing

            hand_out_routing(student)
        self.tap = StudentTap(student)
        self.needs = needs
        if token_head(student) is not None:  # it leaves logits of the next token among its extras where they are wanted
            first: Any = student[0]
            first.next_logits = any(wanted.next for wanted in needs.teachers)
        check_caching(method, self.needs, self.mini_batch_size, student)
        # In a list, because what is in one is no part of the module.
        self._former = [StudentTap(extras.former)] if extras.former is not None and extras.remember else []
        self.trains_student, self.labels_alone, self.progress = True, False, 0.0

    def twin(self) -> Distiller:
        """Another distiller with a copy of student, method and task; what is never trained is shared."""
        student, method, task = copy.deepcopy((self.student, self.method, self.task))
        return Distiller(student, method, self.needs, task, self.extras)

    @property
    def gathers(self) -> bool:
        """Tell whether the losses that `forward` gives are those of the whole batch, not of this process's rows."""
        return self.extras.gather and self.needs.coupled and world_size() > 1

    def at(self, progress: float) -> None:
        """Take the stage of the training that comes next (0 = start, 1 = end)."""
        self.progress = progress
        self.trains_student = self.method.trains_student(progress)
        self.labels_alone = self.task is not None and progress < self.task.labels_first

    def observe(self, features: dict[str, Tensor]) -> StudentOutput:
        """One student forward for all the views that the method wants."""
        return self._tapped(self.tap, features, self.needs.student)

    def _tapped(self, tap: StudentTap, features: dict[str, Tensor], wanted: WantedOfStudent) -> StudentOutput:
        if self.mini_batch_size is None:
            return tap(features, **wanted._asdict())
        from distilvec.training.caching import in_mini_batches

        return in_mini_batches(tap, features, self.mini_batch_size, wanted.views, wanted.layers)

    def forward(
        self,
        features: dict[str, Tensor],
        teachers: list[dict[str, Any]],
        keys: Tensor,
        rows: Tensor | None = None,
        **columns: Tensor | None,
    ) -> dict[str, Any]:
        """Features and signals of one batch -> `loss` [], `terms` (name -> unweighted mean), `counts`, `items` [B].

        `counts` has the number of items behind a mean, of the terms in which not every item counts. `items` is the
        weighted loss per row, of the terms that have one; `domains` goes with it, and `counting`, bool [B]: the rows
        that count in any of these terms, None = all. `rows`, the corpus rows, are for error messages only;
        `columns`: see `terms`.
        """
        terms, domain = self.terms(features, [TeacherSignals(**teacher) for teacher in teachers], keys, **columns)
        return self._reduce(terms, domain, local=not self.gathers)

    def terms(
        self, features: dict[str, Tensor], signals: list[TeacherSignals], keys: Tensor, **columns: Tensor | None
    ) -> tuple[dict[str, Term], Tensor | None]:
        """The terms of one batch, and the domains that go with their rows.

        Columns are what the corpus knows of the rows: `labels`, `domain`, `group`, `role`, `scores`.
        """
        if self.trains_student:
            output = self.observe(features)
        else:
            output = self._heads_only(features)
        former = self._remembered(features)
        if self.gathers:
            former = None if former is None else gather_rows(former)
            output, signals = gather_student(output), [gather_teacher(signal) for signal in signals]
            keys = gather_rows(keys)
            columns = {name: None if each is None else gather_rows(each) for name, each in columns.items()}
        labels, domain, group, role, scores = map(columns.get, ("labels", "domain", "group", "role", "scores"))
        if self.task is not None:
            output.logits = self.task.read(output, group, role)
        codes = labels if self.task is None or labels is None else self.task.codes(labels)
        batch = Batch(keys, Batch.equal_items(keys), codes, domain, group, role, scores, self.progress)
        said = check_terms(self.method, self.method(output, signals, batch), output)
        terms = self._with_task(said, output, labels, batch)
        if former is not None:
            terms["remember"] = Term(cosine_distance(output.embedding, former), None, self.extras.remember)
        if self.router_balance and self.trains_student:
            terms["router_balance"] = Term(self._balance(output), None, self.router_balance)
        return terms, domain

    @torch.no_grad()
    def _remembered(self, features: dict[str, Tensor]) -> Tensor | None:
        """[B, d], what the student said of these items before training."""
        if not self._former or not self.trains_student:
            return None
        return self._tapped(self._former[0], features, WantedOfStudent()).embedding[0]

    def _balance(self, output: StudentOutput) -> Tensor:
        """[] over the tokens of all processes."""
        from distilvec.modules.routing import router_balance

        sums = [output.extras[name].flatten(0, 1) for name in ("router_load", "router_probability")]
        if world_size() > 1 and not self.gathers:
            sums = [gather_rows(each) for each in sums]
        return router_balance(*sums)

    def _with_task(
        self, terms: dict[str, Term], output: StudentOutput, labels: Tensor | None, batch: Batch
    ) -> dict[str, Term]:
        """The task's term beside the method's; the only place where alpha is applied."""
        if self.task is None:
            return terms
        # Where there is nothing beside it, the task has the whole weight.
        alpha = self.task.alpha if terms and not self.labels_alone else 1.0
        task = Term(*self.task.losses(output, labels, batch.group, batch.role), alpha)
        return {"task": task, **{name: term._replace(weight=(1 - alpha) * term.weight) for name, term in terms.items()}}

    def _heads_only(self, features: dict[str, Tensor]) -> StudentOutput:
        """The student's output without its gradient.

        Distributed, the backward pass still runs through the student with a gradient of zero, because every
        parameter has to take part in it; the loop leaves these parameters out of the optimiser's step.
        """
        if world_size() == 1:
            with torch.no_grad():
                return self.observe(features)
        output = self.observe(features)
        stopped = {
            name: value.detach() + 0.0 * value
            for name in ("embedding", "layers")
            if (value := getattr(output, name)) is not None
        }
        return replace(output, **stopped)

    def _reduce(self, terms: dict[str, Term], domain: Tensor | None, *, local: bool) -> dict[str, Any]:
        """Terms -> total, means for the log, and the weighted loss per row."""
        means: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}
        loss: Tensor | None = None
        items: Tensor | None = None
        for name, term in terms.items():
            mean, count = mean_and_count(term, local)
            means[name] = mean.detach()
            if term.counted is not None and not term.summed:
                counts[name] = count.detach()
            loss = mean * term.weight if loss is None else loss + mean * term.weight
            if term.values.dim() > 0:
                values = term.weighed
                if term.counted is not None and term.counted.is_floating_point():
                    values = values * (term.weights > 0).sum() / _or_one(term.weights.sum())
                per_row = term.weight * (values.mean(0) if values.dim() == 2 else values)
                items = per_row if items is None else items + per_row
        if loss is None:
            raise DistilvecError("forward gives no term, so that there is nothing to train", where=self.method.name)
        beside = {"items": items, "domains": domain, "counting": _counting(list(terms.values()))}
        return {"loss": loss, "terms": means, "counts": counts, **beside}


def _counting(terms: Sequence[Term]) -> Tensor | None:
    """bool [B], the rows that count in any term that has a loss per row and a weight; None = all."""
    rows = [term for term in terms if term.values.dim() > 0 and term.weight]
    if not rows or any(term.counted is None for term in rows):
        return None
    return torch.cat([(term.weights > 0).reshape(-1, term.values.shape[-1]) for term in rows]).any(0)


def check_caching(
    method: Method, needs: Needs, mini_batch_size: int | None, student: SentenceTransformer | None = None
) -> None:
    """Refuse gradient caching for a method that looks at the student's tokens, and for a student with batch norms."""
    if mini_batch_size is None:
        return
    if needs.student.tokens or needs.student.attention or any(wanted.next for wanted in needs.teachers):
        raise DistilvecError(
            f"{method.name} looks at the student's tokens, which gradient caching does not keep",
            where="training.mini_batch_size",
            remedy="Leave it out; a smaller batch_size with gradient_accumulation_steps saves memory here.",
        )
    if student is not None and any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in student.modules()):
        # Each would see parts of the batch in place of the whole, and take the statistics of each part twice.
        raise DistilvecError(
            "this student has batch norms, which gradient caching would show parts of the batch, each twice",
            where="training.mini_batch_size",
            remedy="Leave it out; a smaller batch_size saves memory here.",
        )


def describe(info: StudentInfo, task: Task | None) -> StudentInfo:
    """Return what a method may know of the student, with the task's head."""
    if task is None or task.head is None:
        return info
    return replace(info, classes=task.head.classes, regression=task.head.classes is None)


def _or_one(count: Tensor) -> Tensor:
    """Return what to divide by: of no weights at all, one."""
    return count.where(count > 0, 1.0)


def mean_of(term: Term, local: bool = False) -> Tensor:
    """The mean of a term's values, each weighed by how much it counts: over these rows, or over those of all ranks."""
    return mean_and_count(term, local)[0]


def mean_and_count(term: Term, local: bool = False) -> tuple[Tensor, Tensor]:
    """`mean_of` a term, and what the weights of its values add up to: over these rows, or over those of all ranks.

    Local values are scaled by the number of ranks over the global count, so that the average that
    DistributedDataParallel takes of the gradients is the gradient of the global mean.
    """
    if term.values.dim() == 0:
        return term.values.float(), torch.ones_like(term.values, dtype=torch.float32)
    total, count, items = term.weighed.sum(), term.weights.sum(), term.items
    if local and world_size() > 1:
        total = total * world_size()
        count, items = sum_over_ranks(torch.stack([count, items]))
    mean = total / _or_one(count)
    return mean * items if term.summed else mean, count
