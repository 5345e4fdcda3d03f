"""The first files of a new method: its code, its test and its page, ready to run."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from distilvec.errors import DistilvecError
from distilvec.methods.table import available

_CODE = '''"""{title}: one sentence on what it compares.

    L = mean_i 1 - cos(e_i W, t_i)

Source: whom it is from, with the equation. Say where this file and the source differ.
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


def new_method(name: str, folder: Path) -> list[str]:
    """Write the files of a new method into a folder; in a checkout of distilvec into their rooms, with its table line.

    Args:
        name: the word in recipes: lower case, digits and underscores.
        folder: the root of a checkout, or of a package of one's own.

    Returns:
        Lines that say what was written and what is left to do.

    Raises:
        DistilvecError: no such name can be, it is taken, or a file is there already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise DistilvecError(f'"{name}" cannot be a method\'s name', remedy="Use lower case, digits and underscores.")
    if name in available():
        raise DistilvecError(f'there is a method "{name}" already', remedy="Choose another name.")
    table = folder / "src" / "distilvec" / "methods" / "table.py"
    ours = table.is_file()
    title = "".join(part.capitalize() for part in name.split("_"))
    module = f"distilvec.methods.{name}" if ours else name
    files = {
        table.parent / f"{name}.py" if ours else folder / f"{name}.py": _CODE,
        folder / ("tests/methods" if ours else "") / f"test_{name}.py": _TEST,
        folder / ("docs/methods" if ours else "") / f"{name}.md": _PAGE,
    }
    there = next((file for file in files if file.exists()), None)
    if there is not None:
        raise DistilvecError("this file is there already", where=str(there), remedy="Choose another name.")
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content.format(name=name, title=title, module=module), encoding="utf-8")
    lines = [f"written  {file}" for file in files]
    if not ours:
        return [
            *lines,
            "Announce it in your pyproject.toml:",
            '[project.entry-points."distilvec.methods"]',
            f'{name} = "{name}:{title}"',
        ]
    source = table.read_text(encoding="utf-8")
    end = source.index("}", source.index("TABLE = {"))
    line = f'    "{name}": "{module}:{title}",\n'
    table.write_text(source[:end] + line + source[end:], encoding="utf-8")
    return [*lines, f"changed  {table}", "Then: python docs/generate.py, which also writes the navigation."]
