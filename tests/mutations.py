"""Breaks ten lines of the core, one at a time, and says which tests notice.

    python tests/mutations.py            # all ten, some minutes
    python tests/mutations.py store sam  # those whose names begin so

Each is one replacement in a copy of the project; only the test files named beside it are run there, up to the first
failure. A mutation that no test notices is an exit code of 1. All ten were noticed when
they were last run (November 2026).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Mutation(NamedTuple):
    """`old` stands once in `file` (under src/distilvec) and becomes `new`; `tests` are below tests/."""

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTATIONS = [
    Mutation("cka", "functional/cka.py", "/ ((n - 1) * (n - 2))", "/ ((n - 1) * (n - 1))", "functional/test_cka.py"),
    Mutation(
        "relations",
        "functional/similarity.py",
        "/ max(x.shape[-2], 1) ** 2",
        "/ max(x.shape[-2], 1)",
        "functional/test_similarity.py",
    ),
    Mutation("gate", "functional/gating.py", "(losses / -beta)", "(losses / beta)", "functional/test_gating.py"),
    Mutation(
        "sphere",
        "modules/sphere.py",
        'return direction if mode == "unit" else radius * direction',
        "return direction",
        "functional/test_sphere.py",
    ),
    Mutation(
        "warping",
        "alignment/warping.py",
        "[2 * height * lanes + lanes, height * lanes + lanes, height * lanes]",
        "[height * lanes, height * lanes + lanes, 2 * height * lanes + lanes]",
        "alignment/test_align.py",
    ),
    Mutation(
        "talas-guide", "methods/talas.py", "upper = upper.detach()", "lower = lower.detach()", "methods/test_talas.py"
    ),
    Mutation(
        "padding",
        "methods/parts.py",
        "values.masked_fill(~mask, 0.0).sum(-1) /",
        "values.sum(-1) /",
        "methods/test_token_models.py",
    ),
    Mutation(
        "store-int8",
        "store/codec.py",
        "vectors *= scale[:, None]",
        "vectors *= scale.max()",
        "store/test_store_reading.py",
    ),
    Mutation(
        "sam-scale",
        "optim/sharpness.py",
        "torch._foreach_add_(scales, self.eta)",
        "torch._foreach_sub_(scales, self.eta)",
        "optim/test_sharpness.py",
    ),
    Mutation(
        "step-alpha",
        "training/step.py",
        "weight=(1 - alpha) * term.weight",
        "weight=alpha * term.weight",
        "training/test_terms.py",
    ),
]


def noticed_by(mutation: Mutation, place: Path) -> str:
    """The test that fails with the mutation; empty where none does."""
    file = place / "src" / "distilvec" / mutation.file
    text = file.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.name}: {mutation.file} has {text.count(mutation.old)} times: {mutation.old}")
    file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        files = [f"tests/{test}" for test in mutation.tests.split()]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *files]
        environment = {**os.environ, "PYTHONPATH": str(place / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return ""
        found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        if found is None:
            raise SystemExit(f"{mutation.name}: the tests could not be run\n{done.stdout}{done.stderr}")
        return found[1]
    finally:
        file.write_text(text, encoding="utf-8")


def main() -> None:
    chosen = [each for each in MUTATIONS if not sys.argv[1:] or each.name.startswith(tuple(sys.argv[1:]))]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "copy"
        place.mkdir()
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / file, place / file)
        for mutation in chosen:
            found = noticed_by(mutation, place)
            missed += not found
            print(f"{mutation.name:14} {found or 'NOT NOTICED'}", flush=True)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
