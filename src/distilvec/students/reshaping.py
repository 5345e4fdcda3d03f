"""Cutting inside the blocks of a student, and its table of word pieces to a smaller rank.

What is left of a layer is refitted by least squares to what the whole layer gave on real texts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from distilvec.corpus.keys import split_pair
from distilvec.modules.blocks import find_blocks, without_dropout
from distilvec.modules.pipeline import default_prompt
from distilvec.students.factorising import factorise
from distilvec.students.fit_texts import PassCache, hooked, sampled, sampled_tokens, token_batches
from distilvec.students.refitting import Refit, StateMoments, contributions, refit, rows_of
from distilvec.students.shape import Kept, Shape, feed_forward, heads_of, is_electra, shared_heads

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: Texts that refits see: at most and at least, at most so many tokens of each and about so many of all. More tokens do
#: not make a better start: of a quarter of MiniLM the cosine with it is 0.529 with 19,000 and 0.531 with 10,000.
TEXTS, LEAST, TOKENS, ALL_TOKENS = 1_024, 256, 128, 10_000
#: Texts whose pieces are counted for the table.
COUNTED = 10_000
#: Bytes of moments that are kept for other cuts.
_KEPT = 2**29


class Reshaping:
    """The cuts of one model, ready to be made: what its layers read has been seen.

    Args:
        source: the student that the model comes from, for its tokenizer and prompt.
        model: from `reshapable`.
        kept: numbers of the blocks that stay, counted from 1.
        texts: what the student will read.
        tokenizer: of the smaller student.
        seen: of the source.
    """

    def __init__(
        self,
        source: SentenceTransformer,
        model: Any,
        kept: Sequence[int],
        shape: Shape,
        texts: Sequence[str],
        tokenizer: Any,
        seen: PassCache,
    ) -> None:
        self.source, self.model, self.seen = source, model, seen
        self.shape, self.texts, self.tokenizer = shape, texts, tokenizer
        self.kind, self.report = type(model).__name__, Kept()
        found = find_blocks(model)
        assert found is not None
        self.path = found[0]
        self.all_blocks, self.numbers = found[1], [number - 1 for number in kept]
        self.blocks: list[Any] = [found[1][number] for number in self.numbers]
        self.few = sampled_tokens(source, texts, TEXTS, TOKENS, ALL_TOKENS, LEAST)

    def apply(self, state: dict[str, Tensor], config: Any) -> None:
        """Cut the tensors of the kept blocks, under their new numbers, and the tables; both in place."""
        if self.shape.positions is not None:
            table = "embeddings.position_embeddings.weight"
            state[table] = state[table][: self.shape.positions].clone()
            config.max_position_embeddings = self.shape.positions
        if self.shape.inner is not None and self.shape.inner < feed_forward(self.blocks[0], self.kind).width:
            self._cut_inner(state)
            config.intermediate_size = self.shape.inner
        if self.shape.heads is not None and self.shape.heads < heads_of(self.model):
            (self._merge_heads if is_electra(self.model) else self._drop_heads)(state, config)
        if self.shape.embedding is not None and self.shape.embedding < config.embedding_size:
            self._factorise(state, config)

    # the word table

    def _factorise(self, state: dict[str, Tensor], config: Any) -> None:
        rank = self.shape.embedding
        assert rank is not None
        use, lengths = self._count(config.vocab_size, config.max_position_embeddings)
        norm = state["embeddings.LayerNorm.weight"], state["embeddings.LayerNorm.bias"], config.layer_norm_eps
        words, positions, types = (
            f"embeddings.{part}_embeddings.weight" for part in ("word", "position", "token_type")
        )
        narrow = factorise((state[words], state[positions], state[types]), norm, rank, use, lengths)
        state |= {words: narrow.words, positions: narrow.positions, types: narrow.types}
        state |= {"embeddings.LayerNorm.weight": torch.ones(rank), "embeddings.LayerNorm.bias": torch.zeros(rank)}
        if "embeddings_project.weight" in state:  # the source's table was narrow already
            # The state is where the model is, and as it is; what is fitted is float32 on the CPU.
            before, end = (state[f"embeddings_project.{part}"].to(narrow.weight) for part in ("weight", "bias"))
            narrow = replace(narrow, weight=before @ narrow.weight, bias=before @ narrow.bias + end)
        state |= {"embeddings_project.weight": narrow.weight, "embeddings_project.bias": narrow.bias}
        config.embedding_size = rank
        self.report = replace(self.report, energy=narrow.energy, embedding=narrow.explained)

    def _count(self, pieces: int, positions: int) -> tuple[Tensor, Tensor]:
        """Use of each piece [N], and tokens of each text [T]."""
        sample = [split_pair(default_prompt(self.source) + text) for text in sampled(self.texts, COUNTED)]
        rows = self.tokenizer(sample, truncation=True, max_length=positions)["input_ids"]
        ids = torch.tensor([index for row in rows for index in row])
        return torch.bincount(ids, minlength=pieces).double(), torch.tensor([len(row) for row in rows])

    # inner units

    def _cut_inner(self, state: dict[str, Tensor]) -> None:
        assert self.shape.inner is not None
        networks = [feed_forward(block, self.kind) for block in self.blocks]
        moments = self._inner_moments()
        explained = []
        for number, (network, seen) in enumerate(zip(networks, moments, strict=True)):
            worth = seen.variance() * network.output.weight.detach().cpu().double().square().sum(0)
            kept = worth.topk(self.shape.inner).indices.sort().values
            fitted = refit(seen, network.output.weight, network.output.bias, kept)
            prefix = f"{self.path}.{number}."
            for name, times in network.inputs:
                size = network.width
                rows = torch.cat([kept + size * part for part in range(times)])
                _take(state, prefix + name, rows)
            _put(state, prefix + network.output_name, fitted)
            explained.append(fitted.explained)
        self.report = replace(self.report, inner=tuple(explained))

    def _inner_moments(self) -> list[StateMoments]:
        """Return the moments of the kept blocks' units; measure all blocks for further cuts, if they are few enough."""
        every = [feed_forward(block, self.kind).output for block in self.all_blocks]
        if not self.seen.further or sum(2 * 8 * (layer.in_features + 1) ** 2 for layer in every) > _KEPT:
            return self._watch([every[number] for number in self.numbers])
        moments = self.seen.get(("inner", *self.few), lambda: self._watch(every), self.source)
        return [moments[number] for number in self.numbers]

    # heads

    def _drop_heads(self, state: dict[str, Tensor], config: Any) -> None:
        """Whole groups of query heads that share keys and values go; the heads that stay are as wide as before."""
        assert self.shape.heads is not None
        attentions = [block.self_attn for block in self.blocks]
        moments = self._watch([attention.o_proj for attention in attentions])
        shared, width = shared_heads(self.model, self.blocks[0], self.kind), attentions[0].head_dim
        explained = []
        for number, (attention, seen) in enumerate(zip(attentions, moments, strict=True)):
            worth = contributions(seen, attention.o_proj.weight, shared * width)
            groups = worth.topk(self.shape.heads // shared).indices.sort().values
            queries, keys = rows_of(groups, shared * width), rows_of(groups, width)
            prefix = f"{self.path}.{number}.self_attn."
            for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
                _take(state, prefix + name, rows)
            fitted = refit(seen, attention.o_proj.weight, attention.o_proj.bias, queries)
            _put(state, prefix + "o_proj", fitted)
            explained.append(fitted.explained)
        config.head_dim = width
        config.num_attention_heads = self.shape.heads
        config.num_key_value_heads = self.shape.heads // shared
        self.report = replace(self.report, heads=tuple(explained))

    def _merge_heads(self, state: dict[str, Tensor], config: Any) -> None:
        """Fewer, wider heads: each attends as the strongest of those it is made of, and all values go with it.

        ELECTRA's heads share the width evenly, so that their number says nothing of the number of parameters.
        """
        assert self.shape.heads is not None
        times = heads_of(self.model) // self.shape.heads
        outputs = [block.attention.output.dense for block in self.blocks]
        width = outputs[0].in_features // heads_of(self.model)
        config.num_attention_heads = self.shape.heads
        merged = []
        for block, seen in zip(self.blocks, self._watch(outputs), strict=True):
            worth = contributions(seen, block.attention.output.dense.weight, width)
            merged.append(_merged(block.attention.self, worth, self.shape.heads, times, config))
        explained = []
        moments = self._watch_beside([block.attention.self for block in self.blocks], merged)
        for number, (output, attention, seen) in enumerate(zip(outputs, merged, moments, strict=True)):
            # What the new heads give comes first in these moments, then what the old ones gave.
            whole = torch.cat([torch.zeros_like(output.weight), output.weight], 1)
            fitted = refit(seen, whole, output.bias, torch.arange(output.in_features))
            prefix = f"{self.path}.{number}.attention."
            state.update({f"{prefix}self.{name}": value for name, value in attention.state_dict().items()})
            _put(state, prefix + "output.dense", fitted)
            explained.append(fitted.explained)
        self.report = replace(self.report, heads=tuple(explained))

    # what layers read

    def _watch(self, layers: Sequence[nn.Linear]) -> list[StateMoments]:
        """Moments of the inputs of some linear layers, over the real tokens of the texts."""
        moments = [StateMoments(layer.in_features) for layer in layers]

        def watch(seen: StateMoments) -> Any:
            # Longformer pads further, at the end.
            return lambda _module, args: seen.add(args[0][:, : self._mask.shape[1]][self._mask])

        self._run([layer.register_forward_pre_hook(watch(seen)) for layer, seen in zip(layers, moments, strict=True)])
        return moments

    def _watch_beside(self, attentions: Sequence[Any], others: Sequence[Any]) -> list[StateMoments]:
        """Moments of [what others give, what attentions give] where both read the same."""
        moments = [StateMoments(2 * attention.all_head_size) for attention in attentions]

        def watch(other: Any, seen: StateMoments) -> Any:
            def hook(_module: Any, args: Any, kwargs: Any, output: Any) -> None:
                both = torch.cat([other(*args, **kwargs)[0], output[0]], -1)
                seen.add(both[self._mask])

            return hook

        watched = zip(attentions, others, moments, strict=True)
        self._run([each.register_forward_hook(watch(other, seen), with_kwargs=True) for each, other, seen in watched])
        return moments

    @torch.no_grad()
    def _run(self, hooks: Sequence[Any]) -> None:
        """Let the texts through the model once."""
        with hooked(hooks), without_dropout(self.model):
            for features in token_batches(self.source, self.few, TOKENS):
                self._mask = features["attention_mask"].bool()
                self.model(**features)


def _merged(attention: Any, worth: Tensor, heads: int, times: int, config: Any) -> Any:
    """Self-attention with `times` old heads in each new one: the strongest of all lead, the others follow in turn."""
    leaders = worth.topk(heads).indices.sort().values.tolist()
    others = [head for head in range(heads * times) if head not in leaders]
    width = attention.attention_head_size
    order = [head for number, leader in enumerate(leaders) for head in (leader, *others[number::heads])]
    rows = rows_of(torch.tensor(order), width)
    other = copy.deepcopy(attention)
    other.config = config
    other.num_attention_heads, other.attention_head_size = heads, width * times
    other.scaling = other.attention_head_size**-0.5
    leads = (torch.arange(len(rows)) // width % times == 0).to(attention.query.weight)
    with torch.no_grad():
        for name in ("query", "key", "value"):
            layer = getattr(other, name)
            # Followers' queries are zero and their keys are not, so that training can use them.
            factor = leads * math.sqrt(times) if name == "query" else torch.ones_like(leads)
            layer.weight.copy_(layer.weight[rows] * factor[:, None])
            layer.bias.copy_(layer.bias[rows] * factor)
    return other


def _take(state: dict[str, Tensor], name: str, rows: Tensor) -> None:
    """Rows of a linear layer."""
    for part in (f"{name}.weight", f"{name}.bias"):
        if part in state:
            state[part] = state[part][rows.to(state[part].device)].clone()


def _put(state: dict[str, Tensor], name: str, fitted: Refit) -> None:
    state[f"{name}.weight"] = fitted.weight
    if fitted.bias is not None:
        state[f"{name}.bias"] = fitted.bias
