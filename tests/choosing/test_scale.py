"""The calculator: its arithmetic by hand, its bytes against a real store, and what it refuses."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.jobs import Job, tiny_recipe

from distilvec.choosing.choose import texts_read
from distilvec.choosing.scale import rates
from distilvec.choosing.scale.rates import scale
from distilvec.choosing.scale.reckoning import PEAKS, Devices, Rates, Scale
from distilvec.cli.main import main
from distilvec.corpus import Part, read_corpus
from distilvec.errors import DistilvecError
from distilvec.modules.blocks import parameters
from distilvec.recipe import Recipe

RATES = Rates(
    machine="a machine",
    teaching=100.0,
    text_bytes=84.0,
    vector_bytes=800,
    parts=["384 x 2 + 16 key + 16 index"],
    peak=0.989,
    peak_from="measured",
    training=50.0,
    token_bytes=40.0,
    parameters=10**6,
    epochs=2.0,
)


def test_the_arithmetic_by_hand() -> None:
    found = Scale(RATES, Devices(4, None), 10**6, 3.0).estimate(10**6)
    assert found.teaching == (2500.0, 2500.0) and found.training == (10_000.0, 10_000.0)
    assert found.disk == 10**6 * (84 + 16 + 800 + 40)
    assert found.network == 10**6 * (84 + 800) + 2 * 10**6 * (800 + 40)
    assert found.hours[0] == pytest.approx(12_500 * 4 / 3600)


def test_another_device_is_a_range_and_marked_as_an_estimate() -> None:
    answer = Scale(RATES, Devices.read("8xh100"), 10**9, 2.0)
    assert answer.factors == pytest.approx((1000, 100))
    found = answer.estimate(10**9)
    assert found.teaching == pytest.approx((10**9 / (100 * 1000 * 8), 10**9 / (100 * 100 * 8)))
    shown = answer.text()
    assert "8 x H100 (estimated)" in shown and "989 TFLOPS (data sheet) / 0.989 TFLOPS (measured)" in shown
    assert "1,000,000,000 x (384 x 2 + 16 key + 16 index) bytes = 800.0 GB" in shown
    assert f"x 2 = {2 * found.hours[0] * 1:,.2f} to {2 * found.hours[1]:,.0f}" in shown.replace("device hours ", "")
    assert "that is 156 to 1,562 steps of 32 texts a second and device" in shown, "50 x 100 / 32 and ten times that"
    assert "cost" not in (own := Scale(RATES, Devices(), 10**9).text()) and "steps of 32" not in own


@pytest.mark.parametrize("kind", PEAKS)
def test_devices_are_read_by_name_and_number(kind: str) -> None:
    assert Devices.read(kind.lower()) == Devices(1, kind)
    assert Devices.read(f"16x{kind}") == Devices(16, kind)
    assert Devices.read("4") == Devices(4, None)


@pytest.mark.parametrize("text", ["", "x", "8x", "0", "0xH100", "H100x8", "8 H100", "8xH1000"])
def test_other_words_are_not_devices(text: str) -> None:
    with pytest.raises(DistilvecError, match=rf'^--devices: .*"({re.escape(text)}|H1000)"'):
        Devices.read(text)


@pytest.fixture
def recipe(tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setattr("distilvec.choosing.scale.rates.SECONDS", 0.1)
    monkeypatch.setattr("distilvec.choosing.measuring.SECONDS", 0.1)
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences), encoding="utf-8")
    return Recipe.build(
        {
            "corpus": {"path": str(corpus), "holdout": 0.2},
            "teachers": [{"name": "tiny", "model": str(tiny_bert)}],
            "student": {"shrink": {"of": "tiny", "layers": 1}},
            "method": {"name": "cosine"},
            "training": {"epochs": 3, "batch_size": 16},
            "output": str(tmp_path / "out"),
        }
    )


@pytest.mark.parametrize("storage", ["float16", "float32", "int8"])
def test_bytes_of_a_vector_are_those_of_a_real_store(recipe: Recipe, tmp_path: Path, storage: Any) -> None:
    from tests.jobs import Job

    recipe.teachers[0].storage = storage
    answer = scale(recipe, 10**6)
    taught = Job(recipe).teach(vectors_only=True)[0]
    files = [*taught.store.path.glob("sentence-*.arrow"), *taught.store.path.glob("derived/*.npy")]
    rows = len(taught.store)
    # Headers of a few hundred bytes each are all that comes on top.
    assert 0 <= sum(file.stat().st_size for file in files) - rows * answer.rates.vector_bytes < 3000 * len(files)


def test_rates_are_measured_and_the_student_counts(recipe: Recipe) -> None:
    answer = scale(recipe, 10**7, Devices(2), 1.5)
    found = answer.rates
    assert found.teaching > 0 and found.training is not None and found.training > 0 and found.peak > 0
    assert found.epochs == 3 and found.batch_size == 16 and found.parameters > 0
    assert found.token_bytes is not None and 2 < found.token_bytes < found.text_bytes * 2
    assert "10,000,000 x 3 / (" in answer.text() and "gradients per device and step" in answer.text()
    assert "max_steps" not in answer.text()
    stepped = recipe.training.model_dump() | {"max_steps": 5}
    short = Recipe.build(recipe.model_dump() | {"training": stepped})
    assert "reckoned by epochs; the recipe's max_steps would end it" in scale(short, 10**7).text()
    recipe.student = Recipe.build(recipe.model_dump() | {"student": "auto"}).student
    assert scale(recipe, 10**7).rates.training is None


def test_methods_on_pairs_are_measured_on_whole_pairs(recipe: Recipe, tmp_path: Path) -> None:
    rows = [{"text": [f"query {number}", f"document {number}"]} for number in range(900)]
    corpus = {"path": [{"a": row["text"][0], "b": row["text"][1]} for row in rows], "text": ["a", "b"]}
    asked = recipe.model_dump() | {"corpus": corpus, "method": {"name": "mnrl"}}
    assert scale(Recipe.build(asked), 10**7).rates.training


def test_a_function_that_may_be_paid_is_asked_for_no_text_of_the_corpus_twice(recipe: Recipe) -> None:
    asked: Counter[str] = Counter()

    def paid(texts: list[str]) -> np.ndarray:
        asked.update(texts)
        return np.array([[len(text), *text.encode()[:3], *bytes(3 - len(text.encode()[:3]))] for text in texts], float)

    paid.fingerprint = "paid"  # type: ignore[attr-defined]  # what it counts changes nothing
    teachers = [{"name": name, "call": paid} for name in ("tiny", "other")]
    sections = {"teachers": teachers, "combine": "concatenate", "student": {"model": recipe.teachers[0].model}}
    bought = Recipe.build(recipe.model_dump() | sections)
    assert scale(bought, 10**6).rates.teaching > 0
    texts = Job(bought).corpus.texts()
    assert max(asked[text] for text in texts) == 2, "once by each teacher"
    assert asked["A probe."] == 2, "each is opened once"
    before = asked.total()
    assert scale(bought, 10**6).rates.teaching > 0
    assert asked.total() - before < 2 * 80, "what is stored is not asked again but for a rate"


def test_what_costs_nothing_is_refused(recipe: Recipe) -> None:
    with pytest.raises(DistilvecError, match="^--rows: 0 "):
        scale(recipe, 0)
    with pytest.raises(DistilvecError, match="^--price-per-hour: .*-1"):
        scale(recipe, 1, price=-1.0)


def called(*words: Any) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_the_command(tmp_path: Path, recipe: Recipe, tiny_bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["--teacher", tiny_bert, "--corpus", recipe.corpus.path]
    assert called("plan", *texts, "--rows", "1e9", "--devices", "8xA100", "--price-per-hour", "2") == 0
    assert "8 x A100 (estimated)" in capsys.readouterr().out
    assert called("plan", *texts, "--sample", "100", "--layers", "1", "--keep", "0.9") == 0
    assert "predicted to keep 90 %" in capsys.readouterr().out
    for words, told in [
        (["plan"], "Give a recipe, or both --teacher and --corpus"),
        (["plan", "--teacher", tiny_bert], "Give a recipe, or both"),
        (["plan", *texts, "--layers", "two"], "--layers"),
        (["plan", *texts, "--rows", "1e6", "--devices", "8xH10"], 'Did you mean "H100"?'),
    ]:
        assert called(*words) == 2
        assert told in capsys.readouterr().err


def test_the_run_of_the_recipe_is_left_alone_and_its_student_measured(recipe: Recipe) -> None:
    """A training may be at work in the recipe's folder, with an untrained student that nothing else may remove."""
    recipe.student = Recipe.build(
        recipe.model_dump() | {"student": {"shrink": {"of": "tiny", "layers": 1, "vocabulary": 300}}}
    ).student
    job = Job(recipe)
    wanted = job.student()
    before = {file: file.stat().st_mtime_ns for file in (job.output / "start").rglob("*")}
    found = scale(recipe, 10**6).rates
    assert before and {file: file.stat().st_mtime_ns for file in (job.output / "start").rglob("*")} == before
    heads = 32 * 32 + 32
    assert found.parameters in range(parameters(wanted), parameters(wanted) + 2 * heads)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA RTX A1000 Laptop GPU", None),
        ("NVIDIA A10G", None),
        ("NVIDIA L40", None),
        ("NVIDIA T400 4GB", None),
    ],
)
def test_a_data_sheet_is_that_of_the_device(name: str, kind: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(rates, "_matrix_product", lambda: -1.0)
    found, source = rates._peak()
    assert found == (PEAKS[kind] if kind else -1.0) and ("data sheet" in source) == bool(kind)


def test_a_combined_store_is_counted_with_those_of_its_teachers(recipe: Recipe, tiny_bert: Path) -> None:
    two = [{"name": name, "model": str(tiny_bert)} for name in ("tiny", "other")]
    asked = recipe.model_dump() | {"teachers": two, "combine": "concatenate"}
    alone = scale(recipe, 10**6).rates
    both = scale(Recipe.build(asked), 10**6).rates
    assert len(both.parts) == 3 and both.parts[:2] == 2 * alone.parts
    fixed = 16 + 16
    assert both.vector_bytes - fixed * 3 == 4 * (alone.vector_bytes - fixed)


def test_scale_refuses_to_measure_a_paid_service(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    service = {"name": "paid", "api": {"url": "http://localhost:9", "model": "m"}}
    with pytest.raises(DistilvecError, match="teacher paid.*--dry-run"):
        scale(tiny_recipe(tmp_path, tiny_bert, sentences[:120], teachers=[service]), rows=1000)


@pytest.mark.parametrize(("training", "read"), [({"epochs": 2}, 2 * (3 * 60 + 40)), ({"max_steps": 10}, 160)])
def test_a_training_reads_the_texts_of_a_part_as_often_as_its_weight_says(
    training: dict[str, int], read: int, tmp_path: Path, tiny_bert: Path
) -> None:
    texts = [f"a text with the number {number}" for number in range(100)]
    parts = [{"path": texts[:60], "name": "often", "weight": 3}, {"path": texts[60:], "name": "once"}]
    given = tiny_recipe(tmp_path, tiny_bert, texts, corpus={"parts": parts}, training={"batch_size": 16, **training})
    several = [Part(texts[:60], "often", weight=3), Part(texts[60:], "once")]
    assert texts_read(given, read_corpus(several, tmp_path / "corpus", holdout=0)) == read


def test_forecast_counts_both_texts_of_a_pair(tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distilvec.choosing.scale.rates.SECONDS", 0.1)
    rows = [{"a": f"query {number}", "b": f"document {number}"} for number in range(900)]
    corpus = {"path": rows, "text": ["a", "b"]}
    training = {"max_steps": 10, "batch_size": 8}
    given = tiny_recipe(tmp_path, tiny_bert, rows, corpus=corpus, method={"name": "mnrl"}, training=training)
    assert texts_read(given, read_corpus(rows, tmp_path / "corpus", text=["a", "b"])) == 160
    seen: dict[str, float] = {}

    def quick(student: Any, method: Any, sample: Any, taught: Any, training: Any, optimizer: Any) -> Any:
        seen["batch"] = training["batch_size"]
        return type("Fitted", (), {"seconds": 1.0, "tokens": 1, "trained": 1, "heads": 0})()

    monkeypatch.setattr("distilvec.choosing.scale.rates.short_training", quick)
    monkeypatch.setattr("distilvec.choosing.scale.rates.PROBE_STEPS", 5)
    assert scale(given, 10**6).rates.training == 5 * 8 * 2
