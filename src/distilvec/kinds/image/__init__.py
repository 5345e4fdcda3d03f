"""Images: paths of files, or data URIs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from distilvec.corpus.rows import Row
from distilvec.kinds.base import Kind, ReadItem

_LONGEST = 8 << 20  # readers take 12 bytes for a character: 96 MiB hold the largest image as a data URI
MAGIC = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"II*\0", b"MM\0*", b"RIFF")


class Image(Kind):
    """Images; equal pixels are equal items."""

    name = column = "image"
    columns = ("image", "img")
    article = "an"
    example = 'vectors = model.encode(["a.jpg", "b.png"])  # paths or PIL images'
    #: Grey, 8 x 8 pixels.
    probe = (
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAA"
        "ADhZOFXAAAADklEQVR4nGNogAIGyhgAgIQgAQ2AJGEAAAAASUVORK5CYII="
    )
    task = "image-feature-extraction"
    suffixes = (".npz",)
    #: What sentence-transformers takes for the path of an image.
    members = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tiff", ".webp")
    binary = True
    at_once = 32
    lengths = False
    fresh = "resnet"
    sizes = "Compare the sizes of docs/images.md by training them."

    def longest(self, most: int) -> int:
        return max(most, _LONGEST)

    def read(self, cell: Any, wanted: Any, file: str) -> ReadItem:
        from distilvec.kinds.image.images import image_item

        return image_item(cell, Path(file).parent)

    def canonical(self, item: str, components: Any = "keep") -> str:
        from distilvec.kinds.image.images import image_digest

        return image_digest(item)

    def recognises(self, cell: Any) -> bool:
        """Tell whether these are the bytes of an image file, also as a reader of texts gives them."""
        value = cell.get("bytes") if isinstance(cell, Mapping) else cell
        if isinstance(value, str):
            try:
                value = value[:8].encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                return False
            return value.startswith(MAGIC[:2])  # the others begin with letters, as texts do
        return isinstance(value, bytes) and value.startswith(MAGIC)

    def rows(self, path: Path, columns: Sequence[str]) -> Iterator[Row]:
        from distilvec.kinds.image.npz import npz_rows

        return npz_rows(path, columns)

    def holds(self, folder: Path) -> bool:
        from distilvec.kinds.image.folders import holds_images

        return holds_images(folder)

    def folder(self, path: Path) -> tuple[str, Callable[..., Iterator[Row]]]:
        from distilvec.kinds.image.folders import folder_fingerprint, image_rows

        return folder_fingerprint(path), partial(image_rows, path)

    def dataset(self, dataset: Any) -> Any:
        """With images as the bytes of their files, which keep their format and are decoded with our limits."""
        from datasets import Image as Feature

        for column, feature in (dataset.features or {}).items():
            if isinstance(feature, Feature):
                dataset = dataset.cast_column(column, Feature(decode=False))
        return dataset

    def portable(self, cell: Any) -> Any:
        """Its whole path, or a data URI; what is no image stays, for the audit to count."""
        from distilvec.corpus.problem import Problem
        from distilvec.kinds.image.images import image_item

        if isinstance(cell, str | Path):
            return cell if str(cell).startswith("data:") else str(Path.cwd() / Path(cell).expanduser())
        try:
            return image_item(cell, Path.cwd()).item
        except Problem:
            return cell

    def shown(self, items: Sequence[str], held_out: Sequence[str]) -> list[str]:
        """Its folder and name, or its number among the held-out ones."""
        from distilvec.report.data import short_source

        numbers: dict[str, int] = {}
        for number, item in enumerate(held_out, start=1):
            numbers.setdefault(item, number)
        return [f"held-out image {numbers[item]}" if item.startswith("data:") else short_source(item) for item in items]
