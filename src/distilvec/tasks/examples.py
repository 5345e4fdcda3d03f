"""Labelled texts or pairs from a file, as they are evaluated and fine-tuned on: no row is dropped unsaid."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distilvec.corpus.audit import ColumnNames, Problem, check
from distilvec.corpus.sources import find_source
from distilvec.errors import DataError, DistilvecError
from distilvec.modules.task_head import TaskHead
from distilvec.tasks.labels import encode_labels, finite_numbers

_LOG = logging.getLogger(__name__)
Input = str | tuple[str, str]
#: Characters of a text; longer ones are left out.
_LONGEST = 100_000


@dataclass(frozen=True)
class Examples:
    """Labelled items.

    Attributes:
        inputs: n texts, or n pairs of texts.
        labels: as read, class names or numbers.
        left_out: reason -> rows that cannot be used.
    """

    inputs: list[Input]
    labels: list[str | float]
    source: str
    left_out: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.inputs)

    def targets(self, head: TaskHead) -> np.ndarray:
        """Class codes int64 [n], or scores float64 [n]."""
        if head.labels is None:
            return finite_numbers(self.labels, self.source)
        return encode_labels(self.labels, head.labels, self.source)


def read_examples(source: Any, text: str | Sequence[str], label: str) -> Examples:
    """Read labelled texts, or pairs where two text columns are named; repeated rows are kept.

    Args:
        source: whatever `read_corpus` takes.
        text: the text column, or the two of a pair.
        label: column with class names or numbers.

    Raises:
        DistilvecError: more than two text columns.
        DataError: no such file or column, or no row that can be used.
    """
    columns = (text,) if isinstance(text, str) else tuple(text)
    if len(columns) not in (1, 2):
        raise DistilvecError(f"an item has one or two texts, not {len(columns)}", where="text")
    origin = find_source(source)
    wanted = ColumnNames(columns, label=label, max_characters=_LONGEST)
    inputs: list[Input] = []
    labels: list[str | float] = []
    left_out: Counter[str] = Counter()
    for row in origin.rows(wanted.columns, _LONGEST):
        try:
            item = check(row, wanted)
            if item.label is None or len(item.texts) != len(columns):
                raise Problem("no columns")
        except Problem as problem:
            left_out[str(problem)] += 1
            continue
        texts = [str(each) for each in item.texts]
        inputs.append((texts[0], texts[1]) if len(texts) == 2 else texts[0])
        labels.append(item.label)
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.most_common())
    if not inputs:
        raise DataError(f"no row can be used ({reasons or 'there is none'})", where=origin.name)
    if left_out:
        _LOG.warning("%s: rows left out: %s", origin.name, reasons)
    return Examples(inputs, labels, origin.name, dict(left_out))
