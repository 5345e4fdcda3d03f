"""The output of the commands that look at a model or at texts, and `distilvec export`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distilvec.errors import DistilvecError, printable
from distilvec.evenly import sampled_rows
from distilvec.judging.loading import read_tasks
from distilvec.report.data import clip

if TYPE_CHECKING:
    from distilvec.corpus import Corpus


#: Rows of a file that a sample of its texts is taken from.
READ = 200_000


def look_at_geometry(
    model: str, data: Path, *, text: str = "text", limit: int = 500, output: Path | None = None
) -> str:
    """The geometry of a model's vectors on a file's texts, as a page: `distilvec geometry`."""
    from distilvec.corpus import read_corpus
    from distilvec.judging.geometry import geometry
    from distilvec.report.geometry import check_place, geometry_markdown, write_geometry
    from distilvec.students import load_student

    if output is not None:
        check_place(output)  # now, not when everything is measured
    with tempfile.TemporaryDirectory(prefix="distilvec-geometry-") as place:
        texts = _sampled(read_corpus(str(data), place, text=text, holdout=0.0, limit=READ), limit)
    measured = geometry(load_student(model), texts)
    name = Path(model).name
    if output is None:
        return printable(geometry_markdown(measured, name))
    page = write_geometry(measured, name, output)
    return printable(f"{geometry_markdown(measured, name)}\nwritten to {page}")


def compress_model(
    model: str,
    data: Path,
    output: Path,
    *,
    text: str = "text",
    tasks: Sequence[str] = (),
    widths: Sequence[int] | None = None,
    limit: int = 1000,
) -> str:
    """Return what a model keeps in every compressed form, as a table: `distilvec compress`.

    Raises:
        DistilvecError: fewer than 40 texts; files in `output` that are somebody else's.
    """
    from distilvec.corpus import read_corpus
    from distilvec.flow.compress import FEWEST, compress
    from distilvec.folders import check
    from distilvec.report.sections.compressed import FILES
    from distilvec.students import load_student

    check(output, "compression", FILES)  # now, not when everything is measured
    with tempfile.TemporaryDirectory(prefix="distilvec-compress-") as place:
        texts = _sampled(read_corpus(str(data), place, text=text, holdout=0.0, limit=READ), 2 * limit)
    if len(texts) < 2 * FEWEST:
        raise DistilvecError(
            f"{len(texts)} texts are too few to compare vectors on",
            where=str(data),
            remedy=f"At least {2 * FEWEST}: half of them calibrate.",
        )
    # Every second text calibrates, so that a sorted file does not part the two.
    compression = compress(load_student(model), texts[::2], texts[1::2], read_tasks(list(tasks)), widths=widths)
    return printable(f"{compression.grid().text()}\nwritten to {compression.write(output, Path(model).name)}")


def look_at_drift(model: str, old: Path, new: Path, *, text: str = "text", limit: int = 5000) -> str:
    """Return what `distilvec drift` prints: a sentence, and the texts that are most unlike the old ones."""
    from distilvec.corpus import read_corpus
    from distilvec.judging import drift
    from distilvec.students import load_student

    sides = []
    for source in (old, new):
        with tempfile.TemporaryDirectory(prefix="distilvec-drift-") as place:
            sides.append(read_corpus(str(source), place, text=text, holdout=0.0).texts())
    measured = drift(load_student(model), *sides, sample=limit)
    counts = f"{measured.old:,} old texts, {measured.new:,} new ones, {measured.shared:,} in both."
    lines = [measured.sentence(), counts]
    if measured.examples:
        lines += ["", "Most unlike the old texts (cosine to the nearest of them):"]
        lines += [f"{cosine:6.2f}  {clip(each, 100)}" for each, _, cosine in measured.examples]
    return printable("\n".join(lines))


def export_student(
    model: str,
    output: Path,
    *,
    quantize: bool = True,
    web: bool = False,
    texts: Path | None = None,
    text: str | None = None,
    library: Path | None = None,
) -> str:
    """A student as ONNX, in our layout or for the web, and what came of it: `distilvec export`."""
    from distilvec.corpus import read_corpus
    from distilvec.export import export_onnx, export_web
    from distilvec.export.page import PAGE, page_bytes

    if not web:
        for name, value in (("--texts", texts), ("--library", library)):
            if value is not None:
                raise DistilvecError("this is about the page of an export for the web", where=name, remedy="Add --web.")
    if web and texts is None and library is not None:
        raise DistilvecError("this is for the page that searches texts", where="--library", remedy="Add --texts.")
    if texts is None and text is not None:
        raise DistilvecError("this is a column of the page's texts", where="--text", remedy="Add --texts, with --web.")
    if not web:
        return export_onnx(model, output, quantize=quantize).table()
    if texts is None:
        return export_web(model, output, quantize=quantize).table()
    with tempfile.TemporaryDirectory(prefix="distilvec-texts-") as place:
        searched = read_corpus(str(texts), place, text=text or "text", holdout=0.0).texts()
    title = f"Search in {texts.name.split('.')[0]}"
    report = export_web(model, output, quantize=quantize, search=searched, title=title, library=library)
    page = output / PAGE
    told = f"page        {page}: {len(searched):,} texts, {page_bytes(page) / 1e6:.1f} MB"
    return printable(f"{report.table()}\n\n{told}\nlook at it  python3 -m http.server 8000 --directory {page}")


def _sampled(corpus: Corpus, limit: int) -> list[str]:
    """At most so many of its texts, from all over it."""
    import numpy as np

    return corpus.texts(sampled_rows(np.arange(len(corpus)), limit))
