"""The one guarded way to open a model folder, a tokenizer or a configuration that somebody else made.

Safetensors only; nothing outside the folder; no code of the folder's own unless asked for; never a question on standard
input. Every other file of distilvec comes here for it (a test reads the sources).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.extras import need
from distilvec.modules.adapters import CONFIG, WEIGHTS
from distilvec.modules.blocks import find_transformer
from distilvec.modules.folder_checks import check_folder, check_links, inner_folders, listed
from distilvec.modules.guarded import TRUST, lacks_pooler, no_questions, open_modules
from distilvec.modules.layouts import is_model2vec, is_nomic_moe, is_vision
from distilvec.modules.pipeline import Load, reads_texts, text_routes
from distilvec.modules.promised_tokens import put_promised
from distilvec.modules.settings import damaged, stated
from distilvec.modules.text_ids import check_unknown, id_count
from distilvec.system_errors import system_problem

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

__all__ = ["commit_of", "inner_folders", "locate", "locate_adapters", "open_model", "open_pipeline"]

_HUB_ID = re.compile(r"[\w\-][\w.\-]*(/[\w\-][\w.\-]*)?(@[\w.\-/]+)?")
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.safetensors", "*.md", "*.jinja"]


def locate(model: str | Path, trust_remote_code: bool = False) -> Path:
    """The folder of a model, fetched from the hub where `model` is a hub id, once it is clear that it can be opened.

    A hub id may have a revision behind it: a commit, branch or tag (`BAAI/bge-m3@main`). Pickled weights are never
    fetched.

    Raises:
        DistilvecError: no such folder or hub model, no model in it, or one that is not safe to open
            (`folder_checks.check_folder`).
        DataError: its description is damaged.
        EnvironmentProblem: the hub cannot be reached and the model is not in its cache.
    """
    folder = _folder_of(model, [*_HUB_FILES, "*.py"] if trust_remote_code else _HUB_FILES)
    try:
        check_folder(folder, str(model), trust_remote_code=trust_remote_code)
    except OSError as problem:
        raise system_problem(problem, "the folder cannot be read", folder) from problem
    return folder


def commit_of(model: str) -> str | None:
    """The commit of the hub that a model's name means by now; None for a folder. No weights are fetched for it."""
    folder = _folder_of(model, ["*config.json"])
    return folder.name if folder.parent.name == "snapshots" else None  # the hub's cache names them by their commits


def _folder_of(model: str | Path, patterns: list[str]) -> Path:
    """The folder that a model's name means; of a hub model, with the files of these names at least."""
    if not isinstance(model, str | Path):
        raise DistilvecError(
            f"a {type(model).__name__} is no name of a model",
            remedy="Give its folder or hub id; what is in memory only is saved first.",
        )
    try:
        folder = Path(model).expanduser()
        is_file, is_folder = folder.is_file(), folder.is_dir()
    except (OSError, RuntimeError, ValueError) as problem:  # too long, a loop of links, ~nobody, a null byte
        raise DistilvecError(
            f"this is no path ({problem})", where=str(model)[:200], remedy="Check the path of the model's folder."
        ) from problem
    if is_file:
        raise DistilvecError(
            "a model is a folder, and this is a file", where=str(model), remedy="Give the folder that holds it."
        )
    if not is_folder:
        before = Path(str(model).rpartition("@")[0])
        if before.name and before.expanduser().is_dir():
            raise DistilvecError("a folder has no revisions", where=str(model), remedy="Leave the revision out.")
        looks_local = isinstance(model, Path) or str(model).startswith((".", "/", "~"))
        if looks_local or not _HUB_ID.fullmatch(str(model)) or len(str(model)) > 200:
            raise DistilvecError(
                "there is no such model folder", where=str(model)[:200], remedy="Check the path, or give a hub id."
            )
        folder = _fetch(str(model), patterns)
    return folder


def locate_adapters(adapters: str | Path) -> Path:
    """The folder of low-rank adapters, fetched from the hub where it is a hub id. Only safetensors are read.

    Raises:
        DistilvecError: no such folder or hub model, no adapters in it, or links that lead out of it.
        EnvironmentProblem: the hub cannot be reached and the adapters are not in its cache.
    """
    folder = _folder_of(adapters, _HUB_FILES)
    check_links(folder, folder)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise DistilvecError(
                f"there are no adapters: {name} is not in it",
                where=str(folder),
                remedy="Give a folder that PEFT saved with safetensors.",
            )
    return folder


def open_model(
    model: str | Path,
    *,
    name: str | None = None,
    device: str | None,
    dtype: Any,
    trust_remote_code: bool = False,
    load: Load | None = None,
) -> SentenceTransformer:
    """A model folder or hub id as a `SentenceTransformer`.

    A bare transformers model gets mean pooling here, a vision model the pooling of its kind, a folder of model2vec
    becomes a stock static table. Where the weights hold no pooler none is made up.

    Args:
        model, name: folder or model id on the hub, and what messages call it.
        device: where it is put; None = the best device there is.
        dtype: torch dtype in which the weights are held.
        trust_remote_code: whether code that comes with the model may run.
        load: "int8" = the weights of linear layers are held in 8 bits; "split" = layers go to all devices, then to
            memory, then to the disk, and `device` says nothing.

    Raises:
        DistilvecError: it is not safe to open, demands code of its own, cannot be opened, gives something else than one
            vector for a text, or its tokenizer knows pieces for which it has no vectors.
        DataError: the weights are damaged.
        EnvironmentProblem: the hub cannot be reached, or a package is missing.
    """
    folder, name = locate(model, trust_remote_code), name or str(model)
    _refuse_other_kinds(folder, name)
    if is_vision(folder):
        from distilvec.modules.vision import open_vision

        return open_vision(folder, device=device, dtype=dtype)
    if is_model2vec(folder):
        from distilvec.modules.model2vec import open_model2vec

        return _check_load(load, open_model2vec(folder, name=name, device=device), name)
    arguments: dict[str, Any] = {"use_safetensors": True, "dtype": dtype, **_held(load)}
    if not trust_remote_code and lacks_pooler(folder):
        arguments["add_pooling_layer"] = False
    with no_questions(), explained(name):
        opened = open_pipeline(
            str(folder),
            device=None if load == "split" else device,
            trust_remote_code=trust_remote_code,
            local_files_only=not trust_remote_code,  # code of its own may lie in another repository
            model_kwargs=arguments,
        )
    if not len(opened) or not (hasattr(opened[0], "preprocess") or hasattr(opened[0], "tokenize")):
        raise DataError(
            "its first module reads nothing: no text, image or molecule", where=name, remedy="See its modules.json."
        )
    check_table(opened, name)
    put_promised(opened, folder, name)
    _try(opened, name)
    return _check_load(load, opened, name)


def _check_load(load: Load | None, opened: SentenceTransformer, name: str) -> SentenceTransformer:
    """The model, unless it has no layers that could be held in another way."""
    if load is not None and find_transformer(opened) is None:
        raise DistilvecError(
            f"load: {load} has no effect on a model without layers", where=name, remedy="Leave it out."
        )
    return opened


def _held(load: Load | None) -> dict[str, Any]:
    """Return what transformers is told of a model that is too large as it is."""
    if load == "int8":
        need("weights in 8 bits", "torchao", "torchao")
        from torchao.quantization import Int8WeightOnlyConfig
        from transformers import TorchAoConfig

        # A scale for each row; computation stays as it is.
        return {"quantization_config": TorchAoConfig(Int8WeightOnlyConfig())}
    return {"device_map": "auto"} if load == "split" else {}


@contextmanager
def explained(name: str, remedy: str = "Does it load in sentence-transformers?") -> Iterator[None]:
    """Say in our words what libraries raise over a model's files.

    Raises:
        DataError: the weights are damaged.
        DistilvecError: they do not fit into memory, the model demands code of its own, or its files are not what a
            library expects.
    """
    from safetensors import SafetensorError

    try:
        yield
    except DistilvecError:
        raise
    except SafetensorError as problem:
        raise damaged(problem, name) from problem
    except torch.OutOfMemoryError as problem:
        raise _too_large(name) from problem
    except Exception as problem:  # whatever libraries raise over files that are not what they expect
        if "trust_remote_code" in str(problem):
            what, remedy = "this model runs code that comes with it", TRUST
        else:
            what = f"the model cannot be opened: {_first_line(problem)}"
        raise DistilvecError(what, where=name, remedy=remedy) from problem


def _refuse_other_kinds(folder: Path, name: str) -> None:
    """Refuse sparse and multi-vector encoders and rerankers: sentence-transformers would take the blocks alone of them.

    It puts mean pooling behind the blocks, which none of them was trained for.
    """
    if not (folder / "modules.json").is_file():
        return
    kind = stated(folder).model_type
    if any(entry["type"].startswith("pylate.") for entry in listed(folder)):
        kind = "ColBERT"
    if kind != "SentenceTransformer":
        raise DistilvecError(
            f"this is a {kind}, which does not give one vector for a text",
            where=name,
            remedy="Give an embedder; a reranker can be a scorer. To start a student from its blocks all the same, "
            "give a copy of the folder without modules.json.",
        )


def open_pipeline(source: str, **arguments: Any) -> SentenceTransformer:
    """A saved model that was checked or that we wrote; modules of ours in it open by the classes that are installed."""
    if is_nomic_moe(source):
        from distilvec.modules.moe_folder import open_moe

        return open_moe(source, **arguments)
    return open_modules(source, **arguments)


def check_table(model: SentenceTransformer, name: str) -> None:
    """Refuse a tokenizer with ids beyond the table of embeddings: a text with such a piece would end the run.

    Added tokens that nothing needs are taken out of it instead (`_leave_out`). One that fails on what its vocabulary
    lacks is refused, too.
    """
    for _, _, each in text_routes(model):
        check_unknown(getattr(each, "tokenizer", None), name)
    first: Any = model[0]
    inner: Any = getattr(first, "model", None)
    tokenizer: Any = getattr(first, "tokenizer", None)
    if hasattr(inner, "get_input_embeddings") and getattr(inner, "main_input_name", "input_ids") == "input_ids":
        try:
            table = inner.get_input_embeddings()
        except NotImplementedError:
            return
    else:
        table = getattr(first, "embedding", None)
    if not isinstance(table, nn.Embedding | nn.EmbeddingBag) or not hasattr(tokenizer, "get_vocab"):
        return
    ids, rows = id_count(tokenizer), table.weight.shape[0]
    if ids > rows and not _leave_out(tokenizer, rows):
        raise DistilvecError(
            f"its tokenizer gives ids up to {ids - 1:,}, and there are vectors for {rows:,} pieces",
            where=name,
            remedy="Tokenizer and weights do not belong together; copy or download the model again.",
        )


def _leave_out(tokenizer: Any, rows: int) -> bool:
    """Take added tokens without a vector out of a fast tokenizer: where a text has one, it is read as letters.

    EmbeddingGemma has such a one: `<image_soft_token>`, of the tokenizer that it shares with models of images.

    Returns:
        False, and nothing is changed, where others have no vector either, or where every text or batch holds one.
    """
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    beyond = {piece for piece, index in backend.get_vocab().items() if index >= rows}
    used = [tokenizer.pad_token_id or 0, *backend.encode("a").ids, *backend.encode("a", "a").ids]
    if max(used) >= rows or beyond & backend.get_vocab(with_added_tokens=False).keys():
        return False
    settings = json.loads(backend.to_str())
    settings["added_tokens"] = [entry for entry in settings["added_tokens"] if entry["content"] not in beyond]
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(settings))
    # Under a name, it would be added again when the tokenizer is saved and opened.
    for role, token in tokenizer.special_tokens_map.items():
        if token in beyond:
            setattr(tokenizer, role, None)
            tokenizer.init_kwargs.get("model_specific_special_tokens", {}).pop(role, None)
    tokenizer.extra_special_tokens = [token for token in tokenizer.extra_special_tokens if token not in beyond]
    return True


def _too_large(name: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        "the model does not fit into the memory that is left on the GPU",
        where=name,
        remedy="See with nvidia-smi who else is there, name a `dtype` of half precision, spread a teacher with `load: "
        "split`, or hide the GPU with CUDA_VISIBLE_DEVICES=.",
    )


def _try(model: SentenceTransformer, name: str) -> None:
    """Read one text: sizes that do not fit each other are known now, not after an hour of preparation."""
    tokenizer: Any = getattr(model[0], "tokenizer", None)
    if getattr(tokenizer, "pad_token", "") is None:  # as of GPT-2, Llama and Mistral; masks hide what pads
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    if not reads_texts(model):
        return
    try:
        width, said = model.encode(["a text"], show_progress_bar=False).shape[-1], model.get_embedding_dimension()
        if said not in (None, width):
            raise ValueError(f"its vectors have {width} numbers, and its modules say {said!r:.40}")
    except torch.OutOfMemoryError as problem:
        raise _too_large(name) from problem
    except Exception as problem:  # whatever libraries raise over configurations that contradict the weights
        raise DataError(
            f"it opens and cannot read a text: {_first_line(problem)}",
            where=name,
            remedy="See its config.json, modules.json and the configurations of its modules.",
        ) from problem


def _fetch(model: str, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # The hub's own errors are chains of three, and say no more.
    name, _, revision = model.partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=patterns))
    except GatedRepoError:
        raise EnvironmentProblem(
            "the hub gives this model only to people who accepted its terms",
            where=model,
            remedy="Accept them on the model's page and log in with `hf auth login`.",
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise DistilvecError(
            "neither a folder here nor a model on the hub",
            where=model,
            remedy="Check the spelling; for a private model, log in with `hf auth login`.",
        ) from None
    except RevisionNotFoundError:
        raise DistilvecError(f'the model has no revision "{revision}"', where=model) from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, OSError):
        raise EnvironmentProblem(
            "there is no folder of this name, the hub's cache does not hold the model, and the hub cannot be reached",
            where=model,
            remedy="Check the spelling, the network and HF_HUB_OFFLINE, or give the path of a folder.",
        ) from None


def _first_line(problem: Exception) -> str:
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)
