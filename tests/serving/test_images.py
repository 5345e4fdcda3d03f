"""A service on an image model: data URIs only."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from tests.serving.server import posted, running

from distilvec.kinds.networks import fresh_resnet
from distilvec.serving import application
from distilvec.students import load_student


def test_paths_and_addresses_of_images_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    written = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(written, "png")
    (tmp_path / "secret.png").write_bytes(written.getvalue())
    uri = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
    with running(application(fresh_resnet(), "images")) as address:
        assert posted(address, input=[uri]).status_code == 200
        for place in (str(tmp_path / "secret.png"), "http://localhost:1/a.png", "file:///etc/passwd"):
            refused = posted(address, input=[uri, place])
            assert refused.status_code == 400 and "input 1 is no data URI" in refused.json()["error"]["message"]
        broken = posted(address, input=["data:image/png;base64,AAAA"])
        assert broken.status_code == 400 and "cannot read" in broken.json()["error"]["message"]


def test_length_limit_of_texts_does_not_apply_to_images() -> None:
    from PIL import Image

    written = io.BytesIO()
    noise = np.random.default_rng(0).integers(256, size=(300, 300, 3), dtype=np.uint8)
    Image.fromarray(noise).save(written, "png")
    uri = "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()
    assert len(uri) > 200_000
    with running(application(fresh_resnet(), "images")) as address:
        assert posted(address, input=[uri]).status_code == 200
        assert posted(address, input=["x" * 200_001]).status_code == 413


def test_model_of_texts_and_images_refuses_paths_and_addresses(tiny_bert: Path, tmp_path: Path) -> None:
    model = load_student(tiny_bert, device="cpu")

    class Both:
        modalities = ["text", "image"]

        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

    both: Any = Both()
    with running(application(both, "both")) as address:
        assert posted(address, input=["a cat on a sofa"]).status_code == 200
        for place in (str(tmp_path / "a.JPG"), "https://localhost:1/x"):
            assert posted(address, input=[place]).status_code == 400
