"""From texts to padded token ids as a model's own `preprocess` makes them, and nothing that is not needed for it."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from distilvec.errors import DistilvecError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Encoding

#: Characters that hardly any vocabulary holds all of.
_RARE = "\ue000 ☃ 𓀀 ꙮ 龘 ж ক 🜚"
#: How texts are cut, unless a tokenizer says otherwise.
_USUAL = {"direction": "right", "strategy": "longest_first"}


class TextIds:
    """A tokenizer with a prompt and a maximum length.

    It works on a copy of the tokenizer's core, so that it may run in another thread than whatever else uses it, and
    without character offsets or transformers' copies of each encoding.

    Args:
        tokenizer: of transformers, with a Rust core; or the bare `tokenizers.Tokenizer` of static embeddings, which
            adds no special tokens and cuts by itself, if at all.
        limit: tokens per text; longer ones are cut. None, infinite or astronomic = nothing is cut.
        prompt: put before every text.

    Attributes:
        bare: whether it is a bare tokenizer.
        limit: as int, or None.
    """

    def __init__(self, tokenizer: Any, limit: float | None, prompt: str = "") -> None:
        from tokenizers import Tokenizer

        check_fast(tokenizer)
        self.bare, self.prompt = not hasattr(tokenizer, "backend_tokenizer"), prompt
        if self.bare:
            limit = tokenizer.truncation["max_length"] if tokenizer.truncation else None
        self.limit = None if limit is None or limit > 10**9 else int(limit)
        self._core = tokenizer if self.bare else Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        if not self.bare:  # once and for all: a core must not be changed while another thread encodes with it
            self._core.no_padding()
            if self.limit is None:
                self._core.no_truncation()
            else:
                self._core.enable_truncation(self.limit, direction=tokenizer.truncation_side)

    @functools.cached_property
    def _uncut(self) -> Any:
        from tokenizers import Tokenizer

        core = Tokenizer.from_str(self._core.to_str())
        core.no_truncation()
        return core

    def encode(self, texts: Sequence[str | tuple[str, str]], *, whole: bool = False) -> list[Encoding]:
        """Ids, segments and what was cut off, text by text.

        Args:
            texts: single ones, and pairs that are read as the tokenizer's own encoding of both.
            whole: nothing is cut.
        """
        first = self.prompt
        prompted = [first + text if isinstance(text, str) else (first + text[0], text[1]) for text in texts]
        if self.bare:
            return list(self._core.encode_batch(prompted, add_special_tokens=False))
        return list((self._uncut if whole else self._core).encode_batch_fast(prompted))

    def describe(self) -> str:
        """Return what the ids depend on besides the texts."""
        cut = self._core.truncation or _USUAL
        unusual = "".join(f"{name} {cut[name]}|" for name, usual in _USUAL.items() if cut[name] != usual)
        return f"{settings_of(self._core)}|{self.limit}|{unusual}{self.prompt}"


def id_count(tokenizer: Any) -> int:
    """Rows of a table with one for every id: more than there are pieces, where their ids have gaps."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def check_fast(tokenizer: Any, where: str | None = None) -> None:
    """Refuse a tokenizer without a core in Rust, whose ids nothing but its own calls can tell."""
    from tokenizers import Tokenizer

    if not isinstance(tokenizer, Tokenizer) and not hasattr(tokenizer, "backend_tokenizer"):
        raise DistilvecError(
            f"its tokenizer, {type(tokenizer).__name__}, is written in Python, and a student needs a fast one",
            where=where,
            remedy="Choose a student whose folder holds tokenizer.json; a model with this tokenizer can be a teacher.",
        )


def check_unknown(tokenizer: Any, where: str) -> None:
    """Refuse a tokenizer that fails on what its vocabulary lacks: a token for unknown pieces, or around a pair."""
    from tokenizers import Tokenizer

    core = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(core, Tokenizer):
        return
    try:
        core.encode(_RARE, _RARE)
    except BaseException as problem:  # tokenizers raises no narrower kind; where Rust panics, not even an Exception
        if isinstance(problem, KeyboardInterrupt | SystemExit):
            raise
        raise DistilvecError(
            f"its tokenizer fails on what its vocabulary lacks ({problem})",
            where=where,
            remedy='Name an unknown token in tokenizer.json: "unk_token" (or "unk_id") and "vocab" of its "model"; its '
            '"post_processor" may name known tokens alone.',
        ) from problem


def settings_of(core: Any) -> str:
    """All of a `tokenizers.Tokenizer` but what the last call asked for, which every call sets anew."""
    settings = json.loads(core.to_str())
    settings.pop("truncation", None)
    settings.pop("padding", None)
    return json.dumps(settings, sort_keys=True)


def places(lengths: np.ndarray, side: str) -> np.ndarray:
    """Return where the tokens of texts stand in a padded table: bool [B, longest, at least 1], padding on `side`."""
    positions = np.arange(max(int(lengths.max()), 1))[None, :]
    if side == "left":
        return np.asarray(positions >= positions.size - lengths[:, None])
    return np.asarray(positions < lengths[:, None])


def padded(values: np.ndarray, real: np.ndarray, fill: int = 0) -> np.ndarray:
    """Values of all tokens, text behind text, in a table int64 [B, T] at the `places` that are real."""
    table = np.full(real.shape, fill, np.int64)
    table[real] = values
    return table


def own_features(
    model: SentenceTransformer, texts: Sequence[Any], prompt: str, ids: Sequence[Sequence[int]]
) -> dict[str, Any] | None:
    """Return what `model.preprocess` makes of texts or pairs; None where its ids are not those given."""
    features: dict[str, Any] = dict(model.preprocess(list(texts), prompt=prompt or None))
    own, mask = features.get("input_ids"), features.get("attention_mask")
    if not isinstance(own, Tensor):
        return None
    flat = own if mask is None else own[mask.bool()]
    return features if flat.tolist() == [token for each in ids for token in each] else None
