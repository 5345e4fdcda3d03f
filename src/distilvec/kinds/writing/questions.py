"""Questions that texts answer, written by a language model: pairs to train on for people who have documents alone.

After doc2query (Nogueira and others, arXiv:1904.08375) and GPL (Wang and others, arXiv:2112.07577).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.corpus import read_corpus
from distilvec.corpus.keys import content_key, folded
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.files import alone_in, writing
from distilvec.progress import Ticker

#: Characters of a text that a model is shown, and tokens of a question.
SHOWN, LONGEST = 1500, 32
#: Words of a question.
FEWEST, MOST = 3, 40
#: The first line up to a question mark, of any script.
_QUESTION = re.compile(r"[^\n]*?[?？؟]")
#: Texts that are asked about together, and then kept.
AT_ONCE = 32
_TASK = "Write one short question that the passage answers."
#: A small model imitates them better than it follows the task.
_EXAMPLES = (
    ("The museum is closed on Mondays. On other days it opens at ten.", "When does the museum open?"),
    (
        "Hold the button for five seconds to set the device back to what it was in the shop.",
        "How do I reset my device?",
    ),
    ("Bread is left to rise so that the yeast fills the dough with gas.", "Why does bread dough have to rise?"),
)
#: How each line of the file begins.
_BEGIN = b'{"query": "'
#: Texts -> the questions of each.
Ask = Callable[[list[str]], Sequence[Sequence[str]]]


@dataclass(frozen=True)
class Questions:
    """Outcome of a call of `write_questions`.

    Attributes:
        texts, kept: texts that were asked about, and questions that were written to the file.
        repeated, unusable: questions that another text had got before, and answers that are none.
        before: texts that had a question in the file already.
        tokens: that a local model wrote; 0 of a function.
    """

    texts: int
    kept: int
    repeated: int
    unusable: int
    before: int
    tokens: int

    def line(self, output: Path) -> str:
        found = f"{output}: {self.kept:,} questions for {self.texts:,} texts"
        counts = {"repeated": self.repeated, "unusable": self.unusable}
        left = [f"{count:,} {what}" for what, count in counts.items() if count]
        found += f" ({', '.join(left)} left out)" if left else ""
        found += f"; {self.before:,} texts had theirs" if self.before else ""
        return found + (f"; {self.tokens:,} tokens written" if self.tokens else "")


def write_questions(
    source: Any,
    output: str | Path,
    *,
    model: str | None = None,
    call: str | Ask | None = None,
    each: int = 1,
    text: str = "text",
    limit: int | None = None,
) -> Questions:
    """Write a .jsonl with rows {"query", "text"}; killed and called again, it goes on with texts that are not in it.

    Args:
        source: of texts, as `read_corpus` takes it.
        output: the file; what is in it stays.
        model: folder or hub id of a causal language model, with or without a chat template.
        call: instead, a function from a list of texts to a list of questions for each, or its "module:function".
        each: questions for each text; the first is the likeliest, others are drawn.
        text: column of the texts.
        limit: texts that are read.

    Raises:
        DistilvecError: not one of `model` and `call`, or the file is at work elsewhere.
        DataError: no usable text, a file that holds something else, or nothing that comes is a question.
        EnvironmentProblem: the file cannot be written, or the model not be fetched.
    """
    output = Path(output).expanduser()
    if (model is None) == (call is None):
        raise DistilvecError("questions come from a model or from a function", remedy="Give --model or --call.")
    ask: Any = call
    if isinstance(call, str):
        from distilvec.teachers.callable import find_function

        ask = find_function(call)
    with tempfile.TemporaryDirectory(prefix="distilvec-questions-") as folder:
        corpus = read_corpus(source, folder, holdout=0.0, text=text, limit=limit)
        with alone_in(output.parent, f"{output.name}.lock"):
            done, seen = _present(output, each)
            texts = [each for each in corpus.texts() if content_key(each) not in done]
            asker = _Model(model, each) if model is not None and texts else None
            return _written(asker or ask, texts, output, seen, len(corpus) - len(texts), asker)


def _written(ask: Ask, texts: list[str], output: Path, seen: set[str], before: int, model: _Model | None) -> Questions:
    kept = repeated = unusable = 0
    ticker = Ticker("asking for questions")
    for start in range(0, len(texts), AT_ONCE):
        some = texts[start : start + AT_ONCE]
        rows, found = [], _answers(ask, some)
        for text, answers in zip(some, found, strict=True):
            for answer in answers:
                question = as_question(answer, text)
                if question is None:
                    unusable += 1
                elif folded(question) in seen:
                    repeated += 1
                else:
                    seen.add(folded(question))
                    rows.append({"query": question, "text": text})
        # Where a file is continued, the texts that are left may be those that no question was found for.
        if start == 0 and unusable and not seen:
            first = next((answer for answers in found for answer in answers), "")
            raise DataError(
                f"none of {unusable} answers is a question; the first: {first[:80]!r}",
                where=str(output),
                remedy="Choose a larger model, or one that follows instructions.",
            )
        if rows:
            with writing("file", output), output.open("ab") as file:
                file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
                file.flush()
                os.fsync(file.fileno())
        kept += len(rows)
        ticker(start + len(some), len(texts))
    if texts and not seen:
        raise DataError(
            f"no question was found for any of the {len(texts):,} texts",
            where=str(output),
            remedy="Look at what the function returns." if model is None else "Choose a larger model.",
        )
    return Questions(len(texts), kept, repeated, unusable, before, model.tokens if model else 0)


def _answers(ask: Ask, texts: list[str]) -> Sequence[Sequence[str]]:
    try:
        found = ask(texts)
    except DistilvecError:
        raise
    except Exception as problem:  # whatever a service's client raises
        if isinstance(ask, _Model):
            raise
        raise EnvironmentProblem(
            f"the function failed with {type(problem).__name__}: {problem}",
            where="--call",
            remedy="What was written is kept; run the same command again to go on.",
        ) from problem
    right = isinstance(found, list | tuple) and len(found) == len(texts)
    if not right or any(isinstance(each, str) or not all(isinstance(one, str) for one in each) for each in found):
        raise DataError(
            f"the function answers {len(texts)} texts with {found!r:.80}",
            where="--call",
            remedy="It returns a list with a list of questions for each text.",
        )
    return found


def as_question(answer: str, text: str) -> str | None:
    """The question in what a model wrote; None where there is none.

    >>> as_question(' "When does it open?" I think.\\nPassage: ...', "It opens at ten.")
    'When does it open?'
    >>> as_question("The passage says when it opens.", "It opens at ten.")
    """
    found = _QUESTION.match(answer.strip().strip("\"'*“”").lstrip())
    question = found.group().strip() if found else ""
    words = len(question.split())
    fits = words <= MOST and (words >= FEWEST or not question.isascii())  # some scripts put no spaces between words
    return question if fits and question.isprintable() and folded(question) not in folded(text) else None


def _present(output: Path, each: int) -> tuple[set[bytes], set[str]]:
    """Keys of texts and folded questions of a file.

    Half a line at its end, as a kill leaves it, is cut off, with the other questions of its text where there are
    `each`; a whole line without its end, as editors leave it, gets one.
    """
    content = output.read_bytes() if output.exists() else b""
    lines = content.splitlines(keepends=True)
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append((content_key(row["text"]), folded(row["query"])))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if number < len(lines) or line.endswith(b"\n") or not line.startswith(_BEGIN[: len(line)]):
                what, remedy = "this line is no question with its text", "Choose another --output; nothing was changed."
                raise DataError(what, where=f"{output}:{number}", remedy=remedy) from error
    if len(rows) < len(lines):
        last = rows[-1][0] if rows and each > 1 else None
        while rows and rows[-1][0] == last:
            rows.pop()
        os.truncate(output, sum(map(len, lines[: len(rows)])))
    elif not content.endswith(b"\n") and content:
        with output.open("ab") as file:
            file.write(b"\n")
    return {key for key, _ in rows}, {question for _, question in rows}


class _Model:
    """A causal language model that writes questions.

    Attributes:
        tokens: written so far.
    """

    def __init__(self, model: str, each: int) -> None:
        from distilvec.judging.generation import writer_of
        from distilvec.modules.writing import open_writer
        from distilvec.precision import bfloat16_pays

        self._writer, self._each, self.tokens = writer_of(open_writer(model)), each, 0
        if bfloat16_pays():
            self._writer.model.bfloat16()

    def __call__(self, texts: list[str]) -> list[list[str]]:
        from distilvec.judging.generation import asked, write

        prompts, found = [self._prompt(text[:SHOWN]) for text in texts], []
        with asked(self._writer, ""):
            for number in range(self._each):
                answers, count = write(self._writer, prompts, LONGEST, number or None)
                found.append(answers)
                self.tokens += count
        return [list(each) for each in zip(*found, strict=True)]

    def _prompt(self, text: str) -> str:
        from jinja2 import TemplateError

        from distilvec.modules.promised_tokens import around

        tokenizer = self._writer.tokenizer
        if getattr(tokenizer, "chat_template", None):
            turns = [{"role": "system", "content": _TASK}]
            for passage, question in _EXAMPLES:
                turns += [{"role": "user", "content": passage}, {"role": "assistant", "content": question}]
            turns.append({"role": "user", "content": text})
            # Some templates know no system role; what it says then stands before the first passage.
            first = {"role": "user", "content": f"{_TASK}\n\n{turns[1]['content']}"}
            start = tokenizer.decode(around(tokenizer)[0])  # stands in most templates, and is put before the ids again
            for each in (turns, [first, *turns[2:]]):
                with contextlib.suppress(TemplateError):
                    shown = str(tokenizer.apply_chat_template(each, tokenize=False, add_generation_prompt=True))
                    return shown.removeprefix(start)
        shown = "".join(f"Passage: {passage}\nQuestion: {question}\n\n" for passage, question in _EXAMPLES)
        return f"{_TASK}\n\n{shown}Passage: {' '.join(text.split())}\nQuestion:"
