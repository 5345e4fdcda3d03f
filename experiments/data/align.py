"""Number the candidates of the sampled pools as the originals did: writes pools.json.

    python -m experiments.data.align FOLDER --mirror CLONES    # FOLDER has the original sentences and pairs

The originals are `Random(0).sample(candidates, count)` of each source, shuffled with `Random(0)`; undoing both gives
the number that every row had among the candidates of its source. Where a row is a candidate here too, the difference of
the two numbers is a shift; pools.json has the places where the shift changes.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import random
from pathlib import Path
from typing import Any

from experiments.data.formats import read_lines
from experiments.data.manifest import SOURCES
from experiments.data.pools import PAIRS, SENTENCES, STEPS, pair_candidates, sentence_candidates
from experiments.data.sources import Raw, Sources

#: How many candidates the originals had.
TOTALS = {
    "wikipedia": 42943,
    "questions": 86232,
    "nli": 24992,
    "captions": 27966,
    "claims": 7461,
    "masc": 11792,
    "abc_news": 29694,
    "brown": 44965,
    "speeches": 16434,
    "reviews": 66009,
    "pairs snli": 3219,
    "pairs mnli": 3462,
    "pairs rte": 1148,
    "pairs quora": 12415,
    "pairs wikisplit": 13529,
    "pairs ag_news_title": 9865,
    "pairs flickr30k_captions": 28361,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mirror", type=Path)
    options = parser.parse_args()
    raw = Raw(Sources.read(SOURCES), options.folder / "raw", options.folder, options.mirror)
    found = {}
    print("| source | candidates then | candidates here | rows | the same |\n| --- | --- | --- | --- | --- |")
    original = unshuffled(options.folder / "data" / "sentences.jsonl.gz")
    for source, candidates in sentence_candidates(raw):
        rows = [row["text"] for row in original[source]]
        found[source] = steps(source, rows, candidates, SENTENCES[source])
    original = unshuffled(options.folder / "data" / "pairs.jsonl.gz")
    for source, candidates in pair_candidates(raw):
        rows = [(row["anchor"], row["positive"]) for row in original[source]]
        found[f"pairs {source}"] = steps(
            f"pairs {source}", rows, [texts[:2] for texts in candidates], PAIRS.get(source)
        )
    STEPS.write_text(json.dumps(found, separators=(",", ":")).replace("},", "},\n") + "\n")


def unshuffled(file: Path) -> dict[str, list[dict[str, str]]]:
    """The rows of each source in the order in which they were drawn."""
    rows = [json.loads(line) for line in read_lines(file)]
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    before = [row for _, row in sorted(zip(order, rows), key=lambda pair: pair[0])]
    return {source: list(group) for source, group in itertools.groupby(before, key=lambda row: row["source"])}


def steps(source: str, rows: list[Any], candidates: list[Any], count: int | None) -> dict[str, Any]:
    """The shifts between the original's numbers and those here, from the rows that are candidates in both."""
    total = TOTALS[source]
    numbers = range(total) if count is None else random.Random(0).sample(range(total), count)
    places = {text: place for place, text in enumerate(candidates)}
    both = sorted((number, places[text]) for number, text in zip(numbers, rows, strict=True) if text in places)
    kept = increasing(both)
    print(f"| {source} | {total:,} | {len(candidates):,} | {len(rows):,} | {len(kept):,} |", flush=True)
    changes: list[list[int]] = []
    for number, place in kept:
        if not changes or changes[-1][1] != place - number:
            changes.append([number if changes else 0, place - number])
    return {"total": total, "steps": changes or [[0, 0]]}


def increasing(both: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest part in which the places grow with the numbers."""
    tails: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for row, (_, place) in enumerate(both):
        at = bisect.bisect_left(tails, place)
        before.append(ends[at - 1] if at else -1)
        if at == len(tails):
            tails.append(place)
            ends.append(row)
        else:
            tails[at], ends[at] = place, row
    kept, row = [], ends[-1] if ends else -1
    while row >= 0:
        kept.append(both[row])
        row = before[row]
    return kept[::-1]


if __name__ == "__main__":
    main()
