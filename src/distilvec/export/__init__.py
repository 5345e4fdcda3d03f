"""Students without torch: the whole pipeline as ONNX, in float and int8."""

from distilvec.export.convert import export_onnx
from distilvec.export.encoder import OnnxEncoder, load_onnx
from distilvec.export.outcome import ExportReport, Variant

__all__ = ["ExportReport", "OnnxEncoder", "Variant", "export_onnx", "load_onnx"]
