"""Checks of a model folder before any library reads it.

A folder is somebody else's. It must not make us unpickle, import, or read what lies outside it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distilvec.errors import DataError, DistilvecError
from distilvec.files import check_regular
from distilvec.folders import holds_student
from distilvec.modules.settings import read_json, stated
from distilvec.modules.size_checks import check_size, sections, weight_files

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
#: Pickles that trainers leave beside a model and that nothing here reads.
_NO_WEIGHTS = {"training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "scaler.pt"}
#: The name under which libraries look for safetensors; beside any other name they take the pickle.
_SAFE, _INDEX = "model.safetensors", "model.safetensors.index.json"
#: Arguments of `from_pretrained` that a folder's own settings must not choose.
_REACHING = {
    "adapter_kwargs",
    "cache_dir",
    "cache_folder",
    "code_revision",
    "config",
    "from_flax",
    "from_tf",
    "gguf_file",
    "kernel_config",
    "local_files_only",
    "merges_file",
    "proxies",
    "quantization_config",
    "state_dict",
    "subfolder",
    "tokenizer_file",
    "tokenizer_name_or_path",
    "trust_remote_code",
    "use_kernels",
    "use_safetensors",
    "vocab_file",
    "weights_only",
}
#: Keys by which a configuration chooses the code of attention and of experts, and what of it compiles nothing.
_KERNELS = re.compile(r"_?(attn|experts)_implementation")
_PLAIN_KERNELS = {"None", "eager", "sdpa", "batched_mm", "grouped_mm"}
_ARGUMENTS = tuple(
    f"{part}_{kind}" for part in ("model", "processor", "tokenizer", "config") for kind in ("args", "kwargs")
)


def check_folder(folder: Path, name: str, *, trust_remote_code: bool = False) -> None:
    """Refuse a folder that is no model, or that cannot be opened safely. Only small files and headers are read.

    Args:
        name: what the person called it, for messages.
        trust_remote_code: whether classes of the folder's own may be named.

    Raises:
        DistilvecError: no model in it; pickled weights; paths or links that lead out of it; classes, adapters or
            settings that reach for something else; sizes that its weights do not have.
        DataError: its description is damaged.
    """
    if not (folder / "modules.json").exists() and not (folder / "config.json").exists():
        what, remedy = (
            "neither modules.json nor config.json is in it",
            "Give one of sentence-transformers or transformers.",
        )
        if holds_student(folder / "student"):
            remedy = f"It is a run's; its student is {folder / 'student'}."
        elif (llama := next(folder.glob("*.gguf"), None)) is not None:
            what = f"{llama.name} is for llama.cpp"
            remedy = (
                f"Serve it (llama-server -m {llama} --embedding) and give the address as `api`, or get the model's "
            )
            remedy += "safetensors, which `load: int8` makes small, too."
        raise DistilvecError(f"this folder holds no model: {what}", where=name, remedy=remedy)
    stated(folder)
    places: list[Path] = []
    for place in _places(folder):
        for each in (place, place / "additional_chat_templates"):  # transformers reads all that is in either
            if each.is_dir():
                check_links(folder, each)
        _check_weights(place)
        _check_settings(place, trust_remote_code)
        places.append(place)
    has_weights = any(map(weight_files, places))
    if not trust_remote_code:
        _check_classes(folder)
    if not has_weights and (folder / "distilvec_onnx.json").is_file():
        raise DistilvecError(
            "this is an export, and a model's own folder is needed here",
            where=name,
            remedy="Name the folder that it was exported from; distilvec.load opens exports.",
        )
    if not has_weights:
        raise DistilvecError(
            "this model has no weights in safetensors, the only form that is opened",
            where=name,
            remedy="If you trust pickled ones, convert them once, where nothing else is at stake: SentenceTransformer("
            f"{name!r}, model_kwargs={{'use_safetensors': False}}).save_pretrained(FOLDER).",
        )
    for place in places:
        if place != folder or weight_files(place):  # a module may be built, and be large, before its weights are missed
            check_size(place)


def inner_folders(folder: Path) -> list[str]:
    """All sub-folders that modules are read from: those that modules.json names, and those within a `Router`."""
    return [place.relative_to(folder).as_posix() for place in _places(folder)]


def listed(folder: Path) -> list[dict[str, Any]]:
    """The entries of modules.json, each with a path and a type; one without either for a bare folder."""
    listing = folder / "modules.json"
    if not listing.exists():
        return [{"path": "", "type": ""}]
    entries = read_json(listing)
    texts = ("path", "type")
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in texts) for entry in entries
    ):
        raise DataError("this is not a list of modules", where=str(listing), remedy="Copy or download the model again.")
    return entries


def _places(folder: Path) -> Iterator[Path]:
    """Every folder of `inner_folders`, whole."""
    waiting, seen = [folder, *(folder / entry["path"] for entry in listed(folder))], set()
    while waiting:
        place = waiting.pop(0)
        _check_inside(folder, place)
        if place.resolve() in seen:
            continue
        seen.add(place.resolve())
        if len(seen) > 1000:
            raise DistilvecError("this model names more than 1,000 modules", where=str(folder))
        if not place.is_dir():
            continue
        yield place
        for routes in (place / "router_config.json", place / "config.json"):
            kinds = read_json(routes) if routes.is_file() else None
            types = kinds.get("types") if isinstance(kinds, dict) else None
            if isinstance(types, dict):
                waiting += [place / str(inner) for inner in types]


def _check_inside(folder: Path, place: Path) -> None:
    try:
        inside = place.resolve().is_relative_to(folder.resolve()) and not _loops(place)
    except (OSError, RuntimeError, ValueError):  # a name that is too long, a loop of links, a null byte
        inside = False
    if not inside:
        raise DistilvecError(
            f'a module points outside the folder: "{str(place)[:200]}"',
            where=str(folder / "modules.json"),
            remedy="Do not use this folder; whoever made it reaches for files that are not its own.",
        )


def _loops(place: Path) -> bool:
    """Tell whether links lead in a circle, which `resolve` says up to Python 3.12 alone."""
    try:
        place.stat()
    except OSError as problem:
        return problem.errno == errno.ELOOP
    return False


def check_links(folder: Path, place: Path) -> None:
    """Refuse links that lead neither to files of the same folder nor to where the hub's cache keeps them, and pipes."""
    root = folder.resolve()
    roots = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    for file in sorted(place.iterdir()):
        try:
            target = None if _loops(file) else file.resolve()
        except (OSError, RuntimeError):
            target = None
        if file.is_symlink() and (target is None or not any(target.is_relative_to(each) for each in roots)):
            raise DistilvecError(
                "this link leads out of the model's folder",
                where=str(file),
                remedy="Put the file itself there if you trust it: cp -rL makes a copy without links.",
            )
    check_regular(place)


def _check_weights(place: Path) -> None:
    """No pickle that would be read, and no shard that is one."""
    names = sorted(file.name for file in place.iterdir() if not file.is_dir())
    pickled = [
        name
        for name in names
        if name.lower().endswith(PICKLES) and name not in _NO_WEIGHTS and not name.startswith(("rng_state", "ranks."))
    ]
    # With an index, transformers reads its shards; modules of sentence-transformers know no index and take this pickle.
    sharded = _INDEX in names and "pytorch_model.bin" not in names
    if pickled and _SAFE not in names and not sharded:
        raise DistilvecError(
            f"the weights are pickled ({pickled[0]}), and reading a pickle can run any code",
            where=str(place),
            remedy="Convert them in a place where you trust them: load the model with transformers or "
            "sentence-transformers and save it again (save_pretrained writes safetensors).",
        )
    index = place / _INDEX
    if _SAFE in names or not index.is_file():
        return
    parts = read_json(index)
    shards = parts.get("weight_map") if isinstance(parts, dict) else None
    for shard in sorted(set(map(str, shards.values()))) if isinstance(shards, dict) and shards else [""]:
        if not shard.endswith(".safetensors") or Path(shard).name != shard:
            raise DistilvecError(
                f'the weights are said to lie in "{shard[:100]}", which is no safetensors file of this folder',
                where=str(index),
                remedy="Copy or download the model again; do not use it if it came like this.",
            )


def _check_settings(place: Path, trust_remote_code: bool) -> None:
    """Settings must not choose other files, other models, or how weights are read."""
    if (place / "adapter_config.json").is_file():
        raise DistilvecError(
            "this folder holds adapters to another model, which would be opened unseen",
            where=str(place / "adapter_config.json"),
            remedy="Give the folder of the base as model and this one under adapters; or merge them (peft: "
            "merge_and_unload) and save the whole model.",
        )
    for file in sorted(place.glob("sentence_*_config.json")):
        settings = _settings(file)
        _refuse_keys(settings, file)
        for part in _ARGUMENTS:
            given = settings.get(part)
            if isinstance(given, dict):
                _refuse_keys(given, file)
                for key, value in given.items():
                    if "/" in str(value) or "\\" in str(value):
                        raise _reaches(key, file)
                if not trust_remote_code:
                    _refuse_kernels(given, file)
    file = place / "config.json"
    config = _settings(file) if file.is_file() else {}
    _check_dtypes(config, file)
    if not trust_remote_code:
        _refuse_kernels(config, file)
        if config.get("use_pretrained_backbone"):
            raise _reaches("use_pretrained_backbone", file)


def _settings(file: Path) -> dict[str, Any]:
    found = read_json(file)
    if not isinstance(found, dict):
        raise DataError("these are no settings", where=str(file), remedy="Copy or download the model again.")
    return found


def _check_dtypes(config: dict[str, Any], file: Path) -> None:
    """Refuse types of weights that torch has not; libraries look them up by name, and say so in their own words."""
    import torch

    for section in sections(config):
        for key in ("dtype", "torch_dtype"):
            value = section.get(key)
            names = list(value.values()) if isinstance(value, dict) else [value]
            if not all(
                name is None or (isinstance(name, str) and isinstance(getattr(torch, name, None), torch.dtype))
                for name in names
            ):
                raise DataError(
                    f"{key} is {value!r:.80}, which is no type of torch",
                    where=str(file),
                    remedy='Name one: "float32", "bfloat16" or "float16".',
                )


def _refuse_keys(settings: dict[str, Any], file: Path) -> None:
    for key in sorted(_REACHING & settings.keys()):
        # Libraries drop the first themselves, the second says what we say, and older versions wrote both.
        harmless = key == "trust_remote_code" or (key == "use_safetensors" and settings[key] is True)
        if harmless or settings[key] is None:
            continue
        raise _reaches(key, file)


def _refuse_kernels(settings: dict[str, Any], file: Path) -> None:
    """Refuse code for attention and experts that is compiled here or fetched from the hub."""
    for section in sections(settings):
        for key, value in section.items():
            chosen = set(map(str, value.values() if isinstance(value, dict) else [value]))
            if _KERNELS.fullmatch(key) and not chosen <= _PLAIN_KERNELS:
                raise DistilvecError(
                    f'"{key}" asks for {str(value)[:80]!r}, which runs other code than transformers\' own',
                    where=str(file),
                    remedy='Set it to "sdpa" or take the key out, in a copy of the folder if it is the hub\'s.',
                )


def _reaches(key: str, file: Path) -> DistilvecError:
    return DistilvecError(
        f'"{key}" reaches for something outside the folder, or changes how weights are read',
        where=str(file),
        remedy="Take the key out if you know what it does; otherwise do not use this folder.",
    )


def _check_classes(folder: Path) -> None:
    """A name in the package of sentence-transformers has to be a module of it, and not what else is found there."""
    from sentence_transformers.util import import_from_string
    from torch import nn

    for entry in listed(folder):
        if not entry["type"].startswith("sentence_transformers."):
            continue  # ours, or refused by sentence-transformers as remote code
        try:
            loaded = import_from_string(entry["type"])
        except Exception as problem:  # whatever importing a made-up name raises
            raise DistilvecError(
                f'sentence-transformers has no module "{entry["type"][:200]}"', where=str(folder / "modules.json")
            ) from problem
        if not (isinstance(loaded, type) and issubclass(loaded, nn.Module)):
            raise DistilvecError(f'"{entry["type"][:200]}" is no module', where=str(folder / "modules.json"))
