"""What long work shows: a bar in a real pseudo-terminal, lines without one, one display in a notebook, and silence."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import pty
import re
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.training.starting import Starter

from distilvec import progress
from distilvec.corpus import read_corpus
from distilvec.progress import Ticker, stages, working
from distilvec.words import per, rough_duration

RECIPE = """\
corpus: {{path: texts.txt, holdout: 0.4}}
teachers: [{{name: tiny, model: {teacher}}}]
student: {{shrink: {{of: tiny, layers: 1}}}}
method: {{name: cosine}}
training: {{epochs: 1, batch_size: 8, seed: 3}}
judging: {{speed: false}}
output: out
"""


class Clock:
    """Stands for `time` in distilvec.progress."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture
def place(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> Path:
    (tmp_path / "texts.txt").write_text("\n".join(text for text in sentences if len(text) < 90), encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(teacher=tiny_bert), encoding="utf-8")
    return tmp_path


def in_terminal(start: Starter, arguments: list[str], folder: Path, width: int = 120) -> tuple[int, str]:
    """Exit code, and all that a command writes to a pseudo-terminal so wide."""
    terminal, device = pty.openpty()
    surroundings = {"TERM": "xterm-256color", "COLUMNS": str(width)}
    running = start(arguments=arguments, folder=str(folder), env=surroundings, terminal=os.ttyname(device))
    written = b""
    while (more := bool(select.select([terminal], [], [], 0.05)[0])) or not running.ended:
        written += os.read(terminal, 65536) if more else b""
    os.close(device)
    os.close(terminal)
    return running.wait()[0], written.decode()


def plain(text: str) -> str:
    """Text without colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def test_terminal_shows_a_bar_per_stage(start: Starter, place: Path) -> None:
    code, written = in_terminal(start, ["run", "recipe.yaml"], place)
    assert code == 0, written
    shown = plain(written)
    names = re.findall(r"stage (\d) of 5: (\w+)", shown)
    assert list(dict.fromkeys(names)) == [
        ("1", "preparing"),
        ("2", "teaching"),
        ("3", "training"),
        ("4", "judging"),
        ("5", "report"),
    ]
    bars = [line for line in re.split(r"\r\x1b\[2K", shown) if line.startswith("stage 3 of 5: training ━")]
    assert bars and all("0.0/s" not in line for line in bars)
    assert re.search(r"training ━+ .*\d+/\d+ steps, [\d.,]+ (steps/s|s/step), took \d+ s, loss \d", bars[-1]), bars[-1]
    assert "Loading weights" not in shown and "Writing model" not in shown
    # No line of ours is behind a bar's.
    assert not re.search(r"steps[^\n\r]*student  ", shown)
    for line in re.split(r"[\r\n]", shown):
        if line.startswith("\x1b[2Kstage"):
            assert len(line) - 4 <= 120


def test_quiet_leaves_the_results(start: Starter, place: Path) -> None:
    code, written = in_terminal(start, ["run", "recipe.yaml", "--quiet"], place)
    assert code == 0, written
    assert "stage" not in written and "rows read" not in written and "\x1b[2K" not in written
    assert "student  out/student" in written


def test_interruption_does_not_stand_behind_a_bar(capfd: pytest.CaptureFixture[str], clock: Clock) -> None:
    """The error that ends a command begins a line."""
    screen = progress._Terminal()
    screen.show(progress.WorkState("training", 3, 10, "3/10 steps"))
    progress.end_line()
    progress.end_line()
    assert capfd.readouterr().err.endswith("3/10 steps\n")


def test_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with stages(5) as stage:
        stage("preparing")
        stage("training")
        ticker = Ticker("training", "steps")
        ticker(0, 1000)
        for step, seconds in ((10, 20), (10, 40), (20, 50), (40, 80), (1000, 100)):
            clock.now = seconds
            ticker(step, 1000, "loss 0.1000")
        ticker(1000, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "stage 2 of 5: training: 10/1,000 steps, 4.0 s/step, 1 h 6 min left, loss 0.1000",
        "stage 2 of 5: training: 40/1,000 steps, 2.0 s/step, 32 min left, loss 0.1000",
        "stage 2 of 5: training: 1,000/1,000 steps, 10 steps/s, took 2 min, loss 0.1000",
    ]


class Recorder:
    """A screen that keeps what it is shown."""

    every = 0.0

    def __init__(self) -> None:
        self.lines: list[progress.WorkState] = []

    def show(self, line: progress.WorkState) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(("name", "total"), [("texts.txt", 2500), ("texts.txt.gz", 0)])
def test_reading_a_corpus_shows_how_far_it_is(
    name: str, total: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(progress, "_open_screen", lambda: recorder)
    with (gzip.open if name.endswith("gz") else open)(tmp_path / name, "wt", encoding="utf-8") as file:
        file.writelines(f"text number {number}\n" for number in range(2500))
    read_corpus(str(tmp_path / name), tmp_path / "corpus")
    assert [(line.done, line.total) for line in recorder.lines[:2]] == [(1000, total), (2000, total)]
    assert recorder.lines[-1].last and not recorder.lines[-1].kept
    assert recorder.lines[1].title == f"reading {name}" and " rows/s" in recorder.lines[1].details
    assert ("/2,500 rows" in recorder.lines[1].details) == ("left" in recorder.lines[1].details) == bool(total)


def test_a_dry_run_says_that_its_steps_only_measure(start: Starter, place: Path) -> None:
    code, written = in_terminal(start, ["run", "recipe.yaml", "--dry-run"], place)
    assert code == 0, written
    assert "measuring: training" in plain(written) and not re.search(r"[\r\nK]training ━", plain(written))


def test_finished_stages_show_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    Ticker("teaching")(40, 40)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("rate", "unit", "expected"),
    [
        (1234.4, "texts", "1,234 texts/s"),
        (3.25, "steps", "3.2 steps/s"),
        (0.24, "steps", "4.2 s/step"),
        (0.001, "queries", "1,000 s/query"),
    ],
)
def test_rates(rate: float, unit: str, expected: str) -> None:
    assert per(rate, unit) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.2, "1 s"), (59.4, "60 s"), (59.6, "1 min"), (840, "14 min"), (3599, "1 h 0 min")]
)
def test_time_left(seconds: float, expected: str) -> None:
    assert rough_duration(seconds) == expected


@contextlib.contextmanager
def unconfigured() -> Iterator[logging.Logger]:
    """Logging as in a new interpreter; pytest has handlers of its own."""
    root, ours = logging.getLogger(), logging.getLogger("distilvec")
    before, level = root.handlers[:], ours.level
    root.handlers[:] = []
    ours.setLevel(logging.NOTSET)
    try:
        yield ours
    finally:
        root.handlers[:] = before
        ours.setLevel(level)


def test_lines_are_visible_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    with unconfigured() as ours:
        with working(), working():
            logging.getLogger("distilvec.flow").info("chosen: cosine")
        assert not ours.handlers and ours.level == logging.NOTSET
    assert capsys.readouterr().err == "chosen: cosine\n"


def test_configured_logging_stands(capsys: pytest.CaptureFixture[str]) -> None:
    with unconfigured() as ours:
        logging.getLogger().addHandler(logging.NullHandler())
        with working():
            logging.getLogger("distilvec.flow").info("chosen: cosine")
        assert ours.level == logging.NOTSET
    assert capsys.readouterr().err == ""


def test_level_of_the_logger_silences(capsys: pytest.CaptureFixture[str]) -> None:
    with unconfigured() as ours:
        for level, lines in ((logging.WARNING, 0), (logging.INFO, 1)):
            ours.setLevel(level)
            with working():
                ticker = Ticker("training", "steps")
                ticker(0, 2)
                ticker(2, 2)
            assert capsys.readouterr().err.count("training: 2/2 steps") == lines


@pytest.mark.parametrize("on", [True, False])
def test_foreign_bars_are_as_before(on: bool) -> None:
    hub: Any = pytest.importorskip("huggingface_hub.utils")
    from transformers.utils import logging as transformers

    before = transformers.is_progress_bar_enabled()
    try:
        (transformers.enable_progress_bar if on else transformers.disable_progress_bar)()
        state = hub.are_progress_bars_disabled(), transformers.is_progress_bar_enabled()
        with pytest.raises(ZeroDivisionError), working():
            assert hub.are_progress_bars_disabled() and not transformers.is_progress_bar_enabled()
            _ = 1 / 0
        assert (hub.are_progress_bars_disabled(), transformers.is_progress_bar_enabled()) == state
    finally:
        (transformers.enable_progress_bar if before else transformers.disable_progress_bar)()


def test_offline_is_one_error(start: Starter) -> None:
    program = "import distilvec; distilvec.load('nobody/no-such-model')"
    code, written = start.code(program, env={"HF_HUB_OFFLINE": "1"}).wait()
    assert code == 1
    assert written.count("Traceback") == 1 and "HF_HUB_OFFLINE" in written.splitlines()[-1]


def test_notebook_has_one_display(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    """In a real kernel: our lines as text, one display that is updated, and no bars of others."""
    nbclient = pytest.importorskip("nbclient", reason="the notebook needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="the notebook needs nbclient and ipykernel")
    nbformat: Any = pytest.importorskip("nbformat")
    texts = [text for text in sentences if len(text) < 90][:60]
    options = {"training": {"epochs": 1, "batch_size": 8}, "judging": {"speed": False}}
    code = (
        f"import distilvec\nrun = distilvec.distill({str(tiny_bert)!r}, {texts!r}, 'out', method='cosine', **{options})"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    outputs = notebook.cells[0].outputs
    shown = [output for output in outputs if output.output_type == "display_data"]
    assert len(shown) == 1, json.dumps(outputs, indent=1)
    assert list(shown[0].data) == ["text/plain"]
    assert "stage 3 of 5: training" in shown[0].data["text/plain"] and "loss" in shown[0].data["text/plain"]
    written = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "texts kept" in written and "Loading weights" not in written and "Writing model" not in written
