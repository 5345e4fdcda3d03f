"""A cross-encoder as a scorer: a model that reads query and document together."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp

from distilvec.corpus.keys import split_pair
from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.modules.cross_encoder import open_cross_encoder
from distilvec.modules.layouts import has_head
from distilvec.modules.opening import inner_folders, locate
from distilvec.modules.pipeline import set_length, usable_positions
from distilvec.modules.promised_tokens import tokens_put
from distilvec.recipe import ModelScorerSection
from distilvec.scorers.base import Scorer
from distilvec.tasks.predictor import Predictor
from distilvec.teachers.base import Capabilities
from distilvec.teachers.cards import TeacherCard, describe_folder, fingerprint, hash_files, licence_of

#: Pairs between two looks at whether somebody wants to stop.
_CHUNK = 512


class ModelScorer(Scorer):
    """A cross-encoder of sentence-transformers, or a model that `distilvec finetune` made on pairs (read jointly).

    One number is the model's logit. Of two classes it is the log-odds of the second, of more that of `label`.

    Raises:
        DistilvecError: no such model, one that is not safe to open, that reads single texts, or of several classes
            without a `label` that it has.
        DataError: damaged weights.
        EnvironmentProblem: the hub cannot be reached.
    """

    can = Capabilities(local=True)

    def __init__(self, section: ModelScorerSection, device: str | None = None) -> None:
        folder = locate(section.address, section.trust_remote_code)
        self._name, self._batch_size = section.name, section.batch_size
        self._read: Callable[[list[Any]], np.ndarray]
        self._model, labels = (self._finetuned if has_head(folder) else self._cross_encoder)(folder, section, device)
        self._column = _column(labels, section.label, section.name)
        described = describe_folder(folder, inner_folders(folder))
        head = hash_files(folder, [file for file in (folder / "task").glob("*") if file.is_file()])
        length = getattr(self._model, "max_seq_length", None)
        self.card = TeacherCard(
            name=section.name,
            kind="scorer",
            source=section.address,
            fingerprint=fingerprint(described, head, self._column, length, *tokens_put(self._model)),
            width=1,
            max_length=length if isinstance(length, int) else None,
            licence=licence_of(folder),
            parameters=sum(each.numel() for each in self._model.parameters()),
        )

    def _finetuned(self, folder: Path, section: ModelScorerSection, device: str | None) -> tuple[Any, list[str] | None]:
        """Open a model of our own; the network that reads, and its classes."""
        model = Predictor.load(folder, device=device, trust_remote_code=section.trust_remote_code)
        model.batch_size = self._batch_size
        if model.head.encoding == "single":
            raise DistilvecError(
                "this model answers about single texts, and a scorer reads a query and a document",
                where=section.name,
                remedy="Fine-tune one on pairs: distilvec finetune --task pairs.",
            )
        if section.max_length is not None:
            set_length(model.model, section.max_length, section.name)
        self._read = model.logits
        return model.model, model.labels

    def _cross_encoder(
        self, folder: Path, section: ModelScorerSection, device: str | None
    ) -> tuple[Any, list[str] | None]:
        """Open a cross-encoder; itself, and its classes."""
        name, longest = section.address, section.max_length
        model: Any = open_cross_encoder(
            folder, name=name, device=device, max_length=longest, trust_remote_code=section.trust_remote_code
        )
        limit = usable_positions(model)
        if longest is not None and limit is not None and longest > limit:
            raise DistilvecError(
                f"max_length is {longest}, and the positions of {name} allow {limit}",
                where=section.name,
                remedy="Choose a length within that range.",
            )

        def read(pairs: list[Any]) -> np.ndarray:
            return model.predict(pairs, batch_size=self._batch_size, show_progress_bar=False)

        self._read = read
        # Not the configuration's number: that of a language model, which says yes or no, means nothing.
        count, names = model.num_labels, model.config.id2label
        return model, [str(names[number]) for number in range(count)] if count > 1 else None

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """Joint texts -> pairs (positions int64 [b], float32 [b, 1]), in their order."""
        for start in range(0, len(texts), _CHUNK):
            part = [split_pair(text) for text in texts[start : start + _CHUNK]]
            logits = np.asarray(self._read(part), np.float64).reshape(len(part), -1)
            scores = logits[:, 0] if self._column is None else _log_odds(logits, self._column)
            if not np.isfinite(scores).all():
                row = int(np.flatnonzero(~np.isfinite(scores))[0])
                raise DataError(f"its score of {part[row]!r:.200} is not finite", where=self._name)
            yield np.arange(start, start + len(part)), scores.astype(np.float32)[:, None]


def _log_odds(logits: np.ndarray, column: int) -> np.ndarray:
    """[n, C] -> [n], log p / (1 - p) of a class."""
    return logits[:, column] - logsumexp(np.delete(logits, column, axis=1), axis=1)


def _column(labels: list[str] | None, label: str | None, name: str) -> int | None:
    """Return which logit counts; None = there is only one number."""
    if labels is None:
        if label is not None:
            raise DistilvecError(f'this model says one number, and has no class "{label}"', where=name)
        return None
    if label is None:
        if len(labels) == 2:
            return 1
        raise DistilvecError(
            f"this model knows {len(labels)} classes ({', '.join(labels)}), and one has to be the score",
            where=name,
            remedy=f"Say which: label: {labels[-1]}.",
        )
    if label not in labels:
        raise DistilvecError(f'this model has no class "{label}"', where=name, remedy=nearest(label, labels))
    return labels.index(label)
