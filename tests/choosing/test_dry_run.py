"""What `--dry-run` says, and that it leaves nothing behind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.jobs import tiny_recipe

from distilvec.choosing.dry_run import plan
from distilvec.errors import DistilvecError
from distilvec.recipe import Recipe


def recipe_of(folder: Path, teacher: Path, texts: list[str], **sections: object) -> Recipe:
    corpus = folder / "texts.jsonl"
    rows = [{"text": text, "source": "ab"[len(text) % 2]} for text in texts]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": None}]), encoding="utf-8")
    return Recipe.build(
        {
            "corpus": {"path": str(corpus), "domain": "source", "holdout": 0.4},
            "teachers": [{"name": "tiny", "model": str(teacher)}],
            "student": {"shrink": {"of": "tiny", "layers": 2}},
            "method": {"name": "talas"},
            "training": {"epochs": 3, "batch_size": 8},
            "output": str(folder / "out"),
            **sections,
        }
    )


def everything(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns if file.is_file() else 0 for file in folder.rglob("*")}


def test_it_says_what_would_happen_and_leaves_nothing(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(tmp_path, tiny_bert, sentences[:80])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    before = everything(tmp_path)
    found = plan(recipe)
    assert everything(tmp_path) == before
    stages = dict(found.lines)
    assert stages["corpus"].startswith("80 texts of 81 rows")
    assert "1 " in stages[""], "the rejected row is counted"
    assert "32 dimensions" in stages["teacher tiny"] and "80 texts to encode" in stages["teacher tiny"]
    assert "80 bytes a text, 6.4 kB in all" in stages["teacher tiny"]
    trained = int(stages["corpus"].split("; ")[1].split(" ")[0])
    assert f"{3 * -(-trained // 8)} steps" in stages["training"]
    assert "0.03 M parameters trained and kept" in stages["student"]
    assert "domain (of the corpus)" in stages["judging"]
    assert "are free" in stages["disk"] and stages["time"].startswith("about ")
    assert len(found.examples) == 3 and all("[CLS]" in example for example in found.examples)
    shown = found.text()
    assert all(stage in shown for stage in stages) and found.examples[0] in shown


def test_molecules_are_called_so_and_have_no_tokens_and_no_prompt(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    pytest.importorskip("torch_geometric")
    corpus = tmp_path / "molecules.smi"
    corpus.write_text("".join("C" * length + "O\n" for length in range(1, 61)), encoding="utf-8")
    recipe = Recipe.build(
        {
            "corpus": {"path": str(corpus), "holdout": 0.4},
            "teachers": [{"name": "morgan", "call": "distilvec.teachers.molecule:morgan"}],
            "student": {"molecule": {"layers": 1, "width": 8}},
            "method": {"name": "cosine"},
            "training": {"epochs": 1, "batch_size": 8},
            "output": str(tmp_path / "out"),
        }
    )
    found = plan(recipe)
    stages = dict(found.lines)
    assert stages["corpus"].startswith("60 molecules of 60 rows")
    assert stages["teacher morgan"].startswith("2048 dimensions, 60 molecules to encode at")
    assert "4,112 bytes a molecule, " in stages["teacher morgan"]
    assert found.examples and all(example.startswith("morgan reads: ") for example in found.examples)


def test_stored_vectors_cost_nothing_in_the_estimate(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    from tests.jobs import Job

    recipe = recipe_of(tmp_path, tiny_bert, sentences[:60])
    Job(recipe).teach()
    before = everything(tmp_path)
    stages = dict(plan(recipe, teaching_only=True).lines)
    assert "0 texts to encode" in stages["teacher tiny"] and "0 B in all" in stages["teacher tiny"]
    assert set(stages).isdisjoint({"student", "training", "judging", "output"})
    assert everything(tmp_path) == before


def test_signals_that_a_store_of_vectors_lacks_are_counted(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    from tests.jobs import Job

    Job(recipe_of(tmp_path, tiny_bert, sentences[:60])).teach()
    recipe = recipe_of(
        tmp_path,
        tiny_bert,
        sentences[:60],
        teachers=[{"name": "tiny", "model": str(tiny_bert), "token_axes": 8}],
        method={"name": "emo", "layers": 1},
    )
    stages = dict(plan(recipe).lines)
    shown = stages["teacher tiny"]
    assert "60 texts to encode" in shown, "the teacher reads them all again for its tokens"
    per_text = int(re.search(r"([\d,]+) bytes a text", shown)[1].replace(",", ""))
    assert per_text > 80 + 2 * 8, "vectors, token states and attention"
    assert re.fullmatch(r"about [\d.]+ kB, made once per student tokenizer", stages["alignments"])
    store = tmp_path / "out" / "stores" / "tiny"
    before = sum(file.stat().st_size for file in store.glob("*.arrow"))
    Job(recipe).teach()
    added = sum(file.stat().st_size for file in store.glob("*.arrow")) - before
    assert 60 * (per_text - 80) == pytest.approx(added, rel=0.3)
    said = re.search(r"([\d.]+) kB in all", shown)
    assert float(said[1]) * 1e3 == pytest.approx(60 * (per_text - 80), abs=100), "vectors are there, and not counted"
    stages = dict(plan(recipe, teaching_only=True).lines)
    assert "0 texts to encode" in stages["teacher tiny"] and "0 B in all" in stages["teacher tiny"]


def test_combined_teachers_are_one_with_a_store_of_its_own(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    from tests.jobs import Job

    two = [{"name": "tiny", "model": str(tiny_bert)}, {"name": "other", "model": str(tiny_bert), "prompt": "A "}]
    sections: dict[str, Any] = {"teachers": two, "combine": "concatenate", "method": {"name": "cosine"}}
    recipe = recipe_of(tmp_path, tiny_bert, sentences[:60], **sections)
    stages = dict(plan(recipe).lines)
    assert stages["combined"].startswith("64 dimensions") and "60 texts to combine" in stages["combined"]
    assert "144 bytes each, 8.6 kB in all" in stages["combined"]
    assert "80 bytes a text, 4.8 kB in all" in stages["teacher tiny"]
    Job(recipe).teach()
    stages = dict(plan(recipe, teaching_only=True).lines)
    assert "0 texts to combine" in stages["combined"] and stages["disk"].startswith("0 B")


def test_the_disk_holds_corpus_and_token_ids_too(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    from distilvec.flow.run import train

    def said(**options: bool) -> float:
        number, unit = dict(plan(recipe, **options).lines)["disk"].split()[:2]
        return float(number.replace(",", "")) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit]

    training = {"max_steps": 1, "batch_size": 8, "use_cpu": True}
    texts = [f"{number} {text}" for number in range(30) for text in sentences[:100]]
    recipe = recipe_of(tmp_path, tiny_bert, texts, training=training)
    before, teaching = said(), said(teaching_only=True)
    train(recipe)
    written = {
        name: sum(file.stat().st_size for file in (tmp_path / "out" / name).rglob("*") if file.is_file())
        for name in ("corpus", "stores", "tokens", "start")
    }
    assert teaching == pytest.approx(written["corpus"] + written["stores"], rel=0.1)
    assert before - said() == pytest.approx(sum(written.values()), rel=0.15)
    assert said(teaching_only=True) == 0


def test_too_few_texts_are_named_before_teaching(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    from distilvec.flow.run import run

    corpus = {"path": str(tmp_path / "texts.jsonl"), "holdout": 0.1}
    training = {"max_steps": 1, "batch_size": 8}
    recipe = recipe_of(tmp_path, tiny_bert, sentences[:42], corpus=corpus, training=training, judging={"speed": False})
    shown = dict(plan(recipe).lines)["judging"]
    assert re.fullmatch(
        r"no tasks; \d+ held-out items are too few to compare student and teacher on; 20 are needed", shown
    )
    record = run(recipe).record
    told = [
        message for message in caplog.messages if "Raise corpus.holdout" in message or message.startswith("teaching")
    ]
    assert told and told[0].startswith(shown.removeprefix("no tasks; "))
    few = next(n for n, message in enumerate(caplog.messages) if "texts to train on are few" in message)
    assert few < caplog.messages.index(told[0])
    assert record["agreement"] is None
    enough = recipe_of(tmp_path, tiny_bert, sentences, corpus={**corpus, "holdout": 0.4})
    assert dict(plan(enough).lines)["judging"] == "no tasks, agreement with the teacher"


def test_it_refuses_what_the_run_would_refuse(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    deep = recipe_of(tmp_path, tiny_bert, sentences[:60], method={"name": "talas", "anchored_layers": 5})
    with pytest.raises(DistilvecError, match=r"^student: anchored_layers is 5, .*\b2\. "):
        plan(deep)
    missing = recipe_of(tmp_path, tiny_bert, sentences[:60], judging={"tasks": [str(tmp_path / "no-such.yaml")]})
    with pytest.raises(DistilvecError, match=r"/no-such\.yaml: "):
        plan(missing)
    for holdout, remedy in ((0.45, '"agreement_cosine"'), (0.1, r"task\.validation.*corpus\.holdout")):
        training = {"epochs": 1, "batch_size": 8, "evaluate_every": 2, "best": "agreement_cosin"}
        corpus = {"path": str(tmp_path / "texts.jsonl"), "holdout": holdout}
        misspelt = recipe_of(tmp_path, tiny_bert, sentences[:90], training=training, corpus=corpus)
        with pytest.raises(DistilvecError, match=r'^training\.best: .*"agreement_cosin"\. .*' + remedy):
            plan(misspelt)


def test_a_step_of_several_batches_takes_as_long_as_they_do(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from distilvec.choosing import dry_run

    given, train = [], dry_run.fit

    def watched(student: Any, method: Any, material: Any, settings: Any) -> Any:
        given.append(settings.training)
        fitted = train(student, method, material, settings)
        fitted.seconds = 0.1 * fitted.steps
        return fitted

    monkeypatch.setattr(dry_run, "fit", watched)
    for accumulated in (1, 8):
        training = {"epochs": 3, "batch_size": 8, "gradient_accumulation_steps": accumulated}
        recipe = recipe_of(tmp_path, tiny_bert, sentences[:80], training=training)
        said = dict(plan(recipe).lines)["training"]
        assert f"at {100 * accumulated:,} ms" in said and given[-1].gradient_accumulation_steps == 1


def test_dry_run_with_a_vectors_file_that_lacks_an_item(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    texts = sorted(set(sentences))
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((len(texts) - 1, 8)).astype(np.float32))
    (tmp_path / "t.txt").write_text("\n".join(texts[:-1]))
    teachers = [{"name": "elsewhere", "vectors": str(tmp_path / "v.npy"), "texts": str(tmp_path / "t.txt")}]
    given = tiny_recipe(tmp_path, tiny_bert, texts, teachers=teachers, corpus={"path": texts, "holdout": 0.0})
    assert "elsewhere" in plan(given).text()
