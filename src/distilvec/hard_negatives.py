"""Hard negatives from Python values; the work is done in `distilvec.flow.mine`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distilvec.api import GIVEN, corpus_section, recipe_of
from distilvec.flow.mine import mine_recipe
from distilvec.mining.outcome import Mined


def mine(
    teacher: Any,
    corpus: Any,
    output: str | Path = "mined",
    *,
    documents: Any = None,
    seed: int = 0,
    cache: str | Path | None = None,
    **options: Any,
) -> Mined:
    """Hard negatives for a corpus of pairs from one teacher's vectors: `distilvec mine`.

    Exact, in bounded memory; killed and called again it goes on where it was.

    Args:
        teacher: as for `distill`; its store is filled with what it lacks. The folder of a student, or
            `{"vectors": ..., "texts": ...}`, are teachers as well.
        corpus: as for `distill`, with the columns of query and answer: `{"path": ..., "text": ["query", "answer"]}`.
        output: folder for mined.jsonl, mining.md, mining.json and, without `cache`, the store.
        documents: more documents that may be negatives: a file, a list of texts, or a corpus section.
        seed: of what is drawn at random.
        cache: where the prepared corpus and the store are kept, to be shared with runs.
        **options: keys of the recipe's `mining` section: negatives, ranks, absolute_margin, relative_margin, max_score,
            duplicates, random.

    Returns:
        What was found: `file`, `columns` (for `corpus.text` of a recipe), `text()`.

    Raises:
        DistilvecError: a corpus without pairs, an unknown option, or whatever teaching raises.
    """
    if documents is not None:
        options["documents"] = corpus_section(documents, Path(output) / GIVEN, "documents.jsonl")
    sections = {"mining": options, "training": {"seed": seed}}
    recipe = recipe_of(teacher, None, corpus, None, output, **sections, cache=None if cache is None else str(cache))
    return mine_recipe(recipe)
