"""Written answers: ROUGE-L and exact match, and how likely the model finds the right ones."""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from distilvec.corpus.keys import join_pair
from distilvec.extras import need
from distilvec.judging.encoder import Encode
from distilvec.judging.scores import Outputs, Score
from distilvec.judging.tasks import JudgingTask, same_length
from distilvec.judging.writing import asked, likelihood, rouge_l, write, writer_of

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
