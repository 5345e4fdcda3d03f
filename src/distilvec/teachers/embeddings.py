"""Reads what an embedding service answers: every JSON that comes from outside passes here, through typed models."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

#: A count beyond this is a mistake of the service: no text has more tokens.
_MOST_TOKENS_OF_A_TEXT = 10_000_000
_MOST_OCTAVES = 5.0


class UnreadableError(ValueError):
    """An answer does not hold one vector of finite numbers for each text.

    Attributes:
        no_vectors: whether it is no answer with vectors at all.
    """

    def __init__(self, what: str, *, no_vectors: bool = False) -> None:
        super().__init__(what)
        self.no_vectors = no_vectors


def or_none(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """Take a field that cannot be read as missing: nobody loses vectors that are paid for because of it."""
    try:
        return read(value)
    except ValidationError:
        return None


class _Usage(BaseModel):
    prompt_tokens: Annotated[int | None, WrapValidator(or_none)] = None
    total_tokens: Annotated[int | None, WrapValidator(or_none)] = None


class _EmbeddingRow(BaseModel):
    index: int | None = None
    embedding: str | Annotated[list[float], Field(fail_fast=True)]


class _Content(BaseModel):
    data: Annotated[list[_EmbeddingRow], Field(fail_fast=True)]
    usage: Annotated[_Usage | None, WrapValidator(or_none)] = None


class _Named(BaseModel):
    """An error as OpenAI's API writes it; others write a plain text in its place."""

    message: str


class _Failure(BaseModel):
    error: Annotated[_Named | str | None, WrapValidator(or_none)] = None
    detail: Annotated[str | None, WrapValidator(or_none)] = None
    message: Annotated[str | None, WrapValidator(or_none)] = None


@dataclass
class EmbeddingsAnswer:
    """One answer.

    Attributes:
        vectors: float32 [n, D], in the order of the texts.
        tokens: that the service counted; None = it does not say.
        packed: whether the numbers came as base64.
    """

    vectors: np.ndarray
    tokens: int | None
    packed: bool


def read_embeddings(content: bytes | dict[str, Any], count: int) -> EmbeddingsAnswer:
    """The vectors of an answer to `count` texts, as JSON or parsed already.

    Raises:
        UnreadableError: it has other than one vector of finite numbers for each text.
    """
    try:
        read: Any = _Content.model_validate if isinstance(content, dict) else _Content.model_validate_json
        answer: _Content = read(content)
    except ValidationError as problem:
        fault = problem.errors(include_url=False, include_input=False)[-1]
        place = ".".join(str(step) for step in fault["loc"])
        if len(fault["loc"]) < 2:
            raise UnreadableError("what holds no vectors", no_vectors=True) from problem
        raise UnreadableError(f"vectors that cannot be read ({place}: {fault['msg']})") from problem
    rows = answer.data
    given = [row.index for row in rows]
    places = [place if index is None else index for place, index in enumerate(given)]
    if len(rows) != count or {*places} != {*range(count)}:
        told = f" with the indexes {str(given)[:80]}" if len(rows) == count else ""
        raise UnreadableError(f"{len(rows)} vectors for {count} texts{told}")
    packed = any(isinstance(row.embedding, str) for row in rows)
    try:
        vectors = np.stack([_numbers(rows[row].embedding) for row in np.argsort(places)])
    except (ValueError, OverflowError) as problem:
        raise UnreadableError(f"vectors that cannot be read ({problem}){_plainly(packed)}") from problem
    if not vectors.shape[1] or not np.isfinite(vectors).all():
        raise UnreadableError(f"vectors that are not finite numbers{_plainly(packed)}")
    return EmbeddingsAnswer(vectors, _tokens(answer.usage, count), packed)


def scattered(vector: np.ndarray) -> bool:
    """Tell numbers of another precision that were read as float32 [D]: their exponents are all over the place.

    The binary logarithms of an embedding's numbers deviate by 1 to 3 from each other, those of float16 that was read as
    float32 by 6 and more, those of float64 and of the other byte order by 25 and more.
    """
    sizes = np.abs(vector[vector != 0])
    return sizes.size > 1 and float(np.log2(sizes).std()) > _MOST_OCTAVES


def _plainly(packed: bool) -> str:
    return "; its base64 may hold other than float32: set api.encoding: float" if packed else ""


def _numbers(given: str | list[float]) -> np.ndarray:
    if isinstance(given, str):
        return np.frombuffer(base64.b64decode(given, validate=True), "<f4").astype(np.float32)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        return np.asarray(given, dtype=np.float32)


def _tokens(usage: _Usage | None, count: int) -> int | None:
    tokens = usage and (usage.prompt_tokens or usage.total_tokens)
    return tokens if tokens and 0 < tokens <= count * _MOST_TOKENS_OF_A_TEXT else None


def read_failure(content: bytes) -> str:
    """Return what a service says of a failure, in one line."""
    text = content[:4000].decode("utf-8", "replace")
    try:
        failure = _Failure.model_validate_json(content)
    except ValidationError:
        return " ".join(text.split())
    error = failure.error.message if isinstance(failure.error, _Named) else failure.error
    return " ".join((error or failure.detail or failure.message or text).split())
