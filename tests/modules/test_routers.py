"""Models with a Router: lengths, prompts and fingerprints of their routes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router, StaticEmbedding

from distilvec.errors import DistilvecError
from distilvec.indexes.variants import IndexVariant, Reader
from distilvec.modules.pipeline import set_length
from distilvec.students import load_student, router
from distilvec.teachers import load_teacher


def random_router(folder: Path, seed: int) -> Path:
    """A router of two tables of random vectors."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Router, StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"a": 0, "cat": 1, "dog": 2, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    draw = np.random.default_rng(seed)
    tables = [StaticEmbedding(tokenizer, draw.normal(size=(4, 6)).astype(np.float32)) for _ in range(2)]
    router = Router.for_query_document(query_modules=[tables[0]], document_modules=[tables[1]])
    router.default_route = "document"
    SentenceTransformer(modules=[router, Normalize()], device="cpu").save_pretrained(str(folder))
    return folder


def test_weights_of_a_router_change_the_fingerprint(tmp_path: Path) -> None:
    first, second = (load_teacher(model=str(random_router(tmp_path / str(seed), seed))) for seed in (1, 2))
    assert not np.allclose(first.encode(["a cat"]), second.encode(["a cat"]))
    assert first.card.fingerprint != second.card.fingerprint
    again = load_teacher(model=str(random_router(tmp_path / "again", 1)))
    assert again.card.fingerprint == first.card.fingerprint


@pytest.fixture
def routed(tiny_model_folders: dict[str, Path]) -> Callable[[str, str], SentenceTransformer]:
    """A router over two of the tiny models, query and document."""

    def make(query: str, document: str) -> SentenceTransformer:
        sides = (SentenceTransformer(str(tiny_model_folders[kind]), device="cpu") for kind in (query, document))
        return SentenceTransformer(
            modules=[Router.for_query_document(*(list(side.children()) for side in sides))], device="cpu"
        )

    return make


def lengths(model: SentenceTransformer) -> list[Any]:
    inner: Any = model[0]
    return [route[0].max_seq_length for route in inner.sub_modules.values()]


def test_length_is_set_per_route(routed: Callable[[str, str], SentenceTransformer]) -> None:
    model = routed("bert", "qwen3")
    model[0].sub_modules["query"][0].max_seq_length = 100_000
    set_length(model, None, "routed")
    assert lengths(model) == [128, 256]
    set_length(model, 20, "routed")
    assert lengths(model) == [20, 20]
    with pytest.raises(DistilvecError, match=r"^routed, route query: max_length is 200, .* 128"):
        set_length(model, 200, "routed")


def test_router_with_a_static_route_is_a_teacher(tiny_bert: Path, tiny_static: Path, tmp_path: Path) -> None:
    bert = load_student(tiny_bert, device="cpu")
    words = StaticEmbedding(bert.tokenizer, embedding_dim=32)
    bert[0].max_seq_length = 1000
    made = SentenceTransformer(modules=[Router.for_query_document([words], list(bert.children()))], device="cpu")
    made.save(str(tmp_path / "routed"))
    teacher = load_teacher(name="routed", model=tmp_path / "routed", device="cpu")
    assert np.allclose(teacher.encode(["a cat"]), bert.encode(["a cat"]), atol=1e-5)
    for model in (tmp_path / "routed", tiny_static):
        with pytest.raises(DistilvecError, match="static embeddings read whole texts"):
            load_teacher(name="short", model=model, max_length=20, device="cpu")


def test_index_reader_restores_the_length_of_every_route(
    routed: Callable[[str, str], SentenceTransformer], tmp_path: Path
) -> None:
    routed("bert", "qwen3").save(str(tmp_path / "routed"))
    reader = Reader(tmp_path / "routed", device="cpu")
    assert reader.lengths == [64, 128]
    reader.read(["a cat"], IndexVariant(length=64))
    assert lengths(reader._model) == [128, 256]


@pytest.mark.parametrize(
    ("prompts", "default", "queries", "documents"),
    [
        ({"query": "", "document": "", "mine": "own: "}, "mine", "", ""),
        ({"query": "ask: ", "corpus": "text: "}, None, "ask: ", "text: "),
    ],
)
def test_router_uses_the_prompts_of_its_models(
    prompts: dict[str, str], default: str | None, queries: str, documents: str, tiny_bert: Path
) -> None:
    model = load_student(tiny_bert, device="cpu")
    model.prompts, model.default_prompt_name = prompts, default
    made = router(model, model)
    assert made.prompts == {"query": queries, "document": documents}
    assert np.allclose(made.encode_query(["a cat"]), model.encode_query(["a cat"]), atol=1e-5)
    if "document" in prompts:  # sentence-transformers takes "corpus" from this version on, others do not
        assert np.allclose(made.encode_document(["a cat"]), model.encode_document(["a cat"]), atol=1e-5)
