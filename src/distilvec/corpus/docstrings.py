"""Real English that is on every Python machine: what the standard library and installed packages say of themselves."""

from __future__ import annotations

import ast
import hashlib
import math
import os
import re
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from distilvec.corpus.prose import split_docstring

STANDARD_LIBRARY = "python"
_LARGEST_FILE = 400_000
_LARGEST_OF_MANY = 60_000  # where files may be chosen, those that cost little time per pair
_ALIKE = 0.7
_PER_FILE = 8
_SHORTEST = 60
_PACKAGES = 24
_NOT_PROSE = frozenset({
    "test", "tests", "testing", "_testing", "_vendor", "vendor", "vendored", "vendored_packages", "_vendored", "extern",
    "third_party", "externals", "examples", "benchmarks", "site-packages", "dist-packages", "__pycache__", "idlelib",
    "lib2to3", "turtledemo", "encodings", "pydoc_data", "ensurepip", "distilvec", "node_modules",
})  # fmt: skip
_IDENTIFIER = re.compile(r"\b(?:\w*[a-z]\w*[A-Z]\w*|[A-Z]+[a-z]*\d\w*|\w*_\w*|[A-Z]{2,}\w*|\w+\.\w+)\b")
_LETTERS = re.compile(r"[a-z]+")
_LIKELY = re.compile(r'(?:\A|:[ \t]*(?:#[^\n]*)?\n)\s*[rRuU]?(?:"""(.*?)"""|\'\'\'(.*?)\'\'\')', re.S)


def docstring_pairs(limit: int | None = None, seed: int = 0) -> list[dict[str, str]]:
    """Pairs of a docstring's first sentence and the prose after it, from all installed Python packages.

    Files are parsed, never imported. No two pairs share a summary, a description, the beginning of one, or 70 % of the
    words of one (names of classes and functions set aside). With a limit, the 24 packages with most files take turns,
    file by file, until each has its share; smaller packages follow where these do not suffice. The same installed
    packages always give the same pairs in the same order, in which packages are mixed.

    Args:
        limit: how many at most; reading stops when there are enough. All where None.
        seed: another one gives another order, and with a limit other files.

    Returns:
        Dictionaries with summary (4 to 60 words), description (8 to 120 words), package (top-level name, "python" for
        the standard library) and name (dotted path of the object).
    """
    pairs = _collect(limit, seed)
    pairs.sort(key=lambda pair: _order(seed, f"{pair['package']}:{pair['name']}:{pair['summary']}"))
    return pairs[:limit]


def _collect(limit: int | None, seed: int) -> list[dict[str, str]]:
    """One file of each package in turn; a package that has its share waits until all others are read."""
    files = _files()
    ranked = sorted(files, key=lambda name: (-len(files[name]), name))
    # With a limit the larger packages come first, so that each of them is there with a fair number of pairs.
    first = len(ranked) if limit is None else _PACKAGES
    waiting = [ranked[first:], ranked[:first]]
    queues: dict[str, Iterator[tuple[Path, str]]] = {}
    pairs: list[dict[str, str]] = []
    counts = dict.fromkeys(ranked, 0)
    largest = _LARGEST_FILE if limit is None else _LARGEST_OF_MANY
    seen = _KnownPairs()
    share = None if limit is None else max(1, -(-limit // _PACKAGES))
    while (queues or waiting) and (limit is None or len(pairs) < limit):
        if not queues:
            queues = {name: iter(sorted(files[name], key=lambda file: _order(seed, file[1]))) for name in waiting.pop()}
        turn = [name for name in queues if share is None or counts[name] < share]
        if not turn and share is not None:
            share *= 2
        for name in turn:
            file = next(queues[name], None)
            if file is None:
                del queues[name]
                continue
            fresh = [pair for pair in _file_pairs(*file, name, largest) if seen.is_new(pair)]
            # One file says much of the same thing; the rest of it would crowd out other subjects.
            fresh = fresh[:_PER_FILE] if limit is not None else fresh
            counts[name] += len(fresh)
            pairs += fresh
    return pairs


class NearDuplicates:
    """Sets of words seen so far; two are near-duplicates where their Jaccard similarity reaches a threshold.

    Sets that alike share one of their first n - ceil(threshold * n) + 1 words in any fixed order (prefix filtering,
    Chaudhuri et al. 2006), so that only sets that meet there are compared. Long words, the rarer ones, come first.

    Args:
        threshold: in (0, 1].
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._sets: list[frozenset[str]] = []
        self._starts: dict[str, list[int]] = defaultdict(list)

    def __contains__(self, words: Iterable[str]) -> bool:
        own = frozenset(words)
        for number in {number for word in self._start(own) for number in self._starts.get(word, ())}:
            other = self._sets[number]
            shared = len(own & other)
            if shared >= self._threshold * (len(own) + len(other) - shared):
                return True
        return False

    def add(self, words: Iterable[str]) -> None:
        """Remember a set of words."""
        own = frozenset(words)
        for word in self._start(own):
            self._starts[word].append(len(self._sets))
        self._sets.append(own)

    def _start(self, words: frozenset[str]) -> list[str]:
        # A hair less than exact, so that rounding cannot hide a pair that just reaches the threshold.
        count = len(words) - math.ceil(self._threshold * len(words) - 1e-9) + 1
        return sorted(words, key=lambda word: (-len(word), word))[:count] if words else []


class _KnownPairs:
    """The pairs so far; recognises a repeat by the beginning or end of its texts, or as a near duplicate."""

    def __init__(self) -> None:
        self._marks: set[str] = set()
        self._summaries, self._descriptions = NearDuplicates(_ALIKE), NearDuplicates(_ALIKE)

    def is_new(self, pair: dict[str, str]) -> bool:
        """Tell whether nothing of a pair was there before; notes it if so."""
        summary, description = _normal(pair["summary"]), _normal(pair["description"])
        marks = {f"s {summary[:60]}", f"d {description[:60]}", f"e {description[-60:]}"}
        if len(summary) < 12 or summary[:60] in description or marks & self._marks:
            return False
        if summary.split() in self._summaries or description.split() in self._descriptions:
            return False
        self._marks |= marks
        self._summaries.add(summary.split())
        self._descriptions.add(description.split())
        return True


def _normal(text: str) -> str:
    """Lower-case letters only, without words that look like identifiers: templates filled in differently are equal."""
    return " ".join(_LETTERS.findall(_IDENTIFIER.sub(" ", text).lower()))


def _order(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}:{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _files() -> dict[str, list[tuple[Path, str]]]:
    """Package -> (file, dotted module name), sorted by package."""
    paths = sysconfig.get_paths()
    by_package: dict[str, list[tuple[Path, str]]] = defaultdict(list)
    for module in _modules(Path(paths["stdlib"])):
        by_package[STANDARD_LIBRARY].append(module)
    for place in sorted({paths["purelib"], paths["platlib"]}):
        for file, name in _modules(Path(place)):
            by_package[name.split(".")[0]].append((file, name))
    return dict(sorted(by_package.items()))


def _modules(root: Path) -> Iterator[tuple[Path, str]]:
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in _NOT_PROSE and name.isidentifier())
        parts = Path(folder).relative_to(root).parts
        for file in sorted(files):
            stem = file.removesuffix(".py")
            if stem != file and stem.isidentifier() and not stem.startswith("test_") and stem != "conftest":
                yield Path(folder) / file, ".".join((*parts, stem)).removesuffix(".__init__")


def _file_pairs(file: Path, module: str, package: str, largest: int) -> Iterator[dict[str, str]]:
    """The pairs of one source file; none where it cannot be read or parsed."""
    try:
        if file.stat().st_size > largest:
            return
        source = file.read_bytes()
        # Parsing takes ten times as long as this look at what are docstrings in all likelihood.
        if not any(map(split_docstring, _likely(source))):
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes
            tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for name, docstring in _docstrings(tree, module):
        parts = split_docstring(docstring)
        if parts is not None:
            yield {"summary": parts[0], "description": parts[1], "package": package, "name": name}


def _likely(source: bytes) -> Iterator[str]:
    for found in _LIKELY.finditer(source.replace(b"\r", b"").decode("utf-8", "replace")):
        if len(text := found[1] or found[2] or "") > _SHORTEST:
            yield text


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """(dotted name, docstring) of a module, class or function, and of what is defined directly in the former two."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node, clean=False)
        if docstring and len(docstring) > _SHORTEST:  # short ones cannot hold a summary and a description
            yield name, docstring
    if isinstance(node, ast.Module | ast.ClassDef):
        for member in node.body:
            yield from _docstrings(member, f"{name}.{getattr(member, 'name', '')}")
