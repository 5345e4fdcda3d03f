"""A corpus of pairs mined: the first teacher's vectors from the store, the nearest documents, and a file of pairs."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from distilvec import folders
from distilvec.corpus import Corpus, read_corpus
from distilvec.corpus.sources import Part
from distilvec.errors import DataError, DistilvecError
from distilvec.files import alone_in, whole, write_text
from distilvec.flow.lessons import fill_stores
from distilvec.flow.pin import pin
from distilvec.flow.prepare import open_corpus, open_teachers, require
from distilvec.folders import claim
from distilvec.interruption import StopSignals
from distilvec.mining.choosing import Chooser, Chosen, grouped
from distilvec.mining.nearest import DOCUMENTS, nearest
from distilvec.mining.outcome import Mined, PairsWriter, texts_at
from distilvec.mining.sides import Pairs, Side
from distilvec.progress import Ticker
from distilvec.recipe import Recipe, given
from distilvec.store import SignalStore
from distilvec.teachers import Teacher
from distilvec.teachers.cards import fingerprint

logger = logging.getLogger(__name__)
#: Queries of a block; fewer where many neighbours of each are wanted. Neighbours that are held at once.
QUERIES, NEIGHBOURS = 4096, 1 << 20
#: The recipe with the commits of what was mined, so that a mining that goes on reads the same.
SAVED = "mining.yaml"
#: Of the negatives of a block, as they are kept.
_ARRAYS = ("numbers", "scores", "ranks", "positives")


def mine_recipe(recipe: Recipe) -> Mined:
    """Mine the corpus of a recipe; killed and started again, it goes on where it was."""
    require(recipe, "mine")
    folder = claim(recipe.output)
    work = folder / "mining"
    with alone_in(folder, "mining.lock"):
        recipe = pin(recipe, folder / SAVED, mining=True)
        recipe = recipe.model_copy(update={"teachers": recipe.teachers[:1]})
        write_text(folder / SAVED, recipe.to_yaml())
        corpus = open_corpus(recipe)
        further = further_documents(recipe, corpus, work)
        _check_pairs(corpus)
        teachers = open_teachers(recipe, corpus)
        store = fill_stores(recipe, corpus, teachers)[0].store
        if further is not None:
            store = fill_stores(recipe, further, teachers)[0].store
        columns = text_columns(recipe)
        names = (f"negative_{number}" for number in itertools.count(1))
        columns += itertools.islice((name for name in names if name not in columns), recipe.mining.negatives)
        result = Mined(folder, columns, teachers.first.card.name, _digest(recipe, corpus, further, teachers.first))
        known = Mined.read(folder) if result.file.is_file() else None
        if known is not None and known.digest == result.digest:
            logger.info("%s is mined already, by an equal call", result.file)
            result = known
        else:
            _mine(recipe, (corpus, further), store, work, result)
            result.write()
        for each in (work / "documents", work):
            folders.remove(each)
    return result


def text_columns(recipe: Recipe) -> list[str]:
    """The columns of the corpus' texts."""
    return list(given(recipe.corpus, "corpus").text)


def further_documents(recipe: Recipe, corpus: Corpus, work: Path) -> Corpus | None:
    """Prepare the documents that are searched besides the corpus' own, in a folder; None without any.

    They are read behind the prompt of the corpus' documents, unless their sources have prompts of their own.
    """
    section = recipe.mining.documents
    if section is None:
        return None
    options = section.model_dump(exclude={"path", "parts", "holdout", "made"})
    source, prompt = section.source, corpus.prompts.get("document")
    if prompt and not section.parts:
        source = [Part(source, "documents", prompt=prompt, limit=options["limit"], revision=options["revision"])]
        options |= {"domain": None, "limit": None, "revision": None}
    return read_corpus(source, work / "documents", **options, holdout=0.0)


def _digest(recipe: Recipe, corpus: Corpus, further: Corpus | None, teacher: Teacher) -> str:
    """Hash all that decides which negatives are found."""
    prompted = bool(corpus.prompts or (further is not None and further.prompts))
    return fingerprint(
        corpus.fingerprint,
        [len(corpus.train_rows), len(corpus.holdout_rows), *_on_neither_side(corpus)],
        None if further is None else further.fingerprint,
        teacher.card.fingerprint,
        [recipe.teachers[0].storage, recipe.training.seed, QUERIES, DOCUMENTS],
        recipe.mining.model_dump(mode="json", exclude={"documents"}),
        text_columns(recipe),
        *(["equal without prompts"] if prompted else []),  # mined before, with prompts as part of the texts
    )


def _on_neither_side(corpus: Corpus) -> list[int]:
    """Count the pairs on neither side: [count], or [] if none, as in summaries of versions that did not count them."""
    count = 0 if corpus.groups is None else len(Pairs.on_neither_side(corpus).anchors)
    return [count] if count else []


class SearchCost(NamedTuple):
    """The estimated cost of a mining; `products` are of two vectors, `seconds` on this machine."""

    queries: int
    documents: int
    products: float
    seconds: float


def mining_cost(corpus: Corpus, further: Corpus | None, width: int) -> SearchCost:
    """Estimate mining once the vectors of that width are there; the rate is that of a matrix product here and now."""
    _check_pairs(corpus)
    roles = np.asarray(corpus.roles)
    queries, documents = int((roles == 0).sum()), int((roles != 0).sum()) + (0 if further is None else len(further))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    one, other = (torch.rand(size, width, device=device) for size in (1024, DOCUMENTS))
    float((one @ one.T).sum())  # a GPU loads what multiplies at the first product
    begun = time.perf_counter()
    float((one @ other.T).sum())
    rate = 1024 * DOCUMENTS / max(time.perf_counter() - begun, 1e-9)
    products = float(queries) * documents
    return SearchCost(queries, documents, products, products / rate)


def _check_pairs(corpus: Corpus) -> None:
    if corpus.groups is None:
        raise DistilvecError(
            "negatives are mined for queries with an answer, and the corpus has single texts",
            where="corpus.text",
            remedy="Name the columns of query and answer: text: [query, answer].",
        )
    if corpus.labels is not None:  # a pair labelled 0 would be written as a query and its answer
        raise DistilvecError(
            "mining takes every pair for a query and its answer, and writes no labels",
            where="corpus.label",
            remedy="Leave out the pairs that are no answers, and the key label.",
        )


def _mine(
    recipe: Recipe, searched: tuple[Corpus, Corpus | None], store: SignalStore, work: Path, result: Mined
) -> None:
    """Search and choose block by block, then write the file."""
    begun = time.monotonic()
    corpus, further = searched
    sides = [Side(corpus, store, np.asarray(corpus.train_rows), further)]
    if len(corpus.holdout_rows):
        sides.append(Side(corpus, store, np.asarray(corpus.holdout_rows), None))
    neither = Pairs.on_neither_side(corpus)
    result.pairs = sum(len(each.anchors) for each in (*sides, neither))
    result.documents = len(sides[0].documents)
    result.left_out = sides[0].left_out
    result.shared = sum(int(side.shared.sum()) for side in sides)
    result.unknown = sum(int((~side.known).sum()) for side in sides) - result.shared
    result.shared += len(neither.anchors)
    # Kept blocks have documents by number, and these go by the order of the store's rows.
    blocks = fingerprint(result.digest, *(side.digest for side in sides))
    names = [_block(number, start) for number, side in enumerate(sides) for start, _ in _parts(recipe, side)]
    folders.update(work, {blocks: [f"{blocks}/{name}" for name in names]})
    work = work / blocks
    if result.unknown + result.shared == result.pairs:
        raise DataError("the teacher has no vectors for any of the pairs", where="teachers", remedy="See its texts.")
    ticker, done = Ticker("mining", "queries"), 0
    total = sum(len(side.asked) for side in sides)
    texts = functools.partial(texts_at, corpus, further)
    with StopSignals() as signals, whole(result.file) as temporary, temporary.open("w", encoding="utf-8") as out:
        writer = PairsWriter(out, texts, result, total, len(text_columns(recipe)) - 2)
        for number, side in enumerate(sides):
            for start, asked, negatives in _blocks(recipe, side, number, work, signals, ticker, (done, total)):
                writer.block(side, side.asked[start : start + len(asked)], negatives)
            done += len(side.asked)
            writer.rest(side, np.flatnonzero(~side.known))
        writer.rest(neither, np.arange(len(neither.anchors)))
    writer.close()
    result.seconds = round(time.monotonic() - begun, 1)


def _blocks(
    recipe: Recipe, side: Side, number: int, work: Path, signals: StopSignals, ticker: Ticker, so_far: tuple[int, int]
) -> Iterator[tuple[int, np.ndarray, Chosen]]:
    """Start, queries and negatives of every block of a side, from the work folder where it is there already."""
    chooser = Chooser(side.documents, recipe.mining)
    before, total = so_far
    for start, chosen in _parts(recipe, side):
        file = work / _block(number, start)
        negatives = _kept(file)
        if negatives is None:
            draw = np.random.default_rng([recipe.training.seed, number, start])

            def told(queries: int, start: int = start) -> None:
                ticker(before + start + queries, total)

            negatives = _searched(side, chosen, chooser, draw, told, signals.came)
            if negatives is None:
                signals.check(
                    f"mining was stopped by {signals.name}; {before + start:,} of {total:,} queries are kept", work
                )
            assert negatives is not None
            _keep(file, negatives)
        else:
            ticker(before + start + len(chosen), total)
        yield start, chosen, negatives


def _parts(recipe: Recipe, side: Side) -> Iterator[tuple[int, np.ndarray]]:
    """Start and queries of every block of a side."""
    size = max(64, min(QUERIES, NEIGHBOURS // recipe.mining.ranks[1]))
    for start in range(0, len(side.asked), size):
        yield start, side.asked[start : start + size]


def _block(number: int, start: int) -> str:
    return f"side-{number}-from-{start}.npz"


def _searched(
    side: Side,
    chosen: np.ndarray,
    chooser: Chooser,
    draw: np.random.Generator,
    told: Callable[[int], None],
    stop: Callable[[], bool],
) -> Chosen | None:
    """Negatives of some queries of a side; None where `stop` said so.

    A query with very many answers needs as many neighbours more, so that it is searched with few others. A few
    neighbours too many are held rather than that a block's last queries meet all documents by themselves.

    Args:
        told: how many of the queries are done.
    """
    tries = chooser.tries(len(chosen), draw)
    depths = np.minimum(side.depths(chosen) + chooser.section.ranks[1], len(side.documents))
    found, places = list[Chosen](), list(grouped(depths, NEIGHBOURS + NEIGHBOURS // 4))
    done = 0
    for rows in places:
        asked = side.block(chosen[rows])

        def progress(share: float, done: int = done, size: int = len(rows)) -> None:
            told(done + int(share * size))

        met = nearest(asked.vectors, side.documents, int(depths[rows].max()), progress=progress, stop=stop)
        if met is None:
            return None
        found.append(chooser.choose(asked, *met, tries[rows]))
        done += len(rows)
    return Chosen.joined(found, places)


def _keep(file: Path, negatives: Chosen) -> None:
    """Write a block's negatives, whole or not at all."""
    taken = json.dumps([negatives.candidates, negatives.taken])
    with whole(file) as temporary, temporary.open("wb") as out:
        np.savez(out, **{name: getattr(negatives, name) for name in _ARRAYS}, taken=taken)


def _kept(file: Path) -> Chosen | None:
    """A block that was written before; None where there is none, or it is damaged."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            candidates, taken = json.loads(str(arrays["taken"]))
            found = {name: arrays[name] for name in _ARRAYS}
            return Chosen(**found, taken=Counter(taken), candidates=candidates)
    except Exception:  # damaged bytes lead numpy to errors of zipfile, too
        return None
