"""What was found by reading stores, teachers and mining: each as the smallest case that shows it."""

from __future__ import annotations

import errno
import functools
import inspect
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.teachers.serving import serving, vector

from distilvec.corpus import read_corpus
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.flow import mine as mining
from distilvec.flow.teach import fill_store
from distilvec.mining.sides import Side
from distilvec.recipe import Recipe
from distilvec.store import RaggedSignal, SignalStore, files, pull, push, remote
from distilvec.store.files import write_json
from distilvec.teachers import answers as answers_module
from distilvec.teachers import load_teacher
from distilvec.teachers.answers import Answers
from distilvec.teachers.callable import CallTeacher, Patience
from distilvec.teachers.cards import fingerprint
from distilvec.teachers.invariance import batch_invariance
from distilvec.teachers.items import ItemTeacher

CARD = {"name": "t", "fingerprint": "v1"}
KEYS = np.random.default_rng(0).integers(0, 256, (40, 16), dtype=np.uint8)
VECTORS = np.random.default_rng(1).standard_normal((40, 8)).astype(np.float16).astype(np.float32)


def filled(folder: Path, first: int = 0, last: int = 40, name: str = "host-0") -> SignalStore:
    store = SignalStore.create(folder, CARD, 8)
    with store.writer(name) as writer:
        writer.add(KEYS[first:last], VECTORS[first:last])
    store.refresh()
    return store


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [[float(len(text)), float(text.count("e")), 1.0] for text in texts]


# mining


def recipe_of(folder: Path, pairs: list[dict[str, str]], output: str, holdout: float = 0.0, **options: Any) -> Recipe:
    """Mining with a random vector for each text."""
    texts = sorted({text for pair in pairs for text in pair.values()})
    np.save(folder / "vectors.npy", np.random.default_rng(2).standard_normal((len(texts), 24)).astype(np.float32))
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    given = {"name": "given", "vectors": str(folder / "vectors.npy"), "texts": str(folder / "texts.txt")}
    return Recipe.build(
        {
            "corpus": {"path": str(folder / "pairs.jsonl"), "text": ["q", "d"], "holdout": holdout},
            "teachers": [given],
            "mining": {"relative_margin": None, "duplicates": None, **options},
            "output": str(folder / output),
        }
    )


def mined(file: Path) -> list[list[str]]:
    """Query, positive and negatives of each row."""
    rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return [[value for name, value in row.items() if name != "similarities"] for row in rows]


def test_a_mining_goes_on_though_the_rows_of_its_store_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [{"q": f"question {n}", "d": f"answer {n}"} for n in range(100)]
    monkeypatch.setattr(mining, "QUERIES", 64)
    calls = Counter[str]()
    search = mining.nearest

    def dies(*given: Any, **options: Any) -> Any:
        calls["searches"] += 1
        if calls["searches"] == 2:
            raise KeyboardInterrupt
        return search(*given, **options)

    recipe = recipe_of(tmp_path, pairs, "cut")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mining, "nearest", dies)
        mining.mine_recipe(recipe)
    store = SignalStore.open(tmp_path / "cut/stores/given")
    keys, vectors = store.keys(np.arange(len(store))), store.read(np.arange(len(store)))
    for file in store.path.glob("sentence-*"):
        file.unlink()
    for name, rows in (("z", slice(0, 77)), ("a", slice(77, None))):  # as two writers would have left them
        with store.writer(name) as writer:
            writer.add(keys[rows], vectors[rows])
    whole = mined(mining.mine_recipe(recipe_of(tmp_path, pairs, "whole")).file)
    assert mined(mining.mine_recipe(recipe).file) == whole


def test_a_query_that_stands_in_many_pairs_takes_no_room_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [{"q": "the same" if n % 3 == 0 else f"question {n}", "d": f"answer {n}"} for n in range(90)]
    options = {"ranks": (1, 10), "random": 0.4}
    whole = mining.mine_recipe(recipe_of(tmp_path, pairs, "whole", **options))
    monkeypatch.setattr(mining, "_NEIGHBOURS", 1000)
    held: list[tuple[int, int]] = []
    search = mining.nearest

    def noted(queries: np.ndarray, documents: Any, count: int, **given: Any) -> Any:
        held.append((len(queries), count))
        return search(queries, documents, count, **given)

    monkeypatch.setattr(mining, "nearest", noted)
    found = mining.mine_recipe(recipe_of(tmp_path, pairs, "small", **options))
    assert sum(queries for queries, _ in held) == 90 and max(queries * count for queries, count in held) <= 1250
    assert len(held) < 5, "those with few answers are searched together"
    assert mined(found.file) == mined(whole.file) and found.taken == whole.taken


def test_equal_pairs_are_one_answer(tmp_path: Path) -> None:
    pairs = [{"q": "one", "d": "yes"}] * 3 + [{"q": "one", "d": "no"}, {"q": "two", "d": "yes"}]
    rows = [row for pair in pairs for row in (pair["q"], pair["d"])]
    keys = np.stack([np.frombuffer(text.encode().ljust(16), np.uint8) for text in rows])
    store = SignalStore.create(tmp_path, CARD, 8)
    with store.writer() as writer:
        writer.add(*(values[:4] for values in (np.unique(keys, axis=0), VECTORS)))
    store.refresh()
    corpus: Any = SimpleNamespace(groups=np.arange(10) // 2, roles=np.arange(10) % 2, teacher_keys=keys)
    side = Side(corpus, store, np.arange(10), None)
    asked = side.block(side.asked)
    pairs_met = list(zip(asked.rows.tolist(), asked.own.tolist(), strict=True))
    assert len(pairs_met) == len(set(pairs_met)) == 4 * 2 + 1


def test_pairs_whose_answer_is_trained_on_elsewhere_are_told_apart(tmp_path: Path) -> None:
    pairs = [{"q": f"question {n}", "d": f"answer {n % 12}"} for n in range(60)]
    found = mining.mine_recipe(recipe_of(tmp_path, pairs, "out", holdout=0.3))
    assert found.unknown == 0 < found.shared == found.none
    assert f"{found.shared} held-out pairs are without because other pairs" in found.text()
    assert "no vector" not in found.text()


# stores


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO, errno.ENOMEM])
@pytest.mark.parametrize("what", ["record", "file", "bytes"])
def test_a_part_that_cannot_be_read_now_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, what: str
) -> None:
    store = filled(tmp_path)

    def refuse(*given: Any, **options: Any) -> Any:
        raise OSError(number, "no")

    with monkeypatch.context() as patch, pytest.raises(EnvironmentProblem, match=rf"{store.parts[0]}\.\w+: the store"):
        if what == "record":
            patch.setattr(Path, "read_bytes", refuse)
        elif what == "file":
            patch.setattr("pyarrow.memory_map", refuse)
        else:
            patch.setattr("distilvec.store.part.open", refuse, raising=False)
        if what == "bytes":
            store.verify()
        SignalStore.open(tmp_path)
    assert len(SignalStore.open(tmp_path, verify=True)) == 40 and not list(tmp_path.glob("*.bad"))


def test_a_store_is_not_made_anew_under_a_writer(tmp_path: Path) -> None:
    store = SignalStore.create(tmp_path, CARD, 8)
    with store.writer() as writer:
        writer.add(KEYS, VECTORS)
        with pytest.raises(DistilvecError, match=r"another process is filling .*float16 of width 8, and float32 of"):
            SignalStore.create(tmp_path, CARD, 8, "float32")
        SignalStore.create(tmp_path, {**CARD, "dtype": "bfloat16"}, 8)  # the same vectors from another machine
    store.refresh()
    assert len(store) == 40 == len(SignalStore.open(tmp_path))


def test_nobody_writes_into_a_store_that_was_made_anew_since(tmp_path: Path) -> None:
    store = SignalStore.create(tmp_path, CARD, 8)
    SignalStore.create(tmp_path, CARD, 8, "float32")
    with pytest.raises(DistilvecError, match=r"made anew .*float32 of width 8 instead of float16"):
        store.writer()
    assert not list(tmp_path.glob("*.lock"))


def test_two_may_write_one_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = files.os.replace

    def after_another(*names: Any) -> None:
        monkeypatch.setattr(files.os, "replace", replace)
        write_json(tmp_path / "vocabulary.json", {"by": "another"})
        replace(*names)

    monkeypatch.setattr(files.os, "replace", after_another)
    write_json(tmp_path / "vocabulary.json", {"by": "one"})
    assert json.loads((tmp_path / "vocabulary.json").read_text()) == {"by": "one"}
    assert [file.name for file in tmp_path.iterdir()] == ["vocabulary.json"]


def test_half_written_records_of_a_killed_writer_go(tmp_path: Path) -> None:
    store = filled(tmp_path)
    half = tmp_path / ".distilvec-tmp-0123456789abcdef"
    half.touch()
    write_json(tmp_path / "more.json", {})
    assert not half.exists()
    (tmp_path / "more.json").unlink()
    with store.writer("host-0"):
        assert not list(tmp_path.glob(".distilvec*"))
    assert len(SignalStore.open(tmp_path)) == 40


def test_two_processes_that_fetch_into_one_folder_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/copy"
    push(filled(tmp_path / "one").path, url)
    fetch, fetched, threads = remote._fetch, list[int](), list[threading.Thread]()

    def slowly(*given: Any) -> bool:
        if not threads:
            threads.append(threading.Thread(target=lambda: fetched.append(pull(url, tmp_path / "two"))))
            threads[0].start()
            time.sleep(0.5)
        return fetch(*given)

    monkeypatch.setattr(remote, "_fetch", slowly)
    fetched.append(pull(url, tmp_path / "two"))
    threads[0].join()
    assert sorted(fetched) == [0, 1] and len(SignalStore.open(tmp_path / "two", verify=True)) == 40
    assert not list((tmp_path / "two").glob("*.lock"))


def test_token_states_on_other_axes_are_not_fetched(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/copy"
    one, two = filled(tmp_path / "one", 0, 20), filled(tmp_path / "two", 20, 40)
    for store, content in ((one, b"these"), (two, b"those")):
        (store.path / "axes-tokens-2.safetensors").write_bytes(content)
    push(one.path, url)
    with pytest.raises(DistilvecError, match=r"lie on other axes than those in .*/two \(axes-tokens-2\.safetensors\)"):
        pull(url, two.path)
    assert len(SignalStore.open(two.path)) == 20


def test_token_states_beyond_float16_are_named(tmp_path: Path) -> None:
    signal = RaggedSignal.create(filled(tmp_path).path, "tokens-2", 4, "float16")
    writer = signal.writer("host-0", 1 << 20)
    with pytest.raises(DataError, match=r"tokens-2 has a value of 7e\+04, float16 ends at 65504.*live: true"):
        writer.add(KEYS[:1], [np.full((3, 4), -7e4, np.float32)])
    writer.add(KEYS[:1], [np.full((3, 4), 65504.0, np.float32)])


# teachers


def test_answers_for_another_shard_wait_for_it(tmp_path: Path) -> None:
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


def test_who_ends_takes_no_folder_from_under_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "answers"
    one, two = (Answers(folder, "ab" * 16, 3).__enter__() for _ in range(2))
    one.__exit__(None, None, None)
    two.add([bytes(16)], np.ones((1, 3), np.float32))
    two.__exit__(None, None, None)
    assert len(list(folder.glob("*.bin"))) == 1
    lock = answers_module.locked

    def after_its_end(file: Path, **options: Any) -> Any:
        file.with_suffix(".bin").unlink()
        return lock(file, **options)

    monkeypatch.setattr(answers_module, "locked", after_its_end)
    with Answers(folder, "ab" * 16, 3) as three:
        assert len(three) == 0 and not three.left
    assert not folder.exists()


def test_what_a_named_function_carries_is_part_of_its_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(texts: list[str], by: float) -> list[list[float]]:
        return [[by * value for value in row] for row in embed(texts)]

    def card(function: Any) -> Any:
        monkeypatch.setitem(sys.modules, "distilvec_test_named", SimpleNamespace(embed=function))
        return load_teacher(call="distilvec_test_named:embed").card.fingerprint

    assert card(functools.partial(scaled, by=1.0)) == card(functools.partial(scaled, by=1.0))
    assert card(functools.partial(scaled, by=1.0)) != card(functools.partial(scaled, by=2.0))
    as_always = fingerprint("distilvec_test_named:embed", inspect.getsource(embed), "", 3)
    assert card(embed) == as_always, "a plain function's store stays valid"


def test_a_check_gives_no_more_at_once_than_a_batch_has(tmp_path: Path) -> None:
    sizes: list[int] = []

    def noted(texts: list[str]) -> list[list[float]]:
        sizes.append(len(texts))
        return embed(texts)

    assert batch_invariance(load_teacher(call=noted, batch_size=2)).passed and max(sizes) == 2
    with serving() as service:
        assert batch_invariance(load_teacher(api={"url": service.url, "model": "m"}, batch_size=2)).passed
        assert max(len(body["input"]) for body in service.bodies) == 2


class Pictures(torch.nn.Sequential):
    def get_embedding_dimension(self) -> int:
        return 3


def test_how_images_are_prepared_is_part_of_their_teacher(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')

    def found() -> str:
        model: Any = Pictures(torch.nn.Identity())
        return ItemTeacher(model, name="t", source=tmp_path).card.fingerprint

    seen = {found()}
    for name in ("preprocessor_config.json", "processor_config.json"):
        for size in (224, 256):
            (tmp_path / name).write_text(json.dumps({"size": size}))
            seen.add(found())
    assert len(seen) == 5


def test_a_stop_is_heard_while_a_service_makes_everybody_wait(tmp_path: Path) -> None:
    texts = [f"text {number} of some" for number in range(60)]
    corpus = read_corpus(texts, tmp_path / "corpus", holdout=0.0)
    with serving(lambda number, asked: {"retry_after": "60"} if number > 3 else None) as service:
        teacher = load_teacher(api={"url": service.url, "model": "m", "concurrency": 2}, batch_size=8)
        store = SignalStore.create(tmp_path / "store", teacher.card, teacher.card.width)
        begun = time.monotonic()
        told = fill_store(store, teacher, corpus, stop=lambda: time.monotonic() - begun > 2)
        assert time.monotonic() - begun < 30
        assert 0 < told.taught < 60 and teacher.stop is None  # type: ignore[attr-defined]
        service.fault = lambda number, asked: None
        teacher = load_teacher(api={"url": service.url, "model": "m"}, batch_size=8)
        fill_store(store, teacher, corpus)
        assert max(service.answered[text] for text in texts) == 1, "what came was kept"
    assert not store.missing(corpus.teacher_keys).any()


def test_a_stop_is_heard_between_two_attempts_of_a_function(tmp_path: Path) -> None:
    slept: list[float] = []

    def busy(texts: list[str]) -> list[list[float]]:
        if "text 2" in texts:
            raise ConnectionError("try later")
        return embed(texts)

    teacher = CallTeacher(busy, batch_size=2, patience=Patience(sleep=slept.append))
    corpus = read_corpus([f"text {number}" for number in range(6)], tmp_path / "corpus", holdout=0.0)
    store = SignalStore.create(tmp_path / "store", teacher.card, 3)
    told = fill_store(store, teacher, corpus, stop=lambda: sum(slept) > 2)
    assert told.taught == 2 and 2 < sum(slept) <= 3 and max(slept) <= 0.5
