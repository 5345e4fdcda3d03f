"""Labels, domains and roles of a corpus: what is a name, what is a number, and what is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilvec.corpus import read_corpus


@pytest.mark.parametrize(
    ("before", "after"), [("pos,neg,pos,neg", "neg,pos,neg,pos"), ("0.1,0.9,0.5,0.2", "5,1,3,4.5")]
)
def test_changed_labels_change_the_fingerprint(before: str, after: str, tmp_path: Path) -> None:
    found = []
    for name, labels in (("a", before), ("b", after)):
        rows = "".join(f"text {number},{label}\n" for number, label in enumerate(labels.split(",")))
        (tmp_path / f"{name}.csv").write_text("text,label\n" + rows)
        found.append(read_corpus(tmp_path / f"{name}.csv", tmp_path / name, label="label", holdout=0.0).fingerprint)
    assert found[0] != found[1]


def test_codes_with_underscores_are_not_numbers(tmp_path: Path) -> None:
    (tmp_path / "codes.csv").write_text("text,label\na,1_2\nb,12\nc,3_4\n")
    corpus = read_corpus(tmp_path / "codes.csv", tmp_path / "corpus", label="label", holdout=0.0)
    assert corpus.label_names == ["12", "1_2", "3_4"]


def test_missing_labels_are_counted(tmp_path: Path) -> None:
    import pandas as pd

    rows = [{"text": "a", "label": np.array([0, 1])}, {"text": "b", "label": pd.NA}, {"text": "c", "label": "x"}]
    corpus = read_corpus(rows, tmp_path, label="label", holdout=0.0)
    assert corpus.audit.rejected == {"bad label": 1, "missing label": 1}


def test_domains_and_roles_read_as_floats_with_a_gap(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "domain": d, "role": r} for n, d, r in zip("abc", (0.0, 1.0, None), (0.0, 1.0, 0.0))]
    corpus = read_corpus(rows, tmp_path, domain="domain", role="role", holdout=0.0)
    assert corpus.domain_names == ["0", "1"] and corpus.audit.rejected == {"missing domain": 1}


def test_rows_without_columns_do_not_shift_labels(tmp_path: Path) -> None:
    rows: list[Any] = [{"text": "aaa", "label": "x"}, "bbb", {"text": "ccc", "label": "y"}, {"text": "d", "label": "x"}]
    corpus = read_corpus(rows, tmp_path, label="label", holdout=0.0)
    assert corpus.texts() == ["aaa", "ccc", "d"] and corpus.label_names is not None and corpus.labels is not None
    assert [corpus.label_names[code] for code in corpus.labels] == ["x", "y", "x"]
    assert corpus.audit.rejected == {"no columns": 1}


def test_half_a_character_in_a_label_is_rejected(tmp_path: Path) -> None:
    rows = [{"text": "one", "label": "good"}, {"text": "two", "label": "good \ud83d"}]
    corpus = read_corpus(rows, tmp_path, label="label", holdout=0.0)
    assert corpus.audit.rejected == {"not UTF-8": 1}


@pytest.mark.parametrize("labels", [[1, "007", "7"], [1, 7, "007"]])
def test_codes_among_numbers_are_rejected(labels: list[Any], tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    assert read_corpus(rows, tmp_path, label="label", holdout=0.0).audit.rejected == {"bad label": 1}
