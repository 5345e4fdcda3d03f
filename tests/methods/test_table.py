"""The table of methods and what it says to people who mistype."""

import re
from pathlib import Path

import pytest
from tests.training.starting import Starter

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.methods.base import Method
from distilvec.methods.table import (
    TABLE,
    available,
    build_method,
    build_methods,
    build_options,
    resolve,
    show_method,
    show_methods,
)


def install(folder: Path, value: str) -> None:
    """A real distribution on disk with an entry point, as a third party's package leaves it."""
    info = folder / "foreign-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[distilvec.methods]\nforeign = {value}\ntalas = {value}\n")
    (folder / "foreign_method.py").write_text(
        "from distilvec.methods.base import Method, Options\n"
        "class Foreign(Method):\n"
        "    name, summary, paper, Options = 'foreign', 'a third party', 'none', Options\n"
        "not_a_method = 3\n"
    )


def test_names_and_classes() -> None:
    assert list(available())[: len(TABLE)] == list(TABLE)
    for name in TABLE:
        assert issubclass(resolve(name), Method)


def test_unknown_method_and_option_name_the_nearest() -> None:
    with pytest.raises(DistilvecError, match=r'"tallas".*"talas"'):
        resolve("tallas")
    with pytest.raises(DistilvecError, match=r'talas, guid: .*"guid".*"guide"'):
        build_options("talas", {"guid": "detached"})


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"temperature": -1}, "talas, temperature: .*0 .*got -1"),
        ({"guide": "loose"}, "talas, guide: .*'coupled' or 'detached'.*'loose'"),
        ({"preset": "best"}, "talas, preset: .*'paper', 'code' or 'sound'.*'best'"),
        (
            {"simcse_weight": 0, "tamd_weight": 0, "lasd_weight": 0},
            "talas: simcse_weight, tamd_weight and lasd_weight .*0",
        ),
    ],
)
def test_bad_values_are_named(mapping, message) -> None:
    with pytest.raises(DistilvecError, match=message):
        build_options("talas", mapping)


def test_explicit_options_win_over_the_preset() -> None:
    options = build_options("talas", {"preset": "code", "temperature": 0.3})
    assert (options.temperature, options.fixed.average_views) == (0.3, False)


def test_an_entry_point_adds_a_method_but_does_not_replace_one(tmp_path, monkeypatch) -> None:
    install(tmp_path, "foreign_method:Foreign")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert available()["foreign"] == "foreign_method:Foreign"
    assert resolve("foreign").summary == "a third party"
    assert resolve("talas").__module__ == "distilvec.methods.talas"
    assert build_options("foreign", {}).preset == "sound"


@pytest.mark.parametrize("value", ["foreign_method:not_a_method", "missing_module:Thing"])
def test_a_broken_third_party_is_named(tmp_path, monkeypatch, value) -> None:
    install(tmp_path, value)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=re.escape(f"method foreign ({value}): ")):
        resolve("foreign")
    lines = show_methods().splitlines()  # and does not hide the others
    assert [line.split()[0] for line in lines[::2]] == list(available())
    assert "cannot be used" in lines[-2] and f"method foreign ({value}): it " in lines[-1]


def test_listing_imports_no_method(start: Starter) -> None:
    code = """
        import sys
        assert not any(name.startswith("distilvec") for name in sys.modules)
        from distilvec.methods.table import available
        available()
        sys.exit(any(name.startswith("distilvec.methods.talas") for name in sys.modules))
    """
    assert start.code(code, bare=True).wait() == (0, "")


def test_methods_are_built_alone_at_prefixes_and_together() -> None:
    plain = build_method("mse", {"vectors": "raw"})
    assert (type(plain).name, plain.options.vectors) == ("mse", "raw")
    prefixed = build_method("matryoshka", {"dims": [128, 64], "of": {"name": "mse", "vectors": "raw"}})
    assert prefixed.prefixes == (64, 128)
    assert [sub.options.vectors for sub in prefixed.methods] == ["raw"] * 3
    both = build_methods([{"name": "mse", "weight": 2}, {"name": "leaf"}])
    assert (both.name, both.weights) == ("mse + leaf", [2.0, 1.0])
    assert both.implied_space == "teacher", "as leaf implies it, wherever it stands"


def test_the_list_says_what_each_method_needs() -> None:
    lines = show_methods().splitlines()
    assert [line.split()[0] for line in lines[::2]] == list(available())
    needs = dict(zip(available(), lines[1::2], strict=True))
    assert "needs no teacher;" in needs["simcse"]
    assert "needs no teacher but pairs or triplets;" in needs["mnrl"]
    assert "needs token states, attention;" in needs["emo"]
    assert "needs class logits and a classification task;" in needs["uld"]
    assert "needs no teacher and a task;" in needs["sft"]
    assert "needs scores but pairs or triplets and a cross-encoder for a student;" in needs.pop("score_bce")
    inside = {name for name in available() if resolve(name).inside} | {"simcse", "mnrl", "sft"}
    for name in ("margin_mse", "score_kl"):
        assert "needs scores but pairs or triplets;" in needs.pop(name)
    assert all("needs sentence vectors;" in line for name, line in needs.items() if name not in inside)


def test_one_method_shows_its_options_and_presets() -> None:
    shown = show_method("talas")
    for option in resolve("talas").Options.model_fields:
        assert f"\n  {option}: " in shown
    assert "temperature: 0.05\n      of SimCSE [S]; 0.1 [C]" in shown
    assert "preset code changes: init 'random', temperature 0.1" in shown
    with pytest.raises(DistilvecError, match='"tallas".*"talas"'):
        show_method("tallas")
