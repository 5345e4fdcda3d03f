"""A small part of the attack, and that the attack would notice what it looks for."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file
from tests.training.starting import ROOT, Starter

from distilvec.system_errors import number_of


@pytest.fixture(autouse=True)
def _beside_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


PROGRAM = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.timeout(900)  # half a minute of both cores, where nobody else wants them
def test_kills_and_hostile_inputs(start: Starter, tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "attack.py"
    small = ["--kills", "10", "--errors", "10", "--commands", "teach", "train", "--inputs", "90", "--seed", "1"]
    small += ["--fed", "recipe", "options", "corpus", "prepared", "vectors", "model", "store", "run", "checkpoint"]
    code, output = start.code(PROGRAM, script, *small, "--results", tmp_path, folder=str(script.parent)).wait(880)
    assert code == 0, output[-6000:]
    found = json.loads((tmp_path / "attack.json").read_text())
    assert found["broken"] == []
    assert sum(row["kills"] for row in found["kills"].values()) >= 10
    assert all(row["held"] == row["cases"] for row in found["kills"].values())
    assert sum(row["errors"] for row in found["errors"].values()) >= 10
    assert sum(row["tried"] for row in found["inputs"].values()) >= 90
    several = [row for kind, row in found["inputs"].items() if kind != "checkpoint"]
    assert all(row["accepted"] and row["refused"] for row in several), found["inputs"]
    assert "| all |" in (tmp_path / "attack.md").read_text()


def test_a_part_that_was_not_tried_stays(tmp_path: Path) -> None:
    from attacking.results import keep_the_other

    old = [{"block": "kill-teach/0", "case": 1, "what": "a"}, {"block": "model/3", "case": 2, "what": "b"}]
    before = {"kills": {"teach": {"kills": 5}}, "inputs": {"model": {"tried": 9}}, "broken": old}
    (tmp_path / "attack.json").write_text(json.dumps(before))
    found = {"kills": {}, "errors": {}, "inputs": {"model": {"tried": 7}}, "broken": []}
    keep_the_other(found, tmp_path / "attack.json")
    assert found == before | {"errors": {}, "inputs": {"model": {"tried": 7}}, "broken": old[:1]}


def two_files() -> int:
    for name in ("one", "two"):
        with open(name, "wb") as out:
            out.write(b"x" * 50_000)
    return 0


def test_a_command_dies_at_the_chosen_change(tmp_path: Path) -> None:
    from attacking.children import Kill, forked

    def sizes(kill: Kill | None) -> tuple[int, list[int | None]]:
        for name in ("one", "two"):
            (tmp_path / name).unlink(missing_ok=True)
        code = forked(two_files, tmp_path, kill).code
        places = [tmp_path / name for name in ("one", "two")]
        return code, [place.stat().st_size if place.exists() else None for place in places]

    assert sizes(None) == (0, [50_000, 50_000])
    assert sizes(Kill(2)) == (-signal.SIGKILL, [50_000, None])
    assert sizes(Kill(2, torn=1234)) == (-signal.SIGXFSZ, [50_000, 1234])
    assert forked(two_files, tmp_path).changes[1][1:] == ("open", "two")


def failing() -> int:
    """The number of the first error."""
    try:
        return two_files()
    except OSError as error:
        return error.errno or -1


def test_a_disk_fails_at_the_chosen_change_or_from_it_on(tmp_path: Path) -> None:
    from attacking import refusing
    from attacking.children import Fault, forked

    def in_rust() -> int:
        refusing.refuse(errno.ENOSPC)
        try:
            save_file({"a": np.zeros(9)}, "three")
        except SafetensorError as error:
            return number_of(error) or -1
        return 0

    assert [forked(failing, tmp_path, fault).code for fault in (None, Fault(2, errno.EDQUOT))] == [0, errno.EDQUOT]
    if refusing.possible():
        for number in (errno.EIO, errno.ENOSPC):
            assert forked(failing, tmp_path, Fault(1, number, lasting=True)).code == number
        assert forked(in_rust, tmp_path).code == errno.ENOSPC


def test_values_of_all_types_come_into_all_fields() -> None:
    from attacking.typed import VALUES, fields, replaced

    content = {"a": [1, {"b": 2}, 3], "c": "x"}
    every = list(fields(content))
    assert every == [(), ("a",), ("a", 0), ("a", 2), ("c",)]
    assert replaced(content, ("a", 1, "b"), None) == {"a": [1, {"b": None}, 3], "c": "x"}
    kinds = {type(value) for value in VALUES.values()}
    assert kinds == {type(None), bool, int, float, str, list, dict} and content == {"a": [1, {"b": 2}, 3], "c": "x"}


def test_every_command_has_its_own_row() -> None:
    from attacking.results import table

    rows = {"teach": {"errors": 5, "well": 1, "refused": 4, "broke": 0}}
    rows["train"] = {"errors": 7, "well": 0, "refused": 6, "broke": 1}
    shown = table({"seed": 1, "machine": "m", "kills": {}, "errors": rows, "inputs": {}, "broken": []})
    assert "| teach | 5 | 1 | 4 | 0 |" in shown and "| train | 7 | 0 | 6 | 1 |" in shown
    assert "| all | 12 | 1 | 10 | 1 |" in shown


def waits(folder: Path) -> None:
    time.sleep(1000)


def turns(folder: Path) -> None:
    while True:
        pass


def outside(folder: Path) -> None:
    (folder.parent.parent / "elsewhere").write_text("x")


def starts(folder: Path) -> None:
    subprocess.run(["true"], check=True)


def unpickles(folder: Path) -> None:
    pickle.loads(pickle.dumps(Path("a")))


def runs_code(folder: Path) -> None:
    os.mkdir(folder / "burst")


def changes_its_input(folder: Path) -> None:
    (folder / "input").write_text("other")


def fails(folder: Path) -> None:
    raise KeyError("x")


def ends(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (outside, "elsewhere"),
        (starts, "subprocess.Popen"),
        (unpickles, "pickle.find_class"),
        (runs_code, "code from the data ran"),
        (changes_its_input, "/input"),
        (fails, "KeyError"),
        (ends, "ended the process with -11"),
        (waits, "took too long"),
        (turns, "took too long"),
        (lambda folder: 1, "exit code 1"),
    ],
)
def test_the_attack_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], Any], said: str
) -> None:
    from attacking import children, feeding, kinds

    def third(rng: random.Random, inputs: Path, folder: Path, mark: Path) -> Callable[[], Any]:
        (folder / "input").write_text("an input")
        return (lambda: act(folder)) if folder.name == "2" else lambda: None

    monkeypatch.setitem(kinds.KINDS, "third", third)
    monkeypatch.setattr(feeding, "SECONDS", 0.5)
    monkeypatch.setattr(children, "IDLE", 1.5 if act is waits else 4.0)
    found = feeding.block("third", "seed", range(4), tmp_path, tmp_path / "cases")
    assert (found["tried"], found["accepted"]) == (4, 3)
    assert [each["case"] for each in found["broken"]] == [2] and said in found["broken"][0]["what"]


def test_half_written_files_are_seen(tmp_path: Path) -> None:
    from attacking import whole

    (tmp_path / "report.json").write_text('{"a": 1')
    (tmp_path / "report.html").write_text("<html>")
    (tmp_path / "run.jsonl").write_text('{"a": 1}\n{"b": ')
    half = ".distilvec-tmp-0123456789abcdef"
    (tmp_path / half).mkdir()
    (tmp_path / half / "config.json").write_text("{")
    assert [line.split()[0] for line in whole.broken_files(tmp_path)] == ["report.html", "report.json"]
    assert whole.left_over(tmp_path) == [
        ".distilvec-tmp-0123456789abcdef",
        ".distilvec-tmp-0123456789abcdef/config.json",
    ]


def test_the_same_seed_gives_the_same_inputs() -> None:
    from attacking.mutate import spoil_bytes, spoil_tree

    def spoilt(seed: int) -> tuple[list[bytes], str]:
        rng = random.Random(seed)
        return [spoil_bytes(bytes(range(256)) * 4, rng) for _ in range(50)], repr(spoil_tree({"a": [1, {"b": 2}]}, rng))

    assert spoilt(3) == spoilt(3) != spoilt(4)
