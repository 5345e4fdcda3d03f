"""Three text embedders of other kinds than a transformer, built from the shared pool of unlabelled texts.

    python -m experiments.many_text.teachers            # builds what is missing, a minute or two, and scores each

    words   300 numbers: word vectors from positive pointwise mutual information, frequency-weighted mean
    lsa     400 numbers: latent semantic analysis of the words that at most a twentieth of the texts have
    chars   256 numbers: the same of runs of three to five characters, hashed

They are kept as arrays and JSON under DISTILVEC_WORK (see harness/script.py) and are functions from texts to float32
[n, width], vectors of length 1 (zeros for a text of which nothing is known). Started in the folder experiments/, a
recipe names them `call: text_teachers:words`. Settings were chosen on the validation splits of STS-B and SICK: singular
values left out of the word vectors and a weight of 1e-4 for `words`; no word pairs and no frequent words for `lsa`.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from experiments.harness.records import WORK
from experiments.harness.script import shared
from experiments.harness.texts import shared_rows
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer
from sklearn.utils.extmath import randomized_svd

from distilvec.errors import EnvironmentProblem

Vectors = npt.NDArray[np.float32]
FOLDER = WORK / "text_teachers"
SEED = 0
#: What each is built with; `texts` are those that the decomposition sees, a seeded sample of the pool.
SETTINGS: dict[str, dict[str, Any]] = {
    "words": {"width": 300, "vocabulary": 30_000, "window": 5, "smoothing": 0.75, "weight": 1e-4, "least": 3},
    "lsa": {"width": 400, "vocabulary": 30_000, "least": 3, "most": 0.05, "texts": 200_000},
    "chars": {"width": 256, "buckets": 2**16, "texts": 100_000},
}
#: For trying things out.
QUICK: dict[str, dict[str, Any]] = {
    "words": {**SETTINGS["words"], "width": 24, "vocabulary": 1000},
    "lsa": {**SETTINGS["lsa"], "width": 32, "vocabulary": 1500},
    "chars": {**SETTINGS["chars"], "width": 16, "buckets": 2**12},
}
_WORD = re.compile(r"\w+(?:'\w+)?")


def pool(limit: int | None = None) -> list[str]:
    """The texts of the shared sentences and pairs, each once."""
    texts: dict[str, None] = {}
    for name, columns in (("sentences", ("text",)), ("pairs", ("anchor", "positive", "negative"))):
        for row in shared_rows(name):
            texts.update((row[column], None) for column in columns if row.get(column))
            if limit is not None and len(texts) >= limit:
                return list(texts)[:limit]
    return list(texts)


def units(vectors: Any) -> Vectors:
    """Rows of length 1; rows of zeros stay."""
    vectors = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 1e-8, lengths, 1.0), dtype=np.float32)


class Embedder:
    """From texts to vectors; `arrays` and `known` are all it consists of.

    Attributes:
        parameters: numbers that were learnt from the pool.
    """

    def __init__(self, arrays: dict[str, npt.NDArray[Any]], known: dict[str, Any]) -> None:
        self.arrays, self.known = arrays, known
        self.parameters = int(sum(array.size for array in arrays.values()))

    def __call__(self, texts: Sequence[str]) -> Vectors:
        width = int(self.known["settings"]["width"])
        parts = [units(self.embed(texts[start : start + 2048])) for start in range(0, len(texts), 2048)]
        return np.concatenate(parts) if parts else np.empty((0, width), dtype=np.float32)

    def embed(self, texts: Sequence[str]) -> Any:
        raise NotImplementedError


class Words(Embedder):
    """Weighted mean of word vectors without its first principal direction (Arora et al. 2017)."""

    def __init__(self, arrays: dict[str, npt.NDArray[Any]], known: dict[str, Any]) -> None:
        super().__init__(arrays, known)
        self.row = {word: number for number, word in enumerate(known["vocabulary"])}

    def embed(self, texts: Sequence[str]) -> Any:
        means = self.mean(texts)
        return means - (means @ self.arrays["common"])[:, None] * self.arrays["common"]

    def mean(self, texts: Sequence[str]) -> Vectors:
        """sum_w a / (a + p(w)) v_w / number of known words."""
        found = [[self.row[word] for word in split(text) if word in self.row] for text in texts]
        starts = np.concatenate([[0], np.cumsum([len(each) for each in found])])
        columns = np.array([number for each in found for number in each], dtype=np.int64)
        shares = np.repeat(1 / np.maximum(np.diff(starts), 1), np.diff(starts)).astype(np.float32)
        weights = self.arrays["weights"][columns] * shares
        bag = sparse.csr_matrix((weights, columns, starts), shape=(len(texts), len(self.row)))
        return np.asarray(bag @ self.arrays["vectors"], dtype=np.float32)


class Lsa(Embedder):
    """TF-IDF of words, onto the first singular directions of the pool."""

    def __init__(self, arrays: dict[str, npt.NDArray[Any]], known: dict[str, Any]) -> None:
        super().__init__(arrays, known)
        self.counter = self.make_counter()

    def make_counter(self) -> Any:
        return CountVectorizer(vocabulary=self.known["vocabulary"], token_pattern=_WORD.pattern)

    def embed(self, texts: Sequence[str]) -> Any:
        return weighed(self.counter.transform(texts), self.arrays["idf"]) @ self.arrays["directions"]


class Chars(Lsa):
    """TF-IDF of hashed runs of characters within words, onto the first singular directions of the pool."""

    def make_counter(self) -> Any:
        return hashing(self.known["settings"])


KINDS: dict[str, type[Embedder]] = {"words": Words, "lsa": Lsa, "chars": Chars}


def split(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def hashing(settings: dict[str, Any]) -> Any:
    return HashingVectorizer(
        analyzer="char_wb", ngram_range=(3, 5), n_features=settings["buckets"], alternate_sign=False, norm=None
    )


def weighed(counts: Any, idf: npt.NDArray[Any]) -> Any:
    """(1 + log count) * idf, rows of length 1; sparse float32."""
    values = sparse.csr_matrix(counts, dtype=np.float32, copy=True)
    values.data = (1 + np.log(values.data)) * idf[values.indices]
    lengths = np.sqrt(np.asarray(values.multiply(values).sum(1)).ravel())
    values.data /= np.repeat(np.maximum(lengths, 1e-8), np.diff(values.indptr)).astype(np.float32)
    return values


def inverse_frequency(counts: Any) -> Vectors:
    """log((1 + n) / (1 + texts with it)) + 1."""
    seen = np.bincount(counts.indices, minlength=counts.shape[1])
    return np.asarray(np.log((1 + counts.shape[0]) / (1 + seen)) + 1, dtype=np.float32)


def build_words(texts: list[str], settings: dict[str, Any]) -> Words:
    """Left singular vectors of the matrix max(0, log(n(w, c) / (n(w) p(c)))), p(c) ~ n(c)^smoothing (Levy et al.
    2015)."""
    split_texts = [split(text) for text in texts]
    counted: dict[str, int] = {}
    for words_of in split_texts:
        for word in words_of:
            counted[word] = counted.get(word, 0) + 1
    often = sorted((word for word, count in counted.items() if count >= settings["least"]), key=counted.__getitem__)
    vocabulary = often[::-1][: settings["vocabulary"]]
    row = {word: number for number, word in enumerate(vocabulary)}
    ids = np.array([row.get(word, -1) for words_of in split_texts for word in words_of], dtype=np.int32)
    lines = np.repeat(np.arange(len(texts), dtype=np.int32), [len(words_of) for words_of in split_texts])
    del split_texts
    matrix = positive_information(cooccurrences(ids, lines, len(vocabulary), settings["window"]), settings["smoothing"])
    left, _, _ = randomized_svd(matrix, settings["width"], n_iter=4, random_state=SEED)
    share = np.array([counted[word] for word in vocabulary]) / sum(counted.values())
    arrays = {
        "vectors": np.asarray(left, dtype=np.float32),
        "weights": np.asarray(settings["weight"] / (settings["weight"] + share), dtype=np.float32),
    }
    made = Words(arrays, {"settings": settings, "vocabulary": vocabulary})
    means = made.mean([texts[row] for row in sample(len(texts), 20_000)])
    _, vectors = np.linalg.eigh(means.T.astype(np.float64) @ means)
    return Words({**arrays, "common": vectors[:, -1].astype(np.float32)}, made.known)


def cooccurrences(ids: npt.NDArray[Any], lines: npt.NDArray[Any], size: int, window: int) -> Any:
    """Symmetric counts of known words within a window of one text; a pair d words apart counts (window + 1 - d) /
    window."""
    total = sparse.csr_matrix((size, size), dtype=np.float32)
    for apart in range(1, window + 1):
        first, second = ids[:-apart], ids[apart:]
        near = (first >= 0) & (second >= 0) & (lines[:-apart] == lines[apart:])
        weight = np.full(int(near.sum()), (window + 1 - apart) / window, dtype=np.float32)
        total = total + sparse.csr_matrix((weight, (first[near], second[near])), shape=(size, size))
    return sparse.csr_matrix(total + total.T)


def positive_information(counts: Any, smoothing: float) -> Any:
    """Positive pointwise mutual information of a count matrix, sparse float32."""
    found = counts.tocoo()
    of_word = np.asarray(counts.sum(1)).ravel()
    of_context = of_word**smoothing
    shared_by_chance = of_word[found.row] * (of_context / of_context.sum())[found.col]
    values = np.log(found.data / shared_by_chance)
    kept = values > 0
    return sparse.csr_matrix(
        (values[kept].astype(np.float32), (found.row[kept], found.col[kept])), shape=counts.shape, dtype=np.float32
    )


def build_lsa(texts: list[str], settings: dict[str, Any]) -> Lsa:
    seen = [texts[row] for row in sample(len(texts), settings["texts"])]
    counter = CountVectorizer(
        token_pattern=_WORD.pattern,
        min_df=settings["least"],
        max_df=settings["most"],
        max_features=settings["vocabulary"],
    )
    counts = counter.fit_transform(seen)
    known = {"settings": settings, "vocabulary": counter.get_feature_names_out().tolist()}
    return Lsa(directions(counts, settings["width"]), known)


def build_chars(texts: list[str], settings: dict[str, Any]) -> Chars:
    seen = [texts[row] for row in sample(len(texts), settings["texts"])]
    return Chars(directions(hashing(settings).transform(seen), settings["width"]), {"settings": settings})


def directions(counts: Any, width: int) -> dict[str, npt.NDArray[Any]]:
    """Inverse document frequencies, and the right singular vectors [features, width] of the weighed counts."""
    idf = inverse_frequency(counts)
    _, _, right = randomized_svd(weighed(counts, idf), width, n_iter=3, random_state=SEED)
    return {"idf": idf, "directions": np.ascontiguousarray(right.T, dtype=np.float32)}


def sample(count: int, limit: int) -> npt.NDArray[np.int64]:
    """Sorted row numbers, a seeded sample of at most `limit`."""
    return np.sort(np.random.default_rng(SEED).permutation(count)[:limit])


BUILDERS: dict[str, Callable[[list[str], dict[str, Any]], Embedder]] = {
    "words": build_words,
    "lsa": build_lsa,
    "chars": build_chars,
}


def build(folder: Path = FOLDER, settings: dict[str, dict[str, Any]] = SETTINGS, limit: int | None = None) -> None:
    """Build and keep what is not there, or was built otherwise."""
    texts: list[str] = []
    for name, make in BUILDERS.items():
        config = {"settings": settings[name], "limit": limit, "seed": SEED}
        place = folder / name
        if (place / "config.json").exists() and json.loads((place / "config.json").read_text())["built"] == config:
            continue
        texts = texts or pool(limit)
        began = time.monotonic()
        made = make(texts, settings[name])
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for key, array in made.arrays.items():
            np.save(place / f"{key}.npy", array)
        (place / "known.json").write_text(json.dumps(made.known), encoding="utf-8")
        seconds = round(time.monotonic() - began, 1)
        about = {"built": config, "texts": len(texts), "parameters": made.parameters, "seconds": seconds}
        (place / "config.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {made.parameters:,} numbers from {len(texts):,} texts in {seconds:.0f} s", flush=True)


@functools.cache
def load(name: str, folder: Path = FOLDER) -> Embedder:
    """One that was built.

    Raises:
        EnvironmentProblem: it was not.
    """
    place = folder / name
    if not (place / "config.json").exists():
        raise EnvironmentProblem(
            f"the text teacher {name} is not built", where=str(place), remedy="python -m experiments.many_text.teachers"
        )
    arrays = {file.stem: np.load(file, allow_pickle=False) for file in sorted(place.glob("*.npy"))}
    return KINDS[name](arrays, json.loads((place / "known.json").read_text(encoding="utf-8")))


def words(texts: Sequence[str]) -> Vectors:
    """[n, 300]"""
    return load("words")(texts)


def lsa(texts: Sequence[str]) -> Vectors:
    """[n, 400]"""
    return load("lsa")(texts)


def chars(texts: Sequence[str]) -> Vectors:
    """[n, 256]"""
    return load("chars")(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    from distilvec.judging import judge, talas_tasks

    build()
    tasks = talas_tasks(shared() / "data", names=["stsb", "sick"])
    found = judge({name: load(name) for name in BUILDERS}, tasks)
    for name, scores in found.scores.items():
        print(name, ", ".join(f"{task} {100 * score.value:.2f}" for task, score in scores.items()))


if __name__ == "__main__":
    main()
