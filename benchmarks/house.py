"""Measure how a checkout is built: its size, the length of its parts, what a run loads, and what asks about what.

    python benchmarks/house.py                           # the working tree; "before" stays as it was written
    python benchmarks/house.py --against 3ed507a         # that commit as "before", too
    python benchmarks/house.py 7dfa07d                   # a commit in place of the working tree
    python benchmarks/house.py --show "functions over"   # the places that a rule counts; nothing is written

Commits are checked out with `git worktree` in a temporary folder. What is measured, and how, is in housing/rules.py and
under the table; most of the time goes into a default run, which is traced line by line, and an import of everything.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from housing.checkout import House
from housing.rules import OUTSIDE, RULES

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def measured(house: House, commit: str) -> dict[str, Any]:
    """The figures of a checkout: rule -> number or [part, whole], and lines outside the spine by group."""

    def count(found: Any) -> Any:
        return len(found) if isinstance(found, list) and not (found and isinstance(found[0], int)) else found

    counts = {name: count(measure(house)) for name, (_, measure) in RULES.items()}
    outside = {name: house.lines(paths) for name, paths in OUTSIDE.items()}
    return {"commit": commit, "counts": counts, "outside": outside}


def table(figures: dict[str, dict[str, Any]]) -> str:
    """The page of the figures of one or two checkouts."""

    def row(name: str, group: str, last: str) -> str:
        values = [side[group][name] for side in figures.values()]
        cells = [f"{v:,}" if isinstance(v, int) else f"{v[0]:,} of {v[1]:,} ({v[0] / v[1]:.1%})" for v in values]
        return f"| {' | '.join([name, *cells, last])} |"

    heads = " | ".join(f"{name}: {side['commit']}" for name, side in figures.items())
    line = f"| --- |{' ---: |' * len(figures)} --- |"
    lines = ["# The house in numbers", "", "`python benchmarks/house.py --against 3ed507a`", ""]
    lines += [f"| measured | {heads} | aim |", line]
    lines += [row(name, "counts", aim) for name, (aim, _) in RULES.items()]
    lines += ["", *(f"- **{name}**: {' '.join(str(each.__doc__).split())}." for name, (_, each) in RULES.items())]
    lines += ["", "## Outside the spine", "", f"| lines of | {heads} | paths under src/distilvec |", line]
    return "\n".join([*lines, *(row(name, "outside", f"`{paths}`") for name, paths in OUTSIDE.items()), ""])


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def checkout(commit: str | None) -> Iterator[tuple[House, str]]:
    """A commit, checked out while the block runs, or the working tree; with its name."""
    if commit is None:
        yield House(ROOT), git("describe", "--always", "--dirty", "--exclude=*")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = str(Path(name) / "checkout")
        git("worktree", "add", "--quiet", "--detach", folder, commit)
        try:
            yield House(Path(folder)), git("rev-parse", "--short", commit)
        finally:
            git("worktree", "remove", "--force", folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", help="what is measured; default the working tree")
    parser.add_argument("--against", metavar="COMMIT", help="measure this one, too, as before")
    parser.add_argument("--show", metavar="WORDS", help="print what the rules with these words in their names find")
    asked = parser.parse_args()
    if asked.show is not None:
        with checkout(asked.commit) as (house, _):
            for name, (_, measure) in RULES.items():
                if asked.show in name:
                    found = measure(house)
                    print(name, *(found if isinstance(found, list) else [found]), sep="\n  ")
        return
    stored = RESULTS / "house.json"
    figures = json.loads(stored.read_text(encoding="utf-8"))
    for side, commit in (("before", asked.against), ("now", asked.commit)):
        if side == "now" or commit:
            with checkout(commit) as (house, name):
                figures[side] = measured(house, name)
    stored.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "house.md").write_text(table(figures), encoding="utf-8")
    print(table(figures))


if __name__ == "__main__":
    main()
