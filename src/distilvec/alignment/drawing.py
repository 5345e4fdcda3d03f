"""The alignment of one text for people: in the terminal, and as a picture."""

from __future__ import annotations

import unicodedata
import warnings
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.alignment.aligner import MODES, Aligner
from distilvec.alignment.loading import load_tokenizer, vocabulary_of
from distilvec.alignment.strings import kind_of, plain
from distilvec.errors import DistilvecError, nearest, printable
from distilvec.files import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

Pair = tuple[int, int]
INK, MUTED, LINE, PAIRED, PAPER = "#1f2328", "#59636e", "#d1d9e0", "#0072b2", "#f6f8fa"
#: Widths are in characters; a picture's line of tokens is about this long.
_LINE_WIDTH, _GAP, _INCHES = 92.0, 1.0, 0.098
#: Heights in boxes: from a line to the next, and from its student tokens to its teacher tokens.
_PITCH, _APART = 5.3, 3.0
_SUFFIXES = (".png", ".svg")


@dataclass(frozen=True)
class DrawnText:
    """One text as two tokenizers cut it, and how the parts are aligned.

    Attributes:
        mode: of `pairs`.
        student, teacher: tokens without their marks; bytes that are no whole character as <F0>.
        path: the warping path, from the first tokens to the last.
        pairs: (student index, teacher index) of the mode, by student.
        equal: the pairs among all cells whose normalised strings are equal.
    """

    mode: str
    student: list[str]
    teacher: list[str]
    path: list[Pair]
    pairs: list[Pair]
    equal: frozenset[Pair]

    def blocks(self) -> list[tuple[range, range]]:
        """Student and teacher tokens that the path holds together, from the first to the last."""
        starts = [
            at for at, (a, b) in enumerate(pairwise(self.path), 1) if a[0] != b[0] and a[1] != b[1]
        ]  # a diagonal step parts two blocks
        bounds = pairwise([0, *starts, len(self.path)])
        return [
            (
                range(self.path[start][0], self.path[end - 1][0] + 1),
                range(self.path[start][1], self.path[end - 1][1] + 1),
            )
            for start, end in bounds
        ]

    @property
    def paired(self) -> tuple[set[int], set[int]]:
        """The student's and the teacher's tokens that are in a pair."""
        return {i for i, _ in self.pairs}, {j for _, j in self.pairs}


def align_text(text: str | tuple[str, str], student: Any, teacher: Any, mode: str = "strict") -> DrawnText:
    """Align one text as training does.

    Args:
        text: any text, or a pair that both read as one input; neither side is truncated, special tokens are left out.
            By `spans` of a pair the first text only, because both count their characters from 0.
        student, teacher: `tokenizers.Tokenizer`.
        mode: one of `MODES`.

    Raises:
        DistilvecError: an unknown mode, or a text of which a tokenizer makes no token.
    """
    if mode not in MODES:
        raise DistilvecError(f'There is no mode of alignment "{mode}"', where="--mode", remedy=nearest(mode, MODES))
    if mode == "spans" and not isinstance(text, str):
        text = text[0]
    texts = (text,) if isinstance(text, str) else text
    encodings = [tokenizer.encode(*texts, add_special_tokens=False) for tokenizer in (student, teacher)]
    for side, encoding in zip(("student", "teacher"), encodings):
        if not encoding.ids:
            raise DistilvecError(
                f"The {side}'s tokenizer makes no token of {text!r}", where="text", remedy="Give some words"
            )
    vocabularies = [vocabulary_of(tokenizer) for tokenizer in (student, teacher)]
    aligner = Aligner(*vocabularies)
    ids = [np.array(encoding.ids) for encoding in encodings]
    wanted = {"full", "path", "strict", "reciprocal"} & {"full", mode}
    by_mode = aligner.batch([(ids[0], ids[1])], sorted(wanted))
    path = by_mode["full"][0]
    pairs = (
        aligner.span_pairs(encodings[0].offsets, encodings[1].offsets, texts[0])
        if mode == "spans"
        else by_mode[mode][0]
    )
    cells = _tuples(path) + _tuples(pairs)
    same = [cell for cell in cells if len(aligner.pairs(ids[0][[cell[0]]], ids[1][[cell[1]]]))]
    words = [_readable(encoding.ids, vocabulary) for encoding, vocabulary in zip(encodings, vocabularies)]
    return DrawnText(mode, words[0], words[1], _tuples(path), _tuples(pairs), frozenset(same))


def alignment_table(drawn: DrawnText) -> Table:
    """The tokens from first to last: `=` beside an equal pair, `~` a pair at a distance, `·` what has no partner."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("student", justify="right")
    table.add_column("")
    table.add_column("teacher")
    for students, mark, teachers in _rows(drawn):
        left, right = (
            Text(" ").join(Text(words[at], style="bold" if at in paired else "dim") for at in block)
            for words, block, paired in zip((drawn.student, drawn.teacher), (students, teachers), drawn.paired)
        )
        table.add_row(left, mark, right)
    return table


def _rows(drawn: DrawnText) -> list[tuple[Sequence[int], str, Sequence[int]]]:
    """Rows of the table: a block of many to many as one, else each pair by itself and what is between two as a row."""
    rows: list[tuple[Sequence[int], str, Sequence[int]]] = []
    for students, teachers in _whole_blocks(drawn):
        within = [pair for pair in drawn.pairs if pair[0] in students]
        if drawn.mode == "full" or not within:
            mark = "·" if not within else "=" if drawn.equal.issuperset(within) else "~"
            rows.append((students, mark, teachers))
            continue
        first, paired, told = students.start, {j for _, j in within}, teachers.start
        for i, j in [*within, (students.stop, teachers.stop)]:
            between = [at for at in range(told, j) if at not in paired]
            if first < i or between:
                rows.append((range(first, i), "·", between))
            if i in students:
                rows.append(([i], "=" if (i, j) in drawn.equal else "~", [j]))
            first, told = i + 1, max(told, j + 1)
    return rows


def _whole_blocks(drawn: DrawnText) -> list[tuple[range, range]]:
    """Blocks of the path, joined where a pair of a mode that leaves the path reaches from one into another."""
    blocks = drawn.blocks()
    i, j = np.array(drawn.pairs).reshape(-1, 2).T
    whole = [
        (students.start, teachers.start)
        for students, teachers in blocks
        if not ((i < students.start) != (j < teachers.start)).any()
    ]
    ends = [*whole[1:], (blocks[-1][0].stop, blocks[-1][1].stop)]
    return [(range(a, c), range(b, d)) for (a, b), (c, d) in zip(whole, ends, strict=True)]


def alignment_figure(drawn: DrawnText) -> Figure:
    """Both rows of tokens with the pairs between them in blue and the rest of the path in grey."""
    from matplotlib.figure import Figure

    lines = _lines(drawn)
    width = max(place + _width(drawn.teacher[at]) for line in lines for at, place in line[1].items())
    width = max(width, *(place + _width(drawn.student[at]) for line in lines for at, place in line[0].items()), 24)
    figure = Figure(figsize=((width + 10) * _INCHES, 0.25 * (_PITCH * len(lines) + 0.2)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-9, width + 1)
    axes.set_ylim(-_PITCH * len(lines) + 0.6, 0.8)
    students: dict[int, Pair] = {}
    teachers: dict[int, Pair] = {}
    for number, (upper, lower) in enumerate(lines):
        top = -_PITCH * number - 0.4
        axes.text(-8.5, top, "student", color=MUTED, fontsize=8, va="center")
        axes.text(-8.5, top - _APART, "teacher", color=MUTED, fontsize=8, va="center")
        students |= _draw_tokens(axes, drawn.student, upper, top, drawn.paired[0])
        teachers |= _draw_tokens(axes, drawn.teacher, lower, top - _APART, drawn.paired[1])
    chosen = set(drawn.pairs)
    for cell in [*(each for each in drawn.path if each not in chosen), *drawn.pairs]:
        (x0, y0), (x1, y1) = students[cell[0]], teachers[cell[1]]
        paired = cell in chosen
        style = "-" if cell in drawn.equal else (0, (4, 2))
        axes.plot(
            (x0, x1),
            (y0 - 0.75, y1 + 0.75),
            color=PAIRED if paired else LINE,
            linewidth=1.8 if paired else 1.2,
            linestyle=style if paired else "-",
            solid_capstyle="round",
        )
    return figure


def align_command(
    text: str, student: str | Path, teacher: str | Path, mode: str = "strict", picture: Path | None = None
) -> None:
    """Draw the alignment of a sentence in the terminal, and as a picture if asked: `distilvec align`.

    Args:
        text: a sentence.
        student, teacher: see `load_tokenizer`.
        mode: one of `MODES`.
        picture: .png or .svg file to write; its folder is made.

    Raises:
        DistilvecError: see `align_text` and `load_tokenizer`; a picture of another kind.
    """
    from rich.console import Console
    from rich.text import Text

    if picture is not None and picture.suffix.lower() not in _SUFFIXES:
        raise DistilvecError(
            f'A picture ends in {" or ".join(_SUFFIXES)}, not in "{picture.suffix}"', where="--picture"
        )
    drawn = align_text(text, load_tokenizer(student), load_tokenizer(teacher), mode)
    console = Console(highlight=False)
    console.print(alignment_table(drawn))
    of_student, of_teacher = (
        len(paired) / len(words) for paired, words in zip(drawn.paired, (drawn.student, drawn.teacher))
    )
    count = f"{len(drawn.pairs)} pair{'' if len(drawn.pairs) == 1 else 's'}"
    console.print(
        f"{mode}: {count}, in them {of_student:.0%} of {len(drawn.student)} student tokens "
        f"and {of_teacher:.0%} of {len(drawn.teacher)} teacher tokens",
        soft_wrap=True,
    )
    if picture is not None:
        save_figure(drawn, picture)
        console.print(Text(f"picture  {printable(str(picture))}"), soft_wrap=True)


def save_figure(drawn: DrawnText, file: Path) -> None:
    """Write the picture as the kind that the file's ending names."""
    import matplotlib

    look: Any = {
        "text.parse_math": False,
        "svg.hashsalt": "distilvec",
        "font.family": "DejaVu Sans",
    }
    with matplotlib.rc_context(look), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        metadata = {"Date": None} if file.suffix.lower() == ".svg" else None
        figure, kind = alignment_figure(drawn), file.suffix.lower().removeprefix(".")
        with whole(file) as partial:
            figure.savefig(partial, format=kind, dpi=144, facecolor="white", metadata=metadata)


def _tuples(pairs: np.ndarray) -> list[Pair]:
    return [(row, column) for row, column in pairs.tolist()]


def _readable(ids: list[int], vocabulary: list[str]) -> list[str]:
    """Tokens without marks; what cannot be printed is named."""
    kind = kind_of(vocabulary)
    words = (plain(vocabulary[index], kind) for index in ids)
    return ["".join(_printed(character) for character in word) or "␣" for word in words]


def _printed(character: str) -> str:
    if "\udc80" <= character <= "\udcff":
        return f"<{ord(character) - 0xDC00:02X}>"
    return character if character.isprintable() else f"<U+{ord(character):04X}>"


def _width(word: str) -> float:
    """Return the width of a token's box, in characters of a fixed width."""
    return 1 + sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in word)


def _lines(drawn: DrawnText) -> list[tuple[dict[int, float], dict[int, float]]]:
    """Each line's student and teacher tokens with the places of their left edges; no block is broken."""
    lines: list[tuple[dict[int, float], dict[int, float]]] = [({}, {})]
    start = 0.0
    for blocks in drawn.blocks():
        sides = list(zip(blocks, (drawn.student, drawn.teacher)))
        widths = [sum(_width(words[at]) + _GAP for at in block) for block, words in sides]
        if start and start + max(widths) > _LINE_WIDTH:
            lines.append(({}, {}))
            start = 0.0
        for places, (block, words), width in zip(lines[-1], sides, widths):
            place = start + (max(widths) - width) / 2
            for at in block:
                places[at] = place
                place += _width(words[at]) + _GAP
        start += max(widths)
    return lines


def _draw_tokens(
    axes: Axes, words: list[str], places: dict[int, float], height: float, paired: set[int]
) -> dict[int, Pair]:
    """Draw one row of boxes; returns the middle of each."""
    from matplotlib.patches import FancyBboxPatch

    middles: dict[int, Any] = {}
    for at, place in places.items():
        width = _width(words[at])
        axes.add_patch(
            FancyBboxPatch(
                (place + 0.2, height - 0.5),
                width - 0.4,
                1.0,
                boxstyle="round,pad=0.2",
                facecolor=PAPER,
                edgecolor=PAIRED if at in paired else LINE,
                linewidth=1.2 if at in paired else 0.8,
            )
        )
        axes.text(
            place + width / 2,
            height,
            words[at],
            ha="center",
            va="center",
            fontsize=8,
            color=INK if at in paired else MUTED,
            fontfamily=["DejaVu Sans Mono", "DejaVu Sans"],
        )
        middles[at] = (place + width / 2, height)
    return middles
