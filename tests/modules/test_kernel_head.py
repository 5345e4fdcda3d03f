"""Files of Gaussian kernels: impossible sizes and links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from distilvec.errors import DataError
from distilvec.modules.kernel_head import GaussianKernels


def test_kernels_of_an_impossible_size_allocate_nothing(tmp_path: Path) -> None:
    GaussianKernels(8, ["a"], [4], depth=1, hidden=4).save(tmp_path)
    file = tmp_path / "kernels" / "kernels.json"
    content = json.loads(file.read_text())
    assert GaussianKernels.load(tmp_path)[0].names == ["a"]
    for wrong in ({"hidden": 4_000}, {"depth": 10**12}, {"components": 10**15}, {"width": None}, {"width": 16}):
        file.write_text(json.dumps({"kernels": content["kernels"] | wrong}))
        made: list[int] = []
        handle = torch.nn.modules.module.register_module_parameter_registration_hook(
            lambda module, name, value: made.append(value.numel() if value.device.type == "cpu" else 0)  # noqa: B023
        )
        try:
            with pytest.raises(DataError, match="the kernels cannot be read"):
                GaussianKernels.load(tmp_path)
        finally:
            handle.remove()
        assert sum(made) == 0, wrong


@pytest.mark.parametrize("linked", ["kernels/kernels.safetensors", "kernels"])
def test_kernels_behind_a_link_are_refused(linked: str, tmp_path: Path) -> None:
    GaussianKernels(8, ["a"], [4], depth=1, hidden=4).save(tmp_path / "model")
    (tmp_path / "model" / linked).rename(tmp_path / "elsewhere")
    (tmp_path / "model" / linked).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="leads out of the model's folder"):
        GaussianKernels.load(tmp_path / "model")
