"""AdamW that moves hidden matrices by their orthogonalised momentum: Muon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

#: (a, b, c) of X <- a X + b XX'X + c (XX')^2 X, in turn: singular values from 0.001 to 1 come to 0.87 to 1.13. All but
#: the last read X a hundredth smaller: beyond the interval that each was made for they grow without end, and bfloat16's
#: rounding leads there. Amsel et al. 2025, "The Polar Express", section 4.
_SAFETY = 1.01
_PUBLISHED = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
)
_POLYNOMIALS = (*((a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in _PUBLISHED[:-1]), _PUBLISHED[-1])
#: Root mean square of AdamW's steps, in learning rates.
_RMS = 0.2


class Muon(torch.optim.AdamW):
    """AdamW; groups with `orthogonal: True` are matrices and move by their orthogonalised momentum instead.

    Of a matrix [n, m] with gradients G_t: B_t = momentum B_{t-1} + G_t, and the step is the learning rate times
    0.2 sqrt(max(n, m)) times the nearest matrix with orthonormal rows or columns to G_t + momentum B_t. Its root mean
    square is that of AdamW's steps, so both kinds of group share learning rate and weight decay. Matrices of one
    shape are computed at once.

    Args:
        params: groups of parameters, as AdamW takes them.
        momentum: from 0 to 1.
        dtype: of the orthogonalisation; bfloat16 is enough, and fast where the device multiplies it fast.
        others: AdamW's own arguments.

    Raises:
        ValueError: a parameter of a group with `orthogonal: True` is no matrix.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the root mean square is
    Liu et al. 2025, "Muon is scalable for LLM training", eq. 4.

    >>> matrix = torch.nn.Parameter(torch.zeros(2, 3))
    >>> optimizer = Muon([{"params": [matrix], "orthogonal": True}], lr=1.0)
    >>> matrix.grad = torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    >>> optimizer.step()
    >>> (matrix / (0.2 * 3**0.5)).detach().numpy().round(0) + 0.0
    array([[-1.,  0.,  0.],
           [ 0., -1.,  0.]], dtype=float32)
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
        **others: Any,
    ) -> None:
        self.momentum, self.dtype = momentum, dtype
        super().__init__(params, **others)
        # The fused AdamW leaves out steps of infinite gradients itself, for its own groups alone.
        self._step_supports_amp_scaling = False

    def __getstate__(self) -> dict[str, Any]:
        own = {"momentum": self.momentum, "dtype": self.dtype, "_step_supports_amp_scaling": False}
        return {**super().__getstate__(), **own}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group.setdefault("orthogonal", False) and any(each.ndim != 2 for each in group["params"]):
            raise ValueError("only matrices can be moved by orthogonal steps")

    def step(self, closure: Any = None) -> Any:
        """One step from the gradients present; AdamW's rule for the groups without `orthogonal`."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["orthogonal"]]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["orthogonal"]:
                self._orthogonal_step(group)
        return loss

    @torch.no_grad()
    def _orthogonal_step(self, group: dict[str, Any]) -> None:
        alike: dict[tuple[torch.Size, torch.device], list[Tensor]] = {}
        for matrix in group["params"]:
            if matrix.grad is not None:
                state = self.state[matrix]
                if not state:  # `step`, as AdamW looks for it in any state that it loads
                    state.update(momentum=torch.zeros_like(matrix), step=torch.zeros(()))
                state["step"] += 1
                alike.setdefault((matrix.shape, matrix.device), []).append(matrix)
        for (shape, _), matrices in alike.items():
            gradients = [matrix.grad for matrix in matrices if matrix.grad is not None]
            momenta = [self.state[matrix]["momentum"] for matrix in matrices]
            torch._foreach_mul_(momenta, self.momentum)
            torch._foreach_add_(momenta, gradients)
            ahead = torch.stack(torch._foreach_add(gradients, momenta, alpha=self.momentum))
            moves = orthogonalised(ahead.to(self.dtype)).to(ahead.dtype)
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(matrices, moves.unbind(), alpha=-group["lr"] * _RMS * max(shape) ** 0.5)


def orthogonalised(matrices: Tensor) -> Tensor:
    """UV' of each matrix USV', nearly.

    Args:
        matrices: [..., n, m] floats.

    Returns:
        [..., n, m]; singular values from 0.87 to 1.13 where they were at least 0.001 of the matrix' Frobenius norm.
        A matrix of zeros stays one.

    Source: Amsel et al. 2025, algorithm 1.

    >>> orthogonalised(torch.diag(torch.tensor([5.0, -0.1]))).round()
    tensor([[ 1.,  0.],
            [ 0., -1.]])
    """
    found = matrices.reshape(-1, *matrices.shape[-2:])
    tall = found.shape[1] > found.shape[2]
    if tall:
        found = found.mT
    found = found / (_SAFETY * torch.linalg.matrix_norm(found, keepdim=True)).clamp_min(1e-7)
    for a, b, c in _POLYNOMIALS:
        square = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(square, square, square, beta=b, alpha=c), found, beta=a)
    return (found.mT if tall else found).reshape(matrices.shape)


def hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The weights of a model's linear layers that are trained, but for those that are a table of tokens as well.

    >>> [tuple(weight.shape) for weight in hidden_matrices(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)))]
    [(2, 4)]
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)}
    found = (module.weight for module in model.modules() if isinstance(module, nn.Linear))
    wanted = (each for each in found if isinstance(each, nn.Parameter) and each.requires_grad)
    return [each for each in dict.fromkeys(wanted) if id(each) not in tables]
