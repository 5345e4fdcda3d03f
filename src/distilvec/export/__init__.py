"""Students without torch: the whole pipeline as ONNX, in float and int8; for browsers, llama.cpp and model2vec.

`load_onnx` needs tokenizers and onnxruntime only; torch is imported when something is exported.
"""

from typing import TYPE_CHECKING

from distilvec.export.encoder import OnnxEncoder, load_onnx
from distilvec.late import exports

if TYPE_CHECKING:
    from distilvec.export.browser import export_web
    from distilvec.export.convert import ExportReport, Variant, export_onnx
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
__getattr__ = exports(__name__)
