"""From items to the files of a prepared corpus, a batch at a time."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from distilvec.corpus.audit import DUPLICATE, ROLE_NAMES, ColumnNames, Item, Rejections
from distilvec.corpus.columns import ITEMS, LabelColumn, NamedColumn, NumberColumn
from distilvec.corpus.keys import KEY_BYTES, PAIR, SeenKeys, canonical_keys
from distilvec.corpus.split import held_out, leaking

BATCH_ITEMS = 8192
BATCH_CHARACTERS = 8 << 20


class _ItemRow(NamedTuple):
    item: Item
    text: str
    identity: str
    group: int
    role: int


class CorpusWriter:
    """Writes items into a folder: text into one Arrow file, numbers into raw files beside it.

    Args:
        folder: empty.
        holdout: share of items kept out of training.
        prompts: domain -> what its texts begin with, of each column.
    """

    def __init__(
        self,
        folder: Path,
        wanted: ColumnNames,
        holdout: float,
        rejections: Rejections,
        prompts: Mapping[str, Sequence[str]],
    ) -> None:
        import pyarrow as pa

        self.wanted, self.rejections, self.prompts = wanted, rejections, prompts
        self.grouped = len(wanted.text) > 1 and not wanted.joint
        self.holdout = holdout
        names = ["text", *(["teacher_text"] if wanted.teacher_text else [])]
        self._schema = pa.schema([pa.field(name, pa.string(), nullable=False) for name in names])
        self._file = pa.OSFile(str(folder / ITEMS), "wb")
        self._arrow = pa.ipc.new_file(self._file, self._schema)
        self._keys = NumberColumn(folder, "keys", "|u1", KEY_BYTES)
        self._teacher_keys = NumberColumn(folder, "teacher_keys", "|u1", KEY_BYTES) if wanted.teacher_text else None
        # Of the texts without prompts, by which pairs are set aside; not kept.
        self._bare_keys = NumberColumn(folder, "bare_keys", "|u1", KEY_BYTES) if self.grouped and prompts else None
        self._groups = NumberColumn(folder, "groups", "<i8") if self.grouped else None
        self._roles = NumberColumn(folder, "roles", "<i8") if self.grouped or wanted.role else None
        self._rows = [NumberColumn(folder, "train_rows", "<i8"), NumberColumn(folder, "holdout_rows", "<i8")]
        self.labels = LabelColumn(folder)
        self._domains = NamedColumn(folder, "domains") if wanted.domain else None
        self._seen, self._state = SeenKeys(), hashlib.blake2b(digest_size=KEY_BYTES)
        self._waiting: list[_ItemRow] = []
        self._made: dict[bytes, bool] = {}  # key of what was made: whether the source had it, too, later
        self._characters = self._next_group = 0
        if "modality" not in wanted.kind.unsaid:
            self._state.update(wanted.modality.encode())
        self.kept = self.duplicates = self.shared = self.components = 0
        self.lengths: Counter[int] = Counter()

    @property
    def trained_on(self) -> int:
        """Items that are not held out."""
        return self._rows[0].rows

    @property
    def made(self) -> int:
        """Texts made of others that the source lacks."""
        return sum(not came for came in self._made.values())

    def add(self, item: Item) -> None:
        """Take one item; it is written when enough are waiting."""
        for text, identity, place in zip(item.texts, item.identities, count(), strict=False):
            if text is not None and identity is not None:
                # One lesson for all columns: then they are the same thing said in several ways, and none is a negative.
                role = min(place, 1 if self.wanted.teacher_text else 2) if self.grouped else item.role or 0
                self._waiting.append(_ItemRow(item, text, identity, self._next_group, role))
                self._characters += len(text) + len(item.teacher_text or "")
        self._next_group += 1
        self.components += item.components
        if len(self._waiting) >= BATCH_ITEMS or self._characters >= BATCH_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting, without single texts that were there before, unless they are wanted."""
        waiting, self._waiting, self._characters = self._waiting, [], 0
        if not waiting:
            return
        keys = self._keyed([each.identity for each in waiting], waiting)
        fresh = self._seen.add(keys)
        if self._made:
            new = np.array([not self._was_made(key.tobytes()) for key in keys], bool)
            waiting = [each for each, kept in zip(waiting, new.tolist(), strict=True) if kept]
            keys, fresh = keys[new], fresh[new]
        if self.grouped or self.wanted.repeated:
            self.duplicates += int((~fresh).sum())
        else:
            for place in np.flatnonzero(~fresh).tolist():
                self.rejections.add(waiting[place].item.row, DUPLICATE)
            waiting = [waiting[place] for place in np.flatnonzero(fresh).tolist()]
            keys = keys[fresh]
        if waiting:
            held = self._write(waiting, keys)
            if self.wanted.made:
                self._make_more([each for each, left_out in zip(waiting, held.tolist(), strict=True) if not left_out])

    def _make_more(self, texts: list[_ItemRow]) -> None:
        """Write what is made of texts that are trained on, and is not there already."""
        domains = np.array([each.item.domain or "" for each in texts])
        count = round(self.wanted.made * len(texts))
        from distilvec.corpus.made import made_texts

        # Words are taken of the texts alone, and what is made begins with the prompt, as its like do.
        put = [self.prompts.get(domain, ("",))[0] for domain in domains.tolist()]
        bare = [each.text.removeprefix(prompt) for each, prompt in zip(texts, put, strict=True)]
        drawn = made_texts(bare, domains, count, seed=self.kept) if texts else []
        whole = [(place, put[place] + text) for place, text in drawn]
        made = [texts[place]._replace(text=text, identity=text) for place, text in whole]
        if not made:
            return
        keys = self._keyed([each.identity for each in made], made)
        fresh = self._seen.add(keys)
        made = [each for each, new in zip(made, fresh.tolist(), strict=True) if new]
        if made:
            self._write(made, keys[fresh], trained_on=True)
            self._made.update((key.tobytes(), False) for key in keys[fresh])

    def _was_made(self, key: bytes) -> bool:
        """Tell whether a text was made before it came; then it is trained on, whatever its hash says of holding out."""
        came = self._made.get(key)
        if came is None or (came and not self.wanted.repeated):  # then a repetition like any other
            return False
        self._made[key] = True
        return True

    def _keyed(self, identities: Sequence[str], waiting: Sequence[_ItemRow]) -> np.ndarray:
        """Keys [n, 16]. A role column is part of the key; the places in a pair are not."""
        modality = self.wanted.modality
        if not self.wanted.role:
            return canonical_keys(identities, "", modality)
        roles = np.array([each.role for each in waiting])
        keys = np.zeros((len(identities), KEY_BYTES), np.uint8)
        for role in np.unique(roles).tolist():
            of_role = np.flatnonzero(roles == role)
            keys[of_role] = canonical_keys(
                [identities[place] for place in of_role.tolist()], ROLE_NAMES[role], modality
            )
        return keys

    def _write(self, waiting: list[_ItemRow], keys: np.ndarray, trained_on: bool = False) -> np.ndarray:
        """bool [n], what is held out: by the texts' hashes, or nothing where all are `trained_on`."""
        import pyarrow as pa

        texts = [each.text for each in waiting]
        arrays = [pa.array(texts, pa.string())]
        self._keep(self._keys, keys)
        if self._teacher_keys is not None:
            teacher_texts = [each.item.teacher_text or "" for each in waiting]
            arrays.append(pa.array(teacher_texts, pa.string()))
            self._keep(self._teacher_keys, self._keyed(teacher_texts, waiting))
        self._arrow.write_batch(pa.record_batch(arrays, schema=self._schema))
        if self._groups is not None:
            self._keep(self._groups, np.array([each.group for each in waiting], np.int64))
        if self._roles is not None:
            self._keep(self._roles, np.array([each.role for each in waiting], np.int64))
        if self.wanted.label:
            labels = [each.item.label for each in waiting if each.item.label is not None]
            self._state.update(self.labels.write(labels).tobytes())
        if self._domains is not None:
            self._state.update(self._domains.write([each.item.domain or "" for each in waiting]).tobytes())
        bare = self._bare_keys_of(waiting, keys)
        if self._bare_keys is not None:
            self._bare_keys.write(bare)
        held = np.zeros(len(waiting), bool) if trained_on else self._held_out(waiting, bare)
        rows = np.arange(self.kept, self.kept + len(waiting))
        for column, chosen in zip(self._rows, (~held, held), strict=True):
            column.write(rows[chosen])
        if self.wanted.kind.lengths:
            self.lengths.update(map(len, texts))
        self.kept += len(waiting)
        return held

    def _keep(self, column: NumberColumn, values: np.ndarray) -> None:
        column.write(values)
        self._state.update(values.tobytes())

    def _held_out(self, waiting: list[_ItemRow], keys: np.ndarray) -> np.ndarray:
        """By `_bare_keys_of` the rows, [n, 16], in a pair that of its first text."""
        held = held_out(keys, self.holdout)
        if self.grouped:
            groups = np.array([each.group for each in waiting])
            _, first, member = np.unique(groups, return_index=True, return_inverse=True)
            held = held[first][member]
        return held

    def _bare_keys_of(self, waiting: list[_ItemRow], keys: np.ndarray) -> np.ndarray:
        """Keys [n, 16] of the texts alone: without roles and prompts, of joint pairs those of the first texts."""
        if not (self.wanted.role or self.wanted.joint or self.prompts):
            return keys
        return canonical_keys(map(self._bare, waiting), "", self.wanted.modality)

    def _bare(self, row: _ItemRow) -> str:
        """The identity of a text without its part's prompt, of a joint pair that of its first text."""
        prompts = self.prompts.get(row.item.domain or "", ("",))
        place = min(row.role, len(prompts) - 1) if self.grouped else 0
        text = row.identity.partition(PAIR)[0] if self.wanted.joint else row.identity
        return text.removeprefix(prompts[place])

    def _set_aside(self) -> None:
        """Take texts that are also trained on out of the held-out ones; such a row is then on neither side."""
        if not self.grouped:
            return  # equal texts are on one side
        train, held = self._rows
        leaks = leaking((self._bare_keys or self._keys).so_far(), train.so_far(), held.so_far())
        self.shared = int(leaks.sum())
        if self.shared:
            held.keep(~leaks)

    def close(self) -> dict[str, Any]:
        """Finish all files; returns the manifest's part on columns, names and fingerprint."""
        self.flush()
        self._arrow.close()
        self._file.close()
        self._set_aside()
        if self._bare_keys is not None:
            self._bare_keys.close()
            self._bare_keys.path.unlink()
        meant = [self.labels.names, [] if self._domains is None else self._domains.names]
        if any(meant):  # the codes alone are equal for the same groups under other names
            self._state.update(repr(meant).encode("utf-8", "surrogatepass"))
        numbers = [self._keys, self._teacher_keys, self._groups, self._roles, *self._rows]
        columns: dict[str, Any] = {column.name: column.close() for column in numbers if column is not None}
        names: dict[str, list[str]] = {}
        if self._domains is not None:
            columns["domains"], names["domains"] = self._domains.close()
        described, label_names = self.labels.close()
        if described is not None:
            columns["labels"] = described
        if label_names is not None:
            names["labels"] = label_names
        self._state.update(repr(sorted(names.items())).encode("utf-8", "surrogatepass"))
        return {"fingerprint": self._state.hexdigest(), "columns": columns, "names": names}
