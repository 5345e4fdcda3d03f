"""The labelled sets of text: from the files of their public repositories to rows.

Every builder takes `raw`, which hands out a file of a repository as bytes, and returns the files of the data folder
that it makes, as bytes by name. Text is cleaned (`formats.clean`) and nothing else is changed unless said.
"""

from __future__ import annotations

import csv
import io
import json
import random
import re
from collections.abc import Iterable, Iterator
from typing import Any

from experiments.data.formats import clean, jsonl, read_lines
from experiments.data.sources import Raw

Files = dict[str, bytes]

SEMEVAL_FOLDER = "dataset/Subtask_A/downloaded"
#: The subtask A files of 2013 to 2016 but 2016devtest, whose tweets TweetEval does not have.
SEMEVAL = (
    "2013dev",
    "2013test",
    "2013train",
    "2014sarcasm",
    "2014test",
    "2015test",
    "2015train",
    "2016dev",
    "2016test",
    "2016train",
)


def banking77(raw: Raw) -> Files:
    def rows(split: str) -> Iterator[dict[str, Any]]:
        for row in _csv(raw.text("task-specific-datasets", f"banking_data/{split}.csv")):
            yield {"text": clean(row["text"]), "label": row["category"]}

    return {f"banking77.{split}.jsonl.gz": jsonl(rows(split)) for split in ("train", "test")}


def emotion(raw: Raw) -> Files:
    def rows(part: str) -> Iterator[dict[str, Any]]:
        for line in _lines(raw.text("AttExplainer", f"data/emotion/{part}.txt"))[1:]:
            text, label = line.rsplit(";", 1)
            yield {"text": clean(text), "label": label.strip()}

    parts = {"train": "train", "validation": "val", "test": "test"}
    return {f"emotion.{split}.jsonl.gz": jsonl(rows(part)) for split, part in parts.items()}


def mrpc(raw: Raw) -> Files:
    """The official train pairs cut in two by the ids of GLUE's development split."""
    folder = "SentEval/data/downstream/MRPC/msr_paraphrase"
    held_out = {tuple(row[1:3]) for row in _tabs(raw.text("PLUE", "datasets/MRPC/dev.tsv"))[1:]}
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
    for part in ("train", "test"):
        for label, first, second, text1, text2 in _tabs(raw.text("SimCSE", f"{folder}_{part}.txt"))[1:]:
            split = "validation" if part == "train" and (first, second) in held_out else part
            rows[split].append({"text1": clean(text1), "text2": clean(text2), "label": int(label)})
    return {f"mrpc.{split}.jsonl.gz": jsonl(found) for split, found in rows.items()}


def scitail(raw: Raw) -> Files:
    names = {"entailment": "entails", "not_entailment": "neutral"}
    rows = [
        {"text1": clean(row["premise"]), "text2": clean(row["hypothesis"]), "label": names[row["label"]]}
        for row in _json(raw.text("generative-nli", "data/scitail/test.jsonl"))
    ]
    return {"scitail.test.jsonl.gz": jsonl(rows)}


def anli_r2(raw: Raw) -> Files:
    return {"anli_r2.test.jsonl.gz": jsonl(_tagged(raw, "anli", "r2_test"))}


def rte(raw: Raw) -> Files:
    splits = {"train": "train", "validation": "dev"}
    return {f"rte.{split}.jsonl.gz": jsonl(_tagged(raw, "rte", tag)) for split, tag in splits.items()}


def wic(raw: Raw) -> Files:
    def rows(part: str) -> Iterator[dict[str, Any]]:
        folder = f"HW2/WiC_dataset/{part}/{part}"
        gold = _lines(raw.text("CS577-NLP", f"{folder}.gold.txt"))
        for row, truth in zip(_tabs(raw.text("CS577-NLP", f"{folder}.data.txt")), gold, strict=True):
            word, pos, places, text1, text2 = row
            index1, index2 = places.split("-")
            yield {
                "text1": clean(text1),
                "text2": clean(text2),
                "label": int(truth.strip() == "T"),
                "word": clean(word),
                "pos": pos,
                "index1": int(index1),
                "index2": int(index2),
            }

    parts = {"train": "train", "validation": "dev", "test": "test"}
    return {f"wic.{split}.jsonl.gz": jsonl(rows(part)) for split, part in parts.items()}


def sick(raw: Raw) -> Files:
    """All pairs from one file; which split a pair is in, by its number, from another."""
    parts = {"train": "train", "validation": "trial", "test": "test_annotated"}
    pairs = {}
    for row in _tabs(raw.text("sick_dataset", "SICK.txt"))[1:]:
        number, text1, text2, score, label = row[:5]
        pairs[number] = {"text1": clean(text1), "text2": clean(text2), "score": float(score), "label": label.lower()}
    files = {}
    for split, part in parts.items():
        numbers = [row[0] for row in _tabs(raw.text("SimCSE", f"SentEval/data/downstream/SICK/SICK_{part}.txt"))[1:]]
        files[f"sick.{split}.jsonl.gz"] = jsonl(pairs[number] for number in numbers)
    return files


def sts12(raw: Raw) -> Files:
    folder = "data/downstream/STS/STS12-en-test/test-gold/STS"
    rows = []
    for subset in ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"):
        scores = _lines(raw.text("SynWMD", f"{folder}.gs.{subset}.txt"))
        pairs = _tabs(raw.text("SynWMD", f"{folder}.input.{subset}.txt"))
        for pair, score in zip(pairs, scores, strict=True):
            rows.append({"text1": clean(pair[0]), "text2": clean(pair[1]), "score": float(score), "subset": subset})
    return {"sts12.test.jsonl.gz": jsonl(rows)}


def stsb(raw: Raw) -> Files:
    def rows(part: str) -> Iterator[dict[str, Any]]:
        for row in _tabs(raw.text("SynWMD", f"data/downstream/STS/STSBenchmark/stsbenchmark/sts-{part}.csv")):
            genre, file, year, _, score, text1, text2 = row[:7]
            yield {
                "text1": clean(text1),
                "text2": clean(text2),
                "score": float(score),
                "genre": genre,
                "file": file,
                "year": year,
            }

    parts = {"train": "train", "validation": "dev", "test": "test"}
    return {f"stsb.{split}.jsonl.gz": jsonl(rows(part)) for split, part in parts.items()}


def control(raw: Raw) -> Files:
    def rows(part: str) -> Iterator[dict[str, Any]]:
        for row in _json(raw.text("ConTRoL-dataset", f"data/{part}.jsonl")):
            names = {"e": "entailment", "c": "contradiction", "n": "neutral"}
            label = names.get(row["label"], row["label"])
            yield {"text1": clean(row["premise"]), "text2": clean(row["hypothesis"]), "label": label}

    return {f"control.{split}.jsonl.gz": jsonl(rows(part)) for split, part in (("validation", "dev"), ("test", "test"))}


def sst2(raw: Raw) -> Files:
    def rows(part: str) -> Iterator[dict[str, Any]]:
        for text, label in _tabs(raw.text("SimCSE", f"SentEval/data/downstream/SST/binary/sentiment-{part}")):
            yield {"text": clean(text), "label": int(label)}

    parts = {"train": "train", "validation": "dev", "test": "test"}
    return {f"sst2.{split}.jsonl.gz": jsonl(rows(part)) for split, part in parts.items()}


def ag_news(raw: Raw) -> Files:
    """The train rows that a study of noisy labels drew, with the true label."""
    names = ("World", "Sports", "Business", "Sci/Tech")

    def rows(part: str) -> Iterator[dict[str, Any]]:
        for row in _csv(raw.text("NoisyAG-News", f"dataset/{part}.csv")):
            yield {"text": clean(row["text"]), "label": names[int(row["gt"])]}

    parts = {"train": "samples10000valMed", "test": "samplesTest"}
    return {f"ag_news.{split}.jsonl.gz": jsonl(rows(part)) for split, part in parts.items()}


def cranfield(raw: Raw) -> Files:
    """Documents without text (471 and 995) and their judgement are left out; queries are numbered in file order."""
    documents = []
    for number, entry in enumerate(re.split(r"^\.I \d+\n", raw.text("Simple_IR", "cran.all.1400"), flags=re.M)[1:], 1):
        parts = dict.fromkeys("TABW", "")  # a letter may come twice (576, 578): its parts are one after the other
        for letter, part in re.findall(r"^\.([TABW])\n(.*?)(?=^\.[TABW]\n|\Z)", entry, flags=re.M | re.S):
            parts[letter] += part
        title = clean(parts["T"])
        text = clean(parts["W"]).removeprefix(title).strip()
        if text:
            documents.append({"_id": str(number), "title": title, "text": text})
    kept = {document["_id"] for document in documents}
    queries = [
        {"_id": str(number), "text": clean(entry.split(".W\n", 1)[1])}
        for number, entry in enumerate(re.split(r"^\.I \d+\n", raw.text("Simple_IR", "cran.qry"), flags=re.M)[1:], 1)
    ]
    judged = []
    for line in _lines(raw.text("Simple_IR", "cranqrel")):
        query, document, code = line.split()
        if document in kept:
            relevance = 1 if int(code) == -1 else 5 - int(code)
            judged.append({"query_id": query, "doc_id": document, "relevance": relevance, "code": int(code)})
    return {
        "cranfield.corpus.jsonl.gz": jsonl(documents),
        "cranfield.queries.jsonl.gz": jsonl(queries),
        "cranfield.qrels.jsonl.gz": jsonl(judged),
    }


def tweeteval_sentiment(raw: Raw) -> Files:
    """Validation and test as TweetEval has them; train rebuilt from the tweets of SemEval-2017 task 4."""
    names = ("negative", "neutral", "positive")
    rows: dict[str, list[dict[str, Any]]] = {}
    for split, part in (("validation", "val"), ("test", "test")):
        texts = raw.text("tweeteval", f"datasets/sentiment/{part}_text.txt").split("\n")
        labels = raw.text("tweeteval", f"datasets/sentiment/{part}_labels.txt").split()
        rows[split] = [
            {"text": clean(text), "label": names[int(label)]} for text, label in zip(texts, labels, strict=False)
        ]
    tweets: dict[str, tuple[str, str]] = {}
    for year in SEMEVAL:
        for line in _lines(raw.text("datastories-semeval2017-task4", f"{SEMEVAL_FOLDER}/twitter-{year}-A.tsv")):
            number, label, text = line.split("\t", 2)
            tweets.setdefault(number, (masked(text), label))
    held_out = {_bare(row["text"]) for split in ("validation", "test") for row in rows[split]}
    rows["train"] = [{"text": text, "label": label} for text, label in tweets.values() if _bare(text) not in held_out]
    random.Random(0).shuffle(rows["train"])
    return {f"tweeteval_sentiment.{split}.jsonl.gz": jsonl(rows[split]) for split in ("train", "validation", "test")}


def masked(tweet: str) -> str:
    """User names as @user, words that begin with http left out: TweetEval's form.

    >>> masked("@ann: look http://t.co/x  here")
    '@user: look here'
    """
    words = re.sub(r'(?<!\S)"?@\w+', "@user", tweet).split()
    return clean(" ".join(word for word in words if not word.startswith("http")))


def _bare(tweet: str) -> str:
    """Letters and digits without user names and literal escapes: what one tweet keeps in two collections."""
    return re.sub(r"[\W_]+", "", re.sub(r"@\w+|\\u\w{4}", "", tweet.lower()))


def imdb(raw: Raw) -> Files:
    """5,000 reviews of each split, half of them negative, drawn from the names in sorted order."""
    files = {}
    for split in ("train", "test"):
        reviews = {
            path.removeprefix(f"aclImdb/{split}/").removesuffix(".txt"): data
            for sentiment in ("neg", "pos")
            for path, data in raw.members("aclImdb", f"aclImdb/{split}/{sentiment}/")
        }
        rng = random.Random(0)
        drawn = [
            name
            for sentiment in ("neg", "pos")
            for name in rng.sample(sorted(name for name in reviews if name.startswith(sentiment)), 2500)
        ]
        rng.shuffle(drawn)
        files[f"imdb.{split}.jsonl.gz"] = jsonl(
            {"text": clean(reviews[name].decode().replace("<br />", " ")), "label": name[:3], "id": name}
            for name in drawn
        )
    return files


def talas_corpus(raw: Raw) -> Files:
    """Texts of three train splits as in Appendix D of TALAS's paper: drawn, pairs taken apart, each text once."""
    rng = random.Random(0)
    texts: dict[str, str] = {}
    for domain, count in (("emotion", 5000), ("stsb", 2500), ("wic", 2500)):
        rows = [json.loads(line) for line in read_lines(raw.made / "data" / f"{domain}.train.jsonl.gz")]
        for row in rng.sample(rows, count):
            for field in ("text", "text1", "text2"):
                if field in row:
                    texts.setdefault(row[field], domain)
    corpus = [{"text": text, "domain": domain} for text, domain in texts.items()]
    rng.shuffle(corpus)
    return {"talas_corpus.jsonl.gz": jsonl(corpus)}


def _tagged(raw: Raw, name: str, tag: str) -> Iterator[dict[str, Any]]:
    for row in _json(raw.text("generative-nli", f"data/{name}/test.jsonl")):
        if row["tag"] == tag:
            yield {"text1": clean(row["premise"]), "text2": clean(row["hypothesis"]), "label": row["label"]}


def _csv(text: str) -> Iterable[dict[str, str]]:
    return csv.DictReader(io.StringIO(text, newline=""))


def _json(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _lines(text)]


def _tabs(text: str) -> list[list[str]]:
    return [line.split("\t") for line in _lines(text)]


def _lines(text: str) -> list[str]:
    """The lines, ended by line feeds only: a text may hold other separators of Unicode."""
    return [line.rstrip("\r") for line in text.split("\n") if line.strip()]
