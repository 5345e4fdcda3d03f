"""Calls of transformers and sentence-transformers that open foreign models and run no foreign code.

`opening` decides which of them a folder gets.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DataError, DistilvecError
from distilvec.files import check_regular
from distilvec.modules.folder_checks import listed
from distilvec.modules.settings import shards, tensor_shapes

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder, SentenceTransformer

#: Held while what transformers does is changed for everybody; of one thread, one opening may lie in another.
_CHANGING = threading.RLock()
#: Parts of a model that no vector comes of; many folders hold none.
_UNREAD = {"pooler", "mask_token"}
#: What to do about a model that brings code.
TRUST = "Read that code; if you trust it, set trust_remote_code to true."
#: What to do about weights that a model's files lack: of an encoder, and of a language model.
WHOLE = "Copy or download the model again; see its config.json, model_type."
CAUSAL = "Choose a causal language model; this may be an encoder. See its config.json, model_type and architectures."
#: Modules of ours that bring their code along: the name in modules.json -> where the class is.
OWN_MODULES = {
    "expert_head.ExpertHead": "distilvec.modules.expert_head",
    "cifar_resnet.CifarResNet": "distilvec.modules.cifar_resnet",
    "image_networks.ImageNetwork": "distilvec.modules.image_networks",
    "molecule.MoleculeEncoder": "distilvec.modules.molecule",
    "molecule_networks.GraphEncoder": "distilvec.modules.molecule_networks",
    "smiles_network.SmilesEncoder": "distilvec.modules.smiles_network",
}


def open_modules(source: str, **arguments: Any) -> SentenceTransformer:
    """A saved model that was checked or that we wrote, of stock modules and modules of ours as they are installed."""
    from sentence_transformers import SentenceTransformer

    _register(Path(source))
    # The method is private, and the only way to name classes; both ends of the supported range have it.
    arguments.setdefault("trust_remote_code", False)
    with nothing_made_up(source):
        opened = SentenceTransformer._load_with_module_classes(source, _own_modules(source), **arguments)
    return _really_cut(opened)


def _really_cut(model: SentenceTransformer) -> SentenceTransformer:
    """Cut by a module where a model's configuration cuts (`truncate_dim`), which only `encode` would see.

    The module is a stock linear map that keeps the first numbers as they are, so that teaching, training, export and
    saving all mean the same vectors.
    """
    size, model.truncate_dim = model.truncate_dim, None
    width = model.get_embedding_dimension() if size else None
    if size and width and size < width:
        import torch

        from distilvec.modules.projection import dense

        kept = dense(torch.eye(size, width))
        like = next((each for each in model.parameters() if each.is_floating_point()), kept.linear.weight)
        model.append(kept.to(device=like.device, dtype=like.dtype))
    return model


def open_transformer(folder: str | Path, model_kwargs: dict[str, Any], **options: Any) -> Any:
    """The `Transformer` module of a folder that was checked, without code of the folder's own."""
    from sentence_transformers.base.modules import Transformer

    plain = {"trust_remote_code": False}
    with no_questions(), nothing_made_up(folder):
        return Transformer(
            str(folder),
            model_kwargs={**model_kwargs, **plain},
            processor_kwargs=dict(plain),
            config_kwargs=dict(plain),
            **options,
        )


def open_writing(folder: Path, dtype: Any, trust_remote_code: bool) -> tuple[Any, Any]:
    """The causal language model and the tokenizer of a folder that was checked."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    plain = {"trust_remote_code": trust_remote_code, "local_files_only": not trust_remote_code}
    with no_questions(), nothing_made_up(folder, remedy=CAUSAL):
        causal = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, use_safetensors=True, **plain)
        return causal, AutoTokenizer.from_pretrained(str(folder), **plain)


def open_judge(source: str, **arguments: Any) -> CrossEncoder:
    """A cross-encoder's folder that was checked; it predicts logits."""
    from sentence_transformers import CrossEncoder
    from torch.nn import Identity

    arguments.setdefault("trust_remote_code", False)
    with no_questions(), nothing_made_up(source):
        # An activation is given, so that none is imported by the name that the folder says.
        return CrossEncoder(source, activation_fn=Identity(), **arguments)


def open_ranker(folder: str | Path, *, trust_remote_code: bool = False) -> Any:
    """A folder that was checked as a `Ranker`; an encoder without a head gets one of random weights."""
    from transformers.utils import logging

    from distilvec.modules.ranker import Ranker

    plain, level = {"trust_remote_code": trust_remote_code}, logging.get_verbosity()
    logging.set_verbosity_error()  # that a head is new is meant, and no report in a run
    with contextlib.ExitStack() as after, no_questions(), nothing_made_up(folder, but_the_head=True):
        after.callback(logging.set_verbosity, level)
        return Ranker(
            str(folder),
            transformer_task="sequence-classification",
            model_kwargs={**plain, "use_safetensors": True, "dtype": "float32"},
            processor_kwargs=dict(plain),
            config_kwargs={**plain, "num_labels": 1},
        )


def open_config(folder: str | Path) -> Any:
    """The configuration of a transformers folder.

    Raises:
        OSError, ValueError: there is none, its values are of other types, or its type is known to code of its own only.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    with no_questions():
        try:
            return AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        except StrictDataclassError as error:
            raise ValueError(" ".join(str(error).split())) from error


def open_tokenizer(source: str | Path) -> Any:
    """The transformers tokenizer of a folder or hub id.

    Raises:
        OSError, ValueError: there is none, or it demands code of its own.
        DistilvecError: the folder holds a pipe or a device.
    """
    from transformers import AutoTokenizer

    if Path(source).is_dir():
        check_regular(Path(source))
    with no_questions():
        return AutoTokenizer.from_pretrained(str(source), trust_remote_code=False)


@contextlib.contextmanager
def no_questions() -> Iterator[None]:
    """While the block runs, transformers refuses code of a model's own instead of asking on standard input.

    Other threads wait for their turn.
    """
    from transformers import dynamic_module_utils as dynamic

    with _CHANGING:
        before = dynamic.TIME_OUT_REMOTE_CODE
        dynamic.TIME_OUT_REMOTE_CODE = 0
        try:
            yield
        finally:
            dynamic.TIME_OUT_REMOTE_CODE = before


@contextlib.contextmanager
def nothing_made_up(folder: str | Path, *, but_the_head: bool = False, remedy: str = WHOLE) -> Iterator[None]:
    """While the block runs, note the weights that transformers makes up at random because the files hold none.

    That of code of the model's own is its own affair, and so is what another thread opens meanwhile by transformers
    itself; what it opens by this module waits for its turn.

    Args:
        but_the_head: what stands behind the encoder may be made up.
        remedy: what to do if there are such.

    Raises:
        DistilvecError: there are such, and the model brings code that would know what to do with those that it has.
        DataError: there are such.
    """
    from transformers import PreTrainedModel

    model_class: Any = PreTrainedModel
    made_up: list[str] = []
    own_code: list[Any] = []
    here = threading.get_ident()

    def noting(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != here:
            return opens.__func__(cls, *args, **kwargs)
        opened, told = opens.__func__(cls, *args, **{**kwargs, "output_loading_info": True})
        if not cls.__module__.startswith("transformers_modules."):
            weights = {name for name, _ in opened.named_parameters() if _UNREAD.isdisjoint(name.split("."))}
            if but_the_head:
                weights = {name for name in weights if name.startswith(f"{opened.base_model_prefix}.")}
            made_up.extend(sorted(weights & set(told["missing_keys"])))
            own_code.append(getattr(opened.config, "auto_map", None))
        return opened

    with _CHANGING:
        opens = model_class.__dict__["from_pretrained"]
        model_class.from_pretrained = classmethod(noting)
        try:
            yield
        finally:
            model_class.from_pretrained = opens
    if made_up:
        more = f" and {len(made_up) - 1} more" if len(made_up) > 1 else ""
        problem = f"its weights hold no {made_up[0]}{more}, and random numbers would stand there"
        if any(own_code):
            raise DistilvecError(
                f"this model runs code that comes with it; without, {problem}",
                where=str(folder),
                remedy=TRUST,
            )
        raise DataError(problem, where=str(folder), remedy=remedy)


def _register(folder: Path) -> None:
    """Make the type of our mixtures of experts known to transformers, if a model of that type is in the folder."""
    if any(file.is_file() and b"distilvec_moe" in file.read_bytes() for file in folder.rglob("config.json")):
        import_module("distilvec.modules.moe_encoder")


def lacks_pooler(folder: str | Path) -> bool:
    """Tell whether a saved model could have a pooler and its weights hold none: building one would make it up."""
    from transformers import MODEL_MAPPING

    _register(Path(folder))
    if not (Path(folder) / "config.json").is_file():
        return False
    try:
        model_class: Any = MODEL_MAPPING[type(open_config(folder))]
        if "add_pooling_layer" not in inspect.signature(model_class).parameters:
            return False
        names = [name for file in shards(Path(folder)) for name in tensor_shapes(file)]
        return not any(name.startswith("pooler.") or ".pooler." in name for name in names)
    except Exception:  # whatever libraries raise over files that are not what they expect: opening it says so
        return False


def _own_modules(source: str) -> dict[str, Any]:
    """Classes of the modules of ours that a folder names."""
    named = {entry["type"] for entry in listed(Path(source))}
    return {
        name: getattr(import_module(OWN_MODULES[name]), name.rpartition(".")[2]) for name in named & set(OWN_MODULES)
    }
