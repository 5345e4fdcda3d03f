"""The first files of a new method: its code and its test, ready to run; in a checkout of ours its page too."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from pathlib import Path

from distilvec.errors import DistilvecError
from distilvec.methods.table import available
from distilvec.system_errors import discard, system_problem

_CODE = '''"""{title}: one sentence on what it compares.

    L = mean_i 1 - cos(e_i W, t_i)

Say which equation of the source it is, and where this file and the source differ.
"""

from __future__ import annotations

from torch import Tensor

from distilvec.functional import cosine_distance
from distilvec.methods.projected import ProjectedMethod, ProjectedOptions


class {title}Options(ProjectedOptions):
    """One Field(default, description=...) per option; say where each default comes from."""


class {title}(ProjectedMethod):
    """Terms: `{name}` [V, B] (`{name}:TEACHER` where there are several)."""

    name = "{name}"
    summary = "one line for `distilvec methods`"
    paper = "author and year, title (arXiv:NUMBER)"
    Options = {title}Options

    def compare(self, projected: Tensor, target: Tensor) -> Tensor:
        """[V, B, D] behind a linear map, [B, D] of the teacher -> [V, B]."""
        return cosine_distance(projected, target)
'''

_TEST = '''"""{title}: a value computed by hand, and its minimum."""

import torch

from {module} import {title}


def test_the_value_is_that_of_the_formula() -> None:
    student, teacher = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[1.0, 0.0]])
    torch.testing.assert_close({title}().compare(student, teacher), torch.tensor([[0.4]]))


def test_it_is_zero_where_student_and_teacher_agree() -> None:
    vectors = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert {title}().compare(vectors[None], vectors).abs().max() < 1e-6
'''

_PAGE = """# {name}

<!-- generated: method {name} -->
<!-- /generated -->

**When to use it.** ...

**What was found (published).** ...

**What differs in our presets.** ...

## Options

<!-- generated: options {name} -->
<!-- /generated -->

## Measured here

<!-- generated: measured {name} -->
<!-- /generated -->
"""


#: Of one's own: setuptools guesses no module where several files lie beside each other, so it is told which one.
_PROJECT = """[build-system]
requires = ["setuptools>=64"]
build-backend = "setuptools.build_meta"

[project]
name = "{distribution}"
version = "0.1.0"
dependencies = ["distilvec"]

{announced}

[tool.setuptools]
py-modules = ["{name}"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""
_ANNOUNCED = """[project.entry-points."distilvec.methods"]
{name} = "{name}:{title}\""""


def new_method(name: str, folder: Path) -> list[str]:
    """Write the files of a new method into a folder; in a checkout of distilvec into their rooms, with its table line.

    Args:
        name: the word in recipes: lower case, digits and underscores.
        folder: the root of a checkout, or a folder of one's own, which gets a pyproject.toml where it has none.

    Returns:
        Lines that say what was written and what is left to do.

    Raises:
        DistilvecError: no such name can be, it is taken, or a file is there already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise DistilvecError(f'"{name}" cannot be a method\'s name', remedy="Use lower case, digits and underscores.")
    if name in available():
        raise DistilvecError(f'there is a method "{name}" already', remedy="Choose another name.")
    title = "".join(part.capitalize() for part in name.split("_"))
    table = folder / "src" / "distilvec" / "methods" / "table.py"
    return _in_checkout(name, title, folder, table) if table.is_file() else _in_own(name, title, folder)


def _in_checkout(name: str, title: str, folder: Path, table: Path) -> list[str]:
    module = f"distilvec.methods.{name}"
    files = {
        table.parent / f"{name}.py": _CODE,
        folder / "tests" / "methods" / f"test_{name}.py": _TEST,
        folder / "docs" / "methods" / f"{name}.md": _PAGE,
    }
    lines = _written(files, name=name, title=title, module=module)
    source = table.read_text(encoding="utf-8")
    end = source.index("}", source.index("TABLE = {"))
    line = f'    "{name}": "{module}:{title}",\n'
    table.write_text(source[:end] + line + source[end:], encoding="utf-8")
    return [
        *lines,
        f"changed  {table}",
        "A method on tokens moves to methods/tokens/: change the path in the table and in the test.",
        "A method with a paper also has src/distilvec/recipe/packaged/paper-"
        f"{name.replace('_', '-')}.yaml, and its settings in tests/recipe/published.py.",
        "Then: python docs/generate.py, which also writes the navigation.",
    ]


def _in_own(name: str, title: str, folder: Path) -> list[str]:
    announced = _ANNOUNCED.format(name=name, title=title)
    files = {folder / f"{name}.py": _CODE, folder / "tests" / f"test_{name}.py": _TEST}
    project = folder / "pyproject.toml"
    if new := not project.exists():
        files[project] = _PROJECT
    distribution = name.replace("_", "-")
    lines = _written(files, name=name, title=title, module=name, announced=announced, distribution=distribution)
    lines += [
        f"It works in this folder as it is: method: {{name: {name}:{title}}} in a recipe, "
        f"`distilvec methods {name}:{title}`.",
        f"Its test: python -m pytest tests/test_{name}.py",
    ]
    if new:
        return [*lines, f'Everywhere as "{name}": pip install -e .']
    return [
        *lines,
        f'Everywhere as "{name}": add this to your pyproject.toml, then pip install -e .',
        *announced.splitlines(),
        "and, where setuptools builds it and lists no packages:",
        "[tool.setuptools]",
        f'py-modules = ["{name}"]',
    ]


def _written(files: Mapping[Path, str], **words: str) -> list[str]:
    """Write all files or none; a line for each."""
    there = next((file for file in files if file.exists()), None)
    if there is not None:
        raise DistilvecError("this file is there already", where=str(there), remedy="Choose another name.")
    begun: list[Path] = []
    try:
        for file, content in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            begun.append(file)
            file.write_text(content.format(**words), encoding="utf-8")
    except OSError as error:
        for each in begun:
            discard(each)
        raise system_problem(error, "it cannot be written", file) from error
    return [f"written  {file}" for file in files]
