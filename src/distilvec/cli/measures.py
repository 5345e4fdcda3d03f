"""Commands that look at a model, at texts or at an old index, and the one that exports a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from distilvec.cli.options import Quiet, at_home, say, texts_of
from distilvec.errors import DistilvecError

#: Of an old index.
Texts = Annotated[
    str | None, typer.Option(help="of the rows: .txt, .jsonl, or a parquet file's column; default its text")
]


def geometry(
    model: Annotated[str, typer.Argument(help="any sentence-transformers folder or hub id")],
    data: Annotated[Path, typer.Option("--data", help="texts: any file that a corpus can be read from")],
    text: Annotated[str, typer.Option(help="text column")] = "text",
    limit: Annotated[int, typer.Option(help="how many texts to use", min=2)] = 500,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", callback=at_home, help="also write numbers and pictures here")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show how an embedder's vectors fill their space; in mixtures of experts, how the active experts differ."""
    from distilvec.judging.geometry import geometry as measure
    from distilvec.report.geometry import check_place, geometry_markdown, write_geometry
    from distilvec.students import load_student

    if output is not None:
        check_place(output)  # now, not when everything is measured
    measured = measure(load_student(model), texts_of(data, text, limit))
    name = Path(model).name
    say(geometry_markdown(measured, name))
    if output is not None:
        say(f"written to {write_geometry(measured, name, output)}")


def compress(
    model: Annotated[str, typer.Argument(help="student: folder or hub id")],
    data: Annotated[Path, typer.Option("--data", help="texts: any file that a corpus can be read from")],
    output: Annotated[
        Path, typer.Option("--output", "-o", callback=at_home, help="folder for compression.md and compression.json")
    ],
    tasks: Annotated[
        list[str] | None, typer.Option("--task", "-t", help="benchmark name, task file, or a YAML list of tasks")
    ] = None,
    text: Annotated[str, typer.Option(help="text column")] = "text",
    width: Annotated[list[int] | None, typer.Option(help="numbers to keep of a vector; default halves")] = None,
    limit: Annotated[int, typer.Option(help="how many texts to compare on, and as many to calibrate", min=20)] = 1000,
    quiet: Quiet = False,
) -> None:
    """Measure shorter, int8 and binary vectors, float16 weights and ONNX: score, bytes and speed in one table."""
    from distilvec.flow.compress import FEWEST
    from distilvec.flow.compress import compress as measure
    from distilvec.folders import check
    from distilvec.judging.loading import read_tasks
    from distilvec.report.sections.compressed import FILES
    from distilvec.students import load_student

    check(output, "compression", FILES)  # now, not when everything is measured
    texts = texts_of(data, text, 2 * limit)
    if len(texts) < 2 * FEWEST:
        raise DistilvecError(
            f"{len(texts)} texts are too few to compare vectors on",
            where=str(data),
            remedy=f"At least {2 * FEWEST}: half of them calibrate.",
        )
    # Every second text calibrates, so that a sorted file does not part the two.
    compression = measure(load_student(model), texts[::2], texts[1::2], read_tasks(tasks or []), widths=width)
    say(f"{compression.grid().text()}\nwritten to {compression.write(output, Path(model).name)}")


def drift(
    old: Annotated[Path, typer.Argument(help="texts of before: any file that a corpus can be read from")],
    new: Annotated[Path, typer.Argument(help="texts of now")],
    model: Annotated[str, typer.Option(help="embedding model used for the comparison: folder or hub id")],
    text: Annotated[str, typer.Option(help="text column")] = "text",
    limit: Annotated[int, typer.Option(help="how many texts of each to compare", min=20)] = 5000,
    quiet: Quiet = False,
) -> None:
    """Check whether two corpora are the same kind of text to a model, and show which texts are new."""
    from distilvec.judging import drift as measure
    from distilvec.report.data import clip
    from distilvec.students import load_student

    measured = measure(load_student(model), texts_of(old, text), texts_of(new, text), sample=limit)
    say(measured.sentence())
    say(f"{measured.old:,} old texts, {measured.new:,} new ones, {measured.shared:,} in both.")
    if measured.examples:
        say("\nMost unlike the old texts (cosine to the nearest of them):")
        for example, _, cosine in measured.examples:
            say(f"{cosine:6.2f}  {clip(example, 100)}")


def export(
    model: Annotated[str, typer.Argument(help="student folder, or hub id")],
    output: Annotated[Path, typer.Option("--output", "-o", callback=at_home, help="folder for the files")],
    to: Annotated[Literal["onnx", "gguf"], typer.Option(help="gguf: for llama.cpp and Ollama")] = "onnx",
    quantize: Annotated[bool, typer.Option(help="also int8")] = True,
    web: Annotated[bool, typer.Option("--web", help="in the layout that transformers.js opens")] = False,
    model2vec: Annotated[bool, typer.Option("--model2vec", help="of a static student: for model2vec instead")] = False,
    texts: Annotated[Path | None, typer.Option(help="with --web: also a page that searches these texts")] = None,
    text: Annotated[str | None, typer.Option(help="text column of --texts; default text")] = None,
    library: Annotated[
        Path | None, typer.Option(callback=at_home, help="folder with transformers.js, where there is no npm")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write the whole pipeline as ONNX, float and int8, with agreement, size and speed; or as GGUF or for model2vec."""
    if model2vec or to == "gguf":
        if web or texts or text or library or (model2vec and (to == "gguf" or not quantize)):
            name = "--model2vec" if model2vec else "--to gguf"
            raise DistilvecError("this format holds the model alone", where=name, remedy="Give no other.")
        from distilvec.export import export_gguf, export_model2vec

        say((export_model2vec(model, output) if model2vec else export_gguf(model, output, quantize=quantize)).text())
        return
    from distilvec.export import export_onnx, export_web
    from distilvec.export.page import PAGE
    from distilvec.report.surroundings import folder_bytes

    if texts is not None and not web:
        raise DistilvecError("this is for the page of an export for the web", where="--texts", remedy="Add --web.")
    for name, value in (("--library", library), ("--text", text)):
        if value is not None and texts is None:
            remedy = "Add --texts, with --web."
            raise DistilvecError("this is about the page that searches texts", where=name, remedy=remedy)
    if not web:
        say(export_onnx(model, output, quantize=quantize).table())
        return
    if texts is None:
        say(export_web(model, output, quantize=quantize).table())
        return
    searched = texts_of(texts, text or "text")
    title = f"Search in {texts.name.split('.')[0]}"
    report = export_web(model, output, quantize=quantize, search=searched, title=title, library=library)
    page = output / PAGE
    say(f"{report.table()}\n\npage        {page}: {len(searched):,} texts, {folder_bytes(page) / 1e6:.1f} MB")
    say(f"look at it  python3 -m http.server 8000 --directory {page}")


def check_index(
    model: Annotated[str, typer.Argument(help="model that may have made the vectors: folder or hub id")],
    vectors: Annotated[
        str, typer.Option(help=".npy file, a table (file.parquet:column, .jsonl, .csv) or a database's")
    ],
    texts: Texts = None,
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
    texts: Texts = None,
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
