"""A text model as a teacher: a sentence-transformers or transformers folder, or a hub id."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import logging
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from distilvec.corpus.keys import split_pair
from distilvec.modules.layouts import has_head
from distilvec.modules.opening import inner_folders, locate, locate_adapters, open_model
from distilvec.modules.pipeline import named_prompt, read_plainly, set_length, set_pooling, side_prompt
from distilvec.modules.promised_tokens import tokens_put
from distilvec.modules.settings import object_in, stated
from distilvec.modules.text_ids import id_count
from distilvec.teachers.base import Capabilities, Teacher
from distilvec.teachers.cards import TeacherCard, bytes_of, describe_folder, fingerprint, hash_files, licence_of
from distilvec.teachers.encoding import Batch, cut_batches, in_room, prepared_batches, stream_batches
from distilvec.teachers.observing import Observer, followed
from distilvec.teachers.padding import quick_tokens
from distilvec.teachers.sections import ModelSection, Reading
from distilvec.teachers.signals import NOTHING, TeacherSignals, Wanted

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Padded tokens of one forward pass. On a CPU about what its caches hold, on a GPU enough to fill it.
BUDGET = {"cpu": 1024, "mps": 8192, "cuda": 32768}
_CHARACTERS_PER_TOKEN = 4


class TextTeacher(Teacher):
    """A frozen text model with its own prompt, pooling, normalisation and maximum length.

    Attributes:
        dtype_open: whether nobody asked for a precision, so that a probe may choose it (`teachers.precision`).
        sides: what the model itself puts before a "query" and a "document"; empty where a text of the caller's own
            stands before all.
    """

    can = Capabilities(local=True)
    model: SentenceTransformer
    dtype_open = False
    _opened: tuple[ModelSection, Reading] | None = None
    _split = False

    def __init__(self, section: ModelSection, reading: Reading) -> None:
        """Open the model; errors are those of `load_teacher`."""
        model, prompt, both_ways = section.address, section.prompt, section.causal is False
        folder = self._settle(section, reading)
        self.model = open_model(
            folder,
            name=model,
            device=str(self.device),
            dtype=stored_dtype(folder, self._dtype),
            trust_remote_code=section.trust_remote_code,
            load=section.load,
        )
        self._opened, self._split = (section, reading), section.load == "split"
        self.model.eval().requires_grad_(False)
        added = [locate_adapters(each) for each in section.adapters]
        if added:
            from distilvec.modules.adapters import merge_adapters

            merge_adapters(self.model, added)
        if both_ways:
            from distilvec.modules.adapters import read_both_ways

            read_both_ways(self.model)
        bare = not (folder / "modules.json").exists()
        self.assumed_pooling = bare and section.pooling is None
        set_pooling(self.model, section.pooling, bare=bare, name=model)
        plain = bare and read_plainly(self.model)
        if both_ways:
            from distilvec.modules.adapters import leave_out_prompt

            leave_out_prompt(self.model)
        set_length(self.model, section.max_length, model)
        if has_head(folder):
            from distilvec.modules.task_head import TaskHead

            self.head = TaskHead.load(folder).to(self.device)
        self.prompts = {key: text for key, text in self.model.prompts.items() if text}
        self.prompt_chosen = prompt is not None
        self.prompt = self._resolve(prompt)
        own = prompt is None or prompt in self.model.prompts
        self.sides = {side: side_prompt(self.model, side) for side in ("query", "document")} if own else {}
        self.tokens = quick_tokens(self.model, self.prompt)
        parts = []
        if added:
            from distilvec.modules.adapters import CONFIG, WEIGHTS

            parts = [hash_files(each, [each / CONFIG, each / WEIGHTS]) for each in added]
        beside: list[Any] = [parts, section.causal] if parts or both_ways else []  # else fingerprints are as they were
        beside += [["first", size] for size in [stated(folder).truncate_dim] if size]
        beside += ["without its chat template"] if plain else []
        beside += [["load", section.load]] if section.load == "int8" else []
        beside += tokens_put(self.model)
        self.card = self._make_card(section, folder, beside)

    def _settle(self, section: ModelSection, reading: Reading) -> Path:
        """Settle device, dtype and budget; the model's folder."""
        self.device = torch.device(reading.device or best_device())
        self._dtype, self.dtype_open = DTYPES[section.dtype or best_dtype(self.device)], section.dtype is None
        self._budget = section.token_budget or BUDGET.get(self.device.type, BUDGET["cuda"])
        return locate(section.address, section.trust_remote_code)

    def compute_in(self, dtype: str) -> None:
        """Compute in another precision from now on; the weights stay as they are held."""
        self._dtype, self.card = DTYPES[dtype], dataclasses.replace(self.card, dtype=dtype)

    def whole(self) -> TextTeacher | None:
        """Open the same model with its weights as they are in its files; None where they are held so already."""
        if self._opened is None or self._opened[0].load != "int8":
            return None
        section, reading = self._opened
        return TextTeacher(section.model_copy(update={"load": None}), reading)

    def rest(self) -> None:
        if self.device.type != "cpu" and not self._split:
            self.model.to("cpu")
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    @torch.inference_mode(False)  # what moves within it are tensors that nothing else may use
    def wake(self) -> None:
        if self.model.device.type != self.device.type and not self._split:
            self.model.to(self.device)

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
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
        """Return what it says about B texts, all in one forward pass where more than sentence vectors is wanted."""
        if not wanted.signals:
            return super().signals(texts, wanted)
        self.refuse(wanted)
        return self._observe(self._features(texts), wanted)

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
    def classes(self) -> int | None:
        """C, where it was fine-tuned to tell classes of single inputs apart."""
        return None if self.head is None or self.head.encoding == "separate" else self.head.classes

    @property
    def hidden(self) -> int | None:
        return self.observer.hidden

    @property
    def causal(self) -> bool:
        return self.observer.causal

    @functools.cached_property
    def final_norm(self) -> bool:
        self.wake()
        features = {key: self._move(value) for key, value in self._preprocess(["A probe."]).items()}
        with self._autocast():
            return self.hidden is not None and self.observer.final_norm(features)

    def contents(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids int64 of the content tokens, their positions without padding) of each text; the model does not run."""
        features = self._features(texts)
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
        return self.sides.get(side, self.prompt) != self.prompt

    def encode_query(self, texts: Sequence[str]) -> np.ndarray:
        return self._on_side("query").encode(texts)

    def encode_document(self, texts: Sequence[str]) -> np.ndarray:
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
        return self._forward(self._features(texts, side)).float().cpu().numpy()

    def rendered(self, text: str) -> tuple[str, int]:
        """The exact string that the model reads, special tokens shown, and its number of tokens."""
        ids = self._preprocess([text]).get("input_ids")
        if not isinstance(ids, Tensor) or not hasattr(self.model.tokenizer, "all_special_ids"):
            return self.prompt + text, 0
        ids = ids.flatten().tolist()
        return self.model.tokenizer.decode(ids, skip_special_tokens=False), len(ids)

    def _features(self, texts: Sequence[str], side: str | None = None) -> dict[str, Any]:
        if self.tokens is None:
            return self._preprocess(texts)
        return self.tokens.features(self.tokens.read(texts), side)

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

    def _make_card(self, section: ModelSection, folder: Path, beside: list[Any]) -> TeacherCard:
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
            name=section.name,
            kind="model",
            source=section.address,
            fingerprint=fingerprint(describe_folder(folder, parts), pooling, self.prompt, length, normalized, *beside),
            width=int(width),
            layers=_count_layers(self.model),
            pooling=pooling,
            prompt=self.prompt or None,
            max_length=length,
            normalized=normalized,
            dtype=str(self._dtype).removeprefix("torch."),
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
    config = object_in(folder / "config.json")
    stored = config.get("dtype") or config.get("torch_dtype")
    return wanted if stored in ("float16", "bfloat16") else torch.float32


def _count_layers(model: nn.Module) -> int | None:
    config: Any = getattr(getattr(next(model.children()), "model", None), "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    layers = getattr(text, "num_hidden_layers", None)
    return layers if isinstance(layers, int) else None
