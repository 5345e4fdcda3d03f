"""Counts of the house, of this checkout and of another: lines, files, circles, and who carries what around.

    python benchmarks/house.py --source FOLDER     # FOLDER: a checkout of before

Lines and files of `src`; modules at the top level (files and packages); circles: groups of modules that import one
another, deferred imports and those for types counted; functions that take a recipe and a corpus; calls of
`build_method`; files above 400 lines.
"""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def counts(checkout: Path) -> dict[str, int]:
    """What is counted of a checkout."""
    package = checkout / "src" / "distilvec"
    files = {file: file.read_text(encoding="utf-8") for file in sorted(package.rglob("*.py"))}
    trees = {file: ast.parse(text) for file, text in files.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    top = [each for each in package.iterdir() if each.suffix == ".py" or (each / "__init__.py").exists()]
    return {
        "lines": sum(len(text.splitlines()) for text in files.values()),
        "files": len(files),
        "files above 400 lines": sum(len(text.splitlines()) > 400 for text in files.values()),
        "modules at the top level": len([each for each in top if each.name != "__init__.py"]),
        "circles of imports": circles(package, trees),
        "functions that take recipe and corpus": sum(
            isinstance(node, ast.FunctionDef)
            and {"recipe", "corpus"} <= {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
            for node in nodes
        ),
        "calls of build_method": sum(
            isinstance(node, ast.Call) and getattr(node.func, "id", "") == "build_method" for node in nodes
        ),
    }


def circles(package: Path, trees: dict[Path, ast.Module]) -> int:
    """Groups of at least two files that reach one another by their imports."""
    names = {_name(package, file): file for file in trees}
    reached = {
        name: _imports(tree, _name(package, file), names)
        for file, tree in trees.items()
        for name in [_name(package, file)]
    }
    grown = True
    while grown:
        grown = False
        for name, others in reached.items():
            more = set().union(others, *(reached[other] for other in others))
            if len(more) > len(others):
                reached[name], grown = more, True
    return len(
        {
            frozenset(other for other in reached[name] if name in reached[other])
            for name in names
            if name in reached[name]
        }
    )


def _name(package: Path, file: Path) -> str:
    parts = ("distilvec", *file.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module, own: str, names: dict[str, Path]) -> set[str]:
    """Modules of the package that a file imports, wherever it says so."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            whole = {name for name in inside if name in names}
            found |= whole or {node.module}
    return {name for name in found if name in names and name != own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="the checkout of before")
    asked = parser.parse_args()
    found = {"before": counts(asked.source), "now": counts(ROOT)}
    lines = [
        "# The house in numbers",
        "",
        "`python benchmarks/house.py --source FOLDER`, FOLDER a checkout of 8fae86b.",
        "",
    ]
    lines += ["| counted | before | now |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {value:,} | {found['now'][name]:,} |" for name, value in found["before"].items()]
    (RESULTS / "house.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "house.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
