"""An exported graph on OpenVINO instead of onnxruntime."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import EnvironmentProblem


class OpenVinoSession:
    """A graph compiled for the processor, with the `run` of onnxruntime's sessions.

    It computes in float32 wherever the graph does: left to itself, OpenVINO takes bfloat16 where the processor has it.

    Args:
        file: an ONNX file.
        threads: None = OpenVINO's own choice.

    Raises:
        EnvironmentProblem: the extra `openvino` is not installed.
        RuntimeError: OpenVINO cannot read or compile the graph.
    """

    def __init__(self, file: Path, threads: int | None = None) -> None:
        if importlib.util.find_spec("openvino") is None:
            raise EnvironmentProblem("openvino is not installed", remedy="pip install 'distilvec[openvino]'")
        import openvino

        core = openvino.Core()
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
        if threads is not None:
            settings["INFERENCE_NUM_THREADS"] = threads
        self._model = core.compile_model(core.read_model(str(file)), "CPU", settings)

    def run(self, outputs: Sequence[str], feed: Mapping[str, npt.NDArray[np.int64]]) -> list[npt.NDArray[Any]]:
        """The named outputs for these inputs."""
        # A request of its own: the one of the model's own call is shared by all threads that are in it.
        tensors = self._model.create_infer_request().infer(dict(feed))
        return [np.array(tensors[name]) for name in outputs]
