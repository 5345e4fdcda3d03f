"""What people write: recipes, changes on the command line, folders. All of it gives a value or a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from distilvec import plain_yaml
from distilvec.cli.main import every_command, main
from distilvec.errors import DistilvecError
from distilvec.flow.compare import compare
from distilvec.recipe import Recipe
from distilvec.recipe.from_python import recipe_of

BASE = """
corpus: {path: texts.txt}
teachers: [{name: t, model: some/model}]
student: {model: other/model}
method: {name: cosine}
"""
LAUGHS = "a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "recipe.yaml"
    file.write_text(BASE)
    return file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [*a]", "line 1: .*anchor"),
        ("a: &a {b: {c: [*a]}}", "line 1: .*anchor"),
        ("? &a [*a]\n: b", "line 1: .*anchor"),
        (LAUGHS, "1,000,000 values"),
        (re.sub(r"\[(.*)\]", r"{x: [\1], y: [\1]}", LAUGHS), "1,000,000 values"),
        (f"a: {'7' * 5000}", 'line 1: "7{40}" .*5000'),
        (f"a: -{'7' * 5000}", 'line 1: "-7{39}" .*5000'),
        (f"a: 0x{'f' * 9000}\nb: {'1' * 5000}", 'line 2: "1{40}" .*5000'),
        ("a: 2023-02-31", 'line 1: "2023-02-31"'),
        ("a: !!int many", 'line 1: "many" .*int'),
        ("a: !!bool perhaps", 'line 1: "perhaps" .*bool'),
        ("a: !!timestamp soon", 'line 1: "soon" .*timestamp'),
        ("a: " + "[" * 3000, "nested"),
        ("a: " + "{a: " * 3000, "nested"),
    ],
)
def test_yaml_that_is_a_trap(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(yaml.YAMLError, match=said):
        plain_yaml.read(text)
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(DistilvecError, match=rf"recipe\.yaml: .*YAML.*{said}"):
        Recipe.load(tmp_path / "recipe.yaml")


def test_anchors_as_people_use_them() -> None:
    assert plain_yaml.read("a: &a [1, 2]\nb: *a\nc: {<<: &m {x: 1}, y: *a}") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"x": 1, "y": [1, 2]},
    }


@pytest.mark.parametrize(
    "value",
    ["@home", "[1, 2", "{a: ", "*nothing", "a: b: c", "&a [*a]", "7" * 5000, "2023-02-31", "'open", "%x", "`x`"],
)
def test_bad_yaml_in_a_change(recipe: Path, value: str) -> None:
    with pytest.raises(DistilvecError, match=r"^--set corpus\.text: .*YAML"):
        Recipe.load(recipe, [f"corpus.text={value}"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("teachers.²=1", r'"teachers\.²": ² .*\b1\b'),
        (f"teachers.{'1' * 5000}.name=x", r'"teachers\.1{9}.*\b1\b'),
        ("teachers.0.name.x=1", r'"name" in "teachers\.0\.name\.x"'),
        ("method.name.x=1", r'"name" in "method\.name\.x"'),
        ("corpus", r'"corpus".*key\.key=value'),
        ("=", r'"=".*key\.key=value'),
        ("teachers=[null]", r"--set teachers\.0: give exactly one of model, call"),
        ("corpus.limit={}", r"--set corpus\.limit: .*integer"),
        ("trainng.epochs=2", r"--set trainng: unknown key .*training"),
    ],
)
def test_changes_that_lead_nowhere(recipe: Path, change: str, said: str) -> None:
    with pytest.raises(DistilvecError, match=said):
        Recipe.load(recipe, [change])
    with pytest.raises(DistilvecError):  # what a list holds may be no section
        Recipe.load(recipe, ["teachers=[null]", "teachers.0.name=x"])


def test_a_text_in_a_change_is_taken_as_it_stands(recipe: Path) -> None:
    changed = Recipe.load(recipe, ["corpus.text=my column #3", "corpus.domain='quoted #4'", "training.epochs=3"])
    assert changed.corpus is not None
    assert (changed.corpus.text, changed.corpus.domain, changed.training.epochs) == ("my column #3", "quoted #4", 3)


PLACES = ["my run #3", "2024-01-01", "2024", "null", "@x", "a: b", "[x", "true", "1e5", "'q'", "%", "*a", "~nobody-x/y"]


@pytest.mark.parametrize("place", PLACES)
def test_an_output_is_a_folder_not_yaml(recipe: Path, place: str) -> None:
    assert Recipe.load(recipe, output=place).output == place
    assert Recipe.load(recipe, [f"output={place}"]).output == place


@pytest.mark.parametrize("option", ["-o", "--output"])
@pytest.mark.parametrize("place", ["my run #3", "@x", "null", "2024-01-01"])
def test_the_option_takes_any_name(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, option: str, place: str, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []

    def told(recipe: Recipe, **_: Any) -> Any:
        seen.append(recipe.output)
        raise DistilvecError("seen")

    monkeypatch.setattr("distilvec.choosing.dry_run.plan", told)
    result = CliRunner().invoke(every_command(), ["run", str(recipe), "--dry-run", option, place])
    assert isinstance(result.exception, DistilvecError) and seen == [place], result.output


def test_the_home_folder(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "texts.txt").write_text("one\n")
    recipe.write_text(BASE.replace("texts.txt", "~/texts.txt") + "cache: ~/cache\noutput: ~/runs/a\n")
    loaded = Recipe.load(recipe)
    assert loaded.corpus is not None and loaded.corpus.path == str(tmp_path / "texts.txt")
    assert (loaded.output, loaded.cache) == (str(tmp_path / "runs/a"), str(tmp_path / "cache"))
    assert Recipe.load(recipe, output="~/b").output == str(tmp_path / "b")
    # Options of the commands without a recipe: a shell leaves --output=~/x as it is.
    from distilvec.cli.options import at_home

    assert at_home(Path("~/x")) == tmp_path / "x" and at_home(None) is None


def test_the_home_folder_of_what_is_named_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Path) -> None:
    """Recipes, task files and the files in them, records, stores, the folder of a new method."""
    from distilvec.judging import load_task
    from distilvec.judging.loading import read_tasks
    from distilvec.report import Record
    from distilvec.store import SignalStore

    monkeypatch.setenv("HOME", str(tmp_path))
    rows = [{"a": f"one {n}", "b": f"two {n}", "score": n} for n in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"name": "t", "kind": "similarity", "test": "~/rows.jsonl", "text1": "a", "text2": "b", "score": "score"}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    for named in ("~/task.yaml", Path("~/task.yaml"), task):
        assert load_task(named).name == read_tasks(named)[0].name == "t"
    recipe.rename(tmp_path / "mine.yaml")
    assert Recipe.load("~/mine.yaml").method.name
    for opened in (Record.load, SignalStore.open):
        with pytest.raises(DistilvecError, match=re.escape(str(tmp_path / "nothing"))):
            opened("~/nothing")
    result = CliRunner().invoke(every_command(), ["new-method", "my_loss", "--folder=~/own"])
    assert result.exit_code == 0 and (tmp_path / "own" / "my_loss.py").is_file(), result.output


def test_values_that_cannot_be_used_say_which_can(tmp_path: Path) -> None:
    import numpy as np
    import pandas as pd

    from distilvec import adapt, check_index, distill
    from distilvec.recipe.from_python import corpus_section

    vectors = np.ones((20, 3), np.float32)
    with pytest.raises(DistilvecError, match=r'a ndarray is no teacher\..*"vectors": vectors'):
        distill(vectors, student="x", corpus=["a"], method="cosine", output=str(tmp_path / "out"))
    for asked in (check_index, adapt):
        with pytest.raises(DistilvecError, match="no name of a model|valid string"):
            asked([1], np.eye(200, 3, dtype=np.float32) + 1, [f"text {n}" for n in range(200)])  # type: ignore[arg-type]
    frame = pd.DataFrame({"body": ["one", "two"], "other": [1, 2]})
    with pytest.raises(DistilvecError, match=r'no column "text", but "body", "other"\..*"text": "its name"'):
        corpus_section(frame, tmp_path / "new" / "given")
    with pytest.raises(DistilvecError, match=r'no column "bdy", .*Did you mean "body"\?'):
        corpus_section({"path": frame, "text": "bdy"}, tmp_path / "new" / "given")
    assert not (tmp_path / "new").exists()
    for good in ({"path": frame, "text": "body"}, pd.Series(["one"]), pd.DataFrame([["one"]])):
        assert Path(corpus_section(good, tmp_path / "new" / "given")["path"]).is_file()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("training.seed=4294967296", r"training\.seed: .*\(got 4294967296\)"),
        ("training.seed=1e400", r"training\.seed: .*\(got inf\)"),
        ("training.data_seed=1", r'training\.data_seed: unknown key "data_seed"\. Write seed'),
        ("student={fresh: {layers: 1000000000}}", r"student\.fresh\.layers: .*\b1000 \(got 1000000000\)"),
        ("student={fresh: {width: 1000000000}}", r"student\.fresh\.width: .*\b65536 \(got 1000000000\)"),
        (
            "student={fresh: {layers: 1000, width: 65536}}",
            r"student\.fresh: .*\b51,540,\d{3},\d{3},\d{3} .*20,000,000,000",
        ),
        ("student={molecule: {layers: 1000000000}}", r"student\.molecule\.layers: .*\b1000 \(got 1000000000\)"),
        ("student={molecule: {layers: 1000, width: 65536}}", r"student\.molecule: .*weights.*20,000,000,000"),
        ("student={resnet: {depth: 6000000002}}", r"student\.resnet\.depth: .*\b6002 \(got 6000000002\)"),
        ("student={resnet: {depth: 6002, width: 65536}}", r"student\.resnet: .*weights.*20,000,000,000"),
        ("training.epochs=1e300", r"training\.epochs: .*\(got 1e\+300\)"),
        ("training.epochs=.inf", r"training\.epochs: .*\(got inf\)"),
        ("optimizer.lr=.nan", r"optimizer\.lr: .*\(got nan\)"),
        ("teachers.0.name={a: 1}", r"teachers\.0\.name: a text belongs here"),
        ("teachers.0.name=[x]", r"teachers\.0\.name: .*string"),
        ("teachers.0.name=../../x", r"teachers\.0\.name: .*\(got '\.\./\.\./x'\)"),
        (f"teachers.0.name={'x' * 300}", r"teachers\.0\.name: .*\(got 'x{20}"),
        ("student={shrink: {of: {a: 1}}}", r"student\.shrink\.of: a text belongs here"),
        ("student={shrink: {of: [t]}}", r"student\.shrink\.of: .*string"),
        ("student={static: {of: 5}}", r"student\.static\.of: .*string"),
        ("student={fresh: {tokenizer: [x]}}", r"student\.fresh\.tokenizer: .*string"),
    ],
)
def test_values_beyond_sense(recipe: Path, change: str, said: str) -> None:
    with pytest.raises(DistilvecError, match=said):
        Recipe.load(recipe, [change])


@pytest.mark.parametrize("key", ["corpus.path", "teachers.0.model", "student.model"])
def test_a_path_that_is_too_long_loads_and_is_refused_by_who_opens_it(recipe: Path, key: str) -> None:
    assert "x" * 5000 in Recipe.load(recipe, [f"{key}={'x' * 5000}"]).to_yaml()


def test_the_last_seeds(recipe: Path) -> None:
    last = Recipe.load(recipe, ["training.seed=4294967295"])
    with pytest.raises(DistilvecError, match=r"^training\.seed: .*\b4,294,967,296\b"):
        compare(last, ["cosine"], seeds=2)


def test_a_teacher_called_after_a_path_writes_nothing(tmp_path: Path) -> None:
    import numpy as np

    out = tmp_path / "a" / "b" / "out"
    for name in ("../../../evil", "../x", "a/b", "", "x" * 101, 5, None, ["x"]):
        teacher = {"name": name, "vectors": np.zeros((1, 2), np.float32), "texts": ["one"]}
        with pytest.raises(DistilvecError, match=rf"^teachers\.name: .{re.escape(str(name)[:70])}"):
            recipe_of(teacher, "student", ["one"], "mse", out)
        scorer = {"name": name, "scores": [{"query": "one", "document": "two", "score": 1.0}]}
        with pytest.raises(DistilvecError, match=rf"^scorers\.name: .{re.escape(str(name)[:70])}"):
            recipe_of(None, "student", ["one"], "score_kl", out, scorers=[scorer])
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "corpus.jsonl"]


def test_ending_the_process_is_not_a_success(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(*args: object, **options: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr("distilvec.flow.run.run", leave)
    with pytest.raises(SystemExit) as ended:
        main(["run", str(recipe)])
    assert ended.value.code == 1 and "distilvec: " in capsys.readouterr().err
