"""Written answers: asking a causal language model for them, ROUGE-L and exact match, and how likely it finds the right
ones.
"""

from __future__ import annotations

import contextlib
import sys
import time
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from distilvec.corpus.keys import join_pair
from distilvec.errors import DistilvecError
from distilvec.extras import need
from distilvec.judging.encoder import Encode
from distilvec.judging.scores import Outputs, Score
from distilvec.judging.scripts import UNSPACED
from distilvec.judging.tasks import JudgingTask, same_length
from distilvec.modules.blocks import find_writer
from distilvec.modules.spelling import ANSWER, END

if TYPE_CHECKING:
    from distilvec.modules.causal import Writer

#: Prompts that are continued together.
BATCH = 32
#: Written answers that a score brings along, to be looked at.
SHOWN = 3
LONGEST, SAMPLES = 64, 3


class GenerationTask(JudgingTask):
    """Prompts and their answers; the score is the mean ROUGE-L of what the model writes, its likeliest token each time.

    Details of a score: `exact_match` (white space and case do not count), `loss` (nats per token), `bits_per_byte`,
    `cut` (answers longer than the model reads), `sampled` and `sampled_deviation` (mean and deviation over seeds of the
    ROUGE-L of drawn answers), `tokens_per_second`, and `written`, a few answers.

    Args:
        prompts, answers: n each.
        separator: between the two; None = the model's own.
        longest: tokens of an answer, at most.
        samples: how many answers are drawn for each prompt, with the seeds `seed`, `seed` + 1, ...

    Raises:
        EnvironmentProblem: rouge-score is not installed.
    """

    kind: ClassVar[str] = "generation"

    def __init__(
        self,
        name: str,
        prompts: Sequence[str],
        answers: Sequence[str],
        *,
        separator: str | None = None,
        longest: int = LONGEST,
        samples: int = SAMPLES,
        domain: str | None = None,
        seed: int = 0,
    ) -> None:
        need("ROUGE-L", "writing", "rouge_score")
        super().__init__(name, domain, seed)
        same_length(name, prompts=prompts, answers=answers)
        self.prompts, self.answers = list(prompts), list(answers)
        self.separator, self.longest, self.samples = separator, longest, samples

    def texts(self) -> list[str]:
        """The items as a corpus of prompts and answers has them."""
        return [join_pair(*item) for item in self.test_items()]

    def test_items(self) -> list[tuple[str, str]]:
        return list(zip(self.prompts, self.answers, strict=True))

    def check(self, encode: Encode) -> None:
        writer_of(encode, getattr(encode, "name", "model"))

    def score(self, encode: Encode) -> Score:
        """Score a model that writes; another one is refused."""
        writer = writer_of(encode, getattr(encode, "name", "model"))
        with asked(writer, self.separator):
            likelihoods = likelihood(writer, self.test_items())
            begun = time.perf_counter()
            written, count = write(writer, self.prompts, self.longest)
            seconds = time.perf_counter() - begun
            drawn = [write(writer, self.prompts, self.longest, self.seed + number)[0] for number in range(self.samples)]
        greedy = rouge_l(self.answers, written)
        equal = [_plain(own) == _plain(answer) for own, answer in zip(written, self.answers, strict=True)]
        details: dict[str, Any] = {
            "exact_match": float(np.mean(equal)),
            "loss": likelihoods.loss,
            "bits_per_byte": likelihoods.bits_per_byte,
            "cut": likelihoods.cut,
            "tokens_per_second": count / max(seconds, 1e-9),
            "written": [
                {"prompt": self.prompts[row], "answer": self.answers[row], "written": written[row]}
                for row in range(min(SHOWN, len(written)))
            ],
        }
        if drawn:
            values = [float(rouge_l(self.answers, each).mean()) for each in drawn]
            details |= {"sampled": float(np.mean(values)), "sampled_deviation": float(np.std(values))}
        # Equal for equal answers, so that scores of other test items are never paired.
        truth = np.array([zlib.crc32(answer.encode()) >> 1 for answer in self.answers], np.int32)
        return self._scored(Outputs("rouge_l", truth, greedy), details)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of the answers of n items under a model.

    Attributes:
        nats: [n] loss of each item's tokens and its end, summed.
        tokens: [n] how many these are.
        bytes: [n] of the answer's UTF-8; of an answer that the model's length cuts, of what it read.
        cut: how many answers that were.
    """

    nats: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    cut: int

    @property
    def loss(self) -> float:
        """Nats per token, which tokenizers with larger pieces make larger."""
        return float(self.nats.sum() / max(self.tokens.sum(), 1))

    @property
    def bits_per_byte(self) -> float:
        """The bits per byte of all answers together; comparable across tokenizers."""
        return float(self.nats.sum() / np.log(2) / max(self.bytes.sum(), 1))


def writer_of(model: Any, name: str = "model") -> Writer:
    """The causal model within a pipeline, a teacher or an encoder."""
    inner = getattr(model, "model", model) if find_writer(model) is None else model  # CachedEncoder, then Teacher
    inner = inner if find_writer(inner) is not None else getattr(inner, "model", None)
    writer = find_writer(inner)
    if writer is None:
        raise DistilvecError(
            "a task of kind generation asks a causal language model, and this model gives vectors",
            where=name,
            remedy="Judge it on other tasks, or give the folder of a causal model.",
        )
    return writer


@contextlib.contextmanager
def asked(writer: Writer, separator: str | None = None) -> Iterator[None]:
    """While the block runs, the model is in eval mode without gradients, with another separator where one is given."""
    import torch

    training, own = writer.training, writer.separator
    writer.eval()
    try:
        between = own if separator is None else separator
        with torch.no_grad(), _changed(writer, separator=between, next_logits=False, spells=True):
            yield
    finally:
        writer.train(training)


def likelihood(writer: Writer, items: Sequence[tuple[str, str]], batch_size: int = BATCH) -> Likelihood:
    """Return how likely a model finds answers; to be called within `asked`.

    Args:
        items: pairs (prompt, answer).
    """
    nats, tokens = np.zeros(len(items)), np.zeros(len(items), np.int64)
    size, cut = np.array([len(answer.encode()) for _, answer in items], np.int64), 0
    for rows in _batches([len(prompt) + len(answer) for prompt, answer in items], batch_size):
        features = writer.preprocess([items[row] for row in rows])
        kinds = features["answer_mask"]
        for place in (~(kinds == END).any(1)).nonzero()[:, 0].tolist():  # there was no room for all of the answer
            ids = features["input_ids"][place, kinds[place] == ANSWER].tolist()
            # Without a character of which there is a part only.
            read = str(writer.tokenizer.decode(ids, clean_up_tokenization_spaces=False)).rstrip("\ufffd")
            size[rows[place]], cut = len(read.encode()), cut + 1
        features = writer({name: value.to(writer.model.device) for name, value in features.items()})
        count = features["answer_tokens"]
        nats[rows] = (features["answer_loss"].double() * count).cpu().numpy()
        tokens[rows] = count.cpu().numpy()
    return Likelihood(nats, tokens, size, cut)


def write(
    writer: Writer, prompts: Sequence[str], longest: int, seed: int | None = None, batch_size: int = BATCH
) -> tuple[list[str], int]:
    """Answers to prompts, without white space at their ends, and how many tokens were written; within `asked`.

    Args:
        longest: tokens of an answer, at most; fewer where the model has no more positions.
        seed: of drawing from the model's own distribution (temperature 1); None = the likeliest token each time.
    """
    import torch
    from transformers import GenerationConfig

    end, pad = writer.answers.end, int(writer.tokenizer.pad_token_id)
    positions = getattr(writer.model.config, "max_position_embeddings", None) or sys.maxsize
    how: dict[str, Any] = {"do_sample": False} if seed is None else {"do_sample": True, "top_k": 0, "temperature": 1.0}
    config = GenerationConfig(eos_token_id=end, pad_token_id=pad, bos_token_id=None, **how)
    spelt = writer.answers.prompts(prompts, longest)
    answers, count = [""] * len(prompts), 0
    # Without the defaults of its folder, such as a penalty for repetitions: all are asked alike.
    with torch.random.fork_rng(devices=[]), _changed(writer.model, generation_config=config):
        if seed is not None:
            torch.manual_seed(seed)
        for rows in _batches([len(ids) for ids in spelt], batch_size):
            width = max(len(spelt[row]) for row in rows)
            ids = torch.tensor([[pad] * (width - len(spelt[row])) + spelt[row] for row in rows])
            mask = torch.tensor([[0] * (width - len(spelt[row])) + [1] * len(spelt[row]) for row in rows])
            device, config.max_new_tokens = writer.model.device, min(longest, positions - width)
            given = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
            written = writer.model.generate(**given, generation_config=config)[:, width:]
            for row, own in zip(rows, written.tolist(), strict=True):
                kept = own[: own.index(end)] if end in own else own
                count += len(kept) + (end in own)
                answers[row] = str(writer.tokenizer.decode(kept, skip_special_tokens=True)).strip()
    return answers, count


@contextlib.contextmanager
def _changed(thing: Any, **values: Any) -> Iterator[None]:
    """While the block runs, something has these attributes."""
    before = {name: getattr(thing, name) for name in values}
    try:
        for name, value in values.items():
            setattr(thing, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(thing, name, value)


def rouge_l(answers: Sequence[str], written: Sequence[str]) -> npt.NDArray[np.float32]:
    """[n] F-measure of the longest common subsequence of words, in [0, 1] (Lin 2004; rouge-score).

    English words are Porter-stemmed as in rouge-score, whose own tokenizer knows no letters but a to z. In scripts that
    put no spaces between words every character is one.
    """
    need("ROUGE-L", "writing", "rouge_score")
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], tokenizer=_Words())
    pairs = zip(answers, written, strict=True)
    return np.array([scorer.score(answer, own)["rougeL"].fmeasure for answer, own in pairs], np.float32)


class _Words:
    """The tokenizer that `rouge_l` gives to rouge-score."""

    def __init__(self) -> None:
        from rouge_score.tokenizers import DefaultTokenizer

        self._english = DefaultTokenizer(use_stemmer=True)

    def tokenize(self, text: str) -> list[str]:
        plain = unicodedata.normalize("NFC", text.lower())
        words: list[str] = []
        of_words = (each.isalnum() or unicodedata.category(each)[0] == "M" for each in plain)
        for word in "".join(each if kept else " " for each, kept in zip(plain, of_words, strict=True)).split():
            words += self._english.tokenize(word) if word.isascii() else UNSPACED.sub(r" \g<0> ", word).split()
        return words or plain.split()  # an answer of signs alone


def _batches(lengths: Sequence[int], size: int) -> Iterator[npt.NDArray[np.int64]]:
    """Positions of items of like length together, longest first."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    for start in range(0, len(order), size):
        yield order[start : start + size]
