"""What is not ours stays as it is: in folders that look like ours, inside ours, and where a run is sent by mistake."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import distilvec
from distilvec import folders
from distilvec.alignment.drawing import align_command
from distilvec.choosing import settle_student
from distilvec.cli.disk import ABOUT, Kind, clean, pieces
from distilvec.cli.main import main
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.flow.compare import compare
from distilvec.flow.demo import demo_recipe
from distilvec.flow.output import output_folder
from distilvec.flow.run import run as start_run
from distilvec.recipe import Recipe
from distilvec.recipe.from_python import recipe_of
from distilvec.report import Record, show_table
from distilvec.training.checkpoint import tidy

REMOVABLE: list[Kind] = [kind for kind, (_, after) in ABOUT.items() if after is not None]
LONG_AGO = 1_600_000_000


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, sentences: list[str]) -> Path:
    """A small run."""
    out = tmp_path_factory.mktemp("run") / "out"
    distilvec.distill(
        teacher=str(tiny_bert),
        student={"shrink": {"of": str(tiny_bert), "layers": 1}},
        corpus=sentences[:60],
        method="cosine",
        output=str(out),
        training={"epochs": 1, "batch_size": 16},
    )
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    place = Path(shutil.copytree(finished, tmp_path / "out"))
    saved, when = place / "recipe.yaml", (place / "recipe.yaml").stat().st_mtime
    saved.write_text(saved.read_text().replace(str(finished), str(place)))
    os.utime(saved, (when, when))
    return place


def everything(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def plant(folder: Path, *names: str) -> None:
    """Files of somebody else's, old enough for anything."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"mine": true}')
        for place in (file, *file.parents):
            if place == folder.parent:
                break
            os.utime(place, (LONG_AGO, LONG_AGO))


def recipe(output: Path, **changes: Any) -> Recipe:
    data = {"corpus": {"path": "x.txt"}, "teachers": [{"model": "t"}], "student": {"model": "s"}, **changes}
    return Recipe.build({**data, "output": str(output)})


# clean


def test_folders_that_look_like_ours_by_name_stay(tmp_path: Path) -> None:
    plant(
        tmp_path,
        "checkpoints-before/notes.txt",
        "data.partial-2023/a.csv",
        ".partial-1/a.csv",
        "project/recipe.yaml",
        "project/report.json",
        "project/run.jsonl",
        "project/student/modules.json",
        "project/checkpoints/checkpoint-5/model.safetensors",
        "project/checkpoints/checkpoint-5/trainer_state.json",
        "project/corpus/corpus.json",
        "project/corpus/keys.bin",
        "project/tokens/ids-0123456789abcdef.bin",
        "project/alignments/0123456789abcdef-path",
        "project/checkpoints-before/checkpoint-5/optimizer.pt",
        "project/a.partial",
        "shop/store.json",
        "shop/derived/a.csv",
        "shop/a.json.bad",
    )
    before = everything(tmp_path)
    assert pieces(tmp_path) == []
    assert clean(tmp_path, REMOVABLE, dry_run=False) == []
    assert everything(tmp_path) == before


def test_foreign_files_inside_our_folders_stay(run: Path) -> None:
    mine = [
        "checkpoints/best.safetensors",
        "checkpoints/notes/a.txt",
        "checkpoints/checkpoint-5/notes.txt",
        "checkpoints/checkpoint-77/model.safetensors",
        "corpus/more.bin",
        "corpus/notes.txt",
        "tokens/notes.txt",
        "stores/teacher/notes.arrow",
        "stores/teacher/derived/notes.npy",
        "stores/other/a.txt",
        "alignments/table.csv",
        "checkpoints-before/thesis.tex",
        ".student.partial-1/thesis.tex",
        ".distilvec-tmp-mine/thesis.tex",
        "thesis.partial",
        "draft.tmp",
        ".report-mine/thesis.md",
        "tokens/20230101-results.csv",
        "alignments/deadbeef-notes.txt",
        "pieces/pieces-20240101.npy",
        "checkpoints/checkpoint-4/README.md",
        *(f"start/{folder.name}/notes.json" for folder in (run / "start").iterdir()),
    ]
    plant(run, *mine)
    kinds = {piece.kind for piece in clean(run, REMOVABLE, dry_run=False)}
    assert kinds >= {"checkpoints", "store", "derived", "corpus", "tokens"}
    left = everything(run)
    assert set(mine) <= set(left)
    ours = {"report.json", "recipe.yaml", "student/model.safetensors", "given/corpus.jsonl"}
    assert ours <= set(left)
    gone = ("tokens/ids-", "checkpoints/checkpoint-4/", "stores/teacher/s", "start/")
    assert not any(name.startswith(gone) for name in set(left) - set(mine))


@pytest.mark.parametrize("student", ["model", "auto"])
def test_an_output_next_to_a_cache_is_checked_first(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], student: str
) -> None:
    mine = ["notes.txt", "compare.md", "plan.json"]
    plant(tmp_path / "out", *mine)
    before = everything(tmp_path / "out")
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:40]))
    recipe = recipe_of(
        str(tiny_bert),
        str(tiny_bert) if student == "model" else "auto",
        str(tmp_path / "texts.txt"),
        "cosine",
        tmp_path / "out",
        cache=str(tmp_path / "cache"),
        judging={"tasks": []},
    )
    with pytest.raises(DistilvecError, match=r"/out: .*notes\.txt"):
        compare(recipe, ["cosine"], 1) if student == "model" else settle_student(recipe)
    assert everything(tmp_path / "out") == before


def test_checkpoints_moved_away_do_not_replace_foreign_files(tmp_path: Path) -> None:
    for name in ("checkpoints/checkpoint-4/model.safetensors", "checkpoints-before/checkpoint-5/thesis.txt"):
        plant(tmp_path, name)
    tidy(tmp_path / "checkpoints", resume=False)
    assert (tmp_path / "checkpoints-before/checkpoint-5/thesis.txt").exists()
    assert (tmp_path / "checkpoints-before-2/checkpoint-4/model.safetensors").exists()


def test_links_are_not_followed(run: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    for name in ("checkpoints", "corpus", "tokens", "stores"):
        shutil.move(run / name, outside / name)
        (run / name).symlink_to(outside / name)
    plant(outside, "weights/model.safetensors")
    before = everything(outside)
    clean(run, REMOVABLE, dry_run=False)
    assert everything(outside) == before
    (run / "tokens").unlink()
    (run / "tokens").mkdir()
    linked = run / "tokens" / "ids-0123456789abcdef.bin"
    linked.symlink_to(outside / "weights" / "model.safetensors")
    clean(run, REMOVABLE, dry_run=False)
    assert everything(outside) == before and linked.is_symlink()


def test_a_foreign_marker_does_not_make_a_folder_ours(tmp_path: Path) -> None:
    place = tmp_path / "project"
    plant(
        place, "checkpoints/checkpoint-5/model.safetensors", "checkpoints/checkpoint-5/unlogged-0.json", "report.json"
    )
    before = everything(place)
    for content in ('{"roles": ["output"]}', "[]", '{"made_by": "distilvec"}', "{", '{"made_by": 1, "files": {}}'):
        (place / folders.MANIFEST).write_text(content)
        assert clean(tmp_path, REMOVABLE, dry_run=False) == []
    genuine = tmp_path / "genuine"
    folders.claim(genuine)
    (place / folders.MANIFEST).unlink()
    (place / folders.MANIFEST).symlink_to(genuine / folders.MANIFEST)
    assert all(piece.path == genuine for piece in pieces(tmp_path))
    (place / folders.MANIFEST).unlink()
    assert everything(place) == before


def test_an_unfinished_run_is_not_taken_for_a_finished_one(run: Path) -> None:
    """Finished, then begun again with more epochs and killed: its checkpoints are all there is of it."""
    again = Recipe.load(run / "recipe.yaml", ["training.epochs=9"])
    again._source = None
    output_folder(again, resume=False)
    assert clean(run, dry_run=False) == []
    assert (run / "checkpoints-before").is_dir(), "the new run must not go on from them"


def test_an_equal_run_begun_again_is_unfinished_too(run: Path) -> None:
    output_folder(Recipe.load(run / "recipe.yaml"), resume=False)
    assert clean(run, dry_run=False) == []
    folders.claim(run)
    folders.update(run, finished=True)
    assert {piece.kind for piece in clean(run, dry_run=False)} == {"checkpoints"}


def test_files_to_be_removed_are_shown_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant(run, "checkpoints/best.safetensors")
    with pytest.raises(SystemExit) as caught:
        main(["clean", str(run), "--yes"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "checkpoints" in shown and "1 files that are not distilvec's stay" in shown
    assert re.search(r"^ +checkpoint-4: .*model\.safetensors, optimizer\.pt", shown, re.M)
    assert [file.name for file in (run / "checkpoints").rglob("*")] == ["best.safetensors"]


# output


def test_a_folder_with_foreign_files_is_refused(tmp_path: Path) -> None:
    for number, names in enumerate([["recipe.yaml"], ["report.md"], ["figures/a.png"], ["thesis.tex"], ["data/a.csv"]]):
        place = tmp_path / str(number)
        plant(place, *names)
        before = everything(place)
        with pytest.raises(DistilvecError, match=re.escape(f"{place}: ") + rf".*{names[0].split('/')[0]}.*-o"):
            output_folder(recipe(place), resume=False)
        assert everything(place) == before


def test_the_working_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = "corpus: {path: x.txt}\nteachers: [{model: t}]\nstudent: {model: s}\noutput: .\n"
    (tmp_path / "recipe.yaml").write_text(source)
    plant(tmp_path, "report.md", "figures/a.png")
    for output in (".", "./", str(tmp_path), "../" + tmp_path.name):
        with pytest.raises(
            DistilvecError, match=re.escape(f"/{tmp_path.name}: ") + r".*figures, recipe\.yaml, report\.md.*-o"
        ):
            output_folder(Recipe.load("recipe.yaml", [f"output={output}"]), resume=False)
    assert (tmp_path / "recipe.yaml").read_text() == source


def test_a_cache_among_foreign_files_does_not_make_the_folder_an_output(tmp_path: Path) -> None:
    plant(tmp_path, "report.md")
    folders.claim(tmp_path, "cache")
    with pytest.raises(DistilvecError, match=re.escape(f"{tmp_path}: ") + r".*: report\.md\..*-o"):
        folders.claim(tmp_path)
    plant(tmp_path / "other", "corpus/letters.txt")
    with pytest.raises(DistilvecError, match=r"/other: .*: corpus\..*-o"):
        folders.claim(tmp_path / "other", "cache")


def test_a_run_without_its_manifest_is_refused_and_left_alone(run: Path) -> None:
    """As after `cp -r out/* elsewhere`, which copies no hidden files."""
    kept = (run / folders.MANIFEST).read_bytes()
    (run / folders.MANIFEST).unlink()
    before = everything(run)
    with pytest.raises(DistilvecError, match=r"/out: this folder holds .*"):
        output_folder(Recipe.load(run / "recipe.yaml"), resume=True)
    clean(run, ["left over"], dry_run=False)
    assert everything(run) == before
    for content in (kept.decode(), '{"made_by": "distilvec", "roles": ["output"]}'):  # and of an earlier version
        (run / folders.MANIFEST).write_text(content)
        plant(run, "notes-of-mine.txt")  # once it is ours, it may hold more
        output_folder(Recipe.load(run / "recipe.yaml"), resume=True)
        assert "student" in folders.read(run)["files"]["output"] and folders.read(run)["finished"] is False


def test_the_resolved_recipe_never_replaces_its_source(run: Path, tmp_path: Path) -> None:
    source = (run / "recipe.yaml").read_text() + "# a note of mine\n"
    (run / "recipe.yaml").write_text(source)
    output_folder(Recipe.load(run / "recipe.yaml"), resume=False)
    assert (run / "recipe.yaml").read_text() == source
    (tmp_path / "link.yaml").symlink_to(run / "recipe.yaml")
    for given in (run / "recipe.yaml", tmp_path / "link.yaml", run / ".." / "out" / "recipe.yaml"):
        for resume in (False, True):
            with pytest.raises(DistilvecError, match=r"/out/recipe\.yaml: .*output"):
                output_folder(Recipe.load(given, ["training.seed=7"]), resume=resume)
    assert (run / "recipe.yaml").read_text() == source and (run / "student").is_dir()


def test_another_recipe_sets_the_old_student_aside(run: Path) -> None:
    student, report = everything(run / "student"), (run / "report.json").read_bytes()
    for number in (1, 2):
        other = Recipe.load(
            run / "recipe.yaml" if number == 1 else run / "before-1/recipe.yaml", [f"training.seed={number}"]
        )
        other._source = None
        output_folder(other, resume=False)
        assert not (run / "student").exists()
        if number == 1:
            shutil.copytree(run / "before-1" / "student", run / "student")
    assert everything(run / "before-1" / "student") == student == everything(run / "before-2" / "student")
    assert (run / "before-1" / "report.json").read_bytes() == report
    assert yaml.safe_load((run / "before-2" / "recipe.yaml").read_text())["training"]["seed"] == 1
    clean(run, REMOVABLE, dry_run=False)
    assert everything(run / "before-1" / "student") == student


def test_a_misspelt_corpus_sets_nothing_aside(run: Path) -> None:
    student, saved = everything(run / "student"), (run / "recipe.yaml").read_text()
    other = Recipe.load(run / "recipe.yaml", ["training.seed=3", "corpus.path=txt.jsonl"])
    other._source = None
    with pytest.raises(DistilvecError, match=r"txt\.jsonl: there is no such file"):
        start_run(other)
    assert everything(run / "student") == student and (run / "recipe.yaml").read_text() == saved
    assert not (run / "before-1").exists()


# places that are none


def test_a_file_or_a_loop_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("file", "loop", "file/below", "x" * 300, "a/" * 3000):
        with pytest.raises(DistilvecError):
            output_folder(recipe(tmp_path / name), resume=False)
        with pytest.raises(DistilvecError):
            folders.claim(tmp_path / name, "cache")
        with pytest.raises(DistilvecError):
            demo_recipe(tmp_path / name, teacher="t")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", ["stores", "stores/teacher", "tokens", "checkpoints", "given", "student", "report.md"])
def test_a_file_or_a_loop_within_the_output(name: str, tmp_path: Path) -> None:
    """Said before anything is taught."""
    for kind in ("file", "folder", "loop"):
        out = folders.claim(tmp_path / kind)
        place = out / name
        place.parent.mkdir(exist_ok=True)
        if kind == "file":
            place.write_text("mine")
        elif kind == "folder":
            place.mkdir()
        else:
            place.symlink_to(place)
        if kind == ("file" if name == "report.md" else "folder"):
            output_folder(recipe(out), resume=False)
            continue
        with pytest.raises(DistilvecError, match=rf"/{kind}/.*{re.escape(Path(name).parts[0])}.*: .*\boutput or cache"):
            output_folder(recipe(out), resume=False)
        with pytest.raises(DistilvecError, match=rf"/{kind}/.*{re.escape(Path(name).parts[0])}.*: .*\boutput or cache"):
            recipe_of("teacher", "student", ["a", "b"], "mse", out)


def test_align_onto_a_folder(tmp_path: Path, tiny_bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.png").mkdir()
    (tmp_path / "file").write_text("mine")
    for picture in (tmp_path / "a.png", tmp_path / "file" / "b.png"):
        with pytest.raises(SystemExit) as caught:
            main(
                ["align", "a text", "--student", str(tiny_bert), "--teacher", str(tiny_bert), "--picture", str(picture)]
            )
        assert caught.value.code == EnvironmentProblem.exit_code
        assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../../x", "a/b", "/tmp/x", "..", ".hidden", "", "x" * 300, 3, "a\nb", "a\n"])
def test_a_teachers_name_leads_nowhere(name: Any, tmp_path: Path) -> None:
    import numpy as np

    place = tmp_path / "a" / "b" / "out"
    teacher = {"name": name, "vectors": np.ones((2, 3), np.float32), "texts": ["a", "b"]}
    for teachers in (teacher, [teacher], [{"name": "fine", "model": "m"}, teacher]):
        with pytest.raises(DistilvecError):
            recipe_of(teachers, "student", ["a", "b"], "mse", place)
    assert not list(tmp_path.iterdir())


def test_the_card_and_the_report_show_no_place_of_this_machine(run: Path, tiny_bert: Path) -> None:
    for file in (run / "student" / "README.md", run / "report.md"):
        assert str(tiny_bert) not in file.read_text() and str(tiny_bert.parent) not in file.read_text()
    assert json.loads((run / "report.json").read_text())


def test_names_in_messages_do_nothing_to_the_terminal(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "te\x1b[31mxt\x07\u202e"
    (tmp_path / "rows.jsonl").write_text(json.dumps({name: "a text"}) + "\n")
    model = str(tiny_bert)
    data = {"corpus": {"path": "rows.jsonl"}, "teachers": [{"model": model}], "student": {"model": model}}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**data, "output": str(tmp_path / "out")}))
    with pytest.raises(SystemExit):
        main(["run", str(tmp_path / "recipe.yaml")])
    shown = capsys.readouterr().err
    assert "\\x1b[31mxt\\x07\\u202e" in shown and name not in shown and "\x07" not in shown


def test_output_of_a_command_contains_no_terminal_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a\x1b[31mb\u202e"
    folder.mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["clean", str(folder)])
    shown = capsys.readouterr().out
    assert not ended.value.code and "a\\x1b[31mb\\u202e" in shown and "\x1b" not in shown


def test_titles_and_places_do_nothing_to_the_terminal(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_table(Record(title="t", alarms=["a\x1b[31mb[bold]c"]))
    drawn = tmp_path / "a\x1b[31mb[bold]" / "c.svg"
    drawn.parent.mkdir()
    align_command("some words", tiny_bert, tiny_bert, picture=drawn)
    shown = capsys.readouterr().out.replace("\n", "")
    assert "\x1b[31m" not in shown and shown.count("a\\x1b[31mb[bold]") == 2 and drawn.exists()


@pytest.mark.parametrize(
    "files", [["output"], {"output": 1}, {"output": [1, "student"]}, {"output": [["a"]]}, None, "output"]
)
def test_a_manifest_with_lists_of_other_types_is_foreign(files: Any, tmp_path: Path) -> None:
    (tmp_path / folders.MANIFEST).write_text(json.dumps({"made_by": "distilvec", "alone": True, "files": files}))
    assert folders.read(tmp_path) == {}
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DistilvecError, match=r"did not write: notes\.txt"):
        folders.claim(tmp_path)
    (tmp_path / "notes.txt").unlink()
    assert folders.read(folders.claim(tmp_path))["alone"]


@pytest.mark.parametrize("roles", [[["output"]], [{}], [1], [None], "output", {"output": 1}])
def test_a_manifest_of_an_earlier_version_with_roles_of_other_types_makes_nothing_ours(
    roles: Any, tmp_path: Path
) -> None:
    (tmp_path / folders.MANIFEST).write_text(json.dumps({"made_by": "distilvec", "roles": roles}))
    assert not folders.read(tmp_path).get("files")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DistilvecError, match=r"did not write: notes\.txt"):
        folders.claim(tmp_path)
