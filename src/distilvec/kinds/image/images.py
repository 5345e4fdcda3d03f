"""Images as items: strings that lead to pixels. Whatever a stranger's file holds costs a reason, never the run."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from distilvec.corpus.problem import Problem
from distilvec.errors import DataError
from distilvec.kinds.base import ReadItem
from distilvec.kinds.image import MAGIC
from distilvec.kinds.image import Image as Kind

MAX_PIXELS = 50_000_000
MAX_BYTES = 64 << 20
#: Longest data URI of an image of `MAX_BYTES`, in characters.
LONGEST_ITEM = 4 * MAX_BYTES // 3 + 1024
# Decoders that Pillow itself has for pixels: none that starts a program (EPS) or that few have tried.
_MIME = {
    "PNG": "png",
    "JPEG": "jpeg",
    "MPO": "jpeg",
    "GIF": "gif",
    "BMP": "bmp",
    "DIB": "bmp",
    "TIFF": "tiff",
    "WEBP": "webp",
}
_FORMATS = tuple(name for name in _MIME if name != "MPO")  # JPEG with several pictures; opened by JPEG
_URI = re.compile(r"data:image/[A-Za-z0-9.+-]+(?:;[^,;]*)*;base64,")
_SIXTEEN_BITS = ("I", "I;16", "I;16L", "I;16B", "I;16N")
_ORIENTATION = 0x0112


class Decoded(NamedTuple):
    """Pixels, and whether a reader that knows nothing of transparency and 16 bits makes the same of them."""

    image: Image.Image
    plain: bool
    kind: str


def open_image(item: str) -> Image.Image:
    """The pixels of an item.

    Args:
        item: path of a PNG, JPEG, GIF, BMP, TIFF or WebP file, or a data URI (base64) of one.

    Returns:
        RGB image, turned as its EXIF orientation says; of an animation the first frame; what is transparent over
        white; 16-bit grey scaled to 8 bits.

    Raises:
        DataError: there is no such file, it is no image, damaged, or larger than `MAX_BYTES` or `MAX_PIXELS`.
    """
    try:
        return decode(_content(item)).image
    except Problem as problem:
        raise DataError(
            f"this image cannot be read ({problem})",
            where=item[:120],
            remedy="Read the corpus again if its files have changed since.",
        ) from problem


def image_digest(item: str) -> str:
    """The hex digest of an item's pixels."""
    return digest(decode(_content(item)).image)


def image_item(value: Any, folder: Path) -> ReadItem:
    """Return what a row holds, as an item with the digest of its pixels; the image is decoded once.

    Args:
        value: path (relative to `folder`) or data URI, bytes of a file, a mapping with "bytes" or "path" as data sets
            have it, a Pillow image, or uint8 array [h, w], [h, w, 1] or [h, w, 3].
        folder: where relative paths start.

    Raises:
        Problem: why it is none.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if value is None:
        raise Problem("missing image")
    if isinstance(value, np.ndarray):
        image = Image.fromarray(_pixels(value))
        return ReadItem(_encoded(image), digest(image.convert("RGB")))
    if isinstance(value, bytes | bytearray):
        return _embedded(bytes(value))
    if isinstance(value, str):
        return _named(value, folder)
    if isinstance(value, Image.Image):
        _check_size(value.size)
        try:
            pixels = _upright(value, "").image
        except (Problem, MemoryError):
            raise
        except Exception as error:  # it is decoded only now; a closed one, or one of a strange mode, raises others
            raise Problem("damaged image") from error
        return ReadItem(_encoded(pixels), digest(pixels))
    raise Problem("not an image")


def data_uri(content: np.ndarray | bytes) -> str:
    """An image as a data URI: an array as PNG, the bytes of a file in their own format.

    Args:
        content: uint8 [h, w], [h, w, 1] or [h, w, 3], or the bytes of an image file.

    Raises:
        Problem: it is no image.
    """
    return image_item(content, Path()).item


def digest(image: Image.Image) -> str:
    """Hex digest (128 bits) of an RGB image's width, height and pixels."""
    state = hashlib.blake2b(b"%dx%d:" % image.size, digest_size=16)
    state.update(image.tobytes())
    return state.hexdigest()


def _pixels(array: np.ndarray) -> np.ndarray:
    """uint8 [h, w], [h, w, 1] or [h, w, 3] -> uint8 [h, w] or [h, w, 3]."""
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3)):
        raise Problem("not an image")
    _check_size((array.shape[1], array.shape[0]))
    return np.ascontiguousarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array)


def decode(content: bytes) -> Decoded:
    """The first picture of a file's bytes."""
    if not content:
        raise Problem("empty file")
    if len(content) > MAX_BYTES:
        raise Problem("file too large")
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            _check_size(image.size)  # from the header: nothing has been decoded yet
            image.load()
            return _upright(image, str(image.format))
    except Problem:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Problem("too many pixels") from None
    except UnidentifiedImageError:
        raise Problem(_what_else(content)) from None
    except MemoryError:
        raise
    except Exception as error:  # decoders raise whatever a damaged file leads them to
        raise Problem("damaged image") from error


def _upright(image: Image.Image, kind: str) -> Decoded:
    plain = True
    try:
        turned = ImageOps.exif_transpose(image) if image.getexif().get(_ORIENTATION, 1) != 1 else image
    except Exception:  # the orientation is broken, the pixels are not
        turned, plain = image, False
    pixels, same = _rgb(turned)
    return Decoded(pixels, plain and same, kind)


def _rgb(image: Image.Image) -> tuple[Image.Image, bool]:
    """(RGB, whether it is what a plain conversion gives)."""
    if image.mode in _SIXTEEN_BITS:
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise Problem("more than 16 bits")
        return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB"), False
    if image.mode == "F":
        raise Problem("floating-point pixels")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layers = image.convert("RGBA")
        if layers.getchannel("A").getextrema() != (255, 255):
            white = Image.new("RGBA", layers.size, (255, 255, 255, 255))
            return Image.alpha_composite(white, layers).convert("RGB"), False
        return layers.convert("RGB"), True
    return image.convert("RGB"), True


def _named(value: str, folder: Path) -> ReadItem:
    text = value.strip()
    if text.startswith("data:"):
        return _embedded(_of_uri(text), text)
    path = _path(text, folder)
    content = _of_file(path)
    name = str(path)
    # An item has to be taken for an image by sentence-transformers, and kept as UTF-8.
    utf8 = name.encode("utf-8", "ignore").decode() == name
    return _embedded(content, name if utf8 and name.lower().endswith(Kind.members) else None)


def _embedded(content: bytes, item: str | None = None) -> ReadItem:
    """The item for these bytes: the one given where any reader sees the same pixels in it, else a data URI."""
    decoded = decode(content)
    key = digest(decoded.image)
    if not decoded.plain:
        return ReadItem(_encoded(decoded.image), key)
    return ReadItem(item or _as_uri(content, _MIME[decoded.kind]), key)


def _encoded(image: Image.Image) -> str:
    out = io.BytesIO()
    image.save(out, "PNG")
    return _as_uri(out.getvalue(), "png")


def _as_uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _content(item: str) -> bytes:
    return _of_uri(item) if item.startswith("data:") else _of_file(_path(item, Path()))


def _of_uri(item: str) -> bytes:
    head = _URI.match(item[:200])
    if head is None:
        raise Problem("not an image")
    if len(item) > LONGEST_ITEM:
        raise Problem("file too large")
    try:
        return base64.b64decode(item[head.end() :])
    except (binascii.Error, ValueError):
        raise Problem("broken base64") from None


def _path(text: str, folder: Path) -> Path:
    if not text:
        raise Problem("missing image")
    if text.startswith(("http://", "https://")):
        raise Problem("an address, not a file")
    return Path(folder, text).absolute()


def _of_file(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Problem("not a file")
        with open(path, "rb") as source:
            return source.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise Problem("link that leads nowhere" if path.is_symlink() else "no such file") from None
    except PermissionError:
        raise Problem("no permission") from None
    except (OSError, ValueError) as error:  # a loop of links, a name that is too long or has a zero byte
        raise Problem("file cannot be read") from error


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise Problem("no pixels")
    if width * height > MAX_PIXELS:
        raise Problem("too many pixels")


def _what_else(content: bytes) -> str:
    start = content[:1000].lstrip().lower()
    if start.startswith((b"<svg", b"<?xml")) and b"<svg" in start:
        return "SVG, which has no pixels"
    return "damaged image" if content.startswith(MAGIC) else "not an image"
