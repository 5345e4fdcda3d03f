"""Mining against brute force, its filters, what it writes, and processes that are really killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.starting import Starter

import distilvec
from distilvec.choosing.dry_run import plan
from distilvec.corpus import read_corpus
from distilvec.errors import DistilvecError, Interrupted
from distilvec.flow import mine as flow
from distilvec.mining import choosing
from distilvec.mining.choosing import Chooser, Chosen, QueryBlock
from distilvec.mining.nearest import nearest
from distilvec.recipe import MiningSection, Recipe

WIDTH = 8


class Held:
    """Vectors in memory; counts the most that were read at once."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.vectors, self.most = vectors, 0

    def __len__(self) -> int:
        return len(self.vectors)

    def read(self, numbers: np.ndarray) -> np.ndarray:
        self.most = max(self.most, len(numbers))
        return self.vectors[numbers]


def unit(rows: int, seed: int = 0, width: int = WIDTH) -> np.ndarray:
    found = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize(("documents", "count"), [(500, 7), (500, 90), (37, 37), (5, 9), (1, 1)])
@pytest.mark.parametrize("block", [16, 64, 4096])
def test_the_nearest_are_those_of_all_products(documents: int, count: int, block: int) -> None:
    # Products of whole numbers are exact in any order, so that equal ones are equal; there are many.
    draw = np.random.default_rng(0)
    queries, held = (
        draw.integers(-4, 5, (23, WIDTH)).astype(np.float32),
        Held(draw.integers(-4, 5, (documents, WIDTH)).astype(np.float32)),
    )
    told: list[float] = []
    met = nearest(queries, held, count, block=block, progress=told.append)
    assert met is not None
    products = queries @ held.vectors.T
    order = np.lexsort((np.broadcast_to(np.arange(documents), products.shape), -products))[:, :count]
    scores, numbers = met
    short = min(count, documents)
    np.testing.assert_array_equal(numbers[:, :short], order, "of equal ones the smaller number is first")
    np.testing.assert_array_equal(scores[:, :short], np.take_along_axis(products, order, 1))
    assert (scores[:, short:] == -np.inf).all() and (numbers[:, short:] == -1).all()
    assert held.most <= block and told[-1] == 1.0


def test_a_search_can_be_stopped() -> None:
    assert nearest(unit(3), Held(unit(100)), 5, block=10, stop=lambda: True) is None


def brute(asked: QueryBlock, vectors: np.ndarray, section: MiningSection) -> list[list[int]]:
    """The negatives of each query, one document after the other."""
    found = []
    for row, query in enumerate(asked.vectors):
        answers = asked.own[asked.rows == row].tolist()
        products = vectors @ query
        own, left = products[asked.positives[row]], []
        others = [
            n for n in np.argsort(-products, kind="stable").tolist() if n not in answers and n not in asked.barred[row]
        ]
        for rank, number in enumerate(others, 1):
            score = products[number]
            if (
                section.ranks[0] <= rank <= section.ranks[1]
                and (section.max_score is None or score <= section.max_score)
                and (section.absolute_margin is None or score <= own - section.absolute_margin)
                and (section.relative_margin is None or score <= own - abs(own) * section.relative_margin)
                and (section.duplicates is None or (vectors[answers] @ vectors[number]).max() <= section.duplicates)
            ):
                left.append(number)
        found.append(left[: section.negatives])
    return found


def block(documents: int = 200, queries: int = 40) -> tuple[QueryBlock, np.ndarray]:
    """Queries near their positives; some with two answers, some whose own text is a document."""
    draw = np.random.default_rng(3)
    vectors = unit(documents)
    vectors[100:120] = vectors[:20] + 0.05 * draw.standard_normal((20, WIDTH))  # near-duplicates of positives
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    asked = vectors[:queries] + 0.4 * draw.standard_normal((queries, WIDTH))
    asked = (asked / np.linalg.norm(asked, axis=1, keepdims=True)).astype(np.float32)
    rows = np.sort(np.concatenate([np.arange(queries), np.arange(0, queries, 4)]))
    own = np.array([row if number == 0 or rows[number - 1] != row else 150 + row for number, row in enumerate(rows)])
    equal = np.where(np.arange(queries) % 5 == 0, 199 - np.arange(queries), -1)
    return QueryBlock(asked, np.arange(queries), rows, own, equal[:, None]), vectors


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ranks": (3, 12), "negatives": 4},
        {"relative_margin": None, "absolute_margin": 0.3},
        {"relative_margin": 0.5, "max_score": 0.2, "negatives": 9},
        {"relative_margin": None, "duplicates": None, "negatives": 100},
        {"duplicates": 0.5, "ranks": (1, 200), "negatives": 20},
    ],
)
def test_filters_keep_what_one_document_after_the_other_keeps(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "AT_ONCE", 50)
    asked, vectors = block()
    section, held = MiningSection(**options), Held(vectors)
    chooser = Chooser(held, section)
    met = nearest(asked.vectors, held, len(held))
    assert met is not None
    none = chooser.tries(len(asked.vectors), np.random.default_rng(0))
    found = chooser.choose(asked, *met, none)
    chosen = [[n for n in row if n >= 0] for row in found.numbers.tolist()]
    assert chosen == brute(asked, vectors, section)
    products = asked.vectors @ vectors.T
    for row, numbers in enumerate(chosen):
        np.testing.assert_allclose(found.scores[row, : len(numbers)], products[row, numbers], atol=1e-6)
        assert found.positives[row] == pytest.approx(products[row, asked.positives[row]], abs=1e-6)
    # Every candidate is taken by one filter, or left: whole rows may have more left than they need.
    unlimited = Chooser(held, section.model_copy(update={"negatives": len(vectors)}))
    left = unlimited.choose(asked, *met, none)
    taken = dict(left.taken)
    own = taken.pop("the query's own: its positives, its text, its negatives")
    assert own <= len(asked.rows) + (asked.barred >= 0).sum()
    assert left.candidates == sum(taken.values()) + (left.numbers >= 0).sum()


def test_random_ones_pass_the_filters_and_stand_last() -> None:
    asked, vectors = block()
    section = MiningSection(negatives=5, random=0.4, relative_margin=0.3, duplicates=0.5)
    chooser = Chooser(Held(vectors), section)
    met = nearest(asked.vectors, chooser.documents, len(chooser.documents))
    assert met is not None

    def drawn(seed: int) -> Chosen:
        return chooser.choose(asked, *met, chooser.tries(len(asked.vectors), np.random.default_rng(seed)))

    found, again = drawn(7), drawn(7)
    np.testing.assert_array_equal(found.numbers, again.numbers)
    other = drawn(8)
    allowed = brute(asked, vectors, section.model_copy(update={"negatives": len(vectors), "ranks": (1, len(vectors))}))
    for row, (numbers, ranks) in enumerate(zip(found.numbers.tolist(), found.ranks.tolist(), strict=True)):
        drawn = [n for n, rank in zip(numbers, ranks, strict=True) if n >= 0 and rank == 0]
        kept = [n for n in numbers if n >= 0]
        assert len(drawn) == 2 and kept[-2:] == drawn and len(set(kept)) == len(kept) <= 5
        assert set(kept) <= set(allowed[row])
    assert (other.numbers != found.numbers).any()


def pairs_of(sentences: list[str]) -> list[dict[str, str]]:
    """Every query twice in the list has two answers."""
    texts = [sentence.strip() for sentence in sentences]
    return [{"q": s.rsplit(" ", 2)[0] if n % 6 else "the same question", "d": s} for n, s in enumerate(texts)]


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_corpus_is_mined_on_both_of_its_sides(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "QUERIES", 64)
    monkeypatch.setattr(flow, "NEIGHBOURS", 1)
    pairs, more = pairs_of(sentences[:180]), [each.strip() for each in sentences[180:]]
    corpus = {"path": pairs, "text": ["q", "d"], "holdout": 0.2}
    options = {"relative_margin": None, "negatives": 3, "ranks": (2, 9), "duplicates": 0.9999, "documents": more}
    found = distilvec.mine(str(tiny_bert), corpus, tmp_path / "mined", **options)
    rows = read(found.file)
    assert (found.pairs, len(rows)) == (180, 180) and found.columns == [
        "q",
        "d",
        "negative_1",
        "negative_2",
        "negative_3",
    ]
    assert sorted((row["q"], row["d"]) for row in rows) == sorted((row["q"], row["d"]) for row in pairs)
    answers: dict[str, set[str]] = {}
    for row in pairs:
        answers.setdefault(row["q"], set()).add(row["d"])
    again = read_corpus(str(found.file), tmp_path / "again", text=found.columns, holdout=0.2)
    before = read_corpus(pairs, tmp_path / "before", text=["q", "d"], holdout=0.2)
    held = set(before.texts(before.holdout_rows))
    assert held and held == set(again.texts(again.holdout_rows)), "nothing that is held out was lost"
    seen = set()
    for row in rows:
        own = [row[name] for name in found.columns[2:] if row[name]]
        assert len(set(own)) == len(own) == len(row["similarities"]) - 1 and not set(own) & (
            answers[row["q"]] | {row["q"]}
        )
        assert not own or ({row["d"]} <= held) == (set(own) <= held), "each side for itself"
        assert row["similarities"][1:] == sorted(row["similarities"][1:], reverse=True)
        seen |= set(own)
    assert seen & set(more)
    assert found.whole + found.none == 180 or found.negatives < 540
    ranks = [each["rank"] for row in found.shown for each in row["negatives"]]
    assert len(found.shown) == 20 and min(ranks) >= 2 and max(ranks) <= 9
    page = (tmp_path / "mined/mining.md").read_text(encoding="utf-8")
    for told in ("180 pairs", "nearer than rank 2", "text: [q, d, negative_1, negative_2, negative_3]", "95 %"):
        assert told in page and told in found.text()
    assert repr(found) == f"Mined({str(found.folder)!r})" and str(found) == found.text()
    assert found._repr_markdown_() == found.page()
    assert not (tmp_path / "mined/mining").exists()
    stamp = found.file.stat().st_mtime_ns
    same = distilvec.mine(str(tiny_bert), corpus, tmp_path / "mined", **options)
    assert same == found and found.file.stat().st_mtime_ns == stamp, "nothing is done twice"
    other = distilvec.mine(str(tiny_bert), corpus, tmp_path / "mined", **{**options, "negatives": 2})
    assert other.columns == found.columns[:4] and len(read(other.file)) == 180


def test_held_out_answers_among_further_documents_are_not_negatives(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    pairs = [row for row in pairs_of(sentences[:180]) if row["q"] != "the same question"]
    corpus = {"path": pairs, "text": ["q", "d"], "holdout": 0.3}
    options = {"relative_margin": None, "negatives": 3, "documents": [row["d"] for row in pairs]}
    found = distilvec.mine(str(tiny_bert), corpus, tmp_path / "mined", **options)
    before = read_corpus(pairs, tmp_path / "before", text=["q", "d"], holdout=0.3)
    again = read_corpus(str(found.file), tmp_path / "again", text=found.columns, holdout=0.3)
    held = set(before.texts(before.holdout_rows))
    assert held == set(again.texts(again.holdout_rows))
    assert found.left_out == len([row for row in pairs if row["d"] in held]) > 20
    assert f"{found.left_out} of the further documents are texts of held-out pairs" in found.text()


def test_negatives_that_the_corpus_has_stay(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    rows = [row | {"wrong": each.strip()} for row, each in zip(pairs_of(sentences[:60]), sentences[60:], strict=False)]
    rows[4]["wrong"] = None
    corpus = {"path": rows, "text": ["q", "d", "wrong"], "holdout": 0.0}
    found = distilvec.mine(str(tiny_bert), corpus, tmp_path / "mined", relative_margin=None, negatives=2)
    mined = read(found.file)
    assert found.columns == ["q", "d", "wrong", "negative_1", "negative_2"]
    assert [(row["d"], row["wrong"]) for row in mined] == [(row["d"], row["wrong"]) for row in rows]
    for row in mined:
        assert len({row["d"], row["wrong"], row["negative_1"], row["negative_2"]}) == 4, "none is mined again"
    more = distilvec.mine(
        str(tiny_bert), {**corpus, "path": str(found.file), "text": found.columns}, tmp_path / "more", negatives=1
    )
    assert more.columns == [*found.columns, "negative_3"]


def test_given_vectors_may_lack_texts(tmp_path: Path, sentences: list[str]) -> None:
    pairs = pairs_of(sentences[:60])
    texts = sorted({text for row in pairs for text in row.values()})
    vectors = unit(len(texts), 5, 16)
    known = [n for n, text in enumerate(texts) if text != pairs[3]["d"]]
    teacher = {"vectors": vectors[known], "texts": [texts[n] for n in known]}
    corpus = {"path": pairs, "text": ["q", "d"], "holdout": 0.0}
    found = distilvec.mine(teacher, corpus, tmp_path / "mined", relative_margin=None, duplicates=None)
    rows = read(found.file)
    assert found.unknown == found.none == 1 and "1 pairs are without because" in found.text()
    assert [row["d"] for row in rows if row["negative_1"] is None] == [pairs[3]["d"]]
    vector = {text: vectors[n] for n, text in enumerate(texts)}
    documents = [row["d"] for row in pairs if row["d"] != pairs[3]["d"]]
    for row in rows[:5]:
        if row["negative_1"] is None:
            continue
        answers = {each["d"] for each in pairs if each["q"] == row["q"]}
        order = sorted(documents, key=lambda text: -float(vector[text] @ vector[row["q"]]))
        assert [row[f"negative_{n}"] for n in range(1, 6)] == [text for text in order if text not in answers][:5]


def test_corpora_that_cannot_be_mined_are_refused(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    pairs = {"path": pairs_of(sentences[:20]), "text": ["q", "d"]}
    with pytest.raises(DistilvecError, match=r"^corpus\.text: .*text: \[query, answer\]"):
        distilvec.mine(str(tiny_bert), {"path": sentences[:20]}, tmp_path / "a")
    labelled = [{**row, "y": number % 2} for number, row in enumerate(pairs_of(sentences[:20]))]
    with pytest.raises(DistilvecError, match=r"^corpus\.label: .*every pair for a query and its answer"):
        distilvec.mine(str(tiny_bert), {**pairs, "path": labelled, "label": "y"}, tmp_path / "labelled")
    with pytest.raises(DistilvecError, match=r"^mining\.ranks: .*10,000"):
        distilvec.mine(str(tiny_bert), pairs, tmp_path / "b", ranks=(5, 2))
    with pytest.raises(DistilvecError, match=r'^mining\.margin: .*"margin"'):
        distilvec.mine(str(tiny_bert), pairs, tmp_path / "c", margin=1)
    with pytest.raises(DistilvecError, match="^teachers: "):
        distilvec.mine(None, pairs, tmp_path / "d")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "mined.jsonl").write_text("mine\n")
    with pytest.raises(DistilvecError, match=r"mined\.jsonl"):
        distilvec.mine(str(tiny_bert), pairs, tmp_path / "e")
    assert (tmp_path / "e" / "mined.jsonl").read_text() == "mine\n"


def test_a_dry_run_says_how_much_would_be_compared(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    recipe = Recipe.build(
        {
            "corpus": {"path": pairs_of(sentences[:60]), "text": ["q", "d"]},
            "teachers": [{"name": "tiny", "model": str(tiny_bert)}, {"name": "unasked", "model": str(tiny_bert)}],
            "mining": {"documents": {"path": sentences[100:140]}},
            "output": str(tmp_path / "mined"),
        }
    )
    stages = dict(plan(recipe, mining=True).lines)
    assert stages["mining"].startswith("60 queries in 100 documents, 6e+03 products")
    distinct = {text for row in pairs_of(sentences[:60]) for text in row.values()} | set(sentences[100:140])
    assert f"{len(distinct)} texts to encode" in stages["teacher tiny"] and "teacher unasked" not in stages
    assert "student" not in stages and not (tmp_path / "mined").exists()


RECIPE = """
corpus: {path: pairs.jsonl, text: [q, d], holdout: 0.0}
teachers: [{name: given, vectors: vectors.npy, texts: texts.txt}]
mining: {relative_margin: null, random: 0.4}
"""
#: Starts the command with small blocks, and dies in the middle of the search of block number argv[1].
DIE = """
import os, signal, sys
from distilvec.flow import mine
from distilvec.mining import nearest
mine.QUERIES, mine.NEIGHBOURS = 50, 10_000
found = mine.nearest
def search(*given, **options):
    search.block += 1
    if search.block > int(sys.argv[1]):
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    return found(*given, **options)
search.block = 0
mine.nearest = search
from distilvec.cli.main import main
main(["mine", "recipe.yaml", "-o", sys.argv[3]])
"""


def test_killed_in_the_middle_it_resumes_and_writes_the_same_bytes(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [{"q": f"question {n}", "d": f"answer {n}"} for n in range(180)]
    texts = [text for row in pairs for text in row.values()]
    np.save(tmp_path / "vectors.npy", unit(len(texts), 2, 24))
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    ended, output = start.code(DIE, "2", "SIGKILL", "killed", folder=str(tmp_path)).wait()
    assert ended == -signal.SIGKILL, output
    kept = sorted((tmp_path / "killed/mining").rglob("*.npz"))
    assert [file.name for file in kept] == ["side-0-from-0.npz", "side-0-from-64.npz"]
    kept[0].write_bytes(kept[0].read_bytes()[:100])  # half a block is made again
    stamp = kept[1].stat().st_mtime_ns

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flow, "QUERIES", 50)
    monkeypatch.setattr(flow, "NEIGHBOURS", 10_000)
    searched: list[int] = []

    def search(queries: np.ndarray, *given: Any, **options: Any) -> Any:
        searched.append(len(queries))
        if len(searched) == 2 and not (tmp_path / "stopped").exists():
            (tmp_path / "stopped").touch()
            signal.raise_signal(signal.SIGTERM)
        return nearest(queries, *given, **options)

    monkeypatch.setattr(flow, "nearest", search)
    with pytest.raises(Interrupted, match=r"SIGTERM; 128 of 180 queries are kept"):
        flow.mine_recipe(Recipe.load(tmp_path / "recipe.yaml", output=tmp_path / "killed"))
    assert searched == [64, 52] and kept[1].stat().st_mtime_ns == stamp
    assert not (tmp_path / "killed/mined.jsonl").exists()
    resumed = flow.mine_recipe(Recipe.load(tmp_path / "recipe.yaml", output=tmp_path / "killed"))
    assert searched == [64, 52, 52]
    whole = flow.mine_recipe(Recipe.load(tmp_path / "recipe.yaml", output=tmp_path / "whole"))
    assert resumed.file.read_bytes() == whole.file.read_bytes() and resumed.taken == whole.taken
    assert not list((tmp_path / "killed").glob(".mined.jsonl*"))
