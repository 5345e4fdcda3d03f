"""Tensors of molecule teachers, random."""

from __future__ import annotations

import torch
from torch import Tensor

SMILES = ["C", "CCO", "C/C=C/C(=O)O", "C[C@H](N)C(=O)O", "Cc1ccccc1C#N", "[Na+].[Cl-]", "*CC", "C[C@@H](O)/C=C\\F"]


LAYERS, WIDTH, FEATURES = 3, 6, 5


LAYERS, WIDTH, FEATURES = 3, 6, 5


LAYERS, WIDTH, FEATURES = 3, 6, 5


NAMES = {"gcn": "mol_gcn", "graphsage": "mol_graphsage", "gat": "mol_gat", "molclr": "mol_molclr_gcn"}


def tensors_of(kind: str) -> dict[str, Tensor]:
    """Random weights with the layout of the files, matrices in half precision."""
    torch.manual_seed(0)
    edge = {"gat": 2 * WIDTH, "molclr": 1}.get(kind, WIDTH)
    found = {
        "x_embedding1.weight": torch.randn(119 if kind == "molclr" else 120, WIDTH),
        "x_embedding2.weight": torch.randn(3, WIDTH),
    }
    for layer in range(LAYERS):
        own = {
            "edge_embedding1.weight": torch.randn(5 if kind == "molclr" else 6, edge),
            "edge_embedding2.weight": torch.randn(3, edge),
        }
        if kind == "gat":
            own |= {
                "weight_linear.weight": torch.randn(2 * WIDTH, WIDTH),
                "weight_linear.bias": torch.randn(2 * WIDTH),
                "att": torch.randn(1, 2, 2 * WIDTH),
                "bias": torch.randn(WIDTH),
            }
        elif kind == "molclr":
            own |= {"weight": torch.randn(WIDTH, WIDTH), "bias": torch.randn(WIDTH)}
        else:
            own |= {"linear.weight": torch.randn(WIDTH, WIDTH), "linear.bias": torch.randn(WIDTH)}
        norm = {
            "weight": torch.rand(WIDTH) + 0.5,
            "bias": torch.randn(WIDTH),
            "running_mean": torch.randn(WIDTH),
            "running_var": torch.rand(WIDTH) + 0.5,
        }
        found |= {f"gnns.{layer}.{key}": tensor for key, tensor in own.items()}
        found |= {f"batch_norms.{layer}.{key}": tensor for key, tensor in norm.items()}
    if kind == "molclr":
        found |= {"feat_lin.weight": torch.randn(FEATURES, WIDTH), "feat_lin.bias": torch.randn(FEATURES)}
    return {key: tensor.half() if tensor.ndim > 1 else tensor for key, tensor in found.items()}


def vae_tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    found = {}
    for name, shape in (("conv0", (9, 35, 9)), ("conv1", (9, 9, 9)), ("conv2", (10, 9, 11))):
        found |= {f"{name}.weight": torch.randn(shape) / 9, f"{name}.bias": torch.randn(shape[0])}
    for name, shape in (("dense", (196, 940)), ("z_mean", (196, 196))):
        found |= {f"{name}.weight": torch.randn(shape) / 14, f"{name}.bias": torch.randn(196)}
    for name, size in (("bn0", 9), ("bn1", 9), ("bn2", 10), ("bn_dense", 196)):
        found |= {f"{name}.weight": torch.rand(size) + 0.5, f"{name}.running_var": torch.rand(size) + 0.5}
        found |= {f"{name}.bias": torch.randn(size), f"{name}.running_mean": torch.randn(size)}
    return found
