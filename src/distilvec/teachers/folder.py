"""Opening a model folder or hub id safely: safetensors only, no code of the model's own unless asked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.modules.pipeline import open_pipeline
from distilvec.modules.vision import is_vision, open_vision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_NO_WEIGHTS = {"training_args.bin", "optimizer.pt", "scheduler.pt"}
_HUB_ID = re.compile(r"[\w\-][\w.\-]*(/[\w\-][\w.\-]*)?")
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "*.md", "*.jinja"]


def locate(model: str | Path, trust_remote_code: bool = False) -> Path:
    """The folder of a model, fetched from the hub where `model` is a hub id. Pickled weights are never fetched.

    Raises:
        DistilvecError: no such folder or hub model, no model in it, or its weights are pickled.
        EnvironmentProblem: the hub cannot be reached and the model is not in its cache.
    """
    folder = Path(model).expanduser()
    if folder.is_file():
        raise DistilvecError(
            "a model is a folder, and this is a file", where=str(model), remedy="Give the folder that holds it."
        )
    if not folder.is_dir():
        looks_local = isinstance(model, Path) or str(model).startswith((".", "/", "~"))
        if looks_local or not _HUB_ID.fullmatch(str(model)):
            raise DistilvecError(
                "there is no such model folder", where=str(model), remedy="Check the path, or give a hub id."
            )
        folder = _fetch(str(model), trust_remote_code)
    _check(folder, str(model))
    return folder


def module_folders(folder: Path) -> list[str]:
    """The sub-folders that modules.json names; [""] for a bare transformers folder.

    Raises:
        DataError: modules.json is not a list of modules.
        DistilvecError: it points outside the folder.
    """
    listing = folder / "modules.json"
    if not listing.exists():
        return [""]
    try:
        paths = [str(entry["path"]) for entry in json.loads(listing.read_text(encoding="utf-8"))]
    except (ValueError, KeyError, TypeError) as problem:
        raise DataError(f"this is not a list of modules: {problem!r}", where=str(listing)) from problem
    for path in paths:
        if not (folder / path).resolve().is_relative_to(folder.resolve()):
            raise DistilvecError(
                f'a module points outside the folder: "{path}"',
                where=str(listing),
                remedy="Do not use this folder; whoever made it reaches for files that are not its own.",
            )
    return paths


def open_model(
    folder: Path, name: str, *, device: str | None, dtype: Any, trust_remote_code: bool
) -> SentenceTransformer:
    """The folder as a `SentenceTransformer` in eval mode.

    A bare transformers model gets mean pooling here, a vision model the pooling of its kind.

    Args:
        name: what the person called it, for messages.
        dtype: torch dtype in which the weights are held.

    Raises:
        DistilvecError: it demands code of its own, or cannot be opened.
        DataError: the weights are damaged.
    """
    from safetensors import SafetensorError

    if is_vision(folder):
        return open_vision(folder, device=device, model_kwargs={"dtype": dtype})
    try:
        model = open_pipeline(
            str(folder),
            device=device,
            trust_remote_code=trust_remote_code,
            local_files_only=not trust_remote_code,  # code of its own may lie in another repository
            model_kwargs={"use_safetensors": True, "dtype": dtype},
        )
    except SafetensorError as problem:
        raise DataError(
            f"the weights cannot be read: {problem}", where=name, remedy="Copy or download the model again."
        ) from problem
    except (OSError, ValueError, ImportError, KeyError, TypeError, AttributeError, RuntimeError) as problem:
        raise _explain(name, problem) from problem
    return model.eval()


def _check(folder: Path, name: str) -> None:
    if not (folder / "modules.json").exists() and not (folder / "config.json").exists():
        of_a_run = (folder / "student" / "modules.json").exists()
        raise DistilvecError(
            "this folder holds no model: neither modules.json nor config.json is in it",
            where=name,
            remedy=f"It is a run's; its student is {folder / 'student'}."
            if of_a_run
            else "Give a folder saved by sentence-transformers or transformers.",
        )
    found = False
    for module in module_folders(folder):
        place = folder / module
        names = [file.name for file in sorted(place.iterdir()) if file.is_file()] if place.is_dir() else []
        safe = any(file.endswith(".safetensors") for file in names)
        pickled = [file for file in names if file.endswith(_PICKLES) and file not in _NO_WEIGHTS]
        if pickled and not safe:
            raise _pickled(str(place), pickled[0])
        found = found or safe
    if not found:
        raise DistilvecError(
            "this model has no weights in safetensors, the only form that is opened",
            where=name,
            remedy="If it has them in another form, convert them: AutoModel.from_pretrained(...).save_pretrained(...) "
            "in a place where you trust it.",
        )


def _pickled(where: str, file: str) -> DistilvecError:
    return DistilvecError(
        f"the weights are pickled ({file}), and reading a pickle can run any code",
        where=where,
        remedy="Convert them in a place where you trust them: load the model with transformers or "
        "sentence-transformers and save it again (save_pretrained writes safetensors).",
    )


def _fetch(model: str, trust_remote_code: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    patterns = [*_HUB_FILES, "*.py"] if trust_remote_code else _HUB_FILES
    try:
        return Path(snapshot_download(model, allow_patterns=patterns))
    except GatedRepoError as problem:
        raise EnvironmentProblem(
            "the hub gives this model only to people who accepted its terms",
            where=model,
            remedy="Accept them on the model's page and log in with `hf auth login`.",
        ) from problem
    except (RepositoryNotFoundError, HFValidationError) as problem:
        raise DistilvecError(
            "neither a folder here nor a model on the hub",
            where=model,
            remedy="Check the spelling; for a private model, log in with `hf auth login`.",
        ) from problem
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError) as problem:
        raise EnvironmentProblem(
            "there is no folder of this name, the hub's cache does not hold the model, and the hub cannot be reached",
            where=model,
            remedy="Check the spelling, the network and HF_HUB_OFFLINE, or give the path of a folder.",
        ) from problem


def _explain(name: str, problem: Exception) -> DistilvecError:
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    if "trust_remote_code" in str(problem):
        return DistilvecError(
            "this model runs code that comes with it",
            where=name,
            remedy="Read that code; if you trust it, set trust_remote_code to true.",
        )
    return DistilvecError(
        f"the model cannot be opened: {lines[0]}", where=name, remedy="Does it load in sentence-transformers?"
    )
