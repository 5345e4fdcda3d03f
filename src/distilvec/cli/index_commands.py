"""Commands about an old index. `distilvec.cli.main` puts them into the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distilvec.cli.options import Quiet, at_home, say


def check_index(
    model: Annotated[str, typer.Argument(help="model that may have made the vectors: folder or hub id")],
    vectors: Annotated[
        str, typer.Option(help=".npy file, a table (file.parquet:column, .jsonl, .csv) or a database's")
    ],
    texts: Annotated[
        str | None, typer.Option(help="of the rows: .txt, .jsonl, or a parquet file's column; default its text")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="prompt before the texts; default the model's own")] = None,
    rows: Annotated[int, typer.Option(help="how many rows to encode again, evenly spread; 0 = all")] = 500,
    seed: Annotated[int, typer.Option(help="of the choice of rows", min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """Check whether an index and a model belong together, and say what is wrong and with which rows.

    The exit code is 3 if they do not.
    """
    from distilvec.indexes import check_index as start

    check = start(model, vectors, texts, prompt=prompt, rows=rows or None, seed=seed)
    say(check.text())
    if not check.belongs:
        raise typer.Exit(3)


def adapt(
    model: Annotated[str, typer.Argument(help="the new model: folder or hub id")],
    vectors: Annotated[
        str, typer.Option(help="the old index: .npy file, a table (file.parquet:column, .jsonl, .csv) or a database's")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", callback=at_home, help="folder of the adapted model")],
    texts: Annotated[
        str | None, typer.Option(help="of the rows: .txt, .jsonl, or a parquet file's column; default its text")
    ] = None,
    queries: Annotated[
        str | None, typer.Option(help="file with query and document, a text of the index that should be found")
    ] = None,
    query_vectors: Annotated[str | None, typer.Option(help="the old model's vectors of the queries")] = None,
    limit: Annotated[int, typer.Option(help="most rows to fit to", min=100)] = 50_000,
    seed: Annotated[int, typer.Option(help="of how rows are parted", min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """Fit a new model to an old index's space, from its vectors and texts alone."""
    from distilvec.indexes import adapt as start

    adaptation = start(
        model, vectors, texts, output, queries=queries, query_vectors=query_vectors, limit=limit, seed=seed
    )
    say(f"{adaptation.grid().text()}\nmodel       {adaptation.model}")
