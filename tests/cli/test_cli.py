"""The command line: every command, one clear line and an exit code for every mistake, and one run from end to end."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.disk import full_beyond
from tests.training.starting import Starter

from distilvec.cli.main import _keeps_nothing, main
from distilvec.errors import DistilvecError, Interrupted

RECIPE = """\
corpus: {{path: texts.jsonl, label: label, holdout: 0.4}}
teachers: [{{name: tiny, model: {teacher}, dtype: float32}}]
student: {{shrink: {{of: tiny, layers: 1}}}}
method: {{name: talas, anchored_layers: 1, lasd_weight: 0}}
optimizer: {{lr: 1.0e-3}}
training: {{epochs: 1, batch_size: 8, seed: 3, bf16: false}}
judging: {{speed: false}}
output: {output}
"""


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`main` sets up a process of its own; here it must leave no trace."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "0")
    ours = logging.getLogger("distilvec")
    level = ours.level
    yield
    ours.setLevel(level)


@pytest.fixture(scope="module")
def texts(sentences: list[str]) -> list[str]:
    return [text for text in sentences if len(text) < 90][:100]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, texts: list[str]) -> Path:
    """A folder with texts.jsonl and recipe.yaml, whose output is `out` beside them."""
    folder = tmp_path_factory.mktemp("cli")
    rows = [{"text": text, "label": "long" if len(text) > 45 else "short"} for text in texts]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "tasks.yaml").write_text(
        json.dumps([{"name": "clusters", "kind": "clustering", "test": "texts.jsonl"}]), encoding="utf-8"
    )
    recipe = RECIPE.format(teacher=tiny_bert, output=folder / "out")
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    return folder


def called(*words: Any) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def command(*words: Any) -> list[str]:
    return [sys.executable, "-m", "distilvec", *map(str, words)]


def environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "0"}


#: All that help may import besides the standard library and distilvec: Typer, what it draws with, and the recipe's
#: schema. One more large library is what makes help slow.
LIGHT = {
    "typer",
    "click",
    "shellingham",
    "rich",
    "markdown_it",
    "mdurl",
    "pygments",
    "attr",
    "attrs",
    "annotated_doc",
} | {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection", "yaml"}


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"]], ids=" ".join)
def test_help_imports_nothing_large(words: list[str]) -> None:
    code = """
import sys
before = set(sys.modules)
from distilvec.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    imported = done.stdout.splitlines()[-1].split()
    outside = {name.split(".")[0] for name in imported} - sys.stdlib_module_names - {"distilvec"}
    assert {name for name in outside if not name.startswith("_")} <= LIGHT
    assert len(imported) < 500


def test_a_closed_output_pipe_is_not_an_error() -> None:
    """As `distilvec recipes | head -1`."""
    command = [sys.executable, "-m", "distilvec", "recipes"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    with child.stderr as errors:
        assert errors.read() == ""
    assert child.wait() == 1


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["run", "missing.yaml"], 2, r"missing\.yaml: "),
        (["run", "{recipe}", "--set", "training.epoch=0.1"], 2, r'training\.epoch: .*"epochs"'),
        (["run", "{recipe}", "--set", "training.epochs=none at all"], 2, r"training\.epochs: "),
        (["run", "{recipe}", "--set", "method.name=tallas"], 2, '"tallas".*"talas"'),
        (["run", "{recipe}", "--set", "training"], 2, r'"training".*key\.key=value'),
        (["run", "{recipe}", "--set", "corpus.path=nowhere.jsonl", "-o", "{folder}/a"], 3, r"nowhere\.jsonl: "),
        (["run", "{recipe}", "--set", "corpus.text=txt", "-o", "{folder}/b"], 3, r'texts\.jsonl: .*"txt".*"text"'),
        (["run", "{recipe}", "--set", "teachers.0.model=/no/such/model", "-o", "{folder}/c"], 2, "/no/such/model: "),
        (["run", "{recipe}", "-o", "{folder}/texts.jsonl/out"], 4, r"texts\.jsonl/out: "),
        (["teach", "{recipe}", "--shard", "2/2"], 2, "--shard"),
        (["shrink", "{teacher}", "-o", "{folder}/d", "--layers", "two"], 2, "--layers"),
        (["shrink", "{teacher}", "-o", "{folder}/d", "--layers", "²"], 2, r"--layers: .*²"),
        (["shrink", "{teacher}", "-o", "{folder}/d", "--layers", "9" * 5000], 2, r"--layers: .*9{200}\b"),
        (["shrink", "{teacher}", "-o", "{folder}/d", "--layers", "9"], 2, r"layers is .*\b9\b.*\b1 to 3\b"),
        (["evaluate", "{teacher}", "-t", "no-such-file.yaml"], 2, r"no-such-file\.yaml: "),
        (["methods", "tallas"], 2, '"tallas".*"talas"'),
        (["recipes", "start-text"], 2, "'start-text'.*\"start-texts\""),
        (["recipes", "--data", "imdb"], 2, "--data "),
        (["compare", "{recipe}", "-m", "cosine:inti=random"], 2, '"inti".*"init"'),
        (["run"], 2, "Missing argument"),
        (["plan", "{recipe}", "--rows", "inf"], 2, "--rows: .*inf"),
        (["plan", "{recipe}", "--rows", "1e6", "--parameters", "5M"], 2, "plan: .*--parameters would change nothing"),
        (["plan", "{recipe}", "--devices", "4"], 2, "plan: .*--devices would change nothing"),
        (["plan", "{recipe}", "--text", "body"], 2, "plan: .*--text would change nothing"),
        (["plan", "{recipe}", "--parameters", "5M", "--keep", "0.9"], 2, "plan: .*--keep would change nothing"),
        (["export", "{folder}", "--text", "body", "-o", "{folder}/onnx"], 2, "--text: .*Add --texts"),
        (["size", "x" * 300], 2, "x{80}.*Shorten"),
        (["rnu"], 2, "rnu"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(
    place: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, told: str
) -> None:
    filled = [word.format(recipe=place / "recipe.yaml", folder=place, teacher=tiny_bert) for word in words]
    assert called(*filled) == code
    shown = capsys.readouterr()
    assert re.search(told, shown.err.replace("\n", " ")), shown.err
    ours = [line for line in shown.err.splitlines() if line.startswith("distilvec: ")]
    assert len(ours) == (0 if told in ("Missing argument", "rnu") else 1)
    assert "Traceback" not in shown.err


def test_a_misspelt_key_names_its_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = place / "broken.yaml"
    broken.write_text((place / "recipe.yaml").read_text().replace("shrink:", "shrnk:"), encoding="utf-8")
    assert called("run", broken) == 2
    told = capsys.readouterr().err
    assert f'{broken}, line 3, student.shrnk: unknown key "shrnk". Did you mean "shrink"?' in told


def test_interruptions_and_debug(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import distilvec.flow.run

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(distilvec.flow.run, "run", interrupted)
    assert called("run", place / "recipe.yaml") == 130
    assert "run the same command again" in capsys.readouterr().err

    def terminated(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    monkeypatch.setattr(distilvec.flow.run, "run", terminated)
    before = signal.getsignal(signal.SIGTERM)
    assert called("run", place / "recipe.yaml") == 143
    told = capsys.readouterr().err
    assert "interrupted by SIGTERM" in told and "run the same command again" in told
    monkeypatch.setattr("distilvec.corpus.read_corpus", interrupted)
    assert called("compress", place, "--data", place / "texts.txt", "-o", place / "compressed") == 130
    assert "it keeps nothing before its end" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(distilvec.flow.run, "run", broken)
    assert called("run", place / "recipe.yaml") == 1
    assert "unexpected ZeroDivisionError: oh. The option --debug" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        main(["--debug", "run", str(place / "recipe.yaml")])
    with pytest.raises(DistilvecError):
        main(["--debug", "run", "missing.yaml"])
    assert Interrupted("x").exit_code == 130 and Interrupted("x", number=signal.SIGTERM).exit_code == 143


def test_a_full_disk_is_reported_at_every_write(
    place: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import distilvec.flow.run
    from distilvec.students.fresh_models import fresh

    def starts(*_: Any, **__: Any) -> None:
        with full_beyond(10_000):  # the student lies in a temporary folder for a while
            fresh(layers=1, width=64, vocabulary=300, texts=texts)

    monkeypatch.setattr(distilvec.flow.run, "run", starts)
    assert called("run", place / "recipe.yaml") == 4
    told = capsys.readouterr().err
    assert re.search(r"written \(File too large\).*ulimit -f.*TMPDIR names another", told), told


def test_methods_and_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert called("methods") == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in ("talas", "simcse", "leaf", "distillcse")) and "sentence vectors" in listed
    assert called("methods", "talas") == 0
    assert "anchored_layers: 2" in capsys.readouterr().out
    assert called("doctor") == 0
    told = capsys.readouterr().out
    assert "sentence-transformers" in told and "devices: CPU" in told and "onnx" in told


def test_align_shows_pairs_and_draws_them(
    place: Path, tiny_bert: Path, tiny_model_folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    picture = place / "pictures" / "cut.svg"
    words = ["align", "The train is late.", "--student", tiny_bert, "--teacher"]
    assert called(*words, tiny_bert) == 0
    *blocks, told = capsys.readouterr().out.splitlines()
    assert told.startswith("strict: ") and "in them 100% of" in told
    assert len(blocks) > 1 and all("=" in line for line in blocks[1:])
    assert called(*words, tiny_model_folders["xlmr"], "--mode", "path", "--picture", picture) == 0
    told = capsys.readouterr().out
    assert "path: " in told and f"picture  {picture}" in told and picture.read_text().startswith("<?xml")
    assert called(*words, tiny_bert, "--mode", "pth") == 2
    assert 'Did you mean "path"?' in capsys.readouterr().err
    assert called("align", "a text", "--student", tiny_bert) == 2
    assert "--teacher" in capsys.readouterr().err


def test_finetune_passes_its_arguments_on(
    place: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parsing only: tests/tasks trains."""
    import distilvec.flow.finetune

    asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def noted(*words: Any, **options: Any) -> Path:
        asked.append((words, options))
        return place / "tuned"

    monkeypatch.setattr(distilvec.flow.finetune, "finetune", noted)
    monkeypatch.setattr(distilvec.flow.finetune, "finetune_scores", lambda _: {"test": {"accuracy": 0.75}})
    data = place / "texts.jsonl"
    start = ["finetune", tiny_bert, "--data", data, "-o", place / "tuned"]
    assert called(*start) == 0
    shown = capsys.readouterr().out
    assert "test        accuracy 0.7500" in shown and f"model       {place / 'tuned'}" in shown
    words, options = asked.pop()
    assert words == (str(tiny_bert), data, place / "tuned")
    assert options["task"] == "classification" and options["text"] is None and options["encoding"] is None
    assert options["lora"] is False and options["optimizer"] == {}
    assert options["training"] == {"epochs": 3, "batch_size": 16, "seed": 0}

    pairs = ["--task", "pairs", "--text", "a", "--text", "b", "--encoding", "separate", "--label", "same"]
    numbers = ["--lora", "--lora-rank", 8, "--lr", "1e-3", "--epochs", 0.5, "--batch-size", 4, "--max-length", 64]
    assert called(*start, *pairs, *numbers, "--validation", data, "--test", data, "--seed", 7) == 0
    _, options = asked.pop()
    assert options == {
        "task": "pairs", "encoding": "separate", "label": "same", "text": ["a", "b"],
        "validation": data, "test": data, "max_length": 64, "lora": {"rank": 8},
        "training": {"epochs": 0.5, "batch_size": 4, "seed": 7}, "optimizer": {"lr": 0.001},
    }  # fmt: skip

    assert called(*start, "--text", "body") == 0 and asked.pop()[1]["text"] == "body"
    assert called(*start, "--lr", 0) == 0 and asked.pop()[1]["optimizer"] == {"lr": 0.0}, "refused by the recipe"
    wrongs = [(["--task", "clasification"], "clasification"), (["--lora-rank", 0], "lora-rank")]
    for wrong, told in [*wrongs, (["--lora-rank", 8], "--lora")]:
        assert called(*start, *wrong) == 2 and told in capsys.readouterr().err
    assert called("finetune", tiny_bert, "--data", data) == 2
    assert "--output" in capsys.readouterr().err and not asked


def test_teach_train_evaluate_compare(place: Path, capsys: pytest.CaptureFixture[str], texts: list[str]) -> None:
    recipe, out = place / "recipe.yaml", place / "steps"
    assert called("teach", recipe, "-o", out, "--dry-run") == 0
    assert "bytes a text" in capsys.readouterr().out and not out.exists()
    for share in ("0/2", "1/2"):
        assert called("teach", recipe, "-o", out, "--shard", share) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1].startswith(f"{out / 'stores' / 'tiny'}: {len(texts)} rows")
    assert called("train", recipe, "-o", out) == 0
    assert f"student  {out / 'student'}" in capsys.readouterr().out
    assert not (out / "report.json").exists()
    scores = place / "scores.json"
    assert called("evaluate", out / "student", "-t", place / "tasks.yaml", "-o", scores) == 0
    shown = capsys.readouterr().out
    value = json.loads(scores.read_text())["scores"]["student"]["clusters"]["value"]
    assert "clusters" in shown and f"{100 * value:.1f}" in shown
    words = ["compare", recipe, "-m", "cosine", "-m", "mse", "--seeds", "1", "-o", place / "compared"]
    assert called(*words, "--set", f"cache={out}") == 0
    shown = capsys.readouterr().out
    assert "cosine" in shown and "mse" in shown and "label" in shown
    assert (place / "compared" / "compare.md").is_file()


def test_shrink_and_export(place: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = place / "small"
    words = ["--layers", "1,3", "--vocabulary", "300", "--corpus", place / "texts.jsonl"]
    assert called("shrink", tiny_bert, "-o", small, *words) == 0
    assert "3 -> 2 (kept 1, 3)" in capsys.readouterr().out
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    assert called("export", small, "-o", place / "onnx", "--no-quantize") == 0
    assert "onnx float32" in capsys.readouterr().out and (place / "onnx" / "model.onnx").is_file()


def test_an_interrupted_demo_is_resumed(start: Starter, tiny_bert: Path, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    words = ["demo", "--teacher", str(tiny_bert), "--texts", "300", "-o", str(out)]
    running, log = start(arguments=words, folder=str(tmp_path)), out / "run.jsonl"
    running.until(lambda: log.is_file() and bool(log.read_text()), 200)
    running.kill(signal.SIGINT)
    code, told = running.wait()
    assert code == 130 and "run, train and demo: with --resume" in told, told
    step = int(re.findall(r"at step (\d+) of", told)[0])
    code, said = start(arguments=[*words, "--resume"], folder=str(tmp_path)).wait()
    assert code == 0, said
    assert "anew" not in said and not (out / "checkpoints-before").exists()
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == sorted(steps) and steps[0] <= step < steps[-1]


def test_from_end_to_end_with_an_interruption(start: Starter, place: Path, texts: list[str]) -> None:
    """Ctrl-C while training, resume, load without distilvec, and the saved recipe again: the same numbers."""
    recipe, out = place / "recipe.yaml", place / "out"
    long = ["--set", "training.epochs=6", "--set", "training.logging_steps=1"]
    running = subprocess.Popen(
        command("run", recipe, *long), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    log = out / "run.jsonl"
    until = time.monotonic() + 200
    while time.monotonic() < until and running.poll() is None:
        if log.is_file() and len(log.read_text().splitlines()) >= 3:
            break
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=120)
    assert running.returncode == 130, told
    ours = [line for line in told.splitlines() if line.startswith("distilvec: ")]
    assert len(ours) == 1 and "SIGINT" in ours[0] and "--resume" in ours[0]
    assert "Traceback" not in told and not (out / "student").exists()
    assert "Loading weights" not in told and "Writing model" not in told and "DEBUG" not in told and "\r" not in told

    code, said = start(arguments=["run", str(recipe), *long, "--resume"], folder=str(place)).wait()
    assert code == 0, said
    assert f"student  {out / 'student'}" in said and "untrained student" in said
    assert "training: " in said, "a last line of progress"
    for name in ("report.html", "report.md", "report.json", "recipe.yaml", "run.jsonl", "student/README.md"):
        assert (out / name).is_file(), name
    assert json.loads(log.read_text().splitlines()[-1])["epoch"] == 6

    program = f"""
        from sentence_transformers import SentenceTransformer
        vectors = SentenceTransformer({str(out / "student")!r}, device="cpu").encode(["hello", "good bye"])
        assert vectors.shape == (2, 32)
        assert all(sys.modules[name] is None for name in sys.modules if name.split(".")[0] == "distilvec")
    """
    start.elsewhere(program, place=place)

    again = place / "again"
    code, said = start(arguments=["run", str(out / "recipe.yaml"), "-o", str(again)], folder=str(place)).wait()
    assert code == 0, said
    first, second = (json.loads((folder / "report.json").read_text()) for folder in (out, again))
    first, second = first["sections"], second["sections"]
    assert [row["scores"] for row in first["scores"]["models"]] == [row["scores"] for row in second["scores"]["models"]]
    # The student's weights are equal bit for bit; products of whole matrices may differ in the last place.
    found, wanted = first["agreement"]["values"], second["agreement"]["values"]
    assert found.pop("cosine_from") == wanted.pop("cosine_from")
    assert found == pytest.approx(wanted, abs=1e-5)
    same = [(folder / "student" / "model.safetensors").read_bytes() for folder in (out, again)]
    assert same[0] == same[1], "interrupted and resumed, or in one go: the same student"


@pytest.mark.parametrize(
    ("command", "nothing"),
    [
        ("evaluate m -t x", True),
        ("evaluate m -t x --results=there", False),
        ("--debug export m", True),
        ("plan --teacher a --corpus b", True),
        ("plan --teacher a --corpus b -o there", False),
        ("plan recipe.yaml", False),
        ("run recipe.yaml", False),
    ],
)
def test_which_interrupted_commands_keep_nothing(command: str, nothing: bool) -> None:
    assert _keeps_nothing(command.split()) == nothing
