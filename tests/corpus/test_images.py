"""One image: what becomes of its pixels, and what a hostile file costs."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.corpus.pictures import encoded, noise, png_header

from distilvec.corpus import content_key, content_keys
from distilvec.corpus.audit import Problem
from distilvec.errors import DataError
from distilvec.kinds.image import images
from distilvec.kinds.image.images import data_uri, image_item, open_image


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(images.decode(content).image)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "GIF", "WEBP"])
def test_lossless_formats_give_their_pixels_and_one_key(kind: str, tmp_path: Path) -> None:
    picture = noise() // 128 * 255  # 8 colours, so that GIF loses nothing
    content = encoded(picture, kind, **({"lossless": True} if kind == "WEBP" else {}))
    file = tmp_path / f"a.{kind.lower()}"
    file.write_bytes(content)
    assert np.array_equal(np.asarray(open_image(str(file))), picture)
    uri = data_uri(content)
    assert uri.startswith(f"data:image/{kind.lower()};base64,")
    assert base64.b64decode(uri.partition(",")[2]) == content
    assert np.array_equal(np.asarray(open_image(uri)), picture)
    keys = content_keys([str(file), uri, data_uri(picture)], modality="image")
    assert len(np.unique(keys, axis=0)) == 1
    other = picture.copy()
    other[0, 0, 0] ^= 255
    assert content_key(data_uri(other), modality="image") != keys[0].tobytes()


def test_the_key_knows_the_size_and_the_role() -> None:
    row = np.zeros((1, 6, 3), np.uint8)
    items = [data_uri(row), data_uri(row.reshape(2, 3, 3)), data_uri(row.reshape(6, 1, 3))]
    assert len(np.unique(content_keys(items, modality="image"), axis=0)) == 3
    assert content_key(items[0], "query", "image") != content_key(items[0], "", "image")


def test_grey_arrays_are_the_rgb_images_they_look_like() -> None:
    grey = noise()[:, :, 0]
    items = [data_uri(grey), data_uri(grey[:, :, None]), data_uri(np.stack([grey] * 3, axis=2))]
    assert len(np.unique(content_keys(items, modality="image"), axis=0)) == 1
    assert open_image(items[0]).mode == "RGB"
    for wrong in (grey.astype(np.float32), noise()[:, :, :2], noise()[None]):
        with pytest.raises(Problem, match="not an image"):
            data_uri(wrong)
    with pytest.raises(Problem, match="no pixels"):
        data_uri(np.zeros((0, 4), np.uint8))


def test_orientation_is_applied() -> None:
    picture = noise()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side: turn by 90 degrees clockwise
    assert np.array_equal(pixels(encoded(picture, "PNG", exif=exif)), np.rot90(picture, -1))
    turned, upright = encoded(picture, "JPEG", exif=exif), encoded(picture, "JPEG")
    assert np.array_equal(pixels(turned), np.rot90(pixels(upright), -1))


def test_transparent_and_deep_pixels_become_plain_ones() -> None:
    picture = noise()
    clear = np.dstack([picture, np.full(picture.shape[:2], 255, np.uint8)])
    clear[0, :, 3] = 0
    whole = np.concatenate([np.full((1, 8, 3), 255, np.uint8), picture[1:]])
    assert np.array_equal(pixels(encoded(clear)), whole)
    clear[0, :, 3] = 255
    assert np.array_equal(pixels(encoded(clear)), picture)
    half = Image.fromarray(np.array([[[0, 128]]], np.uint8), "LA")
    assert pixels(encoded(half)).tolist() == [[[127, 127, 127]]]
    palette = Image.fromarray(np.zeros((2, 2), np.uint8), "P")
    palette.putpalette([200, 10, 10])
    assert pixels(encoded(palette))[0, 0].tolist() == [200, 10, 10]
    assert pixels(encoded(palette, transparency=0))[0, 0].tolist() == [255, 255, 255]
    deep = np.array([[0, 257, 32768, 65535]], np.uint16)
    for kind in ("PNG", "TIFF"):
        assert pixels(encoded(Image.fromarray(deep), kind))[0, :, 0].tolist() == [0, 1, 128, 255]
    cmyk = Image.new("CMYK", (3, 3), (0, 255, 255, 0))
    assert pixels(encoded(cmyk, "TIFF"))[0, 0].tolist() == [255, 0, 0]
    assert pixels(encoded(Image.new("1", (3, 3), 1)))[0, 0].tolist() == [255, 255, 255]
    with pytest.raises(Problem, match="floating-point"):
        pixels(encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"))


def test_items_that_others_would_see_differently_are_written_out(tmp_path: Path) -> None:
    """What is not opaque, or has 16 bits, or no name of an image's: transformers must get the pixels that we key."""
    from transformers.image_utils import load_image

    clear = np.dstack([noise(), np.full((6, 8), 100, np.uint8)])
    deep = Image.fromarray(np.arange(0, 60000, 1000, dtype=np.uint16).reshape(6, 10))
    files = {"clear.png": encoded(clear), "deep.png": encoded(deep), "plain.tif": encoded(noise(), "TIFF")}
    files["plain.png"] = encoded(noise())
    exif = Image.Exif()
    exif[0x0112] = 3
    files["turned.jpg"] = encoded(noise(), "JPEG", exif=exif)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        item = image_item(name, tmp_path).item
        assert item == str(tmp_path / name) if name in ("plain.png", "turned.jpg") else item.startswith("data:image/")
        assert np.array_equal(np.asarray(load_image(item)), np.asarray(open_image(str(tmp_path / name))))


def test_pillow_images_that_are_closed_or_of_a_strange_mode_have_a_reason(tmp_path: Path) -> None:
    Image.new("RGB", (3, 3)).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as closed:
        pass
    for odd in (closed, Image.new("La", (3, 3))):
        with pytest.raises(Problem, match="damaged image"):
            image_item(odd, tmp_path)


def test_the_first_picture_of_an_animation() -> None:
    frames = [Image.fromarray(noise(seed) // 128 * 255) for seed in range(3)]
    for kind in ("GIF", "TIFF", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        content = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert np.array_equal(pixels(content), np.asarray(frames[0])), kind


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"/>'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"a text that is called .png", "not an image"),
        (SVG, "SVG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
        (png_header(7_100, 7_100), "too many pixels"),  # Pillow alone would take it
        (png_header(10_000, 10_000), "too many pixels"),  # Pillow alone would warn
        (png_header(100_000, 100_000), "too many pixels"),  # Pillow alone would refuse
        (png_header(0, 5), "damaged image"),
        (png_header(500, 500), "damaged image"),
        (encoded(noise(0, 300, 300), "JPEG")[:9000], "damaged image"),
        (encoded(noise(0, 300, 300), "JPEG")[:40], "damaged image"),
        (encoded(noise(0, 300, 300))[:9000], "damaged image"),
        (encoded(noise(0, 300, 300), "WEBP")[:9000], "damaged image"),
        (encoded(noise(0, 300, 300), "TIFF")[:9000], "damaged image"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_hostile_files_have_a_reason(content: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Problem, match=reason):
        images.decode(content)
    file = tmp_path / "a.png"
    file.write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.png.*({reason})"):
        open_image(str(file))


def test_a_suffix_that_lies_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "really-png.jpg"
    file.write_bytes(encoded(noise()))
    assert np.array_equal(np.asarray(open_image(str(file))), noise())


def test_paths_that_lead_nowhere_or_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nowhere.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "large.png").write_bytes(encoded(noise()) + bytes(1000))
    monkeypatch.setattr(images, "MAX_BYTES", 1000)
    reasons = {
        "nowhere.png": "link that leads nowhere",
        "missing.png": "no such file",
        "loop.png": "file cannot be read",
        "folder.png": "not a file",
        "pipe.png": "not a file",  # opening it would wait for ever
        "large.png": "file too large",
        "a\0b.png": "file cannot be read",
        "x" * 300 + ".png": "file cannot be read",
        "https://example.org/a.png": "an address",
        "": "missing image",
        "data:image/png;base64,AAAAA": "broken base64",
        "data:image/png,plain": "not an image",
        "data:text/plain;base64,AAAA": "not an image",
        "data:image/svg+xml;base64," + base64.b64encode(SVG).decode(): "SVG",
    }
    for item, reason in reasons.items():
        with pytest.raises(Problem, match=reason):
            image_item(item, tmp_path)
    with pytest.raises(DataError, match=r"missing\.png: .*no such file"):
        content_key(str(tmp_path / "missing.png"), modality="image")


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_random_damage_is_a_reason_and_nothing_else() -> None:
    """And what is taken, transformers takes too, with the same pixels."""
    from transformers.image_utils import load_image

    draw = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "some words"
    seeds = [encoded(noise(0, 20, 20), kind) for kind in ("PNG", "GIF", "BMP", "TIFF", "WEBP")]
    seeds.append(encoded(noise(0, 20, 20), "JPEG", exif=exif))
    for number in range(1200):
        content = bytearray(seeds[number % len(seeds)])
        for place in draw.integers(0, len(content), draw.integers(1, 6)):
            content[place] = draw.integers(0, 256)
        try:
            item = image_item(bytes(content), Path())
        except Problem:
            continue
        assert np.array_equal(np.asarray(load_image(item.item)), pixels(bytes(content)))
        assert images.image_digest(item.item) == item.identity
