"""A mixture of experts on the sentence vector, as a sentence-transformers module that brings its own code along.

    y = sum_k gate_k f_k(s),  f_k(s) = W2_k relu(W1_k s + b1_k) + b2_k,  gate = softmax(g(s))

This file and `sphere.py` are copied into the folder of every model that has such a head, so they import nothing but
torch and sentence-transformers. Such a model opens with `trust_remote_code=True`.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.modules import Module
from torch import Tensor, nn
from torch.nn import functional

from .sphere import AGGREGATIONS, aggregate

_GATES = ("linear", "mlp")


class ExpertHead(Module):
    """Replaces `sentence_embedding` [N, width] by the gated mixture of what the experts make of it.

    Leaves in the features what it worked with: `sentence_vector` [N, width] (what came in), `expert_outputs`
    [N, experts, width] and `gate` [N, experts], which sums to 1.

    Args:
        width: of the sentence vector, before and after.
        experts: K >= 1.
        hidden: width of each expert's hidden layer.
        gate: "linear", or "mlp" with one hidden layer of the same width as the experts'.
        aggregation: "linear", or one of the others in `sphere.py`: "sba" (the length is the gated mean
            of the lengths, the direction the gated mean on the sphere), "norm_free", "unit", "nlerp".
        dropout: after the hidden layers, in training, in [0, 1).
        vector_dropout: of the sentence vector that experts and gate read, in training, in [0, 1).

    Raises:
        ValueError: a gate or an aggregation of another name, or no expert.

    Source: DistillMoE, section 3.1.
    """

    config_keys = [  # noqa: RUF012
        "width",
        "experts",
        "hidden",
        "gate",
        "aggregation",
        "dropout",
        "vector_dropout",
    ]
    # What modules.json is to say: the file beside it, not the package that this class was trained in.
    __module__ = "expert_head"

    def __init__(
        self,
        width: int,
        experts: int = 3,
        hidden: int = 1024,
        gate: str = "linear",
        aggregation: str = "linear",
        dropout: float = 0.1,
        vector_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if gate not in _GATES or aggregation not in AGGREGATIONS or experts < 1:
            given = f"gate {gate}, aggregation {aggregation}, experts {experts}"
            raise ValueError(
                f"{given}: gate is one of {_GATES}, aggregation one of {AGGREGATIONS}, and experts at least 1"
            )
        self.width, self.experts, self.hidden = width, experts, hidden
        self.gate, self.aggregation, self.dropout = gate, aggregation, dropout
        self.vector_dropout = vector_dropout
        self.first = nn.Linear(width, experts * hidden)
        self.second = nn.Parameter(torch.empty(experts, hidden, width))
        self.bias = nn.Parameter(torch.empty(experts, 1, width))
        for parameter in (self.second, self.bias):  # torch's own start of a linear layer
            nn.init.uniform_(parameter, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))
        self.router: nn.Module = nn.Linear(width, experts)
        if gate == "mlp":
            self.router = nn.Sequential(
                nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, experts)
            )

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        vector: Tensor = features["sentence_embedding"]
        read = functional.dropout(vector, self.vector_dropout, self.training)
        states = functional.dropout(functional.relu(self.first(read)), self.dropout, self.training)
        by_expert = states.unflatten(-1, (self.experts, self.hidden)).transpose(0, 1)
        outputs = torch.baddbmm(self.bias, by_expert, self.second).transpose(0, 1)
        scores = self.router(read)  # in half precision the weights of a softmax do not add up to one
        gate = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
        if self.aggregation == "linear":
            mixed = (gate.to(outputs.dtype).unsqueeze(-2) @ outputs).squeeze(-2)
        else:
            mixed = aggregate(outputs, gate, self.aggregation)
        features.update(sentence_vector=vector, expert_outputs=outputs, gate=gate)
        features["sentence_embedding"] = mixed.to(vector.dtype)
        return features

    def get_embedding_dimension(self) -> int:
        return self.width

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write configuration and weights to the module's folder, and the code to the model's, its parent."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)
        for name in ("expert_head.py", "sphere.py"):
            shutil.copyfile(Path(__file__).with_name(name), Path(output_path).resolve().parent / name)

    @classmethod
    def load(cls, *place: Any, **options: Any) -> ExpertHead:
        of_place = ("subfolder", "token", "cache_folder", "revision", "local_files_only")
        more = {name: options[name] for name in of_place if name in options}
        more["model"] = super().load(*place, **options)
        return cls.load_torch_weights(*place, **more)

    def __reduce__(self) -> tuple[Any, ...]:
        # By this file's own name: that of the class, `expert_head`, is none that another process can import.
        return _empty, (), self.__getstate__()


def _empty() -> ExpertHead:
    return ExpertHead.__new__(ExpertHead)
