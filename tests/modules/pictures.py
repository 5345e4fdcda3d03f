"""Pictures as pixels and as data URIs."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image
from torch.nn import functional


def pictures(count: int, size: int = 32) -> np.ndarray:
    """Smooth coloured noise, uint8 [count, size, size, 3]."""
    coarse = torch.rand(count, 3, 5, 5, generator=torch.Generator().manual_seed(count))
    smooth = functional.interpolate(coarse, size, mode="bilinear")
    return (smooth * 255).byte().permute(0, 2, 3, 1).numpy()


def data_uri(pixels: np.ndarray, kind: str = "png") -> str:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, format=kind)
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode()}"
