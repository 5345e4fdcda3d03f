"""The public names: what they cost to import, values that YAML cannot hold, and what each call returns."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.starting import Starter

import distilvec
from distilvec import plain_yaml
from distilvec.cli.commands import shrink as shrink_command
from distilvec.errors import DistilvecError
from distilvec.judging import Encode, JudgingTask, Outputs, Score, judge, make_score
from distilvec.judging.loading import read_tasks
from distilvec.recipe import Recipe
from distilvec.recipe.from_python import recipe_of
from distilvec.teachers import load_teacher

QUICK: dict[str, Any] = {
    "optimizer": {"lr": 1e-3},
    "training": {"epochs": 1, "batch_size": 16},
    "judging": {"agreement": True, "speed": False},
}


@pytest.fixture(scope="module")
def texts(sentences: list[str]) -> list[str]:
    return [text for text in sentences if len(text) < 90][:100]


def embed(texts: list[str]) -> np.ndarray:
    """A teacher that is a function: letter counts, [n, 26]."""
    return np.array([[text.lower().count(letter) + 0.1 for letter in map(chr, range(97, 123))] for text in texts])


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = """
import sys, distilvec
heavy = {"torch", "transformers", "sentence_transformers", "numpy", "pydantic"} & set(sys.modules)
assert not heavy, heavy
assert set(distilvec.__all__) <= set(dir(distilvec)) and distilvec.DistilvecError and distilvec.Recipe
assert "torch" not in sys.modules
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "fine", done.stderr


def test_names_are_there_when_they_are_asked_for(start: Starter) -> None:
    code = """
        import sys, distilvec
        assert not {"distilvec.api", "distilvec.recipe"} & sys.modules.keys()
        for name in distilvec.__all__:
            assert callable(getattr(distilvec, name)), name
        import distilvec.flow.compare, distilvec.training.loss
        assert callable(distilvec.compare)
        try:
            distilvec.nothing
        except AttributeError:
            sys.exit(7)
    """
    ended = start.code(code, bare=True).wait()
    assert ended[0] == 7, ended


def test_distill_in_memory_and_again_from_its_recipe(tmp_path: Path, tiny_bert: Path, texts: list[str]) -> None:
    """Texts as a list; the recipe that is left runs again by itself and gives the same student."""
    student = {"shrink": {"of": "teacher", "layers": 1}}
    corpus = {"path": texts, "holdout": 0.3}
    run = distilvec.distill(
        str(tiny_bert), student=student, corpus=corpus, method="cosine", output=tmp_path / "out", **QUICK
    )
    assert run.student.encode(["hello"], show_progress_bar=False).shape == (1, 32)
    assert "| model |" in run.report and "student" in run.report
    assert (tmp_path / "out" / "report.html").is_file()
    shown = run._repr_markdown_()  # what a notebook shows of a cell that ends in it
    assert repr(run) == f"Run({str(tmp_path / 'out')!r})" and shown.startswith(run.report) and len(shown) < 3000
    assert "parameters" in str(run) and "| model |" not in str(run) and str(run) == run.text()
    run.record.alarms = ["the space has *collapsed*"]
    assert run.text().endswith("Alarm: the space has *collapsed*")
    assert run._repr_markdown_().endswith("**Alarm:** the space has \\*collapsed\\*")
    recipe = Recipe.load(tmp_path / "out" / "recipe.yaml", [f"output={tmp_path / 'again'}"])
    assert recipe.corpus.path == str(tmp_path / "out" / "given" / "corpus.jsonl")

    from distilvec.flow.run import run as start

    again = start(recipe)
    expected = run.student.encode(texts[:9], show_progress_bar=False)
    assert np.array_equal(again.student.encode(texts[:9], show_progress_bar=False), expected)
    assert again.record["agreement"].values["cosine"] == pytest.approx(
        run.record["agreement"].values["cosine"], abs=1e-5
    )


def test_paths_given_in_the_working_folder_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("texts.txt", "task.yaml", "rows.jsonl", "folder"):
        Path(name).write_text("x\n")
    student = {"shrink": {"of": "folder", "layers": 1}}
    task = {"name": "x", "kind": "clustering", "test": "rows.jsonl"}
    tasks = ["task.yaml", "stsb", task]
    judging = {"tasks": tasks}
    recipe = recipe_of("folder", student, "texts.txt", "cosine", "out", judging=judging)
    assert recipe.corpus is not None and recipe.corpus.path == str(tmp_path / "texts.txt")
    assert recipe.teachers[0].model == str(tmp_path / "folder") and recipe.output == "out"
    assert recipe.student is not None and recipe.student.shrink is not None
    assert recipe.student.shrink.of == str(tmp_path / "folder")
    assert recipe.judging.tasks == [str(tmp_path / "task.yaml"), "stsb", {**task, "test": str(tmp_path / "rows.jsonl")}]
    assert (student["shrink"]["of"], task["test"], tasks[0]) == ("folder", "rows.jsonl", "task.yaml"), "as they were"


def test_a_recipe_and_its_file_are_run(tmp_path: Path, tiny_bert: Path, texts: list[str]) -> None:
    student = {"shrink": {"of": "teacher", "layers": 1}}
    recipe = recipe_of(str(tiny_bert), student, texts, "cosine", tmp_path / "out", **QUICK)
    first = distilvec.run(recipe)
    expected = first.student.encode(texts[:9], show_progress_bar=False)
    again = distilvec.run(tmp_path / "out" / "recipe.yaml", resume=True)
    np.testing.assert_array_equal(again.student.encode(texts[:9], show_progress_bar=False), expected)
    with pytest.raises(DistilvecError, match=r"^recipe: .*\bdict\b.*Recipe\.build"):
        distilvec.run({"corpus": {"path": "texts.txt"}})  # type: ignore[arg-type]


def test_methods_are_compared_from_values_a_recipe_and_its_file(
    tmp_path: Path, tiny_bert: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": text, "label": str(len(text) > 45)} for text in texts]
    corpus = {"path": rows, "label": "label", "holdout": 0.4}
    student, out = {"shrink": {"of": "teacher", "layers": 1}}, tmp_path / "out"
    named = {"name": "mse", "label": "squares"}
    found = distilvec.compare(str(tiny_bert), student, corpus, ["cosine", named], out, seeds=1, **QUICK)
    assert {"teacher", "cosine", "squares"} <= found.compared.entries.keys() and found.compared.reference == "cosine"
    assert (out / "runs" / "squares" / "seed-0" / "student").is_dir()

    recipe = Recipe.load(out / "baselines" / "recipe.yaml")
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    monkeypatch.setattr("distilvec.flow.bench.fit", None)  # everything is trained
    file = tmp_path / "recipe.yaml"
    for again in (
        distilvec.compare(recipe, ["cosine", named], seeds=1),
        distilvec.compare(str(file), methods=["cosine", named], seeds=1),
        distilvec.compare(file, methods=["cosine", named], output=out, seeds=1),
        distilvec.compare(teacher=str(tiny_bert), student=student, corpus=corpus, methods=["cosine", named], output=out,
                          seeds=1, **QUICK),
    ):  # fmt: skip
        assert again.compared.to_dict() == found.compared.to_dict()
    assert list(distilvec.compare(recipe, "cosine", seeds=1).compared.differences) == [
        "teacher", "untrained student", "free baseline",
    ]  # fmt: skip
    for values, told in (
        ({"student": "student"}, r"^compare: .*\bstudent\b"),
        ({"training": {"epochs": 3}}, r"^compare: .*\btraining\b"),
        ({"corpus": 3}, r"^compare: .*\bcorpus\b.*by name"),
    ):
        with pytest.raises(DistilvecError, match=told):
            distilvec.compare(file, methods=["cosine"], **values)
    with pytest.raises(DistilvecError, match=r"^compare: .*teacher and corpus, .*recipe"):
        distilvec.compare({"teachers": []}, methods=["cosine"])
    with pytest.raises(DistilvecError, match=r"^method: .*\bmethods\b"):
        distilvec.compare(str(tiny_bert), student, corpus, method="cosine")


def test_a_function_and_vectors_as_teachers(tmp_path: Path, tiny_bert: Path, texts: list[str]) -> None:
    vectors = {"vectors": embed(texts).astype(np.float32)[:, :8], "texts": texts}
    student = distilvec.train(
        [embed, vectors], student=str(tiny_bert), corpus=texts, method="mse", output=tmp_path / "out", **QUICK
    )
    assert student.encode(["hello"], show_progress_bar=False).shape == (1, 32)
    saved = (tmp_path / "out" / "recipe.yaml").read_text(encoding="utf-8")
    assert f"{embed.__module__}:embed" in saved and "teacher2-vectors.npy" in saved
    assert not (tmp_path / "out" / "report.html").exists()


def test_teach_fills_the_store_that_distill_uses(tmp_path: Path, tiny_bert: Path, texts: list[str]) -> None:
    rows = [{"sentence": text, "kind": "x"} for text in texts]
    corpus = {"path": rows, "text": "sentence"}
    half = distilvec.teach(embed, corpus, tmp_path / "out", shard=(0, 2))
    assert 0 < len(half) < len(texts)
    store = distilvec.teach(embed, corpus, tmp_path / "out")
    assert len(store) == len(texts) and store.width == 26
    assert store.path == tmp_path / "out" / "stores" / "teacher"
    calls: list[int] = []

    def counted(batch: list[str]) -> np.ndarray:
        calls.append(len(batch))
        return embed(batch)

    distilvec.teach(counted, corpus, tmp_path / "other")
    assert sum(calls) >= len(texts)
    calls.clear()
    distilvec.teach(counted, corpus, tmp_path / "other")
    assert sum(calls) < 20, "only probes: everything is taught already"
    with pytest.raises(DistilvecError, match=r"^teacher: .*\bnone\b"):
        distilvec.teach([], corpus, tmp_path / "two")
    with pytest.raises(DistilvecError, match=r"^teacher: .*\b2\b"):
        distilvec.teach([embed, embed], corpus, tmp_path / "two")


def test_teach_takes_what_it_has_a_use_for(tmp_path: Path, texts: list[str]) -> None:
    cache, copy = tmp_path / "cache", f"file://{tmp_path / 'copy'}"
    store = distilvec.teach(embed, texts, tmp_path / "out", cache=cache, remote=copy)
    assert store.path == cache / "stores" / "teacher" and any((tmp_path / "copy").rglob("*"))
    with pytest.raises(TypeError, match="student"):
        distilvec.teach(embed, texts, tmp_path / "out", student="student")


def test_vectors_and_texts_of_any_kind(tmp_path: Path, texts: list[str]) -> None:
    array = np.random.default_rng(0).normal(size=(len(texts), 4)).astype(np.float32)
    for number, vectors in enumerate((array, array.tolist(), torch.from_numpy(array).bfloat16())):
        for kind in (np.array, list, iter):
            given = {"vectors": vectors, "texts": kind(texts)}
            recipe = recipe_of(given, "student", texts, "mse", tmp_path / f"{number}-{kind.__name__}")
            teacher = load_teacher(vectors=recipe.teachers[0].vectors, texts=recipe.teachers[0].texts)
            np.testing.assert_allclose(teacher.encode(texts[:3]), array[:3], rtol=0.01)
    for wrong in ([["a"]], np.array([[None]]), np.array([1.0])):
        with pytest.raises(DistilvecError, match="^teacher: ") as caught:
            recipe_of({"vectors": wrong, "texts": texts}, "student", texts, "mse", tmp_path / "wrong")
        assert len(str(caught.value)) < 400


def test_rows_keep_their_columns(tmp_path: Path, texts: list[str]) -> None:
    rows = [{"text": text, "path": f"{number}.txt"} for number, text in enumerate(texts[:5])]
    recipe = recipe_of("teacher", "student", rows, "mse", tmp_path / "out")
    written = Path(str(recipe.corpus.path)).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in written] == rows


def test_a_dataset_is_a_corpus(tmp_path: Path, texts: list[str]) -> None:
    from datasets import Dataset, DatasetDict

    data = Dataset.from_dict({"text": [*texts[:4], None], "score": [0.5, 1.0, 2.0, 3.0, 4.0]})
    for given in (data, DatasetDict({"train": data, "test": data.select([0])})):
        recipe = recipe_of("teacher", "student", given, "mse", tmp_path / "out")
        lines = Path(str(recipe.corpus.path)).read_text(encoding="utf-8").splitlines()
        assert json.loads(lines[1]) == {"text": texts[1], "score": 1.0} and len(lines) == 5
    before = Path(str(recipe.corpus.path)).stat().st_mtime_ns
    recipe_of("teacher", "student", data, "mse", tmp_path / "out")
    assert Path(str(recipe.corpus.path)).stat().st_mtime_ns == before, "an equal corpus is not written again"


def test_values_that_make_no_recipe(tmp_path: Path, tiny_bert: Path, texts: list[str]) -> None:
    from sentence_transformers import SentenceTransformer

    with pytest.raises(DistilvecError, match="^teacher: .*SentenceTransformer .*folder or hub id"):
        recipe_of(SentenceTransformer(str(tiny_bert)), "student", texts, "mse", tmp_path)
    with pytest.raises(DistilvecError, match="^student: .*SentenceTransformer .*folder or hub id"):
        recipe_of("teacher", SentenceTransformer(str(tiny_bert)), texts, "mse", tmp_path)
    with pytest.raises(DistilvecError, match=r"^teacher: .*\bint\b"):
        recipe_of(3, "student", texts, "mse", tmp_path)
    with pytest.raises(DistilvecError, match=r"^corpus: .*\bint\b"):
        recipe_of("teacher", "student", 3, "mse", tmp_path)
    with pytest.raises(DistilvecError, match=r"^corpus: .*datasets\.Dataset\.from_dict"):
        recipe_of("teacher", "student", {"text": "text"}, "mse", tmp_path)
    with pytest.raises(DistilvecError, match='^trainings: .*"training"'):
        recipe_of("teacher", "student", texts, "mse", tmp_path, trainings={"epochs": 1})


def test_files_in_a_list_are_not_taken_for_texts(tmp_path: Path, texts: list[str]) -> None:
    files = [tmp_path / f"shard-{number}.jsonl" for number in range(120)]
    for file in files:
        file.write_text('{"text": "one"}\n')
    names = [str(file) for file in files]
    for given in (names, files, iter(names), {"path": names}, (name for name in names)):
        with pytest.raises(DistilvecError, match=r"^corpus: these are files, not texts .*shard-0.*folder"):
            recipe_of("teacher", "student", given, "mse", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    like_files = [*names[:99], "see the notes", *names[99:]]
    recipe = recipe_of("teacher", "student", like_files, "mse", tmp_path / "out")
    written = Path(str(recipe.corpus.path)).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in written] == like_files


def test_a_file_of_vectors_without_texts_is_refused(tmp_path: Path, texts: list[str]) -> None:
    np.save(tmp_path / "v.npy", embed(texts))
    told = r'vectors alone.*\{"vectors": .*, "texts": \.\.\.\}'
    for given in (tmp_path / "v.npy", str(tmp_path / "v.npy"), [embed, "v.npy"]):
        with pytest.raises(DistilvecError, match=told):
            recipe_of(given, "student", texts, "mse", tmp_path / "out")
    with pytest.raises(DistilvecError, match=told):
        Recipe.build({"teachers": [{"model": "v.npy"}]})


def test_evaluate_any_model_on_any_description(tmp_path: Path, tiny_bert: Path, texts: list[str]) -> None:
    rows = [{"text": text, "label": str(len(text) > 45)} for text in texts[:40]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    listed = [
        {"name": "one", "kind": "clustering", "test": "rows.jsonl"},
        {"name": "two", "kind": "classification", "train": "rows.jsonl", "test": "rows.jsonl"},
    ]
    (tmp_path / "tasks.yaml").write_text(json.dumps(listed), encoding="utf-8")
    (tmp_path / "single.json").write_text(json.dumps({**listed[0], "name": "three"}), encoding="utf-8")
    tasks = [str(tmp_path / "tasks.yaml"), tmp_path / "single.json"]
    found = distilvec.evaluate(tiny_bert, tasks, tmp_path / "scores.json")
    assert list(found.scores["bert"]) == ["one", "two", "three"]
    assert found.scores["bert"]["one"].value == found.scores["bert"]["three"].value
    saved = json.loads((tmp_path / "scores.json").read_text())
    assert saved["scores"]["bert"]["two"]["value"] == found.scores["bert"]["two"].value
    assert saved["scores"]["bert"]["two"]["outputs"]
    assert repr(found) == "Judgement(bert: 3 tasks)" and str(found) == found.text()
    score = found.scores["bert"]["two"]
    low, high = score.interval or (0, 0)
    told = rf"bert +two +macro_f1 +{100 * score.value:.1f} +{100 * low:.1f} to {100 * high:.1f}"
    (line,) = [line for line in found.text().splitlines() if "two" in line]
    assert re.fullmatch(told, line) and f"    {line}" in found._repr_markdown_().splitlines()
    average = f"{100 * found.averages('bert')['all']:.1f}"
    assert re.search(rf"bert +average +{average}$", found.text(), re.MULTILINE)
    by_function = distilvec.evaluate(embed, tmp_path / "single.json", name="letters")
    assert by_function.scores["letters"]["three"].kind == "clustering"
    with pytest.raises(DistilvecError, match=": one, two"):
        read_tasks([str(tmp_path / "tasks.yaml"), str(tmp_path / "tasks.yaml")])
    with pytest.raises(DistilvecError):
        distilvec.evaluate(tmp_path / "no-model", tasks)


class Shouting(JudgingTask):
    """A task of somebody's own: how much closer a text is to itself in capitals than to another text."""

    kind = "shouting"

    def __init__(self, name: str, texts: list[str]) -> None:
        super().__init__(name)
        self.items = texts

    def texts(self) -> list[str]:
        return [*self.items, *(text.upper() for text in self.items)]

    def test_items(self) -> list[tuple[str, ...]]:
        return [(text,) for text in self.items]

    def score(self, encode: Encode) -> Score:
        plain, loud = np.asarray(encode(self.items)), np.asarray(encode([text.upper() for text in self.items]))
        values = np.linalg.norm(plain - loud[::-1], axis=1) - np.linalg.norm(plain - loud, axis=1)
        outputs = Outputs("mean", np.zeros(len(values)), values)
        return make_score(task=self.name, kind=self.kind, domain=self.domain, outputs=outputs, seed=self.seed)


def test_a_task_of_ones_own_is_judged_and_paired(tiny_bert: Path, texts: list[str]) -> None:
    task = Shouting("loud", texts[:30])
    score = distilvec.evaluate(embed, task).scores["model"]["loud"]
    assert score.outputs is not None and score.value == pytest.approx(float(np.mean(score.outputs.predicted)))
    assert score.interval is not None and score.interval[0] < score.value < score.interval[1]
    assert judge({"a": embed, "b": lambda batch: 2 * embed(batch)}, [task]).difference("b", "a", "loud").supported
    wrong = Outputs("my_metric", np.zeros(3), np.zeros(3))
    with pytest.raises(DistilvecError, match=r'"my_metric".*\bmean\b.*spearman'):
        make_score(task="loud", kind="shouting", domain=None, outputs=wrong)


def test_a_task_object_is_not_part_of_a_recipe(tmp_path: Path, texts: list[str]) -> None:
    judging = {"tasks": [Shouting("loud", texts)]}
    with pytest.raises(DistilvecError, match=r"^judging.tasks: a Shouting object .*distilvec\.evaluate"):
        recipe_of("teacher", "student", texts, "mse", tmp_path / "out", judging=judging)
    with pytest.raises(DistilvecError, match=r"^judging.tasks: a Shouting object .*distilvec\.evaluate"):
        Recipe.build({"judging": judging})


def test_frames_are_tasks(tmp_path: Path, texts: list[str]) -> None:
    import pandas
    import polars
    import pyarrow
    from datasets import Dataset

    rows = [{"text1": a, "text2": b, "score": n} for n, (a, b) in enumerate(pairwise(texts[:10]))]
    spec: dict[str, Any] = {"name": "near", "kind": "similarity", "test": rows}
    expected = distilvec.evaluate(embed, spec).scores["model"]["near"].value
    frames = [pandas.DataFrame(rows), polars.DataFrame(rows), pyarrow.Table.from_pylist(rows), Dataset.from_list(rows)]
    for number, frame in enumerate(frames):
        judged = distilvec.evaluate(embed, {**spec, "test": frame})
        assert judged.scores["model"]["near"].value == expected
        judging = {"tasks": [{**spec, "test": frame}]}
        recipe = recipe_of("teacher", "student", texts, "mse", tmp_path / str(number), judging=judging)
        saved = Recipe.build(plain_yaml.read(recipe.to_yaml())).judging.tasks
        assert distilvec.evaluate(embed, saved).scores["model"]["near"].value == expected
    with pytest.raises(DistilvecError, match=r"^judging.tasks: .*\bDataFrame\b.*\btest\b.*distilvec\.distill"):
        Recipe.build({"judging": {"tasks": [{**spec, "test": frames[0]}]}})
    with pytest.raises(DistilvecError, match=r"task near, test\b.*\b3\b"):
        distilvec.evaluate(embed, {**spec, "test": 3})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert (
        distilvec.evaluate(embed, {**spec, "test": tmp_path / "rows.jsonl"}).scores["model"]["near"].value == expected
    )


def test_shrink_writes_a_student(
    tmp_path: Path, tiny_bert: Path, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    shrink_command(str(tiny_bert), tmp_path / "small", layers="1,3", vocabulary=300, corpus=tmp_path / "texts.txt")
    told = capsys.readouterr().out
    assert "3 -> 2 (kept 1, 3)" in told and "400 -> " in told
    small = distilvec.load(tmp_path / "small")
    assert small.encode(["hello"], show_progress_bar=False).shape == (1, 32)
    with pytest.raises(DistilvecError, match="^shrink: .*--layers, --vocabulary"):
        shrink_command(str(tiny_bert), tmp_path / "same")
    with pytest.raises(DistilvecError, match=r"^texts: vocabulary 300\b.*--corpus"):
        shrink_command(str(tiny_bert), tmp_path / "same", vocabulary=300)


def test_shrink_says_what_each_cut_keeps(
    tmp_path: Path, tiny_bert: Path, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    sizes = {"embedding": 16, "inner": 32, "heads": 2, "positions": 64}
    shrink_command(str(tiny_bert), tmp_path / "small", layers="1,3", corpus=file, **sizes)
    told = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"embedding   rank 16 keeps \d\d\.\d% of the table's energy, R² 0\.\d{3} of what .*", told[3])
    assert re.fullmatch(r"inner       32: R² of each block's output 0\.\d{3}, 0\.\d{3}", told[4])
    assert re.fullmatch(r"heads       2: R² of each block's output 0\.\d{3}, 0\.\d{3}", told[5])
    assert told[6:] == ["positions   64", f"student     {tmp_path / 'small'}"]
    with pytest.raises(DistilvecError, match=r"^texts: inner 32\b.*--corpus"):
        shrink_command(str(tiny_bert), tmp_path / "smaller", inner=32)


def test_load_opens_an_exported_folder(tmp_path: Path, one_layer_bert: Path, texts: list[str]) -> None:
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    from distilvec.export import export_onnx

    export_onnx(one_layer_bert, tmp_path / "onnx", quantize=False, texts=texts[:8])
    found = distilvec.load(tmp_path / "onnx").encode(texts[:5])
    expected = distilvec.load(one_layer_bert).encode(texts[:5], show_progress_bar=False)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_scores_are_written_to_the_home_folder(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    rows = [{"text1": f"one {n}", "text2": f"two {n % 3}", "score": float(n)} for n in range(8)]
    task = {"name": "t", "kind": "similarity", "test": rows}
    distilvec.evaluate(str(tiny_bert), task, "~/scores.json")
    assert (tmp_path / "home/scores.json").is_file() and not (tmp_path / "~").exists()
