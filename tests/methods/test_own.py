"""Methods that nobody installed: classes of one's own modules and of a console, and what their code is known by."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distilvec.cli.main import main
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.methods import table
from distilvec.methods.base import Method, Needs, Options
from distilvec.methods.code import code_of
from distilvec.methods.cosine import Cosine
from distilvec.methods.own import path_of
from distilvec.methods.table import build_method, build_options, called, resolve, show_methods
from distilvec.recipe import Recipe

HEAD = """
import torch

from distilvec.functional import cosine_distance
from distilvec.methods.base import Method
from distilvec.methods.projected import ProjectedMethod, ProjectedOptions

POWER = 2.0


def distance(projected, target):
    return cosine_distance(projected, target) ** POWER

"""
LOSS = (
    HEAD
    + """
class Own(ProjectedOptions):
    margin: float = 0.5


class Base(ProjectedMethod):
    weight = 1.0


class MyLoss(Base):
    name = "my_loss"
    Options = Own

    def compare(self, projected, target):
        return torch.relu(distance(projected, target) * self.weight - self.options.margin)

    @torch.no_grad()
    def told(self):
        return [POWER for _ in range(3)]


class Nameless(Base):
    pass


class Called(Base):
    name = "../talas"


class Cosine(Base):
    name = "cosine"


number = 3
"""
)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes text into `my_losses.py` of the working folder, which is imported anew then."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_losses", raising=False)
    written = iter(range(100))

    def write(text: str) -> None:
        (tmp_path / "my_losses.py").write_text(text + "#" * next(written), encoding="utf-8")
        sys.modules.pop("my_losses", None)
        importlib.invalidate_caches()

    yield write
    sys.modules.pop("my_losses", None)


def test_a_class_of_the_working_folder_is_a_method(
    module: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    module(LOSS)
    assert resolve("my_losses:MyLoss").name == "my_loss" == called("my_losses:MyLoss")
    assert build_method("my_losses:MyLoss", {"margin": 0.25}).options.margin == 0.25
    with pytest.raises(DistilvecError, match=r'my_losses:MyLoss, margn: .*"margn".*"margin"'):
        build_options("my_losses:MyLoss", {"margn": 1})
    assert called("my_losses:Cosine") == "my_losses:Cosine", "another method has this word"
    with pytest.raises(SystemExit) as done:
        main(["methods", "my_losses:MyLoss"])
    shown = capsys.readouterr().out
    assert (
        not done.value.code and "my_losses:MyLoss" in shown and "margin: 0.5" in shown and "sentence vectors" in shown
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my_losses:number", "^my_losses:number: it is not a distilvec Method"),
        ("my_losses:distance", "^my_losses:distance: it is not a distilvec Method"),
        ("my_losses:MyLos", '^my_losses:MyLos: there is no "MyLos".*"MyLoss"'),
        ("my_loses:MyLoss", '^my_loses:MyLoss: the module "my_loses" cannot be imported'),
        ("my_losses:", '^"my_losses:" is not of the form module:class'),
        ("my_losses:Nameless", r'^my_losses:Nameless: .*name = "nameless"'),
        ("my_losses:Called", r"^my_losses:Called: it needs a name .*'\.\./talas'"),
        ("my_losses:f.<locals>.MyLoss", "^my_losses:f.<locals>.MyLoss: .*from Python"),
    ],
)
def test_an_invalid_method_is_refused_in_one_line(module: Callable[[str], None], name: str, told: str) -> None:
    module(LOSS)
    with pytest.raises(DistilvecError, match=told) as caught:
        resolve(name)
    assert "\n" not in str(caught.value)
    with pytest.raises(DistilvecError, match=f"^method: .*{told[1:].split(': ', 1)[-1]}"):
        Recipe.build({"method": {"name": name}})


def test_a_module_that_fails_is_named(module: Callable[[str], None]) -> None:
    module("1 / 0\n")
    with pytest.raises(DistilvecError, match="my_losses.* fails with ZeroDivisionError"):
        resolve("my_losses:MyLoss")


def test_classes_are_named_in_the_recipe(module: Callable[[str], None]) -> None:
    module(LOSS)
    mine = resolve("my_losses:MyLoss")
    recipe = Recipe.build({"method": {"name": mine, "margin": 0.1}})
    assert recipe.method.name == "my_losses:MyLoss" and "name: my_losses:MyLoss" in recipe.to_yaml()
    assert Recipe.build({"method": {"name": Cosine}}).method.name == "distilvec.methods.cosine:Cosine"

    class Local(Cosine):
        name = "local"

    path = path_of(Local)
    assert path == f"{__name__}:test_classes_are_named_in_the_recipe.<locals>.Local" and resolve(path) is Local
    first = Local

    class Local(Cosine):  # type: ignore[no-redef]  # as a cell of a notebook that is run again
        name = "local"

    assert path_of(Local) == path and resolve(path) is Local is not first
    for wrong in (Cosine(), int, len):
        with pytest.raises(DistilvecError, match="^method|not a distilvec Method"):
            Recipe.build({"method": {"name": wrong}})


def test_the_code_of_a_method_is_what_it_says_itself(module: Callable[[str], None]) -> None:
    def read(text: str) -> str | None:
        module(text)
        return code_of(build_method("my_losses:MyLoss", {}))

    first = read(LOSS)
    assert first is not None and re.fullmatch("[0-9a-f]{16}", first)
    assert read(LOSS) == first and read(LOSS + "\n\ndef unused():\n    return 4\n") == first
    for old, new in [
        ("- self.options.margin", "+ self.options.margin"),  # the class
        ("weight = 1.0", "weight = 2.0"),  # what it is derived from
        ("margin: float = 0.5", "margin: float = 0.25"),  # its options' defaults
        ("** POWER", "* POWER"),  # a function of its module
        ("POWER = 2.0", "POWER = 3.0"),  # a number that the function reads
    ]:
        assert old in LOSS and read(LOSS.replace(old, new)) != first, old
    prefixed = code_of(build_method("matryoshka", {"dims": [4], "of": "my_losses:MyLoss"}))
    assert prefixed is not None, "also behind our own wrappers"
    assert code_of(build_method("matryoshka", {"dims": [4]})) is None, "ours are known by their version"


def test_a_method_typed_in_a_console_has_code_too() -> None:
    """What was typed has no file: it is known by what it was compiled to."""

    def typed(text: str) -> str | None:
        names: dict[str, Any] = {"__name__": "typed"}
        exec(compile(text.replace("torch.relu", "abs"), "<typed>", "exec", dont_inherit=True), names)
        return code_of(names["MyLoss"]())

    first = typed(LOSS)
    assert first == typed(LOSS) is not None
    assert typed(LOSS.replace("- self.options.margin", "+ self.options.margin")) != first
    assert typed(LOSS.replace("weight = 1.0", "weight = 2.0")) != first


def test_an_incomplete_plugin_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins\nVersion: 1.0\n")
    names = ["Bare", "NoName", "NoNeeds", "Raises", "Options"]
    (info / "entry_points.txt").write_text(
        "[distilvec.methods]\n" + "".join(f"p_{name.lower()} = plug_ins:{name}\n" for name in names)
    )
    (tmp_path / "plug_ins.py").write_text(
        "from distilvec.methods.base import Method, Needs\n"
        "class Bare(Method):\n"
        "    name = 'p_bare'\n"
        "    def needs(self, student, teachers):\n        return Needs()\n"
        "class NoName(Method):\n    pass\n"
        "class NoNeeds(Method):\n    name = 'p_noneeds'\n"
        "class Raises(Bare):\n    name = 'p_raises'\n"
        "    def __init__(self, options):\n        raise ValueError('two\\nlines')\n"
        "class Options(Bare):\n    name = 'p_options'\n    Options = dict\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = show_methods().splitlines()
    shown = {first.split()[0]: (first, second) for first, second in zip(lines[::2], lines[1::2], strict=True)}
    assert set(table.TABLE) | {f"p_{name.lower()}" for name in names} == set(shown)
    assert shown["p_bare"][1].strip() == "needs sentence vectors"
    for name, reason in [
        ("noname", "plug_ins:NoName): .*name = "),
        ("noneeds", "plug_ins:NoNeeds): NotImplementedError"),
        ("raises", "plug_ins:Raises): TypeError|plug_ins:Raises): ValueError: two lines"),
        ("options", "plug_ins:Options): its Options"),
    ]:
        first, second = shown[f"p_{name}"]
        assert "cannot be used" in first and re.search(reason.replace("):", r"\):"), second), second
    with pytest.raises(EnvironmentProblem, match="NoName"):
        resolve("p_noname")
    assert build_options("p_bare", {}) == Options()
    assert (resolve("p_bare").summary, resolve("p_bare").paper) == ("", "")
    assert issubclass(resolve("p_bare"), Method) and resolve("p_bare")().needs(None, []) == Needs()
