"""Parts of the whole flow that no package sees alone: pooling, routers, languages, folders, damaged stores."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.jobs import Job
from tests.modules import nomic_moe

from distilvec.corpus import Corpus
from distilvec.errors import DistilvecError
from distilvec.flow.output import output_folder
from distilvec.flow.run import Run, run, train
from distilvec.judging.geometry import mixture_geometry
from distilvec.modules.moe_folder import open_moe
from distilvec.recipe import Recipe
from distilvec.store import SignalStore
from distilvec.students import load_student


@pytest.fixture(scope="module")
def bare(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformers folder without a word about pooling."""
    folder = tmp_path_factory.mktemp("bare")
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    model[0].model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def recipe(folder: Path, sentences: list[str], teacher: dict[str, Any], student: dict[str, Any]) -> Recipe:
    (folder / "texts.txt").write_text("".join(" ".join(text.split()[:8]) + "\n" for text in sentences[:60]))
    return Recipe.build(
        {
            "corpus": {"path": str(folder / "texts.txt"), "holdout": 0.0},
            "teachers": [{"name": "tiny", **teacher}],
            "student": student,
            "method": {"name": "talas", "anchored_layers": 1},
            "training": {"epochs": 1, "batch_size": 16, "use_cpu": True},
            "output": str(folder / "out"),
        }
    )


@pytest.mark.parametrize(
    ("teacher", "student", "found"),
    [
        (None, {"model": "bare"}, "mean"),
        (None, {"model": "bare", "pooling": "cls"}, "cls"),
        ("last", {"shrink": {"of": "tiny", "layers": 2}}, "lasttoken"),
        ("last", {"shrink": {"of": "tiny", "layers": 2}, "pooling": "cls"}, "cls"),
        ("last", {"shrink": {"of": "bare", "layers": 2}}, "mean"),
    ],
)
def test_the_students_pooling(
    tmp_path: Path, bare: Path, sentences: list[str], teacher: str | None, student: dict[str, Any], found: str
) -> None:
    named = json.loads(json.dumps(student).replace('"bare"', json.dumps(str(bare))))
    given = recipe(tmp_path, sentences, {"model": str(bare), "pooling": teacher}, named)
    made = Job(given).student()
    assert made[1].pooling_mode == found


def test_a_run_with_first_token_pooling_ships_it(
    tmp_path: Path, tiny_bert: Path, bare: Path, sentences: list[str]
) -> None:
    pooled = {"model": str(bare), "pooling": "cls"}
    folder = train(recipe(tmp_path, sentences, pooled, pooled))
    assert SentenceTransformer(str(folder), device="cpu")[1].pooling_mode == "cls"
    card = json.loads((tmp_path / "out/stores/tiny/store.json").read_text())
    assert "cls" in json.dumps(card)
    with pytest.raises(DistilvecError, match="/bert: .*mean.*pooling: cls"):
        train(recipe(tmp_path, sentences, pooled, {"model": str(tiny_bert), "pooling": "cls"}))


def test_another_teacher_of_the_same_name_moves_nothing(tmp_path: Path, bare: Path, sentences: list[str]) -> None:
    student = {"model": str(bare)}
    folder = train(recipe(tmp_path, sentences, {"model": str(bare)}, student))
    before = (tmp_path / "out/recipe.yaml").read_bytes()
    with pytest.raises(DistilvecError, match=r"stores/tiny: the store holds vectors of the teacher with fingerprint"):
        train(recipe(tmp_path, sentences, {"model": str(bare), "pooling": "cls"}, student))
    assert folder.is_dir() and not (tmp_path / "out/before-1").exists()
    assert (tmp_path / "out/recipe.yaml").read_bytes() == before


def test_the_report_has_the_tokenisation_of_each_language(
    tmp_path: Path, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    texts = [" ".join(text.split()[:8]) for text in sentences[:120]]
    rows = [{"text": text, "language": "plain"} for text in texts]
    rows += [{"text": codecs.encode(text, "rot13"), "language": "cipher"} for text in texts[:30]]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = Recipe.build(
        {
            "corpus": {"path": str(tmp_path / "texts.jsonl"), "domain": "language", "holdout": 0.3},
            "teachers": [{"name": "tiny", "model": str(tiny_model_folders["xlmr"])}],
            "student": {"shrink": {"of": "tiny", "layers": 1, "vocabulary": 200}},
            "method": {"name": "cosine"},
            "training": {"max_steps": 2, "batch_size": 8, "use_cpu": True},
            "judging": {"speed": False},
            "output": str(tmp_path / "out"),
        }
    )
    done = run(given)
    measured = done.record["tokenisation"].domains
    assert {row.domain for row in measured} == {"plain", "cipher"}
    assert measured[0].unchanged == min(row.unchanged for row in measured) < 1
    corpus = Corpus.open(tmp_path / "out/corpus")
    teacher = SentenceTransformer(str(tiny_model_folders["xlmr"]), device="cpu").tokenizer
    for row in measured:
        held = corpus.holdout_rows[corpus.domains[corpus.holdout_rows] == corpus.domain_names.index(row.domain)]
        pieces = [(done.student.tokenizer.tokenize(text), teacher.tokenize(text)) for text in corpus.texts(held)]
        assert row.texts == len(held)
        assert row.unchanged == pytest.approx(np.mean([ours == theirs for ours, theirs in pieces]))
        assert row.student >= row.teacher > 1
    assert "| cipher |" in (tmp_path / "out/report.md").read_text()


def test_another_language_is_learnt_from_the_teachers_own(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """The student reads the teacher's language in a cipher; equal lessons are no negatives of each other."""
    texts = [" ".join(text.split()[:8]) for text in sentences[:200]]
    lines = [{"plain": text, "cipher": codecs.encode(text, "rot13")} for text in dict.fromkeys(texts)]
    (tmp_path / "parallel.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = Recipe.build(
        {
            "corpus": {
                "path": str(tmp_path / "parallel.jsonl"),
                "text": ["plain", "cipher"],
                "teacher_text": "plain",
                "holdout": 0.2,
            },
            "teachers": [{"name": "tiny", "model": str(tiny_bert), "storage": "float32"}],
            "student": {"static": {"of": "tiny"}},
            "method": {"name": "distilcse"},
            "training": {"epochs": 8, "batch_size": 16, "use_cpu": True, "seed": 0},
            "optimizer": {"lr": 1e-2},
            "output": str(tmp_path / "out"),
        }
    )
    record = run(given).record
    scores = {
        model.name: model.scores["retrieval"].value for model in record["scores"].models if "retrieval" in model.scores
    }
    assert scores["student"] > scores["untrained student"] + 0.2, scores
    assert scores["student"] > scores[record["scores"].models[0].name] + 0.2, "the teacher does not know the cipher"


def test_a_run_started_before_a_key_existed_is_resumed(tmp_path: Path) -> None:
    """A newer release saves more keys; what they say by default is what the older one did."""

    data = {
        "corpus": {"path": "x.txt"},
        "teachers": [{"model": "t"}],
        "student": {"model": "s"},
        "output": str(tmp_path),
    }
    recipe = Recipe.build(data)
    saved = output_folder(recipe, resume=False) / "recipe.yaml"
    lines = saved.read_text().splitlines()
    older = [line for line in lines if not line.strip().startswith(("remember:", "mini_batch_size:", "compression:"))]
    assert len(older) == len(lines) - 3
    saved.write_text("\n".join(older) + "\n")
    output_folder(recipe, resume=True)
    assert "mini_batch_size" in saved.read_text()
    for content in ("\n".join(lines).replace("remember: 0.0", "remember: 1.0"), "- not a recipe\n", "a: [\n"):
        saved.write_text(content)
        with pytest.raises(DistilvecError, match=r"/recipe\.yaml: .*output"):
            output_folder(recipe, resume=True)


def test_a_run_with_paths_from_the_working_folder_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python by values, or by an earlier release; the saved recipe is loaded with whole paths."""

    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("one\n")
    data = {"corpus": {"path": "x.txt"}, "teachers": [{"model": "t"}], "student": {"model": "s"}, "output": "out"}
    saved = output_folder(Recipe.build(data), resume=False) / "recipe.yaml"
    output_folder(Recipe.build(data), resume=True)
    output_folder(Recipe.load(saved), resume=True)
    with pytest.raises(
        DistilvecError, match=r"^out/recipe\.yaml: .*another recipe \(training\.seed: 0 there, 1 here\)"
    ):
        output_folder(Recipe.build(data | {"training": {"seed": 1}}), resume=True)


def test_a_moved_run_is_resumed_by_its_own_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    monkeypatch.chdir(tmp_path)
    data = {"corpus": {"path": "x.txt"}, "teachers": [{"model": "t"}], "student": {"model": "s"}, "output": "out"}
    output_folder(Recipe.build(data), resume=False)
    Path("out").rename("moved")
    own = Path("moved/recipe.yaml")
    written = own.read_bytes()
    assert output_folder(Recipe.load(own, output="moved"), resume=True) == Path("moved")
    assert own.read_bytes() == written and not caplog.text
    for changes, resume in ([], False), (["training.seed=1"], True):
        with pytest.raises(DistilvecError, match="would replace the file"):
            output_folder(Recipe.load(own, changes, output="moved"), resume=resume)
    output_folder(Recipe.load(own), resume=True)
    assert "out holds no run to resume" in caplog.text


def test_keys_without_effect_on_the_result_may_change_before_resuming(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    first = recipe(tmp_path, sentences, {"model": str(tiny_bert)}, {"model": str(tiny_bert)})
    train(first)
    weights = (tmp_path / "out/student/model.safetensors").read_bytes()
    data = first.model_dump()
    data["teachers"][0] |= {"token_budget": 512}
    data["training"] |= {"save_every": 2, "logging_steps": 3}
    data["judging"] |= {"speed": False}
    done = run(Recipe.build(data), resume=True)
    assert (tmp_path / "out/student/model.safetensors").read_bytes() == weights and done.record["cost"].steps
    assert "token_budget: 512" in (tmp_path / "out/recipe.yaml").read_text()
    data["optimizer"] |= {"lr": 1.0}
    data["teachers"][0] |= {"prompt": "query: "}
    said = r"teachers\.0\.prompt: None there, query:  here; optimizer\.lr: .* there, 1\.0 here"
    with pytest.raises(DistilvecError, match=said):
        run(Recipe.build(data), resume=True)
    with pytest.raises(DistilvecError) as refused:
        run(Recipe.build(data | {"corpus": {"path": sentences}}), resume=True)
    assert len(refused.value.what) < 600, "texts are not told in full"


def test_the_router_opens_without_poolers(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    part = {"model": str(tiny_bert), "router": True}
    train(recipe(tmp_path, sentences, {"model": str(tiny_bert)}, part))
    both = SentenceTransformer(str(tmp_path / "out/router"), device="cpu")
    assert [name for name, _ in both.named_parameters() if "pooler" in name] == []
    assert both.encode_query(["a cat"]).shape == both.encode_document(["a cat"]).shape


@pytest.mark.parametrize(
    ("given", "before"),
    [
        ("passage: ", "passage: "),
        ("", ""),
        (None, ""),
        ("mine", "own: "),  # the default
        ("corpus", "text: "),
        ("query", ""),  # of queries alone, and so is the next
        ("s2p_query", ""),
    ],
)
def test_the_router_reads_documents_as_the_teacher_read(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], given: str | None, before: str
) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu", prompts={"mine": "own: ", "query": "q: "})
    model.prompts |= {"s2p_query": "find: ", "corpus": "text: "}
    model.default_prompt_name = "mine"
    # sentence-transformers gives every model an empty prompt for documents, and its `encode_document` puts that before
    # them, not the default.
    assert model.prompts["document"] == ""
    model.save(str(tmp_path / "teacher"))
    teacher = {"model": str(tmp_path / "teacher"), "prompt": given, "max_length": 30}
    train(recipe(tmp_path, sentences, teacher, {"model": str(tiny_bert), "router": True}))
    both = SentenceTransformer(str(tmp_path / "out/router"), device="cpu")
    model.max_seq_length = 30
    for text in ("a cat", "a cat that sleeps under the table on the warmest day of the year " * 3):
        expected = model.encode([before + text], prompt="")
        np.testing.assert_allclose(both.encode_document([text]), expected, atol=1e-5)


@pytest.mark.parametrize(
    "teacher",
    [
        {"call": "tests.flow.test_run:recipe"},
        {"api": {"url": "http://localhost:1/v1", "model": "x"}},
        {"model": "x", "causal": False},
    ],
)
def test_a_router_without_a_model_for_its_documents_is_refused_at_once(
    tmp_path: Path, sentences: list[str], teacher: dict[str, Any]
) -> None:
    with pytest.raises(DistilvecError, match=r"student\.router: a router holds .*Leave it out"):
        recipe(tmp_path, sentences, teacher, {"model": "x", "router": True})


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny folder as nomic-embed-text-v2-moe is published."""
    return nomic_moe.write(tmp_path_factory.mktemp("nomic") / "published")


def whole_run(folder: Path, sentences: list[str], teacher: Path, student: dict[str, Any]) -> Run:
    """A run with held-out texts, by cosine."""
    given = recipe(folder, sentences, {"model": str(teacher), "storage": "float32"}, student).model_dump()
    given["corpus"]["holdout"] = 0.4
    return run(Recipe.build(given | {"method": {"name": "cosine"}}))


def test_a_published_mixture_of_experts_teaches(
    tmp_path: Path, published: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    done = whole_run(tmp_path, sentences, published, {"model": str(tiny_bert)})
    corpus = Corpus.open(tmp_path / "out/corpus")
    store = SignalStore.open(tmp_path / "out/stores/tiny")
    expected = open_moe(published, device="cpu").encode(corpus.texts())
    np.testing.assert_allclose(store.read(store.rows(corpus.keys)), expected, atol=1e-5)
    untrained = load_student(tiny_bert, device="cpu").state_dict()
    assert any(not torch.equal(value, untrained[name]) for name, value in done.student.state_dict().items())
    facts = done.record["mixtures"]
    assert {each.model for each in facts.layers} == {"tiny"} and facts.texts == len(corpus.holdout_rows) >= 20
    geometry = mixture_geometry(open_moe(published, device="cpu"), corpus.texts(corpus.holdout_rows))
    assert [(each.layer, each.load, each.angle) for each in facts.layers] == [
        (each.layer, pytest.approx(each.load), pytest.approx(each.angle.median)) for each in geometry[1:]
    ]
    assert [each.layer for each in facts.layers] == [2, 4]
    page = (tmp_path / "out/report.html").read_text()
    assert "Inside the mixtures of experts" in page and "tiny, layer 4" in page


def test_a_published_mixture_of_experts_learns(
    tmp_path: Path, published: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    student = {"model": str(published), "router_balance": 0.5, "aggregation": "sba"}
    done = whole_run(tmp_path, sentences, tiny_bert, student)
    before, after = open_moe(published, device="cpu").state_dict(), done.student.state_dict()
    assert before.keys() == after.keys()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert {f"0.model.encoder.layers.1.mlp.{part}" for part in ("router.layer.weight", "experts.mlp.w1")} <= moved
    assert any("term/router_balance" in line for line in done.record["training"].log)
    again = load_student(tmp_path / "out/student", device="cpu")
    assert again[0].model.config.aggregation == "sba"
    assert np.array_equal(again.encode(sentences[:5]), done.student.encode(sentences[:5]))
    assert [(each.model, each.layer) for each in done.record["mixtures"].layers] == [("student", 2), ("student", 4)]


def test_a_folder_that_is_not_a_student_is_refused_before_teaching(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    (tmp_path / "out/student").mkdir(parents=True)
    (tmp_path / "out/student/notes.txt").write_text("mine")
    with pytest.raises(DistilvecError, match="/out: .*: student\\. .*-o"):
        train(recipe(tmp_path, sentences, {"model": str(tiny_bert)}, {"model": str(tiny_bert)}))
    assert not (tmp_path / "out/stores").exists()


def test_a_run_does_not_learn_from_a_damaged_store(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = {"model": str(tiny_bert)}
    first = recipe(tmp_path, sentences, model, model)
    train(first)
    part = next((tmp_path / "out/stores/tiny").glob("sentence-*.arrow"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 0x40
    part.write_bytes(content)
    caplog.clear()
    train(first.model_copy(update={"output": str(tmp_path / "again"), "cache": str(tmp_path / "out")}))
    assert "is set aside: the checksum does not agree" in caplog.text
    assert part.with_suffix(".arrow.bad").exists()
    weights = [(tmp_path / name / "student/model.safetensors").read_bytes() for name in ("out", "again")]
    assert weights[0] == weights[1], "what was damaged is taught again"


def test_a_method_on_layers_and_a_table_are_refused_at_once(
    tmp_path: Path, tiny_bert: Path, sentences: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distilvec.flow.start.make_student", lambda *_: pytest.fail("the table was made first"))
    model = {"model": str(tiny_bert)}
    with pytest.raises(DistilvecError, match="^a static student: talas .*lasd_weight: 0 and anchored_layers: 1"):
        train(recipe(tmp_path, sentences, model, {"static": {"of": "tiny"}}))


def test_few_held_out_items_are_still_compared_or_said_to_be_too_few(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    model = {"model": str(tiny_bert)}
    given = recipe(tmp_path, sentences, model, model).model_dump()
    given["corpus"]["holdout"] = 0.2
    given["training"]["batch_size"] = 32
    run(Recipe.build(given | {"method": {"name": "gaussian"}}))
    page = (tmp_path / "out/report.md").read_text()
    assert "Each teacher" in page and "held-out items are too few" in page
    assert "Nothing says how good the student is" in page
