"""How the `sound` defaults of EMO and DistillMoE were chosen: what of the sweep was kept, from the committed rows.

python -m experiments.cross_tokenizer.choosing        # writes results/cross_tokenizer/choosing.md; no data are needed
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.cross_tokenizer.rows import GROUPS, ROWS, SETS
from experiments.cross_tokenizer.table import EXPERIMENT, best_rate
from experiments.harness.records import RESULTS, Rows, below, committed
from experiments.harness.tables import head, line

#: What `sound` has in place of what a row has.
COMPARED = ("emo", "distillmoe")
HEADER = """# How the defaults of EMO and DistillMoE were chosen

Made by `python -m experiments.cross_tokenizer.choosing` from the committed rows of `cross_tokenizer`. Validation scores
in points (accuracy; of STS-B Spearman's rho), seed 0, at the best rate of each row: `sound`, and `sound` with one
choice as it was before. Above 0: `sound` is better. Validation data of Banking77 and STS-B were used for choosing; the
other sets were run afterwards.
"""
MISSING = """
## What is missing

Only the two ends of each choice are there. The values between them were tried, and their scores were not kept: the
weight of EMO's first term and the entropy of its plan, the strength of the term on DistillMoE's gate. A new sweep would
run rows with these values, and `cross_tokenizer --rows former,scope,repairs`, on Banking77 and STS-B.
"""


def page(rows: Rows) -> str:
    """Markdown: a line for each former choice and labelled set."""
    lines = [HEADER, *head("set", "row", "rate", "validation", "sound", "rate", "validation", "sound ahead by")]
    groups = [name for group in ("former", "scope", "repairs") for name in GROUPS[group]]
    for name, labelled in SETS.items():
        own = below(rows, name)
        for row in [*(f"{method} paper" for method in COMPARED), *groups]:
            sound = ROWS[row].method
            both = [_validation(own, each, labelled.metric) for each in (row, sound)]
            if ROWS[row].options.get("aggregation") is None and both[0] and both[1]:
                (rate, value), (best, other) = both[0], both[1]
                cells = (f"{rate:g}", f"{value:.2f}", sound, f"{best:g}", f"{other:.2f}", f"{other - value:+.2f}")
                lines.append(line(name, row, *cells))
    found = below(rows, "unsupervised/bpe/tuning")
    lines += ["", "Without labels (validation average of emotion, STS-B and WiC after one epoch, in points):", ""]
    lines += head("row", "rate", "validation")
    for run in sorted(found.values(), key=lambda run: (run["row"], run["lr"])):
        if ROWS[run["row"]].method in COMPARED:
            lines.append(line(run["row"], f"{run['lr']:g}", f"{100 * run['validation']:.2f}"))
    return "\n".join(lines) + "\n" + MISSING


def _validation(rows: Rows, row: str, metric: str) -> tuple[float, float] | None:
    """Rate and validation score in points of a row at its best rate."""
    rate = best_rate(rows, row, metric)
    found = rows.get(f"{row}-{rate:g}-0") if rate else None
    return (rate, 100 * float(found["validation"][metric])) if rate and found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / EXPERIMENT / "choosing.md")
    options = parser.parse_args()
    text = page(committed(EXPERIMENT))
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
