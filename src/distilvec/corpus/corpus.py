"""A prepared corpus: audited, de-duplicated, split, and memory-mapped."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from distilvec.corpus.audit import DUPLICATE, ROLE_NAMES, Audit, Problem, Rejections, check, percentiles
from distilvec.corpus.column_names import ColumnNames, ColumnOptions
from distilvec.corpus.columns import ITEMS, TextColumn, open_numbers
from distilvec.corpus.files import FORMAT, new_files, publish, read_manifest, source_digest
from distilvec.corpus.keys import PAIR, canonical_keys, folded
from distilvec.corpus.sources import Part, Source, find_source
from distilvec.corpus.split import USUAL_SHARE, share_for
from distilvec.corpus.writer import CorpusWriter
from distilvec.errors import DataError, DistilvecError
from distilvec.kinds.base import Kind, find_kind
from distilvec.progress import Ticker
from distilvec.system_errors import disk_problems

_LOG = logging.getLogger(__name__)
REJECTED = "rejected.jsonl"


def _scores(labels: np.ndarray) -> np.ndarray:
    """Numbers as float32; whole ones that are too large for it (identifiers, in a column with gaps) as int64."""
    scores = labels.astype(np.float32)
    whole = np.asarray(labels == np.round(labels)).all() and (scores != labels).any()
    return np.asarray(labels.astype(np.int64)) if whole else scores


class Corpus:
    """Items by row, with what is known about them. Open one with `Corpus.open` or `read_corpus`.

    An item is a string: a text, the absolute path or the data URI of an image, the canonical SMILES of a molecule.
    n items; all arrays are read-only views of files and cost no memory.

    Attributes:
        folder: where it lies.
        fingerprint: equal for equal content in equal order.
        modality: text, image or molecule: what the strings of `texts` are.
        audit: what was found while reading.
        keys: uint8 [n, 16], of the text the student reads.
        teacher_keys: uint8 [n, 16], of the text the teacher reads.
        labels: int64 [n] class index or whole number, or float32 [n] score; None without a label column.
        label_names: sorted, by class index; None where labels are numbers.
        domains: int64 [n] index into `domain_names` (sorted), or None.
        weights: float64 [number of domains], how often an epoch reads each of their items; None = once.
        parted: whether its domains are the sources that it was put together from.
        prompts: name -> what stands before such texts here, and is shipped with the student; mostly empty.
        groups: int64 [n], equal for the texts of one pair or triplet, or None.
        roles: int64 [n], 0 anchor or query, 1 positive or document, 2 negative, or None.
        train_rows, holdout_rows: int64, ascending; together all rows but those of `audit.shared`.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], batches: Sequence[Any]) -> None:
        columns, names = manifest["columns"], manifest["names"]

        def required(name: str) -> np.ndarray:
            return open_numbers(folder, name, columns[name])

        def numbers(name: str) -> np.ndarray | None:
            return required(name) if name in columns else None

        self.folder = folder
        self.fingerprint: str = manifest["fingerprint"]
        self.audit = Audit(**manifest["audit"])
        self.modality = self.audit.modality
        self.kind = find_kind(self.modality)
        self.keys = required("keys")
        teacher_keys = numbers("teacher_keys")
        self.teacher_keys = self.keys if teacher_keys is None else teacher_keys
        labels = numbers("labels")
        self.labels = labels if labels is None or labels.dtype.kind != "f" else _scores(labels)
        self.domains, self.groups, self.roles = numbers("domains"), numbers("groups"), numbers("roles")
        self.label_names: list[str] | None = names.get("labels")
        self.domain_names: list[str] | None = names.get("domains")
        parts = manifest.get("parts", {})
        self.prompts: dict[str, str] = parts.get("prompts", {})
        self._begin: dict[str, list[str]] = parts.get("begin", {})
        self.parted = bool(parts)
        weights: dict[str, float] = parts.get("weights", {})
        even = all(weight == 1 for weight in weights.values())
        self.weights = None if even else np.array([weights[name] for name in self.domain_names or ()])
        self.train_rows, self.holdout_rows = required("train_rows"), required("holdout_rows")
        self._texts = TextColumn(batches, "text")
        self._teacher_texts = self._texts if teacher_keys is None else TextColumn(batches, "teacher_text")

    @classmethod
    def open(cls, folder: str | Path, fingerprint: str | None = None) -> Corpus:
        """Open a prepared corpus.

        Args:
            fingerprint: of the one that is meant; None = whichever lies there.

        Raises:
            DataError: there is none, it is another one, or a file of it is missing or damaged.
        """
        import pyarrow as pa

        folder = Path(folder)
        manifest = read_manifest(folder)
        try:
            with disk_problems("the prepared corpus cannot be read", folder):
                file = pa.ipc.open_file(pa.memory_map(str(folder / ITEMS)))
                batches = [file.get_batch(number) for number in range(file.num_record_batches)]
                found = cls(folder, manifest, batches)
        except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"the prepared corpus is damaged ({error})",
                where=str(folder),
                remedy="Remove the folder and read the corpus again.",
            ) from error
        if fingerprint not in (None, found.fingerprint):
            raise DataError(
                "another run has prepared another corpus in this folder meanwhile",
                where=str(folder),
                remedy="Run the same command again; give recipes with different corpora that run at once caches of "
                "their own.",
            )
        return found

    def taken_as(self, kind: Kind) -> Corpus:
        """The same items for another use, as pairs of texts are also prompts with answers."""
        taken = copy.copy(self)
        taken.kind = kind
        return taken

    def __len__(self) -> int:
        return len(self._texts)

    def texts(self, rows: Sequence[int] | np.ndarray | None = None) -> list[str]:
        """Return what the student reads, for rows in the given order (all where None).

        Raises:
            IndexError: a row that does not exist.
        """
        return self._texts.get(rows)

    def teacher_texts(self, rows: Sequence[int] | np.ndarray | None = None) -> list[str]:
        """Return what the teacher reads: the same, unless the corpus has a column of its own for it."""
        return self._teacher_texts.get(rows)

    def bare(self, rows: np.ndarray) -> list[str]:
        """`texts` without the prompts that their parts put before them."""
        texts = self.texts(rows)
        if not self._begin or self.domains is None or self.domain_names is None:
            return texts
        begin = [self._begin.get(name, [""]) for name in self.domain_names]
        second = np.zeros(len(rows), bool) if self.groups is None or self.roles is None else self.roles[rows] > 0
        of = zip(texts, self.domains[rows].tolist(), second.tolist(), strict=True)
        return [text.removeprefix(begin[domain][min(int(late), len(begin[domain]) - 1)]) for text, domain, late in of]

    def epoch_items(self, rows: np.ndarray) -> int:
        """Return how many items an epoch over these rows reads, weights counted."""
        if self.weights is None or self.domains is None:
            return len(rows)
        values, kinds = np.unique(self.weights, return_inverse=True)  # as the sampler counts
        return int(np.round(values * np.bincount(kinds[self.domains[rows]], minlength=len(values))).sum())

    def overlap(self, texts: Iterable[str]) -> int:
        """Return how many distinct texts (images, molecules) that are trained on are also among these.

        Texts are compared without case and surrounding white space, of a joint pair each of the two; images and
        molecules by their keys.
        """
        return self.overlaps({"": texts})[""]

    def overlaps(self, texts: Mapping[str, Iterable[str]]) -> dict[str, int]:
        """`overlap` of each of several lists by name, in one reading of what is trained on."""
        if not self.kind.folded:
            return {name: self._overlap_by_key(items) for name, items in texts.items()}
        lists: dict[str, set[str]] = {}
        for name, items in texts.items():
            for text in items:
                lists.setdefault(folded(text), set()).add(name)
        rows = self.train_rows if lists else self.train_rows[:0]
        shared: set[str] = set()
        for start in range(0, len(rows), 10_000):
            for text in map(str.casefold, self.bare(rows[start : start + 10_000])):
                shared |= {text, *text.split(PAIR)} & lists.keys()
        counts = Counter(name for text in shared for name in lists[text])
        return {name: counts[name] for name in texts}

    def _overlap_by_key(self, items: Iterable[str]) -> int:
        known: list[str] = []
        for item in items:
            with contextlib.suppress(Problem):  # what cannot be read is not among those trained on
                known += self.kind.forms(item)
        roles = [""] if self.roles is None or self.groups is not None else ROLE_NAMES
        wanted = np.concatenate([canonical_keys(known, role, self.modality) for role in roles])
        trained = self.keys[self.train_rows]
        return len(np.intersect1d(wanted.view("S16"), np.ascontiguousarray(trained).view("S16")))


def read_corpus(
    source: Any,
    folder: str | Path,
    *,
    holdout: float | None = None,
    strict: bool = False,
    limit: int | None = None,
    revision: str | None = None,
    **columns: Unpack[ColumnOptions],
) -> Corpus:
    """Read, audit and split a corpus, or open what an equal call has left in `folder`.

    Rows that cannot be used are counted and listed in `folder/rejected.jsonl` (file, line, reason, excerpt). Texts are
    kept as they are, without surrounding white space. Memory grows by 8 to 16 bytes a row.

    Args:
        source: a .txt (one text a line), .csv, .tsv, .json, .jsonl or .ndjson (each also .gz or .zst) or .parquet file;
            a folder of them, both also by an address such as s3://bucket/folder; "hub:NAME[@CONFIG][:SPLIT]"; a
            `datasets` data set, or the folder of a saved one; a list of texts or of dictionaries; or a list of `Part`s,
            each of which is a domain.
            Images: a folder of image files, however deep; .npz; or columns (bytes, paths, data URIs) or lists of them.
            Molecules: .smi (a SMILES a line, then white space and a name or nothing), or columns or lists of SMILES.
        folder: where the prepared corpus goes; other files in it are left alone.
        holdout: share in [0, 1) kept out of training; None = 2 %, of a small corpus about 120 items, at most a fifth
            (`split.share_for`). It goes by the hash of the text (of a pair's first text): with a given share an item
            stays on its side when the corpus is reordered or grows. A text of a held-out pair that another pair trains
            on is left out of both sides and counted (`Audit.shared`): what is held out is never trained on.
        strict: fail on the first row that would be left out, duplicates of single texts included.
        limit: stop after so many rows.
        revision: of a data set of the hub: a commit, branch or tag; None = its newest.
        columns: which columns are read as what, and as which kind of item.

    Raises:
        DistilvecError: arguments that make no sense.
        DataError: no such file or column, a damaged file, no usable text; with `strict` a bad row.
        EnvironmentProblem: no permission, no room, no network, or a package is missing.
    """
    if holdout is not None and not 0 <= holdout < 1:
        raise DistilvecError(f"holdout is a share from 0 to below 1, not {holdout}", where="corpus.holdout")
    if limit is not None and limit < 1:
        raise DistilvecError(f"limit is at least 1, not {limit}", where="corpus.limit")
    folder = Path(folder)
    if parts := _parts(source):
        origin = _joined(parts, columns, folder, alone=limit is None and revision is None)
    else:
        origin = find_source(source, columns.get("modality"), folder=folder, revision=revision)
    wanted = ColumnNames.of(origin.kind, columns)
    options = _options(wanted, origin.prompts, holdout=holdout, strict=strict, limit=limit)
    digest = _digest(origin, options)
    if (ready := _reusable(folder, digest)) is not None:
        return ready
    with new_files(folder) as partial:
        manifest = _prepare_split(origin, partial, wanted, holdout=holdout, strict=strict, limit=limit)
        manifest |= _about(parts, wanted, origin, manifest["names"].get("domains", []))
        publish(partial, folder, {"source": {"name": origin.name, "digest": digest}, "options": options, **manifest})
    if origin.forget is not None:
        origin.forget(wanted.columns)
    corpus = Corpus.open(folder)
    _LOG.info("%s: %s", origin.name, corpus.audit)
    return corpus


def _parts(source: Any) -> list[Part]:
    """The parts, where several sources were given; else none."""
    several = isinstance(source, list) and source and all(isinstance(each, Part) for each in source)
    return source if several else []


def _joined(parts: list[Part], columns: ColumnOptions, folder: Path, *, alone: bool) -> Source:
    """The rows of all parts; `alone`: nothing was said of the whole that is each part's. The domain is set."""
    if columns.get("domain") or not alone:
        raise DistilvecError(
            "each of several sources is a domain, with a limit and a revision of its own",
            where="corpus.parts",
            remedy="Leave domain, limit and revision of the whole out.",
        )
    from distilvec.corpus.parts import PART, joined

    columns["domain"] = PART
    return joined(parts, columns, folder)


def _about(parts: list[Part], wanted: ColumnNames, origin: Source, kept: Sequence[str]) -> dict[str, Any]:
    """Return what a manifest says of parts, else nothing; warn of those that are not among the domains `kept`."""
    if not parts:
        return {}
    from distilvec.corpus.parts import prompts_of

    weights = {part.called: part.weight for part in parts}
    if lost := ", ".join(name for name in weights if name not in kept):
        _LOG.warning("no text of part %s is kept: all were rejected, or are in parts before it", lost)
    shipped = prompts_of(parts, wanted.text)
    return {"parts": {"weights": weights, "prompts": shipped, "begin": origin.prompts}}


def _options(wanted: ColumnNames, prompts: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Return the settings that a prepared corpus depends on, besides its source."""
    options = {**wanted.options(), **others, "format": FORMAT}
    if wanted.joint or prompts:  # held out by the first text without prompt; prepared before, by both texts, with it
        options["split"] = "bare text" if prompts else "first text"
    if wanted.label or wanted.domain or wanted.role:  # which of their values count; raised when that changes
        options["audit"] = 2
    return options


def _digest(source: Source, options: dict[str, Any]) -> str | None:
    if source.fingerprint is None:
        return None
    content = json.dumps([source.fingerprint, options], sort_keys=True)
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _reusable(folder: Path, digest: str | None) -> Corpus | None:
    """The corpus that an equal call left, if there is one and it is whole."""
    if digest is not None and source_digest(folder) == digest:
        with contextlib.suppress(DataError):
            return Corpus.open(folder)
    return None


def _prepare_split(
    source: Source, partial: Path, wanted: ColumnNames, *, holdout: float | None, strict: bool, limit: int | None
) -> dict[str, Any]:
    """`_prepare` with the share given, or with one that is enough for the items that there are."""
    first = USUAL_SHARE if holdout is None else holdout
    manifest = _prepare(source, partial, wanted, holdout=first, strict=strict, limit=limit)
    share = share_for(manifest["audit"]["kept"])
    # A small corpus is read again in no time; an iterator, which has no fingerprint, cannot be.
    if holdout is not None or share <= first or source.fingerprint is None:
        return manifest
    for file in partial.iterdir():
        file.unlink()
    return _prepare(source, partial, wanted, holdout=share, strict=strict, limit=limit)


def _prepare(
    source: Source, partial: Path, wanted: ColumnNames, *, holdout: float, strict: bool, limit: int | None
) -> dict[str, Any]:
    """Write all files but the manifest into `partial`; returns the manifest."""
    with open(partial / REJECTED, "w", encoding="utf-8") as out:
        rejections = Rejections(out, strict)
        writer = CorpusWriter(partial, wanted, holdout, rejections, source.prompts)
        read = _read_all(source, writer, rejections, wanted, limit)
        manifest = writer.close()
    repeated = rejections.counts.pop(DUPLICATE, 0)
    audit = Audit(
        read=read,
        kept=writer.kept,
        duplicates=writer.duplicates + repeated,
        shared=writer.shared,
        rejected=dict(rejections.counts.most_common()),
        lengths=percentiles(writer.lengths),
        components=writer.components,
        made=writer.made,
        modality=wanted.modality,
    )
    return {"audit": asdict(audit), **manifest}


def _read_all(
    source: Source, writer: CorpusWriter, rejections: Rejections, wanted: ColumnNames, limit: int | None
) -> int:
    """Pass every row of the source through the audit to the writer; returns how many there were."""
    read, expected = 0, source.expected()
    total = expected if limit is None or expected is None else min(limit, expected)
    ticker = Ticker(f"reading {Path(source.name).name}", "rows", kept=False)
    for row in source.rows(wanted.columns, wanted.longest):
        read += 1
        try:
            item = check(row, wanted)
            if item.label is not None:
                item.label = writer.labels.accept(item.label)
            writer.add(item)
        except Problem as problem:
            if rejections.strict:
                writer.flush()  # a duplicate that waits there came first
            rejections.add(row, str(problem))
        if read == limit:
            break
        if read % 1000 == 0:
            ticker(read, total)
    ticker(read, read)
    writer.flush()
    if not writer.kept:
        why = f"{read:,} rows read: {rejections.summary()}" if read else "0 rows read"
        remedy = rejections.remedy() if read else "Is it the right file?"
        raise DataError(f"no {wanted.modality} of the corpus can be used ({why})", where=source.name, remedy=remedy)
    if not writer.trained_on:
        raise DataError(
            f"all {writer.kept:,} {wanted.kind.noun} fell into the held-out share (holdout: {writer.holdout:g}), "
            "none is left to train on",
            where=source.name,
            remedy=f"Give more {wanted.kind.noun} or a smaller holdout.",
        )
    return read
