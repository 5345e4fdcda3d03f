"""The command that mines. `distilvec.cli.main` puts it into the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distilvec.cli.options import Changes, Output, Quiet, say


def mine(
    recipe: Annotated[Path, typer.Argument(help="recipe in YAML with corpus and teachers")],
    changes: Changes = None,
    output: Output = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print how much would be encoded and compared; do nothing")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Find hard negatives for a corpus of pairs with the first teacher's vectors; run again, it continues."""
    from distilvec.recipe import Recipe

    loaded = Recipe.load(recipe, changes, output=output)
    if dry_run:
        from distilvec.choosing.dry_run import plan

        say(plan(loaded, mining=True).text())
        return
    from distilvec.flow.mine import mine_recipe

    say(mine_recipe(loaded).text())
