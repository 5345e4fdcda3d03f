"""Opening a vision model of transformers as an embedder of images, made of stock sentence-transformers modules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.modules.blocks import without_dropout
from distilvec.modules.guarded import open_config, open_transformer
from distilvec.modules.settings import object_in

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

ImagePooling = Literal["cls", "mean", "pooler"]
#: The first token stands for the image, after a last normalisation.
_CLS = {"deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "vit", "vit_msn"}
#: What the model calls its pooled output: the normalised mean over all positions.
_POOLER = {"convnext", "convnextv2"}
#: The same if the configuration says so, else the first token.
_EITHER = {"beit", "data2vec-vision"}
#: Those without a first token that are known to be for images alone; others are told by their image processor.
_MEAN = {"mobilenet_v1", "mobilenet_v2", "pvt", "pvt_v2", "resnet", "swin", "swinv2"}
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model")


def is_vision(folder: str | Path) -> bool:
    """Tell whether a bare transformers folder holds a model of images alone, for `open_vision` to open or refuse.

    A folder of sentence-transformers, with modules.json, says itself what it reads, and is none. One of timm is.
    """
    place = Path(folder)
    if (place / "modules.json").is_file() or any((place / name).is_file() for name in _TOKENIZERS):
        return False
    known = {*_CLS, *_POOLER, *_EITHER, *_MEAN}
    return (
        _of_timm(place)
        or object_in(place / "config.json").get("model_type") in known
        or bool(object_in(place / _PROCESSORS[0]).get("image_processor_type"))
    )


def image_pooling(config: Any) -> ImagePooling:
    """Return what of a vision model's output stands for the whole image.

    `cls` for ViT, DeiT and DINOv2 (and BEiT without mean pooling), `pooler` for BEiT with mean pooling and ConvNeXt,
    `mean` over all positions for those without a first token: Swin, PVT, ResNet, MobileNet and what else there is.

    Args:
        config: of the model, from transformers.
    """
    if config.model_type in _CLS:
        return "cls"
    if config.model_type in _EITHER:
        return "pooler" if config.use_mean_pooling else "cls"
    return "pooler" if config.model_type in _POOLER else "mean"


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
    if _of_timm(place):
        raise DistilvecError(
            "this is a model of timm, which distilvec does not open",
            where=str(place),
            remedy="Take a vision model of transformers or a file of weights; a teacher can be a function with timm.",
        )
    if not any((place / name).is_file() for name in _PROCESSORS):
        raise DistilvecError(
            "this folder does not say how images are to be brought to the model's size",
            where=str(place),
            remedy=f"Save its image processor beside it ({_PROCESSORS[0]}).",
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


def _of_timm(place: Path) -> bool:
    """As timm writes it to the hub, or as transformers wraps it: both need timm and torchvision."""
    config = object_in(place / "config.json")
    return isinstance(config.get("pretrained_cfg"), dict) or config.get("model_type") == "timm_wrapper"
