"""Tell by its files what lies in the folder of a model: what reads it is imported where it is there."""

from __future__ import annotations

from pathlib import Path

from distilvec.errors import DataError
from distilvec.modules.settings import object_in, tensor_shapes

#: Folder beside a model's own files, and the file in it that says what the head is made from.
TASK_HEAD, KERNELS = ("task", "task.json"), ("kernels", "kernels.json")
#: The weights of a folder of model2vec, and the table in them.
MODEL2VEC = ("model.safetensors", "embeddings")
#: Vision models whose first token stands for the image, after a last normalisation.
CLS = {"deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "vit", "vit_msn"}
#: Those in which what the model calls its pooled output does: the normalised mean over all positions.
POOLER = {"convnext", "convnextv2"}
#: The same if their configuration says so, else the first token.
EITHER = {"beit", "data2vec-vision"}
#: Those without a first token that are known to be for images alone; others are told by their image processor.
_MEAN = {"mobilenet_v1", "mobilenet_v2", "pvt", "pvt_v2", "resnet", "swin", "swinv2"}
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model")


def has_head(folder: str | Path) -> bool:
    """Tell whether a task head lies beside the model in this folder."""
    return Path(folder, *TASK_HEAD).is_file()


def has_kernels(folder: str | Path) -> bool:
    """Tell whether kernels lie beside the model in this folder."""
    return Path(folder, *KERNELS).is_file()


def is_model2vec(folder: str | Path) -> bool:
    """Tell whether model2vec saved this folder: by the name of the table in its weights."""
    place, (weights, table) = Path(folder), MODEL2VEC
    if not all((place / name).is_file() for name in ("config.json", "tokenizer.json", weights)):
        return False
    try:
        return table in tensor_shapes(place / weights)
    except DataError:  # opening it says what is wrong
        return False


def is_nomic_moe(folder: str | Path) -> bool:
    """Tell whether a folder is a model of nomic-embed-text-v2-moe's published type, which `open_moe` opens.

    transformers' own class for that type knows no mixtures and would make up most of the weights.
    """
    config = object_in(Path(folder) / "config.json")
    return config.get("model_type") == "nomic_bert" and bool(config.get("num_experts"))


def is_vision(folder: str | Path) -> bool:
    """Tell whether a bare transformers folder holds a model of images alone, for `open_vision` to open or refuse.

    A folder of sentence-transformers, with modules.json, says itself what it reads, and is none. One of timm is.
    """
    place = Path(folder)
    if (place / "modules.json").is_file() or any((place / name).is_file() for name in _TOKENIZERS):
        return False
    known = {*CLS, *POOLER, *EITHER, *_MEAN}
    return (
        is_timm(place)
        or object_in(place / "config.json").get("model_type") in known
        or bool(object_in(place / PROCESSORS[0]).get("image_processor_type"))
    )


def is_timm(place: Path) -> bool:
    """Tell whether timm wrote it to the hub, or transformers wraps it: both need timm and torchvision."""
    config = object_in(place / "config.json")
    return isinstance(config.get("pretrained_cfg"), dict) or config.get("model_type") == "timm_wrapper"
