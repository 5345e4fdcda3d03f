"""Results of the attack, as JSON and as a table."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Parts of the attack -> what the names of their blocks begin with; inputs are all others.
PARTS = {"kills": "kill-", "errors": "error-"}


def gather(found: Sequence[dict[str, Any]], seed: int) -> dict[str, Any]:
    """Add up the results of all blocks, by command and kind."""
    import numpy as np
    import torch

    kills: dict[str, dict[str, Any]] = {}
    errors: dict[str, dict[str, Any]] = {}
    fed: dict[str, dict[str, Any]] = {}
    for block in found:
        if "kills" in block:
            row = _row(kills, block["command"], ("kills", "cases", "held", "left"), block)
            for key in ("signals", "places"):
                row[key] = row.get(key, Counter()) + Counter(block[key])
        elif "errors" in block:
            _row(errors, block["command"], ("errors", "well", "refused"), block)
        else:
            _row(fed, block["kind"], ("tried", "accepted", "refused"), block)
    return {
        "seed": seed,
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"torch {torch.__version__}, numpy {np.__version__}",
        "kills": kills,
        "errors": errors,
        "inputs": fed,
        "broken": [{"block": block["name"], **each} for block in found for each in block["broken"]],
    }


def _row(rows: dict[str, dict[str, Any]], name: str, keys: Sequence[str], block: dict[str, Any]) -> dict[str, Any]:
    row = rows.setdefault(name, {**dict.fromkeys(keys, 0), "broke": 0})
    for key in keys:
        row[key] += block[key]
    row["broke"] += len(block["broken"])
    return row


def part_of(block: str) -> str:
    """The part of the attack that a block belongs to."""
    return next((part for part, start in PARTS.items() if block.startswith(start)), "inputs")


def keep_the_other(result: dict[str, Any], file: Path) -> None:
    """Complete a result with the parts in `file` that were not tried this time."""
    before = json.loads(file.read_text()) if file.exists() else {}
    for part in (*PARTS, "inputs"):
        if not result[part] and before.get(part):
            result[part] = before[part]
            result["broken"] += [each for each in before["broken"] if part_of(each["block"]) == part]


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [f"Seed {result['seed']}; {result['machine']}"]
    kills = result["kills"]
    if kills:
        names = {"kills": "kills", "cases": "started again to the end", "held": "held", "broke": "broke"}
        lines += _lines("command", kills, names)
        for key, told in (("signals", "How they died"), ("places", "What they were at")):
            counts: Counter[str] = sum((Counter(row[key]) for row in kills.values()), Counter())
            lines += ["", f"{told}: " + ", ".join(f"{name} {count:,}" for name, count in counts.most_common()) + "."]
        left = sum(row["left"] for row in kills.values())
        lines += ["", f"Hidden unfinished files were left in {left:,} of the folders; `distilvec clean` removes them."]
    names = {"errors": "errors of the disk", "well": "ended well", "refused": "said so, and went on", "broke": "broke"}
    lines += _lines("command", result["errors"], names)
    names = {"tried": "tried", "accepted": "accepted", "refused": "refused with an error", "broke": "broke"}
    lines += _lines("input", result["inputs"], names)
    for each in result["broken"]:
        what = str(each["what"]).replace("\n", " ").replace("|", "\\|")
        lines += ["", f"Broke: {each['block']}, case {each['case']}: {what[:300]}"]
    return "\n".join(lines) + "\n"


def _lines(what: str, rows: dict[str, dict[str, Any]], names: dict[str, str]) -> list[str]:
    """Rows of counts with their sum, and an empty line before them."""
    if not rows:
        return []
    total = {key: sum(row[key] for row in rows.values()) for key in names}
    cells = [(name, [f"{row[key]:,}" for key in names]) for name, row in [*rows.items(), ("all", total)]]
    head = ["", f"| {what} | {' | '.join(names.values())} |", "|---" * (len(names) + 1) + "|"]
    return head + [f"| {name} | {' | '.join(counts)} |" for name, counts in cells]
