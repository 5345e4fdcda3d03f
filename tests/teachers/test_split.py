"""A teacher that is larger than the memory: its layers lie on the disk and come when they are needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

import distilvec
from distilvec.errors import DistilvecError
from distilvec.teachers import load_teacher
from distilvec.teachers.signals import Wanted

WANTED = Wanted(tokens=(1, 2), attention=(2,))


def test_layers_on_the_disk_say_the_same(
    tiny_bert: Path, tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load_teacher(model=str(tiny_bert))
    wanted = whole.encode(sentences[:20])
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=60_000, total=60_000))
        split = load_teacher(model=str(tiny_bert), load="split")
        assert {each.device.type for each in split.model[0].model.parameters()} == {"meta"}
        np.testing.assert_allclose(split.encode(sentences[:20]), wanted, atol=1e-6)
        split.rest()
        split.wake()
        np.testing.assert_allclose(split.encode(sentences[:20]), wanted, atol=1e-6)
        for (_, told), (_, seen) in zip(*(each.observe(sentences[:3], WANTED) for each in (whole, split)), strict=True):
            torch.testing.assert_close(told.tokens, seen.tokens)
            torch.testing.assert_close(told.attention, seen.attention)
        assert split.card == whole.card  # its stores are those of the whole model

        (tmp_path / "texts.txt").write_text("\n".join(sentences[:60]), encoding="utf-8")
        teacher = {"name": "large", "model": str(tiny_bert), "load": "split"}
        store = distilvec.teach(teacher, str(tmp_path / "texts.txt"), tmp_path / "out")
    assert len(store) == len(set(sentences[:60]))


def test_adapters_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match="merge them into the model first"):
        load_teacher(model=str(tiny_bert), load="split", adapters=[str(tmp_path)])
