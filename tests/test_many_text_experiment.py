"""experiments/many_text and its teachers, tiny, on some real rows of each set."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.results_files import experiments, no_committed_figure

from distilvec.flow import demo


@pytest.fixture
def work(tmp_path: Path, small_shared: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder the scripts work in; they are imported afresh, because they look for it, and the teacher, then."""
    monkeypatch.setattr(demo, "demo_teacher", lambda: str(tiny_bert))
    monkeypatch.setenv("DISTILVEC_WORK", str(tmp_path))
    monkeypatch.setenv("DISTILVEC_DATA", str(small_shared))
    with experiments(monkeypatch):
        yield tmp_path


def test_teachers_know_alike_texts_and_are_kept(work: Path) -> None:
    teachers = importlib.import_module("experiments.many_text.teachers")
    folder = work / "teachers"
    teachers.build(folder, teachers.QUICK, 3000)
    texts = [
        "A dog runs on the grass.",
        "The dog is running over the grass.",
        "Who was the president in 1960?",
        "",
        "ψ",
    ]
    for name, settings in teachers.QUICK.items():
        found = teachers.load(name, folder)(texts)
        assert found.shape == (5, settings["width"]) and found.dtype == np.float32
        assert found[0] @ found[1] > found[0] @ found[2] + 0.1, name
        assert np.linalg.norm(found[:3], axis=1) == pytest.approx(1, abs=1e-5)
        assert not found[3].any()  # nothing is known of it: zeros, not NaN
        order = teachers.load(name, folder)(texts[::-1])[::-1]
        np.testing.assert_allclose(order, found, atol=1e-6)
    assert not any(file.suffix not in (".npy", ".json") for file in folder.rglob("*") if file.is_file())

    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*.npy")}
    teachers.build(folder, {**teachers.QUICK, "chars": {**teachers.QUICK["chars"], "width": 8}}, 3000)
    changed = {file.parent.name for file, when in before.items() if file.stat().st_mtime_ns != when}
    assert changed == {"chars"}  # what was built as asked stays, what was built otherwise is built again


def test_a_teacher_that_is_not_built_says_how(work: Path) -> None:
    from distilvec.errors import EnvironmentProblem

    teachers = importlib.import_module("experiments.many_text.teachers")
    with pytest.raises(EnvironmentProblem, match=r"/text_teachers/words: .*python -m experiments\.many_text\.teachers"):
        teachers.words(["a text"])


def test_positive_information_by_hand(work: Path) -> None:
    teachers = importlib.import_module("experiments.many_text.teachers")
    # Two texts, "0 1" and "0 2 1", window 2: neighbours count 1, those two apart 0.5; -1 is an unknown word.
    counts = teachers.cooccurrences(np.array([0, 1, 0, 2, 1, -1]), np.array([0, 0, 1, 1, 1, 1]), 3, 2).toarray()
    np.testing.assert_allclose(counts, [[0, 1.5, 1], [1.5, 0, 1], [1, 1, 0]])
    found = teachers.positive_information(teachers.sparse.csr_matrix(counts), 1.0).toarray()
    # n = 7, n(0) = n(1) = 2.5, n(2) = 2: log(1.5 * 7 / 6.25) and log(7 / 5)
    expected = np.log([[1, 1.68, 1.4], [1.68, 1, 1.4], [1.4, 1.4, 1]])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_rows_are_made_kept_and_shown(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module("experiments.many_text.run")
    monkeypatch.setattr(script, "GRID", (1e-3,))
    monkeypatch.setattr(sys, "argv", ["many_text.py", "--quick", "--rows", "gaussian code;gaussian from lsa"])
    script.main()
    records, here = importlib.import_module("experiments.harness.records"), work / "many_text-quick" / "results"
    made = records.read_records(here / "results.jsonl")
    no_committed_figure(records, "many_text", {record["name"]: record for record in made})
    rows = records.below(records.rows_of(made), "talas")
    teachers = ["minilm", "words", "lsa", "chars"]
    code, single = rows["gaussian code-0"], rows["gaussian from lsa-0"]
    assert code["teachers"] == teachers and single["teachers"] == ["lsa"]
    assert {f"{term}:{name}" for term in ("nll", "explained", "calibration") for name in teachers} <= set(
        code["held_out"]
    )
    assert set(single["held_out"]) == {"nll:lsa", "plain_nll:lsa", "explained:lsa", "calibration:lsa"}
    for found in (code, single, rows["references/untrained"]):
        assert len(found["tasks"]) == len(found["clean"]) == 9 and set(found["per_teacher"]) == set(teachers)
        assert 0 < found["averages"]["all"] < 1 and 0 < found["clustering"]["value"] <= 1
    assert rows["references/lsa"]["per_teacher"]["lsa"]["cka"] == pytest.approx(1, abs=1e-3)
    assert all(0.13 < code["bound"][name]["share_of_bound"] < 1 for name in teachers)  # between e^-2 and 1
    shown = capsys.readouterr().out
    assert "| gaussian from lsa | 1 | 0.001 (end) |" in shown and "teacher `words`, 24 numbers" in shown

    monkeypatch.setattr(script.ManyText, "train", None)  # all that is asked for is there
    monkeypatch.setattr(script, "write_page", lambda rows, folder: "")
    script.main()


def test_a_linear_map_explains_what_it_can(work: Path) -> None:
    explained = importlib.import_module("experiments.many_text.run").linear_explained
    draw = np.random.default_rng(0).normal
    seen, new, matrix = draw(size=(400, 6)), draw(size=(300, 6)), draw(size=(6, 4))
    assert explained(seen, seen @ matrix + 3, new, new @ matrix + 3) == pytest.approx(1, abs=1e-3)
    noise = [draw(size=(count, 4)) * np.sqrt((matrix**2).sum(0)) for count in (400, 300)]  # as much as there is signal
    assert explained(seen, seen @ matrix + noise[0], new, new @ matrix + noise[1]) == pytest.approx(0.5, abs=0.1)
