from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein
from tests.alignment import reference

from distilvec.alignment import align, span_pairs, trim_spans, warping_path
from distilvec.alignment.aligner import WINDOW
from distilvec.errors import DataError, DistilvecError

#: Few letters, so that equal strings, runs and ties abound.
WORDS = st.lists(st.text(alphabet="ab", max_size=3), min_size=1, max_size=9)
LETTERS = st.lists(st.text(alphabet="abcde", max_size=8), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.tuples(WORDS, WORDS), st.tuples(LETTERS, LETTERS)), st.sampled_from(["strict", "path", "full"]))
def test_agrees_with_the_definition(sides: tuple[list[str], list[str]], mode: str) -> None:
    assert align(*sides, mode) == reference.pairs(*sides, mode)
    assert warping_path(*sides) == reference.path(*sides)


@settings(max_examples=150, deadline=None)
@given(WORDS, WORDS)
def test_reciprocal_agrees_with_its_definition(student: list[str], teacher: list[str]) -> None:
    assert align(student, teacher, "reciprocal") == reference.reciprocal(student, teacher, WINDOW)


@given(LETTERS, LETTERS)
def test_the_path_is_one(student: list[str], teacher: list[str]) -> None:
    cells = warping_path(student, teacher)
    assert cells[0] == (0, 0) and cells[-1] == (len(student) - 1, len(teacher) - 1)
    steps = {(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(cells)}
    assert steps <= {(1, 0), (0, 1), (1, 1)}


@given(st.text(max_size=6), st.text(max_size=6))
def test_the_plain_edit_distance_is_levenshteins(a: str, b: str) -> None:
    assert reference.edit_distance(a, b) == Levenshtein.distance(a, b)


def test_ties_go_diagonal_then_up_then_left() -> None:
    assert warping_path(["a", "a"], ["a", "a"]) == [(0, 0), (1, 1)]
    assert warping_path(["a"] * 3, ["a"] * 2) == [(0, 0), (1, 0), (2, 1)]
    assert warping_path(["a"] * 2, ["a"] * 3) == [(0, 0), (0, 1), (1, 2)]
    # From (1, 1) the way up to (0, 1) and the way left to (1, 0) cost 3 either way, the diagonal 9 more.
    assert warping_path(["abc", "z"], ["abc", "z"]) == [(0, 0), (1, 1)]


def test_time_warping_may_glue_a_neighbour_and_lose_an_exact_match() -> None:
    student, teacher = ["un", "believ", "able", "story"], ["unbelievable", "story"]
    assert warping_path(student, teacher) == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert align(student, teacher) == align(student, teacher, "path") == []
    assert (3, 1) in align(student, teacher, "reciprocal")
    # Followed by one more equal word, "story" is still glued to "able"; what stands alone is found.
    assert align([*student, "ends"], [*teacher, "ends"]) == [(4, 2)]


@pytest.mark.parametrize(
    ("student", "teacher"),
    [
        (["the", "caf", "##é", "opens"], ["The", "ĠcafÃ©", "Ġopens"]),
        (["the", "caf", "##é", "opens"], ["▁The", "▁café", "▁opens"]),
        (["The", "ĠcafÃ©", "Ġop", "ens"], ["▁The", "▁café", "▁opens"]),
        (["▁The", "▁ca", "fe\u0301", "▁opens"], ["the", "café", "opens"]),
    ],
)
def test_marks_and_case_do_not_matter(student: list[str], teacher: list[str]) -> None:
    pairs = align(student, teacher)
    assert (0, 0) in pairs
    assert align(teacher, student) == [(j, i) for i, j in pairs]


def test_two_cased_sides_keep_their_case() -> None:
    assert align(["Polish", "Wax"], ["polish", "Wax"]) == [(1, 1)]
    assert align(["Polish", "wax"], ["polish", "wax"]) == [(0, 0), (1, 1)]  # the second side is uncased
    assert align(["[UNK]", "wax"], ["[UNK]", "Wax"]) == [(0, 0), (1, 1)]  # a name's capitals are not the text's


def test_incomplete_bytes_are_not_taken_for_equal() -> None:
    assert align(["Ġa", "ðŁĺ", "Ģ", "Ġz"], ["Ġa", "ðŁĺ", "ģ", "Ġz"]) == [(0, 0), (1, 1), (3, 3)]
    assert align(["a", "[UNK]", "z"], ["▁a", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁z"]) == [(2, 5)]
    assert align(["▁a", "😀", "▁z"], ["a", "ĠðŁĺ", "Ģ", "Ġz"]) == [(2, 3)]


def test_either_side_may_be_truncated_or_empty() -> None:
    words = ["one", "two", "three", "four", "five", "six"]
    assert align(words[:3], words) == align(words, words[:3]) == [(0, 0), (1, 1)]
    assert align(words[:3], words, "reciprocal") == [(0, 0), (1, 1), (2, 2)]
    for mode in ("strict", "path", "full", "reciprocal"):
        assert align([], words, mode) == align(words, [], mode) == align([], [], mode) == []
    assert warping_path([], ["a"]) == []


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(DistilvecError, match='"strickt".*"strict"'):
        align(["a"], ["a"], "strickt")
    with pytest.raises(DistilvecError, match='"span_pairs"'):
        align(["a"], ["a"], "spans")


SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)).map(lambda s: (s[0], s[0] + s[1])), max_size=8)


@given(SPANS, SPANS)
def test_spans_pair_where_they_are_equal_and_alone(
    student: list[tuple[int, int]], teacher: list[tuple[int, int]]
) -> None:
    expected = [
        [i, teacher.index(span)]
        for i, span in enumerate(student)
        if span[0] < span[1] and student.count(span) == teacher.count(span) == 1
    ]
    assert span_pairs(student, teacher).tolist() == expected


@given(st.text(alphabet="ab \n", max_size=12), st.data())
def test_trimmed_spans_hold_the_same_words(text: str, data: st.DataObject) -> None:
    ends = st.integers(0, len(text))
    spans = [tuple(sorted(pair)) for pair in data.draw(st.lists(st.tuples(ends, ends), max_size=5))]
    trimmed = trim_spans(spans, text)
    assert [text[start:end] for start, end in trimmed] == [text[start:end].strip() for start, end in spans]


def test_spans_outside_the_text_are_refused() -> None:
    with pytest.raises(DataError, match=r"character 9\b.*\b3\b"):
        trim_spans([(0, 9)], "a b")
    with pytest.raises(DataError, match=r"\[n, 2\].*\[1, 3\]"):
        span_pairs([[1, 2, 3]], [[1, 2, 3]])
