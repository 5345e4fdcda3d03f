from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.alignment import cutters, reference
from tests.english import sentences

from distilvec.alignment import MODES, Aligner, align, distances
from distilvec.alignment.strings import alike, kind_of, plain
from distilvec.errors import DataError, DistilvecError

TEXTS = [*sentences(60), *cutters.MORE, "😀", "a"]
BATCHED = [mode for mode in MODES if mode != "spans"]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {kind: cutters.train(kind) for kind in cutters.KINDS}


def encoded(tokenizers: dict[str, Any], student: str, teacher: str, texts: list[str]) -> list[tuple[Any, Any]]:
    sides = [tokenizers[kind].encode_batch(texts, add_special_tokens=False) for kind in (student, teacher)]
    return [(np.array(a.ids), np.array(b.ids)) for a, b in zip(*sides)]


def aligner_of(tokenizers: dict[str, Any], student: str, teacher: str) -> Aligner:
    return Aligner(cutters.strings(tokenizers[student]), cutters.strings(tokenizers[teacher]))


def normal(vocabulary: list[str], ids: np.ndarray, lower: bool) -> list[str]:
    kind = kind_of(vocabulary)
    return alike([plain(vocabulary[index], kind) for index in ids.tolist()], lower=lower)


@pytest.mark.parametrize("student", cutters.KINDS[:4])
@pytest.mark.parametrize("teacher", cutters.KINDS)
def test_real_tokenizers_agree_with_the_definition(tokenizers: dict[str, Any], student: str, teacher: str) -> None:
    texts = [text for text in TEXTS if len(text) < 100]
    ids = encoded(tokenizers, student, teacher, texts)
    found = aligner_of(tokenizers, student, teacher).batch(ids, ["strict", "path", "full"])
    lower = "uncased" in student + teacher
    for number, (a, b) in enumerate(ids):
        words = (
            normal(cutters.strings(tokenizers[student]), a, lower),
            normal(cutters.strings(tokenizers[teacher]), b, lower),
        )
        for mode, pairs in found.items():
            assert pairs[number].dtype == np.int32 and pairs[number].shape[1] == 2
            assert [tuple(pair) for pair in pairs[number].tolist()] == reference.pairs(*words, mode), texts[number]


def test_ids_agree_with_token_strings(tokenizers: dict[str, Any]) -> None:
    student, teacher = "uncased wordpiece", "byte_level"
    aligner = aligner_of(tokenizers, student, teacher)
    for a, b in encoded(tokenizers, student, teacher, TEXTS):
        words = [
            [tokenizers[kind].id_to_token(index) for index in ids.tolist()]
            for kind, ids in ((student, a), (teacher, b))
        ]
        for mode in BATCHED:
            assert [tuple(pair) for pair in aligner.pairs(a, b, mode).tolist()] == align(*words, mode)


@pytest.mark.parametrize("kind", cutters.KINDS)
def test_a_tokenizer_is_aligned_with_itself_token_by_token(tokenizers: dict[str, Any], kind: str) -> None:
    ids = encoded(tokenizers, kind, kind, TEXTS)
    found = aligner_of(tokenizers, kind, kind).batch(ids, BATCHED)
    for number, (a, _) in enumerate(ids):
        for mode in BATCHED:
            assert found[mode][number].tolist() == [[i, i] for i in range(len(a))]


def test_neighbours_order_and_what_was_aligned_before_do_not_matter(tokenizers: dict[str, Any]) -> None:
    kinds = "sentencepiece", "uncased wordpiece"
    ids = encoded(tokenizers, *kinds, TEXTS)
    ids[3], ids[7] = (ids[3][0][:0], ids[3][1]), (ids[7][0], ids[7][1][:4])
    aligner = aligner_of(tokenizers, *kinds)
    together = aligner.batch(ids, BATCHED)
    backwards = aligner.batch(ids[::-1], BATCHED)
    for number, (a, b) in enumerate(ids):
        for mode in BATCHED:
            alone = aligner_of(tokenizers, *kinds).pairs(a, b, mode) if number < 9 else aligner.pairs(a, b, mode)
            assert np.array_equal(together[mode][number], alone)
            assert np.array_equal(together[mode][number], backwards[mode][-1 - number])
    assert together["full"][3].shape == (0, 2)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text(alphabet="abc", max_size=3), min_size=3, max_size=40),
    st.lists(st.tuples(*[st.lists(st.integers(0, 2), max_size=9)] * 2), max_size=6),
    st.integers(3, 30),
)
def test_a_table_that_is_too_small_changes_nothing(words: list[str], texts: list[Any], most: int) -> None:
    before = distances.FIRST, distances.MOST
    try:
        distances.FIRST, distances.MOST = 2, most
        found = Aligner(words, words[::-1]).batch(texts, ["full"])["full"]
    finally:
        distances.FIRST, distances.MOST = before
    for (a, b), pairs in zip(texts, found):
        expected = reference.path([words[i] for i in a], [words[::-1][j] for j in b])
        assert [tuple(pair) for pair in pairs.tolist()] == expected


def test_long_texts_and_long_words_agree_with_the_definition() -> None:
    rng = np.random.default_rng(0)
    words = [*"abcdefgh", "ab", "abc", "", "x" * 200, "xyz" * 90]
    ids = [
        (rng.integers(0, len(words), n), rng.integers(0, len(words), m)) for n, m in ((120, 150), (101, 100), (300, 7))
    ]
    found = Aligner(words, words).batch(ids, ["full", "strict"])
    known = {(a, b): reference.edit_distance(a, b) for a in words for b in words}
    for (a, b), pairs, strict in zip(ids, found["full"], found["strict"]):
        sides = [words[i] for i in a], [words[j] for j in b]
        assert [tuple(pair) for pair in pairs.tolist()] == reference.path(*sides, lambda x, y: known[x, y])
        assert all(sides[0][i] == sides[1][j] for i, j in strict.tolist())


@pytest.mark.parametrize("teacher", ["byte_level", "sentencepiece", "bytes after sentencepiece"])
def test_spans_find_equal_characters(tokenizers: dict[str, Any], teacher: str) -> None:
    paired = 0
    for text in TEXTS:
        a, b = (tokenizers[kind].encode(text, add_special_tokens=False) for kind in ("cased wordpiece", teacher))
        pairs = Aligner.span_pairs(a.offsets, b.offsets, text)
        for i, j in pairs.tolist():
            assert text[slice(*a.offsets[i])] == text[slice(*b.offsets[j])].strip()
        paired += len(pairs)
    assert paired > 5 * len(TEXTS)


def test_ids_the_vocabulary_lacks_are_refused() -> None:
    aligner = Aligner(["a", "b"], ["a", None])  # type: ignore[list-item]
    assert aligner.pairs([0], [1], "path").tolist() == [[0, 0]]
    with pytest.raises(DataError, match=r"student's .*\b2 entries.*\bid 2\b"):
        aligner.pairs([2], [0])
    with pytest.raises(DataError, match=r"teacher's .*\b2 entries.*\bid -1\b"):
        aligner.pairs([0], [-1])
    with pytest.raises(DistilvecError, match='"span_pairs"'):
        aligner.pairs([0], [0], "spans")
    assert aligner.batch([], ["full"]) == {"full": []}


def test_a_character_in_several_pieces_is_counted_once() -> None:
    aligner = Aligner(["東", "京a"], ["ĠæĿ", "±", "äº¬", "¬ðŁĺ", "Ġab"])
    assert [side.tolist() for side in aligner.characters] == [[1, 2], [1, 0, 1, 1, 2]]
    assert Aligner(["a"], ["▁ab", "<0xF0>", "<0x9F>"]).characters[1].tolist() == [2, 1, 0]


def test_bert_and_mistral_map_as_the_paper_says() -> None:
    """EMO's Table 6, SciTail: 71.03 % of the teacher's tokens and 80.22 % of the student's. On 500 of its pairs:"""
    file = Path(__file__).parents[1] / "data" / "scitail_pieces.json.gz"
    pieces = json.loads(gzip.decompress(file.read_bytes()))
    bert, mistral = (list(dict.fromkeys(p for text in pieces[name] for p in text)) for name in ("bert", "mistral"))
    places = [{piece: number for number, piece in enumerate(known)} for known in (bert, mistral)]
    ids = [
        tuple([place[piece] for piece in text] for place, text in zip(places, both))
        for both in zip(pieces["bert"], pieces["mistral"])
    ]
    found = Aligner(bert, mistral).batch(ids, ["strict", "path"])
    pairs = sum(map(len, found["strict"]))
    assert pairs / sum(len(b) for _, b in ids) == pytest.approx(0.7103, abs=0.03)
    assert pairs / sum(len(a) for a, _ in ids) == pytest.approx(0.8022, abs=0.035)
    assert pairs < sum(map(len, found["path"]))
