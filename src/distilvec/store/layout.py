"""The contents of a store's folder, store.json, and the form of keys.

A store is a folder:

    store.json                       schema version, teacher card, width and dtype of each signal, and which store it is
    sentence-<writer>-<n>.arrow      key (16 bytes), vector (fixed-size list), scale (int8, tiny float16); by key
    sentence-<writer>-<n>.json       the part's record, written last: a part without it does not exist
    writer-<writer>.lock             held while that writer is open
    teaching.lock, pull.lock         held while a process teaches all that is missing, or fetches from a copy
    store.lock                       held while store.json, vocabulary.json or axes of token states are written
    derived/index-<parts>.npy        all keys of all parts in one sorted table; rebuilt when missing
    derived/<signal>-index-<parts>.npy    the same of another signal

Files of other signals (`tokens-<layer>-...`, `attention-<layer>-...`, `tokenids-...`, `logits-...`) carry another
prefix and another entry in store.json; their rows are ragged (`distilvec.store.ragged`).
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from distilvec import system_errors
from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.files import locked, read_small
from distilvec.store.files import disk_problems, write_json
from distilvec.validation import first_problem

SCHEMA_VERSION = 1
SIGNAL = "sentence"
VOCABULARY = "vocabulary.json"
KEY_BYTES = 16
DTYPES = {"float16": np.float16, "float32": np.float32, "int8": np.int8}
WRITER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class _Signal(BaseModel):
    model_config = ConfigDict(strict=True)
    width: int = Field(gt=0)
    dtype: str = ""
    fingerprint: str | None = None


class _Card(BaseModel):
    model_config = ConfigDict(strict=True)
    fingerprint: str = Field(min_length=1)


class _StoreContents(BaseModel):
    """The types of what store.json says; it may say more."""

    model_config = ConfigDict(strict=True)
    version: int = Field(alias="schema")
    teacher: _Card
    signals: dict[str, _Signal]
    identity: str = ""

    @field_validator("signals")
    @classmethod
    def _has_vectors(cls, signals: dict[str, _Signal]) -> dict[str, _Signal]:
        if SIGNAL not in signals or signals[SIGNAL].dtype not in DTYPES:
            raise ValueError(f'"{SIGNAL}" is missing, or its dtype is none of {", ".join(DTYPES)}')
        return signals


@dataclass(frozen=True)
class StoreFormat:
    """The contents of store.json.

    Attributes:
        teacher: the teacher's card as a dictionary, with at least `fingerprint`.
        width: D, the width of the sentence vectors.
        dtype: "float16", "float32" or "int8", how their values are stored.
    """

    teacher: dict[str, Any]
    width: int
    dtype: str

    @property
    def fingerprint(self) -> str:
        return str(self.teacher["fingerprint"])


def card_dict(card: Any) -> dict[str, Any]:
    """A teacher card (anything with `to_dict()`, or a mapping) as a dictionary with a fingerprint."""
    if hasattr(card, "to_dict"):
        card = card.to_dict()
    if not isinstance(card, Mapping):
        raise DistilvecError(f"a teacher card is a mapping or has to_dict(), not {type(card).__name__}")
    if not isinstance(card.get("fingerprint"), str) or not card["fingerprint"]:
        raise DistilvecError(
            "the teacher card has no fingerprint, so nothing would notice another teacher's vectors",
            remedy='Give it a key "fingerprint", for example a hash of the weights.',
        )
    return dict(card)


def make_format(card: Any, width: int, dtype: str) -> StoreFormat:
    """Check what a new store is asked to hold."""
    if dtype not in DTYPES:
        raise DistilvecError(f'unknown dtype "{dtype}" for stored vectors', remedy=nearest(str(dtype), DTYPES))
    if width < 1:
        raise DistilvecError(f"the width of stored vectors must be at least 1, not {width}")
    return StoreFormat(card_dict(card), int(width), dtype)


def check_same_teacher(existing: str, other: str, where: Path, card: Mapping[str, Any] | None = None) -> None:
    """Refuse another teacher's vectors.

    Args:
        existing, other: fingerprint of the store, and of the teacher that comes to it.
        card: of that teacher; None = not known.
    """
    if existing != other:
        remedy = "Give this teacher another name or folder, or use the teacher that filled this one."
        if card and card.get("kind") in ("callable", "scorer") and not card.get("prompt"):
            remedy += f' An edited function that answers as before says so: `function.fingerprint = "{existing}"`.'
        if card and card.get("kind") == "scorer":
            remedy += " Scores of a table that has changed: remove this folder, they are read again."
        raise DistilvecError(
            f"the store holds vectors of the teacher with fingerprint {existing}, "
            f"but this teacher's fingerprint is {other}",
            where=str(where),
            remedy=remedy,
        )


@contextmanager
def store_lock(folder: Path) -> Iterator[None]:
    """The lock under which store.json, vocabulary.json and axes of token states are written."""
    with disk_problems(folder), locked(folder / "store.lock", wait=True):
        yield


def write_vocabulary(folder: Path, content: Mapping[str, Any]) -> None:
    """Write vocabulary.json, unless there is one."""
    if not (folder / VOCABULARY).exists():
        with store_lock(folder):
            if not (folder / VOCABULARY).exists():
                write_json(folder / VOCABULARY, content)


def write_format(folder: Path, wanted: StoreFormat, *, anew: bool = False, identity: str | None = None) -> None:
    """Write store.json unless another process was faster; the caller reads back what is there.

    Args:
        anew: over one that is there, if the store holds nothing.
        identity: of the store that this is a copy of; None = it is one of its own.

    Raises:
        DataError: where there are parts of an unknown teacher.
        DistilvecError: where another process is about to fill the store, with another width or dtype.
    """
    content = {
        "schema": SCHEMA_VERSION,
        "teacher": wanted.teacher,
        "signals": {SIGNAL: {"width": wanted.width, "dtype": wanted.dtype}},
        "identity": uuid.uuid4().hex if identity is None else identity,
    }
    target = folder / "store.json"
    with store_lock(folder):
        held = any(folder.glob("*.arrow"))
        if target.exists() and (held or not anew):
            return
        if held:
            raise DataError(
                "there are Arrow files but no store.json, so whose vectors they are is not known",
                where=str(folder),
                remedy="Restore store.json from a copy, or use an empty folder.",
            )
        if target.exists() and _at_work(folder):
            there = read_format(folder)
            if (there.width, there.dtype) == (wanted.width, wanted.dtype):
                return
            raise DistilvecError(
                f"another process is filling this store, with {there.dtype} of width {there.width}, and {wanted.dtype} "
                f"of width {wanted.width} is wanted",
                where=str(folder),
                remedy="Wait for it, or use another folder.",
            )
        write_json(target, content, indent=2)


def _at_work(folder: Path) -> bool:
    """Tell whether a living process teaches or writes; its parts are still in its memory."""
    for file in (*folder.glob("writer-*.lock"), *folder.glob("teaching.lock")):
        with locked(file, wait=False) as free:
            if not free:
                return True
    return False


def check_same_format(folder: Path, store: StoreFormat) -> None:
    """Refuse to write into a store that was made anew since it was opened.

    The caller holds its writer's lock: whoever makes a store anew looks at these under the lock that is taken here.
    """
    with store_lock(folder):
        there = read_format(folder)
    if (there.width, there.dtype) != (store.width, store.dtype):
        raise DistilvecError(
            f"the store was made anew by another process, with {there.dtype} of width {there.width} instead of "
            f"{store.dtype} of width {store.width}",
            where=str(folder),
            remedy="Use another folder, or the same storage.",
        )


def states_fingerprint(teacher: str) -> str:
    """Fingerprint of a teacher's last states after its final norm; up to 0.1 stores kept them as they are before it."""
    return hashlib.blake2b(f"{teacher} after the final norm".encode(), digest_size=16).hexdigest()


def add_signal(folder: Path, signal: str, width: int, dtype: str, fingerprint: str | None = None) -> None:
    """Enter one more signal in store.json, or check that the entry is as wanted.

    Args:
        fingerprint: of what the signal is, where the teacher's fingerprint does not say it all.

    Raises:
        DistilvecError: where the store has the signal with another width or dtype, or from before the final norm.
        EnvironmentProblem: where the folder cannot be written.
    """
    target, wanted = folder / "store.json", {"width": width, "dtype": dtype}
    if fingerprint is not None:
        wanted["fingerprint"] = fingerprint
    with store_lock(folder):
        content = read_contents(folder)
        entry = content["signals"].setdefault(signal, wanted)
        if entry.get("fingerprint") != fingerprint:
            raise DistilvecError(
                f"the store's {signal} were taken before the model's final norm, and last states are those after it "
                f"(fingerprint {entry.get('fingerprint')}, wanted {fingerprint})",
                where=str(folder),
                remedy="Remove this store, or name another folder for stores; the teacher reads the texts again.",
            )
        if entry != wanted:
            raise DistilvecError(
                f"the store has {signal} as {entry}, not as {wanted}",
                where=str(folder),
                remedy="Use another folder for this teacher.",
            )
        write_json(target, content, indent=2)


def note_precision(folder: Path, dtype: str) -> None:
    """Enter in store.json that the teacher computes some of the vectors in this type."""
    with store_lock(folder):
        content = read_contents(folder)
        content["teacher"]["dtype"] = dtype
        write_json(folder / "store.json", content, indent=2)


def read_signals(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what store.json says about each signal: name -> width and dtype."""
    signals: dict[str, dict[str, Any]] = read_contents(folder)["signals"]
    return signals


def read_identity(folder: Path) -> str:
    """Return which store this is: a store that was removed and taught again is another one, a copy is the same.

    "" of a store that versions up to 0.1 began.
    """
    return str(read_contents(folder).get("identity", ""))


def read_format(folder: Path) -> StoreFormat:
    """Return what store.json says of the vectors."""
    content = read_contents(folder)
    signal = content["signals"][SIGNAL]
    return make_format(content["teacher"], signal["width"], signal["dtype"])


def read_contents(folder: Path) -> dict[str, Any]:
    """Read store.json.

    Raises:
        DataError: it is missing, unreadable, or of a newer schema version.
        EnvironmentProblem: it cannot be read now.
    """
    file = folder / "store.json"
    try:
        with system_errors.disk_problems("the store cannot be read", file, "Nothing was changed."):
            return understood(json.loads(read_small(file)), str(file))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(
            "this is not a store: it has no store.json",
            where=str(folder),
            remedy="Teach into a new folder, or restore the file from a copy.",
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(f"{type(error).__name__}: {error}", str(file)) from error


def understood(content: Any, where: str) -> dict[str, Any]:
    """Return what a store.json says, here or on a storage, once its types are those of one."""
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        raise DataError(
            f"the store has schema version {schema}, this distilvec reads up to {SCHEMA_VERSION}",
            where=where,
            remedy="Update distilvec.",
        )
    try:
        _StoreContents.model_validate(content)
    except ValidationError as error:
        raise _damaged(first_problem(error), where) from error
    return dict(content)


def _damaged(problem: str, where: str) -> DataError:
    return DataError(
        f"store.json cannot be understood ({problem})",
        where=where,
        remedy="Restore it from a copy, or teach into a new folder.",
    )


def key_words(keys: Any) -> np.ndarray:
    """Keys uint8 [n, 16] as two 64-bit words each, uint64 [n, 2], by which parts are sorted; a view where it can be."""
    array = np.asarray(keys)
    if array.ndim != 2 or array.shape[1] != KEY_BYTES or array.dtype != np.uint8:
        raise DistilvecError(f"keys must be uint8 [n, {KEY_BYTES}], not {array.dtype} {list(array.shape)}")
    return np.ascontiguousarray(array).view("<u8")
