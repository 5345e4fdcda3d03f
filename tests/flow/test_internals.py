"""Whole runs of methods that look inside the teacher or at its class predictions."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import distilvec
from distilvec.choosing.dry_run import plan
from distilvec.errors import DistilvecError
from distilvec.flow.finetune import finetune
from distilvec.flow.run import run, train
from distilvec.recipe import Recipe
from distilvec.students import load_student
from distilvec.tasks.examples import read_examples
from distilvec.tasks.predictor import Predictor


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, sentences: Sequence[str]) -> Path:
    """Texts with a label that a small model can learn: whether they are long."""
    folder = tmp_path_factory.mktemp("data")
    texts = list(dict.fromkeys(" ".join(text.split()[:16]) for text in sentences))[:96]
    middle = sorted(map(len, texts))[len(texts) // 2]
    rows = [{"text": text, "label": "long" if len(text) > middle else "short"} for text in texts]
    for name, part in (("train", rows[:64]), ("test", rows[64:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Path:
    """A teacher of another task, with as many classes of other names."""
    folder = tmp_path_factory.mktemp("other")
    rows = [json.dumps({"text": f"text {n}", "label": "xy"[n % 2]}) + "\n" for n in range(16)]
    (folder / "other.jsonl").write_text("".join(rows))
    return finetune(tiny_bert, folder / "other.jsonl", folder / "teacher", training={"epochs": 1, "use_cpu": True})


def recipe(data: Path, out: Path, models: dict[str, Path], method: dict[str, Any], **changes: Any) -> Recipe:
    sections: dict[str, Any] = {
        "corpus": {"path": str(data / "train.jsonl"), "holdout": 0.0},
        "teachers": [{"name": "teacher", "model": str(models["bert"])}],
        "student": {"model": str(models["xlmr"])},
        "method": method,
        "optimizer": {"lr": 1e-3, "heads_lr": 1e-3},
        "training": {"epochs": 1, "batch_size": 16, "save_every": 2, "use_cpu": True},
        "judging": {"tasks": [], "speed": False, "agreement": False},
        "output": str(out),
    }
    for key, value in changes.items():
        sections[key] = {**sections[key], **value} if isinstance(sections.get(key), dict) else value
    return Recipe.build(sections)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {
        f"{file.parent.name}/{name}": tensor
        for file in sorted(folder.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


EMO, MOE = {"name": "emo"}, {"name": "distillmoe", "layers": 2}


@pytest.mark.parametrize("method", [EMO, MOE], ids=lambda method: method["name"])
def test_a_live_teacher_and_a_store_train_the_same_student(
    method: dict[str, Any], data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    stored = run(recipe(data, tmp_path / "store", tiny_model_folders, method))
    section = [{"name": "teacher", "model": str(tiny_model_folders["bert"]), "live": True}]
    live = run(recipe(data, tmp_path / "live", tiny_model_folders, method, teachers=section))
    assert not list((tmp_path / "live" / "stores").rglob("tokens-*"))
    first, second = weights(stored.folder / "student"), weights(live.folder / "student")
    assert first.keys() == second.keys()
    losses = [[entry["loss"] for entry in each.record["training"].log if "loss" in entry] for each in (stored, live)]
    # Token states are kept in float16. After the first step Adam divides small differences by small gradients, so
    # single weights may differ by a step, but not all of them.
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-3)
    assert losses[0] == pytest.approx(losses[1], rel=1e-2)
    difference = torch.cat([(tensor - second[name]).abs().flatten() for name, tensor in first.items()])
    assert difference.mean() < 1e-5  # a step moves a weight by 1e-3, and there are four


def test_resumed_equals_uninterrupted(data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]) -> None:
    """From a store; with live teachers, and by other methods: tests/training/test_resume."""
    half = recipe(data, tmp_path / "half", tiny_model_folders, MOE)
    whole = weights(train(half))
    checkpoints = tmp_path / "half" / "checkpoints"
    for folder in checkpoints.glob("checkpoint-*"):
        if folder.name != "checkpoint-2":
            shutil.rmtree(folder)
    assert (checkpoints / "checkpoint-2").is_dir()
    shutil.rmtree(tmp_path / "half" / "student")
    again = weights(train(half, resume=True))
    assert whole.keys() == again.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())


def test_the_head_ships_and_opens_without_remote_code(
    data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    done = run(recipe(data, tmp_path / "out", tiny_model_folders, MOE))
    model = load_student(done.folder / "student", device="cpu")
    assert any(type(module).__name__ == "ExpertHead" for module in model)
    assert (done.folder / "student" / "expert_head.py").is_file()
    assert "trust_remote_code=True" in (done.folder / "student" / "README.md").read_text()


@pytest.mark.parametrize(
    ("method", "kinds"),
    [(MOE, ("bert", "qwen3")), ({"name": "matryoshka", "dims": [8], "of": "emo"}, ("bert",))],
    ids=["distillmoe, two teachers", "emo, matryoshka"],
)
def test_several_teachers_prefixes_and_sharpness_go_together(
    method: dict[str, Any], kinds: tuple[str, ...], data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    """Token signals of teachers with different tokenizers, in sharpness-aware steps."""
    done = run(
        recipe(
            data,
            tmp_path / "out",
            tiny_model_folders,
            method,
            corpus={"limit": 32},
            teachers=[{"name": kind, "model": str(tiny_model_folders[kind])} for kind in kinds],
            optimizer={"sharpness": {"kind": "asam", "rho": 0.2}},
        )
    )
    for kind in kinds:
        assert list((tmp_path / "out" / "stores" / kind).glob("tokens-*.arrow")), kind
    entries = [entry for entry in done.record["training"].log if "loss" in entry]
    assert entries and all(math.isfinite(entry["loss"]) and not entry.get("skipped_steps") for entry in entries)
    terms = {name.removeprefix("term/") for name in entries[0] if name.startswith("term/")}
    if len(kinds) > 1:
        assert all(any(name.endswith(f":{kind}") for name in terms) for kind in kinds), terms
    else:
        assert {name.partition("@")[2] for name in terms} >= {"8", "32"}, terms
    assert load_student(done.folder / "student", device="cpu").encode(["a text"]).shape[0] == 1


def test_compare_scores_the_supervised_task(data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]) -> None:
    """The task is what a supervised comparison is about; the fine-tuned teacher stands beside the methods."""
    from distilvec.flow.compare import compare

    teacher = finetune(
        tiny_model_folders["bert"],
        data / "train.jsonl",
        tmp_path / "teacher",
        task="classification",
        training={"epochs": 1, "batch_size": 16, "use_cpu": True},
    )
    task = {"kind": "classification", "label": "label", "alpha": 0.3, "test": str(data / "test.jsonl")}
    given = recipe(
        data,
        tmp_path / "out",
        tiny_model_folders,
        {"name": "sft"},
        teachers=[{"name": "teacher", "model": str(teacher)}],
        task=task,
    )
    found = compare(given, ["sft", "uld"], seeds=1)
    entries = found.compared.entries
    assert set(entries) == {"teacher", "sft", "uld"}
    assert all("supervised task" in row for row in entries.values())
    assert "sft" not in found.compared.differences and "all" in found.compared.differences["uld"]
    predictor = Predictor.load(next(tmp_path.glob("out/**/sft/seed-0/student")), device="cpu")
    alone = predictor.evaluate(read_examples(data / "test.jsonl", "text", "label"))["accuracy"]
    assert entries["sft"]["supervised task"].value == pytest.approx(alone)


def test_a_supervised_run_with_a_fine_tuned_teacher(
    data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    teacher = finetune(
        tiny_model_folders["bert"],
        data / "train.jsonl",
        tmp_path / "teacher",
        task="classification",
        training={"epochs": 2, "batch_size": 16, "use_cpu": True},
        optimizer={"lr": 2e-3},
    )
    task = {"kind": "classification", "label": "label", "alpha": 0.3, "test": str(data / "test.jsonl")}
    done = run(
        recipe(
            data,
            tmp_path / "out",
            tiny_model_folders,
            {"name": "uld"},
            teachers=[{"name": "teacher", "model": str(teacher)}],
            task=task,
        )
    )
    assert set(done.record["supervised"].scores) == {"student", "teacher"}
    assert "accuracy" in done.record["supervised"].scores["student"]
    assert any("term/task" in entry for entry in done.record["training"].log)
    predictor = Predictor.load(done.folder / "student", device="cpu")
    assert set(predictor.predict(["a text", "another text that is longer than the first"])) <= {"long", "short"}
    assert "supervised task" in (done.folder / "report.md").read_text()
    texts = ["a text", "another text that is longer than the first"]
    assert (
        done.student.predict(texts)
        == predictor.predict(texts)
        == distilvec.load(done.folder / "student").predict(texts)
    )


def test_impossible_runs_are_refused_before_teaching(
    data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    with pytest.raises(DistilvecError, match="^xlmr: uld .*classification task"):
        run(recipe(data, tmp_path / "a", tiny_model_folders, {"name": "uld"}))
    assert not list((tmp_path / "a").rglob("sentence-*.arrow"))
    with pytest.raises(DistilvecError, match=r"^recipe: .*\bpairs .*corpus\.text"):
        recipe(data, tmp_path / "b", tiny_model_folders, {"name": "sft"}, task={"kind": "pairs"})


@pytest.mark.parametrize(
    ("row", "message"), [(None, "no such file"), ({"text": "x", "label": "new"}, '"new" .*2 classes.*long, short')]
)
def test_a_bad_test_file_of_a_task_is_refused_before_teaching(
    row: dict[str, str] | None, message: str, data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    file = tmp_path / "test.jsonl"
    if row is not None:
        file.write_text(json.dumps(row), encoding="utf-8")
    task = {"kind": "classification", "label": "label", "test": str(file)}
    for start in (run, train, plan):
        with pytest.raises(DistilvecError, match=rf"/test\.jsonl: .*{message}"):
            start(recipe(data, tmp_path / "a", tiny_model_folders, {"name": "sft"}, task=task))
    assert not list((tmp_path / "a").rglob("sentence-*.arrow"))


def test_a_teacher_of_another_task_teaches_and_is_not_scored(
    other: Path, data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    done = run(
        recipe(
            data,
            tmp_path / "out",
            tiny_model_folders,
            {"name": "cosine"},
            teachers=[{"name": "teacher", "model": str(other)}],
            task={"kind": "classification", "label": "label", "test": str(data / "test.jsonl")},
        )
    )
    assert set(done.record["supervised"].scores) == {"student"}
    assert "teacher was fine-tuned on another task" in caplog.text


@pytest.mark.parametrize("method", ["dskd", "uld", "multilevel_ot"])
def test_a_teacher_of_other_classes(
    method: str, other: Path, data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    """Refused before teaching, but by methods that sort classes."""
    given = recipe(
        data,
        tmp_path / "out",
        tiny_model_folders,
        {"name": method},
        teachers=[{"name": "teacher", "model": str(other)}],
        task={"kind": "classification", "label": "label"},
    )
    if method == "dskd":
        with pytest.raises(
            DistilvecError, match=r"^teacher: .*\b2 classes.*\b2 .*: long, short, x, y\).*distilvec finetune"
        ):
            train(given)
        assert not list((tmp_path / "out").rglob("sentence-*.arrow"))
    else:
        assert (train(given) / "modules.json").is_file()


def test_gradient_caching_is_refused_before_teaching(
    data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    with pytest.raises(DistilvecError, match=r"^training\.mini_batch_size: emo .*gradient_accumulation_steps"):
        run(recipe(data, tmp_path / "a", tiny_model_folders, EMO, training={"mini_batch_size": 4}))
    assert not list((tmp_path / "a").rglob("sentence-*.arrow"))


@pytest.mark.parametrize("method", ["uld", "dskd"])
def test_logits_of_joint_pairs_are_not_asked_of_single_texts(
    method: str, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    """The teacher's head reads both texts as one input; with separate encoding it would read one of them."""
    rows = [{"text1": f"a text {n}", "text2": f"another {n}", "label": "ab"[n % 2]} for n in range(16)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    teacher = finetune(
        tiny_model_folders["bert"], file, tmp_path / "teacher", task="pairs", training={"epochs": 1, "use_cpu": True}
    )
    given = recipe(
        tmp_path,
        tmp_path / "out",
        tiny_model_folders,
        {"name": method},
        corpus={"path": str(file), "text": ["text1", "text2"], "label": "label"},
        teachers=[{"name": "teacher", "model": str(teacher)}],
        task={"kind": "pairs", "encoding": "separate"},
    )
    with pytest.raises(DistilvecError, match=f"^teacher: {method} .*encoding: separate.*encoding: joint"):
        run(given)


def test_the_plan_counts_the_bytes_of_token_signals(
    data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    lines = {}
    for method in ("cosine", "emo"):
        found = plan(recipe(data, tmp_path / method, tiny_model_folders, {"name": method}), teaching_only=True)
        text = next(text for stage, text in found.lines if stage == "teacher teacher")
        lines[method] = int(text.split(" bytes a text")[0].split()[-1].replace(",", ""))
    assert lines["emo"] > 4 * lines["cosine"]


@pytest.mark.parametrize(
    ("method", "measure"), [(EMO, "attention"), (MOE, "cosine of token states")], ids=["emo", "moe"]
)
def test_the_report_shows_the_inside(
    method: dict[str, Any], measure: str, data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    done = run(recipe(data, tmp_path / "out", tiny_model_folders, method, corpus={"holdout": 0.45}))
    maps = done.record["tokens"]
    assert maps is not None and maps.quantity == measure
    for tokens, values in zip(maps.tokens, maps.maps, strict=True):
        assert np.asarray(values).shape == (len(tokens), len(tokens))
    teacher, before, after = (np.asarray(each) for each in maps.maps)
    assert before.shape == after.shape and not np.allclose(before, after), "the student has learnt something"
    if measure == "attention":
        np.testing.assert_allclose(teacher.sum(-1), 1, atol=1e-2)
    else:
        np.testing.assert_allclose(np.diag(teacher), 1, atol=1e-3)
        assert done.record["experts"] is not None
        assert done.record["experts"].names == ["cosine", "contrast", "margin"]
        assert {len(points) for points in done.record["experts"].points} == {len(done.record["experts"].points[0])}
    shown = (done.folder / "report.html").read_text(encoding="utf-8")
    assert "How tokens relate" in shown and ("What the experts say" in shown) == (measure != "attention")
    assert (done.folder / "figures" / "tokens.svg").is_file()


def test_the_inside_of_joint_pairs_is_that_of_pairs(
    tmp_path: Path, sentences: Sequence[str], tiny_model_folders: dict[str, Path]
) -> None:
    rows = [
        {"text1": a, "text2": b, "label": "ab"[n % 2]}
        for n, (a, b) in enumerate(zip(sentences[:64:2], sentences[1:64:2], strict=True))
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    corpus = {"path": str(file), "text": ["text1", "text2"], "label": "label", "holdout": 0.2}
    done = run(recipe(tmp_path, tmp_path / "out", tiny_model_folders, EMO, corpus=corpus, task={"kind": "pairs"}))
    maps, aligned = done.record["tokens"], done.record["alignment"]
    assert maps is not None and aligned is not None
    for tokens in maps.tokens:
        assert sum(token in ("[SEP]", "</s>") for token in tokens) >= 2 and not any("\x1e" in each for each in tokens)
    for side in (aligned.drawn.student, aligned.drawn.teacher):
        assert len(side) > 4 and not any(token in ("[UNK]", "<unk>", "\x1e", "<0x1E>") for token in side)


def test_a_mixture_of_experts_is_trained_with_an_even_load(
    data: Path, tmp_path: Path, tiny_model_folders: dict[str, Path]
) -> None:
    student = {"upcycle": {"experts": 4, "noise": 0.1}, "aggregation": "sba", "router_balance": 0.1}
    done = run(recipe(data, tmp_path / "out", tiny_model_folders, {"name": "cosine"}, student=student))
    balances = [entry["term/router_balance"] for entry in done.record["training"].log if "term/router_balance" in entry]
    assert balances and all(1 - 1e-3 <= value <= 4 for value in balances)
    model = load_student(done.folder / "student", device="cpu")
    assert model[0].model.config.aggregation == "sba"
    assert done.record["lineage"].student.remote_code
    gate = [tensor for name, tensor in weights(done.folder / "student").items() if "router" in name]
    untouched = weights_of_router(tiny_model_folders, student)
    assert gate and not any(torch.equal(one, other) for one, other in zip(gate, untouched, strict=True))


def weights_of_router(models: dict[str, Path], student: dict[str, Any]) -> list[torch.Tensor]:
    from distilvec.students import upcycle

    fresh = upcycle(load_student(models["xlmr"], device="cpu"), **student["upcycle"], seed=0)
    return [tensor.detach() for name, tensor in fresh.state_dict().items() if "router" in name]
