from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.judging.embedders import words

from distilvec.errors import DataError, DistilvecError
from distilvec.judging import CachedEncoder, RidgeMapped, apply_map


class Counting:
    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        self.calls.append(list(texts))
        return words(texts)


def test_each_text_once_and_sorted_by_length() -> None:
    model = Counting()
    encoder = CachedEncoder(model, chunk=2)
    texts = ["a", "b b b", "c c", "a", "d d d d"]
    assert encoder(texts) == pytest.approx(words(texts), abs=1e-5)
    assert [sorted(len(t) for t in call) for call in model.calls] == [[5, 7], [1, 3]]
    again = encoder(["e", "a", "c c"])
    assert again == pytest.approx(words(["e", "a", "c c"]), abs=1e-5)
    assert model.calls[2:] == [["e"]]
    assert encoder.encoded == 5
    assert encoder([]).shape == (0, 48)


def test_many_small_additions() -> None:
    encoder = CachedEncoder(words)
    texts = [f"word{i}" for i in range(60)]
    for text in texts:
        encoder([text])
    assert encoder(texts[::-1]) == pytest.approx(words(texts[::-1]), abs=1e-5)


def test_a_sentence_transformer_is_asked_in_its_own_way(tiny_bert: Path, sentences: list[str]) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(tiny_bert), device="cpu")
    texts = sentences[:40]
    assert CachedEncoder(model)(texts) == pytest.approx(model.encode(texts), abs=1e-5)


def test_queries_and_documents_have_sides_where_the_model_has(tiny_model_folders: dict[str, Path]) -> None:
    from sentence_transformers import SentenceTransformer

    plain = CachedEncoder(SentenceTransformer(str(tiny_model_folders["bert"]), device="cpu"))
    assert np.array_equal(plain.query(["where?"]), plain(["where?"]))
    assert plain.encoded == 1
    model = SentenceTransformer(str(tiny_model_folders["qwen3"]), device="cpu")
    prompted = CachedEncoder(model)
    assert prompted.query(["where?"]) == pytest.approx(model.encode_query(["where?"]), abs=1e-5)
    assert prompted.document(["here"]) == pytest.approx(model.encode_document(["here"]), abs=1e-5)
    assert not np.allclose(prompted.query(["where?"]), prompted(["where?"]), atol=1e-4)
    matrix = np.eye(32, 8, dtype=np.float32)
    free = CachedEncoder(RidgeMapped(prompted, matrix))
    assert free.query(["where?"]) == pytest.approx(prompted.query(["where?"]) @ matrix, abs=1e-5)
    assert free.document(["here"]) == pytest.approx(prompted.document(["here"]) @ matrix, abs=1e-5)


def test_a_router_has_sides(tiny_model_folders: dict[str, Path]) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Router

    first = SentenceTransformer(str(tiny_model_folders["bert"]), device="cpu")
    second = SentenceTransformer(str(tiny_model_folders["xlmr"]), device="cpu")
    router = SentenceTransformer(
        modules=[Router.for_query_document(list(first.children()), list(second.children()))], device="cpu"
    )
    encoder = CachedEncoder(router)
    assert encoder.query(["where is it?"]) == pytest.approx(first.encode(["where is it?"]), abs=1e-5)
    assert encoder.document(["where is it?"]) == pytest.approx(second.encode(["where is it?"]), abs=1e-5)


def _nan(texts: Sequence[str]) -> np.ndarray:
    vectors = words(texts)
    vectors[[text == "bad one" for text in texts], 3] = np.nan
    return vectors


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_nan, r"1 of 3 vectors .*\bNaN\b.*'bad one'"),
        (lambda texts: words(texts)[:-1], r"\[3, width\] .*\[2, 48\]"),
        (lambda texts: words(texts)[:, :, None], r"\[3, width\] .*\[3, 48, 1\]"),
    ],
)
def test_bad_vectors_are_refused(model: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^mine: {message}"):
        CachedEncoder(model, name="mine")(["x", "bad one", "yy"])


def test_a_width_that_changes_is_refused() -> None:
    encoder = CachedEncoder(lambda texts: words(texts, width=len(texts)), name="mine")
    encoder(["a", "b"])
    with pytest.raises(DataError, match=r"^mine: .*width 2\b.*width 1\b"):
        encoder(["c"])


def test_something_that_cannot_encode_is_refused() -> None:
    with pytest.raises(DistilvecError, match=r"^model: .*\bdict\b"):
        CachedEncoder({"a": 1})


def test_the_free_baseline_maps() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(48, 7))
    texts = ["one two", "three"]
    assert RidgeMapped(words, matrix).encode(texts) == pytest.approx(words(texts) @ matrix, abs=1e-3)
    with_offset = np.vstack([matrix, np.arange(7.0)])
    expected = words(texts) @ matrix + np.arange(7)
    assert CachedEncoder(RidgeMapped(words, with_offset))(texts) == pytest.approx(expected, abs=1e-3)
    with pytest.raises(DistilvecError, match=r"\[48, 7\].*50"):
        apply_map(np.zeros((2, 50)), matrix)


def test_texts_of_equal_length_keep_their_order() -> None:
    asked: list[str] = []

    def model(texts: Sequence[str]) -> np.ndarray:
        asked.extend(texts)
        return words(texts)

    texts = [f"{number:03}" for number in range(50, 0, -1)]
    CachedEncoder(model)([*texts, *texts])
    assert asked == texts
