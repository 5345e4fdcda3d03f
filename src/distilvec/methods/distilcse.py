"""DistilCSE: contrast the student's vector with the teacher's vectors of the batch and of a long queue.

    L = mean_i -log exp(cos(e_i W, t_i) / tau) / sum over t of batch and queue of exp(cos(e_i W, t) / tau)

The teacher is frozen, so nothing in the queue grows stale. The queue is saved as content keys, 16 bytes an entry,
and its vectors are read again from the store when a run goes on.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from distilvec.functional import info_nce, normalize
from distilvec.methods import parts
from distilvec.methods.base import Batch, Options, Sample, StudentInfo, StudentOutput, TeacherInfo, TeacherSignals, Term
from distilvec.methods.projected import ProjectedMethod

logger = logging.getLogger(__name__)


class DistilCSEOptions(Options):
    #: Train tau from its start, not below 0.01 [C]; fixed [S].
    constants: ClassVar[dict[str, Any]] = {"learn_temperature": False}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"init": "random"},
        "code": {"init": "random", "temperature": 1 / math.e, "learn_temperature": True},
    }

    temperature: float = Field(0.05, gt=0, description="tau [P, S]; 1/e [C]")
    queue: int = Field(65_536, ge=0, description="teacher vectors kept as negatives, first in, first out [P, C]")
    init: parts.Init = Field("ridge", description=parts.INIT)


class KeyQueue(nn.Module):
    """A ring of items with their teacher vectors; only keys and position are saved.

    Attributes:
        keys: uint8 [Q, 16].
        position: int64 [2], where the next item goes, and how many there are.
        vectors: [Q, D] unit vectors, not saved.
    """

    keys: Tensor
    position: Tensor
    vectors: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(size, 16, dtype=torch.uint8))
        self.register_buffer("position", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("vectors", torch.zeros(size, width), persistent=False)
        self.waiting: tuple[Tensor, Tensor] | None = None
        self.stale = False
        self.register_state_dict_pre_hook(lambda queue, *_: queue.flush())
        self.register_load_state_dict_post_hook(_loaded)

    def refill(self, read: Callable[[Tensor], Tensor] | None) -> None:
        """After loading: read the vectors of the saved keys again. Without a store the queue starts empty."""
        self.stale = False
        count = int(self.position[1])
        if read is None:
            if count:
                logger.warning("the queue of %d starts empty: the signals do not come from a store", count)
            self.position.zero_()
            return
        for start in range(0, count, 8192):
            part = slice(start, min(start + 8192, count))
            self.vectors[part] = normalize(read(self.keys[part]).to(self.vectors))

    def negatives(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors [n, D], and which of them [n] are items of the batch with these keys [B, 16]."""
        if self.waiting is not None and not torch.equal(self.waiting[0], keys):
            self.flush()
        count = int(self.position[1])
        return self.vectors[:count], torch.isin(_words(self.keys[:count]), _words(keys))

    def offer(self, keys: Tensor, vectors: Tensor) -> None:
        """Add the batch when the next one comes, so that the second pass of a sharpness-aware step sees no change.

        Where such a step takes several batches twice (`sharpness: {per: batch}` with accumulation), its second pass
        sees those of the first.
        """
        self.waiting = (keys, vectors.detach())

    @torch.no_grad()
    def flush(self) -> None:
        """Add what waits and is not held already; the oldest leave."""
        if self.waiting is None:
            return
        size = len(self.keys)
        keys, vectors = self.waiting
        fresh = ~torch.isin(_words(keys), _words(self.keys[: int(self.position[1])]))
        keys, vectors = keys[fresh][-size:], vectors[fresh][-size:]
        self.waiting = None
        places = (self.position[0] + torch.arange(len(keys), device=keys.device)) % size
        self.keys[places] = keys
        self.vectors[places] = normalize(vectors).to(self.vectors)
        self.position[0] = (self.position[0] + len(keys)) % size
        self.position[1] = (self.position[1] + len(keys)).clamp_max(size)


def _words(keys: Tensor) -> Tensor:
    """uint8 [n, 16] -> int64 [n], half of each key: a collision would only cost a negative."""
    return keys.contiguous().view(torch.int64)[:, 0]


def _loaded(queue: nn.Module, *_: Any) -> None:
    ring = cast(KeyQueue, queue)
    ring.stale, ring.waiting = True, None


class DistilCSE(ProjectedMethod):
    """Terms: `contrast` [B] (`contrast:TEACHER` where there are several)."""

    name = "distilcse"
    summary = "contrast with the teacher's vectors of the batch and of a long queue"
    paper = "Gao et al. 2021, DistilCSE (arXiv:2112.05638)"
    Options = DistilCSEOptions
    coupled = True

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        super().build(student, teachers, sample)
        if self.options.fixed.learn_temperature:
            self.log_scale = nn.Parameter(torch.tensor(-math.log(self.options.temperature)))
        self.queues = nn.ModuleList(
            KeyQueue(self.options.queue, teacher.width) for teacher in teachers if self.options.queue
        )

    def terms_of(self, index: int, student: StudentOutput, signals: TeacherSignals, batch: Batch) -> dict[str, Term]:
        values = self._contrast(index, self.heads[index](student.embedding[0]), signals, batch)
        return {"contrast": parts.counted(values, signals.present, 1.0)}

    def _contrast(self, index: int, queries: Tensor, signals: TeacherSignals, batch: Batch) -> Tensor:
        """[B] the loss against the batch and the queue, which the batch enters later."""
        target, present = parts.sentence(signals), signals.present
        exclude = batch.duplicate | ~present
        if not self.options.queue:
            return info_nce(queries, target, self._temperature(), exclude=exclude)
        queue = cast(KeyQueue, self.queues[index])
        if queue.stale:
            queue.refill(None if self.lookup is None else functools.partial(self.lookup, index))
        here = batch.keys[present]
        held, equal = queue.negatives(here)
        keys = torch.cat([target.to(held), held])
        exclude = torch.cat([exclude, equal.expand(len(exclude), -1)], dim=1)
        values = info_nce(queries, keys, self._temperature(), exclude=exclude)
        if self.training:
            queue.offer(here, target[present])
        return values

    def _temperature(self) -> float | Tensor:
        if not self.options.fixed.learn_temperature:
            return float(self.options.temperature)
        return self.log_scale.clamp_max(math.log(100)).neg().exp()
