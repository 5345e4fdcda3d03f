"""A table, and how it is written for the terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distilvec.errors import printable

if TYPE_CHECKING:
    from rich.table import Table


#: Characters of a text in a cell.
LONGEST = 120
#: Characters of a name in one line of a terminal, at least.
_NAME = 20
#: Columns of a table as plain text, at most: beyond any that is read.
_WIDEST = 100_000
_LATEX = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}  # other signs in LaTeX's usual font
    | {"[": "{[}", "−": "$-$", "±": r"$\pm$", "—": "---", "–": "--"}
)


@dataclass(frozen=True)
class Cell:
    """A value and, smaller, its interval."""

    text: str
    interval: str = ""


@dataclass(frozen=True)
class Grid:
    """A table: the first column names the row, `header` may be empty, `notes` stand below it."""

    header: list[str]
    rows: list[list[Cell]]
    notes: list[str]

    def markdown(self) -> str:
        """A pipe table, and the notes as a list."""
        header = self.header or [""] * len(self.rows[0] if self.rows else [])
        lines = [_pipes(header), "|" + " --- |" + (" ---: |" if self.header else " --- |") * (len(header) - 1)]
        lines += [_pipes([_beside(cell) for cell in row]) for row in self.rows]
        return "\n".join(
            [*lines, *(["", *(f"- {escape_markdown(note)}" for note in self.notes)] if self.notes else [])]
        )

    def latex(self) -> str:
        """A tabular for the package booktabs, and the notes as comments below it."""
        head, *rows = [
            " & ".join(_escape_latex(cell) for cell in cells) + r" \\"
            for cells in [self.header, *([_beside(cell) for cell in row] for row in self.rows)]
        ]
        lines = [rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}", r"\toprule", head, r"\midrule", *rows]
        notes = [f"% {' '.join(note.split())}" for note in self.notes]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes])

    def text(self) -> str:
        """Plain text, as wide as it needs to be."""
        from rich.console import Console

        console = Console(file=io.StringIO(), width=max(1, self._width()), color_system=None)
        with console.capture() as captured:
            console.print(self._rich())
        return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")

    def fitting(self, width: int, title: str | None = None) -> list[Table]:
        """For a terminal so wide: a table, or several with some of the columns each where one would cut its numbers.

        Intervals stand in a second line, and so does what is left of long names.
        """
        longest = max(_NAME, width // 3)
        groups: list[list[int]] = [[]]
        for column in range(1, len(self.header)):
            if groups[-1] and self._of([*groups[-1], column])._width(longest) > width:
                groups.append([])
            groups[-1].append(column)
        return [
            self._of(group, self.notes if group is groups[-1] else ())._rich(longest, None if number else title)
            for number, group in enumerate(groups)
        ]

    def _of(self, columns: Sequence[int], notes: Sequence[str] = ()) -> Grid:
        """The first column and some of the others."""
        chosen = [0, *columns]
        return Grid([self.header[i] for i in chosen], [[row[i] for i in chosen] for row in self.rows], list(notes))

    def _width(self, longest: int | None = None) -> int:
        from rich.console import Console
        from rich.measure import Measurement

        console = Console(file=io.StringIO(), width=_WIDEST, color_system=None)
        return Measurement.get(console, console.options, self._rich(longest)).maximum

    def _rich(self, longest: int | None = None, title: str | None = None) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        shown_title = None if title is None else Text(printable(title))
        table = Table(title=shown_title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
        for position, name in enumerate(self.header):
            side: Any = "right" if position else "left"
            table.add_column(Text(printable(name)), justify=side, overflow="fold", max_width=longest)
        two_lines = any(cell.interval for row in self.rows for cell in row)
        for row in self.rows:
            shown = [
                Text.assemble(
                    printable(cell.text), *([("\n" + printable(cell.interval), "dim")] if cell.interval else [])
                )
                for cell in row
            ]
            table.add_row(*shown, end_section=two_lines and row is not self.rows[-1])
        if self.notes:
            table.caption = Text(printable("\n".join(self.notes)))
            table.caption_justify = "left"
        return table


def _beside(cell: Cell) -> str:
    return f"{cell.text} ({cell.interval})" if cell.interval else cell.text


def _escape_latex(text: str) -> str:
    return printable(" ".join(text.split())).translate(_LATEX)


def escape_markdown(text: str) -> str:
    """Escape plain text for Markdown, so that it makes no table cell, tag, link or heading.

    >>> escape_markdown("a|b <script> [x](y)")
    'a\\\\|b &lt;script&gt; \\\\[x\\\\](y)'
    """
    text = printable(" ".join(text.split())).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "\\`*_[]|#~":
        text = text.replace(mark, "\\" + mark) if mark != "\\" else text.replace("\\", "\\\\")
    return text


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape_markdown(cell) for cell in cells) + " |"
