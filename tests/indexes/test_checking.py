"""Faults that are planted are found and named; clean indexes are not accused; what cannot be read is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tests.indexes.conftest import encoded

import distilvec
from distilvec.errors import DataError, DistilvecError
from distilvec.indexes import IndexCheck, check_index
from distilvec.indexes.checking import threshold
from distilvec.indexes.variants import Reader
from distilvec.students import load_student

Plant = Callable[[Path, np.ndarray, list[str]], np.ndarray]


def checked(model: Path, vectors: np.ndarray, texts: list[str], prompt: str | None = None) -> IndexCheck:
    return check_index(model, vectors, texts, prompt=prompt, rows=60, device="cpu")


def repooled(model: Path, vectors: np.ndarray, texts: list[str]) -> np.ndarray:
    opened = load_student(model, device="cpu")
    other = SentenceTransformer(modules=[opened[0], Pooling(32, pooling_mode="cls")], device="cpu")
    return np.asarray(other.encode(texts, show_progress_bar=False))


def in_bfloat16(model: Path, vectors: np.ndarray, texts: list[str]) -> np.ndarray:
    found = load_student(model, device="cpu").bfloat16().encode(texts, convert_to_numpy=False)
    return np.stack([each.float().numpy() for each in found])


def in_blocks(vectors: np.ndarray, other: np.ndarray, first: int, last: int) -> np.ndarray:
    made = vectors.copy()
    made[first : last + 1] = other[first : last + 1]
    return made


def turned(vectors: np.ndarray) -> np.ndarray:
    """As another model's of the same texts: another space, mostly the same texts alike."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(32, 32)))[0]
    return np.asarray(np.sign(vectors) * np.abs(vectors) ** 0.7 @ turn, np.float32)


CLEAN: dict[str, Plant] = {
    "float16 storage": lambda model, vectors, texts: vectors.astype(np.float16),
    "bfloat16 weights": in_bfloat16,
    "one at a time": lambda model, vectors, texts: encoded(model, texts, batch_size=1),
    "float64": lambda model, vectors, texts: vectors.astype(np.float64),
}
#: How it is planted, the kind, and the rows that are told.
PLANTED: dict[str, tuple[Plant, str, list[tuple[int, int]]]] = {
    "prompt": (lambda model, vectors, texts: encoded(model, texts, prompt="passage: "), "prompt", []),
    "pooling": (repooled, "pooling", []),
    "another model": (lambda model, vectors, texts: turned(vectors), "another model", []),
    "other texts": (
        lambda model, vectors, texts: turned(vectors)[np.random.default_rng(1).permutation(len(texts))],
        "unrelated",
        [],
    ),
    "shuffled": (
        lambda model, vectors, texts: vectors[np.random.default_rng(2).permutation(len(texts))],
        "shuffled rows",
        [],
    ),
    "a block of another": (
        lambda model, vectors, texts: in_blocks(vectors, turned(vectors), 41, 137),
        "mixed models",
        [(41, 137)],
    ),
    "lengths": (
        lambda model, vectors, texts: vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        "normalisation",
        [],
    ),
    "scaled rows": (lambda model, vectors, texts: in_blocks(vectors, 3 * vectors, 0, 99), "normalisation", [(0, 99)]),
    "the first numbers": (lambda model, vectors, texts: vectors[:, :20], "shortened", []),
    "wider": (lambda model, vectors, texts: np.hstack([vectors, vectors]), "width", []),
}


def test_a_threshold_of_few_rows_accuses_seldom() -> None:
    """The deviation of 16 rows is not the true one."""
    rng, texts = np.random.default_rng(0), [str(number) for number in range(500)]

    class Rounding:
        """Reads into the plane; of 16 texts alone, a little off."""

        def rounded(self, asked: list[str]) -> np.ndarray:
            cosine = 1 - np.exp(rng.normal(-5.0, 0.5, len(asked)))
            found = np.stack([cosine, np.sqrt(1 - cosine**2)], axis=1)
            found[16:] = 0.0
            return found

    read = np.tile(np.array([1.0, 0.0], np.float32), (500, 1))
    accused = 0
    for _ in range(300):
        least = threshold(Rounding(), texts, read)  # type: ignore[arg-type]
        accused += bool((1 - np.exp(rng.normal(-5.0, 0.5, 500)) < least).any())
    assert accused <= 3


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_index_is_not_accused(name: str, tiny_bert: Path, plain: np.ndarray, sentences: list[str]) -> None:
    found = checked(tiny_bert, CLEAN[name](tiny_bert, plain, sentences), sentences)
    assert found.belongs and found.findings == [] and found.checked == 60 and found.rows == 200
    assert found.cosine is not None and found.cosine > found.least > 0.9
    assert found.passes < 0.05 and "belong together" in found.text() and "0.1% of checks" in found.text()


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_is_found_and_named(name: str, tiny_bert: Path, plain: np.ndarray, sentences: list[str]) -> None:
    plant, kind, rows = PLANTED[name]
    found = checked(tiny_bert, plant(tiny_bert, plain, sentences), sentences)
    assert [each.kind for each in found.findings] == [kind], found.text()
    if rows:
        assert found.findings[0].rows == rows and found.findings[0].exact
    assert not found.belongs and f"  {kind}: " in found.text() and found.to_dict()["belongs"] is False


def test_rows_shifted_by_one_are_reported_as_shifted(tiny_bert: Path, plain: np.ndarray, sentences: list[str]) -> None:
    found = checked(tiny_bert, np.roll(plain, 1, axis=0), sentences)
    assert found.findings[0].kind == "shuffled rows" and "lie in other rows, 1 later" in found.findings[0].what


def test_the_prompt_of_an_index_is_named_and_may_be_given(
    tiny_bert: Path, plain: np.ndarray, sentences: list[str]
) -> None:
    prompted = encoded(tiny_bert, sentences, prompt="query: ")
    assert '"query: "' in checked(tiny_bert, prompted, sentences).findings[0].what
    assert checked(tiny_bert, prompted, sentences, prompt="query: ").belongs
    (found,) = checked(tiny_bert, plain, sentences, prompt="query: ").findings
    assert found.kind == "prompt" and "read without a prompt" in found.what


def test_another_length_touches_long_texts_alone(tiny_bert: Path, sentences: list[str]) -> None:
    long = [f"{text} {' '.join(sentences[row : row + 12])}" if row % 2 else text for row, text in enumerate(sentences)]
    short = load_student(tiny_bert, device="cpu")
    own = short.max_seq_length
    short.max_seq_length = 64
    found = checked(tiny_bert, np.asarray(short.encode(long, show_progress_bar=False)), long)
    assert own != 64 and [each.kind for each in found.findings] == ["length"]
    assert "cut after 64 tokens" in found.findings[0].what


def test_every_wrong_row_is_reported_if_all_are_checked(
    tiny_bert: Path, plain: np.ndarray, sentences: list[str]
) -> None:
    wrong = np.sort(np.random.default_rng(3).permutation(200)[:30])
    vectors = plain.copy()
    vectors[wrong] = turned(plain)[wrong]
    found = check_index(tiny_bert, vectors, sentences, rows=None, device="cpu").findings[0]
    told = [row for first, last in found.rows for row in range(first, last + 1)]
    assert found.kind == "mixed models" and found.exact and told == wrong.tolist()
    some = checked(tiny_bert, vectors, sentences).findings[0]
    assert not some.exact and {row for row, _ in some.rows} <= set(wrong.tolist())


def test_two_neighbouring_faults_are_each_reported_by_row(
    tiny_bert: Path, plain: np.ndarray, sentences: list[str]
) -> None:
    vectors = in_blocks(plain, encoded(tiny_bert, sentences, prompt="query: "), 31, 84)
    vectors = in_blocks(in_blocks(vectors, turned(plain), 85, 133), 3 * plain, 134, 170)
    found = {each.kind: each for each in checked(tiny_bert, vectors, sentences).findings}
    told = {kind: each.rows for kind, each in found.items()}
    assert told == {"prompt": [(31, 84)], "mixed models": [(85, 133)], "normalisation": [(134, 170)]}
    assert all(each.exact for each in found.values())


def test_one_wrong_row_does_not_have_the_index_read(
    tiny_bert: Path, plain: np.ndarray, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{text} {round}" for round in range(10) for text in sentences]
    vectors = encoded(tiny_bert, texts)
    vectors[0] = turned(vectors)[0]  # the first row is always looked at
    asked = [0]
    read = Reader.read

    def counted(self: Reader, texts: list[str], *rest: object) -> np.ndarray:
        asked[0] += len(texts) * (not rest)
        return read(self, texts, *rest)

    monkeypatch.setattr(Reader, "read", counted)
    found = check_index(tiny_bert, vectors, texts, rows=60, device="cpu").findings[0]
    assert found.kind in ("mixed models", "unrelated") and not found.exact
    assert asked[0] <= 48 + 60 + 4 * 60  # to calibrate, to check, and beside the wrong one


def test_zero_rows_are_reported_and_not_compared(tiny_bert: Path, plain: np.ndarray, sentences: list[str]) -> None:
    vectors = plain.copy()
    vectors[[3, 4]], vectors[90, 5] = 0, np.nan
    found = checked(tiny_bert, vectors, sentences)
    assert {(each.kind, tuple(each.rows)) for each in found.findings} == {
        ("damaged rows", ((3, 4),)),
        ("damaged rows", ((90, 90),)),
    }


def test_zero_rows_are_no_part_of_the_block_beside_them(
    tiny_bert: Path, plain: np.ndarray, sentences: list[str]
) -> None:
    vectors = in_blocks(plain, np.zeros_like(plain), 60, 101)
    vectors = in_blocks(vectors, encoded(tiny_bert, sentences, prompt="query: "), 102, 150)
    found = checked(tiny_bert, vectors, sentences).findings
    assert {each.kind: each.rows for each in found} == {"damaged rows": [(60, 101)], "prompt": [(102, 150)]}


def test_it_is_called_from_the_package(
    tiny_bert: Path, plain: np.ndarray, sentences: list[str], tmp_path: Path
) -> None:
    np.save(tmp_path / "v.npy", plain)
    (tmp_path / "t.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    twice = [*sentences[:100], *sentences[:100]]
    assert distilvec.check_index(str(tiny_bert), tmp_path / "v.npy", tmp_path / "t.txt", rows=20).belongs
    found = distilvec.check_index(tiny_bert, np.vstack([plain[:100], plain[:100]]), twice, rows=20)
    assert found.belongs and found.notes == ["100 rows repeat the text of an earlier row."]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda given: given | {"texts": None}, "vectors: .*--texts"),
        (lambda given: given | {"texts": given["texts"][:-1]}, "200 vectors, but 199 texts"),
        (lambda given: given | {"texts": [7, *given["texts"][1:]]}, "texts: row 0 is int"),
        (lambda given: given | {"vectors": given["vectors"][0]}, r"vectors: .*float32 \[32\]"),
        (lambda given: given | {"vectors": given["vectors"].astype(np.int8)}, "vectors: .*int8"),
        (lambda given: given | {"vectors": given["vectors"][:0], "texts": []}, "vectors: 0 of 0 rows.*16"),
        (lambda given: given | {"vectors": np.full((200, 32), np.nan)}, "vectors: 0 of 200 rows.*16"),
        (lambda given: given | {"vectors": "nowhere.npy"}, r"nowhere\.npy: "),
        (lambda given: given | {"vectors": "nowhere.parquet"}, r"nowhere\.parquet: "),
        (lambda given: given | {"texts": "texts.csv"}, r"texts\.csv: "),
        (lambda given: given | {"model": "./nowhere"}, r"\./nowhere: "),
        (lambda given: given | {"rows": 3}, "rows: 3 .*16"),
    ],
)
def test_indexes_that_cannot_be_checked_are_refused(
    change: Callable[[dict[str, object]], dict[str, object]],
    told: str,
    tiny_bert: Path,
    plain: np.ndarray,
    sentences: list[str],
) -> None:
    given = change({"model": tiny_bert, "vectors": plain, "texts": list(sentences), "rows": 20})
    with pytest.raises(DistilvecError, match=told):
        check_index(**given)  # type: ignore[arg-type]


def test_a_folder_as_vectors_file_is_refused(tiny_bert: Path, sentences: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):
        check_index(tiny_bert, tmp_path, sentences)


def unread(texts: Sequence[str], count: int) -> list[str]:
    """The last ones, of which the tiny models know no piece."""
    return [*texts[:-count], *(chr(0x16A0 + number) * 3 for number in range(count))]


def test_unreadable_texts_do_not_hide_an_index_of_another_model(tiny_static: Path, sentences: list[str]) -> None:
    texts = unread(sentences, 20)
    vectors = load_student(tiny_static, device="cpu").encode(texts, show_progress_bar=False)
    assert not vectors[-20:].any()
    noise = np.random.default_rng(0).normal(size=vectors.shape)
    assert check_index(tiny_static, vectors[:-20], texts[:-20], rows=None, device="cpu").belongs
    found = check_index(tiny_static, vectors + 0.2 * noise, texts, rows=None, device="cpu")
    assert found.least > 0.99 and not found.belongs


def test_index_of_unreadable_texts_is_refused(tiny_static: Path, sentences: list[str]) -> None:
    vectors = np.random.default_rng(0).normal(size=(200, 16))
    with pytest.raises(DataError, match=r"^texts: the model reads something in 10 of 200 .*language"):
        check_index(tiny_static, vectors, unread(sentences, 190), rows=None, device="cpu")
