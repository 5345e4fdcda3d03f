from __future__ import annotations

import gzip
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from tests.alignment import cutters

from distilvec.alignment import MODES
from distilvec.alignment.drawing import align_command, align_text, alignment_table
from distilvec.alignment.loading import load_tokenizer, vocabulary_of
from distilvec.errors import DistilvecError

TEXT = (
    "The unbelievable story of the Café in Zürich 😀 and of many other words that fill more than one line of a picture"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tokenizer.json of each kind."""
    folder = tmp_path_factory.mktemp("tokenizers")
    made = {}
    for kind in cutters.KINDS:
        made[kind] = folder / kind / "tokenizer.json"
        made[kind].parent.mkdir()
        cutters.train(kind).save(str(made[kind]))
    return made


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("teacher", ["byte_level", "bytes after sentencepiece"])
def test_blocks_hold_every_token_once_and_every_cell_of_the_path(
    files: dict[str, Path], teacher: str, mode: str
) -> None:
    drawn = align_text(TEXT, load_tokenizer(files["uncased wordpiece"]), load_tokenizer(files[teacher]), mode)
    blocks = drawn.blocks()
    assert [i for rows, _ in blocks for i in rows] == list(range(len(drawn.student)))
    assert [j for _, columns in blocks for j in columns] == list(range(len(drawn.teacher)))
    assert all(any(i in rows and j in columns for rows, columns in blocks) for i, j in drawn.path)
    assert drawn.pairs and all(drawn.paired)
    if mode == "strict":
        assert drawn.equal.issuperset(drawn.pairs)
    console = Console(width=200)
    with console.capture() as captured:
        console.print(alignment_table(drawn))
    printed = captured.get()
    assert all(word in printed for word in (*drawn.student, *drawn.teacher))


def test_marks_say_what_is_paired(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    file = files["cased wordpiece"]
    align_command("the story", file, file)
    assert capsys.readouterr().out.count("=") == len(load_tokenizer(file).encode("the story").ids)
    align_command("The story", files["byte_level"], files["uncased wordpiece"], "path")
    out = capsys.readouterr().out
    assert "student" in out and "teacher" in out
    assert "path: " in out and "% of" in out


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", [TEXT, "I ❤️ 😀👩‍👩‍👧 it 🇩🇪", "The unbelievable tokenizer"])
def test_marks_stand_between_the_tokens_of_a_pair(files: dict[str, Path], mode: str, text: str) -> None:
    drawn = align_text(text, load_tokenizer(files["uncased wordpiece"]), load_tokenizer(files["byte_level"]), mode)
    table = alignment_table(drawn)
    told = [[getattr(cell, "plain", cell) for cell in column.cells] for column in table.columns]
    rows = list(zip(*told, strict=True))
    assert " ".join(left for left, _, _ in rows if left).split() == " ".join(drawn.student).split()
    assert " ".join(right for _, _, right in rows if right).split() == " ".join(drawn.teacher).split()
    if mode != "full":
        expected = [(drawn.student[i], "=" if (i, j) in drawn.equal else "~", drawn.teacher[j]) for i, j in drawn.pairs]
        assert [row for row in rows if row[1] != "·"] == expected


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_picture_is_written(files: dict[str, Path], tmp_path: Path, ending: str) -> None:
    pictures = [tmp_path / name / f"picture.{ending}" for name in ("one", "two")]
    for picture in pictures:
        align_command(TEXT, files["uncased wordpiece"], files["sentencepiece"], "reciprocal", picture)
    content = pictures[0].read_bytes()
    assert content == pictures[1].read_bytes()
    if ending == "png":
        from PIL import Image

        width, height = Image.open(pictures[0]).size
        assert width > 1000 and height > 200
    else:
        root = ElementTree.fromstring(content)
        drawn = align_text(
            TEXT, load_tokenizer(files["uncased wordpiece"]), load_tokenizer(files["sentencepiece"]), "reciprocal"
        )
        boxes = [each for each in root.iter() if each.get("id", "").startswith("patch_")]
        assert len(boxes) == 1 + len(drawn.student) + len(drawn.teacher)  # and the ground


def test_a_model_is_as_good_as_its_tokenizer(tiny_bert: Path, files: dict[str, Path], tmp_path: Path) -> None:
    plain = load_tokenizer(files["byte_level"])
    zipped = tmp_path / "tokenizer.json.gz"
    zipped.write_bytes(gzip.compress(files["byte_level"].read_bytes()))
    parts = tmp_path / "parts"
    parts.mkdir()
    plain.model.save(str(parts))
    for name in (zipped, tmp_path, parts, files["byte_level"].parent):
        assert load_tokenizer(name).encode(TEXT).tokens == plain.encode(TEXT).tokens
    words = tmp_path / "words"
    words.mkdir()
    cased = load_tokenizer(files["cased wordpiece"])
    (words / "vocab.txt").write_text("\n".join(["[PAD]", "[SEP]", "[MASK]", *vocabulary_of(cased)]))
    assert (
        load_tokenizer(words).encode("The story", add_special_tokens=False).tokens == cased.encode("The story").tokens
    )
    inner = tmp_path / "model" / "0_Transformer"  # as sentence-transformers had them
    inner.mkdir(parents=True)
    (inner / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "story"]))
    (inner / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}')
    assert load_tokenizer(inner.parent).encode("The story").tokens == ["[CLS]", "the", "story", "[SEP]"]
    assert "the" in load_tokenizer(tiny_bert).encode("The story").tokens


def test_unusable_arguments_of_align_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    file = files["uncased wordpiece"]
    with pytest.raises(DistilvecError, match="/nowhere: .*tokenizer.json"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(DistilvecError, match=r"/broken\.json: .*line 1 column 1"):
        load_tokenizer(tmp_path / "broken.json")
    with pytest.raises(DistilvecError, match='^--mode: .*"recipocal".*"reciprocal"'):
        align_command("text", file, file, "recipocal")
    with pytest.raises(DistilvecError, match="^text: The student's .*' '"):
        align_command(" ", file, file)
    with pytest.raises(DistilvecError, match=r'^--picture: .*\.png or \.svg.*"\.gif"'):
        align_command("text", file, file, picture=tmp_path / "a.gif")
