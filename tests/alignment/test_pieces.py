"""Where two tokenizers have read the same text, and which entry of one stands for one of the other."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distilvec.alignment.pieces import Pieces, end_pairs, nearest_entries, piece_bytes, prefix_entries, spelt

TEXT = "Grüße, 東京 and a café".replace(" ", "").encode()


def cut(places: set[int]) -> list[bytes]:
    edges = sorted({0, len(TEXT), *places})
    return [TEXT[start:end] for start, end in pairwise(edges)]


@given(st.sets(st.integers(0, len(TEXT))), st.sets(st.integers(0, len(TEXT))))
def test_pairs_are_the_common_ends(ours: set[int], theirs: set[int]) -> None:
    """Also of pieces that end within a character."""
    student, teacher = cut(ours), cut(theirs)
    found = end_pairs(student, teacher).tolist()
    both = sorted({0, len(TEXT), *(ours & theirs)})
    assert [len(b"".join(student[:i])) for i, _ in found] == both == [len(b"".join(teacher[:j])) for _, j in found]


def test_nothing_is_paired_beyond_what_differs() -> None:
    assert end_pairs([b"a", b"b", b"c"], [b"a", b"x", b"c"]).tolist() == [[0, 0], [1, 1]]
    assert end_pairs([], [b"a"]).tolist() == [[0, 0]]


def test_the_first_of_places_with_equal_text_counts() -> None:
    """A piece of white space adds nothing that is compared."""
    words = spelt(["Ġ", "Ġthe", "cat", "Ċ"], 0)
    assert words == [b"", b"the", b"cat", b""]
    assert end_pairs([b"the", b"", b"cat"], [b"the", b"cat"]).tolist() == [[0, 0], [1, 1], [3, 2]]


def test_an_unknown_token_is_like_nothing() -> None:
    ours, theirs = (spelt(["▁the", "<unk>", "cat"], side) for side in (0, 1))
    assert end_pairs(ours, theirs).tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("tokens", "content"),
    [
        (["Ġcaf", "Ã", "©", "<|end|>"], [b" caf", b"\xc3", b"\xa9", b"<|end|>"]),
        (["▁caf", "<0xC3>", "é"], [b" caf", b"\xc3", "é".encode()]),
        (["caf", "##é"], [b" caf", "é".encode()]),
    ],
)
def test_bytes_of_each_kind_of_vocabulary(tokens: list[str], content: list[bytes]) -> None:
    assert piece_bytes(tokens) == content


def test_entries_stand_for_those_that_they_begin() -> None:
    source = Pieces((b" household", b" hou", b"", b"zz"), end=2)
    target = Pieces((b" h", b" hous", b" hold", b""), end=3)
    assert prefix_entries(source, target).tolist() == [1, 0, 3, -1]
    # By edit distance " hou" is nearer to " hous" than to " hold" or " h"; "zz" is nearest to the shortest.
    assert nearest_entries(source, target).tolist() == [1, 1, 3, 0]
