"""Watching a transformer while it runs: states of its blocks, and attention maps of chosen layers.

States come from forward hooks; the last one is the model's `last_hidden_state`, as papers and their code mean it.
Maps come from an attention function registered with transformers, which returns what the model's own kernel returns
(sdpa, or eager where that is set: it trains faster on CPUs) and, for the layers asked, computes the head-averaged
probabilities beside it.
Architectures outside that interface (MPNet, DeBERTa) hand out their own maps. Nothing is written to the model's
configuration that stays there.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from distilvec.errors import DistilvecError

NAME, EAGER = "distilvec_maps", "distilvec_maps_eager"
#: What transformers calls plain attention in a model's file.
_OWN = "eager_attention_forward"
#: Bytes of scores that are held at once.
CHUNK = 1 << 26


@dataclass
class Seen:
    """The states and attention maps of one forward pass.

    Attributes:
        states: L + 1 tensors [N, S, H]; 0 is the embedding output, l what block l gives, and L the model's own last
            hidden state: what a final norm after the blocks makes of block L, where there is one.
        blocks: L, or 0 where no states are kept.
        last_block: [N, S, H], what block L gives, before such a norm.
        maps: layer (1 to L) -> [N, S, S] float32, attention probabilities averaged over heads.
    """

    states: list[Tensor] = field(default_factory=list)
    blocks: int = 0
    last_block: Tensor | None = None
    maps: dict[int, Tensor] = field(default_factory=dict)

    def close(self, last: Any) -> None:
        """Put the model's last hidden states [N, S, H] in the place of what block L gives.

        sentence-transformers runs a model past the hooks on it, so whoever calls it hands them over. What is of another
        width (a model that projects its states) leaves the block's.

        Raises:
            DistilvecError: a block was passed over, or works on other places than the model's tokens, or on states of
                another width than other blocks: padding of its own, stages, another order of the axes.
        """
        if not self.blocks:
            return
        if len(self.states) != self.blocks + 1:
            raise DistilvecError(
                f"{max(len(self.states) - 1, 0)} of its {self.blocks} blocks showed their states, so its layers cannot "
                "be read",
                remedy="If config.json has a layerdrop, set it to 0; else choose a method that needs the final "
                "embedding only: cosine, mse, gaussian.",
            )
        self._refuse_other_places(last)
        self.last_block = self.states[-1]
        if isinstance(last, Tensor) and last.shape == self.last_block.shape:
            self.states[-1] = last

    def _refuse_other_places(self, last: Any) -> None:
        kept = [state for state in self.states if state.numel()]
        places = last.shape[:2] if isinstance(last, Tensor) and last.dim() == 3 else None
        other = next((state for state in kept if places is not None and state.shape[:2] != places), None)
        other = other if other is not None else next((each for each in kept if each.shape != kept[0].shape), None)
        if other is not None:
            raise DistilvecError(
                f"this architecture has blocks whose states ({list(other.shape)}) are not those of its tokens "
                f"({list(kept[0].shape if places is None else last.shape)}), so its layers cannot be read",
                remedy="Choose a method that needs the final embedding only: cosine, mse, gaussian.",
            )


class Watch:
    """Hooks on a transformers model and its blocks, first to last; idle except within `watching`."""

    def __init__(self, model: nn.Module, blocks: nn.ModuleList) -> None:
        self._model, self._count = model, len(blocks)
        self._seen: Seen | None = None
        self._kept: frozenset[int] | None = None
        self._handles = [blocks[0].register_forward_pre_hook(self._before_first, with_kwargs=True)]
        self._handles += [block.register_forward_hook(self._after) for block in blocks]
        self._layer_of = {id(module): layer for layer, block in enumerate(blocks, 1) for module in block.modules()}

    @contextlib.contextmanager
    def watching(self, states: bool | Collection[int] = True, maps: Sequence[int] = ()) -> Iterator[Seen]:
        """Collect what a forward pass within the block shows.

        Args:
            states: whether to keep the states of the blocks; or of which, 0 to L: the others are empty.
            maps: layers, 1 to L, whose attention maps are wanted.
        """
        seen = Seen(blocks=self._count if states else 0)
        with self._maps(seen, maps) if maps else contextlib.nullcontext():
            self._seen, self._kept = seen if states else None, None if isinstance(states, bool) else frozenset(states)
            try:
                yield seen
            finally:
                self._seen = None
        missing = [layer for layer in maps if layer not in seen.maps]
        if missing:
            raise DistilvecError(
                f"no attention map of layer {missing[0]} (of {self._count}) can be had from this architecture",
                where=type(self._model).__name__,
                remedy="Choose a method that works without attention maps.",
            )

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def _before_first(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._keep(args[0] if args else kwargs["hidden_states"])

    def _after(self, block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._keep(output[0] if isinstance(output, tuple) else output)

    def _keep(self, state: Tensor) -> None:
        if self._seen is not None:
            wanted = self._kept is None or len(self._seen.states) in self._kept
            self._seen.states.append(state if wanted else state.new_empty(0))

    @contextlib.contextmanager
    def _maps(self, seen: Seen, layers: Sequence[int]) -> Iterator[None]:
        config: Any = self._model.config
        if not getattr(self._model, "_supports_attention_backend", False):
            with self._own_maps(seen, layers):
                yield
            return
        _register()
        before = config._attn_implementation
        if before == "flex_attention" or str(before).startswith("flash"):
            raise DistilvecError(
                f"attention maps cannot be taken beside {before}",
                where=type(self._model).__name__,
                remedy="Load the model with sdpa or eager attention.",
            )
        wanted = {key: layer for key, layer in self._layer_of.items() if layer in layers}
        eager = before == "eager" and hasattr(sys.modules[type(self._model).__module__], _OWN)
        config._attn_implementation = EAGER if eager else NAME
        _ACTIVE[id(self._model)] = (wanted, seen.maps)
        try:
            yield
        finally:
            config._attn_implementation = before
            del _ACTIVE[id(self._model)]

    @contextlib.contextmanager
    def _own_maps(self, seen: Seen, layers: Sequence[int]) -> Iterator[None]:
        """Ask the model itself, for architectures without the attention interface.

        They hand out what dropout has left of their maps; what went into it is kept instead. Its forward is wrapped,
        since sentence-transformers calls that, past the hooks on the model.
        """
        model: Any = self._model
        forward, own = model.forward, "forward" in vars(model)
        before: dict[int, Tensor] = {}

        def ask(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **{**kwargs, "output_attentions": True})
            attentions = getattr(output, "attentions", None) or ()
            if len(attentions) == self._count:
                maps = {layer: before.get(layer, attentions[layer - 1]).float().mean(1) for layer in layers}
                seen.maps.update({layer: each for layer, each in maps.items() if _is_map(each)})
            return output

        def keep(module: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor) and args[0].dim() == 4:
                before[self._layer_of[id(module)]] = args[0]

        handles = []
        for module in model.modules():
            if "Dropout" in type(module).__name__ and self._layer_of.get(id(module)) in layers:
                handles.append(module.register_forward_pre_hook(keep))
        model.forward = ask
        try:
            yield
        finally:
            if own:
                model.forward = forward
            else:
                del model.forward
            for handle in handles:
                handle.remove()


def _is_map(means: Tensor) -> bool:
    """Tell whether [N, S, S] are probabilities, and not what a functional dropout left of them or a window's."""
    return means.shape[-1] == means.shape[-2] and bool((means.sum(-1) - 1).abs().max() < 1e-2)


# Model id -> (attention module id -> layer asked, where its map goes); filled only while a forward is watched.
_ACTIVE: dict[int, tuple[dict[int, int], dict[int, Tensor]]] = {}


def _register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask

    # Without the mask function of the same name the attention would get no mask at all.
    for name, attend, mask in ((NAME, _beside_sdpa, sdpa_mask), (EAGER, _beside_eager, eager_mask)):
        if name not in AttentionInterface._global_mapping:
            AttentionInterface.register(name, attend)
            AttentionMaskInterface.register(name, mask)


def _beside_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """The fast kernel's output; the map of a layer that was asked for is put aside."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    _put_aside(module, query, key, attention_mask, kwargs)
    output: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return output


def _beside_eager(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """The same with the model's plain attention. Its own maps are of each head, and after dropout."""
    _put_aside(module, query, key, attention_mask, kwargs)
    attend = getattr(sys.modules[type(module).__module__], _OWN)
    return attend(module, query, key, value, attention_mask, **kwargs)[0], None


def _put_aside(
    module: nn.Module, query: Tensor, key: Tensor, attention_mask: Tensor | None, kwargs: dict[str, Any]
) -> None:
    for layers, maps in _ACTIVE.values():
        layer = layers.get(id(module))
        if layer is not None:
            causal = kwargs.get("is_causal")
            causal = getattr(module, "is_causal", True) if causal is None else causal
            scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
            maps[layer] = head_mean(query, key, attention_mask, scaling, bool(causal) and attention_mask is None)


def head_mean(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, causal: bool = False) -> Tensor:
    """Attention probabilities averaged over heads, before dropout.

    Args:
        query: [N, heads, S, e].
        key: [N, heads or key heads, S, e].
        mask: bool (True = seen) or additive, broadcastable to [N, heads, S, S]; None = everything is seen.
        causal: whether tokens see only themselves and those before.

    Returns:
        [N, S, S] float32. Rows that see nothing (padding) are uniform. For the backward pass the scores of one
        chunk of rows at a time are computed anew instead of being kept.
    """
    size = max(1, CHUNK // (4 * query.shape[1] * query.shape[2] * key.shape[2]))
    pieces = []
    for start in range(0, len(query), size):
        part = slice(start, start + size)
        piece = mask[part] if mask is not None and len(mask) == len(query) else mask
        if torch.is_grad_enabled() and query.requires_grad:
            pieces.append(checkpoint(_mean, query[part], key[part], piece, scaling, causal, use_reentrant=False))
        else:
            pieces.append(_mean(query[part], key[part], piece, scaling, causal))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _mean(query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, causal: bool) -> Tensor:
    with torch.autocast(query.device.type, enabled=False):
        wide = torch.promote_types(query.dtype, torch.float32)
        query, key = query.to(wide), key.to(wide)
        if key.shape[1] != query.shape[1]:
            key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = (query * scaling) @ key.transpose(-1, -2)
        least = torch.finfo(scores.dtype).min
        if causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(ahead, least)
        if mask is not None:
            scores = scores.masked_fill(~mask, least) if mask.dtype == torch.bool else scores + mask.to(wide)
        return scores.softmax(-1).mean(1)
