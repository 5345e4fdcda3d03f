"""A text model as a teacher: a sentence-transformers or transformers folder, or a hub id."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from distilvec.corpus.keys import split_pair
from distilvec.errors import DistilvecError, nearest
from distilvec.modules.adapters import CONFIG, WEIGHTS, leave_out_prompt, merge_adapters, read_both_ways
from distilvec.modules.guarded import cut_in
from distilvec.modules.opening import inner_folders, locate, locate_adapters, open_model
from distilvec.modules.pipeline import (
    PoolingChoice,
    named_prompt,
    read_plainly,
    set_length,
    set_pooling,
    side_prompt,
)
from distilvec.modules.promised_tokens import tokens_put
from distilvec.modules.task_head import TaskHead, has_head
from distilvec.modules.text_ids import id_count
from distilvec.teachers.base import SentenceTeacher
from distilvec.teachers.cards import TeacherCard, bytes_of, describe_folder, fingerprint, hash_files, licence_of
from distilvec.teachers.encoding import Batch, cut_batches, in_room, prepared_batches, stream_batches
from distilvec.teachers.observing import Observer, followed
from distilvec.teachers.padding import quick_tokens
from distilvec.teachers.signals import NOTHING, TeacherSignals, Wanted

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Padded tokens of one forward pass. On a CPU about what its caches hold, on a GPU enough to fill it.
BUDGET = {"cpu": 1024, "mps": 8192, "cuda": 32768}
_CHARACTERS_PER_TOKEN = 4


class TextTeacher(SentenceTeacher):
    """A frozen text model with its own prompt, pooling, normalisation and maximum length.

    Attributes:
        card: who it is.
        model: the `SentenceTransformer`.
        prompts: the prompts that the model brings, by name.
        prompt_chosen: whether a prompt (or none) was asked for, rather than left to the model's default.
        sides: what the model itself puts before a "query" and a "document"; empty where a text of the caller's own
            stands before all.
        head: of the task that it was fine-tuned on, None without one.
        tokens: its quick tokenizer, None where only the model's own `preprocess` knows how.
        assumed_pooling: whether neither the folder nor the caller says anything about pooling, so that it was chosen by
            the kind of model.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        name: str = "teacher",
        prompt: str | None = None,
        max_length: int | None = None,
        pooling: PoolingChoice | None = None,
        device: str | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
        token_budget: int | None = None,
        adapters: Sequence[str | Path] = (),
        causal: Literal[False] | None = None,
    ) -> None:
        """Open the model. See `load_teacher` for the arguments and errors."""
        folder = locate(model, trust_remote_code)
        self.device = torch.device(device or best_device())
        dtype_name = dtype or best_dtype(self.device)
        if dtype_name not in DTYPES:
            raise DistilvecError(f'unknown dtype "{dtype_name}"', where=name, remedy=nearest(dtype_name, DTYPES))
        self._dtype = DTYPES[dtype_name]
        self.model = open_model(
            folder,
            name=str(model),
            device=str(self.device),
            dtype=stored_dtype(folder, self._dtype),
            trust_remote_code=trust_remote_code,
        )
        self.model.eval().requires_grad_(False)
        added = [locate_adapters(each) for each in adapters]
        if added:
            merge_adapters(self.model, added)
        if causal is False:
            read_both_ways(self.model)
        bare = not (folder / "modules.json").exists()
        self.assumed_pooling = bare and pooling is None
        set_pooling(self.model, pooling, bare=bare, name=str(model))
        plain = bare and read_plainly(self.model)
        if causal is False:
            leave_out_prompt(self.model)
        set_length(self.model, max_length, str(model))
        self.head = TaskHead.load(folder).to(self.device) if has_head(folder) else None
        self.prompts = {key: text for key, text in self.model.prompts.items() if text}
        self.prompt_chosen = prompt is not None
        self.prompt = self._resolve(prompt)
        own = prompt is None or prompt in self.model.prompts
        self.sides = {side: side_prompt(self.model, side) for side in ("query", "document")} if own else {}
        self.tokens = quick_tokens(self.model, self.prompt)
        self._budget = token_budget or BUDGET.get(self.device.type, BUDGET["cuda"])
        parts = [hash_files(each, [each / CONFIG, each / WEIGHTS]) for each in added]
        beside: list[Any] = [parts, causal] if parts or causal is False else []  # else fingerprints are as they were
        beside += [["first", size] for size in [cut_in(folder)] if size]
        beside += ["without its chat template"] if plain else []
        beside += tokens_put(self.model)
        self.card = self._make_card(name, str(model), folder, dtype_name, beside)

    def rest(self) -> None:
        """Leave the memory of a GPU to others; asked again, the model goes back there by itself."""
        if self.device.type != "cpu":
            self.model.to("cpu")
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    @torch.inference_mode(False)  # what moves within it are tensors that nothing else may use
    def wake(self) -> None:
        """Bring the model back to its device, where it rests elsewhere."""
        if self.model.device.type != self.device.type:
            self.model.to(self.device)

    def stream(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs (positions int64 [b], vectors float32 [b, D]) until every text was given once, longest first."""
        yield from stream_batches(texts, self._prepare, self._forward, self._too_large)

    def observe(self, texts: Sequence[str], wanted: Wanted) -> Iterator[tuple[np.ndarray, TeacherSignals]]:
        """Pairs (positions int64 [b], their signals on the CPU) until every text was given once, longest first."""
        self.refuse(wanted)
        if not wanted.signals:
            yield from super().observe(texts, wanted)
            return
        batches = prepared_batches(texts, self._prepare)
        yield from in_room(batches, functools.partial(self._observe, wanted=wanted), self._too_large)

    def signals(self, texts: Sequence[str], wanted: Wanted = NOTHING) -> TeacherSignals:
        """What it says about B texts, all in one forward pass where more than sentence vectors is wanted."""
        if not wanted.signals:
            return super().signals(texts, wanted)
        self.refuse(wanted)
        features = self._preprocess(texts) if self.tokens is None else self.tokens.features(self.tokens.read(texts))
        return self._observe(features, wanted)

    @torch.no_grad()  # not inference mode: what it gives goes into training steps
    def _observe(self, features: dict[str, Any], wanted: Wanted) -> TeacherSignals:
        self.wake()
        features = {key: self._move(value) for key, value in features.items()}
        return self.observer(features, wanted, self._autocast())

    @functools.cached_property
    def observer(self) -> Observer:
        """Looks at its tokens."""
        return Observer(self.model, self.prompt, self.head)

    @property
    def classes(self) -> int | None:  # type: ignore[override]
        """C, where it was fine-tuned to tell classes of single inputs apart."""
        return None if self.head is None or self.head.encoding == "separate" else self.head.classes

    @property
    def hidden(self) -> int | None:  # type: ignore[override]
        """Width of its token states."""
        return self.observer.hidden

    @property
    def causal(self) -> bool:  # type: ignore[override]
        """Whether its tokens see only those before them."""
        return self.observer.causal

    @functools.cached_property
    def final_norm(self) -> bool:  # type: ignore[override]
        """Whether its last states have passed a norm after the last block, as those of decoders and ModernBERT."""
        self.wake()
        features = {key: self._move(value) for key, value in self._preprocess(["A probe."]).items()}
        with self._autocast():
            return self.hidden is not None and self.observer.final_norm(features)

    def contents(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids int64 of the content tokens, their positions without padding) of each text; the model does not run."""
        features = self._preprocess(texts) if self.tokens is None else self.tokens.features(self.tokens.read(texts))
        ids, mask = features["input_ids"], features["attention_mask"].bool()
        content = self.observer.content(ids, mask)
        contents = []
        for row, real, kept in zip(ids, mask, content, strict=True):
            at = kept[real].nonzero()[:, 0]
            contents.append((row[real][at].numpy(), at.numpy()))
        return contents

    @property
    def vocabulary(self) -> list[str]:
        """Token strings by id, as its tokenizer calls them."""
        tokenizer = self.model.tokenizer
        return [str(token or "") for token in tokenizer.convert_ids_to_tokens(range(id_count(tokenizer)))]

    def has_side(self, side: str) -> bool:
        """Whether it reads a "query" or a "document" with another prompt of its own than texts as such."""
        return self.sides.get(side, self.prompt) != self.prompt

    def encode_query(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] of search queries, with the model's own prompt for them where it has one."""
        return self._on_side("query").encode(texts)

    def encode_document(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] of documents to be found, with the model's own prompt for them where it has one."""
        return self._on_side("document").encode(texts)

    def _on_side(self, side: str) -> TextTeacher:
        if not self.has_side(side):
            return self
        other = copy.copy(self)
        other.__dict__.pop("observer", None)  # it knows the prompt
        other.prompt = self.sides[side]
        other.tokens = quick_tokens(self.model, other.prompt)
        return other

    def together(self, texts: Sequence[str], side: str | None = None) -> np.ndarray:
        """float32 [n, D], all texts in one forward pass, padded on `side` (default: the model's own side)."""
        if self.tokens is None:
            return self._forward(self._preprocess(texts)).float().cpu().numpy()
        return self._forward(self.tokens.features(self.tokens.read(texts), side)).float().cpu().numpy()

    def rendered(self, text: str) -> tuple[str, int]:
        """The exact string that the model reads, special tokens shown, and its number of tokens."""
        ids = self._preprocess([text]).get("input_ids")
        if not isinstance(ids, Tensor) or not hasattr(self.model.tokenizer, "all_special_ids"):
            return self.prompt + text, 0
        ids = ids.flatten().tolist()
        return self.model.tokenizer.decode(ids, skip_special_tokens=False), len(ids)

    def _preprocess(self, texts: Sequence[str]) -> dict[str, Any]:
        return dict(self.model.preprocess([split_pair(text) for text in texts], prompt=self.prompt or None))

    def _prepare(self, texts: Sequence[str]) -> list[Batch]:
        if self.tokens is None:
            lengths = np.array([len(self.prompt + text) // _CHARACTERS_PER_TOKEN + 2 for text in texts])
            batches = cut_batches(lengths, self._budget, waste=1.0)
            return [(rows, self._preprocess([texts[row] for row in rows])) for rows in batches]
        found = self.tokens.read(texts)
        lengths = np.fromiter((len(each) for each in found), np.int64, len(found))
        batches = cut_batches(lengths, self._budget)
        return [(rows, self.tokens.features([found[row] for row in rows])) for rows in batches]

    def _too_large(self, tokens: int) -> None:
        """Read less at once from now on: the device had no room for so many padded tokens."""
        self._budget = min(self._budget, max(1, tokens // 2))
        logger.warning("%s: no room for %d padded tokens, reading %d at once", self.card.name, tokens, self._budget)

    @torch.inference_mode()
    def _forward(self, features: dict[str, Any]) -> Tensor:
        """Sentence vectors [b, D] of one batch. Pooling and what follows it run in float32."""
        self.wake()
        features = {key: self._move(value) for key, value in features.items()}
        first, *rest = self.model.children()
        with self._autocast():
            features = first(features)
        if isinstance(features.get("token_embeddings"), Tensor):
            features["token_embeddings"] = features["token_embeddings"].float()
        for module in rest:
            features = followed(module, features)
        return features["sentence_embedding"]

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self._dtype)

    def _move(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or self.device.type == "cpu":
            return value
        if self.device.type == "cuda":
            return value.pin_memory().to(self.device, non_blocking=True)
        return value.to(self.device)

    def _resolve(self, prompt: str | None) -> str:
        if prompt is None:
            return self.prompts.get(self.model.default_prompt_name or "", "")
        found = named_prompt(self.model, prompt)
        if prompt in self.model.prompts:
            logger.info('"%s" is the name of a prompt of this model: %r', prompt, found)
        return found

    def _make_card(self, name: str, source: str, folder: Path, dtype: str, beside: list[Any]) -> TeacherCard:
        from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

        modules = list(self.model.children())
        pooling = next((module.pooling_mode for module in modules if isinstance(module, Pooling)), None)
        if isinstance(pooling, tuple):
            pooling = "+".join(pooling)
        length = self.model.max_seq_length
        length = None if length is None or length > 10**9 else int(length)
        normalized = isinstance(modules[-1], Normalize)
        width = self.model.get_embedding_dimension()
        if width is None:
            width = int(self.together(["A probe."]).shape[1])
        parts = inner_folders(folder) + (["task"] if self.head is not None else [])
        return TeacherCard(
            name=name,
            kind="model",
            source=source,
            fingerprint=fingerprint(
                describe_folder(folder, parts),
                pooling,
                self.prompt,
                length,
                normalized,
                *beside,
            ),
            width=int(width),
            layers=_count_layers(self.model),
            pooling=pooling,
            prompt=self.prompt or None,
            max_length=length,
            normalized=normalized,
            dtype=dtype,
            licence=licence_of(folder),
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            size_bytes=bytes_of(folder, parts),
        )


def best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def best_dtype(device: torch.device) -> str:
    if device.type != "cuda":
        return "float32"
    return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"


def stored_dtype(folder: Path, wanted: torch.dtype) -> torch.dtype:
    """Hold the weights in half precision only where the files do: otherwise autocast, which loses less."""
    import json

    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return torch.float32
    stored = config.get("dtype") or config.get("torch_dtype")
    return wanted if stored in ("float16", "bfloat16") else torch.float32


def _count_layers(model: nn.Module) -> int | None:
    config = getattr(getattr(next(model.children()), "model", None), "config", None)
    if config is None:
        return None
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    layers = getattr(text, "num_hidden_layers", None)
    return int(layers) if isinstance(layers, int) else None
