"""Several sources as one corpus: domains, weights, prompts, and the student that is shipped with them."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from sentence_transformers import SentenceTransformer
from tests import english

import distilvec.recipe.from_python
from distilvec.choosing.dry_run import plan
from distilvec.corpus import Corpus, Part, read_corpus
from distilvec.corpus.keys import join_pair
from distilvec.errors import DataError, DistilvecError
from distilvec.flow.run import run
from distilvec.flow.score import QueryDocuments
from distilvec.judging import CachedEncoder
from distilvec.judging.automatic import automatic_tasks
from distilvec.mining.outcome import texts_at
from distilvec.recipe import Recipe
from distilvec.scorers.base import text_pair_keys
from distilvec.training.samplers import BucketedBatches


@pytest.fixture()
def files(tmp_path: Path) -> Path:
    """Ten questions, and ninety answers in another column of another kind of file."""
    (tmp_path / "questions.txt").write_text("".join(f"who is number {row}\n" for row in range(10)))
    rows = ({"body": f"the answer is that number {row} is here"} for row in range(90))
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def parts(folder: Path, **questions: Any) -> list[Part]:
    asked = Part(str(folder / "questions.txt"), **{"name": "query", "prompt": "query: ", "weight": 2.0, **questions})
    return [asked, Part(str(folder / "answers.jsonl"), text="body", weight=0.5)]


def by_domain(corpus: Corpus) -> dict[str, list[str]]:
    assert corpus.domains is not None and corpus.domain_names is not None
    named = [corpus.domain_names[code] for code in corpus.domains]
    return {name: [text for text, of in zip(corpus.texts(), named, strict=True) if of == name] for name in set(named)}


def test_each_part_is_a_domain_with_its_prompt_and_weight(files: Path) -> None:
    corpus = read_corpus(parts(files), files / "corpus", holdout=0.0)
    found = by_domain(corpus)
    assert found["query"] == [f"query: who is number {row}" for row in range(10)]
    assert found["answers"] == [f"the answer is that number {row} is here" for row in range(90)]
    assert corpus.prompts == {"query": "query: ", "answers": ""}
    assert corpus.weights is not None and corpus.domain_names == ["answers", "query"]
    assert corpus.weights.tolist() == [0.5, 2.0]


def test_equal_parts_are_read_once_and_changed_ones_again(files: Path) -> None:
    first = read_corpus(parts(files), files / "corpus")
    manifest = (files / "corpus/corpus.json").stat().st_mtime_ns
    assert read_corpus(parts(files), files / "corpus").fingerprint == first.fingerprint
    assert (files / "corpus/corpus.json").stat().st_mtime_ns == manifest
    other = read_corpus(parts(files, weight=3.0), files / "corpus")
    assert other.fingerprint == first.fingerprint  # the same texts, so the same vectors
    assert other.weights is not None and other.weights.tolist() == [0.5, 3.0]
    assert read_corpus(parts(files, prompt="q: "), files / "corpus").fingerprint != first.fingerprint


def test_which_part_a_text_is_of_is_no_task(files: Path) -> None:
    corpus = read_corpus(parts(files), files / "corpus", holdout=0.5)
    assert automatic_tasks(corpus) == []
    corpus.parted = False
    assert [task.name for task in automatic_tasks(corpus)] == ["domain"]


def test_a_limit_is_of_its_part(files: Path) -> None:
    assert {name: len(each) for name, each in by_domain(read_corpus(parts(files, limit=3), files / "c")).items()} == {
        "query": 3,
        "answers": 90,
    }


def test_pairs_have_a_prompt_for_each_side(tmp_path: Path) -> None:
    rows = [{"q": f"who is {row}", "a": f"it is number {row}"} for row in range(8)]
    others = [{"title": f"of {row}", "text": f"a page about {row}"} for row in range(8)]
    (tmp_path / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "wiki.jsonl").write_text("".join(json.dumps(row) + "\n" for row in others))
    both = ["q: ", "d: "]
    given = [
        Part(str(tmp_path / "faq.jsonl"), prompt=both),
        Part(str(tmp_path / "wiki.jsonl"), text=["title", "text"], prompt=both),
    ]
    corpus = read_corpus(given, tmp_path / "corpus", text=["q", "a"], holdout=0.0)
    assert corpus.texts([0, 1]) == ["q: who is 0", "d: it is number 0"]
    assert corpus.texts([16, 17]) == ["q: of 0", "d: a page about 0"]
    assert corpus.prompts == {"query": "q: ", "document": "d: "}
    assert corpus.groups is not None and len(set(corpus.groups.tolist())) == 16
    given[1] = Part(str(tmp_path / "wiki.jsonl"), text=["title", "text"], prompt="other: ")
    with pytest.raises(DistilvecError, match='"q: " and "other: " are both to be the prompt of query'):
        read_corpus(given, tmp_path / "corpus", text=["q", "a"])


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"name": "answers"}, {}, 'two parts are called "answers"'),
        ({"text": ["a", "b"]}, {}, "query has 2 text columns, and the corpus has 1"),
        ({"prompt": ["a", "b"]}, {}, "query has 2 prompts and 1 text columns"),
        ({}, {"domain": "field"}, r"Leave domain, limit and revision .*out"),
        ({}, {"limit": 3}, r"Leave domain, limit and revision .*out"),
        ({"name": " a name "}, {}, "' a name ' cannot be the name of a part"),
        ({"name": ""}, {}, "'' cannot be the name of a part"),
    ],
)
def test_parts_that_do_not_go_together(files: Path, change: Any, options: Any, message: str) -> None:
    with pytest.raises(DistilvecError, match=message):
        read_corpus(parts(files, **change), files / "corpus", **options)


def test_a_part_without_rows_or_column_is_named(files: Path) -> None:
    (files / "questions.txt").write_text("")
    with pytest.raises(DataError, match=r"questions\.txt: part query has no rows"):
        read_corpus(parts(files), files / "corpus")
    with pytest.raises(DataError, match=r'answers\.jsonl.*no column "text", .*body|answers\.jsonl.*"body"'):
        read_corpus([Part(str(files / "answers.jsonl"))], files / "corpus")


def test_a_part_of_which_nothing_is_kept_is_named(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    again = Part(str(files / "questions.txt"), name="again", prompt="query: ")
    read_corpus([*parts(files), again], files / "corpus")
    assert "no text of part again is kept" in caplog.text


# prompts


def test_what_is_made_of_texts_begins_with_their_prompt(files: Path) -> None:
    corpus = read_corpus(parts(files, prompt=" query:  "), files / "corpus", holdout=0.0, made=3)
    assert corpus.audit.made and corpus.prompts["query"] == "query:  "
    asked = by_domain(corpus)["query"]
    assert len(asked) > 10 and all(text.startswith("query:  ") and text.count("query") == 1 for text in asked)


def test_the_teacher_reads_the_prompt_before_its_own_text(files: Path) -> None:
    rows = [{"de": f"  Haus {row}", "en": f"house {row}"} for row in range(9)]
    (files / "both.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [Part(str(files / "both.jsonl"), prompt="query: ")]
    corpus = read_corpus(given, files / "corpus", text="de", teacher_text="en")
    assert (corpus.texts([0]), corpus.teacher_texts([0])) == (["query: Haus 0"], ["query: house 0"])
    corpus = read_corpus(given, files / "corpus", text=["de", "en"], teacher_text="en")
    assert corpus.teacher_texts([0, 1]) == ["query: house 0"] * 2
    given = [Part(str(files / "both.jsonl"), prompt=["a: ", "b: "])]
    with pytest.raises(DistilvecError, match=r"corpus\.teacher_text: the teacher reads one text for all columns"):
        read_corpus(given, files / "corpus", text=["de", "en"], teacher_text="en")


def test_texts_of_tasks_are_found_behind_prompts(files: Path) -> None:
    corpus = read_corpus(parts(files), files / "corpus", holdout=0.0)
    assert corpus.overlap(["Who is number 3", "the answer is that number 5 is here", "query: other"]) == 2


@pytest.fixture()
def prompted_pairs(tmp_path: Path) -> list[Part]:
    rows = [{"q": f"who is {row}", "a": f"it is number {row}", "n": f"it is not {row}"} for row in range(60)]
    (tmp_path / "faq.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [Part(str(tmp_path / "faq.jsonl"), prompt=["query: ", "passage: ", "passage: "])]


def test_held_out_pairs_are_read_with_one_prompt(prompted_pairs: list[Part], tmp_path: Path) -> None:
    corpus = read_corpus(prompted_pairs, tmp_path / "corpus", text=["q", "a", "n"], holdout=0.5)
    (task,) = automatic_tasks(corpus)
    read: list[str] = []

    class Student:
        def encode(self, texts: list[str]) -> np.ndarray:
            read.extend(texts)
            return np.random.default_rng(0).normal(size=(len(texts), 4))

        def encode_query(self, texts: list[str]) -> np.ndarray:
            return self.encode([f"query: {text}" for text in texts])

    task.score(CachedEncoder(Student()))
    assert read and all(text.count("query: ") + text.count("passage: ") == 1 for text in read)


def test_no_held_out_text_is_trained_on_behind_another_prompt(tmp_path: Path) -> None:
    texts = english.sentences(400)
    rows = ({"q": one, "d": other} for one, other in pairwise(texts))
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "single.txt").write_text("\n".join(texts))
    found = []
    for prompt in ("", ["query: ", "passage: "]):
        pairs = [Part(str(tmp_path / "pairs.jsonl"), prompt=prompt)]
        found.append(read_corpus(pairs, tmp_path / f"read-{len(prompt)}", text=["q", "d"], holdout=0.2))
    assert np.array_equal(found[0].holdout_rows, found[1].holdout_rows) and found[1].audit.shared > 20
    assert found[0].audit.shared == found[1].audit.shared
    twice = [Part(str(tmp_path / "single.txt"), name=name, prompt=f"{name}: ") for name in ("query", "document")]
    found.append(read_corpus(twice, tmp_path / "twice", holdout=0.2))
    for corpus in found:
        held = corpus.bare(corpus.holdout_rows)
        assert len(held) > 5 and not {*held} & {*corpus.bare(corpus.train_rows)}
        assert not (corpus.folder / "bare_keys.bin").exists()


def test_scorers_and_mined_files_have_no_prompts(prompted_pairs: list[Part], tmp_path: Path) -> None:
    corpus = read_corpus(prompted_pairs, tmp_path / "corpus", text=["q", "a", "n"], holdout=0.0)
    pairs = QueryDocuments.of(corpus)
    assert list(pairs.texts[:2]) == [join_pair("who is 0", "it is number 0"), join_pair("who is 0", "it is not 0")]
    assert pairs.keys[:1].tolist() == text_pair_keys([("who is 0", "it is number 0")]).tolist()
    assert texts_at(corpus, None, np.arange(3)) == ["who is 0", "it is number 0", "it is not 0"]


# weights


def epoch(sampler: BucketedBatches, number: int) -> list[list[int]]:
    sampler.set_epoch(number)
    return list(sampler)


def test_an_epoch_reads_rows_as_often_as_they_weigh() -> None:
    weights = np.array([2.0] * 20 + [0.5] * 40 + [1.5] * 10)
    sampler = BucketedBatches(np.arange(70), 8, seed=3, weights=weights)
    assert sum(map(len, epoch(sampler, 0))) == 40 + 20 + 15
    assert len(sampler) == len(epoch(sampler, 0)) == 10
    counts = [Counter(row for batch in epoch(sampler, number) for row in batch) for number in range(2)]
    for count in counts:
        assert {count[row] for row in range(20)} == {2}
        assert {count[row] for row in range(20, 60)} == {0, 1}
        assert sorted(count[row] for row in range(60, 70)) == [1] * 5 + [2] * 5
    assert {row for row in range(20, 60) if counts[0][row]} != {row for row in range(20, 60) if counts[1][row]}
    assert epoch(BucketedBatches(np.arange(70), 8, seed=3, weights=weights), 1) == epoch(sampler, 1)


def test_weights_split_over_processes_and_resumed() -> None:
    weights = np.array([2.0] * 20 + [0.5] * 40)
    whole = epoch(BucketedBatches(np.arange(60), 8, seed=1, weights=weights), 2)
    halves = [
        epoch(BucketedBatches(np.arange(60), 8, seed=1, weights=weights, rank=rank, world=2), 2) for rank in (0, 1)
    ]
    assert [first + second for first, second in zip(*halves, strict=True)] == whole
    sampler = BucketedBatches(np.arange(60), 8, seed=1, weights=weights)
    sampler.set_epoch(2, skip=3)
    assert list(sampler) == whole[3:]


# the run


def made(folder: Path, teacher: Path, student: Path | None = None, **teachers: Any) -> dict[str, Any]:
    return {
        "corpus": [
            {"path": str(folder / "questions.txt"), "name": "query", "prompt": "query: ", "weight": 2},
            {"path": str(folder / "answers.jsonl"), "name": "passage", "text": "body", "prompt": "passage: "},
        ],
        "teachers": [{"name": "tiny", "model": str(teacher), **teachers}],
        "student": {"model": str(student or teacher)},
        "method": {"name": "cosine"},
        "training": {"epochs": 2, "batch_size": 8, "use_cpu": True},
        "output": str(folder / "out"),
    }


def test_a_run_reads_its_parts_and_ships_their_prompts(files: Path, tiny_bert: Path) -> None:
    recipe = Recipe.build(made(files, tiny_bert))
    run(recipe)
    student = SentenceTransformer(str(files / "out/student"), device="cpu")
    assert {key: student.prompts[key] for key in ("query", "passage", "document")} == {
        "query": "query: ",
        "passage": "passage: ",
        "document": "passage: ",
    }
    np.testing.assert_allclose(student.encode_query(["a cat"]), student.encode(["query: a cat"]), atol=1e-6)
    np.testing.assert_allclose(student.encode_document(["a cat"]), student.encode(["passage: a cat"]), atol=1e-6)
    corpus = Corpus.open(files / "out/corpus")
    trained = np.asarray(corpus.domains)[corpus.train_rows]
    assert corpus.domain_names is not None
    of = {name: int((trained == code).sum()) for code, name in enumerate(corpus.domain_names)}
    assert "query, passage" in (files / "out/report.md").read_text()
    log = [json.loads(line) for line in (files / "out/run.jsonl").read_text().splitlines()]
    steps = max(each["step"] for each in log if "step" in each)
    assert steps == 2 * -(-(2 * of["query"] + of["passage"]) // 8)
    assert corpus.epoch_items(np.asarray(corpus.train_rows)) == 2 * of["query"] + of["passage"]
    assert f"{steps} steps" in dict(plan(recipe).lines)["training"]
    assert Recipe.load(files / "out/recipe.yaml").corpus == recipe.corpus


def test_weights_that_leave_nothing_to_read_are_refused(files: Path, tiny_bert: Path) -> None:
    given = made(files, tiny_bert)
    for part in given["corpus"]:
        part["weight"] = 0.001
    with pytest.raises(DistilvecError, match=r"corpus\.parts: with these weights an epoch reads none of \d+ items"):
        run(Recipe.build(given))
    for part in given["corpus"]:
        part["weight"] = 0.1
    given["training"] |= {"batch_size": 64, "dataloader_drop_last": True}
    with pytest.raises(DistilvecError, match=r"dataloader_drop_last: \d items are no whole batch of 64"):
        run(Recipe.build(given))


def test_a_prompt_on_both_sides_is_refused(files: Path, tiny_bert: Path) -> None:
    with pytest.raises(DistilvecError, match=r'teacher tiny: teacher and corpus both put a prompt .*prompt: ""'):
        run(Recipe.build(made(files, tiny_bert, prompt="read: ")))


def test_a_student_whose_pooling_leaves_prompts_out_is_refused(files: Path, tiny_bert: Path) -> None:
    model = SentenceTransformer(str(tiny_bert), device="cpu")
    model[1].include_prompt = False
    model.save(str(files / "student"))
    with pytest.raises(DistilvecError, match=r"corpus\.parts: the student's pooling leaves prompts out"):
        run(Recipe.build(made(files, tiny_bert, files / "student")))


def test_prompts_that_a_student_would_not_read_later_are_refused(files: Path, tiny_bert: Path) -> None:
    (files / "labelled.jsonl").write_text(
        "".join(f'{{"text": "number {row}", "label": "{"ab"[row % 2]}"}}\n' for row in range(60))
    )
    labelled = [{"path": str(files / "labelled.jsonl"), "prompt": "query: "}]
    given = {**made(files, tiny_bert), "corpus": {"parts": labelled, "label": "label"}}
    with pytest.raises(DistilvecError, match=r"corpus\.parts: a task's head is asked about texts without prompts"):
        run(Recipe.build({**given, "task": {"kind": "classification"}}))
    corpus = {"parts": [{"path": "pairs.jsonl", "prompt": "query: "}], "text": ["q", "a", "n"]}
    ranker = {"student": {"cross_encoder": True, "model": str(tiny_bert)}, "scorers": [{"call": "one:two"}]}
    with pytest.raises(DistilvecError, match=r"corpus\.parts"):
        run(Recipe.build({"corpus": corpus, "output": str(files / "out"), **ranker}))


def test_documents_of_a_router_have_the_prompt_that_the_teacher_read(files: Path, tiny_bert: Path) -> None:
    given = made(files, tiny_bert)
    given["student"] |= {"space": "teacher", "router": True}
    given["training"]["epochs"] = 1
    run(Recipe.build(given))
    both = SentenceTransformer(str(files / "out/router"), device="cpu")
    assert (both.prompts["query"], both.prompts["document"]) == ("query: ", "passage: ")


def test_a_recipe_names_its_source_once(files: Path, tiny_bert: Path) -> None:
    given = made(files, tiny_bert)
    for corpus in ({}, {"path": "a.txt", "parts": given["corpus"]}):
        with pytest.raises(DistilvecError, match="corpus"):
            Recipe.build({**given, "corpus": corpus})
    with pytest.raises(DistilvecError, match="weigth.*weight"):
        Recipe.build({**given, "corpus": [{"path": "a.txt", "weigth": 2}]})


def test_paths_of_parts_are_beside_their_recipe(files: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "recipe.yaml").write_text("corpus: [{path: questions.txt}, {path: answers.jsonl, text: body}]\n")
    monkeypatch.chdir("/")
    corpus = Recipe.load(files / "recipe.yaml").corpus
    assert corpus is not None and [part.path for part in corpus.parts] == [
        str(files / "questions.txt"),
        str(files / "answers.jsonl"),
    ]


def test_parts_given_in_python(files: Path, tiny_bert: Path) -> None:
    corpus = {"parts": [{"path": str(files / "questions.txt"), "weight": 2}, [f"a text of {row}" for row in range(9)]]}
    made_of = distilvec.recipe.from_python.corpus_section(corpus, files / "out" / "given")
    section = Recipe.build({**made(files, tiny_bert), "corpus": made_of}).corpus
    assert section is not None
    found = by_domain(read_corpus(section.source, files / "corpus", holdout=0.0))
    assert {name: len(each) for name, each in found.items()} == {"questions": 10, "part-2": 9}


def test_rows_of_a_part_have_the_columns_of_the_corpus(tmp_path: Path) -> None:
    pairs = [(f"who is {row}", f"it is {row}") for row in range(9)]
    frame = pandas.DataFrame([(f"what is {row}", f"that is {row}") for row in range(9)], columns=["q", "a"])
    given = {"parts": [pairs, {"path": frame, "prompt": "b: "}], "text": ["q", "a"]}
    section = distilvec.recipe.from_python.corpus_section(given, tmp_path / "out" / "given")
    assert [sorted(part) for part in section["parts"]] == [["path"], ["path", "prompt"]]
    corpus = Recipe.build({"corpus": {**section, "parts": section["parts"][:1]}, "output": "out"}).corpus
    assert corpus is not None
    assert read_corpus(corpus.source, tmp_path / "corpus", text=["q", "a"]).texts([0, 1]) == ["who is 0", "it is 0"]
    with pytest.raises(DistilvecError, match=r'corpus: .*several corpora.*corpus=\{"parts": \[\.\.\.\]\}'):
        distilvec.recipe.from_python.corpus_section([{"path": "a.txt", "weight": 2}], tmp_path / "out" / "given")


def test_a_frame_in_a_recipe_is_its_rows() -> None:
    frame = pandas.DataFrame({"body": ["one text", "another"]})
    for given in ({"path": frame, "text": "body"}, {"parts": [{"path": frame, "text": "body"}]}):
        corpus = Recipe.build({"corpus": given, "output": "out"}).corpus
        assert corpus is not None
        assert (corpus.parts or [corpus])[0].path == [{"body": "one text"}, {"body": "another"}]
