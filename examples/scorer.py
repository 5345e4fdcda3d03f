"""Distil a student that also learns how a function of yours judges queries and documents.

    python examples/scorer.py --teacher FOLDER_OR_ID

Negatives are mined with the teacher's vectors; the function is asked once about each query and document, and its
answers are kept in a store. Stop the script and start it again: what was mined, taught and judged is not done twice.
Put a call of a large model in place of `score`, with `rate_limit` in its section.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import distilvec


def some_pairs() -> list[dict[str, str]]:
    """Questions and answers about things; a stand-in for yours."""
    things = ["lamp", "door", "boat", "clock", "river", "stone", "apple", "train", "cloud", "piano"]
    says = {
        "What is a {} for?": "People use a {} every day, for many things.",
        "Who made the {}?": "The {} was made by somebody who lived long ago.",
        "How heavy is a {}?": "A {} may weigh more than you think.",
        "Where do I find a {}?": "You find a {} where you looked last.",
    }
    return [
        {"query": query.format(thing), "document": answer.format(thing)}
        for thing in things
        for query, answer in says.items()
    ]


def score(pairs: list[tuple[str, str]]) -> list[float | None]:
    """How many words of the query stand in the document; None for a query without words."""
    found: list[float | None] = []
    for query, document in pairs:
        words = set(query.lower().strip("?").split())
        found.append(len(words & set(document.lower().strip(".").split())) / len(words) if words else None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True, help="folder or hub id of an embedder")
    parser.add_argument("--output", type=Path, default=Path("out-scorer"))
    options = parser.parse_args()
    corpus = {"path": some_pairs(), "text": ["query", "document"], "holdout": 0.2}
    mined = distilvec.mine(
        options.teacher, corpus, options.output / "mined", negatives=3, relative_margin=None, absolute_margin=0.0
    )
    print(mined.text())
    run = distilvec.distill(
        options.teacher,
        corpus={"path": str(mined.file), "text": mined.columns, "holdout": 0.2},
        output=options.output / "student",
        student={"shrink": {"of": "teacher", "layers": 1}},
        method=[{"name": "cosine"}, {"name": "score_kl", "weight": 0.3}],
        scorers=[{"name": "words", "call": score}],
        training={"epochs": 2, "batch_size": 8},
        judging={"speed": False},
    )
    print(run.report)


if __name__ == "__main__":
    main()
