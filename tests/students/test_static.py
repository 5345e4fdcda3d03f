"""A table of a teacher's word vectors: what is in it, how it ships, and that methods train it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tests.jobs import Job
from tests.training.starting import Starter

from distilvec.corpus.docstrings import docstring_pairs
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.flow.run import run, train
from distilvec.judging import agreement
from distilvec.modules.pipeline import limit_length, token_limit
from distilvec.recipe import Recipe
from distilvec.students import describe_student, load_student, ship, static
from distilvec.students import pieces as piece_module
from distilvec.students.pieces import piece_vectors, readable_pieces
from distilvec.students.static_tables import PRIOR, SIF, count_pieces, piece_weights, principal_axes
from distilvec.training.tokens import TokenizedCorpus

PIECES = 2500


@pytest.fixture(scope="module")
def teacher(real_teacher_folder: Path) -> SentenceTransformer:
    return load_student(real_teacher_folder, device="cpu").eval()


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [pair[part][:160] for pair in docstring_pairs(limit=100) for part in ("summary", "description")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The teacher's vectors of its pieces, read once for all tests."""
    return tmp_path_factory.mktemp("pieces")


@pytest.fixture(scope="module")
def student(teacher: SentenceTransformer, texts: list[str], cache: Path) -> SentenceTransformer:
    return static(teacher, dimensions=128, vocabulary=PIECES, texts=texts, cache=cache)


# the vectors of pieces


def test_a_piece_is_read_as_a_text_of_its_own(teacher: SentenceTransformer) -> None:
    words = ["cat", "river", "##ing", "the", "!"]
    ids = np.array(teacher.tokenizer.convert_tokens_to_ids(words))
    found = piece_vectors(teacher, ids)
    assert found.shape == (5, 384) and found.dtype == np.float32
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    assert (lengths > 2).all()  # before the teacher's Normalize
    # `##ing` cannot be typed; the others can.
    typed = [0, 1, 3, 4]
    np.testing.assert_allclose((found / lengths)[typed], teacher.encode([words[row] for row in typed]), atol=1e-5)
    with torch.no_grad():
        states = teacher[0].model(input_ids=torch.tensor([[101, int(ids[2]), 102]])).last_hidden_state
    np.testing.assert_allclose(found[2], states[0].mean(0).numpy(), atol=1e-4)


@pytest.mark.parametrize("kind", ["xlmr", "modernbert", "qwen3", "mistral"])
def test_other_tokenizers_pieces_too(kind: str, tiny_model_folders: dict[str, Path], sentences: list[str]) -> None:
    model = load_student(tiny_model_folders[kind], device="cpu").eval()
    tokenizer = model.tokenizer
    alone = [text.split()[0] for text in sentences if len(tokenizer(text.split()[0], add_special_tokens=False)[0]) == 1]
    assert alone
    ids = np.array([tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in alone])
    found, expected = (
        each / np.linalg.norm(each, axis=1, keepdims=True) for each in (piece_vectors(model, ids), model.encode(alone))
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)
    made = static(model, dimensions=None, texts=sentences)
    assert made.encode(sentences[:4]).shape == (4, model.get_embedding_dimension())
    assert not set(readable_pieces(tokenizer)) & set(tokenizer.all_special_ids)


def test_places_kept_free_are_not_read(teacher: SentenceTransformer) -> None:
    names = set(teacher.tokenizer.convert_ids_to_tokens(readable_pieces(teacher.tokenizer).tolist()))
    assert names.isdisjoint({"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused993]"})
    assert names >= {"the", "##s", "!", "[", "東"}
    assert len(names) == len(teacher.tokenizer) - 5 - 994


def test_the_vectors_are_kept_and_found_again(tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_student(tiny_bert, device="cpu")
    ids = readable_pieces(model.tokenizer)
    first = piece_vectors(model, ids, cache=tmp_path)
    assert model.training is load_student(tiny_bert, device="cpu").training
    calls: list[int] = []
    read = piece_module._read

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return read(*arguments)

    monkeypatch.setattr(piece_module, "_read", counted)
    again = load_student(tiny_bert, device="cpu")
    assert (piece_vectors(again, ids, cache=tmp_path) == first).all()
    assert not calls
    piece_vectors(again, ids[1:], cache=tmp_path)
    assert calls == [1]
    with torch.no_grad():
        next(again.parameters()).add_(0.1)
    assert not np.allclose(piece_vectors(again, ids, cache=tmp_path), first)
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match=re.escape(f"{tmp_path / 'file' / 'pieces-'}")):
        piece_vectors(again, ids, cache=tmp_path / "file")


# the table


def test_weights_are_smooth_inverse_frequency() -> None:
    ranks = np.array([0, 1, 3])
    harmonic = 1 + 1 / 2 + 1 / 4
    zipf = np.array([1, 1 / 2, 1 / 4]) / harmonic
    np.testing.assert_allclose(piece_weights(ranks), SIF / (SIF + zipf))
    counts = np.array([10, 0, 3_000_000])
    p = (counts + PRIOR * zipf) / (3_000_010 + PRIOR)
    np.testing.assert_allclose(piece_weights(ranks, counts), SIF / (SIF + p))
    assert np.argmin(piece_weights(ranks, counts)) == 2 and np.argmin(piece_weights(ranks)) == 0


def test_axes_are_those_of_principal_component_analysis() -> None:
    from sklearn.decomposition import PCA

    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6)) * [5, 3, 2, 1, 0.5, 0.1] + 7
    counts = rng.integers(0, 4, 40)
    for given, rows in ((None, x), (counts, np.repeat(x, counts + 1, axis=0))):
        found = principal_axes(x, 3, given)
        expected = PCA(3, svd_solver="full").fit(rows).transform(x)
        expected /= np.sqrt((expected**2).sum(1).mean())
        signs = np.sign((found * expected).sum(0))
        np.testing.assert_allclose(found * signs, expected, atol=1e-9)
    np.testing.assert_allclose((found**2).sum(1).mean(), 1)
    assert np.isfinite(principal_axes(np.ones((5, 4)), 2)).all()


def test_the_table_holds_what_its_parts_say(
    student: SentenceTransformer, teacher: SentenceTransformer, texts: list[str], cache: Path
) -> None:
    assert [type(module) for module in student] == [StaticEmbedding, Normalize]
    backend, table = student[0].tokenizer, student[0].embedding.weight.detach().numpy()
    assert table.shape == (backend.get_vocab_size(), 128) and len(table) <= PIECES
    for special in ("[UNK]", "[CLS]", "[PAD]"):
        assert not table[backend.token_to_id(special)].any()
    # The same by hand, with the teacher's own ids.
    names = [backend.id_to_token(row) for row in range(len(table))]
    old = np.array(teacher.tokenizer.convert_tokens_to_ids(names))
    readable = readable_pieces(teacher.tokenizer)
    kept = np.isin(old, readable)
    flat = [index for text in texts for index in teacher.tokenizer(text, add_special_tokens=False)["input_ids"]]
    counts = np.bincount(flat, minlength=len(teacher.tokenizer))[old[kept]]
    ranks = np.array([int((readable < index).sum()) for index in old[kept]])
    axes = principal_axes(piece_vectors(teacher, old[kept], cache=cache), 128, counts)
    np.testing.assert_allclose(table[kept], axes * piece_weights(ranks, counts)[:, None], atol=1e-5)


def test_a_text_is_the_mean_of_its_pieces(student: SentenceTransformer) -> None:
    table = student[0].embedding.weight.detach().numpy()
    ids = [student[0].tokenizer.token_to_id(word) for word in ("return", "the", "list")]
    mean = table[ids].mean(0)
    np.testing.assert_allclose(student.encode("Return the list"), mean / np.linalg.norm(mean), atol=1e-6)
    assert not student.encode("").any()


def test_it_agrees_with_its_teacher_untrained(
    student: SentenceTransformer, teacher: SentenceTransformer, texts: list[str]
) -> None:
    held = texts[:120]
    expected = teacher.encode(held)
    torch.manual_seed(0)
    random = SentenceTransformer(modules=[StaticEmbedding(student[0].tokenizer, embedding_dim=128)], device="cpu")
    own, other = (agreement(expected, model.encode(held)) for model in (student, random))
    assert own["similarity_spearman"] > other["similarity_spearman"] + 0.1
    assert own["neighbours"] > other["neighbours"] + 0.05


def test_a_smaller_vocabulary_changes_no_text_of_the_corpus(teacher: SentenceTransformer, texts: list[str]) -> None:
    some = texts[:20]
    small = static(teacher, dimensions=16, vocabulary=1500, texts=some)
    whole = teacher.tokenizer.backend_tokenizer
    for text in some:
        assert (
            small[0].tokenizer.encode(text, add_special_tokens=False).tokens
            == whole.encode(text, add_special_tokens=False).tokens
        )


def test_dimensions_are_at_most_the_teachers(tiny_bert: Path, sentences: list[str]) -> None:
    for asked, width in ((None, 32), (256, 32), (8, 8)):
        assert static(tiny_bert, dimensions=asked, texts=sentences).get_embedding_dimension() == width
    without = static(tiny_bert, dimensions=8)
    assert np.isfinite(without.encode(sentences)).all()
    assert not np.allclose(
        without.encode(sentences), static(tiny_bert, dimensions=8, texts=sentences).encode(sentences)
    )


def test_what_cannot_be_is_refused(student: SentenceTransformer, tiny_bert: Path, sentences: list[str]) -> None:
    with pytest.raises(DistilvecError, match="is StaticEmbedding"):
        static(student)
    with pytest.raises(DistilvecError, match="^texts: vocabulary 500 .*texts="):
        static(tiny_bert, vocabulary=500)
    with pytest.raises(DistilvecError, match="^texts: "):
        static(tiny_bert, texts=[])
    with pytest.raises(DistilvecError, match=r"vocabulary is 3, .*\b\d{3} pieces"):
        static(tiny_bert, texts=sentences, vocabulary=3)
    assert count_pieces(student[0].tokenizer, ["return the list", "the"], student[0].num_embeddings).sum() == 4


# length


def test_the_length_is_kept_by_the_tokenizer(student: SentenceTransformer, tmp_path: Path, texts: list[str]) -> None:
    long = max(texts, key=len)
    ship(student, tmp_path / "whole")
    short = load_student(tmp_path / "whole", device="cpu")
    assert token_limit(short) is None and describe_student(short)["max_length"] is None
    limit_length(short, 5)
    limit_length(short, 9)  # never more than it reads already
    assert token_limit(short) == 5
    ship(short, tmp_path / "short")
    again = load_student(tmp_path / "short", device="cpu")
    assert describe_student(again)["max_length"] == 5
    assert len(again.preprocess([long])["input_ids"]) == 5
    np.testing.assert_array_equal(again.encode([long]), short.encode([long]))
    assert not np.allclose(again.encode([long]), student.encode([long]))
    # The ids that training reads are cut alike, counted, and not mistaken for those of another length.
    for model, folder_rows in ((student, None), (again, 5)):
        rows = TokenizedCorpus.build(model, lambda r: [long, "a list"], 2, tmp_path / "tokens", "same")
        assert rows.lengths.tolist()[1] == 2
        assert (rows.lengths[0] == 5, rows.truncated) == ((True, 1) if folder_rows else (False, 0))


# shipping

READER = """
import sys
import numpy
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu", trust_remote_code=False)
numpy.save(sys.argv[2], model.encode(["hello", "The train to Zürich leaves at 14:32.", ""]))
"""


def test_it_opens_without_distilvec(start: Starter, student: SentenceTransformer, tmp_path: Path) -> None:
    ship(student, tmp_path / "student")
    start.elsewhere(READER, tmp_path / "student", tmp_path / "read.npy", place=tmp_path)
    expected = student.encode(["hello", "The train to Zürich leaves at 14:32.", ""])
    np.testing.assert_allclose(np.load(tmp_path / "read.npy"), expected, atol=1e-6)


# training


def recipe_of(folder: Path, texts: list[str], teacher: Path, **sections: Any) -> Recipe:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.txt").write_text("".join(" ".join(text.split()[:40]) + "\n" for text in texts))
    return Recipe.build(
        {
            "corpus": {"path": str(folder / "texts.txt"), "holdout": 0.2},
            "teachers": [{"name": "tiny", "model": str(teacher)}],
            "student": {"static": {"of": "tiny", "dimensions": 64, "vocabulary": PIECES}, "max_length": 32},
            "method": {"name": "cosine"},
            "optimizer": {"lr": 1e-2, "heads_lr": 1e-2},
            "training": {"epochs": 6, "batch_size": 16, "use_cpu": True},
            "judging": {"speed": False, "compression": True},
            "output": str(folder / "out"),
            **sections,
        }
    )


def test_training_brings_it_nearer_to_its_teacher(tmp_path: Path, real_teacher_folder: Path, texts: list[str]) -> None:
    recipe = recipe_of(tmp_path, texts, real_teacher_folder)
    done = run(recipe)
    job = Job(recipe)
    corpus = job.corpus
    held = corpus.texts(corpus.holdout_rows)
    assert len(held) >= 20
    expected = SentenceTransformer(str(real_teacher_folder), device="cpu").encode(held)
    untrained = job.student()
    before, after = (agreement(expected, model.encode(held)) for model in (untrained, done.student))
    assert after["similarity_spearman"] > before["similarity_spearman"] + 0.02
    assert done.record["agreement"].values["similarity_spearman"] == pytest.approx(
        after["similarity_spearman"], abs=1e-4
    )
    facts = done.record["lineage"].student
    assert facts is not None and (facts.layers, facts.width, facts.max_length) == (None, 64, 32)
    assert facts.parameters == 64 * done.student[0].num_embeddings and not facts.remote_code
    card = (tmp_path / "out/student/README.md").read_text()
    assert "table of the vectors that tiny gives its word pieces" in card
    table = done.record["compressed"]
    assert table is not None and (table.texts, table.calibrated_on) == (len(held), len(corpus.train_rows))
    assert [row.width for row in table.rows][:7] == [64] * 3 + [32] * 3 + [64]
    for page in ("report.html", "report.md"):
        text = (tmp_path / "out" / page).read_text()
        assert "int8 vectors" in text and "float16 weights" in text
    assert SentenceTransformer(str(tmp_path / "out/student"), device="cpu")[0].tokenizer.truncation["max_length"] == 32


def test_resumed_is_as_if_never_stopped(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    student = {"static": {"of": "tiny", "dimensions": 16}}
    training = {"max_steps": 12, "save_every": 6, "batch_size": 8, "use_cpu": True}
    recipe = recipe_of(tmp_path, sentences[:80], tiny_bert, student=student, training=training)
    weights = tmp_path / "out/student/model.safetensors"
    train(recipe)
    whole = weights.read_bytes()
    shutil.rmtree(tmp_path / "out/checkpoints/checkpoint-12")
    shutil.rmtree(tmp_path / "out/student")
    train(recipe, resume=True)
    assert weights.read_bytes() == whole


@pytest.mark.parametrize(
    ("method", "space"),
    [
        ("mse", "teacher"),
        ("relational", "own"),
        ("leaf", "teacher"),
        ("jasper_stella", "own"),
        ("distilcse", "teacher"),
        ("gaussian", "own"),
    ],
)
def test_methods_on_sentence_vectors_train_it(
    method: str, space: str, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    student = {"static": {"of": "tiny", "dimensions": 16}, "space": space}
    training = {"max_steps": 3, "batch_size": 8, "use_cpu": True}
    recipe = recipe_of(tmp_path, sentences[:60], tiny_bert, student=student, training=training, method={"name": method})
    before = Job(recipe).student()[0].embedding.weight
    trained = SentenceTransformer(str(train(recipe)), device="cpu")
    assert trained.get_embedding_dimension() == (32 if space == "teacher" else 16)
    assert not torch.equal(trained[0].embedding.weight, before)


@pytest.mark.parametrize("method", ["talas", "emo", "dskd", "cdm", "uld", "multilevel_ot"])
def test_methods_on_layers_and_tokens_are_refused_before_teaching(
    method: str, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    student = {"static": {"of": "tiny", "dimensions": 16}}
    recipe = recipe_of(tmp_path, sentences[:60], tiny_bert, student=student, method={"name": method})
    with pytest.raises(DistilvecError) as caught:
        train(recipe)
    assert caught.value.remedy
    assert not (tmp_path / "out/stores").exists()


def test_the_recipe_says_what_is_wrong(tmp_path: Path, tiny_bert: Path) -> None:
    for student, message in (
        ({"static": {"of": "tiny"}, "model": "x"}, r"^student: .*model, shrink, fresh, static\b"),
        ({"static": {"of": "tiny", "dimension": 3}}, r'student\.static\.dimension: .*"dimensions"'),
        ({"static": {"of": "tiny", "dimensions": 0}}, r"student\.static\.dimensions: .*\(got 0\)"),
        ({"static": {"of": "tiny"}, "upcycle": {}}, "student: upcycle .*model or shrink"),
    ):
        with pytest.raises(DistilvecError, match=message):
            recipe_of(tmp_path, ["a"], tiny_bert, student=student)
