"""A checkout of distilvec: the files of src, read, and what running it shows."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from types import CodeType
from typing import Any

BENCHMARKS = str(Path(__file__).resolve().parents[1])
#: Recipes of a default run, the shortest first: the first one that the checkout accepts is used.
RECIPES = (
    "corpus: {path: texts.txt}\nteachers: [{name: tiny, model: bert}]\noutput: out\n",
    "corpus: {path: texts.txt, holdout: 0.2}\nteachers: [{name: tiny, model: bert}]\noutput: out\n"
    "student: {shrink: {of: tiny, layers: 1}}\nmethod: {name: cosine}\n",
)
GENERATED = re.compile(r"<!-- generated: .*?<!-- /generated -->", re.DOTALL)


class House:
    """A checkout. What needs a process of its own is found out when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.package = folder, folder / "src" / "distilvec"
        files = sorted(self.package.rglob("*.py"))
        self.texts = {file.relative_to(self.package).as_posix(): file.read_text(encoding="utf-8") for file in files}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}

    def nodes(self, *kinds: type, without: str = "") -> Iterator[tuple[str, Any]]:
        """("path:line", node) of all nodes of these kinds, except in files that a pattern in `without` matches."""
        for name, tree in self.trees.items():
            if not any(fnmatch(name, pattern) for pattern in without.split()):
                nodes = (node for node in ast.walk(tree) if isinstance(node, kinds))
                yield from ((f"{name}:{getattr(node, 'lineno', 1)}", node) for node in nodes)

    def lines(self, patterns: str = "*") -> int:
        """Lines of the files of src that a pattern matches."""
        wanted = [text for name, text in self.texts.items() if any(fnmatch(name, each) for each in patterns.split())]
        return sum(len(text.splitlines()) for text in wanted)

    def lines_under(self, folder: str) -> int:
        """Lines of the Python files in a folder beside src."""
        files = (self.folder / folder).rglob("*.py")
        return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)

    @cached_property
    def run(self) -> dict[str, Any]:
        """What a default run loads and executes, see `inside.trace`."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self._python(folder, str(self.folder / "tests" / "tiny_models.py"), ".", "bert")
            texts = self._python(folder, "-c", "from tests.english import sentences as s; print(*s(), sep='\\n')")
            (folder / "texts.txt").write_text(texts.stdout, encoding="utf-8")
            for recipe in RECIPES:
                (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
                done = self._inside(folder, "trace", str(self.package), "seen.json", "run", "recipe.yaml")
                if done.returncode == 0:
                    return dict(json.loads((folder / "seen.json").read_text(encoding="utf-8")))
        raise SystemExit(f"the checkout accepts no recipe of a default run:\n{done.stderr[-3000:]}")

    @cached_property
    def inherited(self) -> dict[str, list[str]]:
        """What classes touch of their bases in libraries, see `inside.inherit`."""
        done = self._inside(self.folder, "inherit")
        if done.returncode:
            raise SystemExit(f"not all modules of {self.package} can be imported:\n{done.stderr[-3000:]}")
        return dict(json.loads(done.stdout.splitlines()[-1]))

    def _inside(self, folder: Path, function: str, *words: str) -> subprocess.CompletedProcess[str]:
        # The benchmarks come last on the path: some have names of libraries.
        code = f"import sys; sys.path.append({BENCHMARKS!r}); from housing.inside import {function} as it"
        return self._python(folder, "-c", f"{code}; it(*sys.argv[1:])", *words)

    def _python(self, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join([str(self.package.parent), str(self.folder)])
        environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    def unused_options(self, *users: tuple[str, str]) -> list[str]:
        """Options of methods that only their own file names; `users` are pairs of folders and suffixes."""
        words = [each for folders, suffixes in users for each in self._words(folders, suffixes)]
        found = []
        for place, node in self.nodes(ast.ClassDef):
            if place.startswith("methods/") and node.name.endswith("Options"):
                own = self.package / place.split(":")[0]
                fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
                names = [field.id for field in fields if isinstance(field, ast.Name)]
                found += [
                    f"{place.split(':')[0]}: {name}"
                    for name in names
                    if not any(name in named and file != own for file, named in words)
                ]
        return found

    def _words(self, folders: str, suffixes: str) -> Iterator[tuple[Path, set[str]]]:
        """(file, words that may name an option) of files under these folders."""
        for file in (each for folder in folders.split() for each in (self.folder / folder).rglob("*")):
            if file.suffix in suffixes.split():
                text = GENERATED.sub("", file.read_text(encoding="utf-8"))
                yield file, set(re.findall(r"\w+", _naming(text) if file.suffix == ".py" else text))


def _naming(code: str) -> str:
    """Keywords, attributes and strings of a program."""
    kinds = {ast.keyword: "arg", ast.Attribute: "attr", ast.Constant: "value"}
    return " ".join(str(getattr(node, kinds[type(node)])) for node in ast.walk(ast.parse(code)) if type(node) in kinds)


def statements(text: str) -> list[set[int]]:
    """The lines of each statement that compiles to code; of a statement with a body, those of its head."""
    coded: set[int] = set()
    waiting = [compile(text, "", "exec")]
    for code in waiting:
        coded |= {line for _, _, line in code.co_lines() if line}
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
            inner = getattr(node, "body", None) or getattr(node, "cases", None)
            last = getattr(inner[0], "pattern", inner[0]).lineno - 1 if inner else node.end_lineno or first
            found.append(coded & set(range(first, max(first, last) + 1)))
    return [lines for lines in found if lines]
