"""The texts of `mpnet`: what its students are trained on, chosen by, and judged on."""

from __future__ import annotations

import functools
import random
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments.harness.records import WORK
from experiments.harness.script import shared
from experiments.harness.texts import read_rows, shared_rows, write_rows
from experiments.quarter import texts as quarter

from distilvec.corpus.docstrings import docstring_pairs
from distilvec.corpus.prose import is_english, plain_text
from distilvec.judging import JudgingTask, RetrievalTask, load_task
from distilvec.judging.talas_sets import TALAS_SETS, talas_spec

EXPERIMENT = "mpnet"
#: Field of the corpus -> texts of a thousand.
FIELDS = {
    "questions": 240,
    "wikipedia": 130,
    "abc_news": 110,
    "masc": 70,
    "nli": 50,
    "captions": 50,
    "reviews": 40,
    "claims": 40,
    "emotion": 30,
    "speeches": 30,
    "docstrings": 130,
    "documents": 20,
    "packages": 60,
}
#: Fields that students are chosen by, and texts of each. The corpus has no text of the first two: not of this source,
#: and of none of these packages.
UNSEEN = ("brown", "other packages")
HELD_OUT = (*UNSEEN, "questions", "wikipedia", "abc_news", "reviews", "docstrings")
HELD = 80
#: Paragraphs of a package's own description.
PARAGRAPH = (12, 180)
#: Of the demo's docstrings the first are its tests, and ours.
TESTS = 600


@functools.cache
def fields() -> dict[str, list[str]]:
    """Field -> all its texts, in an order that is the same each time."""
    file = WORK / EXPERIMENT / "fields.jsonl"
    if not file.exists():
        write_rows(file, ({"field": field, "texts": _shuffled(each)} for field, each in _collected().items()))
    return {row["field"]: row["texts"] for row in read_rows(file)}


def _collected() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in read_rows(quarter.pool()):
        found.setdefault(row["source"], []).append(row["text"])
    pairs = docstring_pairs(limit=quarter.DEMO)[TESTS:]
    found["docstrings"] = [_part(number, pair) for number, pair in enumerate(pairs)]
    found["documents"] = [row["text"] for row in quarter.documents(pairs)]
    for name, paragraphs in descriptions().items():
        half = "other packages" if random.Random(name).random() < 0.5 else "packages"
        found.setdefault(half, []).extend(paragraphs)
    return found


def _shuffled(texts: list[str]) -> list[str]:
    return random.Random(0).sample(texts, len(texts))


def _part(number: int, pair: dict[str, str]) -> str:
    """A summary, a description or both, in turns."""
    return (pair["summary"], pair["description"], f"{pair['summary']} {pair['description']}")[number % 3]


def descriptions() -> dict[str, list[str]]:
    """Installed package -> prose paragraphs of its own description."""
    found: dict[str, list[str]] = {}
    for each in metadata.distributions():
        about = each.metadata
        whole = str(about.get_payload() or about.get("Description") or "")
        texts = [plain_text(" ".join(part.split())) for part in re.split(r"\n\s*\n", whole)]
        found[str(about["Name"])] = [text for text in dict.fromkeys(texts) if _is_prose(text)]
    return dict(sorted(found.items()))


def _is_prose(text: str) -> bool:
    words = len(text.split())
    return PARAGRAPH[0] <= words <= PARAGRAPH[1] and text.isprintable() and text[0].isalnum() and is_english(text, 0.2)


def corpus(texts: int) -> Path:
    """So many texts of all fields, one a line; those of a smaller corpus are among those of a larger one."""
    file = WORK / EXPERIMENT / f"corpus-{texts}.jsonl"
    if not file.exists():
        chosen = []
        for field, share in FIELDS.items():
            own = fields()[field][HELD if field in HELD_OUT else 0 :]
            chosen += [{"text": text, "field": field} for text in own[: texts * share // 1000]]
        random.Random(0).shuffle(chosen)
        write_rows(file, chosen)
    return file


def held_out() -> dict[str, list[str]]:
    """Field -> texts that no corpus has."""
    return {field: fields()[field][:HELD] for field in HELD_OUT}


#: First sentence and rest of a text, and pairs of a field with more.
_SEARCH, SEARCHES = re.compile(r"(.{25,160}?[.!?])\s+(\S.{40,})", re.DOTALL), 300


def searches() -> dict[str, list[tuple[str, str]]]:
    """Field -> first sentences and what follows them, of held-out texts: a search that has an answer without labels."""
    found = {}
    for field in ("brown", "other packages", "docstrings"):
        own = fields()[field] if field in UNSEEN else held_out()[field]
        pairs = [(match[1], match[2]) for text in own if (match := _SEARCH.fullmatch(text))]
        found[field] = pairs[:SEARCHES]
    return found


#: Rows of a set that are judged, of each side of a pair; training texts of a probe; queries and documents of a search.
PART, TRAIN, ASKED, SEARCHED = 200, 400, 60, 400


def parts() -> dict[str, list[JudgingTask]]:
    """Parts of the nine sets, of four others, and of three searches: what one thread can read with a large teacher."""
    data = shared() / "data"
    single = {"kind": "classification"}
    others = [
        {
            "name": "imdb",
            **single,
            "train": "imdb.train.jsonl.gz",
            "max_train": TRAIN // 3,
            "test": _some("imdb.test", PART // 2),
        },
        {
            "name": "ag_news",
            **single,
            "train": "ag_news.train.jsonl.gz",
            "max_train": TRAIN,
            "test": _some("ag_news.test"),
        },
        {"name": "sst2", **single, "train": "sst2.train.jsonl.gz", "max_train": TRAIN, "test": _some("sst2.test")},
        {"name": "rte", "kind": "pairs", "positive": "entailment", "test": _some("rte.validation")},
    ]
    return {
        "nine": [load_task(_nine(name, data), data) for name in TALAS_SETS],
        "others": [load_task(spec, data) for spec in others],
        "retrieval": [cranfield(), *_searches()],
    }


def _nine(name: str, data: Path) -> dict[str, Any]:
    spec = talas_spec(name, data) | {"test": _some(f"{name}.test")}
    return spec | ({"max_train": TRAIN} if spec["kind"] == "classification" else {})


def _some(name: str, count: int = PART) -> list[dict[str, Any]]:
    """Rows of a shared file, the same each time."""
    rows = list(shared_rows(name))
    return random.Random(0).sample(rows, min(count, len(rows)))


def cranfield() -> RetrievalTask:
    """Some queries of Cranfield, all documents that are right for them, and others up to `SEARCHED`."""
    asked = _some("cranfield.queries", ASKED)
    right: dict[str, dict[str, float]] = {row["_id"]: {} for row in asked}
    for row in shared_rows("cranfield.qrels"):
        if row["query_id"] in right:
            right[row["query_id"]][row["doc_id"]] = row["relevance"]
    needed = {document for each in right.values() for document in each}
    documents = sorted(_some("cranfield.corpus", 10_000), key=lambda row: row["_id"] not in needed)
    documents = documents[: max(SEARCHED, len(needed))]
    place = {row["_id"]: number for number, row in enumerate(documents)}
    relevance = {
        number: {place[document]: grade for document, grade in right[row["_id"]].items() if document in place}
        for number, row in enumerate(asked)
    }
    texts = [f"{row['title']} {row['text']}".strip() for row in documents]
    return RetrievalTask("cranfield", [row["text"] for row in asked], texts, relevance)


def _searches() -> list[JudgingTask]:
    """Pairs that the corpus lacks, and the demo's docstrings: summaries search their descriptions."""
    asked, told = quarter.drawn()[:SEARCHED], docstring_pairs(limit=quarter.DEMO)[:SEARCHED]
    return [
        RetrievalTask.from_pairs("pairs", [each["anchor"] for each in asked], [each["positive"] for each in asked]),
        RetrievalTask.from_pairs(
            "docstrings", [each["summary"] for each in told], [each["description"] for each in told]
        ),
    ]
