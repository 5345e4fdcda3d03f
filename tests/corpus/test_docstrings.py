"""Real English out of the packages that are installed here."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from distilvec.corpus.docstrings import docstring_pairs
from distilvec.corpus.prose import is_english, plain_text, split_docstring

NUMPY = """
    Return the blended colour of two layers, e.g. of a photograph and a drawing.

    The result lies between both. It is computed with :func:`~colours.mix.blend` and ``gamma`` correction
    as in [1]_, which keeps the :ref:`brightness <how-bright>` that people see::

        blend(a, b)

    For example:

    >>> blend(1, 2)
    1.5

    Parameters
    ----------
    a : array_like
        This is the first of the two layers and it must not be read as prose.
"""


def test_prose_without_markup_code_and_parameters() -> None:
    assert split_docstring(NUMPY) is None, "five words are no description, and the rest leads over to code"
    longer = NUMPY.replace("It is computed", "It is never darker than the darker one of the two. It is computed")
    assert split_docstring(longer) == (
        "Return the blended colour of two layers, e.g. of a photograph and a drawing.",
        "The result lies between both. It is never darker than the darker one of the two.",
    )


@pytest.mark.parametrize(
    "section",
    [
        "Args:\n    x: the thing",
        "Returns:\n    a thing",
        ":param x: the thing that is used",
        "Notes\n-----\nThis is left.",
        "Example::\n\n    run()",
        "@param x the thing",
        ">>> run()",
        ".. note:: This is not for the reader of the text.",
        "x (int): the number of things that is used for this",
    ],
)
def test_sections_end_the_prose(section: str) -> None:
    text = "Return the thing that was asked for.\n\nIt is made when it is not there, and kept for the next call.\n\n"
    expected = ("Return the thing that was asked for.", "It is made when it is not there, and kept for the next call.")
    assert split_docstring(text + section) == expected
    assert split_docstring(text.split("\n\n", maxsplit=1)[0] + "\n\n" + section) is None


def test_markup_becomes_words() -> None:
    markup = "Use **bold**, *thin*, `a b`_, `words <target>`_, [`~x.Model`], :meth:`.Axes.plot`, [here](https://a.b/c)."
    assert plain_text(markup) == "Use bold, thin, a b, words, Model, plot, here."


@pytest.mark.parametrize(
    "broken",
    [
        "The code is available at https://example.com/code for everybody.",
        "This uses ``.`` as the separator of the parts.",
        "The text goes into a ``<td>`` element of the page.",
        "where the points are taken from both of the sequences.",
        "is solved for the vector that is not known.",
        "An instance of all of the classes has ..",
        "This one has (only one of the two brackets.",
        'This one has "only one of the two quotes.',
        "./configure --enable-this --and-that=yes_or_no then.",
        "TODO: say what this is for and who needs it.",
        "These are the steps that are needed:",
    ],
)
def test_broken_sentences_are_left_out(broken: str) -> None:
    good = "It is made when it is not there, and kept for the next call."
    text = f"Return the thing that was asked for.\n\n{good}\n\n{broken}\n"
    assert split_docstring(text) == ("Return the thing that was asked for.", good)
    assert split_docstring(f"{broken}\n\n{good}") is None


@pytest.mark.parametrize(
    ("raw", "summary"),
    [
        ("Reader -- Reads the rows of a file in order.", "Reads the rows of a file in order."),
        ("Plot :class:`~a.b.Line`\\s in the order they came.", "Plot Lines in the order they came."),
        ("Plot the ~a.b.Line that is the longest.", "Plot the Line that is the longest."),
        (
            "Read the rows, e.g. those of a large file (see https://a.b/c).",
            "Read the rows, e.g. those of a large file.",
        ),
        ("Reads all rows that are in the file", "Reads all rows that are in the file"),
        ("Reads all rows in a way that is similar to", None),
        ("distutils._msvccompiler", None),
    ],
)
def test_summaries(raw: str, summary: str | None) -> None:
    rest = "It is made when it is not there, and kept for the next call."
    assert split_docstring(f"{raw}\n\n{rest}") == (None if summary is None else (summary, rest))


def test_texts_that_are_not_english_prose() -> None:
    assert is_english("This is what people would say of a thing that they know.", 0.2)
    assert not is_english("Das ist ein Satz, den man nicht versteht, wenn man kein Deutsch spricht.", 0.2)
    assert not is_english("x = foo(bar_baz[0]) -> the a_b.c.d() of self._private_thing", 0.1)
    assert not is_english("Это предложение написано по-русски", 0.0)


@pytest.fixture(scope="module")
def pairs() -> list[dict[str, str]]:
    return docstring_pairs(300)


def test_pairs_are_distinct_english_from_many_packages(pairs: list[dict[str, str]]) -> None:
    assert len(pairs) == 300
    assert all(set(pair) == {"summary", "description", "package", "name"} for pair in pairs)
    for part, least, most in (("summary", 4, 60), ("description", 8, 120)):
        texts = [pair[part] for pair in pairs]
        assert len({text.lower() for text in texts}) == 300
        assert all(least <= len(text.split()) <= most for text in texts)
        assert not [
            text for text in texts if any(mark in text for mark in ("`", ">>>", ":param", "\n", "Parameters\n"))
        ]
    assert not [pair for pair in pairs if not pair["description"].rstrip("\"')").endswith((".", "!", "?"))]
    assert not [text for text in map(str, pairs) if re.search(r"~\.?[A-Za-z]|\ufffc|https://", text)]
    packages = Counter(pair["package"] for pair in pairs)
    assert len(packages) >= 12 and max(packages.values()) <= 60
    assert all(pair["name"].startswith(pair["package"]) for pair in pairs if pair["package"] != "python")


def test_the_same_pairs_every_time(pairs: list[dict[str, str]]) -> None:
    few, other = docstring_pairs(50), docstring_pairs(50, seed=1)
    assert docstring_pairs(50) == few != other and len(few) == len(other) == 50
