"""How prompts and answers become token ids."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import tiny_models

from distilvec.errors import DistilvecError
from distilvec.modules.spelling import ANSWER, END, PROMPT, AnswerSpeller, padded, split_items

ITEM = ("What is the time?", "Half past nine.")


@pytest.fixture(scope="module", params=["gpt2", "opt", "qwen3"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return tiny_models.WRITERS[request.param]["tokenizer"]()


def test_prompt_separator_answer_end(tokenizer: Any) -> None:
    (found,) = AnswerSpeller(tokenizer, None)(split_items([ITEM], "\n"))
    assert tokenizer.decode(found.ids[: found.prompt], skip_special_tokens=True) == ITEM[0] + "\n"
    answer = found.ids[found.prompt : found.prompt + found.answer]
    assert tokenizer.decode(answer) == ITEM[1]
    assert found.ids[-1] == tokenizer.eos_token_id
    assert found.ends and not found.cut
    assert found.kinds == [PROMPT] * found.prompt + [ANSWER] * found.answer + [END]


def test_prompts_are_spelt_as_in_training(tokenizer: Any) -> None:
    spell = AnswerSpeller(tokenizer, None)
    (found,), (prompt,) = spell(split_items([ITEM], "\n")), spell.prompts([ITEM[0]], 64)
    assert prompt == found.ids[: found.prompt]


def test_special_tokens_before_a_text_are_kept_and_those_behind_are_not() -> None:
    opt, qwen = (tiny_models.WRITERS[kind]["tokenizer"]() for kind in ("opt", "qwen3"))
    assert AnswerSpeller(opt, None)([("a", "b")])[0].ids[0] == opt.bos_token_id
    behind = qwen("a")["input_ids"][-1]
    assert behind not in AnswerSpeller(qwen, None)([("a", "b")])[0].ids


def test_the_prompt_loses_its_beginning_then_the_answer_its_end(tokenizer: Any) -> None:
    whole = AnswerSpeller(tokenizer, None)
    prompt, answer = "one two three four five six seven eight nine ten", "alpha beta gamma"
    (full,) = whole([(prompt, answer)])
    (short,) = AnswerSpeller(tokenizer, len(full.ids) - 2)([(prompt, answer)])
    assert short.cut and short.ends and short.answer == full.answer
    assert short.ids[-(full.answer + 1) :] == full.ids[-(full.answer + 1) :]
    assert len(short.ids) == len(full.ids) - 2
    long = " ".join([answer] * 20)
    (cut,) = AnswerSpeller(tokenizer, 24)([(prompt, long)])
    assert cut.cut and not cut.ends and len(cut.ids) == 24
    assert cut.ids[-1] != tokenizer.eos_token_id, "it would teach to stop there"
    assert abs(cut.prompt - cut.answer) <= 2, "half of the room each"


def test_an_empty_answer_is_its_end(tokenizer: Any) -> None:
    (found,) = AnswerSpeller(tokenizer, None)([("a prompt", "")])
    assert (found.answer, found.ends, found.ids[-1]) == (0, True, tokenizer.eos_token_id)


def test_padding_goes_where_the_tokenizer_has_it() -> None:
    qwen = tiny_models.WRITERS["qwen3"]["tokenizer"]()
    spelt = AnswerSpeller(qwen, None)([("a", "b"), ("a longer prompt", "and its answer")])
    for side, edge in (("left", 0), ("right", -1)):
        features = padded(spelt, qwen.pad_token_id, side)
        assert features["attention_mask"][0, edge] == 0
        for row, each in enumerate(spelt):
            real = features["attention_mask"][row].bool()
            assert features["input_ids"][row][real].tolist() == each.ids
            assert features["answer_mask"][row][real].tolist() == each.kinds
            assert not features["answer_mask"][row][~real].any()
        assert torch.equal(features["special_tokens_mask"], (features["answer_mask"] != ANSWER).long())


def test_no_end_token_and_no_room_are_refused() -> None:
    gpt2 = tiny_models.WRITERS["gpt2"]["tokenizer"]()
    with pytest.raises(DistilvecError, match="^mine: 3 .*max_length"):
        AnswerSpeller(gpt2, 3, name="mine")
    gpt2.eos_token = None
    with pytest.raises(DistilvecError, match="^mine: .*eos_token"):
        AnswerSpeller(gpt2, None, name="mine")
