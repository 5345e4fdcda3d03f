from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.alignment import cutters

from distilvec.alignment.strings import alike, is_uncased, kind_of, plain


@pytest.mark.parametrize(
    ("tokens", "kind"),
    [
        (["un", "##able"], "wordpiece"),
        (["a", "Ġstory"], "byte_level"),
        (["cafÃ©"], "byte_level"),
        (["▁", "東京"], "sentencepiece"),
        (["café"], "unmarked"),
        (["東京"], "unmarked"),
        (["story"], "unmarked"),
        (["##"], "unmarked"),
        (["Ġgantija", "##n", "##a"], "wordpiece"),  # Maltese
        ([], "unmarked"),
    ],
)
def test_the_kind_is_seen_from_the_tokens(tokens: list[str], kind: str) -> None:
    assert kind_of(tokens) == kind


@pytest.mark.parametrize(
    ("token", "kind", "text"),
    [
        ("##able", "wordpiece", "able"),
        ("##", "wordpiece", "##"),
        ("##able", "sentencepiece", "##able"),
        ("▁##", "sentencepiece", "##"),
        ("▁", "sentencepiece", ""),
        ("▁of▁the", "sentencepiece", "of the"),
        ("<0x0A>", "sentencepiece", ""),
        ("<0x41>", "sentencepiece", "A"),
        ("<0xE2>", "sentencepiece", "\udce2"),
        ("Ġ", "byte_level", ""),
        ("Ċ", "byte_level", ""),
        ("ĠZÃ¼rich", "byte_level", "Zürich"),
        ("ðŁĺ", "byte_level", "\udcf0\udc9f\udc98"),
        ("ðŁĺĢ", "byte_level", "😀"),
        ("<0x41>", "byte_level", "<0x41>"),
        ("<｜User｜>", "byte_level", "<｜User｜>"),
        ("Ġgantija", "unmarked", "Ġgantija"),
    ],
)
def test_marks_come_off_and_bytes_become_text(token: str, kind: str, text: str) -> None:
    assert plain(token, kind) == text  # type: ignore[arg-type]


@given(st.text(min_size=1))
def test_every_text_survives_the_byte_alphabet(text: str) -> None:
    from tokenizers import pre_tokenizers

    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert plain("".join(piece for piece, _ in cut), "byte_level") == text.strip()


def test_compatible_forms_and_cases_are_alike() -> None:
    assert alike(["ﬁne", "½", "Ａ", "Cafe\u0301"], lower=False) == ["fine", "1⁄2", "A", "Café"]
    assert alike(["Story", "ÉTÉ"], lower=True) == ["story", "été"]


def test_capitals_make_a_side_cased_but_names_do_not() -> None:
    assert is_uncased(["[CLS]", "<Unk>", "story", "½"])
    assert not is_uncased(["story"] * 300 + ["Story"])
    assert is_uncased(["story"] * 300 + ["Story"], vocabulary=True)
    assert not is_uncased(["story"] * 30 + ["Story"], vocabulary=True)


@pytest.mark.parametrize("kind", cutters.KINDS)
def test_trained_vocabularies_are_recognised(kind: str) -> None:
    vocabulary = cutters.strings(cutters.train(kind))
    found = kind_of(vocabulary)
    assert found == kind.rpartition(" ")[2]
    assert is_uncased([plain(token, found) for token in vocabulary], vocabulary=True) == kind.startswith("uncased")
