"""Everything a text model shows in one forward pass: sentence vectors, token states, attention maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from distilvec.modules.blocks import find_blocks, find_transformer, find_writer
from distilvec.modules.contents import Contents
from distilvec.modules.pipeline import is_causal
from distilvec.modules.watch import Watch
from distilvec.teachers.signals import CANDIDATES, TeacherSignals, Wanted

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.modules.task_head import TaskHead

_VECTORS = ("token_embeddings", "sentence_embedding")


class Observer:
    """Looks inside a text model while it runs; `hidden` and `causal` are those of `Teacher`.

    Args:
        model: a transformer with pooling.
        prompt: put before every text; its tokens are no content.
        head: of the task that it was fine-tuned on.
    """

    def __init__(self, model: SentenceTransformer, prompt: str, head: TaskHead | None = None) -> None:
        self._model, self._head = model, head
        transformer = find_transformer(model)
        blocks = None if transformer is None else find_blocks(transformer.model)
        self._watch = None if transformer is None or blocks is None else Watch(transformer.model, blocks[1])
        self.hidden: int | None = None
        self.causal = transformer is not None and is_causal(transformer.model)
        self._writer = find_writer(model)
        if self._writer is not None:
            self._writer.spells = False
        if transformer is not None and self._watch is not None:
            config = transformer.model.config
            self.hidden = int((config.get_text_config() if hasattr(config, "get_text_config") else config).hidden_size)
            self._contents = Contents(model.tokenizer, prompt)

    def __call__(self, features: dict[str, Any], wanted: Wanted, autocast: Any) -> TeacherSignals:
        """One forward of padded features [B, T] on the model's device; signals on the CPU in float32.

        Args:
            wanted: what of it is kept.
            autocast: a context for the transformer itself; what follows it runs in float32.
        """
        from sentence_transformers.base.modules import Normalize

        assert self._watch is not None
        first, *rest = self._model.children()
        ids, mask, special = features["input_ids"], features["attention_mask"].bool(), None
        if self._writer is not None:
            special, self._writer.next_logits = features["special_tokens_mask"].cpu(), wanted.next
        with autocast, self._watch.watching(wanted.tokens, wanted.attention) as seen:
            features = first(features)
            seen.close(features["token_embeddings"])
        features["token_embeddings"] = features["token_embeddings"].float()
        vector = None
        for module in rest:
            features = followed(module, features)
            # A task head reads the vector before it is normalised.
            vector = vector if isinstance(module, Normalize) else features.get("sentence_embedding")
        ids, mask = ids.cpu(), mask.cpu()
        # What padding says is nobody's business: zeros, live as in a store.
        rows = mask[..., None]
        return TeacherSignals(
            present=torch.ones(len(ids), dtype=torch.bool),
            sentence=features["sentence_embedding"].float().cpu(),
            tokens={layer: seen.states[layer].float().cpu() * rows for layer in wanted.tokens},
            attention={layer: seen.maps[layer].cpu() * rows for layer in wanted.attention},
            logits=self._head(vector).cpu() if wanted.logits and self._head is not None else None,
            ids=ids,
            mask=mask,
            content=self.content(ids, mask) if special is None else mask & ~special.bool(),
            next=candidates(features["next_logits"]) if wanted.next else {},
        )

    @torch.no_grad()
    def final_norm(self, features: dict[str, Any]) -> bool:
        """Tell whether something stands between its last block and its last hidden state, seen on features [B, T]."""
        assert self._watch is not None
        with self._watch.watching() as seen:
            seen.close(self._model[0](features)["token_embeddings"])
        return seen.last_block is not None and not torch.equal(seen.last_block, seen.states[-1])

    def content(self, ids: Tensor, mask: Tensor) -> Tensor:
        """bool [B, T]: neither padding nor special nor a part of the prompt."""
        return self._contents.mask(ids, mask)


def followed(module: Any, features: dict[str, Any]) -> dict[str, Any]:
    """A module behind the transformer: from float32 to float32, in between as its weights are held."""
    held = next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.float32)
    return _as(module(_as(features, held)), torch.float32)


def _as(features: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    vectors = {name: features[name].to(dtype) for name in _VECTORS if isinstance(features.get(name), Tensor)}
    return {**features, **vectors}


def candidates(logits: Tensor, count: int = CANDIDATES) -> dict[str, Tensor]:
    """The likeliest next tokens on the CPU, `TeacherSignals.next`, of logits [B, A, C]."""
    logs = logits.float().log_softmax(-1)
    best = logs.topk(min(count, logs.shape[-1]), -1)
    # Float32 has no mass of a billionth beside one: what rounds to nothing is of no account.
    rest = (1 - best.values.cpu().double().exp().sum(-1)).clamp_min(1e-12).log().float()
    return {"ids": best.indices.cpu(), "logs": best.values.cpu(), "rest": rest}
