"""Outputs of the untrained student and of the teachers for held-in items, before the heads are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from distilvec.evenly import evenly_spaced
from distilvec.methods.base import Batch, Needs, Sample
from distilvec.modules.projection import ridge_map
from distilvec.students.output import StudentOutput
from distilvec.students.tap import StudentTap
from distilvec.teachers.signals import TeacherSignals
from distilvec.training.data import Collator, SignalSource, fetch_all
from distilvec.training.items import PreparedCorpus, bytes_of
from distilvec.training.tokens import TokenizedCorpus

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SAMPLE = 10_000
_BATCH = 64
TOKEN_SAMPLE = 1024
TOKEN_BATCH = 32
#: What a sample's token signals may take of the memory.
TOKEN_BYTES = 4 << 30
Tap = Callable[..., StudentOutput]
#: Batches from which a fresh batch norm takes its statistics.
SETTLING = 32


def make_sample(
    student: SentenceTransformer,
    tokens: TokenizedCorpus | PreparedCorpus,
    sources: Sequence[SignalSource],
    rows: np.ndarray,
    *,
    seed: int,
    needs: Needs,
    collator: Collator | None = None,
    limit: int = SAMPLE,
    narrow: bool = False,
) -> Sample:
    """Embeddings of at most `limit` rows in eval mode (V = 1), with the teachers' signals for them.

    Batch norms that have seen nothing yet are given the statistics of some batches first.

    Args:
        student: untrained.
        rows: corpus rows to draw from, without replacement, seeded.
        needs: of the method: whether pooled states of every block, token states and the like are wanted too.
        collator: of the training, where the method needs scores.
        narrow: whether the student computes in bfloat16, as it does in training; maps that are fitted do not change.

    Returns:
        A sample on the CPU: embedding [1, N, d], layers [1, L, N, d] or None, sentence vectors [N, D], and batches
        with token signals where they are needed.
    """
    chosen = np.random.default_rng([seed, 1]).permutation(rows)[:limit]
    settle_norms(student, tokens, chosen[: SETTLING * _BATCH], _BATCH)
    if not sources and not needs.states:  # nothing starts from it
        chosen = chosen[:_BATCH]
    chosen = chosen[np.argsort(tokens.lengths[chosen], kind="stable")]
    device = next(student.parameters()).device
    tap = torch.autocast(device.type, torch.bfloat16, enabled=narrow)(StudentTap(student).__call__)
    training = student.training
    student.eval()
    embeddings: list[Tensor] = []
    states: list[Tensor] = []
    with torch.no_grad():
        for start in range(0, len(chosen), _BATCH):
            features = tokens.features(chosen[start : start + _BATCH])
            output = tap(on_device(features, device), views=1, layers=needs.student.layers)
            embeddings.append(output.embedding.float().cpu())
            if output.layers is not None:
                states.append(output.layers.float().cpu())
        batches = token_batches(tap, tokens, sources, chosen, needs, device)
        pairs = paired_batches(tap, collator, rows, seed, device) if collator is not None and needs.scores else []
    student.train(training)
    observed = StudentOutput(torch.cat(embeddings, 1), torch.cat(states, 2) if states else None)
    # Token signals come along where there are any, and those of all rows at once may be more than memory holds.
    size = _BATCH if batches else len(chosen)
    return Sample(observed, [_sentences(source, chosen, size) for source in sources], batches, pairs)


@torch.no_grad()
def settle_norms(
    student: SentenceTransformer, tokens: TokenizedCorpus | PreparedCorpus, rows: np.ndarray, batch_size: int
) -> None:
    """Give batch norms that have seen no batch the statistics of these rows.

    A network from random weights has running means of 0 and variances of 1, with which its vectors in eval mode have
    nothing to do with those in training: a head that starts at the ridge map of the one is lost on the other.
    """
    fresh = [
        module
        for module in student.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        and module.num_batches_tracked is not None
        and not module.num_batches_tracked
    ]
    if not fresh:
        return
    device, training, momenta = next(student.parameters()).device, student.training, [each.momentum for each in fresh]
    student.eval()
    for each in fresh:
        each.train().momentum = None  # the mean over all batches
    # No batch is smaller than the others: one item alone may have no variance.
    for part in np.array_split(rows, max(1, len(rows) // batch_size)):
        student(on_device(tokens.features(part), device))
    for each, momentum in zip(fresh, momenta, strict=True):
        each.momentum = momentum
    student.train(training)


def token_batches(
    tap: Tap,
    tokens: TokenizedCorpus | PreparedCorpus,
    sources: Sequence[SignalSource],
    chosen: np.ndarray,
    needs: Needs,
    device: torch.device,
) -> list[tuple[StudentOutput, list[TeacherSignals]]]:
    """At most 1,024 of the chosen rows with all signals, in batches of similar length; empty where none are needed.

    Fewer where they would not fit into `TOKEN_BYTES`, as long texts of wide teachers do not.
    """
    if not (needs.inside or needs.logits or needs.student.tokens or needs.student.attention):
        return []

    def read(part: np.ndarray) -> tuple[StudentOutput, list[TeacherSignals]]:
        features = tokens.features(part)
        output = tap(on_device(features, device), **needs.student._replace(views=1)._asdict())
        return _on_cpu(output), [TeacherSignals(**each) for each in fetch_all(sources, part, features)]

    # Evenly spaced over the lengths, by which the rows are sorted.
    rows = chosen[evenly_spaced(len(chosen), TOKEN_SAMPLE)]
    if len(rows) > 3 * TOKEN_BATCH:
        middle = len(rows) // 2
        few = [rows[:TOKEN_BATCH], rows[middle : middle + TOKEN_BATCH], rows[-TOKEN_BATCH:]]
        seen = [[vars(each) for each in (output, *signals)] for output, signals in map(read, few)]
        of_a_row = bytes_of(seen) / (3 * TOKEN_BATCH)
        if of_a_row * len(rows) > TOKEN_BYTES:
            rows = chosen[evenly_spaced(len(chosen), max(TOKEN_BATCH, int(TOKEN_BYTES / of_a_row)))]
    return [read(rows[start : start + TOKEN_BATCH]) for start in range(0, len(rows), TOKEN_BATCH)]


def paired_batches(
    tap: Tap, collator: Collator, rows: np.ndarray, seed: int, device: torch.device
) -> list[tuple[StudentOutput, Batch]]:
    """At most 1,024 rows, anchors among `rows` with all their documents, in batches; on the CPU."""
    assert collator.companions is not None
    anchors = rows[collator.companions[rows, 0] >= 0]
    documents = collator.companions.shape[1]
    anchors = np.random.default_rng([seed, 2]).permutation(anchors)[: max(1, TOKEN_SAMPLE // (1 + documents))]
    batches = []
    for part in np.array_split(anchors, max(1, len(anchors) * (1 + documents) // TOKEN_BATCH)):
        if not len(part):
            continue
        index = collator.expand(part)
        output = tap(on_device(collator.tokens.features(index), device), views=1)
        known = collator.known(index)
        batches.append((_on_cpu(output), Batch(duplicate=Batch.equal_items(known["keys"]), **known)))
    return batches


def on_device(batch: Any, device: torch.device) -> Any:
    """Tensors in dictionaries and lists, on a device; what is no tensor (the kind of item) stays."""
    if isinstance(batch, Tensor):  # from pinned memory: nothing waits for it
        return batch.to(device, non_blocking=device.type == "cuda")
    if isinstance(batch, dict):
        return {name: on_device(value, device) for name, value in batch.items()}
    return [on_device(value, device) for value in batch] if isinstance(batch, list) else batch


def _on_cpu(output: StudentOutput) -> StudentOutput:
    def move(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.float().cpu() if value.is_floating_point() else value.cpu()
        return {key: move(each) for key, each in value.items()} if isinstance(value, dict) else value

    return StudentOutput(**{name: move(value) for name, value in output.__dict__.items()})


def _sentences(source: SignalSource, rows: np.ndarray, batch_size: int) -> TeacherSignals:
    """Sentence vectors of all rows; token signals, which may come along, are dropped batch by batch."""
    parts = [source.fetch(rows[start : start + batch_size]) for start in range(0, len(rows), batch_size)]
    names = [name for name in ("present", "sentence", "logits") if name in parts[0]]
    joined: dict[str, Any] = {name: torch.cat([part[name] for part in parts]) for name in names}
    return TeacherSignals(**joined)


def free_maps(sample: Sample) -> list[np.ndarray]:
    """Per teacher the ridge map [d, D] from the untrained student's vectors to the teacher's.

    Zeros where there is nothing to fit to: a teacher may have none of the sampled rows.
    """
    source = sample.student.embedding[0]
    return [
        ridge_map(source, signals.sentence, present=signals.present).T.contiguous().numpy()
        if source[signals.present].any()
        else np.zeros((source.shape[1], signals.sentence.shape[1]), np.float32)
        for signals in sample.teachers
        if signals.sentence is not None
    ]
