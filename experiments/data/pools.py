"""The two sampled pools, `sentences` and `pairs`: by the rules of the originals, and nearly the same rows.

The originals were cut by a program that was not kept. Its rules are: single sentences of 15 to 320 characters and 4
to 60 words (questions from 3), mostly letters, quotes and brackets balanced, no links or markup; each text once; no
text of a validation or test split, whatever its case and punctuation; a draw of each source with seed 0. What the
rules leave open (how text is put together again from tokens, what ends a sentence) is decided here anew, so a few
candidates differ. `pools.json`, made once beside the originals, numbers those here as the originals were, so that the
draw takes the same rows; where the original's row is no candidate here, it takes a neighbour.
"""

from __future__ import annotations

import bisect
import csv
import gzip
import io
import json
import random
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.data.formats import clean, jsonl, read_lines
from experiments.data.sources import Raw

Files = dict[str, bytes]

#: Rows of each source in the pools.
SENTENCES = {
    "wikipedia": 32000,
    "questions": 42000,
    "nli": 20000,
    "captions": 20000,
    "claims": 6000,
    "masc": 10000,
    "abc_news": 16000,
    "brown": 16000,
    "speeches": 4000,
    "reviews": 10000,
}
PAIRS = {"wikisplit": 8000, "ag_news_title": 8000, "flickr30k_captions": 22000}

DPR = ("nq.dev", "nq.test", "squad.test", "trivia.dev", "trivia.test", "wq.test")
MSMARCO = ("msmarco-passage.dev-subset", "msmarco-doc.dev", "msmarco-passage.test-subset", "msmarco-doc.test")
FORUMS = (
    *("android", "english", "gaming", "gis", "mathematica", "physics"),
    *("programmers", "stats", "tex", "unix", "webmasters", "wordpress"),
)
BEIR = ("hotpotqa", "quora", "fiqa", *(f"cqadupstack-{forum}" for forum in FORUMS))
#: Kinds of MASC's written texts that are left out.
NOT_PROSE = {"email", "spam", "jokes", "twitter", "court-transcript", "debate-transcript", "movie-script"}
ABBREVIATED = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sen|Gov|Gen|Rep|No|vs|Jr|Sr|Inc|Co|U\.S|[A-Z])\.$")
#: Sources whose texts end as sentences do.
PROSE = {"wikipedia", "brown", "masc", "speeches"}
STEPS = Path(__file__).with_name("pools.json")


def sentences(raw: Raw) -> Files:
    rows = []
    for source, found in sentence_candidates(raw):
        rows += [{"text": text, "source": source} for text in drawn(source, found, SENTENCES[source])]
    random.Random(0).shuffle(rows)
    return {"sentences.jsonl.gz": jsonl(rows)}


def pairs(raw: Raw) -> Files:
    rows: list[dict[str, str]] = []
    for source, found in pair_candidates(raw):
        for texts in drawn(f"pairs {source}", found, PAIRS.get(source)):
            rows.append({**dict(zip(("anchor", "positive", "negative"), texts)), "source": source})
    random.Random(0).shuffle(rows)
    return {"pairs.jsonl.gz": jsonl(rows)}


def sentence_candidates(raw: Raw) -> Iterator[tuple[str, list[str]]]:
    """Of each source every sentence that fits, once."""
    taken = held_out(raw)
    for source in SENTENCES:
        found: dict[str, str] = {}
        for text in READERS[source](raw):
            if fits(text, 3 if source == "questions" else 4, source in PROSE) and bare(text) not in taken:
                found.setdefault(bare(text), text)
        yield source, list(found.values())


def pair_candidates(raw: Raw) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Of each source every pair of two different texts, once."""
    taken = held_out(raw)
    for source, reader in PAIR_READERS.items():
        found: dict[tuple[str, str], tuple[str, ...]] = {}
        for texts in reader(raw):
            keys = [bare(text) for text in texts]
            if all(keys) and keys[0] != keys[1] and not taken & set(keys):
                found.setdefault((keys[0], keys[1]), texts)
        yield source, list(found.values())


def drawn(source: str, found: list[Any], count: int | None) -> list[Any]:
    """The original's draw: of its candidates by number, which `pools.json` turns into numbers here.

    `total` is how many candidates the original had. A step [number, shift] says that from this number on candidate
    `number + shift` stands for the original's.
    """
    known = json.loads(STEPS.read_text())[source]
    numbers = range(known["total"]) if count is None else random.Random(0).sample(range(known["total"]), count)
    starts = [start for start, _ in known["steps"]]
    shifts = [shift for _, shift in known["steps"]]
    places = [number + shifts[bisect.bisect_right(starts, number) - 1] for number in numbers]
    return [found[min(max(place, 0), len(found) - 1)] for place in places]


def bare(text: str) -> str:
    """Letters and digits in lower case: what two spellings of a text share."""
    return re.sub(r"[\W_]+", "", text.lower())


def fits(text: str, least: int, prose: bool = False) -> bool:
    """Whether a text is a sentence of the pools. Prose must end as a sentence does.

    >>> fits("The mill closed in May.", 4), fits("See http://a.org for the rest.", 4), fits('He said "no.', 3)
    (True, False, False)
    """
    if not 15 <= len(text) <= 320 or not least <= len(text.split()) <= 60 or not re.match(r'"?[A-Za-z0-9]', text):
        return False
    letters = re.findall("[A-Za-z]", text)
    if len(letters) < 0.68 * len(text) or sum(map(str.isupper, letters)) > 0.5 * len(letters):
        return False
    if text.count('"') % 2 or re.search(r"https?:|www\.|[<>{}|\\_~]|&\w+;", text):
        return False
    if prose and text[-1] not in '.!?"':
        return False
    return all(text.count(left) == text.count(right) for left, right in ("()", "[]"))


def held_out(raw: Raw) -> set[str]:
    """What a text of the pools must not be: every text of a validation or test split in the folder."""
    texts = set()
    for part in ("validation", "test"):
        for file in sorted((raw.made / "data").glob(f"*.{part}.jsonl.gz")):
            rows = map(json.loads, read_lines(file))
            texts |= {bare(row[field]) for row in rows for field in ("text", "text1", "text2") if field in row}
    return texts


def together(words: Iterable[str]) -> str:
    """Tokens as a sentence: no space before punctuation, inside brackets, quotes and before a clitic.

    >>> together("`` It 's late , '' she said ( again ) .".split())
    '"It\\'s late," she said (again).'
    """
    text = " ".join(words).replace("``", '"').replace("''", '"')
    text = re.sub(r'"\s*([^"]*?)\s*"', r'"\1"', text)
    text = re.sub(r"\s+’(?:\s+(?=(?:s|re|ve|ll|d|m|t)\b))?", "’", text)
    text = re.sub(r"\s+([,.;:!?%)\]]|n't\b|'(?:s|re|ve|ll|d|m)\b)", r"\1", text)
    return clean(re.sub(r"([(\[$])\s+", r"\1", text))


def split(text: str) -> Iterator[str]:
    """The sentences of a text; a full stop after an initial or a title ends none."""
    begun = ""
    for piece in re.split(r'(?<=[.!?])\s+(?=[A-Z"(])', clean(text)):
        begun = f"{begun} {piece}".strip()
        if not ABBREVIATED.search(begun):
            yield begun
            begun = ""
    if begun:
        yield begun


def _wikipedia(raw: Raw) -> Iterator[str]:
    for long, first, second in _wikisplit(raw):
        yield from (long, first, second)


def _wikisplit(raw: Raw) -> Iterator[tuple[str, str, str]]:
    for part in ("test", "tune", "validation"):
        for line in raw.text("wiki-split", f"{part}.tsv").split("\n"):
            if "<::::>" in line:
                long, short = line.split("\t")
                first, second = short.split("<::::>")
                yield together(long.split()), together(first.split()), together(second.split())


def _questions(raw: Raw) -> Iterator[str]:
    for name in DPR:
        for line in raw.text("anserini-tools", f"topics/topics.dpr.{name}.txt").split("\n"):
            if line.startswith("{"):
                yield clean(json.loads(line)["question"])
            elif line:
                yield clean(line.split("\t")[0])
    for name in MSMARCO:
        for line in raw.text("anserini-tools", f"topics/topics.{name}.txt").split("\n"):
            yield clean(line.partition("\t")[2])
    for name in BEIR:
        yield from _beir(raw, name)


def _claims(raw: Raw) -> Iterator[str]:
    yield from _beir(raw, "fever")
    yield from _beir(raw, "climate-fever")


def _beir(raw: Raw, name: str) -> Iterator[str]:
    packed = raw.bytes("anserini-tools", f"topics/topics.beir-v1.0.0-{name}.test.tsv.gz")
    for line in gzip.decompress(packed).decode().split("\n"):
        yield clean(line.partition("\t")[2])


def _nli(raw: Raw) -> Iterator[str]:
    for name in ("snli", "mnli"):
        for row in _json(raw, name):
            yield from (clean(row["premise"]), clean(row["hypothesis"]))


def _captions(raw: Raw) -> Iterator[str]:
    """One caption of each image: the first of the first image, the second of the second and so on."""
    for number, captions in enumerate(zip(*(_captions_of(raw, number) for number in range(1, 6)), strict=True)):
        yield captions[number % 5]


def _captions_of(raw: Raw, number: int) -> list[str]:
    packed = raw.bytes("multi30k", f"data/task2/raw/train.{number}.en.gz")
    return [clean(line) for line in gzip.decompress(packed).decode().split("\n")]


def _masc(raw: Raw) -> Iterator[str]:
    with _zip(raw, "masc_tagged") as file:
        kinds = (line.split() for line in file.read("masc_tagged/categories.txt").decode().splitlines())
        for name, kind in sorted(row for row in kinds if len(row) == 2 and row[0].startswith("written/")):
            if kind not in NOT_PROSE:
                for line in file.read(f"masc_tagged/{name}").decode("utf-8", "replace").splitlines():
                    yield together(word.rpartition("_")[0] for word in line.split())


def _abc_news(raw: Raw) -> Iterator[str]:
    with _zip(raw, "abc") as file:
        for part in ("rural", "science"):
            for line in file.read(f"abc/{part}.txt").decode("latin-1").splitlines():
                yield from split(line)


def _brown(raw: Raw) -> Iterator[str]:
    with _zip(raw, "brown") as file:
        for name in sorted(name for name in file.namelist() if re.fullmatch(r"brown/c[a-r]\d\d", name)):
            for line in file.read(name).decode("latin-1").splitlines():
                yield together(word.rpartition("/")[0] for word in line.split())


def _speeches(raw: Raw) -> Iterator[str]:
    with _zip(raw, "state_union") as file:
        for name in sorted(name for name in file.namelist() if name.endswith(".txt")):
            for line in file.read(name).decode("latin-1").splitlines():
                yield from split(line)


def _reviews(raw: Raw) -> Iterator[str]:
    texts = [data for _, data in raw.members("aclImdb", "aclImdb/train/unsup/")]
    for data in random.Random(0).sample(texts, 6000):
        yield from split(data.decode().replace("<br />", " "))


def _entailed(raw: Raw, name: str) -> Iterator[tuple[str, ...]]:
    """Premise, a hypothesis that follows and, where the premise has one, a hypothesis that contradicts."""
    hypotheses: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in _json(raw, name):
        hypotheses[clean(row["premise"])][row["label"]].append(clean(row["hypothesis"]))
    for premise, by_label in hypotheses.items():
        others = by_label["contradiction"]
        for number, hypothesis in enumerate(by_label["entailment"]):
            yield (premise, hypothesis, *([others[number % len(others)]] if others else []))


def _rte(raw: Raw) -> Iterator[tuple[str, str]]:
    for row in map(json.loads, read_lines(raw.made / "data" / "rte.train.jsonl.gz")):
        if row["label"] == "entailment":
            yield row["text1"], row["text2"]


def _quora(raw: Raw) -> Iterator[tuple[str, str]]:
    for part in ("eval", "test"):
        for row in csv.DictReader(io.StringIO(raw.text("Semantic-SAE", f"data/quora/{part}.csv"), newline="")):
            if row["is_duplicate"] == "1":
                yield clean(row["question1"]), clean(row["question2"])


def _rewritten(raw: Raw) -> Iterator[tuple[str, str]]:
    for long, first, second in _wikisplit(raw):
        if fits(long, 4) and len(f"{first} {second}") <= 640:
            yield long, f"{first} {second}"


def _titles(raw: Raw) -> Iterator[tuple[str, str]]:
    for row in map(json.loads, read_lines(raw.made / "data" / "ag_news.train.jsonl.gz")):
        title, found, description = row["text"].partition(" . ")
        if found:
            yield title, description


def _two_captions(raw: Raw) -> Iterator[tuple[str, str]]:
    """Two of the five captions of each image, drawn with one generator over all images."""
    rng = random.Random(0)
    for captions in zip(*(_captions_of(raw, number) for number in range(1, 6)), strict=True):
        one, other = rng.sample(captions, 2)
        if fits(one, 4) and fits(other, 4):
            yield one, other


def _json(raw: Raw, name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in raw.text("generative-nli", f"data/{name}/dev.jsonl").split("\n") if line]


def _zip(raw: Raw, name: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(raw.bytes("nltk_data", f"packages/corpora/{name}.zip")))


READERS: dict[str, Callable[[Raw], Iterator[str]]] = {
    "wikipedia": _wikipedia,
    "questions": _questions,
    "nli": _nli,
    "captions": _captions,
    "claims": _claims,
    "masc": _masc,
    "abc_news": _abc_news,
    "brown": _brown,
    "speeches": _speeches,
    "reviews": _reviews,
}
PAIR_READERS: dict[str, Callable[[Raw], Iterator[tuple[str, ...]]]] = {
    "snli": lambda raw: _entailed(raw, "snli"),
    "mnli": lambda raw: _entailed(raw, "mnli"),
    "rte": _rte,
    "quora": _quora,
    "wikisplit": _rewritten,
    "ag_news_title": _titles,
    "flickr30k_captions": _two_captions,
}
