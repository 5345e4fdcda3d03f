"""The recipe: what is refused and how it is said, changes from the command line, files, and the way back to YAML."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tests.jobs import tiny_recipe

from distilvec import plain_yaml
from distilvec.corpus import read_corpus
from distilvec.errors import DistilvecError
from distilvec.methods.table import available
from distilvec.recipe import CallSection, Recipe
from distilvec.teachers import load_teacher

MINIMAL = """\
corpus: {path: texts.txt}
teachers: [{name: tiny, model: some/teacher}]
student:
  shrink: {of: tiny, layers: 2}
method: {name: talas, anchored_layers: 1}
training:
  epochs: 2
"""


def written(folder: Path, text: str = MINIMAL) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "recipe.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def refused(folder: Path, text: str, changes: list[str] | None = None) -> str:
    with pytest.raises(DistilvecError) as caught:
        Recipe.load(written(folder, text), changes)
    return str(caught.value)


def test_defaults_and_resolution(tmp_path: Path) -> None:
    recipe = Recipe.load(written(tmp_path))
    assert recipe.student.space == "own"
    assert recipe.method.first.options == {"anchored_layers": 1}
    assert recipe.optimizer.lr is None and recipe.training.seed == 0
    assert recipe.place == Path("out")


def test_the_method_implies_the_space(tmp_path: Path) -> None:
    leaf = MINIMAL.replace("{name: talas, anchored_layers: 1}", "{name: leaf}")
    assert Recipe.load(written(tmp_path, leaf)).student.space == "teacher"


@pytest.mark.parametrize(
    ("before", "after", "line", "told"),
    [
        ("epochs: 2", "epochs: 0", 7, r"training\.epochs: .*\(got 0\)"),
        ("epochs: 2", "epochs: many", 7, r"training\.epochs: .*\bmany\b"),
        ("shrink: {of: tiny, layers: 2}", "shrnk: {of: tiny}", 4, r'student\.shrnk: .*"shrink"'),
        ("shrink: {of: tiny, layers: 2}", "shrink: {of: tiny, layer: 2}", 4, r'student\.shrink\.layer: .*"layers"'),
        ("corpus: {path: texts.txt}", "corpus: {}", 1, r"corpus: .*path is missing"),
        (
            "corpus: {path: texts.txt}",
            "corpus: {pth: texts.txt}",
            1,
            r'corpus\.pth: .*"pth".*"path"',
        ),
        ("anchored_layers: 1", "anchored_layer: 1", 5, 'method.anchored_layer: .*"anchored_layer".*"anchored_layers"'),
        ("layers: 1}", "layers: 1, temperature: -1}", 5, r"method\.temperature: .*\b0 \(got -1\)"),
        ("layers: 1}", "layers: 1,\n  preset: papper}", 6, r"method\.preset: .*'papper'"),
        ("name: talas", "name: tallas", 5, 'method: .*"tallas".*"talas"'),
        ("model: some/teacher", "model: a, call: m:f", 2, r"teachers\.0: .*give exactly one of model, call"),
        ("epochs: 2", "bset: task_accuracy", 7, r'training\.bset: .*"best"'),
        ("training:", "trainig:", 6, 'trainig: .*"training"'),
        ("corpus: {path: texts.txt}", "corpus: texts.txt", 1, r"corpus: keys .*'texts\.txt'.*\{path: texts\.txt\}"),
        ("{name: talas, anchored_layers: 1}", "[cosine, mse]", 5, r"method\.0: keys .*'cosine'.*\{name: cosine\}"),
        ("{name: talas, anchored_layers: 1}", "cosine", 5, r"method: keys .*'cosine'.*\{name: cosine\}"),
        ("[{name: tiny, model: some/teacher}]", "[a/b]", 2, r"teachers\.0: keys .*'a/b'.*\{model: a/b\}"),
        ("[{name: tiny, model: some/teacher}]", "a/b", 2, r"teachers: a list .*\[\{model: a/b\}\]"),
        ("\n  shrink: {of: tiny, layers: 2}", " a/b", 3, r"student: keys .*'a/b'.*\{model: a/b\}"),
        (
            "training:",
            "batch_size: 32\ntraining:",
            6,
            r'batch_size: .* training: \{batch_size: 32\} .*\{"batch_size": 32\}',
        ),
        ("training:", "text: body\ntraining:", 6, r'text: .* corpus: \{text: body\} .*corpus=\{"text": "body"\}'),
        (
            "shrink: {of: tiny, layers: 2}",
            "parameters: 5M",
            4,
            r"student\.parameters: .*student: \{shrink: \{parameters: 5M\}\}",
        ),
        ("epochs: 2", "epochs: 2\n  text: body", 8, r"training\.text: .* corpus: \{text: body\}"),
        ("method: {name: talas, anchored_layers: 1}", "method: talas", 5, r"method: keys .*'talas'.*\{name: "),
        ("shrink: {of: tiny, layers: 2}", "shrink: 2", 4, r"student\.shrink: keys .* not 2\. .*\{of: "),
        (
            "[{name: tiny, model: some/teacher}]",
            "{name: tiny, model: some/teacher}",
            2,
            r"teachers: a list belongs here",
        ),
    ],
)
def test_mistakes_name_line_and_remedy(tmp_path: Path, before: str, after: str, line: int, told: str) -> None:
    message = refused(tmp_path, MINIMAL.replace(before, after))
    assert re.match(re.escape(str(tmp_path / "recipe.yaml")) + rf", line {line}, {told}", message), message


def test_broken_files(tmp_path: Path) -> None:
    assert "not valid YAML" in refused(tmp_path, "corpus: [")
    assert "mapping" in refused(tmp_path, "- one\n- two\n")
    with pytest.raises(DistilvecError, match=r"/missing\.yaml: "):
        Recipe.load(tmp_path / "missing.yaml")
    unsafe = MINIMAL.replace("texts.txt", '!!python/object/apply:os.system ["true"]')
    assert "not valid YAML" in refused(tmp_path, unsafe)


def test_changes(tmp_path: Path) -> None:
    file = written(tmp_path)
    changes = [
        "training.epochs=0.5",
        'teachers.0.prompt="query: "',
        "student.shrink.layers=[1, 3]",
        "optimizer.lr=1.0e-3",
    ]
    recipe = Recipe.load(file, changes)
    assert recipe.training.epochs == 0.5 and recipe.optimizer.lr == 1e-3
    assert recipe.student.shrink is not None and recipe.student.shrink.layers == [1, 3]
    assert "not of the form" in refused(tmp_path, MINIMAL, ["training.epochs"])
    assert "not an index below 1" in refused(tmp_path, MINIMAL, ["teachers.1.name=x"])
    assert "holds a value" in refused(tmp_path, MINIMAL, ["training.epochs.more=x"])
    auto = Recipe.load(file, ["student=auto", "student.max_length=64"]).student
    assert auto.auto is not None and auto.max_length == 64


def test_a_change_of_an_unknown_key_is_refused(tmp_path: Path) -> None:
    assert 'Did you mean "lr"?' in refused(tmp_path, MINIMAL, ["optimizer.lrr=2"])


def test_saved_and_read_again_it_is_the_same(tmp_path: Path) -> None:
    text = MINIMAL + "judging: {tasks: [{name: t, kind: clustering, test: [{text: a, label: b}]}]}\n"
    recipe = Recipe.load(written(tmp_path, text), ["training.warmup_steps=3"])
    again = Recipe.load(written(tmp_path / "saved", recipe.to_yaml()))
    assert again.to_yaml() == recipe.to_yaml()
    assert again.training.warmup_steps == 3 and again.training == recipe.training
    assert "warmup_steps: 3\n" in recipe.to_yaml() and "optim:" not in recipe.to_yaml()


def test_a_key_that_earlier_versions_did_not_know_is_written_only_where_it_says_something(tmp_path: Path) -> None:
    recipe = Recipe.load(written(tmp_path, MINIMAL))
    assert "muon" not in recipe.to_yaml()
    assert Recipe.load(written(tmp_path / "muon", recipe.to_yaml()), ["optimizer.muon=true"]).optimizer.muon
    assert "muon: true" in Recipe.load(written(tmp_path, MINIMAL), ["optimizer.muon=true"]).to_yaml()


def test_contradicting_settings_are_refused_before_teaching(tmp_path: Path) -> None:
    file = written(tmp_path, MINIMAL + "  fp16: true\n")
    with pytest.raises(DistilvecError, match=r"line \d+, training\.fp16: .*Set bf16"):
        Recipe.load(file, ["optimizer.sharpness={kind: sam}"])
    with pytest.raises(DistilvecError, match=r"optimizer\.muon: .*\"adafactor\".*Leave training\.optim out"):
        Recipe.load(written(tmp_path / "other", MINIMAL), ["training.optim=adafactor", "optimizer.muon=true"])


@pytest.mark.parametrize("number", ["1e-8", "1.0e-8", "1.e-8", ".1e-7", "+1E-8", "100e-10"])
def test_numbers_with_an_exponent_are_numbers(tmp_path: Path, number: str) -> None:
    """YAML 1.1 asks for a point and a sign, and most people leave them out."""
    text = MINIMAL + f"  adam_epsilon: {number}\n"
    for recipe in (Recipe.load(written(tmp_path, text)), Recipe.load(tmp_path / "recipe.yaml", ["optimizer.lr=1e3"])):
        found = recipe.training.adam_epsilon
        assert isinstance(found, float) and found == pytest.approx(1e-8)
    assert recipe.optimizer.lr == 1000
    changed = Recipe.load(tmp_path / "recipe.yaml", [f"training.max_grad_norm={number}"])
    assert changed.training.max_grad_norm == pytest.approx(1e-8)


def test_texts_that_look_like_such_numbers_stay_texts(tmp_path: Path) -> None:
    recipe = Recipe.load(written(tmp_path, MINIMAL), ["corpus.text='1e5'", "teachers.0.name='2e-3'", "output=e5"])
    again = Recipe.load(written(tmp_path / "saved", recipe.to_yaml()))
    assert again == recipe and (again.corpus.text, again.teachers[0].name, again.output) == ("1e5", "2e-3", "e5")


@pytest.mark.parametrize("student", ["{fresh: {}, pooling: cls}", "{model: m, pooling: first}"])
def test_poolings_that_do_not_exist(tmp_path: Path, student: str) -> None:
    message = refused(tmp_path, MINIMAL.replace("student:\n  shrink: {of: tiny, layers: 2}", f"student: {student}"))
    assert "pooling" in message and "line 3" in message


def test_files_next_to_the_recipe_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, elsewhere = tmp_path / "recipes", tmp_path / "elsewhere"
    elsewhere.mkdir()
    file = written(
        place,
        MINIMAL + "judging: {tasks: [task.yaml, stsb, {name: x, kind: clustering, test: rows.jsonl}]}\n"
        "mining: {documents: [{path: texts.txt}, {path: rows.jsonl}]}\n",
    )
    for name in ("texts.txt", "task.yaml", "rows.jsonl", "tiny"):
        (place / name).write_text("x\n")
    (elsewhere / "stsb").mkdir()
    monkeypatch.chdir(elsewhere)
    recipe = Recipe.load(file)
    assert recipe.corpus.path == str(place / "texts.txt")
    assert [part.path for part in recipe.mining.documents.parts] == [
        str(place / "texts.txt"),
        str(place / "rows.jsonl"),
    ]
    assert recipe.judging.tasks == [
        str(place / "task.yaml"),
        "stsb",
        {"name": "x", "kind": "clustering", "test": str(place / "rows.jsonl")},
    ]
    assert recipe.student.shrink is not None and recipe.student.shrink.of == "tiny", "a teacher's name is no file"
    assert recipe.teachers[0].model == "some/teacher"
    (place / "texts.txt").unlink()
    (elsewhere / "texts.txt").write_text("x\n")
    assert Recipe.load(file).corpus.path == str(elsewhere / "texts.txt")


def test_a_list_of_files_next_to_the_recipe_is_not_read_as_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, elsewhere = tmp_path / "recipes", tmp_path / "elsewhere"
    elsewhere.mkdir()
    file = written(place, MINIMAL.replace("path: texts.txt", "path: [a.txt, b.txt]"))
    texts = written(place / "given", MINIMAL.replace("path: texts.txt", "path: [a.txt, as it is]"))
    for folder in (file.parent, texts.parent):
        (folder / "a.txt").write_text("x\n")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(DistilvecError, match=r"^corpus: these are files, not texts \(.*recipes/a.txt\)\. Give their"):
        read_corpus(Recipe.load(file).corpus.path, tmp_path / "out")
    assert Recipe.load(texts).corpus.path == ["a.txt", "as it is"]


def test_models_next_to_the_recipe_are_found_from_anywhere(tmp_path: Path) -> None:
    teacher = "{name: t, model: big, adapters: [adapters, hub/more]}"
    file = written(
        tmp_path / "recipes", f"corpus: {{path: a.txt}}\nteachers: [{teacher}]\nstudent: {{static: {{of: tiny}}}}\n"
    )
    for name in ("big", "adapters", "tiny"):
        (file.parent / name).mkdir()
    recipe = Recipe.load(file)
    assert recipe.teachers[0].model == str(file.parent / "big")
    assert recipe.teachers[0].adapters == [str(file.parent / "adapters"), "hub/more"]
    assert recipe.student.static is not None and recipe.student.static.of == str(file.parent / "tiny")


def test_a_column_of_a_file_next_to_the_recipe_and_the_teacher_of_a_task(tmp_path: Path) -> None:
    place = tmp_path / "recipes"
    task = "{name: n, kind: neighbours, corpus: c.txt, teacher: big}"
    file = written(
        place,
        "corpus: {path: a.txt}\nteachers: [{name: t, vectors: 'v.parquet:column'}]\nstudent: {model: m}\n"
        f"method: {{name: cosine}}\njudging: {{tasks: [{task}]}}\n",
    )
    (place / "v.parquet").write_text("x")
    (place / "big").mkdir()
    recipe = Recipe.load(file)
    assert recipe.teachers[0].vectors == f"{place / 'v.parquet'}:column"
    assert recipe.judging.tasks[0]["teacher"] == str(place / "big")


def test_a_function_is_kept_and_named() -> None:
    data = {"corpus": {"path": "x"}, "student": {"model": "m"}, "teachers": [{"call": written}]}
    recipe = Recipe.build(data)
    assert recipe.teachers[0].call is written
    assert f"call: {written.__module__}:written" in recipe.to_yaml()


class Embedder:
    """An object that answers, with a method that does."""

    def __call__(self, texts: list[str]) -> list[list[float]]:
        return self.embed(texts)

    def embed(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 1.0] for text in texts]

    @classmethod
    def of_class(cls, texts: list[str]) -> list[list[float]]:
        return cls().embed(texts)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (Embedder(), "Embedder.<object>"),
        (Embedder().embed, "Embedder.<object>.embed"),
        (torch.nn.Identity(), "torch.nn.modules.linear:Identity.<object>"),
        (functools.partial(Embedder().embed), "functools:partial.<object>"),
        (lambda texts: [[1.0] for _ in texts], "<lambda>"),
    ],
)
def test_functions_given_from_python_are_not_found_by_a_saved_recipe(call: Any, named: str) -> None:
    data = {"corpus": {"path": "x"}, "student": {"model": "m"}, "teachers": [{"call": call}]}
    text = Recipe.build(data).to_yaml()
    saved = Recipe.build(plain_yaml.read(text))
    assert saved.teachers[0].call.endswith(named) and saved.to_yaml() == text
    with pytest.raises(DistilvecError, match="given from Python .*module:function"):
        load_teacher(call=saved.teachers[0].call)
    found = CallSection(call=Embedder.of_class).model_dump(mode="json")["call"]
    assert load_teacher(call=found).encode(["four"]).tolist() == [[4.0, 1.0]], "a class is found, and what it holds"


def test_a_teacher_is_not_called_as_the_student_is(tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match=r"line \d+, teachers.*the report calls the student"):
        Recipe.load(
            written(tmp_path, MINIMAL.replace("name: tiny", "name: student").replace("of: tiny", "of: student"))
        )


def test_two_teachers_of_one_name() -> None:
    data = {"corpus": {"path": "x"}, "student": {"model": "m"}, "teachers": [{"model": "a"}, {"model": "b"}]}
    with pytest.raises(DistilvecError, match='^recipe: .*"teacher"'):
        Recipe.build(data)


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("task", [None, {"kind": "classification"}])
def test_resolved_recipe_can_be_read_again(name: str, task: dict[str, Any] | None) -> None:
    made = {
        "corpus": {"path": "texts.jsonl", "text": ["q", "a"] if task is None else "text", "label": task and "label"},
        "teachers": [{"name": "t", "model": "some/model"}],
        "student": {"model": "some/student"},
        "method": {"name": name},
        "task": task,
    }
    try:
        first = Recipe.build(made)
    except DistilvecError:
        return  # a method for other items
    again = Recipe.build(plain_yaml.read(first.to_yaml()))
    assert again.to_yaml() == first.to_yaml()
    assert task is None or first.student is None or first.student.space == "own"


def test_live_is_refused_for_teachers_without_token_states(tmp_path: Path, tiny_bert: Path) -> None:
    for source in ({"call": len}, {"api": {"url": "http://localhost:1", "model": "m"}}, {"vectors": "v.npy"}):
        with pytest.raises(DistilvecError, match="live is about a model's token states"):
            tiny_recipe(tmp_path, tiny_bert, "texts.jsonl", teachers=[{"name": "t", "live": True, **source}])


def test_unquoted_prompt_with_a_colon_is_refused_with_advice(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "corpus: {path: a.txt}\nteachers: [{name: t, model: m}]\nstudent: {model: m}\nmethod: {name: cosine}\n"
        "output: o\n"
    )
    with pytest.raises(DistilvecError, match=r"teachers\.0\.prompt: a text belongs here.*quotation marks"):
        Recipe.load(recipe, ["teachers.0.prompt=query: "])
    assert Recipe.load(recipe, ['teachers.0.prompt="query: "']).teachers[0].prompt == "query: "


def test_repeated_key_is_named() -> None:
    with pytest.raises(yaml.YAMLError, match='line 3: "training" is there a second time'):
        plain_yaml.read("training: {epochs: 1}\noutput: out\ntraining: {seed: 3}\n")
    assert plain_yaml.read("a: &x {b: 1}\nc:\n  <<: *x\n  d: 2\n") == {"a": {"b": 1}, "c": {"b": 1, "d": 2}}


def test_prefixes_in_the_teachers_space_are_refused(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    options = {"name": "matryoshka", "dims": [8], "of": "leaf"}
    made = tiny_recipe(tmp_path, tiny_bert, sentences[:60], method=options)
    assert made.student is not None and made.student.space == "own"
    with pytest.raises(DistilvecError, match=r"^student\.space: .*matryoshka.*prefixes.*space: teacher"):
        tiny_recipe(
            tmp_path, tiny_bert, sentences[:60], method=options, student={"model": str(tiny_bert), "space": "teacher"}
        )
