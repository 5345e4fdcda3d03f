"""Opening a model as a student: in float32, from safetensors, without what is never used."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from distilvec.errors import DistilvecError
from distilvec.modules.blocks import find_blocks, find_transformer, parameters
from distilvec.modules.layouts import is_vision
from distilvec.modules.opening import locate, open_model
from distilvec.modules.pipeline import (
    PoolingChoice,
    read_plainly,
    reads_texts,
    set_length,
    set_pooling,
    token_limit,
    width_of,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def load_student(
    model: str | Path,
    *,
    max_length: int | None = None,
    pooling: PoolingChoice | None = None,
    trust_remote_code: bool = False,
    device: str | None = None,
) -> SentenceTransformer:
    """Open a sentence-transformers or bare transformers model, ready to be trained.

    A vision model of transformers gets the pooling of its kind. A bare transformers model of texts gets `pooling`, else
    mean pooling, or last-token pooling where its attention is causal; it reads texts without the chat template that its
    tokenizer may have.
    Weights stored in half precision are read as float32, because training updates are lost in half-precision weights.
    A pooler that nothing reads (BERT's, XLM-R's) is dropped.

    Args:
        model: folder, model id on the hub, or a file of weights of images or molecules (`open_weights`).
        max_length: tokens per text; default is the model's own, at most what its positions allow.
        pooling: of a bare transformers model; "cls" is the first token, "last" the last.
        trust_remote_code: whether code that comes with the model may run.
        device: where the student is put; default is the best device there is.

    Raises:
        DistilvecError: no such folder or model, not a model, it demands code of its own, its weights are pickled,
            `max_length` is more than its positions allow, or `pooling` is another than its own.
        DataError: the weights file is damaged.
    """
    of_items = Path(str(model)).suffix == ".safetensors"
    folder = Path(model).expanduser() if of_items else locate(model, trust_remote_code)
    vision = not of_items and is_vision(folder)
    if (vision or of_items) and (pooling is not None or max_length is not None):
        raise DistilvecError(
            f"pooling and max_length are for text models, and this one reads {'images' if vision else 'none'}",
            where=str(model),
            remedy="Leave them out.",
        )
    if of_items:
        return open_weights(folder, device)
    student = open_model(
        folder, name=str(model), device=device, dtype=torch.float32, trust_remote_code=trust_remote_code
    )
    if vision:
        _leave_out_unused(find_transformer(student))
        return student
    student.float()
    _part_storage(student)
    transformer = find_transformer(student)
    if transformer is not None:
        transformer.model.config.dtype = torch.float32
        drop_pooler(transformer)
        set_length(student, max_length, str(model))
    bare = not (folder / "modules.json").is_file()
    set_pooling(student, pooling, bare=bare, name=str(model))
    if bare:
        read_plainly(student)
    return student


def open_weights(path: Path, device: str | None = None) -> SentenceTransformer:
    """The network of a safetensors file as a student, in float32; what its classifier was is left out.

    Which network it is, its keys say: of images a CIFAR residual network of 6 n + 2 layers, the ResNet-8 of MLPerf or a
    MobileNet; of molecules a graph network (gcn, graphsage, gat, molclr; between the first two the file's name tells)
    or the chemical VAE's encoder. These are the files that can be teachers.

    Args:
        device: default is the processor.
    """
    from sentence_transformers import SentenceTransformer

    from distilvec.modules.cifar_resnet import image_model
    from distilvec.modules.molecule_networks import GraphEncoder, GraphNetwork
    from distilvec.modules.network_files import read_image_network, read_network
    from distilvec.modules.smiles_network import SmilesEncoder

    if (of_images := read_image_network(path)) is not None:
        return image_model(of_images, device or "cpu")
    _, network = read_network(path)
    encoder = GraphEncoder.of(network) if isinstance(network, GraphNetwork) else SmilesEncoder.of(network)
    return SentenceTransformer(modules=[encoder], device=device or "cpu")


def _part_storage(student: nn.Module) -> None:
    """Give every parameter memory of its own: a part of another's cannot be written into a checkpoint.

    transformers cuts one tensor of a file into several where a class keeps them apart (the attention of nomic-embed).
    """
    for parameter in student.parameters():
        if parameter.untyped_storage().nbytes() != parameter.numel() * parameter.element_size():
            parameter.data = parameter.data.clone()


def _leave_out_unused(transformer: Any) -> None:
    """Parameters of a vision model that no vector comes of: processes that train together wait for their gradients."""
    if transformer is None:
        return
    drop_pooler(transformer)
    for name, parameter in transformer.model.named_parameters():
        if name.rpartition(".")[2] == "mask_token":
            parameter.requires_grad_(False)


def drop_pooler(transformer: Any) -> None:
    """Remove the pooler of a `Transformer` module whose token states are what is read, if its class can be without."""
    if transformer.module_output_name == "token_embeddings" and can_omit_pooler(transformer.model):
        transformer.model.pooler = None


def can_omit_pooler(model: nn.Module) -> bool:
    """Tell whether the model's class can be built without its pooler."""
    return "add_pooling_layer" in inspect.signature(type(model)).parameters and hasattr(model, "pooler")


def describe_student(student: SentenceTransformer) -> dict[str, Any]:
    """Return what a person wants to know of a student before training it.

    Returns:
        parameters, layers (None = no blocks), width, max_length (None = any), vocabulary (number of pieces; None where
        it reads no texts).
    """
    transformer = find_transformer(student)
    found = None if transformer is None else find_blocks(transformer.model)
    tokenizer = getattr(student[0], "tokenizer", None) if reads_texts(student) else None
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return {
        "parameters": parameters(student),
        "layers": None if found is None else len(found[1]),
        "width": width_of(student.children()),
        "max_length": token_limit(student),
        "vocabulary": None if backend is None else len(backend.get_vocab()),
    }
