"""The geometry of an embedder: how its vectors fill their space, and in mixtures of experts how the experts lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from distilvec.corpus.keys import split_pair
from distilvec.errors import DataError
from distilvec.functional import spherical_aggregate
from distilvec.functional.sphere import Mode
from distilvec.judging.collapse import collapse
from distilvec.judging.encoder import CachedEncoder
from distilvec.modules.blocks import find_transformer
from distilvec.modules.pipeline import default_prompt
from distilvec.modules.routing import mixtures, routing

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MODES: tuple[Mode, ...] = get_args(Mode)
#: Angles above this are what the paper calls wide.
WIDE = 40.0
_BATCH = 16
_KEPT = 20_000


@dataclass(frozen=True)
class Spread:
    """The distribution of a quantity over tokens: mean, median, and the 5th and 95th percentiles."""

    mean: float
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Spread:
        low, median, high = np.percentile(values, [5, 50, 95])
        return cls(float(values.mean()), float(median), float(low), float(high))


@dataclass
class MixtureGeometry:
    """The geometry of one mixture's active experts, over the tokens of some texts (all mixtures together: layer 0).

    Attributes:
        layer: of its block, 1 to L; 0 = all.
        norm_ratio: length of the most probable expert's output over that of the second (Figure 1).
        angle: between the two, in degrees (Figure 2); `wide` is the share above 40.
        mass: sum of the active experts' router weights; 1 where they are renormalised.
        output: by aggregation, length of the output over the active experts' mean length (Figure 5).
        angular: by aggregation, length of the output over the weighted sum of the experts' lengths: what cancelling
            directions leave, with the mass taken out. 1 for the spherical ones.
        load: each expert's share of the assignments; empty for all together, since expert e of one layer has nothing to
            do with expert e of another. `entropy` of the router's probabilities, in nats.
        samples: at most 20,000 tokens' `norm_ratio`, `angle` and `output:MODE`, for pictures.
    """

    layer: int
    tokens: int
    norm_ratio: Spread
    angle: Spread
    wide: float
    mass: Spread
    output: dict[str, Spread]
    angular: dict[str, Spread]
    load: list[float]
    entropy: float
    samples: dict[str, npt.NDArray[np.float32]] = field(repr=False, default_factory=dict)


@dataclass
class Geometry:
    """The result of `geometry`.

    Attributes:
        space: signs of collapse, see `collapse`: mean cosine (anisotropy), effective rank, hubness.
        mixtures: one per mixture, and before them one of all together; empty for dense models.
    """

    items: int
    width: int
    space: dict[str, Any]
    mixtures: list[MixtureGeometry]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, without the samples."""
        values = asdict(self)
        for each in values["mixtures"]:
            each.pop("samples")
        return values


def geometry(model: SentenceTransformer, texts: Sequence[str]) -> Geometry:
    """Look at how a model's vectors lie, and into its mixtures of experts where it has any.

    Args:
        model: any sentence-transformers model; only mixture-of-experts encoders of ours have mixtures to look into.
        texts: at least two different ones; a few hundred are enough.

    Raises:
        DataError: fewer than two different texts.

    Source: spherical barycentric aggregation, Figures 1, 2 and 5.
    """
    chosen = list(dict.fromkeys(texts))
    if len(chosen) < 2:
        raise DataError(f"{len(chosen)} different text given, at least 2 are needed to see a geometry", where="texts")
    vectors = CachedEncoder(model)(chosen)
    return Geometry(len(chosen), int(vectors.shape[1]), collapse(vectors), mixture_geometry(model, chosen))


@torch.inference_mode()
def mixture_geometry(
    model: SentenceTransformer, texts: Sequence[str], *, prompt: str | None = None
) -> list[MixtureGeometry]:
    """All mixtures of experts of a model together, then each of them; empty where it has none.

    Args:
        texts: at least one; a joint pair is read as such.
        prompt: what stands before each text; None = the model's default.
    """
    transformer = find_transformer(model)
    if transformer is None or not mixtures(transformer.model):
        return []
    from sentence_transformers.util import batch_to_device

    model.eval()
    if prompt is None:
        prompt = default_prompt(model) or None
    seen: dict[int, list[dict[str, Tensor]]] = {}
    for start in range(0, len(texts), _BATCH):
        batch = [split_pair(text) for text in texts[start : start + _BATCH]]
        features = batch_to_device(model.preprocess(batch, prompt=prompt or None), model.device)
        with routing(model) as routed:
            transformer(features)
        for each in routed:
            real = each.real
            parts = _measure(each.outputs()[real].float(), each.weights[real].float())
            parts["load"] = each.selected[real].sum(0).float()[None]
            parts["entropy"] = torch.special.entr(each.probabilities[real].float()).sum(-1)
            seen.setdefault(each.layer, []).append({name: value.cpu() for name, value in parts.items()})
    layers = {
        layer: {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}
        for layer, parts in sorted(seen.items())
    }
    first = next(iter(layers.values()))
    everything = {name: np.concatenate([measures[name] for measures in layers.values()]) for name in first}
    return [_summary(layer, measures) for layer, measures in {0: everything, **layers}.items()]


def _measure(outputs: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Per token of [n, K, d] outputs and [n, K] weights: [n] each. Ratio and angle are of the two most probable."""
    lengths = outputs.norm(dim=-1)
    weighted, mean = (weights * lengths).sum(-1), lengths.mean(-1)
    measures = {"mass": weights.sum(-1)}
    if outputs.shape[1] > 1:
        order = weights.argsort(-1, descending=True)[:, :2]
        pair = outputs.gather(1, order[..., None].expand(-1, -1, outputs.shape[-1]))
        size = lengths.gather(1, order).clamp_min(1e-12)
        units = pair / size[..., None]
        # Twice atan2 of half difference and half sum: exact near 0 and 180 degrees, where a cosine is not.
        apart, together = (units[:, 0] - units[:, 1]).norm(dim=-1), (units[:, 0] + units[:, 1]).norm(dim=-1)
        measures |= {"norm_ratio": size[:, 0] / size[:, 1], "angle": torch.rad2deg(2 * torch.atan2(apart, together))}
    else:
        measures |= {"norm_ratio": torch.ones_like(mean), "angle": torch.zeros_like(mean)}
    for mode in MODES:
        size = spherical_aggregate(outputs, weights, mode).norm(dim=-1)
        measures[f"output:{mode}"] = size / mean.clamp_min(1e-12)
        measures[f"angular:{mode}"] = size / weighted.clamp_min(1e-12)
    return measures


def _summary(layer: int, measures: dict[str, npt.NDArray[Any]]) -> MixtureGeometry:
    count = len(measures["mass"])
    rows = np.sort(np.random.default_rng(0).permutation(count)[:_KEPT])
    load = measures["load"].sum(0)
    shown = ["norm_ratio", "angle", *(f"output:{mode}" for mode in MODES)]
    return MixtureGeometry(
        layer=layer,
        tokens=count,
        norm_ratio=Spread.of(measures["norm_ratio"]),
        angle=Spread.of(measures["angle"]),
        wide=float((measures["angle"] > WIDE).mean()),
        mass=Spread.of(measures["mass"]),
        output={mode: Spread.of(measures[f"output:{mode}"]) for mode in MODES},
        angular={mode: Spread.of(measures[f"angular:{mode}"]) for mode in MODES},
        load=[] if layer == 0 else (load / load.sum()).tolist(),
        entropy=float(measures["entropy"].mean()),
        samples={name: measures[name][rows].astype(np.float32) for name in shown},
    )
