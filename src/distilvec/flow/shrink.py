"""A model cut into a folder: what `distilvec shrink` does."""

from __future__ import annotations

import tempfile
from pathlib import Path

from distilvec.corpus import read_corpus
from distilvec.errors import DistilvecError
from distilvec.folders import check_model
from distilvec.students import ship, shrink


def shrink_model(
    model: str,
    output: Path,
    *,
    layers: int | list[int] | None = None,
    vocabulary: int | None = None,
    corpus: Path | None = None,
    text: str = "text",
    **sizes: int | None,
) -> str:
    """Shrink a model into a folder and say what was kept: `distilvec shrink`; sizes are further ones of `shrink`.

    Raises:
        DistilvecError: nothing is to be cut, or what is to be cut needs texts and there are none; else as `shrink`.
    """
    check_model(output, new=True)
    if layers is None and vocabulary is None and not any(size is not None for size in sizes.values()):
        raise DistilvecError(
            "there is nothing to shrink", where="shrink", remedy="Give --layers, --vocabulary or another size."
        )
    fitted = [name for name in ("embedding", "inner", "heads", "width") if sizes.get(name) is not None]
    if (vocabulary is not None or fitted) and corpus is None:
        part = "pruning the vocabulary" if vocabulary is not None else f"cutting {fitted[0]}"
        raise DistilvecError(
            f"{part} needs the texts that the student will read", where="--corpus", remedy="Give a file."
        )
    texts: list[str] | None = None
    if corpus is not None:
        with tempfile.TemporaryDirectory(prefix="distilvec-shrink-") as place:
            texts = read_corpus(str(corpus), place, text=text, holdout=0.0).texts()
    smaller, report = shrink(model, layers=layers, vocabulary=vocabulary, texts=texts, domains=None, seen=None, **sizes)
    ship(smaller, output)
    return f"{report}\nstudent     {output}"
