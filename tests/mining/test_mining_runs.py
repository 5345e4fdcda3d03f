"""Whole runs of mining: resumed, in blocks, and what they count."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.functions import lengths
from tests.store.rows import CARD, VECTORS

import distilvec
from distilvec.corpus import Corpus, content_keys
from distilvec.flow import mine as mining
from distilvec.mining.sides import Side
from distilvec.recipe import Recipe
from distilvec.store import SignalStore


def test_mine_writes_every_pair(tmp_path: Path, tiny_bert: Path) -> None:
    """Also those whose query is a text that other pairs are trained on."""
    draw = np.random.default_rng(0)
    pairs = {tuple(sorted(draw.choice(60, 2, replace=False).tolist())) for _ in range(150)}
    rows = [{"q": f"question number {a}", "a": f"question number {b}"} for a, b in pairs]
    found = distilvec.mine(
        lengths, {"path": rows, "text": ["q", "a"], "holdout": 0.2}, tmp_path / "mined", ranks=[1, 9]
    )
    written = [json.loads(line) for line in found.file.read_text().splitlines()]
    one, other = found.columns[:2]
    assert {(row[one], row[other]) for row in written} == {(row["q"], row["a"]) for row in rows}
    assert found.pairs == len(written) == len(rows) and found.shared > 0


def recipe_of(folder: Path, pairs: list[dict[str, str]], output: str, holdout: float = 0.0, **options: Any) -> Recipe:
    """Mining with a random vector for each text."""
    texts = sorted({text for pair in pairs for text in pair.values()})
    np.save(folder / "vectors.npy", np.random.default_rng(2).standard_normal((len(texts), 24)).astype(np.float32))
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    given = {"name": "given", "vectors": str(folder / "vectors.npy"), "texts": str(folder / "texts.txt")}
    return Recipe.build(
        {
            "corpus": {"path": str(folder / "pairs.jsonl"), "text": ["q", "d"], "holdout": holdout},
            "teachers": [given],
            "mining": {"relative_margin": None, "duplicates": None, **options},
            "output": str(folder / output),
        }
    )


def mined(file: Path) -> list[list[str]]:
    """Query, positive and negatives of each row."""
    rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    return [[value for name, value in row.items() if name != "similarities"] for row in rows]


def test_mining_resumes_after_the_rows_of_its_store_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [{"q": f"question {n}", "d": f"answer {n}"} for n in range(100)]
    monkeypatch.setattr(mining, "QUERIES", 64)
    calls = Counter[str]()
    search = mining.nearest

    def dies(*given: Any, **options: Any) -> Any:
        calls["searches"] += 1
        if calls["searches"] == 2:
            raise KeyboardInterrupt
        return search(*given, **options)

    recipe = recipe_of(tmp_path, pairs, "cut")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(mining, "nearest", dies)
        mining.mine_recipe(recipe)
    store = SignalStore.open(tmp_path / "cut/stores/given")
    keys, vectors = store.keys(np.arange(len(store))), store.read(np.arange(len(store)))
    for file in store.path.glob("sentence-*"):
        file.unlink()
    for name, rows in (("z", slice(0, 77)), ("a", slice(77, None))):  # as two writers would have left them
        with store.writer(name) as writer:
            writer.add(keys[rows], vectors[rows])
    whole = mined(mining.mine_recipe(recipe_of(tmp_path, pairs, "whole")).file)
    assert mined(mining.mine_recipe(recipe).file) == whole


def test_frequent_query_does_not_limit_the_search_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [{"q": "the same" if n % 3 == 0 else f"question {n}", "d": f"answer {n}"} for n in range(90)]
    options = {"ranks": (1, 10), "random": 0.4}
    whole = mining.mine_recipe(recipe_of(tmp_path, pairs, "whole", **options))
    monkeypatch.setattr(mining, "NEIGHBOURS", 1000)
    held: list[tuple[int, int]] = []
    search = mining.nearest

    def noted(queries: np.ndarray, documents: Any, count: int, **given: Any) -> Any:
        held.append((len(queries), count))
        return search(queries, documents, count, **given)

    monkeypatch.setattr(mining, "nearest", noted)
    found = mining.mine_recipe(recipe_of(tmp_path, pairs, "small", **options))
    assert sum(queries for queries, _ in held) == 90 and max(queries * count for queries, count in held) <= 1250
    assert len(held) < 5, "those with few answers are searched together"
    assert mined(found.file) == mined(whole.file) and found.taken == whole.taken


def test_equal_pairs_count_as_one_answer(tmp_path: Path) -> None:
    pairs = [{"q": "one", "d": "yes"}] * 3 + [{"q": "one", "d": "no"}, {"q": "two", "d": "yes"}]
    rows = [row for pair in pairs for row in (pair["q"], pair["d"])]
    keys = np.stack([np.frombuffer(text.encode().ljust(16), np.uint8) for text in rows])
    store = SignalStore.create(tmp_path, CARD, 8)
    with store.writer() as writer:
        writer.add(*(values[:4] for values in (np.unique(keys, axis=0), VECTORS)))
    store.refresh()
    corpus: Any = SimpleNamespace(groups=np.arange(10) // 2, roles=np.arange(10) % 2, teacher_keys=keys, prompts={})
    side = Side(corpus, store, np.arange(10), None)
    asked = side.block(side.asked)
    pairs_met = list(zip(asked.rows.tolist(), asked.own.tolist(), strict=True))
    assert len(pairs_met) == len(set(pairs_met)) == 4 * 2 + 1


def test_held_out_pairs_with_trained_answers_are_counted(tmp_path: Path) -> None:
    pairs = [{"q": f"question {n}", "d": f"answer {n % 12}"} for n in range(60)]
    found = mining.mine_recipe(recipe_of(tmp_path, pairs, "out", holdout=0.3))
    assert found.unknown == 0 < found.shared == found.none
    assert f"{found.shared} held-out pairs are without because other pairs" in found.text()
    assert "no vector" not in found.text()


def test_texts_behind_prompts_are_recognised(tmp_path: Path) -> None:
    """The query's own text, its answer among further documents, and held-out texts, whatever stands before them."""
    pairs = [{"q": f"text {n}", "d": f"text {n + 1}"} for n in range(40)]
    pairs += [{"q": f"question {n}", "d": f"answer {n}"} for n in range(40)]
    for name, rows in (("pairs", pairs), ("more", [{"text": pair["d"]} for pair in pairs])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    part = {"path": str(tmp_path / "pairs.jsonl"), "name": "p", "prompt": ["query: ", "passage: "]}
    recipe = Recipe.build(
        {
            "corpus": {"parts": [part], "text": ["q", "d"], "holdout": 0.3},
            "teachers": [{"name": "lengths", "call": "tests.functions:lengths"}],
            "mining": {
                "documents": {"path": str(tmp_path / "more.jsonl")},
                "negatives": 70,
                "relative_margin": None,
                "duplicates": None,
            },
            "output": str(tmp_path / "out"),
        }
    )
    found = mining.mine_recipe(recipe)
    corpus = Corpus.open(tmp_path / "out/corpus")
    train = np.asarray(corpus.train_rows)
    queries, held = set(corpus.bare(train[corpus.roles[train] == 0])), set(corpus.bare(corpus.holdout_rows))
    apart = set(corpus.bare(np.delete(np.arange(len(corpus)), train)))
    assert found.left_out == len(apart & {pair["d"] for pair in pairs})
    for query, answer, *negatives in mined(found.file):
        there = [text for text in negatives if text]
        assert not {query, answer} & {*there} and len({*there}) == len(there)
        assert query not in queries or (len(there) > 30 and not held & {*there})


def test_further_documents_are_read_behind_the_prompt_of_the_others(tmp_path: Path) -> None:
    pairs = [{"q": f"question {n}", "d": f"answer {n}"} for n in range(40)]
    for name, rows in (("pairs", pairs), ("more", [{"text": f"another {n}"} for n in range(9)])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    part = {"path": str(tmp_path / "pairs.jsonl"), "prompt": ["query: ", "passage: "]}
    recipe = Recipe.build(
        {
            "corpus": {"parts": [part], "text": ["q", "d"]},
            "teachers": [{"name": "lengths", "call": "tests.functions:lengths"}],
            "mining": {"documents": {"path": str(tmp_path / "more.jsonl"), "limit": 5}},
            "output": str(tmp_path / "out"),
        }
    )
    mining.mine_recipe(recipe)
    store = SignalStore.open(tmp_path / "out/stores/lengths")
    found = store.rows(content_keys([f"passage: another {n}" for n in range(9)])) >= 0
    assert found.tolist() == [True] * 5 + [False] * 4
    assert (store.rows(content_keys([f"another {n}" for n in range(9)])) < 0).all()
