"""The real teacher with a task head: what it answers, what it refuses, and the files that it is judged by."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sentence_transformers import SentenceTransformer
from tests.tasks import labelled

import distilvec
from distilvec.corpus import join_pair
from distilvec.errors import DataError, DistilvecError
from distilvec.flow.finetune import finetune, finetune_scores
from distilvec.flow.judge import predictor_of
from distilvec.modules.cifar_resnet import CifarResNet, image_model
from distilvec.modules.kernel_head import GaussianKernels
from distilvec.modules.task_head import TaskHead
from distilvec.students import StudentTap, load_student, ship
from distilvec.tasks.examples import Examples, read_examples
from distilvec.tasks.predictor import Predictor
from distilvec.teachers import load_teacher
from distilvec.teachers.cards import licence_of

PAIRS = [("A man sings.", "A person sings loudly, on and on."), ("Why?", "Because."), ("A cat.", "A dog.")]


@pytest.fixture(scope="module")
def model(real_teacher_folder: Path) -> SentenceTransformer:
    return load_student(real_teacher_folder, device="cpu").eval()


def test_it_reads_joint_pairs_before_the_final_normalize(model: SentenceTransformer) -> None:
    head = TaskHead(384, labels=["no", "yes"], encoding="joint")
    predictor = Predictor(model, head, batch_size=2)
    with torch.no_grad():
        expected = []
        for pair in PAIRS:
            features = model.preprocess([pair])
            for module in list(model.children())[:2]:
                features = module(features)
            expected.append(head(features["sentence_embedding"])[0])
    found = predictor.logits(PAIRS)
    np.testing.assert_allclose(found, torch.stack(expected).numpy(), atol=1e-5)
    np.testing.assert_allclose(predictor.logits([join_pair(*pair) for pair in PAIRS]), found, atol=1e-6)
    assert predictor.predict(PAIRS) == [["no", "yes"][code] for code in found.argmax(-1)]
    assert predictor.predict([]) == [] and predictor.probabilities([]).shape == (0, 2)


def test_separate_pairs_give_the_cosine_in_units_of_the_scores(model: SentenceTransformer) -> None:
    predictor = Predictor(model, TaskHead(384, "regression", encoding="separate", shift=0.0, scale=5.0))
    first, second = (predictor.encode([pair[side] for pair in PAIRS]) for side in (0, 1))
    np.testing.assert_allclose(predictor.predict(PAIRS), 5 * (first * second).sum(-1), atol=1e-4)


def test_answers_are_without_dropout_and_training_keeps_it(model: SentenceTransformer) -> None:
    head = TaskHead(384, labels=["no", "yes"], dropout=0.5).train()
    answers = [Predictor(model, head).logits(["a text", "another"]) for _ in range(2)]
    assert np.array_equal(*answers) and head.training


def test_the_default_prompt_applies(tiny_bert: Path) -> None:
    head = TaskHead(32, labels=["a", "b"])
    plain, prompted = (load_student(tiny_bert, device="cpu").eval() for _ in range(2))
    prompted.prompts["mine"] = "query: "
    prompted.default_prompt_name = "mine"
    expected = Predictor(plain, head).logits(["query: what is it"])
    np.testing.assert_allclose(Predictor(prompted, head).logits(["what is it"]), expected, atol=1e-6)


def test_a_student_that_ships_with_its_head_is_opened_again(tiny_bert: Path, tmp_path: Path) -> None:
    student, head = load_student(tiny_bert, device="cpu").eval(), TaskHead(32, labels=["a", "b", "c"])
    ship(student, tmp_path / "student")
    with pytest.raises(DataError, match="/student: .*`distilvec finetune`"):
        Predictor.load(tmp_path / "student")
    head.save(tmp_path / "student")
    texts = ["one text", "another, longer text"]
    found = Predictor.load(tmp_path / "student", device="cpu")
    np.testing.assert_allclose(found.logits(texts), Predictor(student, head).logits(texts), atol=1e-6)
    TaskHead(48, labels=["a", "b"]).save(tmp_path / "student")
    with pytest.raises(DataError, match=r"width 48\b.*\b32\b"):
        Predictor.load(tmp_path / "student", device="cpu")


def test_a_loaded_student_answers(tiny_bert: Path, tmp_path: Path) -> None:
    student = load_student(tiny_bert, device="cpu").eval()
    ship(student, tmp_path / "student")
    assert not hasattr(distilvec.load(tmp_path / "student"), "predict")
    TaskHead(32, labels=["a", "b", "c"]).save(tmp_path / "student")
    texts = ["one text", "another, longer text", "why?"]
    expected = Predictor.load(tmp_path / "student")
    found = distilvec.load(tmp_path / "student")
    assert found.predict(texts) == expected.predict(texts) and found.labels == ["a", "b", "c"]
    np.testing.assert_allclose(found.encode(texts), expected.encode(texts), atol=1e-6)
    with pytest.raises(DistilvecError, match=r"single .*\binput 0 is \('a', 'pair'\)"):
        found.predict([("a", "pair")])
    found.save(str(tmp_path / "again"))  # saved again it is a student like any other
    assert not (tmp_path / "again" / "task").exists()
    assert type(distilvec.load(tmp_path / "again")) is SentenceTransformer
    assert pickle.loads(pickle.dumps(found)).predict(texts) == expected.predict(texts)


def test_the_folder_of_a_run_names_its_student(tiny_bert: Path, tmp_path: Path) -> None:
    ship(load_student(tiny_bert, device="cpu").eval(), tmp_path / "run" / "student")
    for open_it in (distilvec.load, Predictor.load):
        with pytest.raises(DistilvecError, match="/run: .*/run/student"):
            open_it(tmp_path / "run")
        with pytest.raises(DistilvecError, match="/nowhere: "):
            open_it(tmp_path / "nowhere")
    with pytest.raises(DataError, match="/run/student: .*`distilvec finetune`"):
        Predictor.load(tmp_path / "run" / "student")


def test_a_student_may_answer_and_explain(tiny_bert: Path, tmp_path: Path) -> None:
    ship(load_student(tiny_bert, device="cpu").eval(), tmp_path / "student")
    TaskHead(32, "regression").save(tmp_path / "student")
    GaussianKernels(32, ["teacher"], [4]).save(tmp_path / "student")
    found = distilvec.load(tmp_path / "student")
    assert found.labels is None and isinstance(found.predict(["a text"])[0], float)
    assert found.explain("a text")[0].keys() == {"teacher"}


def test_inputs_of_the_wrong_kind_are_refused(model: SentenceTransformer) -> None:
    single = Predictor(model, TaskHead(384, labels=["a", "b"]))
    with pytest.raises(DistilvecError, match="'a text'"):
        single.predict("a text")
    for wrong in (("a", "pair"), None, 3.0, {"text": "a"}, ("a",), ["a"]):
        with pytest.raises(DistilvecError, match=r"single .*\binput 1\b"):
            single.predict(["a text", wrong])
    pairs = Predictor(model, TaskHead(384, labels=["a", "b"], encoding="joint"))
    for wrong in ("a text", {"text1": "a", "text2": "b"}, ("a", None), ("a", 3), ("a", "b", "c"), None, float("nan")):
        with pytest.raises(DistilvecError, match=r"pairs .*\binput 1\b"):
            pairs.predict([("a", "pair"), wrong])
    for table in ({"text": ["a"]}, None, pd.DataFrame({"text": ["a"]})):
        with pytest.raises(DistilvecError, match=rf"\b{type(table).__name__}\b.*list\(zip\("):
            single.predict(table)
    texts = ["one text", "another"]
    assert single.predict(pd.Series(texts)) == single.predict(np.array(texts)) == single.predict(texts)
    assert model.training is False


def test_the_real_teacher_is_tuned_and_keeps_its_licence(real_teacher_folder: Path, tmp_path: Path) -> None:
    train = labelled.write(tmp_path / "train.jsonl", labelled.texts(96))
    test = labelled.write(tmp_path / "test.jsonl", labelled.texts(30, seed=1))
    out = finetune(
        real_teacher_folder, train, tmp_path / "out", test=test, max_length=16,
        training={"epochs": 2}, optimizer={"lr": 1e-4, "heads_lr": 1e-2},
    )  # fmt: skip
    assert finetune_scores(out)["test"]["accuracy"] > 0.8
    assert licence_of(out) == "apache-2.0"
    own = SentenceTransformer(str(out), device="cpu").encode(["a text"])
    assert np.linalg.norm(own) == pytest.approx(1, abs=1e-5)  # its Normalize is still there


def test_examples_are_read_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "test.csv"
    file.write_text("text1,text2,score\na,b,4.5\na,b,4.5\nc,,1\nd,e,x\n", encoding="utf-8")
    found = read_examples(file, ["text1", "text2"], "score")
    assert found.inputs == [("a", "b"), ("a", "b"), ("d", "e")]  # repeated rows count twice
    assert found.left_out == {"empty": 1}
    head = TaskHead(4, "regression")
    with pytest.raises(DataError, match=r"/test\.csv: .*'x'"):
        found.targets(head)
    assert Examples(["a", "b"], ["4.5", 3], "here").targets(head).tolist() == [4.5, 3.0]
    with pytest.raises(DataError, match=r"^here: .*item 0 is inf\b"):
        Examples(["a"], ["inf"], "here").targets(head)
    with pytest.raises(DataError, match=r"^the items given: .*\(1 empty\)"):
        read_examples([{"text": "", "label": 1}], "text", "label")
    with pytest.raises(DistilvecError, match=r"^text: .*\b3\b"):
        read_examples(file, ["a", "b", "c"], "score")


def test_finetuned_teacher_is_scored_with_its_prompt(tiny_bert: Path) -> None:
    teacher = load_teacher(model=tiny_bert, prompt="query: ", device="cpu")
    model: Any = teacher.model  # type: ignore[attr-defined]
    head = TaskHead(model.get_embedding_dimension(), labels=["a", "b"])
    texts = ["one text", "another one"]
    plain = predictor_of(SimpleNamespace(model=model, head=head, prompt="", wake=lambda: None))  # type: ignore[arg-type]
    expected = plain.logits([f"query: {text}" for text in texts])
    teacher.head = head
    np.testing.assert_allclose(predictor_of(teacher).logits(texts), expected, atol=1e-5)


def test_predictor_on_an_image_model(tmp_path: Path) -> None:
    Image.new("RGB", (32, 32), (200, 10, 10)).save(tmp_path / "red.png")
    model = image_model(CifarResNet(depth=8, width=4))
    width = StudentTap(model).info.width
    predictor = Predictor(model, TaskHead(width, labels=["red", "green"]))
    assert predictor.predict([str(tmp_path / "red.png")])[0] in ("red", "green")
    with pytest.raises(DataError, match=rf"width {width + 1}\b.*\b{width}\b"):
        Predictor(model, TaskHead(width + 1, labels=["red", "green"]))


def test_head_reads_whole_vectors_of_a_model_with_truncate_dim(tiny_bert: Path) -> None:
    model = load_student(tiny_bert, device="cpu")
    model.truncate_dim = 8
    assert Predictor(model, TaskHead(32, labels=["a", "b"])).logits(["a text"]).shape == (1, 2)
    assert model.truncate_dim == 8
