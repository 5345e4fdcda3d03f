"""Pretrained networks of images and molecules in one safetensors file: which one it is, and the network itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.modules.molecule_networks import GRAPHS, GraphNetwork
from distilvec.modules.smiles_network import SmilesNetwork

if TYPE_CHECKING:
    from distilvec.modules.cifar_resnet import ImageModule

#: Of networks over molecules.
KINDS = (*GRAPHS, "chemvae")


def read_image_network(path: Path) -> ImageModule | None:
    """The network over images of a safetensors file, in float32; None where it holds none of them.

    Known are CIFAR residual networks, the ResNet-8 of MLPerf and MobileNets; their keys say which one it is.
    """
    from distilvec.modules.cifar_resnet import CifarResNet
    from distilvec.modules.image_networks import ImageNetwork

    tensors = _read(path)
    try:
        if "layer1.0.conv1.weight" in tensors:
            return CifarResNet.from_classifier(path, tensors)
        if ImageNetwork.is_of(tensors):
            return ImageNetwork.from_classifier(path, tensors)
    except ValueError as problem:
        raise DataError(str(problem), where=str(path)) from problem
    return None


def read_network(
    path: str | Path, kind: str | None = None, features: bool = False
) -> tuple[str, GraphNetwork | SmilesNetwork]:
    """Return which network over molecules a safetensors file holds, and the network.

    Args:
        kind: None = told by the file's keys, and by its name between "gcn" and "graphsage", whose keys are the same.
        features: molclr only: the result is the 512 features that its pretraining's projection starts from.
    """
    tensors = _read(path)
    kind = _kind_of(path, tensors) if kind is None else kind
    if kind not in KINDS:
        raise DistilvecError(
            f'there is no kind of molecule network "{kind}"', where=str(path), remedy=nearest(kind, KINDS)
        )
    if features and kind != "molclr":
        raise DistilvecError(f"features are what molclr has, not {kind}", where=str(path))
    try:
        network: GraphNetwork | SmilesNetwork = (
            SmilesNetwork()
            if kind == "chemvae"
            else GraphNetwork(kind, {key: tensor.shape for key, tensor in tensors.items()}, features)
        )
        missing, unexpected = network.load_state_dict(tensors, strict=False)
    except KeyError as problem:
        raise _misfit(path, kind, f"the key {problem} is missing") from problem
    except (RuntimeError, ValueError) as problem:
        raise _misfit(path, kind, " ".join(str(problem).split())[:300]) from problem
    for what, keys in (("is missing", missing), ("is not one of its own", unexpected)):
        if keys:
            raise _misfit(path, kind, f"the key {keys[0]!r} {what}")
    return kind, network


def _read(path: str | Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not Path(path).is_file():
        raise DataError("there is no such file", where=str(path), remedy="Check the path.")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as problem:
        raise DataError(f"this is not a safetensors file: {problem}", where=str(path)) from problem


def _kind_of(path: str | Path, keys: dict[str, Tensor]) -> str:
    telling = {"gnns.0.weight_linear.weight": "gat", "gnns.0.weight": "molclr", "z_mean.weight": "chemvae"}
    for key, kind in telling.items():
        if key in keys:
            return kind
    if "gnns.0.linear.weight" not in keys:
        raise DataError(
            f"no network over molecules or images that is known has these keys: {', '.join(sorted(keys)[:3])} ...",
            where=str(path),
            remedy="Of any other model give the folder that holds it.",
        )
    name = Path(path).name.lower()
    named = [kind for word, kind in (("sage", "graphsage"), ("gcn", "gcn")) if word in name]
    if len(named) != 1:
        raise DistilvecError(
            "this may be a gcn or a graphsage, whose files have the same keys",
            where=str(path),
            remedy='Let the name of the file contain "gcn" or "sage", or, in Python, give kind.',
        )
    return named[0]


def _misfit(path: str | Path, kind: str, what: str) -> DataError:
    return DataError(f"this is not a whole {kind} network: {what}", where=str(path))
