"""What lies on the disk after a run, and what can go."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import distilvec
from distilvec.cli.disk import clean, pieces, text
from distilvec.corpus import content_keys
from distilvec.corpus.files import new_files
from distilvec.errors import DistilvecError
from distilvec.files import alone_in, locked
from distilvec.flow.finetune import finetune
from distilvec.store import fill
from distilvec.teachers import load_teacher
from distilvec.teachers.signals import NEXT, Wanted


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, sentences: list[str]) -> Path:
    """A small run."""
    out = tmp_path_factory.mktemp("run") / "out"
    distilvec.distill(
        teacher=str(tiny_bert),
        student={"shrink": {"of": str(tiny_bert), "layers": 1}},
        corpus=sentences[:80],
        method="cosine",
        output=str(out),
        training={"epochs": 1, "batch_size": 16},
    )
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "out"))


def kinds(folder: Path) -> dict[str, str]:
    return {str(piece.path.relative_to(folder)): piece.kind for piece in pieces(folder)}


def everything(folder: Path) -> dict[str, int]:
    return {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*") if file.is_file()}


def test_everything_a_run_leaves_is_listed_once(run: Path) -> None:
    found = kinds(run)
    (start,) = (run / "start").iterdir()
    assert found == {
        f"start/{start.name}": "checkpoints",
        ".": "report",
        "checkpoints": "checkpoints",
        "corpus": "corpus",
        "stores/teacher": "store",
        "stores/teacher/derived": "derived",
        "student": "student",
        "tokens": "tokens",
    }
    assert sum(piece.size for piece in pieces(run)) == sum(everything(run).values())
    assert kinds(run.parent) == {f"out/{name}".removesuffix("/."): kind for name, kind in found.items()}
    shown = text(pieces(run), run)
    assert "in all" in shown and "taught again when needed" in shown and str(run) not in shown


def test_a_fine_tuned_model_is_listed_whole_and_stays(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    rows = [{"text": text, "label": len(text) % 2} for text in sentences[:20]]
    made = finetune(tiny_bert, rows, tmp_path / "made", training={"max_steps": 1, "use_cpu": True})
    before = everything(tmp_path)
    assert kinds(tmp_path) == {"made": "student"} and [piece.size for piece in pieces(tmp_path)] == [
        sum(everything(made).values())
    ]
    clean(tmp_path, ["checkpoints", "left over", "store", "derived", "corpus", "tokens"], dry_run=False)
    assert everything(tmp_path) == before


def test_cleaning_takes_checkpoints_and_the_rest_works_on(run: Path) -> None:
    before = everything(run)
    assert [piece.kind for piece in clean(run)] == ["checkpoints", "checkpoints"]
    assert everything(run) == before
    clean(run, dry_run=False)
    assert everything(run) == {
        name: size for name, size in before.items() if not name.startswith(("checkpoints/", "start/"))
    }
    assert distilvec.load(run / "student").encode(["a text"]).shape[0] == 1


def test_derived_files_are_made_again(run: Path) -> None:
    store = run / "stores/teacher"
    rows = len(distilvec.SignalStore.open(store))
    clean(run, ["derived", "tokens", "corpus"], dry_run=False)
    assert "derived" not in kinds(run).values() and len(distilvec.SignalStore.open(store)) == rows
    clean(run, ["store"], dry_run=False)
    assert set(kinds(run).values()) == {"report", "checkpoints", "student"} and not store.exists()


def test_files_derived_from_token_states_are_removed_too(tmp_path: Path, tiny_bert: Path) -> None:
    teacher, texts = load_teacher(name="tiny", model=str(tiny_bert)), ["a cat", "a dog"]
    store = distilvec.SignalStore.create(tmp_path / "stores" / "tiny", teacher.card, teacher.card.width)
    fill(store, teacher, texts, content_keys(texts), Wanted(tokens=(1,), attention=(1,), alignment=("strict",)))
    assert len(list((store.path / "derived").glob("*-index-*.npy"))) >= 2
    clean(tmp_path, ["derived"], dry_run=False)
    assert not list(store.path.glob("derived/*.npy"))


def test_checkpoints_of_an_unfinished_run_stay(run: Path) -> None:
    (run / "report.json").unlink()
    assert clean(run, dry_run=False) == [] and (run / "checkpoints").is_dir()
    assert "of an unfinished run: kept" in text(pieces(run), run)


def test_old_leftovers_are_removed(run: Path) -> None:
    old, young = run / "checkpoints-before", run / "stores/teacher/sentence-a-000009.arrow.bad"
    shutil.copytree(run / "checkpoints", old)
    young.write_bytes(b"x" * 1000)
    half = run / ".distilvec-tmp-0123456789abcdef"
    shutil.copytree(run / "figures", half / "figures")
    (half / "report.md").write_text("# Half of")
    past = time.time() - 7200
    for file in (old, *old.rglob("*"), half, *half.rglob("*")):
        os.utime(file, (past, past))
    assert {piece.path for piece in clean(run, ["left over"], dry_run=False)} == {old, half}
    assert young.exists() and not old.exists() and not half.exists()
    os.utime(young, (past, past))
    clean(run, ["left over"], dry_run=False)
    assert not young.exists() and len(distilvec.SignalStore.open(run / "stores/teacher")) > 0


@pytest.mark.parametrize("whole", [True, False])
def test_the_half_read_corpus_of_a_killed_process_goes(run: Path, whole: bool) -> None:
    with new_files(run / "corpus") as partial:
        (partial / "items.arrow").write_bytes(b"x" * 1000)
        left = Path(shutil.copytree(partial, partial.with_name(partial.name[:-4] + "0000")))
    if not whole:
        (run / "corpus/corpus.json").unlink()
    past = time.time() - 7200
    for file in (left, *left.rglob("*")):
        os.utime(file, (past, past))
    assert left in {piece.path for piece in clean(run, ["left over"], dry_run=False)} and not left.exists()


@pytest.mark.parametrize("signal", ["sentence", "logits", "tokenids", *NEXT, "tokens-1", "attention-2"])
def test_parts_of_every_signal_are_the_stores(run: Path, signal: str) -> None:
    part = run / f"stores/teacher/{signal}-w-000123.arrow"
    part.write_bytes(b"x" * 1000)
    clean(run, ["store"], dry_run=False)
    assert not part.exists()


def test_foreign_files_are_neither_listed_nor_removed(run: Path) -> None:
    for name in ("notes/checkpoints/model.bin", "corpus-of-mine/tokens/a.txt", "checkpoints.txt", "student-2/a.bin"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("mine")
    outside = run.parent / "elsewhere"
    outside.mkdir()
    (outside / "keep.txt").write_text("mine")
    (run / "tokens" / "link").symlink_to(outside)
    (run / "stores" / "linked").symlink_to(outside)
    removable = ["checkpoints", "left over", "store", "derived", "corpus", "tokens"]
    clean(run, removable, dry_run=False)
    left = everything(run)
    assert {"notes/checkpoints/model.bin", "corpus-of-mine/tokens/a.txt", "checkpoints.txt", "student-2/a.bin"} <= set(
        left
    )
    assert (outside / "keep.txt").exists()


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match="/nowhere: "):
        pieces(tmp_path / "nowhere")
    with pytest.raises(DistilvecError, match='^clean: "student"') as caught:
        clean(tmp_path, ["student"])
    assert "checkpoints, left over" in str(caught.value.remedy)
    assert text(pieces(tmp_path), tmp_path).startswith("Nothing of distilvec's")


def test_files_of_a_running_process_stay(run: Path) -> None:
    store = run / "stores" / "teacher"
    with locked(store / "teaching.lock", wait=False):
        held = {piece.path: piece.kept for piece in pieces(run)}
        assert held[store] == held[store / "derived"] == "in use" != held[run / "corpus"]
        clean(run, ["store", "derived"], dry_run=False)
        assert (store / "store.json").exists() and (store / "derived").exists()
    with alone_in(run):
        before = everything(run)
        assert not clean(run, ["store", "derived", "corpus", "tokens", "checkpoints"], dry_run=False)
        assert not clean(run / "stores", ["store"], dry_run=False), "also from within"
        assert everything(run) == before
    assert {piece.kind for piece in clean(run, ["store", "corpus"], dry_run=False)} == {"store", "corpus"}
