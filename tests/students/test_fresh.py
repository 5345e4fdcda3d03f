"""Students from nothing, and what they can take from a teacher at the start."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from distilvec.errors import DistilvecError
from distilvec.functional import relation_matrix
from distilvec.students import StudentTap, describe_student, fresh, load_student, ship
from distilvec.students.fresh_models import averaged_embeddings, train_tokenizer
from distilvec.teachers import load_teacher
from distilvec.training.tokens import TokenizedCorpus


@pytest.fixture(scope="module")
def teacher(real_teacher_folder: Path) -> SentenceTransformer:
    return load_student(real_teacher_folder, device="cpu").eval()


def test_a_fresh_student_has_the_size_asked_for(sentences: list[str], tmp_path: Path) -> None:
    student = fresh(layers=3, width=64, vocabulary=500, texts=iter(sentences), max_length=40).to("cpu").eval()
    said = describe_student(student)
    assert (said["layers"], said["width"], said["max_length"], said["vocabulary"]) == (3, 64, 40, 500)
    # Tables of pieces, positions and types with a norm; per block four square maps, two feed-forward maps, and norms.
    blocks = 3 * (4 * (64 * 64 + 64) + 2 * 64 * 256 + 256 + 64 + 4 * 64)
    assert said["parameters"] == (500 + 40 + 2) * 64 + 2 * 64 + blocks
    assert StudentTap(student).info.layers == 3
    vectors = student.encode(["short", "a text far longer than forty tokens " * 20])
    assert vectors.shape == (2, 64)
    student.save(str(tmp_path / "fresh"), create_model_card=False)
    again = load_student(tmp_path / "fresh", device="cpu")
    assert (again.encode(sentences[:10]) == student.encode(sentences[:10])).all()
    assert str(tmp_path) not in (tmp_path / "fresh" / "config.json").read_text()


def test_weights_come_from_the_generator(sentences: list[str], tiny_bert: Path) -> None:
    def make(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        student = fresh(layers=1, width=32, tokenizer=tiny_bert)
        return student[0].model.encoder.layer[0].attention.self.query.weight.detach().cpu()

    assert torch.equal(make(1), make(1))
    assert not torch.equal(make(1), make(2))


def test_a_new_tokenizer_reads_everything(sentences: list[str]) -> None:
    tokenizer = train_tokenizer(sentences[:50], 400)
    assert tokenizer.backend_tokenizer.to_str() == train_tokenizer(sentences[:50], 400).backend_tokenizer.to_str()
    assert len(tokenizer) == 400
    for text in [*sentences, "日本語 🎉 ñ \u200d Ω"]:
        ids = tokenizer(text)["input_ids"]
        assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
        assert tokenizer.unk_token_id not in ids


def test_a_given_tokenizer_is_kept(tiny_bert: Path, sentences: list[str]) -> None:
    student = fresh(layers=1, width=32, tokenizer=tiny_bert)
    given = load_student(tiny_bert, device="cpu").tokenizer
    for text in sentences[:20]:
        assert student.tokenizer(text)["input_ids"] == given(text)["input_ids"]


def test_a_tokenizer_whose_ids_have_gaps(tiny_bert: Path, tmp_path: Path) -> None:
    given = Path(shutil.copytree(tiny_bert, tmp_path / "given"))
    spec = json.loads((given / "tokenizer.json").read_text())
    pieces = spec["model"]["vocab"]
    word = next(piece for piece in reversed(pieces) if piece.isalpha())
    pieces[word] = 70_000
    (given / "tokenizer.json").write_text(json.dumps(spec))
    student = fresh(layers=1, width=32, tokenizer=given, init_from=load_student(tiny_bert, device="cpu")).to("cpu")
    own, before = (model[0].model.get_input_embeddings().weight for model in (student, load_student(tiny_bert)))
    assert student.tokenizer(word, add_special_tokens=False)["input_ids"] == [70_000] and len(own) == 70_001
    old = load_student(tiny_bert).tokenizer.get_vocab()[word]
    torch.testing.assert_close(own[70_000], before[old].to("cpu"))
    assert np.isfinite(student.encode([word])).all()
    tokens = TokenizedCorpus.build(student, lambda rows: [word] * len(rows), 1, tmp_path)
    assert tokens.ids.tolist().count(70_000) == 1  # two bytes an id would not hold it
    ship(student, tmp_path / "student")
    assert load_teacher(model=str(tmp_path / "student")).vocabulary[70_000] == word


def test_pieces_start_from_the_mean_of_the_teachers_rows(teacher: SentenceTransformer, sentences: list[str]) -> None:
    student = fresh(layers=2, width=384, vocabulary=600, texts=sentences, init_from=teacher).to("cpu")
    table = teacher[0].model.get_input_embeddings().weight
    own = student[0].model.get_input_embeddings().weight
    vocabulary = student.tokenizer.get_vocab()
    rows = {"[CLS]": [101], "[SEP]": [102], "[PAD]": [0], "[MASK]": [103]}
    words = [piece for piece in vocabulary if piece.startswith("Ġ") and piece[1:].isascii() and piece[1:].isalpha()]
    assert len(words) > 100
    for word in words:
        rows[word] = teacher.tokenizer(word[1:], add_special_tokens=False)["input_ids"]
    for piece, ids in rows.items():
        torch.testing.assert_close(own[vocabulary[piece]], table[ids].mean(0))
    # Parts of characters have no text; they start from the mean and not from nothing.
    averaged, found = averaged_embeddings(student.tokenizer, teacher.tokenizer, table.detach())
    assert not found.all()
    torch.testing.assert_close(averaged[~found][0], averaged[found].mean(0))


def test_shared_pieces_of_one_kind_take_their_own_row(teacher: SentenceTransformer, tiny_bert: Path) -> None:
    tokenizer = load_student(tiny_bert, device="cpu").tokenizer
    table = torch.arange(30_522.0)[:, None].expand(-1, 2)
    averaged, _ = averaged_embeddings(tokenizer, teacher.tokenizer, table)
    theirs = teacher.tokenizer.get_vocab()
    shared = [piece for piece in tokenizer.get_vocab() if piece in theirs and piece.startswith("##")]
    assert len(shared) > 20
    for piece in shared:
        assert averaged[tokenizer.get_vocab()[piece], 0] == theirs[piece]


def test_a_narrower_student_keeps_the_neighbourhoods(teacher: SentenceTransformer, sentences: list[str]) -> None:
    student = fresh(layers=1, width=128, vocabulary=600, texts=sentences, init_from=teacher).to("cpu")
    own = student[0].model.get_input_embeddings().weight.detach()
    averaged, _ = averaged_embeddings(
        student.tokenizer, teacher.tokenizer, teacher[0].model.get_input_embeddings().weight.detach()
    )
    assert own.shape == (600, 128)
    torch.testing.assert_close(own.square().mean(), averaged.square().mean())
    whole, narrow = (torch.corrcoef(rows - rows.mean(0)) for rows in (averaged, own))
    assert torch.corrcoef(torch.stack([whole.flatten(), narrow.flatten()]))[0, 1] > 0.9


def test_fewer_pieces_than_the_width_keep_their_neighbourhoods(
    teacher: SentenceTransformer, sentences: list[str]
) -> None:
    student = fresh(layers=1, width=320, vocabulary=270, texts=sentences, init_from=teacher).to("cpu")
    table = teacher[0].model.get_input_embeddings().weight.detach().cpu()
    rows, _ = averaged_embeddings(student.tokenizer, teacher.tokenizer, table)
    own = student[0].model.get_input_embeddings().weight.detach()
    assert own.shape == (270, 320)
    torch.testing.assert_close(relation_matrix(own), relation_matrix(rows), atol=1e-4, rtol=0)


def test_blocks_of_a_teacher_of_the_same_shape_are_copied(
    teacher: SentenceTransformer, sentences: list[str], tmp_path: Path
) -> None:
    whole = (
        fresh(layers=6, width=384, tokenizer=teacher[0].model.config._name_or_path, init_from=teacher, max_length=128)
        .to("cpu")
        .eval()
    )
    short = [text for text in sentences if len(text) < 300][:12]
    vectors = torch.nn.functional.normalize(torch.from_numpy(whole.encode(short)))
    torch.testing.assert_close(vectors, torch.from_numpy(teacher.encode(short)), rtol=1e-4, atol=1e-5)
    two = fresh(layers=2, width=384, vocabulary=600, texts=sentences, init_from=teacher).to("cpu")
    theirs = teacher[0].model.encoder.layer
    for own, number in zip(two[0].model.encoder.layer, (0, 5), strict=True):
        state = theirs[number].state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in own.state_dict().items())


def test_a_teacher_of_another_kind_gives_its_table_only(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    teacher = load_student(tiny_model_folders["qwen3"], device="cpu")
    student = fresh(layers=2, width=32, vocabulary=400, texts=sentences, init_from=teacher).to("cpu")
    table = teacher[0].model.get_input_embeddings().weight
    own = student[0].model.get_input_embeddings().weight
    shared = sorted(set(student.tokenizer.get_vocab()) & set(teacher.tokenizer.get_vocab()) - set("[]"))
    for piece in shared[:50]:
        torch.testing.assert_close(
            own[student.tokenizer.get_vocab()[piece]], table[teacher.tokenizer.get_vocab()[piece]]
        )


def test_impossible_sizes_are_refused(sentences: list[str], tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match="Give tokenizer= or texts="):
        fresh(layers=1, width=32)
    with pytest.raises(DistilvecError, match=r"\b5\b.*\b32\b"):
        fresh(layers=1, width=32, heads=5, tokenizer=tiny_bert)
    with pytest.raises(DistilvecError, match=r"vocabulary is 260.*\b261\b"):
        fresh(layers=1, width=32, vocabulary=260, texts=sentences)
    with pytest.raises(DistilvecError, match=re.escape(f"{tmp_path}: ") + r".*tokenizer\.json"):
        fresh(layers=1, width=32, tokenizer=tmp_path)
    with pytest.raises(DistilvecError, match=r"\b64\b.*\b32\b.*init_from"):
        fresh(layers=1, width=64, tokenizer=tiny_bert, init_from=load_student(tiny_bert, device="cpu"))


def test_fresh_student_of_a_left_padding_tokenizer_ignores_padding(tiny_model_folders: dict[str, Path]) -> None:
    student = fresh(layers=2, width=16, tokenizer=tiny_model_folders["qwen3"], max_length=64)
    texts = ["a small text", "a much longer text with many more words than the other one has, so that it is padded"]
    np.testing.assert_allclose(student.encode(texts)[0], student.encode(texts[:1])[0], atol=1e-5)


def test_fresh_student_from_teachers_with_other_parameter_names(tiny_model_folders: dict[str, Path]) -> None:
    for kind in ("distilbert", "gpt2"):
        teacher = load_student(tiny_model_folders[kind], device="cpu")
        width = teacher.get_embedding_dimension()
        assert width is not None
        student = fresh(layers=1, width=width, tokenizer=tiny_model_folders["bert"], init_from=teacher)
        assert student.encode(["a text"]).shape == (1, width)
