"""New models on an old index: what `old_index` adapts, and what it compares with."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import WORK
from experiments.harness.texts import shared_rows

from distilvec.flow.demo import demo_teacher
from distilvec.indexes import adapt
from distilvec.indexes.rows import top
from distilvec.students import load_student, ship, shrink, static

QUERIES, SENTENCES, SKIPPED = 1_000, 11_000, 20_000
SIZES = {"queries": QUERIES, "sentences": SENTENCES}
#: What each is; the last has nothing of the old model but its tokenizer.
MODELS = {
    "two layers": "two of MiniLM's six layers, 384 numbers, as cut",
    "static": "table of MiniLM's word vectors, 256 numbers",
    "latent semantic": "singular vectors of 20,000 other sentences' words, 256 numbers",
}


@functools.cache
def index() -> tuple[list[str], list[dict[str, str]]]:
    """Texts of the index, and queries with their documents; anchors are no texts of the index."""
    pairs = list(shared_rows("pairs"))
    order = np.random.default_rng(7).permutation(len(pairs))
    chosen: dict[str, str] = {}
    for row in order:
        pair = pairs[row]
        if len(chosen) == QUERIES:
            break
        if pair["anchor"] != pair["positive"] and pair["positive"] not in chosen:
            chosen[pair["positive"]] = pair["anchor"]
    sentences = [row["text"] for row in shared_rows("sentences")][SKIPPED:]
    drawn = np.random.default_rng(8).permutation(len(sentences))[:SENTENCES]
    asked = set(chosen.values())
    texts = list(dict.fromkeys([*chosen, *(sentences[row] for row in drawn if sentences[row] not in asked)]))
    return texts, [{"query": anchor, "document": positive} for positive, anchor in chosen.items()]


def old_vectors(kind: str) -> np.ndarray:
    """Of the index ("texts") or of the queries, by the old model."""
    file = WORK / "old_index" / "adapt" / f"{kind}.npy"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        texts, queries = index()
        asked = texts if kind == "texts" else [row["query"] for row in queries]
        np.save(file, load_student(demo_teacher(), device="cpu").encode(asked, show_progress_bar=False))
    return np.load(file)


def new_model(name: str) -> Path:
    """Its folder."""
    folder = WORK / "old_index" / "new" / name.replace(" ", "-")
    if not (folder / "modules.json").exists():
        if name == "latent semantic":
            ship(latent_semantic(), folder)
        else:
            ship(static(demo_teacher()) if name == "static" else shrink(demo_teacher(), layers=2)[0], folder)
    return folder


def latent_semantic(width: int = 256) -> Any:
    """Word vectors from the words of sentences alone: singular vectors of their tf-idf matrix, as a static model."""
    import torch
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import svds
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(demo_teacher()) / "tokenizer.json"))
    tokenizer.no_padding()
    texts = [row["text"] for row, _ in zip(shared_rows("sentences"), range(SKIPPED), strict=False)]
    found = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    lengths = [len(ids) for ids in found]
    where = np.repeat(np.arange(len(texts)), lengths), np.concatenate([np.array(ids, np.int64) for ids in found])
    words = csr_array((np.ones(sum(lengths)), where), shape=(len(texts), tokenizer.get_vocab_size()))
    rarity = np.log(len(texts) / (1 + (words > 0).sum(axis=0)))
    _, strength, axes = svds(words * rarity, k=width, random_state=0)
    table = torch.from_numpy((axes.T * rarity[:, None] / strength.mean()).astype(np.float32).copy())
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=table)], device="cpu")


def adapted(name: str, seed: int) -> dict[str, Any]:
    """A new model on the old index, and the same queries on an index of its own."""
    texts, queries = index()
    with tempfile.TemporaryDirectory() as place:
        found = adapt(
            new_model(name),
            old_vectors("texts"),
            texts,
            Path(place) / "model",
            queries=queries,
            query_vectors=old_vectors("queries"),
            seed=seed,
            device="cpu",
        )
    model = load_student(new_model(name), device="cpu")
    asked, documents = (
        model.encode(each, show_progress_bar=False) for each in ([row["query"] for row in queries], texts)
    )
    rows = {text: row for row, text in enumerate(texts)}
    right = np.array([rows[row["document"]] for row in queries])
    own = float((top(asked, documents) == right[:, None]).any(axis=1).mean())
    return {**found.to_dict(), "model": name, "about": MODELS[name], "own_index_recall": own}
