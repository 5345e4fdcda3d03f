"""The common parts of the commands: printing, and options that several have."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from distilvec.errors import DistilvecError, printable

#: Rows of a file that a sample of its texts is taken from.
READ = 200_000


def say(text: str) -> None:
    """Print what a command found; names in it that would steer a terminal are shown, not obeyed."""
    typer.echo(printable(text))


def at_home(path: Path | None) -> Path | None:
    """A path that an option names, with "~" as the home folder: a shell leaves `--output=~/x` as it is."""
    from distilvec.files import home

    return None if path is None else Path(home(str(path)))


class _PlainHelp:
    """Help in which arguments are in capitals, and a switch is not shown with a value that it does not take."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_bool_flag", False):
                parameter.metavar = ""
            elif parameter.param_type_name == "argument" and parameter.metavar is None:
                parameter.metavar = str(parameter.name).upper()
        return parameters


class Command(_PlainHelp, TyperCommand):
    """A command of distilvec."""


class Commands(_PlainHelp, TyperGroup):
    """All of them."""


def silence(asked: bool) -> None:
    """Show neither progress nor what is being done; warnings and results stay."""
    if asked:
        logging.getLogger("distilvec").setLevel(logging.WARNING)


Quiet = Annotated[bool, typer.Option("--quiet", "-q", callback=silence, help="show results and warnings only")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="change a value: training.epochs=2", metavar="KEY=VALUE")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", callback=at_home, help="output folder instead of the recipe's")
]


def integers(text: str | None, option: str, example: str) -> list[int] | None:
    """Integers from 1 between commas, as an option names them; None where it does not."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    # Python refuses to read thousands of digits, with a ValueError
    if not all(part.isdecimal() and len(part) < 20 and int(part) for part in parts):
        raise DistilvecError(
            f'"{text[:200]}" is neither a number nor a list of numbers', where=option, remedy=f"For example {example}."
        )
    return [int(part) for part in parts]


def texts_of(data: Path, text: str, sample: int | None = None) -> list[str]:
    """The texts of a file; with `sample` at most this many, spread over its first `READ`."""
    import numpy as np

    from distilvec.corpus import read_corpus
    from distilvec.evenly import sampled_rows

    with tempfile.TemporaryDirectory(prefix="distilvec-texts-") as place:
        corpus = read_corpus(str(data), place, text=text, holdout=0.0, limit=None if sample is None else READ)
        return corpus.texts(None if sample is None else sampled_rows(np.arange(len(corpus)), sample))
