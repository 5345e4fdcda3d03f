"""Students without torch: the whole pipeline as ONNX, in float and int8.

`load_onnx` needs tokenizers and onnxruntime only; torch is imported when something is exported.
"""

from typing import TYPE_CHECKING, Any

from distilvec.export.encoder import OnnxEncoder, load_onnx
from distilvec.export.outcome import ExportReport, Variant

if TYPE_CHECKING:
    from distilvec.export.convert import export_onnx

__all__ = ["ExportReport", "OnnxEncoder", "Variant", "export_onnx", "load_onnx"]


def __getattr__(name: str) -> Any:
    if name == "export_onnx":
        from distilvec.export.convert import export_onnx

        return export_onnx
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
