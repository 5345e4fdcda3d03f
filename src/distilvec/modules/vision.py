"""Opening a vision model of transformers as an embedder of images, made of stock sentence-transformers modules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.modules.blocks import without_dropout
from distilvec.modules.guarded import open_config, open_transformer
from distilvec.modules.layouts import CLS, EITHER, POOLER, PROCESSORS, is_timm

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

ImagePooling = Literal["cls", "mean", "pooler"]


def image_pooling(config: Any) -> ImagePooling:
    """Return what of a vision model's output stands for the whole image.

    `cls` for ViT, DeiT and DINOv2 (and BEiT without mean pooling), `pooler` for BEiT with mean pooling and ConvNeXt,
    `mean` over all positions for those without a first token: Swin, PVT, ResNet, MobileNet and what else there is.

    Args:
        config: of the model, from transformers.
    """
    if config.model_type in CLS:
        return "cls"
    if config.model_type in EITHER:
        return "pooler" if config.use_mean_pooling else "cls"
    return "pooler" if config.model_type in POOLER else "mean"


def open_vision(folder: str | Path, *, device: str | None = None, dtype: Any = "float32") -> SentenceTransformer:
    """A vision model as an embedder: images in any form that sentence-transformers takes -> [n, width].

    The result has stock modules only (`Transformer`, and `Pooling` where the model does not pool by itself), so that
    what is saved of it opens anywhere. Grey and transparent images are read as RGB.

    Args:
        folder: one that `is_vision`, with the configuration of its image processor.
        device: where it is put; default is the best device there is.
        dtype: of the weights.

    Raises:
        DistilvecError: no model, no image processor, neither of them can be opened, or it is a folder of timm.
        EnvironmentProblem: its image processor needs a package that is not installed.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    place = Path(folder)
    if is_timm(place):
        raise DistilvecError(
            "this is a model of timm, which distilvec does not open",
            where=str(place),
            remedy="Take a vision model of transformers or a file of weights; a teacher can be a function with timm.",
        )
    if not any((place / name).is_file() for name in PROCESSORS):
        raise DistilvecError(
            "this folder does not say how images are to be brought to the model's size",
            where=str(place),
            remedy=f"Save its image processor beside it ({PROCESSORS[0]}).",
        )
    transformer = _transformer(place, dtype)
    modules: list[Any] = [transformer]
    if transformer.module_output_name == "token_embeddings":
        modules.append(Pooling(_width(transformer), pooling_mode=image_pooling(transformer.model.config)))
    return SentenceTransformer(modules=modules, device=device).eval()


def _transformer(place: Path, dtype: Any) -> Any:
    """The stock module; it gives `sentence_embedding` where the model pools, else `token_embeddings`."""
    try:
        pooled = image_pooling(open_config(place)) == "pooler"
        transformer = open_transformer(
            place,
            {"use_safetensors": True, "dtype": dtype},
            modality_config={
                "image": {
                    "method": "forward",
                    "method_output_name": "pooler_output" if pooled else "last_hidden_state",
                }
            },
            module_output_name="sentence_embedding" if pooled else "token_embeddings",
        )
    except ImportError as problem:
        raise EnvironmentProblem(f"this model needs another package ({problem})", where=str(place)) from problem
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as problem:
        first = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise DistilvecError(f"the model cannot be opened: {first}", where=str(place)) from problem
    transformer.processor.do_convert_rgb = True
    return transformer


def _width(transformer: Any) -> int:
    """Return the width of the states, found by running it: some configurations (MobileNet's) do not name it."""
    import torch
    from PIL import Image

    features = transformer.preprocess([Image.new("RGB", (64, 64))])
    pixels = features["pixel_values"].to(transformer.model.device)
    with torch.no_grad(), without_dropout(transformer):
        states = transformer({**features, "pixel_values": pixels})
    return int(states["token_embeddings"].shape[-1])
