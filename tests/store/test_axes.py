"""Token states on principal axes: what is kept, what it takes, and that every writer uses the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.disk import full_beyond

from distilvec.corpus import read_corpus
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.flow.run import run
from distilvec.recipe import Recipe
from distilvec.store import RaggedSignal, SignalStore, fill
from distilvec.store.axes import TokenAxes, _read, _write, axes_of, settle_axes
from distilvec.store.layout import add_signal
from distilvec.teachers import load_teacher
from distilvec.teachers.signals import Wanted

AXES = 6


def filled(folder: Path, model: Path, texts: list[str], axes: int | None, **options: Any) -> tuple[SignalStore, Any]:
    corpus = read_corpus(texts, folder / "corpus", holdout=0.0)
    teacher = load_teacher(model=model)
    store = SignalStore.create(folder / "store", teacher.card, teacher.card.width, "float32")
    wanted = Wanted(tokens=(1, 2), axes=axes)
    fill(store, teacher, corpus.teacher_texts(), corpus.teacher_keys, wanted, **options)
    return store, corpus


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, sentences: list[str]) -> dict[str, Any]:
    """The same texts in a store of whole states and in one on axes."""
    folder = tmp_path_factory.mktemp("axes")
    whole, corpus = filled(folder / "whole", tiny_bert, sentences[:60], None)
    short, _ = filled(folder / "short", tiny_bert, sentences[:60], AXES)
    return {"whole": whole, "short": short, "corpus": corpus, "folder": folder}


def states(store: SignalStore, corpus: Any, layer: int) -> np.ndarray:
    signal = RaggedSignal(store.path, f"tokens-{layer}")
    return np.concatenate(signal.read(signal.rows(corpus.teacher_keys))).astype(np.float64)


def test_a_disk_that_fills_with_the_axes_is_said(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    (tmp_path / "store").mkdir()
    file = tmp_path / "store" / "axes-1.safetensors"
    axes = TokenAxes(np.eye(32, AXES, dtype=np.float32), 1.0, 60)
    with full_beyond(200), pytest.raises(EnvironmentProblem, match=r"axes-1\.safetensors: .*File too large"):
        _write(file, axes)
    assert not list(file.parent.iterdir())
    _write(file, axes)
    assert (_read(file).matrix == axes.matrix).all() and _read(file).texts == 60


def test_they_are_the_leading_axes_of_all_tokens(both: dict[str, Any]) -> None:
    """By hand from the whole states: the singular vectors, and the share of the variance that they keep."""
    axes = axes_of(both["short"].path)
    assert set(axes) == {1, 2} and axes_of(both["whole"].path) == {}
    for layer in (1, 2):
        full, kept = (states(both[name], both["corpus"], layer) for name in ("whole", "short"))
        assert kept.shape == (len(full), AXES) and axes[layer].texts == 60
        expected = np.linalg.svd(full, full_matrices=False)[2][:AXES]
        matrix = axes[layer].matrix.astype(np.float64)
        np.testing.assert_allclose(matrix.T @ matrix, np.eye(AXES), atol=1e-5)
        # The same subspace, whatever the signs.
        np.testing.assert_allclose(matrix @ matrix.T, expected.T @ expected, atol=5e-3)
        np.testing.assert_allclose(kept, full @ matrix, atol=2e-2)
        centred = full - full.mean(0)
        share = np.square(centred @ matrix).sum() / np.square(centred).sum()
        assert axes[layer].retained == pytest.approx(share, abs=2e-3) and 0.1 < share < 1


def test_products_of_states_stay_what_they_are_but_for_what_is_lost(both: dict[str, Any]) -> None:
    full, kept = (states(both[name], both["corpus"], 2)[:200] for name in ("whole", "short"))
    lost = np.linalg.norm(full @ full.T - kept @ kept.T) / np.linalg.norm(full @ full.T)
    assert lost < 0.25
    sizes = [sum(f.stat().st_size for f in both[name].path.glob("tokens-2-*.arrow")) for name in ("whole", "short")]
    assert sizes[1] < 0.35 * sizes[0]


def test_later_writers_use_the_axes_that_are_there(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    filled(tmp_path, tiny_bert, sentences[:40], AXES, shard=(0, 2))
    before = axes_of(tmp_path / "store")[2].matrix
    store, corpus = filled(tmp_path, tiny_bert, sentences[:40], AXES, shard=(1, 2))
    assert (axes_of(store.path)[2].matrix == before).all()
    signal = RaggedSignal(store.path, "tokens-2")
    assert (signal.rows(corpus.teacher_keys) >= 0).all()
    # New texts do not move the axes either.
    (tmp_path / "more").mkdir()
    filled(tmp_path / "more", tiny_bert, sentences[:40], AXES)
    again = filled(tmp_path, tiny_bert, sentences[40:80], AXES)[0]
    assert (axes_of(again.path)[2].matrix == before).all()


def test_what_does_not_go_together_is_refused(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    with pytest.raises(DistilvecError, match=r"^token_axes: 64 .*\b32\b"):
        filled(tmp_path / "many", tiny_bert, sentences[:10], 64)
    store, _ = filled(tmp_path / "some", tiny_bert, sentences[:10], AXES)
    with pytest.raises(DistilvecError, match=r"/some/.*: .*\b6 axes.*\b8\b"):
        filled(tmp_path / "some", tiny_bert, sentences[:10], 8)
    with pytest.raises(DistilvecError, match=r"/some/.*: .*tokens-1 .*'width': 6.*'width': 32"):
        filled(tmp_path / "some", tiny_bert, sentences[:10], None)
    file = store.path / "axes-tokens-1.safetensors"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(DataError, match=r"/axes-tokens-1\.safetensors: "):
        filled(tmp_path / "some", tiny_bert, sentences[:20], AXES)
    with pytest.raises(DistilvecError, match=r"^teachers\.0: token_axes .*live"):
        Recipe.build(
            {
                "corpus": {"path": "x.txt"},
                "teachers": [{"model": "t", "token_axes": 4, "live": True}],
                "student": {"model": "s"},
            }
        )


@pytest.mark.parametrize("method", [{"name": "emo"}, {"name": "distillmoe", "layers": 2}], ids=lambda m: m["name"])
def test_a_student_learns_from_them_and_the_report_says_so(
    method: dict[str, Any], tmp_path: Path, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(" ".join(text.split()[:12]) for text in sentences[:48]))
    done = run(
        Recipe.build(
            {
                "corpus": {"path": str(tmp_path / "texts.txt"), "holdout": 0.0},
                "teachers": [{"name": "teacher", "model": str(tiny_model_folders["bert"]), "token_axes": 8}],
                "student": {"model": str(tiny_model_folders["xlmr"])},
                "method": method,
                "training": {"epochs": 1, "batch_size": 16, "use_cpu": True},
                "judging": {"speed": False, "agreement": False},
                "output": str(tmp_path / "out"),
            }
        )
    )
    assert all(torch.isfinite(torch.tensor(entry["loss"])) for entry in done.record["training"].log if "loss" in entry)
    assert "on 8 of 32 principal axes, which keep" in (done.folder / "report.md").read_text()


def test_axes_are_refused_for_a_store_of_whole_states(tmp_path: Path) -> None:
    class Teacher:
        hidden = 32

    SignalStore.create(tmp_path, {"fingerprint": "1111"}, 4)
    add_signal(tmp_path, "tokens-3", 32, "float16")
    with pytest.raises(DistilvecError, match="layer 3 whole"):
        settle_axes(tmp_path, Teacher(), ["a text"], Wanted(tokens=(3,), axes=8))
    assert not list(tmp_path.glob("axes-*"))
