"""Keep the teacher's index, replace the encoder of the queries.

    python examples/index_compatible.py --teacher FOLDER_OR_ID --student FOLDER_OR_ID --texts texts.txt

Trains a student in the teacher's space with `leaf`, packs student (queries) and teacher (documents) as one Router
model, and shows for some queries how many of the teacher's own ten nearest documents the student finds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.corpus import Corpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True, help="folder or hub id")
    parser.add_argument("--student", required=True, help="folder or hub id")
    parser.add_argument("--texts", type=Path, required=True, help="one text a line")
    parser.add_argument("--output", type=Path, default=Path("out-index"))
    parser.add_argument("--epochs", type=float, default=3)
    arguments = parser.parse_args()
    result = distilvec.run(
        distilvec.Recipe.build(
            {
                "corpus": {"path": str(arguments.texts), "holdout": 0.2},
                "teachers": [{"name": "teacher", "model": arguments.teacher}],
                "student": {"model": arguments.student, "router": True},
                "method": {"name": "leaf"},
                "training": {"epochs": arguments.epochs},
                "output": str(arguments.output),
            }
        )
    )

    both = SentenceTransformer(str(arguments.output / "router"))
    corpus = Corpus.open(result.folder / "corpus")
    documents, queries = corpus.texts(corpus.train_rows), corpus.texts(corpus.holdout_rows)
    index = both.encode_document(documents, normalize_embeddings=True)  # the teacher's index
    wanted = both.encode_document(queries, normalize_embeddings=True) @ index.T
    found = both.encode_query(queries, normalize_embeddings=True) @ index.T
    nearest = [
        set(np.argsort(-row)[:10]) & set(np.argsort(-other)[:10]) for row, other in zip(wanted, found, strict=True)
    ]
    print(
        f"{len(queries)} queries: {np.mean([len(common) for common in nearest]):.1f} of the teacher's 10 nearest found"
    )


if __name__ == "__main__":
    main()
