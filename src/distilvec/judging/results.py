"""MTEB's result files: one for each finished task, in the layout of its own cache, so that its tools read them."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

from distilvec.errors import DistilvecError
from distilvec.files import whole, write_text
from distilvec.modules.opening import locate
from distilvec.teachers.cards import fingerprint, hash_files

logger = logging.getLogger(__name__)
#: What decides a model's vectors, or those of an exported student.
_SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".onnx", ".data", ".py")


class ResultFiles:
    """Result files of one model: FOLDER/results/MODEL/REVISION/TASK.json.

    Args:
        folder: shared by any number of models.
        revision: equal only for models that give equal vectors.
    """

    def __init__(self, folder: Path, model: str, revision: str) -> None:
        import mteb

        self._meta = model_meta(model, revision)
        self._cache = mteb.ResultCache(folder)

    def __str__(self) -> str:
        return str(self._place("x").parent)

    def find(self, task: Any) -> Any | None:
        """The whole result of a task by this version of its data; None where there is none."""
        from mteb.results import TaskResult

        file = self._place(task.metadata.name)
        if not file.is_file():
            return None
        try:
            result = TaskResult.from_disk(file)
            fits = result.is_mergeable(task) and not result.get_missing_evaluations(task)
        except Exception as error:  # whatever reading a damaged file raises
            logger.warning("%s cannot be read (%s): the task is run again", file, error)
            return None
        return result if fits else None

    def keep(self, result: Any) -> None:
        """Write the result of a task."""
        file = self._place(result.task_name)
        with whole(file) as temporary:
            result.to_disk(temporary)
        about = json.dumps(self._meta.to_dict(), default=str, indent=1)
        write_text(file.with_name("model_meta.json"), about + "\n")

    def _place(self, task: str) -> Path:
        return Path(self._cache.get_task_result_path(task, self._meta))


def model_meta(name: str, revision: str) -> Any:
    from mteb.models.model_meta import ModelMeta

    plain = re.sub(r"[^\w.-]+", "_", name).strip("._-") or "model"
    return ModelMeta.create_empty({"name": f"distilvec/{plain}", "revision": revision})


def revision_of(model: Any) -> str:
    """Equal only for equal weights and settings: of a folder or hub id by its files.

    Raises:
        DistilvecError: it is neither, so that nobody knows whether a kept result is its own.
    """
    if not isinstance(model, str | Path):
        raise DistilvecError(
            f"results of a {type(model).__name__} cannot be told from those of another",
            where="results",
            remedy="Save the model and give its folder.",
        )
    folder = Path(model) if (Path(model) / "distilvec_onnx.json").is_file() else locate(model)
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix in _SUFFIXES]
    return fingerprint(hash_files(folder, [file for file in files if not file.name.startswith(".")]))[:16]
