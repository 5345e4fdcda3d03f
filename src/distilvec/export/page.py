"""A static page that searches texts by meaning in the browser: student, texts and an index of bytes beside it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DistilvecError, printable
from distilvec.export.encoder import CONFIG, LAYOUTS
from distilvec.progress import Ticker

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PAGE = "page"
_BLOCK = 512
#: What the page needs of the export around it; the float model stays behind.
_MODEL = (CONFIG, "config.json", "tokenizer.json", "tokenizer_config.json", "encoder.js", LAYOUTS["web"]["int8"])
_IMPORTS = {
    "imports": {
        "transformers": "./library/transformers.js",
        "onnxruntime-web/webgpu": "./library/onnxruntime.js",
        "onnxruntime-common": "./library/onnxruntime.js",
    }
}


def write_page(made: Path, student: SentenceTransformer, texts: Sequence[str], title: str, library: Path) -> None:
    """Write `page/` into an export in the web layout, which has its int8 graph.

    Args:
        texts: what is searched; shown as they are.
        library: folder of `fetch_library`.

    Raises:
        DistilvecError: the student compares its vectors neither by cosine nor by dot product.
    """
    similarity = str(getattr(student.similarity_fn_name, "value", student.similarity_fn_name or "cosine"))
    if similarity not in ("cosine", "dot"):
        raise DistilvecError(
            f"the page compares by cosine or dot product, and this student by {similarity}", where="--texts"
        )
    page = made / PAGE
    (page / "model" / "onnx").mkdir(parents=True)
    shutil.copytree(library, page / "library")
    for name in _MODEL:
        shutil.copyfile(made / name, page / "model" / name)
    vectors = _vectors(student, texts)
    (page / "vectors.bin").write_bytes(packed_index(vectors, unit=similarity == "cosine"))
    listed = json.dumps(list(texts), ensure_ascii=False).encode("utf-8")
    (page / "texts.bin").write_bytes(gzip.compress(listed, 9, mtime=0))
    prompt = "query" if "query" in student.prompts else student.default_prompt_name
    about = {
        "count": len(texts),
        "similarity": similarity,
        "prompt": prompt if student.prompts.get(prompt or "") else None,
        # What the page fetches by itself; the browser fetches code before.
        "bytes": sum(file.stat().st_size for file in page.rglob("*") if file.suffix in (".bin", ".json", ".onnx")),
    }
    (page / "page.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    source = files("distilvec.export") / "web"
    for name in ("page.js", "page.css"):
        (page / name).write_text((source / name).read_text(encoding="utf-8"), encoding="utf-8")
    (page / "index.html").write_text(
        _html((source / "page.html").read_text(encoding="utf-8"), title, len(texts)), encoding="utf-8"
    )


def packed_index(vectors: npt.NDArray[Any], *, unit: bool) -> bytes:
    """Vectors [n, d] as n float32 scales and then n rows of d signed bytes: row i is scale i times its bytes.

    Args:
        vectors: finite numbers.
        unit: bring every vector to length 1 first; zero vectors stay zero.

    >>> len(packed_index(np.eye(3), unit=True))
    21
    """
    rows = np.asarray(vectors, dtype=np.float64)
    if unit:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    scales = np.maximum(np.abs(rows).max(axis=1), 1e-30) / 127
    numbers = np.rint(rows / scales[:, None]).astype(np.int8)
    return scales.astype("<f4").tobytes() + numbers.tobytes()


def _vectors(student: SentenceTransformer, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Encode the texts as documents."""
    blocks, ticker = [], Ticker("encoding the page's texts")
    for start in range(0, len(texts), _BLOCK):
        block = list(texts[start : start + _BLOCK])
        blocks.append(np.asarray(student.encode_document(block, show_progress_bar=False), dtype=np.float32))
        ticker(start + len(block), len(texts))
    return np.concatenate(blocks)


def _html(template: str, title: str, count: int) -> str:
    """The page, which may fetch from its own server only, and whose one inline script is named by its hash."""
    imports = json.dumps(_IMPORTS, indent=1)
    digest = base64.b64encode(hashlib.sha256(imports.encode()).digest()).decode()
    policy = (
        "default-src 'none'; connect-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; "
        f"script-src 'self' 'wasm-unsafe-eval' 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    values = {"title": escape(printable(title)), "policy": policy, "importmap": imports, "count": f"{count:,}"}
    for name, value in values.items():
        template = template.replace("{{" + name + "}}", value)
    return template
