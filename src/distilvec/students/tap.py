"""One forward pass of a student that also hands out the states of its blocks."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from distilvec.alignment.pieces import pieces_of
from distilvec.errors import DistilvecError
from distilvec.modules.blocks import find_blocks, find_transformer, token_head
from distilvec.modules.contents import Contents
from distilvec.modules.pipeline import default_prompt, puts_into_template, reads_texts, width_of
from distilvec.modules.text_ids import check_fast
from distilvec.modules.watch import Seen, Watch
from distilvec.students.output import StudentInfo, StudentOutput

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class StudentTap:
    """Runs a student on V views of a batch in one forward, and hands out what its blocks say on the way.

    The forward goes through the student's own modules, up to but excluding a final `Normalize`. Nothing is written
    to the student's configuration. The hooks stay on the blocks while the tap lives, idle between calls, so that a
    compiled forward sees them; they go when the tap does.

    Args:
        student: a plain sentence-transformers model: a transformer with pooling, or static embeddings; or one that
            writes (`modules.causal`).

    Attributes:
        info: what a method may know of the student.

    Raises:
        DistilvecError: where the student is a Router (tap the query side by itself), or reads texts with a tokenizer
            that is written in Python or in a chat template.
    """

    def __init__(self, student: SentenceTransformer) -> None:
        from sentence_transformers.base.modules import Normalize, Router
        from sentence_transformers.sentence_transformer.modules import Pooling

        modules = list(student.children())
        if any(isinstance(module, Router) for module in modules):
            raise DistilvecError(
                "this student routes queries and documents to different models",
                remedy="Train the query model by itself and pack it with distilvec.students.router afterwards.",
            )
        tokenizer = getattr(modules[0], "tokenizer", None) if modules else None
        if tokenizer is not None and reads_texts(student):
            # Now, not when the teachers have read the corpus.
            check_fast(tokenizer, student_name(student))
            if puts_into_template(student):  # training reads what the tokenizer alone gives
                raise DistilvecError(
                    "this student puts every text into the chat template of its tokenizer",
                    where=student_name(student),
                    remedy='Take "message" out of modality_config in its sentence_bert_config.json, and it reads plain '
                    "texts.",
                )
        if modules and isinstance(modules[-1], Normalize):
            modules = modules[:-1]
        self._modules = modules
        self._pooling = next((module for module in modules if isinstance(module, Pooling)), None)
        self._transformer = transformer = find_transformer(student)
        found = find_blocks(transformer.model) if transformer is not None else None
        self._watch = None
        if transformer is not None and found is not None and self._pooling is not None:
            self._watch = Watch(transformer.model, found[1])
            weakref.finalize(self, self._watch.remove)
        prompt = default_prompt(student)
        self._contents = Contents(getattr(transformer, "tokenizer", None), prompt)
        width = width_of(modules)
        if width is None:
            raise DistilvecError("the student does not say how wide its embeddings are")
        #: Width of the pooled states of a block: several ways of pooling lie side by side.
        self.pooled = width if self._pooling is None else self._pooling.get_embedding_dimension()
        self.info = StudentInfo(
            name=student_name(student),
            width=width,
            layers=len(found[1]) if found is not None and self._watch is not None else None,
            hidden=width if self._pooling is None else self._pooling.embedding_dimension,
            pieces=None if token_head(student) is None else pieces_of(student.tokenizer),
            ranks=getattr(modules[0], "ranks", False),
        )

    def __call__(
        self,
        features: dict[str, Tensor],
        views: int,
        layers: bool = False,
        tokens: Sequence[int] = (),
        attention: Sequence[int] = (),
    ) -> StudentOutput:
        """One forward of V * B rows; in training mode every row has its own dropout.

        Args:
            features: what the collator or `student.preprocess` gives, B rows. `special_tokens_mask` [B, S] (1 =
                special) is used where present, else special tokens are known by their ids.
            views: V >= 1.
            layers: whether to pool the states of every block 1..L.
            tokens: layers whose token states are wanted, 0 (embedding output) to L.
            attention: layers, 1 to L, whose attention maps are wanted.

        Returns:
            What was asked for; no masks of static students. Attention is float32, before dropout. The states of layer
            L are the model's last hidden states, after its final norm where it has one.

        Raises:
            DistilvecError: where layers, tokens or attention are asked of a student that cannot give them.
        """
        self._refuse(features, layers, tokens, attention)
        features = dict(features)
        special = features.pop("special_tokens_mask", None)
        mask, content = self.masks(features, special)
        rows = getattr(self._modules[0], "repeat", _repeat)(features, views)  # of V * B items, view by view
        given = set(rows)
        pooled: Tensor | None = None
        with self._watching(bool(layers or tokens), attention) as seen:
            for module in self._modules:
                if layers and module is self._pooling:
                    pooled = self._pool(rows, seen.states[1:])
                rows = module(rows)
                if module is self._transformer:
                    seen.close(rows.get("token_embeddings"))
        embedding = rows["sentence_embedding"]
        _check_gradient(seen.last_block, embedding)
        return StudentOutput(
            embedding=_by_view(embedding, views),
            layers=None if pooled is None else pooled.reshape(len(pooled), views, -1, pooled.shape[-1]).transpose(0, 1),
            tokens={layer: _by_view(seen.states[layer], views) for layer in tokens},
            attention={layer: _by_view(seen.maps[layer], views) for layer in attention},
            mask=mask,
            content=content,
            extras={
                name: _by_view(value, views)
                for name, value in rows.items()
                if name not in given
                and name not in _OWN
                and isinstance(value, Tensor)
                and value.shape[:1] == embedding.shape[:1]
            },
        )

    def _watching(self, states: bool, maps: Sequence[int]) -> contextlib.AbstractContextManager[Seen]:
        if self._watch is None or not (states or maps):
            return contextlib.nullcontext(Seen())
        return self._watch.watching(states, maps)

    def _pool(self, rows: dict[str, Tensor], states: list[Tensor]) -> Tensor:
        """States of the blocks, L of [N, S, hidden] -> [L, N, hidden] by the student's own pooling.

        One call per block: stacking the states for a single call would copy them all, forward and backward.
        """
        assert self._pooling is not None
        context: dict[str, Any] = {name: rows[name] for name in _OF_POOLING if name in rows}
        return torch.stack(
            [self._pooling({**context, "token_embeddings": state})["sentence_embedding"] for state in states]
        )

    def masks(self, features: dict[str, Tensor], special: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """No padding; and neither special nor of the prompt: bool [B, S] each, None without an attention mask."""
        if "attention_mask" not in features:
            return None, None
        mask = features["attention_mask"].bool()
        if special is not None:
            return mask, mask & ~special.bool()
        ids = features.get("input_ids")
        if ids is None:
            return mask, mask
        return mask, self._contents.mask(ids, mask)

    def _refuse(
        self, features: dict[str, Tensor], layers: bool, tokens: Sequence[int], attention: Sequence[int]
    ) -> None:
        name, count = self.info.name, self.info.layers
        if (layers or tokens or attention) and count is None:
            raise DistilvecError(
                "this student has no transformer blocks with a pooling after them, so it has no layers to give",
                where=name,
                remedy="Choose a method that needs the final embedding only.",
            )
        for what, asked, first in (("states", tokens, 0), ("maps", attention, 1)):
            wrong = [layer for layer in asked if not first <= layer <= (count or 0)]
            if wrong:
                told = f"asked for the {what} of layer {wrong[0]}, the student has {first} to {count}"
                raise DistilvecError(told, where=name)
        if "cu_seq_lens_q" in features:
            raise DistilvecError(
                "batches without padding (flash attention's flattened inputs) are not supported",
                where=name,
                remedy="Load the student with unpad_inputs=False.",
            )


_OF_POOLING = ("attention_mask", "prompt_length", "answer_mask")
_OWN = frozenset({"token_embeddings", "sentence_embedding", "all_layer_embeddings"})


def student_name(student: SentenceTransformer) -> str:
    """Model id or the last part of the folder that the student came from."""
    transformer = find_transformer(student)
    path = getattr(getattr(transformer, "config", None), "_name_or_path", "") or ""
    folder = Path(path)
    if path and folder.is_dir():
        return folder.resolve().name
    return path or student.model_card_data.base_model or "student"


def _repeat(features: dict[str, Any], views: int) -> dict[str, Any]:
    """Features of B rows -> features of V * B rows, view by view. What is not one row per item stays."""
    if views == 1:
        return features
    if "offsets" in features and "attention_mask" not in features:
        return _repeat_bags(features, views)
    size = len(features["attention_mask"] if "attention_mask" in features else next(iter(features.values())))
    return {
        name: value.repeat(views, *[1] * (value.dim() - 1))
        if isinstance(value, Tensor) and value.dim() > 0 and len(value) == size
        else value
        for name, value in features.items()
    }


def _repeat_bags(features: dict[str, Tensor], views: int) -> dict[str, Tensor]:
    """Static embeddings: ids of all rows in one line, and where each row starts."""
    ids, offsets = features["input_ids"], features["offsets"]
    starts = torch.arange(views, device=offsets.device) * len(ids)
    return {**features, "input_ids": ids.repeat(views), "offsets": (starts[:, None] + offsets).flatten()}


def _by_view(rows: Tensor, views: int) -> Tensor:
    return rows.reshape(views, -1, *rows.shape[1:])


def _check_gradient(last_block: Tensor | None, embedding: Tensor) -> None:
    """Reentrant gradient checkpointing hands out states without a graph: their terms would train nothing."""
    if last_block is None or not torch.is_grad_enabled():
        return
    if embedding.requires_grad and not last_block.requires_grad:
        raise DistilvecError(
            "the student's blocks hand out states without gradients",
            remedy="Switch gradient_checkpointing off, or set gradient_checkpointing_kwargs to use_reentrant: false.",
        )
