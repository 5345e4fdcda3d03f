"""Corpora of images: folders, .npz, parquet, tables of paths, lists; and what is wrong with them."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.corpus.pictures import encoded, noise, png_header

from distilvec.corpus import Corpus, content_keys, read_corpus
from distilvec.errors import DataError, DistilvecError
from distilvec.kinds.image.images import data_uri, open_image


def arrays(corpus: Corpus) -> list[list[Any]]:
    return [np.asarray(open_image(item)).tolist() for item in corpus.texts()]


def rejected(corpus: Corpus) -> dict[str, str]:
    lines = (corpus.folder / "rejected.jsonl").read_text().splitlines()
    return {Path(entry["file"]).name: entry["reason"] for entry in map(json.loads, lines)}


def make_folder(place: Path) -> Path:
    for number, name in enumerate(["cat/a.png", "cat/deep/b.PNG", "dog/c.jpg", "dog/d.bmp", "e.webp", "f.tif"]):
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        kind = {".png": "PNG", ".jpg": "JPEG", ".bmp": "BMP", ".webp": "WEBP", ".tif": "TIFF"}[file.suffix.lower()]
        file.write_bytes(encoded(noise(number), kind))
    return place


def test_a_folder_recursively_with_the_sub_folder_as_label(tmp_path: Path) -> None:
    place = make_folder(tmp_path / "in")
    (place / ".hidden.png").write_bytes(encoded(noise(9)))
    (place / ".cache").mkdir()
    (place / ".cache" / "g.png").write_bytes(encoded(noise(10)))
    corpus = read_corpus(place, tmp_path / "out", holdout=0.0)
    assert corpus.modality == "image" and corpus.audit.lengths == {} and str(corpus.audit).startswith("6 rows")
    assert [Path(item).name for item in corpus.texts()[:5]] == ["a.png", "b.PNG", "c.jpg", "d.bmp", "e.webp"]
    assert corpus.texts()[0] == str(place / "cat" / "a.png") and corpus.texts()[5].startswith("data:image/tiff;base64,")
    assert arrays(corpus)[0] == noise(0).tolist() and arrays(corpus)[5] == noise(5).tolist()
    assert np.array_equal(content_keys(corpus.texts(), modality="image"), corpus.keys)
    labelled = read_corpus(place, tmp_path / "labelled", label="folder", domain="folder", holdout=0.0)
    assert labelled.label_names == ["cat", "dog"] and labelled.labels is not None
    assert labelled.labels.tolist() == [0, 0, 1, 1] and labelled.domain_names == ["cat", "dog"]
    assert labelled.audit.rejected == {"missing label": 2}
    with pytest.raises(DataError, match=r'"foldr".*"folder"'):
        read_corpus(place, tmp_path / "no", label="foldr")


def test_bad_files_in_a_folder_are_counted_and_named(tmp_path: Path) -> None:
    place = make_folder(tmp_path / "in")
    copy = (place / "cat" / "a.png").read_bytes()
    (place / "dog" / "same.png").write_bytes(copy)
    (place / "dog" / "same.bmp").write_bytes(encoded(noise(0), "BMP"))
    (place / "bomb.png").write_bytes(png_header(100_000, 100_000))
    (place / "cut.jpg").write_bytes(encoded(noise(0, 200, 200), "JPEG")[:5000])
    (place / "text.png").write_text("no picture")
    (place / "notes.md").write_text("about these")
    (place / "drawing.svg").write_text("<svg/>")
    (place / "nowhere.png").symlink_to(tmp_path / "gone.png")
    (place / "dog" / "circle").symlink_to(place)
    corpus = read_corpus(place, tmp_path / "out", holdout=0.0)
    assert len(corpus) == 6 and corpus.audit.duplicates == 2
    assert rejected(corpus) == {
        "bomb.png": "too many pixels",
        "cut.jpg": "damaged image",
        "text.png": "not an image",
        "notes.md": "not an image",
        "drawing.svg": "not an image",
        "nowhere.png": "link that leads nowhere",
        "same.png": "duplicate",
        "same.bmp": "duplicate",
    }
    with pytest.raises(DataError, match=r"bomb\.png, line 1: .*strict"):
        read_corpus(place, tmp_path / "strict", strict=True)


def test_a_folder_is_read_again_when_a_file_has_changed(tmp_path: Path) -> None:
    place = make_folder(tmp_path / "in")
    first = read_corpus(place, tmp_path / "out", holdout=0.0)
    written = (tmp_path / "out" / "corpus.json").stat().st_mtime_ns
    assert read_corpus(place, tmp_path / "out", holdout=0.0).fingerprint == first.fingerprint
    assert (tmp_path / "out" / "corpus.json").stat().st_mtime_ns == written
    (place / "cat" / "a.png").write_bytes(encoded(noise(77)))
    assert read_corpus(place, tmp_path / "out", holdout=0.0).fingerprint != first.fingerprint


def test_the_files_of_a_folder_decide_its_kind_unless_it_is_given(tmp_path: Path) -> None:
    mixed = make_folder(tmp_path / "mixed")
    (mixed / "README.txt").write_text("What this is.\n")
    assert len(read_corpus(mixed, tmp_path / "described", holdout=0.0)) == 6, "it is about the others"
    (mixed / "README.txt").unlink()
    (mixed / "notes.txt").write_text("one\ntwo\n")
    with pytest.raises(DistilvecError, match=r"notes\.txt.*corpus\.modality"):
        read_corpus(mixed, tmp_path / "out")
    assert read_corpus(mixed, tmp_path / "texts", modality="text", holdout=0.0).texts() == ["one", "two"]
    images = read_corpus(mixed, tmp_path / "images", modality="image", holdout=0.0)
    assert len(images) == 6 and images.audit.rejected == {"not an image": 1}
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.md").write_text("x")
    with pytest.raises(DataError, match=r"/none: .*\.bmp.*\.webp"):
        read_corpus(tmp_path / "none", tmp_path / "out", modality="image")
    with pytest.raises(DistilvecError, match=r'corpus\.modality: .*"imge".*"image"'):
        read_corpus(mixed, tmp_path / "out", modality="imge")  # type: ignore[arg-type]
    for wrong in ({"teacher_text": "path"}, {"text": ["image", "path"], "joint": True}):
        with pytest.raises(DistilvecError, match=rf"corpus\.{list(wrong)[-1]}: .*images"):
            read_corpus(mixed, tmp_path / "out", modality="image", **wrong)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_of_pixels(tmp_path: Path, save: Any) -> None:
    train, test = np.stack([noise(n) for n in range(20)]), np.stack([noise(n)[:, :, :1] for n in range(20, 25)])
    labels = np.arange(20, dtype=np.uint8) % 3
    file = tmp_path / "a.npz"
    save(file, train_images=train, train_labels=labels[:, None], names=np.array(["x", "y"] * 10), test_images=test)
    corpus = read_corpus(file, tmp_path / "out", text="train_images", label="train_labels", domain="names", holdout=0.0)
    assert corpus.modality == "image" and arrays(corpus) == train.tolist()
    assert corpus.labels is not None and corpus.labels.tolist() == labels.tolist()
    assert corpus.domain_names == ["x", "y"]
    grey = read_corpus(file, tmp_path / "grey", text="test_images", holdout=0.0)
    assert arrays(grey) == np.repeat(test, 3, axis=3).tolist()
    with pytest.raises(DataError, match=r"a\.npz: .*corpus\.text to train_images or test_images"):
        read_corpus(file, tmp_path / "no")
    with pytest.raises(DataError, match=r'a\.npz: .*"train_image".*"train_images"'):
        read_corpus(file, tmp_path / "no", text="train_image")
    with pytest.raises(DataError, match=r'a\.npz: .*\b5 .*"train_labels" uint8 \[20, 1\]'):
        read_corpus(file, tmp_path / "no", text="test_images", label="train_labels")
    with pytest.raises(DataError, match=r'a\.npz: .*"names" <U1 \[20\]'):
        read_corpus(file, tmp_path / "no", text="names")
    save(tmp_path / "one.npz", pictures=train[:, :, :, 0], labels=labels)
    assert len(read_corpus(tmp_path / "one.npz", tmp_path / "one", label="labels", holdout=0.0)) == 20


def test_npz_of_files_in_a_row(tmp_path: Path) -> None:
    files = [encoded(noise(n), "JPEG" if n % 2 else "PNG") for n in range(6)]
    files[4] = files[4][:30]
    offsets = np.cumsum([0, *map(len, files)])
    content = np.frombuffer(b"".join(files), np.uint8)
    labels = np.arange(6, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", jpeg_bytes=content, offsets=offsets, labels=labels)
    for number, text in enumerate(["jpeg_bytes", "text"]):
        corpus = read_corpus(tmp_path / "a.npz", tmp_path / str(number), text=text, label="labels", holdout=0.0)
        assert corpus.audit.rejected == {"damaged image": 1}
        assert corpus.labels is not None and corpus.labels.tolist() == [0, 1, 2, 3, 5]
        assert corpus.texts() == [data_uri(file) for file in [*files[:4], files[5]]]
    for wrong in (offsets[1:], offsets[:-1], offsets[::-1].copy()):
        np.savez(tmp_path / "b.npz", jpeg_bytes=content, offsets=wrong)
        with pytest.raises(DataError, match=r'b\.npz: .*"jpeg_bytes" uint8 \[\d.*"offsets"'):
            read_corpus(tmp_path / "b.npz", tmp_path / "no", text="jpeg_bytes")


class Boom:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("/tmp/distilvec-was-unpickled"),))


def with_header(header: str, content: bytes) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


def test_hostile_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "pickled.npz", images=np.array([Boom(), Boom()], dtype=object))
    with pytest.raises(DataError, match=r'pickled\.npz: .*"images" of pickled'):
        read_corpus(tmp_path / "pickled.npz", tmp_path / "out", text="images")
    assert not Path("/tmp/distilvec-was-unpickled").exists()
    np.savez(tmp_path / "turned.npz", images=np.asfortranarray(np.zeros((4, 5, 6), np.uint8)))
    with pytest.raises(DataError, match=r'turned\.npz: .*"images" .*numpy\.ascontiguousarray'):
        read_corpus(tmp_path / "turned.npz", tmp_path / "out")
    np.savez(tmp_path / "floats.npz", images=np.zeros((4, 5, 6), np.float32))
    with pytest.raises(DataError, match=r'"images".*float32.*\[4, 5, 6\]'):
        read_corpus(tmp_path / "floats.npz", tmp_path / "out")
    shapes = {
        "(1000000000, 32, 32)": r'"images".*numpy\.savez',  # more than there is
        "(1000000000000, 0, 0)": r'"images" uint8 \[1000000000000, 0, 0\]',  # no bytes each, so any number would do
        "(-1, 32, 32)": r'"images".*numpy\.savez',
    }
    for shape, said in shapes.items():
        with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive:
            header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
            archive.writestr("images.npy", with_header(header, b""))
        with pytest.raises(DataError, match=rf"lies\.npz: .*{said}"):
            read_corpus(tmp_path / "lies.npz", tmp_path / "out")
    (tmp_path / "text.npz").write_text("no archive")
    whole = (tmp_path / "floats.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("text.npz", "cut.npz"):
        with pytest.raises(DataError, match=rf"{name}: .*numpy\.savez"):
            read_corpus(tmp_path / name, tmp_path / "out")
    with pytest.raises(DataError, match=r'gone\.npz: .*"turned\.npz"'):
        read_corpus(tmp_path / "gone.npz", tmp_path / "out")
    with pytest.raises(DistilvecError, match=r"floats\.npz: .*corpus\.modality to image"):
        read_corpus(tmp_path / "floats.npz", tmp_path / "out", modality="text")


def test_npz_is_read_a_piece_at_a_time(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((1200, 128, 128, 3), np.uint8))  # 59 MB, packed 60 kB
    tracemalloc.start()
    corpus = read_corpus(tmp_path / "a.npz", tmp_path / "out", holdout=0.0, limit=500)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(corpus) == 1 and corpus.audit.duplicates == 499 and peak < 30e6


def test_parquet_data_sets_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    files = [encoded(noise(n), "JPEG" if n % 2 else "PNG") for n in range(5)]
    expected = [data_uri(file) for file in files]
    labels = list(range(5))
    structs = [{"bytes": file, "path": f"{n}.png"} for n, file in enumerate(files)]
    pq.write_table(pa.table({"image": structs, "label": labels}), tmp_path / "struct.parquet")
    pq.write_table(pa.table({"image": pa.array(files), "label": labels}), tmp_path / "bytes.parquet")
    dataset = datasets.Dataset.from_dict({"image": structs, "label": labels}).cast_column("image", datasets.Image())
    dataset.save_to_disk(tmp_path / "saved")
    with open(tmp_path / "uris.jsonl", "w") as out:
        for uri, label in zip(expected, labels, strict=True):
            out.write(json.dumps({"image": uri, "label": label}) + "\n")
    sources = ["struct.parquet", "bytes.parquet", "saved", "uris.jsonl"]
    for number, source in enumerate([*(tmp_path / name for name in sources), dataset, dataset.to_iterable_dataset()]):
        corpus = read_corpus(source, tmp_path / f"out{number}", modality="image", label="label", holdout=0.0)
        assert corpus.texts() == expected and corpus.labels is not None and corpus.labels.tolist() == labels
    (tmp_path / "pictures").mkdir()
    rows = [f"pictures/{n}.png,{n}" for n in range(5)]
    for n in range(4):
        (tmp_path / "pictures" / f"{n}.png").write_bytes(files[n])
    (tmp_path / "index.csv").write_text("\n".join(["file,label", *rows]))
    corpus = read_corpus(tmp_path / "index.csv", tmp_path / "csv", modality="image", text="file", holdout=0.0)
    assert corpus.texts() == [str(tmp_path / f"pictures/{n}.png") for n in range(4)]
    assert corpus.audit.rejected == {"no such file": 1}
    with pytest.raises(DataError, match=r'"img".*"image".*"label"'):
        read_corpus(tmp_path / "bytes.parquet", tmp_path / "no", modality="image", text="img")


def test_lists_pairs_and_roles(tmp_path: Path) -> None:
    items = [noise(0), encoded(noise(1)), data_uri(noise(2)), Image.fromarray(noise(3)), 5, None]
    corpus = read_corpus(items, tmp_path / "list", modality="image", holdout=0.0)
    assert arrays(corpus) == [noise(n).tolist() for n in range(4)]
    assert corpus.audit.rejected == {"not an image": 1, "missing image": 1}
    pairs = [{"a": noise(n), "b": noise(n + 10)} for n in range(3)]
    corpus = read_corpus(pairs, tmp_path / "pairs", modality="image", text=["a", "b"], holdout=0.0)
    assert corpus.groups is not None and corpus.groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert corpus.roles is not None and corpus.roles.tolist() == [0, 1] * 3
    roles = [{"image": noise(0), "as": "query"}, {"image": noise(0), "as": "document"}]
    corpus = read_corpus(roles, tmp_path / "roles", modality="image", role="as", holdout=0.0)
    assert (
        len(corpus) == 2 and corpus.keys[0].tolist() == content_keys([data_uri(noise(0))], "query", "image")[0].tolist()
    )
    assert corpus.overlap([data_uri(noise(0)), data_uri(noise(5)), "gone.png"]) == 2


def test_the_split_goes_by_the_pixels(tmp_path: Path) -> None:
    pictures = np.stack([noise(n, 3, 3) for n in range(400)])
    np.savez(tmp_path / "a.npz", images=pictures)
    corpus = read_corpus(tmp_path / "a.npz", tmp_path / "npz", holdout=0.3)
    again = [encoded(picture, "BMP") for picture in pictures[::-1]]
    other = read_corpus(again, tmp_path / "list", modality="image", holdout=0.3)
    assert 80 < len(corpus.holdout_rows) < 160
    assert sorted(399 - corpus.holdout_rows) == sorted(other.holdout_rows)
    assert corpus.overlap(other.texts(other.train_rows)) == len(corpus.train_rows)
    assert corpus.overlap(other.texts(other.holdout_rows)) == 0


def test_images_and_molecules_read_as_texts_are_warned_about(tmp_path: Path) -> None:
    """The first thing that somebody tries: the file alone, without saying what is in it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    png = encoded(noise())
    for name, cell in (("plain", png), ("nested", {"bytes": png, "path": "a.png"})):
        file = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"text": [cell] * 3}), file)
        with pytest.raises(DataError, match=r'"text".*corpus\.modality'):
            read_corpus(file, tmp_path / name)
    (tmp_path / "molecules.csv").write_text("SMILES,activity\nCCO,1\n")
    with pytest.raises(DataError, match=r'"text".*"SMILES".*corpus\.modality'):
        read_corpus(tmp_path / "molecules.csv", tmp_path / "corpus")
    with pytest.raises(DataError, match=r'molecules\.csv: .*"smiles".*"SMILES"'):
        read_corpus(tmp_path / "molecules.csv", tmp_path / "corpus", text="smiles", modality="molecule")
    np.save(tmp_path / "images.npy", np.zeros((3, 4, 4, 3), np.uint8))
    with pytest.raises(DistilvecError, match=r'images\.npy: .*"\.npy".*\.npz'):
        read_corpus(tmp_path / "images.npy", tmp_path / "corpus")
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans/a.jfif").write_bytes(encoded(noise(), "JPEG"))
    assert len(read_corpus(tmp_path / "scans", tmp_path / "kept", holdout=0.0)) == 1
