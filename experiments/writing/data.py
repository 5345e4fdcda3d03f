"""Instructions made of the shared pairs, and the texts that models of the writing experiment are pre-trained on.

    python -m experiments.writing.data       # writes what is missing into the work folder, and counts it

An item is a prompt that says what is wanted, and an answer:

    Title: <description of a news item>                  its title                           (AG News)
    Caption: <caption of a picture>                      another caption of the picture      (Flickr30k)
    Split: <long sentence>                               the same in two sentences           (WikiSplit)
    Question: <question>                                 a question that means the same      (Quora)
    Follows: <premise>                                   what follows from it                (SNLI, MNLI, RTE)

One in forty of each is for validation and one in forty for the test, by a hash of the prompt's text; texts that stand
there are trained on nowhere, neither in another item nor while pre-training. Two further tests are not like what is
trained on: entailed sentences of SICK's test set, and paraphrases of MRPC's (a prompt that nobody was trained on).
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from experiments.harness.records import WORK
from experiments.harness.texts import shared_rows, write_rows

FOLDER = WORK / "writing" / "data"
#: Source in pairs.jsonl -> the word of its prompt, and which of its two texts is the answer.
KINDS = {
    "ag_news_title": ("Title", "anchor"),
    "flickr30k_captions": ("Caption", "positive"),
    "wikisplit": ("Split", "positive"),
    "quora": ("Question", "positive"),
    "snli": ("Follows", "positive"),
    "mnli": ("Follows", "positive"),
    "rte": ("Follows", "positive"),
}
TASKS = ("Title", "Caption", "Split", "Question", "Follows")
OUTSIDE = ("sick", "mrpc")
#: Longer ones are left out: a step would be made of padding.
LONGEST = 300
PER_TEST = 80
SPLITS = ("train", "validation", "test")


def share(text: str) -> int:
    """0 to 39, of a text's letters and digits."""
    plain = "".join(each for each in text.lower() if each.isalnum())
    return int.from_bytes(hashlib.blake2b(plain.encode(), digest_size=4).digest(), "little") % 40


def items() -> dict[str, list[dict[str, str]]]:
    """Split -> rows with prompt, answer and kind; no text of validation and test is in train."""
    found: dict[str, list[dict[str, str]]] = {split: [] for split in SPLITS}
    for row in shared_rows("pairs"):
        word, side = KINDS[row["source"]]
        answer, asked = row[side], row["anchor" if side == "positive" else "positive"]
        if len(answer) + len(asked) > LONGEST:
            continue
        split = {0: "test", 1: "validation"}.get(share(asked), "train")
        found[split].append({"prompt": f"{word}: {asked}", "answer": answer, "kind": word, "asked": asked})
    kept_back = {text for split in SPLITS[1:] for row in found[split] for text in (row["asked"], row["answer"])}
    found["train"] = [row for row in found["train"] if not {row["asked"], row["answer"]} & kept_back]
    return found


def outside() -> dict[str, list[dict[str, str]]]:
    """Name -> rows that are unlike what is trained on."""
    sick = [row for row in shared_rows("sick.test") if row["label"].lower() == "entailment"]
    mrpc = [row for row in shared_rows("mrpc.test") if int(row["label"]) == 1]
    return {
        "sick": [{"prompt": f"Follows: {row['text1']}", "answer": row["text2"], "kind": "sick"} for row in sick],
        "mrpc": [{"prompt": f"In other words: {row['text1']}", "answer": row["text2"], "kind": "mrpc"} for row in mrpc],
    }


def documents() -> list[tuple[str, ...]]:
    """What is pre-trained on: both sides of each training pair, one after the other, and every other sentence alone."""
    split = items()
    kept_back = {row[side] for name in SPLITS[1:] for row in split[name] for side in ("asked", "answer")}
    pairs = [(row["asked"], row["answer"]) for row in split["train"]]
    there = kept_back.union(*pairs)
    alone = dict.fromkeys(row["text"] for row in shared_rows("sentences") if row["text"] not in there)
    return [*dict.fromkeys(pairs), *((text,) for text in alone)]


def files(folder: Path = FOLDER) -> dict[str, Path]:
    """train, validation, one file per kind of test and the two outside; written where they are missing."""
    names = ["train", "validation", *TASKS, *OUTSIDE]
    found = {name: folder / f"{name.lower()}.jsonl" for name in names}
    if not all(file.exists() for file in found.values()):
        split = items()
        tests = {task: [row for row in split["test"] if row["kind"] == task][:PER_TEST] for task in TASKS}
        tests |= {name: rows[:PER_TEST] for name, rows in outside().items()}
        for name, file in found.items():
            rows = tests[name] if name in tests else split[name]
            write_rows(file, [{key: row[key] for key in ("prompt", "answer", "kind")} for row in rows])
    return found


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name, file in files().items():
        print(f"{name}: {len(file.read_text(encoding='utf-8').splitlines()):,} items")
    print(f"{len(documents()):,} documents to pre-train on")


if __name__ == "__main__":
    main()
