"""Copies of stores on storage that fsspec opens: in memory, and on a disk that several machines see."""

from __future__ import annotations

import json
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from tests.functions import lengths
from tests.store.rows import CARD, KEYS, VECTORS, filled

from distilvec.corpus import content_keys
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.storage import opened_storage
from distilvec.store import RaggedSignal, SignalStore, fill, pull, push, remote
from distilvec.teachers import load_teacher


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An address where there is nothing yet."""
    if request.param == "file":
        yield f"file://{tmp_path}/storage/stores"
        return
    root = f"/{uuid.uuid4().hex}"
    yield f"memory:/{root}"
    fsspec.filesystem("memory").rm(root, recursive=True)


def check(store: SignalStore, count: int) -> None:
    rows = store.rows(KEYS[:count])
    np.testing.assert_array_equal(store.read(rows), VECTORS[:count])
    assert len(store) == count and store.verify() == []


def files(url: str) -> list[str]:
    system, root = fsspec.core.url_to_fs(url)
    system.invalidate_cache()
    return sorted(path.rsplit("/", 1)[-1] for path in system.ls(root, detail=False))


def test_two_machines_that_share_nothing_but_the_storage(tmp_path: Path, url: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert pull(url, one) == 0 and not one.exists()
    filled(one, 0, 30)
    assert push(one, url) == 1 and push(one, url) == 0
    filled(two, 30, 60)  # a writer of the same name: another machine may be called the same
    assert push(two, url) == 1
    assert pull(url, one) == 1 and pull(url, one) == 0 and push(one, url) == 0
    assert pull(url, two) == 1
    for folder in (one, two, tmp_path / "three"):
        pull(url, folder)
        check(SignalStore.open(folder), 60)
    assert len(files(url)) == 5


def test_signals_and_token_strings_come_along(tmp_path: Path, url: str) -> None:
    one = filled(tmp_path / "one", 0, 20)
    signal = RaggedSignal.create(one.path, "tokens-2", 4, "float16", "of the states after the final norm")
    writer = signal.writer("host-0", 1 << 20)
    writer.add(KEYS[:20], [np.full((length + 1, 4), length, np.float32) for length in range(20)])
    writer.flush()
    (one.path / "vocabulary.json").write_text('{"tokens": ["a"]}')
    assert push(one.path, url) == 2
    assert pull(url, tmp_path / "two") == 2
    found = RaggedSignal(tmp_path / "two", "tokens-2")
    assert [item.shape for item in found.read(found.rows(KEYS[:3]))] == [(1, 4), (2, 4), (3, 4)]
    assert (tmp_path / "two/vocabulary.json").read_text() == '{"tokens": ["a"]}'
    RaggedSignal.create(tmp_path / "two", "tokens-2", 4, "float16", "of the states after the final norm")
    with pytest.raises(DistilvecError, match="two.*tokens-2.*of other states"):
        RaggedSignal.create(tmp_path / "two", "tokens-2", 4, "float16", "of other states")


def test_axes_of_token_states_come_along_and_others_are_refused(tmp_path: Path, url: str) -> None:
    one, two, other = (filled(tmp_path / name, 0, 20) for name in ("one", "two", "other"))
    (one.path / "axes-tokens-2.safetensors").write_bytes(b"these")
    (other.path / "axes-tokens-2.safetensors").write_bytes(b"those")
    push(one.path, url)
    pull(url, two.path)
    assert (two.path / "axes-tokens-2.safetensors").read_bytes() == b"these"
    push(two.path, url)
    with pytest.raises(DistilvecError, match=r"/other \(axes-tokens-2\.safetensors\)"):
        push(other.path, url)
    assert pull(url, tmp_path / "three") == 1


def test_a_copy_whose_record_is_missing_does_not_exist_and_is_made_again(tmp_path: Path, url: str) -> None:
    one = filled(tmp_path / "one", 0, 20)
    push(one.path, url)
    system, root = fsspec.core.url_to_fs(url)
    record = next(name for name in files(url) if name.endswith("-000000.json"))
    system.rm(f"{root}/{record}")
    system.pipe_file(f"{root}/{record.replace('.json', '.arrow')}", b"cut off")
    assert pull(url, tmp_path / "two") == 0
    assert push(one.path, url) == 1 and pull(url, tmp_path / "two") == 1
    check(SignalStore.open(tmp_path / "two"), 20)


def test_damaged_parts_are_not_uploaded_and_are_restored(tmp_path: Path, url: str) -> None:
    one = filled(tmp_path / "one", 0, 20)
    push(one.path, url)
    filled(one.path, 20, 40)
    for part in one.path.glob("*.arrow"):
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 1
        part.write_bytes(content)
    assert push(one.path, url) == 0
    assert len(SignalStore.open(one.path, verify=True)) == 0
    assert pull(url, one.path) == 1
    check(SignalStore.open(one.path), 20)


def test_another_teacher_width_or_dtype_is_refused(tmp_path: Path, url: str) -> None:
    push(filled(tmp_path / "one", 0, 20).path, url)
    others = {
        r"v1\b.*\bv2": ({"name": "t", "fingerprint": "v2"}, 8, "float16"),
        r"sentence .*'float16'.*'float32'": (CARD, 8, "float32"),
    }
    for word, arguments in others.items():
        store = SignalStore.create(tmp_path / arguments[-1], *arguments)
        for call in (lambda store=store: push(store.path, url), lambda store=store: pull(url, store.path)):
            with pytest.raises(DistilvecError, match=word):
                call()


def test_storage_that_cannot_be_used(tmp_path: Path) -> None:
    store = filled(tmp_path / "one", 0, 20)
    with pytest.raises(EnvironmentProblem, match=r"^oss://bucket/stores: .*ossfs"):
        push(store.path, "oss://bucket/stores")
    (tmp_path / "occupied").write_text("a file")
    with pytest.raises(EnvironmentProblem, match="^file://.*/occupied/stores: "):
        push(store.path, f"file://{tmp_path}/occupied/stores")


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1/x", "webhdfs://127.0.0.1:1/x", "hdfs://127.0.0.1:1/x"])
def test_storage_that_does_not_answer_is_said_in_one_line(tmp_path: Path, url: str) -> None:
    for work in (lambda: pull(url, tmp_path / "new"), lambda: push(filled(tmp_path / "one", 0, 20).path, url)):
        with pytest.raises(EnvironmentProblem, match=f"^{url}: ") as caught:
            work()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "url",
    ["zip://a.zip", "tar://a.tar", "github://a:b@main/c", "reference://a", "jupyter://localhost:1/", "http://a/b",
     "data://a", "generic://a", "simplecache::s3://b/c", "nosuch://b", "://a", "s3:/b/c", ""],
)  # fmt: skip
def test_invalid_storage_for_copies_is_refused(tmp_path: Path, url: str) -> None:
    from distilvec.recipe import Recipe

    store = filled(tmp_path / "one", 0, 20)
    for work in (lambda: pull(url, tmp_path / "new"), lambda: push(store.path, url)):
        with pytest.raises(DistilvecError, match=r"s3://bucket/folder") as caught:
            work()
        assert url.partition("://")[0] in str(caught.value) and not (tmp_path / "new").exists()
    sections = {"corpus": {"path": "t"}, "teachers": [{"model": "m"}], "student": {"model": "m"}, "remote": url}
    with pytest.raises(DistilvecError, match=r"^recipe: remote .*s3://bucket/folder"):
        Recipe.build(sections)


def test_a_password_in_the_address_of_copies_is_refused() -> None:
    from distilvec.recipe import Recipe

    sections = {"corpus": {"path": "t"}, "teachers": [{"model": "m"}], "student": {"model": "m"}}
    with pytest.raises(DistilvecError, match="recipe: remote has an address with a password.*leave it out") as told:
        Recipe.build({**sections, "remote": "sftp://me:secret@host/stores"})
    assert "secret" not in str(told.value)


def test_parts_are_uploaded_while_teaching(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import time

    monkeypatch.setattr(remote, "SECONDS", 0.02)
    with remote.mirrored(tmp_path / "one", url):
        filled(tmp_path / "one", 0, 20)
        end = time.monotonic() + 20
        while pull(url, tmp_path / "two") == 0:
            assert time.monotonic() < end
            time.sleep(0.01)
        with pytest.raises(KeyError), remote.mirrored(tmp_path / "one", url):
            filled(tmp_path / "one", 20, 40)
            raise KeyError("the teaching fails")
    assert pull(url, tmp_path / "two") == 1
    check(SignalStore.open(tmp_path / "two"), 40)


def test_a_recipe_with_a_copy_teaches_nothing_twice(
    tmp_path: Path, url: str, tiny_bert: Path, sentences: list[str]
) -> None:
    from tests.jobs import Job

    from distilvec.flow.run import train
    from distilvec.recipe import Recipe

    (tmp_path / "texts.txt").write_text("\n".join(" ".join(text.split()[:8]) for text in sentences[:60]))
    sections = {
        "corpus": {"path": str(tmp_path / "texts.txt")},
        "teachers": [{"name": "mine", "model": str(tiny_bert)}],
        "student": {"shrink": {"of": "mine", "layers": 1}},
        "method": {"name": "cosine"},
        "training": {"max_steps": 2, "batch_size": 8, "use_cpu": True},
        "remote": url,
    }
    shares = [Recipe.build({**sections, "output": str(tmp_path / output)}) for output in "ab"]
    first, second = (Job(recipe).teach(shard=(number, 2))[0] for number, recipe in enumerate(shares))
    assert first.filled.taught and first.filled.taught + second.filled.taught == len(second.store)
    shutil.rmtree(tmp_path / "a")
    recipe = Recipe.build({**sections, "output": str(tmp_path / "c")})
    assert (train(recipe) / "model.safetensors").is_file()
    again = Job(recipe).taught[0].filled
    assert again.taught == 0 and again.present == again.distinct > 50
    parts = {json.loads(file.read_text())["checksum"][:8] for file in (tmp_path / "c/stores/mine").glob("sent*.json")}
    assert len(parts) == 2 and all(name.split("-")[1][:8] in parts for name in files(f"{url}/mine") if "-" in name)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [("cache", "s3://b/c", "remote: URL"), ("output", "s3://b/c", "remote: URL"), ("remote", "folder", "s3://bucket")],
)
def test_which_keys_take_addresses(key: str, value: str, said: str) -> None:
    from distilvec.recipe import Recipe

    sections = {"corpus": {"path": "t"}, "teachers": [{"model": "m"}], "student": {"model": "m"}, key: value}
    with pytest.raises(DistilvecError, match=rf"^recipe: {key} .*{said}"):
        Recipe.build(sections)


def test_a_recipe_without_a_copy_is_saved_as_before_the_key_was_known() -> None:
    from distilvec.recipe import Recipe

    sections = {"corpus": {"path": "t"}, "teachers": [{"model": "m"}], "student": {"model": "m"}}
    assert "remote:" not in Recipe.build(sections).to_yaml()
    assert "remote: s3://b/c" in Recipe.build({**sections, "remote": "s3://b/c"}).to_yaml()


def test_failed_upload_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With errors of its own, which are no OSError."""
    texts = [f"text {number}" for number in range(8)]
    store = SignalStore.create(tmp_path / "store", load_teacher(call=lengths).card, 3, "float32")
    real, tries = remote.push, []

    def push(folder: Path, url: str) -> int:
        tries.append(url)
        if len(tries) == 1:
            raise RuntimeError("EndpointConnectionError")
        return real(folder, url)

    monkeypatch.setattr(remote, "push", push)
    monkeypatch.setattr(remote, "SECONDS", 0.05)
    url = f"file://{tmp_path / 'copy'}"
    with remote.mirrored(store.path, url):
        fill(store, load_teacher(call=lengths), texts, content_keys(texts))
        begun = time.monotonic()
        while len(tries) < 3 and time.monotonic() - begun < 20:
            time.sleep(0.02)
    assert len(tries) >= 3


def test_storage_error_is_shown(tmp_path: Path) -> None:
    with (
        pytest.raises(EnvironmentProblem, match="cannot be used .NoCredentials"),
        opened_storage(f"file://{tmp_path}", "a copy"),
    ):
        raise RuntimeError("NoCredentials")


def test_two_pulls_into_one_folder_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_pulling_token_states_on_other_axes_is_refused(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/copy"
    one, two = filled(tmp_path / "one", 0, 20), filled(tmp_path / "two", 20, 40)
    for store, content in ((one, b"these"), (two, b"those")):
        (store.path / "axes-tokens-2.safetensors").write_bytes(content)
    push(one.path, url)
    with pytest.raises(DistilvecError, match=r"lie on other axes than those in .*/two \(axes-tokens-2\.safetensors\)"):
        pull(url, two.path)
    assert len(SignalStore.open(two.path)) == 20
