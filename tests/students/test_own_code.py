"""Students whose code is in their folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tests.jobs import tiny_recipe

import distilvec
from distilvec.errors import DistilvecError
from distilvec.flow.run import run


@pytest.fixture
def strange_model(tiny_bert: Path, tmp_path: Path) -> Path:
    """A BERT whose classes come with it."""
    folder = shutil.copytree(tiny_bert, tmp_path / "strange")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "strange",
        "auto_map": {"AutoConfig": "code.StrangeConfig", "AutoModel": "code.StrangeModel"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(
        "from transformers import BertConfig, BertModel\n\n\n"
        "class StrangeConfig(BertConfig):\n    model_type = 'strange'\n\n\n"
        "class StrangeModel(BertModel):\n    config_class = StrangeConfig\n"
    )
    return folder


def test_student_with_its_own_code_is_opened_after_a_run(
    tmp_path: Path, strange_model: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    student = {"model": str(strange_model), "trust_remote_code": True}
    judging = {"speed": False, "compression": True}
    done = run(tiny_recipe(tmp_path, tiny_bert, sentences[:90], student=student, judging=judging))
    assert (done.folder / "report.html").is_file()
    assert any(row.name == "float16 weights" for row in done.record["compressed"].rows), "opened a second time"
    with pytest.raises(DistilvecError, match="trust_remote_code"):
        distilvec.load(done.folder / "student")
    distilvec.load(done.folder / "student", trust_remote_code=True).encode(["a text"])


OWN_CODE = """
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

class OwnTransformer(Transformer):
    pass

class OwnPooling(Pooling):
    def forward(self, features, **more):
        features = super().forward(features, **more)
        features["sentence_embedding"] = 2 * features["sentence_embedding"]
        return features
"""


def with_code(tiny_bert: Path, folder: Path, number: int, kind: str) -> Path:
    """The model with another class for one of its modules."""
    shutil.copytree(tiny_bert, folder)
    (folder / "own_code.py").write_text(OWN_CODE, encoding="utf-8")
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    modules[number]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("number", "kind"), [(0, "own_code.OwnTransformer"), (1, "own_code.OwnPooling")])
def test_student_with_its_own_modules_ships_their_code(
    number: int, kind: str, tiny_bert: Path, tmp_path: Path, sentences: list[str]
) -> None:
    distilvec.distill(
        str(tiny_bert),
        student={"model": str(with_code(tiny_bert, tmp_path / "own", number, kind)), "trust_remote_code": True},
        corpus={"path": sentences, "holdout": 0.0},
        method="cosine",
        output=tmp_path / "out",
        training={"max_steps": 1, "batch_size": 8},
        judging={"tasks": [], "agreement": False, "speed": False},
    )
    shipped = SentenceTransformer(str(tmp_path / "out" / "student"), device="cpu", trust_remote_code=True)
    assert type(shipped[number]).__name__ == kind.partition(".")[2]
    loaded = distilvec.load(tmp_path / "out" / "student", trust_remote_code=True)
    np.testing.assert_allclose(shipped.encode(sentences[:5]), loaded.encode(sentences[:5]), atol=1e-6)


def test_student_with_code_from_elsewhere_is_refused_before_teaching(
    tiny_bert: Path, tmp_path: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package_elsewhere.py").write_text(OWN_CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = with_code(tiny_bert, tmp_path / "own", 1, "package_elsewhere.OwnPooling")
    asked: list[str] = []

    def teacher(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return np.random.default_rng(0).normal(size=(len(texts), 8))

    with pytest.raises(DistilvecError, match="module 1 is a OwnPooling"):
        distilvec.distill(
            teacher,
            student={"model": str(folder), "trust_remote_code": True},
            corpus={"path": sentences},
            method="cosine",
            output=tmp_path / "out",
        )
    assert len(asked) < len(sentences) / 4  # a probe alone
