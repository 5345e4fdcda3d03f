"""Kernels from a student's vector to a Gaussian over each teacher's, those of equal shape computed together."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from distilvec.errors import DataError, DistilvecError
from distilvec.modules.folder_checks import check_links
from distilvec.modules.layouts import KERNELS, has_kernels
from distilvec.modules.projection import validated_ridge
from distilvec.modules.settings import save_beside, tensor_shapes

_WEIGHTS, (_FOLDER, _CONFIG) = "kernels.safetensors", KERNELS
#: A coordinate is taken for constant where it varies less than this share of the teacher's liveliest one, and less than
#: this share of its own mean or than this. (Of descriptors with units of their own one may be a billion times another.)
_OF_THE_LIVELIEST, _OF_ITS_MEAN, _AT_ALL = 1e-5, 1e-3, 1e-4


class Kernel(NamedTuple):
    """The prediction for one teacher, in standardised units (in the teacher's own if nothing is standardised).

    Attributes:
        mean: [..., n, D], n components.
        spread: [..., n, D] what the head says of the deviation, before it is bounded; None where it says nothing.
        weights: [..., n] log-probabilities of the components; None for one.
        factor: [D, D] unit lower triangular, or None.
    """

    mean: Tensor
    spread: Tensor | None
    weights: Tensor | None
    factor: Tensor | None


class GaussianKernels(nn.Module):
    """One small network per teacher: from the student's vector to the parameters of a Gaussian.

    Each has `depth` hidden layers and an output layer, with ReLU between and no normalisation. Kernels of one shape
    lie in stacked weights, so that a step computes them in one batched product per layer.

    Args:
        width: d, of the student's vector.
        names: of the teachers.
        widths: D_k, of their vectors.
        depth: hidden layers, >= 1.
        hidden: width of the hidden layers; a float is a factor of D_k (1.4 in the published code).
        components: n >= 1 Gaussians per teacher.
        spread: whether deviations are predicted.
        triangular: one trained unit lower triangular matrix per teacher, so that coordinates may go together.
        linear: whether a linear map of the student's vector is added to the network's mean; `start_linear` fits it.

    Attributes:
        shift, scale: per teacher float32 [D_k], what `standardise` takes away and divides by.
        live: per teacher bool [D_k], False where the teacher's coordinate is constant and nothing can be learnt.
        deviation: per teacher float32 [D_k], of its coordinates over its store, standardised or not; 1 for constants.

    Source: How to distill task-agnostic representations from many teachers?, section 3.3.
    """

    def __init__(
        self,
        width: int,
        names: Sequence[str],
        widths: Sequence[int],
        *,
        depth: int = 3,
        hidden: int | float = 1024,
        components: int = 1,
        spread: bool = True,
        triangular: bool = False,
        linear: bool = False,
    ) -> None:
        super().__init__()
        self.width, self.names, self.widths = width, list(names), list(widths)
        self.depth, self.hidden, self.components = depth, hidden, components
        self.spread, self.triangular, self.linear = spread, triangular, linear
        self.maps = nn.ModuleList(nn.Linear(width, size) for size in (widths if linear else []))
        self.members: list[list[int]] = [
            [number for number, size in enumerate(widths) if size == each] for each in dict.fromkeys(widths)
        ]
        self.stacks = nn.ModuleList(
            _Stack(len(members), self._sizes(self.widths[members[0]])) for members in self.members
        )
        self.factors = nn.ParameterList(
            nn.Parameter(torch.zeros(size, size)) for size in (self.widths if triangular else [])
        )
        for number, size in enumerate(widths):
            self.register_buffer(f"shift_{number}", torch.zeros(size))
            self.register_buffer(f"scale_{number}", torch.ones(size))
            self.register_buffer(f"live_{number}", torch.ones(size, dtype=torch.bool))
            self.register_buffer(f"deviation_{number}", torch.ones(size))

    def _sizes(self, target: int) -> list[int]:
        hidden = int(self.hidden * target) if isinstance(self.hidden, float) else self.hidden
        out = self.components * target * (2 if self.spread else 1) + (self.components if self.components > 1 else 0)
        return [self.width, *[hidden] * self.depth, out]

    def shift(self, teacher: int) -> Tensor:
        return self.get_buffer(f"shift_{teacher}")

    def scale(self, teacher: int) -> Tensor:
        return self.get_buffer(f"scale_{teacher}")

    def live(self, teacher: int) -> Tensor:
        return self.get_buffer(f"live_{teacher}")

    def deviation(self, teacher: int) -> Tensor:
        return self.get_buffer(f"deviation_{teacher}")

    @torch.no_grad()
    def learn_units(self, teacher: int, mean: Tensor, std: Tensor, *, standardise: bool) -> None:
        """Set the units of one teacher.

        Args:
            mean, std: [D_k] over its store.
            standardise: whether the kernel's targets are standardised, or the vectors as they are.
        """
        live = (std > _OF_THE_LIVELIEST * std.max()) | ((std > _OF_ITS_MEAN * mean.abs()) & (std > _AT_ALL))
        deviation = torch.where(live, std, torch.ones_like(std))
        self.live(teacher).copy_(live)
        self.deviation(teacher).copy_(deviation)
        # Coordinates that never change are not learnt: whoever asks for them gets this constant.
        self.shift(teacher).copy_(mean if standardise else torch.where(live, torch.zeros_like(mean), mean))
        self.scale(teacher).copy_(deviation if standardise else torch.ones_like(std))

    @torch.no_grad()
    def start_linear(self, teacher: int, source: Tensor, target: Tensor, inverse: Callable[[Tensor], Tensor]) -> None:
        """Start a kernel at the best linear map, with the deviations that it leaves on rows that it has not seen, and
        its network near nothing.

        Args:
            source: [n, d] student vectors.
            target: [n, D_k] in the kernel's units.
            inverse: log-variance -> what the head has to say for it.
        """
        weight, bias, left = validated_ridge(source, target)
        linear = cast(nn.Linear, self.maps[teacher])
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
        group = next(number for number, members in enumerate(self.members) if teacher in members)
        stack, place = cast(_Stack, self.stacks[group]), self.members[group].index(teacher)
        # Not zero: nothing would reach the layers before.
        stack.weights[-1][place] *= 0.1
        stack.biases[-1][place] *= 0.1
        if self.spread:
            size = self.components * self.widths[teacher]
            said = inverse(left.clamp_min(1e-4).log()).repeat(self.components)
            stack.biases[-1][place, 0, size : 2 * size] = said

    def standardise(self, teacher: int, vectors: Tensor) -> Tensor:
        """[..., D_k] in the teacher's own units -> mean 0 and deviation 1 per coordinate."""
        return (vectors - self.shift(teacher)) / self.scale(teacher)

    def forward(self, vectors: Tensor) -> list[Kernel]:
        """Student vectors [..., d] -> one kernel per teacher, in the order of their names."""
        rows = vectors.reshape(-1, vectors.shape[-1])
        kernels: list[Kernel | None] = [None] * len(self.widths)
        for members, stack in zip(self.members, self.stacks, strict=True):
            for teacher, values in zip(members, stack(rows).unbind(0), strict=True):
                kernels[teacher] = self._kernel(teacher, values.unflatten(0, vectors.shape[:-1]), vectors)
        return [kernel for kernel in kernels if kernel is not None]

    def _kernel(self, teacher: int, values: Tensor, vectors: Tensor) -> Kernel:
        parts, size = self.components, self.components * self.widths[teacher]
        mean = values[..., :size].unflatten(-1, (parts, -1))
        if self.linear:
            mean = mean + self.maps[teacher](vectors).unsqueeze(-2)
        spread = values[..., size : 2 * size].unflatten(-1, (parts, -1)) if self.spread else None
        weights = values[..., -parts:].float().log_softmax(-1) if parts > 1 else None
        return Kernel(mean, spread, weights, self._factor(teacher) if self.triangular else None)

    @torch.no_grad()
    def marginal(self, teacher: int) -> Tensor:
        """[D_k], by how much a coordinate's variance exceeds that of its own deviation: what it shares with others.

        The precision is diag(1 / deviation) U U^T diag(1 / deviation), so this is the diagonal of (U U^T)^-1 over the
        coordinates that count; 1 without triangular covariance.
        """
        live = self.live(teacher)
        excess = torch.ones(len(live), device=live.device)
        if self.triangular and live.any():
            factor = self._factor(teacher).double()
            excess[live] = torch.linalg.inv((factor @ factor.mT)[live][:, live]).diagonal().float()
        return excess

    def _factor(self, teacher: int) -> Tensor:
        """U [D_k, D_k], unit lower triangular."""
        below = cast(Tensor, self.factors[teacher]).tril(-1)
        return below + torch.eye(len(below), dtype=below.dtype, device=below.device)

    def save(self, folder: str | Path, **more: Any) -> None:
        """Write `kernels/kernels.safetensors` and `kernels/kernels.json` into the folder of a model.

        Args:
            more: JSON values kept beside the configuration (how deviations are bounded).
        """
        keys = ("width", "names", "widths", "depth", "hidden", "components", "spread", "triangular", "linear")
        content = {"kernels": {key: getattr(self, key) for key in keys}, **more}
        save_beside(self, Path(folder) / _FOLDER, _WEIGHTS, _CONFIG, content)

    @classmethod
    def load(cls, folder: str | Path) -> tuple[GaussianKernels, dict[str, Any]]:
        """Read what `save` wrote: the kernels, and what was kept beside their configuration.

        Raises:
            DataError: there are none, or their files are damaged.
        """
        from safetensors.torch import load_file

        place = Path(folder) / _FOLDER
        if not has_kernels(folder):
            raise DataError("this model has no kernels", where=str(folder), remedy="Train it with keep_kernels: true.")
        try:
            for each in (Path(folder), place):
                check_links(Path(folder), each)
            content = json.loads((place / _CONFIG).read_text(encoding="utf-8"))
            head = cls._empty(content.pop("kernels"), tensor_shapes(place / _WEIGHTS))
            head.load_state_dict(load_file(place / _WEIGHTS))
        except Exception as error:  # a file that somebody else wrote can be wrong in every way
            raise DataError(f"the kernels cannot be read ({error})", where=str(place)) from error
        return head, content

    @classmethod
    def _empty(cls, config: dict[str, Any], shapes: dict[str, list[int]]) -> GaussianKernels:
        """Kernels without values; no memory is taken for sizes that their weights do not have."""
        if max(config.get("depth", 0), len(config["widths"])) <= len(shapes):
            with torch.device("meta"):
                head = cls(config.pop("width"), config.pop("names"), config.pop("widths"), **config)
            if {name: list(value.shape) for name, value in head.state_dict().items()} == shapes:
                return head.to_empty(device="cpu")
        raise DistilvecError(f"{_CONFIG} asks for other sizes than {_WEIGHTS} has")


def bounded(spread: Tensor, bound: str) -> Tensor:
    """Return what a kernel says of the deviation -> log-variance within its bounds."""
    return 10 * torch.tanh(spread / 10) if bound == "soft" else -2 * torch.tanh(spread)


class _Stack(nn.Module):
    """K multilayer perceptrons of one shape with a common input, in stacked weights."""

    def __init__(self, count: int, sizes: Sequence[int]) -> None:
        super().__init__()
        shapes = list(itertools.pairwise(sizes))
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(count, *shape)) for shape in shapes)
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(count, 1, out)) for _, out in shapes)
        for weight, bias in zip(self.weights, self.biases, strict=True):  # torch's own start of a linear layer
            bound = 1 / math.sqrt(weight.shape[1])
            nn.init.uniform_(weight, -bound, bound)
            nn.init.uniform_(bias, -bound, bound)

    def forward(self, rows: Tensor) -> Tensor:
        """[N, d] -> [K, N, out]."""
        states = rows.expand(len(self.weights[0]), -1, -1)
        last = len(self.weights) - 1
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            states = torch.baddbmm(bias, states, weight)
            if number < last:
                states = states.relu()
        return states
