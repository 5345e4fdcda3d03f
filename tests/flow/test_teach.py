"""Teaching: shards, combined stores, saved answers and stops."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from tests.functions import CountingFunction, lengths
from tests.jobs import Job, tiny_recipe
from tests.teachers.serving import serving, vector
from tests.tiny_models import build

from distilvec.corpus import content_keys, read_corpus
from distilvec.errors import DistilvecError
from distilvec.flow.combine import CombinedTeacher
from distilvec.flow.mine import mine_recipe
from distilvec.flow.ray.ranks import teach_alone
from distilvec.flow.run import train
from distilvec.flow.teach import fill_store
from distilvec.judging import CachedEncoder
from distilvec.recipe import Recipe
from distilvec.store import SignalStore
from distilvec.store.codec import pack, unpack
from distilvec.teachers import Reading, load_teacher
from distilvec.teachers.answers import Answers
from distilvec.teachers.callable import CallTeacher, Patience
from distilvec.teachers.sections import CallSection


def test_damaged_combined_store_is_made_again(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    first, second = CountingFunction(), CountingFunction()
    teachers = [{"name": "t", "call": first.embed}, {"name": "u", "call": second.embed}]
    given = tiny_recipe(tmp_path, tiny_bert, sentences[:60], teachers=teachers, combine="concatenate")
    train(given)
    (folder,) = (tmp_path / "out" / "stores").glob("t+u-concatenate-*")
    part = next(folder.glob("sentence-*.arrow"))
    damaged = bytearray(part.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    part.write_bytes(damaged)
    again = tiny_recipe(
        tmp_path, tiny_bert, sentences[:60], teachers=teachers, combine="concatenate", training={"max_steps": 3}
    )
    try:
        train(again)
    except DistilvecError as error:
        assert part.name in str(error) or str(folder) in str(error)
    store = next((tmp_path / "out" / "stores").glob("t+u-concatenate-*"))
    assert bytes(damaged) not in [each.read_bytes() for each in store.glob("sentence-*.arrow")]


def combined(place: Path, storages: tuple[str, str] = ("float32", "float32")) -> tuple[np.ndarray, str]:
    """Stored vectors of the two teachers beside `place`, and how they are stored."""
    names = zip("ab", storages, strict=True)
    recipe = {
        "corpus": {"path": str(place / "texts.txt")},
        "teachers": [
            {"name": n, "vectors": str(place / f"{n}.npy"), "texts": str(place / "texts.txt"), "storage": s}
            for n, s in names
        ],
        "combine": "concatenate",
        "output": str(place / "out"),
    }
    store = Job(Recipe.build(recipe)).teach(vectors_only=True)[0].store
    return store.read(store.rows(content_keys(TEXTS))), store.dtype


TEXTS = [f"sentence number {number} of many" for number in range(60)]


@pytest.mark.parametrize(("storage", "far", "told"), [("int8", 60, True), ("int8", 0, False), ("float16", 60, False)])
def test_a_storage_that_rounds_away_what_differs_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, storage: str, far: float, told: bool
) -> None:
    """One dimension that is far off for all texts makes the steps of eight bits wide in all others."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    vectors = np.random.default_rng(0).normal(size=(60, 32)).astype(np.float32)
    vectors[:, 7] += far
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", vectors)
    stored, _ = combined(tmp_path, (storage, "float32"))
    assert np.isfinite(stored).all()
    said = [each.getMessage() for each in caplog.records if "rounds away" in each.getMessage()]
    assert [each.partition(":")[0] for each in said] == ["teacher a"] * told
    if told:
        error = np.linalg.norm(unpack(*pack(vectors, storage)) - vectors) / np.linalg.norm(vectors - vectors.mean(0))
        assert f"{100 * error:.0f} %" in said[0] and error > 0.05


def test_combined_store_follows_a_store_made_again(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    for seed, name in enumerate("ab"):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(seed).normal(size=(60, 8)).astype(np.float32))
    coarse, dtype = combined(tmp_path, ("float32", "int8"))
    assert dtype == "float32", "the finest of what the teachers ask for"
    shutil.rmtree(tmp_path / "out/stores/b")
    fine, _ = combined(tmp_path)
    halves = [np.load(tmp_path / f"{name}.npy") for name in "ab"]
    units = [half / np.linalg.norm(half, axis=1, keepdims=True) for half in halves]
    expected = np.sqrt(0.5) * np.concatenate(units, axis=1)
    assert np.abs(coarse - expected).max() > 1e-4 and np.abs(fine - expected).max() < 1e-6
    before = {folder.name for folder in (tmp_path / "out/stores").iterdir()}
    combined(tmp_path)
    assert {folder.name for folder in (tmp_path / "out/stores").iterdir()} == before, "nothing has changed"


def test_combined_teachers_embed_judged_texts_once(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    one, two = CountingFunction(), CountingFunction()
    made = tiny_recipe(
        tmp_path,
        tiny_bert,
        sentences[:60],
        teachers=[{"name": "one", "call": one.embed}, {"name": "two", "call": two.embed, "storage": "int8"}],
        combine="concatenate",
    )
    first = Job(made).taught[0].encoder(Job(made).corpus)
    vectors = first(sentences[100:140])
    asked = one.asked, two.asked
    again = Job(made).taught[0].encoder(Job(made).corpus)
    np.testing.assert_array_equal(again(sentences[100:140]), vectors)
    probes = one.asked - asked[0], two.asked - asked[1]
    assert max(probes) < 20, "only a few, to see how wide its vectors are"


def test_shard_without_a_text_is_taught(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    made = tiny_recipe(tmp_path, tiny_bert, sentences[:3])
    done = [teach_alone(made, shard=(share, 16))[0][1] for share in range(16)]
    assert sum(each.taught for each in done) == 3 and any(each.distinct == 0 or not each.taught for each in done)


def test_saved_answers_of_another_shard_are_kept_for_it(tmp_path: Path) -> None:
    texts = [f"text {number} of some" for number in range(40)]
    corpus = read_corpus(texts, tmp_path / "corpus", holdout=0.0)
    with serving() as service:
        teacher: Any = load_teacher(api={"url": service.url, "model": "m"})
        store = SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width)
        with Answers(store.path / "answers", teacher.card.fingerprint, teacher.card.width) as died:
            died.add([teacher.key(text) for text in texts], np.stack([vector(text) for text in texts]))
        for number in range(2):
            fill_store(store, teacher, corpus, shard=(number, 2))
        assert dict(service.answered) == {"A probe.": 1}
    assert not store.missing(corpus.teacher_keys).any() and not (store.path / "answers").exists()


def test_teaching_stops_while_a_service_asks_to_wait(tmp_path: Path) -> None:
    texts = [f"text {number} of some" for number in range(60)]
    corpus = read_corpus(texts, tmp_path / "corpus", holdout=0.0)
    waiting: list[float] = []

    def busy(number: int, asked: list[str]) -> dict[str, str] | None:
        if number > 3:
            waiting.append(time.monotonic())
        return {"retry_after": "60"} if number > 3 else None

    with serving(busy) as service:
        teacher = load_teacher(api={"url": service.url, "model": "m", "concurrency": 2}, batch_size=8)
        store = SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width)
        begun = time.monotonic()
        told = fill_store(store, teacher, corpus, stop=lambda: bool(waiting) and time.monotonic() - waiting[0] > 0.3)
        assert time.monotonic() - begun < 50, "less than it asked for"
        assert 0 < told.taught < 60 and teacher.stop is None  # type: ignore[attr-defined]
        service.fault = lambda number, asked: None
        teacher = load_teacher(api={"url": service.url, "model": "m"}, batch_size=8)
        fill_store(store, teacher, corpus)
        assert max(service.answered[text] for text in texts) == 1, "what came was kept"
    assert not store.missing(corpus.teacher_keys).any()


def test_teaching_stops_between_attempts_of_a_function(tmp_path: Path) -> None:
    slept: list[float] = []

    def busy(texts: list[str]) -> np.ndarray:
        if "text 2" in texts:
            raise ConnectionError("try later")
        return lengths(texts)

    teacher = CallTeacher(CallSection(call=busy, batch_size=2), Reading(), Patience(sleep=slept.append))
    corpus = read_corpus([f"text {number}" for number in range(6)], tmp_path / "corpus", holdout=0.0)
    store = SignalStore.create(tmp_path / "store", teacher.card, 3)
    told = fill_store(store, teacher, corpus, stop=lambda: sum(slept) > 2)
    assert told.taught == 2 and 2 < sum(slept) <= 3 and max(slept) <= 0.5


def test_the_teacher_is_judged_behind_the_prompts_that_it_taught_with(tmp_path: Path, tiny_bert: Path) -> None:
    rows = [{"a": f"what is number {n}", "b": f"it is the number {n}"} for n in range(40)]
    parts = [{"path": rows, "name": "p", "prompt": ["query: ", "passage: "]}]
    corpus = {"parts": parts, "text": ["a", "b"], "holdout": 0.3}
    made = Job(tiny_recipe(tmp_path, tiny_bert, None, corpus=corpus, method={"name": "mse"}))
    encoder, teacher = made.taught[0].encoder(made.corpus), made.taught[0].teacher
    asked, told = ["what is number 3", "who is it"], ["it is the number 3", "it is he"]
    for found, texts in ((encoder.query(asked), asked), (encoder.document(told), told)):
        prompt = "query: " if texts is asked else "passage: "
        np.testing.assert_allclose(found, teacher.encode([prompt + text for text in texts]), atol=2e-3)
    np.testing.assert_allclose(encoder(asked), teacher.encode(asked), atol=1e-6)


def test_no_teacher_reads_its_prompt_before_one_of_the_corpus(tmp_path: Path, tiny_bert: Path) -> None:
    """Wherever teachers are asked: to train, to teach alone, to mine."""
    rows = [{"a": f"what is number {n}", "b": f"it is the number {n}"} for n in range(40)]
    parts = [{"path": rows, "name": "p", "prompt": ["query: ", "passage: "]}]
    teachers = [{"name": "t", "model": str(tiny_bert), "prompt": "query: "}]
    corpus = {"parts": parts, "text": ["a", "b"]}
    recipe = tiny_recipe(tmp_path, tiny_bert, None, corpus=corpus, teachers=teachers, method={"name": "mse"})
    for command in (train, teach_alone, mine_recipe):
        with pytest.raises(DistilvecError, match="teacher t: .*two.*corpus.parts"):
            command(recipe)


@pytest.mark.parametrize("how", ["concatenate", "average"])
def test_combined_teachers_have_nothing_where_one_of_them_lacks_an_item(how: Literal["concatenate", "average"]) -> None:
    some = load_teacher(call=lambda texts: [None if "odd" in text else [1.0, 2.0] for text in texts])
    both = CombinedTeacher([load_teacher(call=lambda texts: np.ones((len(texts), 2))), some], [1.0, 1.0], how)
    found = both.signals(["a text", "an odd one"])
    assert found.present.tolist() == [True, False] and found.sentence is not None
    assert found.sentence.isfinite().all() and not found.sentence[1].any()


def test_combined_teachers_keep_their_own_sides(tmp_path: Path, tiny_bert: Path) -> None:
    teachers = [load_teacher(model=str(build("qwen3", tmp_path / "qwen3"))), load_teacher(model=str(tiny_bert))]
    both = CombinedTeacher(teachers, [1.0, 1.0], "concatenate")
    assert both.has_side("query") and not both.has_side("document")
    expected = both.combined([teacher.encode_query(TEXTS) for teacher in teachers])
    np.testing.assert_array_equal(CachedEncoder(both).query(TEXTS), expected)
    assert np.abs(expected - both.encode(TEXTS)).max() > 0.01
    np.testing.assert_array_equal(CachedEncoder(both).document(TEXTS), both.encode(TEXTS))


def test_vectors_that_are_only_combined_are_not_taught(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    """The report has how many were encoded, and how fast."""
    teachers = [{"name": name, "call": CountingFunction().embed} for name in "tu"]
    texts = sorted(set(sentences))[:60]
    for how, new in (("concatenate", 60), ("average", 0)):
        filled = Job(tiny_recipe(tmp_path, tiny_bert, texts, teachers=teachers, combine=how)).first.filled
        assert (filled.taught, filled.present) == (new, 60 - new)
