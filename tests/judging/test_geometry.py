"""The geometry of embedders: known vectors, a dense model, a mixture of experts made of the real teacher."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from distilvec.cli.main import every_command
from distilvec.errors import DataError
from distilvec.flow.demo import demo_teacher
from distilvec.judging.collapse import collapse
from distilvec.judging.geometry import _measure, geometry
from distilvec.report.geometry import geometry_markdown
from distilvec.students.upcycling import upcycle


def test_two_experts_at_a_right_angle() -> None:
    outputs, weights = torch.tensor([[[3.0, 0.0], [0.0, 4.0]]]), torch.tensor([[0.6, 0.2]])
    found = {name: float(value[0]) for name, value in _measure(outputs, weights).items()}
    assert found["norm_ratio"] == pytest.approx(0.75), "the most probable expert's length comes first"
    assert found["angle"] == pytest.approx(90)
    assert found["mass"] == pytest.approx(0.8)
    assert found["output:linear"] == pytest.approx(math.hypot(1.8, 0.8) / 3.5)
    assert found["angular:linear"] == pytest.approx(math.hypot(1.8, 0.8) / 2.6)
    assert found["output:sba"] == pytest.approx(2.6 / 3.5)
    assert found["angular:sba"] == pytest.approx(1)
    assert found["output:unit"] == pytest.approx(1 / 3.5)
    turned = _measure(outputs, weights.flip(-1))
    assert float(turned["norm_ratio"][0]) == pytest.approx(4 / 3)


@pytest.mark.parametrize("degrees", [0.01, 45.0, 179.99])
def test_angles_are_exact_at_both_ends(degrees) -> None:
    angle = math.radians(degrees)
    outputs = torch.tensor([[[1.0, 0.0], [math.cos(angle), math.sin(angle)]]])
    assert float(_measure(outputs, torch.tensor([[0.6, 0.4]]))["angle"][0]) == pytest.approx(degrees, rel=2e-3)


def test_a_dense_model_has_a_space_and_no_mixtures(sentences) -> None:
    model, texts = SentenceTransformer(demo_teacher(), device="cpu"), list(sentences[:40])
    found = geometry(model, texts)
    assert found.mixtures == [] and found.width == 384 and found.items == len(set(texts))
    expected = collapse(model.encode(list(dict.fromkeys(texts))))
    assert found.space["mean_cosine"] == pytest.approx(expected["mean_cosine"], abs=1e-4)
    with pytest.raises(DataError, match=r"^texts: 1 different .*\b2\b"):
        geometry(model, ["one text", "one text"])


@pytest.fixture(scope="module")
def mixture(tmp_path_factory) -> Path:
    """The real teacher with mixtures of experts, and texts."""
    place = tmp_path_factory.mktemp("mixture")
    upcycle(demo_teacher(), experts=4, noise=0.3).save(str(place / "model"))
    return place


def test_a_mixture_is_looked_into(mixture, sentences) -> None:
    from distilvec.students import load_student

    model = load_student(mixture / "model", device="cpu")
    found = geometry(model, list(sentences[:30]))
    everything, *layers = found.mixtures
    assert everything.layer == 0 and [each.layer for each in layers] == [2, 4, 6]
    assert everything.tokens == sum(each.tokens for each in layers)
    assert everything.load == [], "expert 1 of one layer is not expert 1 of another"
    assert all(sum(each.load) == pytest.approx(1) and len(each.load) == 4 for each in layers)
    for each in found.mixtures:
        assert 0 < each.entropy <= math.log(4) + 1e-5
        assert each.angular["sba"].median == pytest.approx(1, abs=1e-3)
        assert each.angular["linear"].median < each.angular["sba"].median
        assert 0 < each.angle.low < each.angle.high < 180
    assert np.isfinite(everything.samples["norm_ratio"]).all()
    page = geometry_markdown(found, "mixture")
    assert "| all |" in page and "| 6 |" in page
    json.dumps(found.to_dict())


def test_the_command_writes_numbers_and_pictures(mixture, tmp_path, sentences) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(sentences[:30]) + "\n", encoding="utf-8")
    out = tmp_path / "out"
    done = CliRunner().invoke(
        every_command(), ["geometry", str(mixture / "model"), "--data", str(file), "-o", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert "anisotropy" in done.output and "Active experts" in done.output
    figures = {file.stem: file.read_text() for file in (out / "figures").glob("*.svg")}
    assert figures.keys() == {"norm-ratios", "angles", "output-lengths", "mass-and-angle", "router-load"}
    for name, drawn in figures.items():
        assert ("all layers" in drawn) == (name != "router-load"), name
        assert all(f"layer {number}" in drawn for number in (2, 4, 6)), name
        assert len(drawn) < 100_000, name
    assert json.loads((out / "geometry.json").read_text())["mixtures"][0]["layer"] == 0
