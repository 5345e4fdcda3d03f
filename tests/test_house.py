"""What benchmarks/house.py counts, on a checkout of a few lines where every count is known."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RUN = """'''What runs.'''
def go(number):  # called
    if number:
        return [
            number]
    return 0
"""
FILES = {
    "transformers.py": "class Trainer:\n    def _save(self): self._loss = 0\n    def _init_weights(self): ...\n",
    "tests/tiny_models.py": "",
    "tests/english.py": "def sentences(): return ['one', 'two']\n",
    "experiments/run.py": "options(weight=1)\n",
    "docs/page.md": "`scale`\n<!-- generated: options mse -->\n`margin`\n<!-- /generated -->\n",
    "src/distilvec/__init__.py": "",
    # It accepts the second recipe only.
    "src/distilvec/__main__.py": "from pathlib import Path\nif 'student' not in Path('recipe.yaml').read_text():\n"
    "    raise SystemExit(2)\nassert Path('texts.txt').read_text().split() == ['one', 'two']\n"
    "from distilvec.flow import run\nrun.go(1)\n",
    "src/distilvec/flow/__init__.py": "",
    "src/distilvec/flow/run.py": RUN,
    "src/distilvec/flow/long.py": "def long(self, a, b, c, d, e, f, g=lambda x: x, *h):\n" + "    pass\n" * 60,
    "src/distilvec/flow/ray/run.py": "if modality == 'image':\n    pass\n",
    "src/distilvec/flow/teach.py": "def ask(teacher, taught, teachers, other_teacher):\n"
    "    hasattr(teacher, 'a'), getattr(taught.teacher, 'b', 0), isinstance(teachers[0], Kind)\n"
    "    isinstance(teacher, str | Path), getattr(other_teacher, 'c')\n"
    "    modality in ('image', None), modality == 'text', column == 'text', separator is None, find_writer(teacher)\n"
    "    config._dtype = config._own = 0\n"
    "    def _own(): ...\n",
    "src/distilvec/teachers/text.py": "isinstance(teacher, Kind)\n",
    "src/distilvec/methods/mse.py": "class _Part: ...\nclass MSEOptions:\n    weight: float\n    scale: float\n"
    "    margin: float\n    bound: float\noptions.margin\n",
    "src/distilvec/methods/base.py": "class Part: ...\noptions.bound\n",
    "src/distilvec/training/__init__.py": "",
    "src/distilvec/training/trainer.py": "from transformers import Trainer\nclass Ours(Trainer):\n"
    "    def _save(self): self._loss, self._extra = 1, self._ours\n    def _init_weights(self): ...\n"
    "    def _own(self): ...\n",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the rules find in the checkout of `FILES`."""
    folder = tmp_path_factory.mktemp("checkout")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        checkout, rules = importlib.import_module("housing.checkout"), importlib.import_module("housing.rules")
        assert sorted(map(sorted, checkout.statements(RUN))) == [[2], [3], [4, 5], [6]]
        house = checkout.House(folder)
        return {name: measure(house) for name, (_, measure) in rules.RULES.items()}


def test_what_is_counted_by_lines_and_names(found: dict[str, Any]) -> None:
    total = sum(text.count("\n") for name, text in FILES.items() if name.startswith("src/"))
    assert (found["lines of src"], found["lines of the spine"]) == (total, total - 2)  # without flow/ray
    assert (found["lines of tests"], found["lines of experiments"], found["files of src"]) == (1, 1, 12)
    assert found["lines with comments"] == [1, total]
    assert found["functions over 60 lines"] == ["flow/long.py:1 long: 61"]
    assert found["functions with more than 7 parameters"] == ["flow/long.py:1 long: 8"]
    assert found["files over 400 lines"] == []
    assert found["docstrings that begin with a noun clause"] == ["flow/run.py:1 What runs."]
    assert found["file names used more than once"] == ["run.py"]
    assert found["class names used more than once"] == ["Part"]


def test_what_a_run_loads_and_executes(found: dict[str, Any]) -> None:
    assert found["modules imported by a default run"] == [4, 12]
    # All of __main__.py but the refusal, and of go() all but its end.
    assert found["statements executed by a default run"][0] == 5 + 3


def test_what_touches_private_parts_of_libraries(found: dict[str, Any]) -> None:
    ours = "distilvec.training.trainer.Ours"
    assert found["overrides of foreign private methods"] == [f"{ours}._save"]
    assert found["private attributes of libraries set"] == [f"{ours}._loss", "flow/teach.py:5 config._dtype"]


def test_what_asks_for_types_and_kinds(found: dict[str, Any]) -> None:
    assert found["questions about the type of a teacher"] == [
        "flow/teach.py:2 hasattr(teacher, 'a')",
        "flow/teach.py:2 getattr(taught.teacher, 'b', 0)",
        "flow/teach.py:2 isinstance(teachers[0], Kind)",
    ]
    asked = ["modality in ('image', None)", "modality == 'text'", "separator is None", "find_writer(teacher)"]
    assert found["tests of kind in the spine"] == [f"flow/teach.py:4 {each}" for each in asked]


def test_options_that_only_their_own_file_or_other_code_names(found: dict[str, Any]) -> None:
    assert found["options of methods without a user"] == ["methods/mse.py: margin", "methods/mse.py: bound"]
    assert found["options of methods that nothing names"] == ["methods/mse.py: margin"]
