"""Questions for documents: pairs of a file that is gone on with, whoever writes them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.training.starting import Starter
from tests.writing import built

from distilvec.cli.main import main
from distilvec.corpus import read_corpus
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.kinds.writing.questions import AT_ONCE, as_question, write_questions

SLOW = """
import pathlib, time

def ask(texts):
    with open("calls", "a") as calls:
        calls.write("".join(text + "\\n" for text in texts))
    if pathlib.Path("slow").exists():
        time.sleep(0.3)
    return [[f"What about {text.split()[0]} number {len(text)}?"] for text in texts]
"""


def rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_a_killed_command_goes_on_and_asks_for_no_text_twice(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "asking.py").write_text(SLOW)
    texts = [f"text{number} y" + "x" * number for number in range(5 * AT_ONCE)]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    (tmp_path / "slow").touch()
    words = ["questions", "texts.txt", "--output", "pairs.jsonl", "--call", "asking:ask"]
    running, file = start(arguments=words, folder=str(tmp_path)), tmp_path / "pairs.jsonl"
    running.until(lambda: file.exists() and file.stat().st_size > 0)
    running.kill(signal.SIGKILL)
    running.wait()
    kept = len(rows(file))
    assert 0 < kept < len(texts) and kept % AT_ONCE == 0
    with file.open("a") as half:
        half.write('{"query": "What ab')
    (tmp_path / "slow").unlink()
    (tmp_path / "calls").unlink()
    ended, output = start(arguments=words, folder=str(tmp_path)).wait()
    assert ended == 0 and f"{len(texts) - kept} questions for {len(texts) - kept} texts; {kept} texts had" in output
    assert [row["text"] for row in rows(file)] == texts  # nothing twice, nothing lost, in order
    assert (tmp_path / "calls").read_text().split("\n")[:-1] == texts[kept:]
    corpus = read_corpus(file, tmp_path / "read", text=["query", "text"])
    assert len(corpus) == 2 * len(texts)


def test_repeated_and_unusable_answers_are_left_out_and_counted(tmp_path: Path) -> None:
    answers = {
        "It opens at ten.": ["When does it open?", "when does it OPEN? ", "no question", ""],
        "It rains.": ["When does it open?", '"Does it rain today?" she asked.'],
    }

    def ask(texts: list[str]) -> list[list[str]]:
        return [answers[text] for text in texts]

    found = write_questions(list(answers), tmp_path / "new" / "pairs.jsonl", call=ask)
    assert [row["query"] for row in rows(tmp_path / "new" / "pairs.jsonl")] == [
        "When does it open?",
        "Does it rain today?",
    ]
    assert (found.texts, found.kept, found.repeated, found.unusable) == (2, 2, 2, 2)


def test_a_file_goes_on_behind_texts_without_a_question(tmp_path: Path) -> None:
    file, odd = tmp_path / "pairs.jsonl", [f"nothing is asked about {row}" for row in range(AT_ONCE)]

    def ask(texts: list[str]) -> list[list[str]]:
        return [["No."] if text in odd else [f"What is {text} about?"] for text in texts]

    write_questions(["the first"], file, call=ask)
    assert write_questions([*odd, "the first", "the last"], file, call=ask).kept == 1
    assert [row["text"] for row in rows(file)] == ["the first", "the last"]


def test_a_file_without_a_last_line_end_keeps_its_last_question(tmp_path: Path) -> None:
    texts, file, calls = [f"the shop number {row}" for row in range(3)], tmp_path / "pairs.jsonl", list[str]()

    def ask(texts: list[str]) -> list[list[str]]:
        calls.extend(texts)
        return [[f"{word} is {text} there?" for word in ("Why", "How")] for text in texts]

    write_questions(texts, file, call=ask, each=2)
    whole = file.read_bytes()
    file.write_bytes(whole.rstrip())
    write_questions(texts, file, call=ask, each=2)
    assert file.read_bytes() == whole and calls == texts
    for end in range(len(whole) // 3, len(whole)):  # a kill while the block was written
        file.write_bytes(whole[:end])
        if whole[end - 1 : end] != b"\n" and whole[end : end + 1] != b"\n":
            write_questions(texts, file, call=ask, each=2)
            assert sorted(file.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_a_function_that_fails_keeps_what_was_written(tmp_path: Path) -> None:
    def ask(texts: list[str]) -> list[list[str]]:
        if len(texts) < AT_ONCE:
            raise RuntimeError("too many requests")
        return [[f"What is {text} about?"] for text in texts]

    with pytest.raises(EnvironmentProblem, match="--call: .*RuntimeError: too many requests.*run the same command"):
        write_questions([f"a text {row}" for row in range(AT_ONCE + 1)], tmp_path / "pairs.jsonl", call=ask)
    assert len(rows(tmp_path / "pairs.jsonl")) == AT_ONCE


@pytest.mark.parametrize(
    ("answer", "question"),
    [
        ("何時に開きますか？\nPassage:", "何時に開きますか？"),
        ("Why?", None),
        ("is this part of it?", None),
        ("Who " * 60 + "?", None),
        ("Is it \u202e odd to ask?", None),
    ],
)
def test_what_is_taken_for_a_question(answer: str, question: str | None) -> None:
    assert as_question(answer, "A text: is this part of it? Yes.") == question


def test_an_encoder_writes_no_questions(tmp_path: Path, tiny_bert: Path) -> None:
    with pytest.raises(DataError, match="Choose a causal language model; this may be an encoder"):
        write_questions(["A first text."], tmp_path / "pairs.jsonl", model=str(tiny_bert))


def test_what_cannot_go_well_is_refused(tmp_path: Path) -> None:
    texts, file = ["A first text.", "A second text."], tmp_path / "pairs.jsonl"
    for how in ({}, {"model": "m", "call": lambda texts: [[] for _ in texts]}):
        with pytest.raises(DistilvecError, match="from a model or from a function"):
            write_questions(texts, file, **how)  # type: ignore[arg-type]
    for wrong in (["A question?"], ["a?", "b?"], [[1], [2]], None):
        with pytest.raises(DataError, match="a list of questions for each text"):
            write_questions(texts, file, call=lambda _, wrong=wrong: wrong)  # type: ignore[misc]
    with pytest.raises(DataError, match="none of 2 answers is a question; the first: 'No.'"):
        write_questions(texts, file, call=lambda texts: [["No."] for _ in texts])
    assert not file.exists()
    with pytest.raises(
        DataError, match="no question was found for any of the 2 texts.*Look at what the function returns"
    ):
        write_questions(texts, file, call=lambda texts: [[] for _ in texts])
    assert not file.exists()
    # Also one without a line end, which is no half line of ours.
    for content in ('{"text": "of something else"}\n', "notes of somebody", '{"text": "of something else"}'):
        file.write_text(content)
        with pytest.raises(DataError, match=r"pairs\.jsonl:1: .*no question"):
            write_questions(texts, file, call=lambda texts: [["Who is it then?"] for _ in texts])
        assert file.read_text() == content
    # A model with random weights writes no question, and the command says so.
    with pytest.raises(SystemExit) as ended:
        (tmp_path / "texts.txt").write_text("\n".join(texts))
        words = ["questions", str(tmp_path / "texts.txt"), "-o", str(tmp_path / "new.jsonl")]
        main([*words, "--model", str(built("gpt2", tmp_path))])
    assert ended.value.code != 0


TURNS = "{% for turn in messages %}{{ turn['content'] }}\n{% endfor %}"
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TURNS


@pytest.mark.parametrize("template", [None, TURNS, NO_SYSTEM, "{{ raise_exception('no') }}"])
def test_a_model_is_shown_the_text_and_asked_as_often_as_wanted(tmp_path: Path, template: str | None) -> None:
    from distilvec.kinds.writing.questions import _Model

    tiny_causal = built("gpt2", tmp_path)
    model: Any = _Model(str(tiny_causal), 2)
    model._writer.tokenizer.chat_template = template
    prompt = model._prompt("A museum.")
    assert "A museum." in prompt and prompt.count("How do I reset my device?") == 1
    assert prompt.count("Write one short question") == 1
    found = model(["A museum.", "A zoo."])
    assert [len(each) for each in found] == [2, 2] and model.tokens > 0
    again: Any = _Model(str(tiny_causal), 2)
    again._writer.tokenizer.chat_template = template
    assert again(["A museum.", "A zoo."]) == found


def test_a_start_token_that_the_chat_template_writes_is_read_once(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    from distilvec.kinds.writing.questions import _Model

    model: Any = _Model(str(built("gpt2", tmp_path)), 1)
    tokenizer = model._writer.tokenizer
    tokenizer.bos_token, start = tokenizer.eos_token, tokenizer.eos_token_id
    put = TemplateProcessing(single=f"{tokenizer.bos_token} $A", special_tokens=[(tokenizer.bos_token, start)])
    tokenizer.backend_tokenizer.post_processor = put
    for template in (TURNS, "{{ bos_token }}" + TURNS):
        tokenizer.chat_template = template
        (ids,) = model._writer.answers.prompts([model._prompt("A museum.")], 8)
        assert ids[0] == start and ids.count(start) == 1
