"""Keeping a part of a tokenizer's pieces, so that a text whose pieces are kept is encoded exactly as before."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distilvec.alignment.loading import unlimited
from distilvec.corpus.keys import split_pair
from distilvec.errors import DistilvecError
from distilvec.modules.text_ids import check_fast
from distilvec.students.merges import count_parts, merge_pair
from distilvec.students.pieces import is_free

_CHUNK = 2_000
_SAMPLE = 10_000


@dataclass(frozen=True)
class PrunedVocabulary:
    """A smaller tokenizer, and what it does to the texts.

    Attributes:
        tokenizer: a transformers tokenizer.
        kept_ids: int64 [n], the old id of every new id.
        texts_unchanged: share of the texts that are encoded exactly as before, in [0, 1], of at most 10,000.
    """

    tokenizer: Any
    kept_ids: Tensor
    texts_unchanged: float


def prune_tokenizer(
    tokenizer: Any,
    texts: Iterable[str],
    vocabulary: int,
    *,
    domains: Iterable[int] | None = None,
    keep_ids: Iterable[int] = (),
    rows: int | None = None,
) -> PrunedVocabulary:
    """Reduce a tokenizer to the pieces that the texts use most, filled up with its own most frequent others.

    With domains, such as languages, the kept pieces cover the same share of each domain's tokens, whatever its size:
    the next piece is always the most used one of the domain that is covered least.

    A small corpus does not show what other texts of its kind are made of, so the pieces that it leaves free go to those
    that the tokenizer itself ranks first: WordPiece ids and BPE merges are in the order of frequency, Unigram pieces
    have scores. Pieces with characters that the texts do not have come last.

    Always kept: special tokens, bytes (byte-level alphabets and byte fallback), printable ASCII characters and every
    character that the texts use, in the forms for the start and the middle of a word. A BPE piece counts as a use of
    all pieces it is merged from, and is kept only together with them. A text whose pieces are all kept is encoded
    exactly as before, with new ids.

    Args:
        tokenizer: a transformers tokenizer (WordPiece, BPE or Unigram); left as it is.
        texts: read once; a joint item (`corpus.keys.PAIR`) is the pair that it is.
        vocabulary: how many pieces are kept; all where there are fewer.
        domains: number of each text's domain, from 0; None: one domain.
        keep_ids: further ids that must stay.
        rows: rows of the model's embedding table.

    Raises:
        DistilvecError: the tokenizer is of another kind, has more pieces than the table has rows, there are no
            texts, or `vocabulary` is smaller than what is always kept.
    """
    backend = plain_backend(tokenizer)
    spec = json.loads(backend.to_str())
    pieces = {index: piece for piece, index in backend.get_vocab(with_added_tokens=True).items()}
    if rows is not None and max(pieces) >= rows:
        raise DistilvecError(
            f"the tokenizer knows ids up to {max(pieces)}, the model's table has only {rows} rows",
            remedy="Use the tokenizer that belongs to the model.",
        )
    use = _Use(backend, size=max(pieces) + 1)
    use.count(texts, domains)
    required = _required(spec, pieces, use.counts) | {index for index in keep_ids if index in pieces}
    kept = _choose(spec, pieces, use.counts, required, vocabulary)
    # Pieces of the model, then added tokens, as the library numbers them.
    in_model = set(backend.get_vocab(with_added_tokens=False).values())
    order = sorted(kept & in_model) + sorted(kept - in_model)
    reduced = _reduced(spec, pieces, order)
    kept_ids = torch.tensor(order, dtype=torch.long)
    return PrunedVocabulary(_wrap(reduced, tokenizer), kept_ids, use.unchanged(reduced, order))


def _reduced(spec: dict[str, Any], pieces: dict[int, str], order: list[int]) -> Any:
    """The tokenizer with these pieces alone, in this order."""
    from tokenizers import Tokenizer

    reduced = Tokenizer.from_str(json.dumps(_reduce(spec, order)))
    if reduced.get_vocab(with_added_tokens=True) != {pieces[old]: new for new, old in enumerate(order)}:
        raise DistilvecError(
            f"this {spec['model']['type']} tokenizer cannot be pruned: its pieces change their ids when it is saved"
        )
    return reduced


def plain_backend(tokenizer: Any) -> Any:
    """A copy of a tokenizer's `tokenizers.Tokenizer` that neither pads nor truncates, as saved ones do."""
    check_fast(tokenizer)
    return unlimited(getattr(tokenizer, "backend_tokenizer", tokenizer))


class _Use:
    """Counts of the pieces in each domain, int64 [domains, pieces], and a sample of the texts."""

    def __init__(self, backend: Any, size: int) -> None:
        self.backend, self.size = backend, size
        self.counts = np.zeros((1, size), dtype=np.int64)
        self.sample: list[str] = []
        self._draw, self._seen = random.Random(0), 0

    def count(self, texts: Iterable[str], domains: Iterable[int] | None = None) -> None:
        numbers = repeat(0) if domains is None else iter(domains)
        for chunk in chunks(texts):
            for ids, number in zip(encode(self.backend, chunk), numbers, strict=False):
                if number >= len(self.counts):
                    self.counts = np.pad(self.counts, ((0, number + 1 - len(self.counts)), (0, 0)))
                np.add.at(self.counts[number], ids, 1)
            self._keep_some(chunk)
        if self._seen == 0:
            raise DistilvecError(
                "there are no texts to choose word pieces by", where="texts", remedy="Give at least one text."
            )

    def _keep_some(self, chunk: list[str]) -> None:
        """Each text is as likely to be in the sample, however many come (a reservoir with a fixed seed)."""
        for text in chunk:
            self._seen += 1
            if len(self.sample) < _SAMPLE:
                self.sample.append(text)
            elif (place := self._draw.randrange(self._seen)) < _SAMPLE:
                self.sample[place] = text

    def unchanged(self, reduced: Any, order: list[int]) -> float:
        """Share of the sample that is encoded as before."""
        pairs = ((encode(self.backend, chunk), encode(reduced, chunk)) for chunk in chunks(self.sample))
        same = (old == [order[index] for index in new] for both in pairs for old, new in zip(*both, strict=True))
        return sum(same) / len(self.sample)


def encode(backend: Any, texts: list[str]) -> list[list[int]]:
    """Ids of texts, a joint item (`corpus.keys.PAIR`) as the pair that it is, without special tokens."""
    read = [split_pair(text) for text in texts]
    return [encoding.ids for encoding in backend.encode_batch(read, add_special_tokens=False)]


def chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield as many texts as are encoded together."""
    iterator = iter(texts)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _required(spec: dict[str, Any], pieces: dict[int, str], counts: np.ndarray) -> set[int]:
    """Ids that stay whatever the texts are: special tokens, bytes, single characters of the texts and of ASCII."""
    ids = {piece: index for index, piece in pieces.items()}
    model = spec["model"]
    prefix = model.get("continuing_subword_prefix") or ""
    suffix = model.get("end_of_word_suffix") or ""
    required = {entry["id"] for entry in spec["added_tokens"] if entry["special"]}
    required |= set(_processor_ids(spec["post_processor"]))
    names = [model.get("unk_token"), *(f"<0x{byte:02X}>" for byte in range(256)), "▁"]
    if "ByteLevel" in json.dumps([spec["pre_tokenizer"], spec["normalizer"]]):
        from tokenizers.pre_tokenizers import ByteLevel

        names += ByteLevel.alphabet()
    characters = set(string.printable) - set(string.whitespace)
    for index in np.flatnonzero(counts.sum(0)):
        characters |= set(pieces[int(index)].removeprefix(prefix).removesuffix(suffix))
    for character in characters:
        names += [character, prefix + character, character + suffix, prefix + character + suffix]
    required |= {ids[name] for name in names if name in ids}
    if model.get("unk_id") is not None:
        required.add(model["unk_id"])
    return required


def _choose(
    spec: dict[str, Any], pieces: dict[int, str], counts: np.ndarray, required: set[int], vocabulary: int
) -> set[int]:
    """The required ids, those used most with all they are made of, and the tokenizer's next ones up to the budget."""
    kind = spec["model"]["type"]
    if kind not in ("WordPiece", "BPE", "Unigram", "WordLevel"):
        raise DistilvecError(f"a {kind} tokenizer cannot be pruned", remedy="Leave vocabulary out.")
    if vocabulary < len(required):
        raise DistilvecError(
            f"vocabulary is {vocabulary}, but special tokens, bytes and single characters alone are {len(required)}",
            remedy=f"Allow at least {len(required)} pieces.",
        )
    kept = _by_use(spec, pieces, counts, required, vocabulary)
    seen = {character for index in kept for character in pieces[index]}
    for foreign in (False, True):
        if len(kept) >= vocabulary:
            break
        for index in _ranked(spec, pieces, kept):
            if len(kept) < vocabulary and (foreign or seen.issuperset(pieces[index])):
                kept.add(index)
    return kept


def _by_use(
    spec: dict[str, Any], pieces: dict[int, str], counts: np.ndarray, required: set[int], vocabulary: int
) -> set[int]:
    """The required ids and the most used ones, always of the domain that is covered least, up to the budget.

    A BPE piece is used less than its parts, so its parts are in `kept` before it.
    """
    use, order = counts[counts.any(1)].astype(float), []
    for domain in use:
        used = {int(index): int(domain[index]) for index in np.flatnonzero(domain)}
        steps = dict.fromkeys(used, 0)
        if spec["model"]["type"] == "BPE":
            used, steps = count_parts(spec["model"], pieces, used)
            domain[list(used)] = list(used.values())
        ranked = sorted((-count, steps[index], index) for index, count in used.items())
        order.append(iter([index for _, _, index in ranked]))
    use /= use.sum(1, keepdims=True)
    kept, covered = set(required), use[:, list(required)].sum(1)
    while len(kept) < vocabulary and np.isfinite(covered).any():
        least = int(covered.argmin())
        index = next((index for index in order[least] if index not in kept), None)
        if index is None:
            covered[least] = np.inf
        else:
            kept.add(index)
            covered += use[:, index]
    return kept


def _ranked(spec: dict[str, Any], pieces: dict[int, str], kept: set[int]) -> Iterator[int]:
    """The other pieces that a text can hold, the most frequent first as the tokenizer was trained.

    A merged BPE piece comes only once its two parts are in `kept`, which the caller fills.
    """
    model = spec["model"]
    taken = kept | {entry["id"] for entry in spec["added_tokens"]}
    others = [index for index in sorted(pieces) if index not in taken and not is_free(pieces[index])]
    if model["type"] == "Unigram":
        yield from sorted(others, key=lambda index: -model["vocab"][index][1])
        return
    if model["type"] != "BPE":
        yield from others
        return
    ids = {piece: index for index, piece in pieces.items()}
    prefix = model.get("continuing_subword_prefix") or ""
    for left, right in map(merge_pair, model["merges"]):
        index = ids.get(left + right.removeprefix(prefix))
        if index is not None and index not in kept and {ids.get(left), ids.get(right)} <= kept:
            yield index


def _reduce(spec: dict[str, Any], order: list[int]) -> dict[str, Any]:
    """The tokenizer's description with the kept pieces only, under their new ids."""
    new_ids = {old: new for new, old in enumerate(order)}
    model = dict(spec["model"])
    if model["type"] == "Unigram":
        model["vocab"] = [model["vocab"][old] for old in order if old < len(model["vocab"])]
        if model.get("unk_id") is not None:
            model["unk_id"] = new_ids[model["unk_id"]]
    else:
        model["vocab"] = {piece: new_ids[old] for piece, old in model["vocab"].items() if old in new_ids}
    if model["type"] == "BPE":
        vocab, prefix = model["vocab"], model.get("continuing_subword_prefix") or ""
        pairs = [merge_pair(merge) for merge in model["merges"]]
        model["merges"] = [
            [left, right]
            for left, right in pairs
            if left in vocab and right in vocab and left + right.removeprefix(prefix) in vocab
        ]
    added = [{**entry, "id": new_ids[entry["id"]]} for entry in spec["added_tokens"] if entry["id"] in new_ids]
    return {
        **spec,
        "model": model,
        "added_tokens": sorted(added, key=lambda entry: entry["id"]),
        "post_processor": _renumber_processor(spec["post_processor"], new_ids),
    }


def _processor_ids(processor: dict[str, Any] | None) -> list[int]:
    """Ids that a post-processor puts around a text."""
    if processor is None:
        return []
    if processor["type"] == "Sequence":
        return [index for inner in processor["processors"] for index in _processor_ids(inner)]
    if processor["type"] == "TemplateProcessing":
        return [index for token in processor["special_tokens"].values() for index in token["ids"]]
    return [processor[end][1] for end in ("sep", "cls") if end in processor]


def _renumber_processor(processor: dict[str, Any] | None, new_ids: dict[int, int]) -> dict[str, Any] | None:
    if processor is None:
        return None
    if processor["type"] == "Sequence":
        return {**processor, "processors": [_renumber_processor(p, new_ids) for p in processor["processors"]]}
    if processor["type"] == "TemplateProcessing":
        tokens = {
            name: {**token, "ids": [new_ids[index] for index in token["ids"]]}
            for name, token in processor["special_tokens"].items()
        }
        return {**processor, "special_tokens": tokens}
    ends: dict[str, Any] = {
        end: [processor[end][0], new_ids[processor[end][1]]] for end in ("sep", "cls") if end in processor
    }
    return processor | ends


def _wrap(backend: Any, original: Any) -> Any:
    """A transformers tokenizer around the reduced one that behaves like the original otherwise."""
    settings = {
        name: getattr(original, name)
        for name in ("model_max_length", "padding_side", "truncation_side", "model_input_names")
    }
    if getattr(original, "chat_template", None):
        settings["chat_template"] = original.chat_template
    return fast_tokenizer(backend, **settings, **original.special_tokens_map)


def plain_tokenizer(tokenizer: Any) -> Any:
    """The same tokenizer in the class that is saved and opened as it is, whatever model it lies beside."""
    return _wrap(plain_backend(tokenizer), tokenizer)


def fast_tokenizer(backend: Any, **settings: Any) -> Any:
    """A transformers tokenizer around a `tokenizers.Tokenizer`; it is saved as tokenizer.json and loads as it is."""
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=backend, **settings)
