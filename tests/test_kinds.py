"""A kind of item of somebody else's: read, taught, trained and reported."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from distilvec.corpus import content_key, read_corpus
from distilvec.errors import DistilvecError
from distilvec.flow.run import run
from distilvec.kinds import base
from distilvec.recipe import Recipe
from distilvec.teachers import load_teacher

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"


@pytest.fixture(autouse=True)
def protein(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kind on the page about extending, announced as an installed package does."""
    section = PAGE.read_text(encoding="utf-8").partition("## A kind of item")[2]
    module = types.ModuleType("docs_protein")
    exec(section.partition("```python")[2].partition("```")[0], module.__dict__)
    monkeypatch.setitem(sys.modules, "docs_protein", module)
    point = EntryPoint("protein", "docs_protein:Protein", base.GROUP)
    monkeypatch.setattr(base, "entry_points", lambda group: EntryPoints([point] if group == base.GROUP else []))
    base.find_kind.cache_clear()
    yield
    base.find_kind.cache_clear()


def test_a_kind_of_a_package_is_read_and_has_keys_of_its_own(tmp_path: Path) -> None:
    rows = [{"sequence": each} for each in ("MKV", "mkv ", "AC DE", "GGS", 7)]
    corpus = read_corpus(rows, tmp_path, modality="protein", holdout=0.0)
    assert corpus.texts() == ["MKV", "GGS"] and corpus.kind.noun == "proteins"
    assert corpus.audit.rejected == {"not a protein": 2} and corpus.audit.duplicates == 1
    assert corpus.keys[0].tobytes() == content_key("mkv", modality="protein") != content_key("MKV")
    asked: list[str] = []

    def lengths(items: list[str]) -> list[list[float]]:
        asked.extend(items)
        return [[float(len(item))] for item in items]

    assert load_teacher(call=lengths, modality="protein").card.width == 1 and asked == [corpus.kind.probe]
    with pytest.raises(DistilvecError, match="joint is for texts, not for proteins"):
        read_corpus(rows, tmp_path / "joint", modality="protein", text=["a", "b"], joint=True)


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(DistilvecError, match='Did you mean "protein"'):
        base.find_kind("protien")


def test_a_kind_of_a_package_passes_through_a_whole_run(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    letters = "ACDEFGHIKLMNPQRSTVWY"
    sequences = [letters[n % 20] + letters[n // 20] + letters[(7 * n) % 20] * 3 for n in range(160)]
    Path("proteins.csv").write_text("\n".join(["sequence", *sequences]), encoding="utf-8")
    recipe = Recipe.build(
        {
            "corpus": {"path": "proteins.csv", "modality": "protein", "holdout": 0.2},
            "teachers": [{"name": "tiny", "model": str(tiny_bert)}],
            "student": {"shrink": {"of": "tiny", "layers": 1}},
            "method": {"name": "cosine"},
            "training": {"max_steps": 2},
            "output": "out",
        }
    )
    done = run(recipe)
    assert done.record.items == "proteins" and "proteins" in Path("out/report.md").read_text(encoding="utf-8")
