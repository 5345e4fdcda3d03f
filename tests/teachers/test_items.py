"""Teachers of images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from distilvec.teachers.models import ItemTeacher


class Pictures(torch.nn.Sequential):
    def get_embedding_dimension(self) -> int:
        return 3


def test_image_processor_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')

    def found() -> str:
        model: Any = Pictures(torch.nn.Identity())
        return ItemTeacher(model, name="t", source=tmp_path).card.fingerprint

    seen = {found()}
    for name in ("preprocessor_config.json", "processor_config.json"):
        for size in (224, 256):
            (tmp_path / name).write_text(json.dumps({"size": size}))
            seen.add(found())
    assert len(seen) == 5
