"""Alarms of a judgement."""

from __future__ import annotations

import numpy as np
import pytest

from distilvec.judging.verdict import HeldOutTexts, judge_run

WIDTH = 6


class Constant:
    """A student that has collapsed."""

    def encode(self, texts: list[str], **_: object) -> np.ndarray:
        return np.ones((len(texts), WIDTH), np.float32)


@pytest.mark.parametrize("with_agreement", [True, False])
def test_collapse_is_reported_without_agreement(with_agreement: bool) -> None:
    texts = [f"text {number}" for number in range(40)]
    vectors = np.random.default_rng(0).normal(size=(40, WIDTH)).astype(np.float32)
    models = {"student": Constant(), "untrained student": Constant()}
    verdict = judge_run(models, [], HeldOutTexts(texts, vectors, "teacher"), with_agreement=with_agreement)
    assert any("collapsed" in alarm for alarm in verdict.alarms)
    assert bool(verdict.agreement) == with_agreement
