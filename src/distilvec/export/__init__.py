"""Students without torch: the whole pipeline as ONNX, in float and int8; for browsers, llama.cpp and model2vec.

`load_onnx` needs tokenizers and onnxruntime only; torch is imported when something is exported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from distilvec.export.encoder import OnnxEncoder, load_onnx
from distilvec.export.outcome import ExportReport, Variant

if TYPE_CHECKING:
    from distilvec.export.browser import export_web
    from distilvec.export.convert import export_onnx
    from distilvec.export.gguf import export_gguf
    from distilvec.export.model2vec import export_model2vec

__all__ = [
    "ExportReport",
    "OnnxEncoder",
    "Variant",
    "export_gguf",
    "export_model2vec",
    "export_onnx",
    "export_web",
    "load_onnx",
]
_WITH_TORCH = {
    "export_onnx": "convert",
    "export_web": "browser",
    "export_gguf": "gguf",
    "export_model2vec": "model2vec",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        return getattr(import_module(f"distilvec.export.{_WITH_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
