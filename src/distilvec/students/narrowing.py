"""Making the blocks of a BERT-like student narrower: states of fewer numbers, all through.

Attention takes 4 w² parameters of a block of width w, so that small students are mostly attention; narrower blocks
leave room for another block and more word pieces. In new coordinates the states start near what they were: block after
block, each linear layer is fitted by least squares to what the wide one gives for the same tokens, reading what the
narrow blocks before it give. Behind the pooling a linear map leads back to the wide model's space.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.modules.blocks import find_transformer, without_dropout
from distilvec.students.factorising import without_mean
from distilvec.students.fit_texts import PassCache, hooked, sampled, sampled_tokens, token_batches
from distilvec.students.refitting import JUDGED, Refit, StateMoments, contributions, refit, rows_of
from distilvec.students.shape import Kept

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: Texts at most, for the blocks and for the map behind the pooling; tokens of a text, and about so many of all: the
#: states of all are kept in memory, some at a time.
_TEXTS, _TOKENS, _ALL_TOKENS = 2_048, 128, 32_000
#: A norm reads its sum at this scale at least, beside the state that is added to.
_LEAST_SCALE = 0.3


@torch.no_grad()
def narrow(
    student: SentenceTransformer, source: SentenceTransformer, width: int, texts: Sequence[str], seen: PassCache
) -> Kept:
    """Make the blocks of a student narrower, in place, with a map behind the pooling to where its vectors were.

    The new coordinates are the width - 1 leading directions of the states behind all norms, laid into the vectors whose
    mean is zero: a norm then does little but rescale them. Attention keeps the heads that give its output most, as wide
    as they were.

    Args:
        student: an `ElectraModel` with a pooling behind it.
        source: what it was cut out of; the map behind the pooling is fitted to its pooled vectors.
        width: of the blocks, a multiple of a head's, and not the width of the table of word pieces.
        texts: what the student will read.
        seen: of the source.

    Returns:
        `states` and `vectors`.
    """
    if len(texts) < JUDGED:  # none would be left to judge the map on
        raise DistilvecError(
            f"{len(texts)} texts are too few to fit narrower blocks to",
            where="width",
            remedy="Give some hundreds of the texts that the student will read.",
        )
    transformer: Any = find_transformer(student)
    was_training, wide = transformer.model.training, transformer.model.eval()
    few = sampled_tokens(student, texts, _TEXTS, _TOKENS, _ALL_TOKENS)
    batches = list(token_batches(student, few, _TOKENS))
    masks = [batch["attention_mask"].bool() for batch in batches]
    basis = _basis(wide, batches, masks, width)
    narrower = _begun(wide, basis)
    old, new = ([_embedded(model, batch) for batch in batches] for model in (wide, narrower))
    explained = []
    for before, after in zip(wide.encoder.layer, narrower.encoder.layer, strict=True):
        old, new, share = _NarrowedBlock(before, after, basis, masks).fit(old, new)
        explained.append(share)
    transformer.model = narrower
    vectors = _lead_back(student, source, sampled(texts, _TEXTS), width, seen)
    narrower.train(was_training)
    return Kept(states=tuple(explained), vectors=vectors)


class _NarrowedBlock:
    """One block, wide and narrow. States are lists of [B, S, d], a batch each."""

    def __init__(self, wide: Any, narrow: Any, basis: Tensor, masks: Sequence[Tensor]) -> None:
        self.wide, self.narrow, self.basis, self.masks = wide, narrow, basis, masks
        self.unread = [
            torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -1e9)[:, None, None] for mask in masks
        ]

    def fit(self, old: list[Tensor], new: list[Tensor]) -> tuple[list[Tensor], list[Tensor], float]:
        """Fit the narrow block to what the wide one does; the states behind both, and R² of the narrow one's."""
        wide, narrow = self.wide, self.narrow
        contexts = self._contexts(wide, old)
        middle = [wide.attention.output(*rows) for rows in zip(contexts, old, strict=True)]
        last = [wide.output(wide.intermediate(rows), rows) for rows in middle]
        self._fit_attention(contexts, old, new)
        contexts = self._contexts(narrow, new)
        self._fit_output(narrow.attention.output, contexts, new, middle)
        between = [narrow.attention.output(*rows) for rows in zip(contexts, new, strict=True)]
        _fit_reader(narrow.intermediate.dense, wide.intermediate.dense, self._moments(between, middle))
        units = [narrow.intermediate(rows) for rows in between]
        share = self._fit_output(narrow.output, units, between, last)
        return last, [narrow.output(*rows) for rows in zip(units, between, strict=True)], share

    def _contexts(self, block: Any, states: Sequence[Tensor]) -> list[Tensor]:
        """Return what the heads give, side by side."""
        pairs = zip(states, self.unread, strict=True)
        return [block.attention.self(rows, attention_mask=mask)[0] for rows, mask in pairs]

    def _moments(self, *sides: Iterable[Tensor]) -> StateMoments:
        """Return the moments of states side by side, over real tokens."""
        parts = [torch.cat(rows, -1)[mask] for *rows, mask in zip(*sides, self.masks, strict=True)]
        seen = StateMoments(parts[0].shape[-1])
        for rows in parts:
            seen.add(rows)
        return seen

    def _fit_attention(self, contexts: Sequence[Tensor], old: Sequence[Tensor], new: Sequence[Tensor]) -> None:
        wide, narrow = self.wide.attention, self.narrow.attention
        size = wide.self.attention_head_size
        worth = contributions(self._moments(contexts), wide.output.dense.weight, size)
        kept = worth.topk(narrow.self.num_attention_heads).indices.sort().values
        seen = self._moments(new, old)
        for name in ("query", "key", "value"):
            _fit_reader(getattr(narrow.self, name), getattr(wide.self, name), seen, rows_of(kept, size))

    def _fit_output(
        self, output: Any, read: Sequence[Tensor], states: Sequence[Tensor], wanted: Sequence[Tensor]
    ) -> float:
        """Fit a linear layer, and the norm of its sum with the states, to the wide states; R² of what it gives."""
        wanted = [rows @ self.basis for rows in wanted]
        _put(output.dense, _fit_sum(self._moments(read, states, wanted), states[0].shape[-1]))
        norm = output.LayerNorm
        nn.init.ones_(norm.weight)
        nn.init.zeros_(norm.bias)
        given = [output(*rows) for rows in zip(read, states, strict=True)]
        ours, theirs = (
            torch.cat([rows[mask] for rows, mask in zip(side, self.masks, strict=True)]) for side in (given, wanted)
        )
        centred = ours - ours.mean(0)
        gain = (centred * (theirs - theirs.mean(0))).mean(0) / centred.square().mean(0).clamp_min(1e-12)
        norm.weight.copy_(gain)
        norm.bias.copy_(theirs.mean(0) - gain * ours.mean(0))
        return _explained(ours * norm.weight + norm.bias, theirs)


def _fit_reader(narrow: nn.Linear, wide: nn.Linear, seen: StateMoments, rows: Tensor | None = None) -> None:
    """Fit a layer that reads narrow states to some rows of one that reads wide ones.

    Args:
        seen: moments of [narrow, wide] states.
    """
    weight, bias = (part if rows is None else part[rows.to(part.device)] for part in (wide.weight, wide.bias))
    whole = torch.cat([weight.new_zeros(len(weight), narrow.in_features), weight], 1)
    _put(narrow, refit(seen, whole, bias, torch.arange(narrow.in_features)))


def _fit_sum(seen: StateMoments, width: int) -> Refit:
    """The layer whose output, added to the states, is what they shall become behind a norm, at whichever scale fits.

    Args:
        seen: moments of [what the layer reads, the states, what they shall become].
        width: of states.
    """
    inputs = len(seen.fitted) - 1 - 2 * width
    reads = torch.tensor([*range(inputs), len(seen.fitted) - 1])
    parts = torch.arange(inputs, inputs + 2 * width)
    second = seen.fitted[reads][:, reads]
    second = second + 1e-6 * second.diagonal().mean() * torch.eye(len(reads), dtype=second.dtype)
    cross = seen.fitted[reads][:, parts]
    # What is left of the states, and of what they shall become, when what the layer reads has told its part.
    left = seen.fitted[parts][:, parts] - cross.T @ torch.linalg.solve(second, cross)
    states, wanted = slice(0, width), slice(width, None)
    scale = float(left[states, wanted].trace() / left[wanted, wanted].trace().clamp_min(1e-12))
    one = torch.eye(width)
    whole = torch.cat([torch.zeros(width, inputs), -one, max(scale, _LEAST_SCALE) * one], 1)
    return refit(seen, whole, torch.zeros(width), torch.arange(inputs))


def _put(layer: nn.Linear, fitted: Refit) -> None:
    layer.weight.copy_(fitted.weight)
    if fitted.bias is not None:
        layer.bias.copy_(fitted.bias)


def _basis(wide: Any, batches: Sequence[dict[str, Tensor]], masks: Sequence[Tensor], width: int) -> Tensor:
    """[d, w], orthonormal columns; what it makes of a state has mean zero."""
    points = [block.attention for block in wide.encoder.layer] + [*wide.encoder.layer]
    first, *others = [StateMoments(wide.config.hidden_size) for _ in range(len(points) + 1)]

    def watch(seen: StateMoments, mask: Tensor) -> Any:
        return lambda _module, _args, rows: seen.add((rows[0] if isinstance(rows, tuple) else rows)[mask])

    for batch, mask in zip(batches, masks, strict=True):
        first.add(_embedded(wide, batch)[mask])
        pairs = zip(points, others, strict=True)
        with hooked([point.register_forward_hook(watch(seen, mask)) for point, seen in pairs]):
            wide(**batch)
    seconds = [(seen.fitted + seen.judged)[:-1, :-1] for seen in (first, *others)]
    # Each point counts alike.
    second = torch.stack([each / each.trace() for each in seconds]).sum(0)
    leading = torch.linalg.eigh(second).eigenvectors.flip(-1)[:, : width - 1]
    return (leading @ without_mean(width).T).float().to(next(wide.parameters()).device)


def _begun(wide: Any, basis: Tensor) -> Any:
    """A model of narrower blocks, which are yet to be fitted, behind the same tables."""
    config = copy.deepcopy(wide.config)
    size = wide.config.hidden_size // wide.config.num_attention_heads
    config.hidden_size = basis.shape[1]
    config.num_attention_heads = config.hidden_size // size
    model = type(wide)(config).to(basis).eval()
    model.embeddings.load_state_dict(wide.embeddings.state_dict())
    before = getattr(wide, "embeddings_project", None)
    model.embeddings_project.weight.copy_(basis.T if before is None else basis.T @ before.weight)
    model.embeddings_project.bias.zero_()
    if before is not None:
        model.embeddings_project.bias.copy_(basis.T @ before.bias)
    return model


def _embedded(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """[B, S, d], what the first block reads."""
    rows = model.embeddings(batch["input_ids"])
    project = getattr(model, "embeddings_project", None)
    return rows if project is None else project(rows)


def _lead_back(
    student: SentenceTransformer, source: SentenceTransformer, texts: Sequence[str], width: int, kept: PassCache
) -> float:
    """Put the map behind the student's pooling; its R² on every eighth text, which it is not fitted to."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    from distilvec.modules.projection import dense

    modules = list(student.children())
    place = next(number for number, module in enumerate(modules) if isinstance(module, Pooling))
    pooling: Any = copy.deepcopy(modules[place])
    modes = pooling.pooling_output_dimension // pooling.embedding_dimension
    pooling.embedding_dimension, pooling.pooling_output_dimension = width, modes * width
    through = list(source.children())[: place + 1]
    theirs = kept.get(("pooled", *texts), lambda: _pooled(source, through, texts), source)
    ours = _pooled(student, [*modules[:place], pooling], texts)
    seen = StateMoments(ours.shape[1] + theirs.shape[1])
    seen.add(torch.cat([ours, theirs], 1))
    whole = torch.cat([torch.zeros(theirs.shape[1], ours.shape[1]), torch.eye(theirs.shape[1])], 1)
    fitted = refit(seen, whole, torch.zeros(theirs.shape[1]), torch.arange(ours.shape[1]))
    head = dense(fitted.weight, fitted.bias).to(student.device)
    student._modules.clear()
    for number, module in enumerate([*modules[:place], pooling, head, *modules[place + 1 :]]):
        student.add_module(str(number), module)
    return fitted.explained


def _pooled(model: SentenceTransformer, modules: Sequence[nn.Module], texts: Sequence[str]) -> Tensor:
    """float32 [N, d] on the CPU, in an order that is the same for all models."""
    parts = []
    with without_dropout(model):
        for features in token_batches(model, texts):
            rows: Any = features
            for module in modules:
                rows = module(rows)
            parts.append(rows["sentence_embedding"].float().cpu())
    return torch.cat(parts)


def _explained(given: Tensor, wanted: Tensor) -> float:
    missed = (wanted - given).square().sum()
    return 1 - float(missed / (wanted - wanted.mean(0)).square().sum())
