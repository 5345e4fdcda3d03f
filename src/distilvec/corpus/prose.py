"""English prose out of docstrings: no code, no parameter lists, no markup."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

SUMMARY_WORDS = (4, 60)
DESCRIPTION_WORDS = (8, 120)

_SECTION = re.compile(
    r"(?i)^(args?|arguments?|params?|parameters?|other parameters|keyword arg\w*|kwargs|returns?|yields?|raises?"
    r"|warns?|attributes?|methods?|examples?|usage|references?|see also|notes?|warnings?|todo|shapes?|inputs?"
    r"|outputs?|options|example usage|tips?|citation|variables|constants|fields|properties|call arguments)"
    r"\s*(\([^)]*\))?\s*:{0,2}\s*$"
)
_FIELD = re.compile(
    r"^\s*(:\w+[^:`]*:|@\w+|\w+ ?: ?(int|str|bool|float|array|callable|\{|optional|None)\b"
    r"|\**\w+ \((int|str|bool|float|list|dict|tuple|callable|optional)\b)"
)
_RULE = re.compile(r"^\s*([-=~^*#+_])\1{2,}\s*$")
_BLOCK = re.compile(r"^(\s*(>>>|\.\.|```|~~~|\||\+[-=]|[-*+•] |\(?\d{1,2}[.)] |\(?[a-z]\) |#|<|%|\$|\[\d|!\[)|\s{2,})")
_CODE_WORD = re.compile(r"[_=<>{}\[\]\\|@#$^~]|\w\w\.\w+[.(]|\w\(|/\w+/|::|->|\w\.\w{3,}")
_SYMBOLIC = re.compile(r":math:|\$[^$]+\$|\\\w+\{|@@|%\(|\{\}|\{\w+\}|[─-◿]|\bcopyright\b|\blicen[cs]ed? under\b", re.I)
#: Stands where something was that is no prose and without which the sentence has a hole.
_HOLE = "\ufffc"
_MARKUP = [
    (re.compile(r"(?<=`)\\ ?(?=\w)"), ""),  # `Name`\s
    (re.compile(r"!?\[([^\]\n]+)\]\((?:[^()\s]|\([^)]*\))*\)"), r"\1"),  # [words](address)
    (re.compile(r"`([^`<]+?)\s*<[^>`]*>`__?"), r"\1"),  # `words <address>`_
    (re.compile(r":[\w:.+-]+:`([^`<]+?)\s*<[^>`]*>`"), r"\1"),  # :ref:`words <target>`
    (re.compile(r":[\w:.+-]+:`[~!.]?(?:[\w.]*\.)?([^`]+)`"), r"\1"),  # :class:`~package.Name`
    (re.compile(r"\[`{1,2}[~!]?(?:[\w.]*\.)?([^`\]]+)`{1,2}\]"), r"\1"),  # [`Name`]
    (re.compile(r"`{1,2}[^`\w]+`{1,2}|`{1,2}</?\w[^`]*>`{1,2}"), _HOLE),  # signs, tags
    (re.compile(r"`{1,2}([^`]+)`{1,2}_{0,2}"), r"\1"),
    (re.compile(r"(?<!\S)(?:~\.?(?:\w+\.)*(\w+)|\.(?:\w+\.)*([A-Z]\w*))"), r"\1\2"),  # ~.package.Name
    (re.compile(r"\s*\[(?:\d+|[A-Z]\w*\d{2,4})\]_?"), ""),  # references
    (re.compile(r"(?<!\w)\|([\w ]+)\|(?!\w)"), r"\1"),
    (re.compile(r"\*\*(\S[^*]*?)\*\*|(?<![\w*])\*(\S[^*]*?)\*(?![\w*])"), r"\1\2"),
    (re.compile(r"<?https?://[^\s>)]*[^\s>).,;]>?"), _HOLE),
    (re.compile(r"</?[a-z]\w*[^>]*>"), _HOLE),
    (re.compile(rf"\s*\([^()]*{_HOLE}[^()]*\)"), ""),
    (re.compile(r"\(\s*\)|\[\s*\]"), ""),
    (re.compile(r"^[\w.]+\s+(?:-{1,3}|\u2013|\u2014)\s+(?=[A-Z][a-z])"), ""),  # Name - What it is
    (re.compile(r"\s+([.,;:])(?=\s|$)"), r"\1"),
]
_END = re.compile(r"""(?<=[.!?])["')]?\s+(?=["'(]?[A-Z])""")
_ABBREVIATION = re.compile(
    r"(?i)(?:\b(?:e\.g|i\.e|etc|vs|cf|resp|fig|eq|sec|ref|no|al|approx|dr|mr|inc|[a-z])\.|\.\.)$"
)
_ASIDE = re.compile(
    r"(?i)^\W*(todo|fixme|xxx|see also|see|read more|for more information|copyright|author|deprecated)\b"
)
_DANGLING = re.compile(
    r"(?i)\b(?:a|an|and|are|as|at|by|for|from|in|is|like|of|on|or|see|that|the|this|to|via|with)\W*$"
)
_BROKEN = re.compile(r"(?<!\.)\.\.$|^(?:because|but|where)\b|[a-z]{4}\. [a-z]{2}|\s\.\s")
_COMMON = frozenset({
    "a", "all", "an", "and", "any", "are", "as", "at", "be", "but", "by", "can", "each", "for", "from", "has", "have",
    "if", "in", "into", "is", "it", "its", "may", "must", "not", "of", "on", "only", "or", "other", "should", "so",
    "such", "than", "that", "the", "their", "then", "there", "they", "this", "to", "use", "used", "was", "when",
    "which", "will", "with", "you",
})  # fmt: skip


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """The summary (4 to 60 words) and the description that follows it (8 to 120 words), as plain prose.

    Returns:
        None where the docstring does not have both.

    >>> split_docstring('''Return the `median` of the data that is given.
    ...
    ...     The mean of the two values in the middle is taken when the number of values is even.
    ...     ''')
    ('Return the median of the data that is given.', 'The mean of the two values in the ... is even.')
    """
    sentences = [sentence for part in _paragraphs(inspect.cleandoc(docstring)) for sentence in _sentences(part)]
    if len(sentences) < 2:
        return None
    summary, rest = sentences[0], sentences[1:]
    if not _is_whole(summary) or (not _ends(summary) and _DANGLING.search(summary)):
        return None
    if not SUMMARY_WORDS[0] <= len(summary.split()) <= SUMMARY_WORDS[1] or not is_english(summary, 0.1):
        return None
    description, words = [], 0
    for sentence in rest:
        if not _ends(sentence) or not _is_whole(sentence):
            continue  # it led over to a formula, a list or an example
        words += len(sentence.split())
        if words > DESCRIPTION_WORDS[1]:
            break
        description.append(sentence)
    text = " ".join(description)
    if len(text.split()) < DESCRIPTION_WORDS[0] or not is_english(text, 0.2):
        return None
    return summary, text


def is_english(text: str, common: float) -> bool:
    """Tell whether this reads like English: mostly letters, common words, few words that look like code.

    Args:
        text: at least one word.
        common: least share of words such as "the" and "of".
    """
    words = text.split()
    signs = [char for char in text if not char.isspace()]
    if not text.isprintable() or sum(char.isalpha() and char.isascii() for char in signs) < 0.88 * len(signs):
        return False
    if sum(bool(_CODE_WORD.search(word)) for word in words) > 0.08 * len(words):
        return False
    return sum(word.strip("\"'(),.;:").lower() in _COMMON for word in words) >= common * len(words)


def _paragraphs(text: str) -> Iterator[str]:
    """Plain paragraphs before the first section, without markup. The first one has to be prose."""
    for number, block in enumerate(re.split(r"\n\s*\n", text.strip())):
        lines = block.split("\n")
        if _SECTION.match(lines[0]) or _FIELD.match(lines[0]) or any(map(_RULE.match, lines[:2])):
            return
        stop = next((place for place, line in enumerate(lines) if place and _ends_prose(line)), len(lines))
        bad = _BLOCK.match(lines[0]) or _SYMBOLIC.search(block) or any(map(_BLOCK.match, lines[1:stop]))
        if not bad and (plain := plain_text(" ".join(lines[:stop]))):
            yield plain
        elif number == 0:
            return
        if stop < len(lines):
            return


def _ends_prose(line: str) -> bool:
    return bool(_SECTION.match(line.strip()) or _FIELD.match(line) or line.lstrip().startswith(">>>"))


def plain_text(paragraph: str) -> str:
    """A paragraph without reST and Markdown markup, on one line.

    >>> plain_text("See :class:`~a.b.Thing` and [the *guide*](https://x.y), or ``code``.")
    'See Thing and the guide, or code.'
    """
    for pattern, replacement in _MARKUP:
        paragraph = pattern.sub(replacement, paragraph)
    return " ".join(paragraph.split())


def _sentences(paragraph: str) -> Iterator[str]:
    start = 0
    ends = [found.span() for found in _END.finditer(paragraph)]
    for end, following in [*ends, (len(paragraph), len(paragraph))]:
        sentence = paragraph[start:following].strip()
        if end < len(paragraph) and _ABBREVIATION.search(paragraph[:end]):
            continue
        start = following
        if sentence:
            yield sentence


def _ends(sentence: str) -> bool:
    return sentence.rstrip("\"')").endswith((".", "!", "?"))


def _is_whole(sentence: str) -> bool:
    """Tell whether a sentence can stand alone: nothing is missing from it, and it is more words than code."""
    if sentence.endswith((":", ",", ";")) or _HOLE in sentence or _ASIDE.match(sentence) or _BROKEN.search(sentence):
        return False
    words = sentence.split()
    if words[0] in _COMMON:
        return False  # the end of a sentence that began before a formula
    if not (sentence[0].isalnum() or sentence[0] in "\"'(") or sentence.count('"') % 2:
        return False
    code = sum(bool(_CODE_WORD.search(word)) for word in words)
    return sentence.count("(") == sentence.count(")") and code <= 0.25 * len(words)
