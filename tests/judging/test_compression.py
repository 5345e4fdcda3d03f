"""Shorter, int8 and binary vectors: what is stored, what is compared, what is scored."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from distilvec.errors import DataError, DistilvecError
from distilvec.judging.agreement import agreement, likeness
from distilvec.judging.compression import CompressedEncoder, Form, calibrated, forms
from distilvec.judging.encoder import CachedEncoder
from distilvec.students import load_student


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """float32 [200, 96]; the first numbers carry the most, one dimension is large."""
    rng = np.random.default_rng(0)
    found = rng.normal(size=(200, 96)) / np.sqrt(1 + np.arange(96))
    found[:, 5] += 2
    return found.astype(np.float32)


def test_forms_are_prefixes_in_three_precisions() -> None:
    assert [form.width for form in forms(384)][::3] == [384, 192, 96, 48]
    assert [form.width for form in forms(100)][::3] == [100, 50]
    assert [form.width for form in forms(24)][::3] == [24]
    assert [form.width for form in forms(8, [3, 8, 3])][::3] == [8, 3]
    assert [form.precision for form in forms(8, [])] == ["float32", "int8", "binary"]
    for wrong in (0, 9):
        with pytest.raises(DistilvecError, match=rf"\b8 numbers .*\b{wrong}\b.*\b1 to 8\b"):
            forms(8, [wrong])


def test_bytes_are_those_of_what_is_stored(vectors: np.ndarray) -> None:
    for form in [*forms(96), Form(13), Form(13, "int8"), Form(13, "binary")]:
        stored = form.stored(vectors, calibrated(vectors, form.width))
        assert stored.nbytes == len(vectors) * form.bytes_per_vector
        assert form.compared(vectors, 1.0).shape == (200, form.width)


def test_shorter_vectors_are_brought_to_length_one(vectors: np.ndarray) -> None:
    short = vectors[:, :32]
    expected = short / np.linalg.norm(short, axis=1, keepdims=True)
    np.testing.assert_allclose(Form(32).compared(vectors, 1.0), expected, rtol=1e-5)


def test_bytes_keep_products(vectors: np.ndarray) -> None:
    form = Form(96, "int8")
    limit = calibrated(vectors[:100], 96)
    whole, codes = Form(96).compared(vectors, limit), form.stored(vectors, limit).astype(np.float32)
    assert codes.min() >= -127 and codes.max() <= 127 and (codes == codes.round()).all()
    step = limit / 127
    inside = np.abs(whole) < limit
    assert np.abs(codes * step - whole)[inside].max() <= 0.51 * step
    assert abs((codes * step - whole).mean()) < 0.01 * step, "zero stays zero: no offset in every dimension"
    np.testing.assert_allclose(np.linalg.norm(form.compared(vectors, limit), axis=1), 1, rtol=1e-5)
    kept = likeness(whole, form.compared(vectors, limit))
    assert kept["similarity_spearman"] > 0.999 and kept["neighbours"] > 0.95
    # Ranges of each dimension's own, the library's default, spoil the products of codes.
    from sentence_transformers.util.quantization import quantize_embeddings

    own = quantize_embeddings(whole, "int8", calibration_embeddings=whole[:100]).astype(np.float32)
    assert likeness(whole, own)["neighbours"] < kept["neighbours"]


def test_bits_are_signs_and_their_cosine_is_hamming(vectors: np.ndarray) -> None:
    form = Form(20, "binary")
    signs = form.compared(vectors, 1.0)
    np.testing.assert_allclose(signs, np.where(vectors[:, :20] > 0, 1, -1) / np.sqrt(20), rtol=1e-5)
    stored = form.stored(vectors, 1.0)
    hamming = np.unpackbits(stored[0] ^ stored[1]).sum()
    assert signs[0] @ signs[1] == pytest.approx(1 - 2 * hamming / 20)


def test_calibration_needs_vectors(vectors: np.ndarray) -> None:
    assert calibrated(vectors, 96) == pytest.approx(np.abs(Form(96).compared(vectors, 1.0)).max())
    assert calibrated(vectors[:1], 1) == 1
    for nothing in (vectors[:0], np.zeros((3, 4))):
        with pytest.raises(
            DistilvecError,
            match=re.escape(f"int8 vectors are calibrated on vectors, and those given {list(nothing.shape)}"),
        ):
            calibrated(nothing, 4)


def test_likeness_is_that_of_agreement(vectors: np.ndarray) -> None:
    other = vectors[:, :24]
    whole = agreement(vectors, other)
    assert likeness(vectors, other) == {name: whole[name] for name in ("neighbours", "similarity_spearman")}
    assert likeness(vectors, vectors)["neighbours"] == 1
    with pytest.raises(DataError, match=r"\b200 and 199\b.*\bfour\b"):
        likeness(vectors, other[:-1])


def test_the_encoder_compresses_each_side() -> None:
    class Two:
        """Queries and documents are read differently."""

        prompts = {"query": "q: ", "document": "d: "}

        def encode(self, texts: list[str]) -> np.ndarray:
            return np.array([[len(text), 1.0, -1.0] for text in texts])

        def encode_query(self, texts: list[str]) -> np.ndarray:
            return -self.encode(texts)

        encode_document = encode

    encode = CompressedEncoder(CachedEncoder(Two()), Form(2, "binary"), 1.0)
    half = np.full((1, 2), np.sqrt(0.5))
    for found in (encode(["ab"]), encode.encode(["ab"]), encode.document(["ab"]), -encode.query(["ab"])):
        np.testing.assert_allclose(found, half, rtol=1e-6)


def test_compressed_encoder_uses_the_query_prompt(tiny_bert: Path) -> None:
    model = load_student(tiny_bert, device="cpu")
    model.prompts = {"query": "find: ", "document": ""}
    form = Form(32)
    encoder = CompressedEncoder(CachedEncoder(model), form, 1.0)
    wrapped = CachedEncoder(encoder)
    assert wrapped.has_side("query")
    np.testing.assert_allclose(wrapped.query(["a cat"]), encoder.query(["a cat"]), atol=1e-6)
    assert not np.allclose(wrapped.query(["a cat"]), wrapped(["a cat"]), atol=1e-4)
