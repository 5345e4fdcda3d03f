"""The values of one JSON list, read a piece at a time: the file may be larger than memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from distilvec.errors import DataError

_BLOCK = 1 << 20
_SPACE = re.compile(r"[ \t\r\n]*")
_REMEDY = "Write one object a line (.jsonl): then one broken row costs only itself."


def json_list(source: BinaryIO, name: str, longest: int) -> Iterator[Any]:
    """Yield the values of a JSON list. Bytes that are not UTF-8 keep lone surrogates, which the audit rejects.

    Args:
        name: of the file, for messages.
        longest: characters of a value that are held at most.

    Raises:
        DataError: the list is broken at some line, cut off, or has a value that is too long.
    """
    text = _Window(source, name)
    text.expect("[")
    if text.peek() != "]":
        yield text.value(longest)
        while text.peek() != "]":
            text.expect(",")
            yield text.value(longest)
    text.expect("]")
    text.expect("")


class _Window:
    """A part of the text that slides forward."""

    def __init__(self, source: BinaryIO, name: str) -> None:
        self._source, self._name = source, name
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._parse = json.JSONDecoder().raw_decode
        self._text, self._position, self._line, self._ended = "", 0, 1, False
        self._more(_BLOCK)
        self._text = self._text.removeprefix("\ufeff")

    def peek(self) -> str:
        """The next character that is not white space; "" at the end."""
        while True:
            found = _SPACE.match(self._text, self._position)
            self._position = found.end() if found else self._position
            if self._position < len(self._text):
                return self._text[self._position]
            if self._ended:
                return ""
            self._more(_BLOCK)

    def expect(self, mark: str) -> None:
        """Step over a mark; "" = see that nothing follows."""
        character = self.peek()
        if character != mark:
            wanted, found = (f'"{each}"' if each else "the end of the file" for each in (mark, character))
            raise self._broken(f"{wanted} was expected, not {found}")
        self._position += len(mark)

    def value(self, longest: int) -> Any:
        """Step over the next value."""
        self.peek()
        size = _BLOCK
        while True:
            problem = ""
            try:
                value, end = self._parse(self._text, self._position)
            except RecursionError:
                raise self._broken("values are nested too deeply") from None
            except ValueError as error:
                problem = str(error.args[0]).split(":")[0]
            else:
                # A number may go on in the next block.
                if end < len(self._text) or self._ended:
                    self._position = end
                    return value
            if self._ended:
                raise self._broken(problem)
            if len(self._text) - self._position > longest:
                raise self._broken(f"a value is broken, or longer than {longest:,} characters")
            # Doubling keeps the cost of parsing a long value again and again linear in its length.
            self._more(size)
            size *= 2

    def _more(self, size: int) -> None:
        self._line += self._text.count("\n", 0, self._position)
        content = self._source.read(size)
        self._ended = not content
        self._text = self._text[self._position :] + self._decode.decode(content, self._ended)
        self._position = 0

    def _broken(self, problem: str) -> DataError:
        line = self._line + self._text.count("\n", 0, self._position)
        return DataError(f"this is not valid JSON ({problem})", where=f"{self._name}, line {line}", remedy=_REMEDY)
