"""Real image files, small ones."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image


def noise(seed: int = 0, height: int = 6, width: int = 8) -> np.ndarray:
    """uint8 [height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def encoded(image: Image.Image | np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    """The bytes of a file of this kind."""
    out = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(out, kind, **options)
    return out.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG file that claims a size and holds next to nothing."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
