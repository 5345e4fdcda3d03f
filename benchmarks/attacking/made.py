"""Material of the attack: texts, vectors, recipes, models, and folders that commands leave."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from attacking import jobs, models
from attacking.children import Kill, command

#: A command -> the folder with what it left, to be damaged.
LEFT = {
    "compare": "compared",
    "plan": "planned",
    "finetune": "finetuned",
    "export": "exported",
    "mine": "mined",
    "adapt": "adapted",
}


def make_inputs(folder: Path) -> Path:
    """Texts, vectors, recipes and tiny models; nobody writes to them."""
    from tests import tiny_models
    from tests.english import sentences

    texts = list(dict.fromkeys(" ".join(text.split()[:10]) for text in sentences(200)))[:72]
    many = [f"{text} ({number})" for number in range(6) for text in texts]
    labelled = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(texts)]
    pairs = [{"text1": text, "text2": texts[number - 1], "score": number % 5} for number, text in enumerate(texts)]
    asked = [{"query": f"what about {text}", "document": text} for text in texts[:40]]
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for name, rows in (
        ("texts", [{"text": text} for text in texts]),
        ("many", [{"text": text} for text in many]),
        ("train", labelled[:40]),
        ("test", labelled[40:]),
        ("similar", pairs[:24]),
        ("pairs", asked),
        ("scores", [row | {"score": number / 7} for number, row in enumerate(asked)]),
    ):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "known.txt").write_text("".join(f"{text}\n" for text in texts + many), encoding="utf-8")
    np.save(folder / "vectors.npy", rng.standard_normal((len(texts) + len(many), 24)).astype(np.float32))
    for kind in ("bert", "qwen3"):
        tiny_models.build(kind, folder / kind)
    models.make_full(folder / "bert", folder / "full")
    models.make_table(folder / "bert", folder / "table")
    models.make_adapters(folder / "bert", folder / "adapters")
    np.save(folder / "index.npy", models.encode(folder / "qwen3", texts + many))
    return folder


def write_recipes(inputs: Path) -> None:
    """The recipes as files, the run folders that are damaged, and a task."""
    for name, recipe in jobs.recipes(inputs).items():
        (inputs / f"{name}.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    (inputs / "task.yaml").write_text(yaml.safe_dump(jobs.recipes(inputs)["judged"]["judging"]["tasks"][0]))


def make_runs(inputs: Path, left: Any) -> None:
    """Make folders that commands leave: a finished run, one killed after a checkpoint; with `left`, those of others."""
    both = str(inputs / "both.yaml")
    _make(inputs, "finished", ("run", both))
    _make(inputs, "unfinished", ("train", both), kill_at="checkpoint-4")
    for command_of, name in LEFT.items() if left else ():
        job = next(each for each in jobs.jobs(inputs) if each.command == command_of)
        _make(inputs, name, job.arguments)


def _make(inputs: Path, name: str, arguments: Sequence[str], kill_at: str | None = None) -> None:
    place = jobs.fresh(inputs / f"making-{name}")
    ended = command(arguments, place)
    if ended.code:
        raise SystemExit(f"{name}: the command ended with {ended.code}:\n{ended.output}")
    if kill_at is not None:
        at = next(n for n, (_, kind, path) in enumerate(ended.changes) if kind == "os.rename" and kill_at in path)
        command(arguments, jobs.fresh(place), Kill(at + 4))
    (place / "out").rename(inputs / name)
    shutil.rmtree(place)
