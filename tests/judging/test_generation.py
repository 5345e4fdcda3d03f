"""Written answers: ROUGE-L, exact match, likelihood; greedy and drawn."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.writing import WritingWorld, built

from distilvec import evaluate
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.judging import GenerationTask, RetrievalTask, judge, load_task, paired_bootstrap
from distilvec.judging.generation import asked, likelihood, rouge_l, write, writer_of
from distilvec.modules.writing import open_writer

PROMPTS = ["What is the time?", "Say it", "A longer prompt than the others"]
ANSWERS = ["Half past nine.", "no", "and so on"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generation")


@pytest.fixture(scope="module", params=["gpt2", "qwen3"])
def pipeline(request: pytest.FixtureRequest, folder: Path) -> Any:
    return open_writer(built(request.param, folder), device="cpu").eval()


def test_rouge_l_is_of_stemmed_words() -> None:
    """4 of 6 words on one side, 4 of 5 on the other, in order: F = 2 * 2/3 * 4/5 / (2/3 + 4/5)."""
    found = rouge_l(["the cats sat on the mat", "the same", "one"], ["a cat sat on the", "The same!", "another"])
    assert found == pytest.approx([2 * (2 / 3) * (4 / 5) / (2 / 3 + 4 / 5), 1.0, 0.0], abs=1e-6)


def test_likelihood_is_the_models_own(pipeline: Any) -> None:
    writer = writer_of(pipeline)
    pairs = list(zip(PROMPTS, ANSWERS, strict=True))
    with asked(writer):
        found = likelihood(writer, pairs, batch_size=2)
    for row, (prompt, answer) in enumerate(pairs):
        ids = writer.tokenizer(prompt + "\n", add_special_tokens=False)["input_ids"]
        own = [*writer.tokenizer(answer, add_special_tokens=False)["input_ids"], writer.tokenizer.eos_token_id]
        with torch.no_grad():
            logs = writer.model(torch.tensor([ids + own])).logits[0].log_softmax(-1)
        nats = -sum(float(logs[len(ids) + n - 1, token]) for n, token in enumerate(own))
        assert found.nats[row] == pytest.approx(nats, rel=1e-4)
        assert found.tokens[row] == len(own)
    whole = sum(len(answer.encode()) for answer in ANSWERS)
    assert found.bits_per_byte == pytest.approx(found.nats.sum() / math.log(2) / whole)
    assert found.loss == pytest.approx(found.nats.sum() / found.tokens.sum())
    assert found.cut == 0


def test_an_answer_that_is_cut_counts_as_far_as_it_was_read(pipeline: Any) -> None:
    writer = writer_of(pipeline)
    answer = "the river is high — and the bridge was closed " * 8
    length = writer.max_seq_length
    try:
        writer.max_seq_length = 24
        with asked(writer):
            found = likelihood(writer, [("rain", "dry"), ("rain", answer)])
        (_, spelt) = writer.answers([("rain\n", "dry"), ("rain\n", answer)])
    finally:
        writer.max_seq_length = length
    read = writer.tokenizer.decode(spelt.ids[spelt.prompt :])
    assert spelt.cut and not spelt.ends and found.cut == 1
    assert answer.startswith(read.rstrip("\ufffd")) and len(read) < len(answer)
    assert found.bytes.tolist() == [3, len(read.rstrip("\ufffd").encode())]


def test_the_likeliest_answer_is_that_of_one_token_after_another(pipeline: Any) -> None:
    """Whatever the folder's own defaults are, and whoever stands beside it in the batch."""
    writer = writer_of(pipeline)
    writer.model.generation_config.repetition_penalty = 5.0
    with asked(writer):
        found, count = write(writer, PROMPTS, 6)
    assert writer.model.generation_config.repetition_penalty == 5.0
    end, total = writer.tokenizer.eos_token_id, 0
    for prompt, written in zip(PROMPTS, found, strict=True):
        ids = writer.tokenizer(prompt + "\n", add_special_tokens=False)["input_ids"]
        own: list[int] = []
        while len(own) < 6 and end not in own:
            with torch.no_grad():
                own.append(int(writer.model(torch.tensor([ids + own])).logits[0, -1].argmax()))
        total += len(own)
        kept = [token for token in own if token != end]
        assert written == writer.tokenizer.decode(kept, skip_special_tokens=True).strip()
    assert count == total


def test_an_answer_ends_with_the_positions_of_the_model(folder: Path) -> None:
    writer = writer_of(open_writer(built("gpt2", folder), device="cpu").eval())
    positions, end = writer.model.config.max_position_embeddings, writer.answers.end
    with asked(writer), torch.no_grad():
        writer.model.transformer.ln_f.bias.fill_(1.0)
        writer.token_head.weight[end] = -100.0  # it never ends by itself
        short = len(writer.answers.prompts(["short"], 1)[0])
        for prompt, read in (("long " * positions, positions // 2), ("short", short)):
            assert write(writer, [prompt], positions)[1] == positions - read


def test_drawn_answers_follow_their_seed_alone(pipeline: Any) -> None:
    writer = writer_of(pipeline)
    state = torch.get_rng_state()
    with asked(writer):
        first, again, other = (write(writer, PROMPTS, 8, seed)[0] for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(torch.get_rng_state(), state)


def test_a_score_and_what_it_says(pipeline: Any) -> None:
    task = GenerationTask("t", PROMPTS, ANSWERS, longest=5, samples=2)
    score = task.score(pipeline)
    assert (score.metric, score.kind, score.n) == ("rouge_l", "generation", 3)
    assert score.details.keys() >= {"exact_match", "loss", "bits_per_byte", "sampled", "sampled_deviation"}
    assert [each["prompt"] for each in score.details["written"]] == PROMPTS
    assert score.outputs is not None and score.outputs.predicted.shape == (3,)
    assert paired_bootstrap(score, task.score(pipeline)).value == 0
    other = GenerationTask("t", PROMPTS, ["x", "y", "z"], longest=5, samples=0).score(pipeline)
    assert "sampled" not in other.details
    with pytest.raises(DataError, match="^task t: "):
        paired_bootstrap(score, other)


def test_exact_match_does_not_mind_case_and_white_space(pipeline: Any) -> None:
    writer = writer_of(pipeline)
    with asked(writer):
        (written,), _ = write(writer, PROMPTS[:1], 4)
    task = GenerationTask("t", PROMPTS[:1] * 2, [f" {written.swapcase()}  ", "another"], longest=4, samples=0)
    assert task.score(pipeline).details["exact_match"] == 0.5


def test_any_causal_folder_is_evaluated(folder: Path, tmp_path: Path) -> None:
    rows = [{"q": prompt, "a": answer} for prompt, answer in zip(PROMPTS, ANSWERS, strict=True)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {"name": "mine", "kind": "generation", "test": str(tmp_path / "test.jsonl"), "prompt": "q", "answer": "a"}
    spec |= {"longest": 4, "samples": 1, "separator": " -> "}
    found = evaluate(str(built("gpt2", folder)), [spec], tmp_path / "scores.json")
    score = found.scores["gpt2"]["mine"]
    other = evaluate(str(built("gpt2", folder)), [{**spec, "separator": "\n"}]).scores["gpt2"]["mine"]
    assert score.n == 3 and score.details["loss"] != pytest.approx(other.details["loss"], rel=1e-4)
    assert json.loads((tmp_path / "scores.json").read_text())["scores"]["gpt2"]["mine"]["metric"] == "rouge_l"


def test_embedders_and_empty_answers_are_refused(tiny_bert: Path, tmp_path: Path) -> None:
    from distilvec.students import load_student

    task = GenerationTask("t", PROMPTS, ANSWERS)
    with pytest.raises(DistilvecError, match="gives vectors"):
        task.score(load_student(tiny_bert, device="cpu").encode)

    def encode(texts: Sequence[str]) -> np.ndarray:
        pytest.fail("texts are encoded though the last task cannot be scored")

    with pytest.raises(DistilvecError, match="gives vectors"):
        judge({"embedder": encode}, [RetrievalTask.from_pairs("pairs", PROMPTS, ANSWERS), task])
    (tmp_path / "test.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "c", "answer": ""}\n')
    spec = {"name": "t", "kind": "generation", "test": "test.jsonl"}
    with pytest.raises(DataError, match=r"test\.jsonl, line 2, column answer"):
        load_task(spec, tmp_path)


def test_a_teacher_is_judged_as_its_model_is(tmp_path: Path) -> None:
    world = WritingWorld(tmp_path, "gpt2", "gpt2")
    task = GenerationTask("t", PROMPTS, ANSWERS, longest=4, samples=0)
    first, second = task.score(world.teacher), task.score(world.student)  # type: ignore[arg-type]
    assert first.details["loss"] == pytest.approx(second.details["loss"], rel=1e-5)
    assert np.array_equal(first.outputs.predicted, second.outputs.predicted)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("answer", "other", "share"),
    [
        ("Привет, мир", "привет мир!", 1.0),
        ("Привет, мир", "мир и труд", 0.4),
        ("東京都に住む", "東京に住む", 10 / 11),
        ("नमस्ते दुनिया", "नमस्ते", 2 / 3),
        ("Größe zählt", "größe", 2 / 3),
        ("the cats sat", "The cat sat.", 1.0),
        ("👍", "👍", 1.0),
        ("no", "да", 0.0),
    ],
)
def test_rouge_of_other_scripts(answer: str, other: str, share: float) -> None:
    assert rouge_l([answer], [other])[0] == pytest.approx(share, abs=1e-6)


def test_rouge_of_english_equals_rouge_score() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    pairs = [
        ("It's the U.S. Open, isn't it?", "the us open is it"),
        ("snake_case names running", "snake case named runs"),
        ("A 3.5 % rise", "3 5 rising"),
    ]
    plain = RougeScorer(["rougeL"], use_stemmer=True)
    assert rouge_l(*zip(*pairs, strict=True)).tolist() == pytest.approx(
        [plain.score(*pair)["rougeL"].fmeasure for pair in pairs]
    )


def test_missing_rouge_score_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rouge_score" else found(name))
    with pytest.raises(EnvironmentProblem, match="rouge.score"):
        GenerationTask("mine", ["a"], ["b"])
