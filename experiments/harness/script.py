"""What the experiments' scripts share: where the data are, their arguments, and what they do without training."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.harness.comparing import compared
from experiments.harness.records import RESULTS, Results, Rows, committed, short

from distilvec.recipe.recipe import YOUNGER, Recipe

#: Writes `table.md` and pictures into a folder, from rows; returns the page.
Page = Callable[[Rows, Path], str]


def shared() -> Path:
    """The folder with the shared corpora and evaluation sets."""
    folder = Path(os.environ.get("DISTILVEC_DATA", Path(__file__).parent.parent.parent.parent / "shared"))
    if not (folder / "data").is_dir():
        raise SystemExit(f"{folder} has no folder data; set DISTILVEC_DATA to the shared data.")
    return folder


def arguments(script: str, *, device: bool = True, quick: str | None = None) -> argparse.ArgumentParser:
    """A parser with what every script takes; the README.md beside the script explains it.

    Args:
        script: its file.
        device: with --device.
        quick: what --quick says about itself; None = there is none.
    """
    about = Path(script).with_name("README.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if device:
        parser.add_argument("--device", default=None, help="cpu to keep off an accelerator")
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    only = parser.add_argument_group("without training (no data are needed)").add_mutually_exclusive_group()
    only.add_argument("--table", action="store_true", help="write the page of the committed results again")
    only.add_argument(
        "--compare", action="store_true", help="new results beside the committed ones, and what moved beyond seeds"
    )
    only.add_argument("--record", action="store_true", help="write the new results over the committed ones")
    return parser


def finished(options: argparse.Namespace, results: Results, page: Page) -> bool:
    """Do what --table, --compare or --record ask for; False where none of them was asked for.

    New results are those of the settings that the other arguments give.
    """
    home = RESULTS / results.experiment
    if options.record:
        if getattr(options, "quick", False):
            raise SystemExit("--quick only shows that the script runs: its rows are not recorded.")
        names = results.record()
        print("\n".join([*names, f"{len(names)} rows of {results.file} recorded in {home}."]))
        page(committed(results.experiment), home)
    elif options.table:
        print(page(committed(results.experiment), home))
    elif options.compare:
        print(compared(results.experiment, results.records()))
    return bool(options.table or options.compare or options.record)


def settings_of(recipe: Recipe, *left_out: str) -> dict[str, Any]:
    """A recipe's resolved options: all that could change its outcome, without the folders of this machine.

    Args:
        left_out: further sections.
    """
    found: dict[str, Any] = recipe.model_dump(mode="json", exclude={"output", "cache", *left_out})
    found["training"].pop("use_cpu", None)
    for section, key in YOUNGER:
        if found.get(section) and not found[section][key]:
            del found[section][key]
    for teacher in found.get("teachers", ()):
        teacher.pop("token_budget", None)  # how it is read, not what it says
        if not teacher.get("load"):  # a key younger than most records
            teacher.pop("load", None)
    return short(found)
