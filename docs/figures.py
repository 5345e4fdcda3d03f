"""Fill the templates in docs/figures/ with figures of the committed results.

A template is Markdown with Jinja expressions. `rows("talas/table.md", "Student bpe")` gives the rows of the
tables below that heading (its end is enough) of a result page in experiments/results, or in benchmarks/results with
`benchmarks/` in front; the experiments write these pages from their JSON. `rows(...)[label][column]` is a `Number`,
which prints with one decimal. `falling` checks the order that the words around a figure claim, so that no sentence
outlives it. An unknown file, row or column stops the build.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # docs/generate.py is run as a file
    sys.path.append(str(ROOT))
TEMPLATES = ROOT / "docs/figures"
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Number:
    """A figure of a table.

    Attributes:
        value: as the table has it, in the table's unit.
        spread: what stands behind ±; None without.
        text: the whole cell.
    """

    value: Decimal
    spread: Decimal | None = None
    text: str = ""

    def __str__(self) -> str:
        return self.to(1)

    def to(self, decimals: int) -> str:
        """With so many decimals and a comma between thousands."""
        return f"{self._rounded(self.value, decimals):,}"

    def pm(self) -> str:
        """With its deviation, where it has one, and the decimals of the table."""
        return f"{self.value:,}" + ("" if self.spread is None else f" ± {self.spread}")

    def signed(self, decimals: int = 1) -> str:
        """With a plus where it is positive."""
        return f"{self._rounded(self.value, decimals):+,}"

    def __sub__(self, other: Number) -> Number:
        return Number(self.value - other.value)

    def __truediv__(self, other: Number | float) -> Number:
        return Number(self.value / (other.value if isinstance(other, Number) else Decimal(str(other))))

    @staticmethod
    def _rounded(value: Decimal, decimals: int) -> Decimal:
        rounded = value.quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP)
        return rounded if rounded else abs(rounded)  # no -0.0


def filled(name: str) -> str:
    """A template of docs/figures with its figures in it; a name without an ending is that of a page."""
    file = name if "." in name else f"{name}.md"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"millions": lambda count: number(count / 1e6)}
    environment.globals |= {
        "rows": rows,
        "falling": falling,
        "record": record,
        "options": options,
        "last": last,
        "benchmark": benchmark,
        "lines": lines,
        "sets": sets,
        "seeds": seeds,
        "log10": math.log10,
    }
    environment.globals |= {"closed": closed, "planned": planned}
    try:
        return re.sub(r"\n{3,}", "\n\n", environment.get_template(file).render().strip())
    except (jinja2.TemplateError, LookupError, ValueError) as error:
        raise SystemExit(f"docs/figures/{file}: {error!r}") from error


@cache
def rows(file: str, section: str = "") -> dict[str, dict[str, Number]]:
    """The rows of tables whose heading, "title. section", ends with `section`: label -> column -> figure."""
    found: dict[str, dict[str, Number]] = {}
    for heading, table in tables(page(file)):
        if heading.endswith(section):
            for label, *cells in table[1:]:
                found.setdefault(label.strip("*"), {}).update(
                    zip([name.replace("`", "") for name in table[0][1:]], map(number, cells), strict=True)
                )
    if not found:
        raise LookupError(f"{file} has no table under {section!r}")
    return found


def sets(experiment: str, name: str, model: str) -> dict[str, Number]:
    """Main metrics of a model by evaluation set in percent, from a committed result."""
    found = record(experiment, name)["tasks"][model]
    values = {name: score["value"] if isinstance(score, dict) else score for name, score in found.items()}
    return {name: number(100 * value) for name, value in values.items()}


@cache
def lines(file: str) -> list[dict[str, str]]:
    """Every row of every table of a result page, column -> cell, for pages whose rows have no name."""
    return [dict(zip(table[0], row, strict=True)) for _, table in tables(page(file)) for row in table[1:]]


def number(cell: str | float) -> Number:
    """What a cell says: the number, its deviation, and the text as it stands; NaN where there is no number."""
    text = str(cell)
    value, _, spread = text.partition("±")
    first, second = NUMBER.search(value), NUMBER.search(spread)
    plain = [None if part is None else Decimal(part[0].replace(",", "")) for part in (first, second)]
    return Number(Decimal("nan") if plain[0] is None else plain[0], plain[1], text)


def record(experiment: str, name: str) -> dict[str, Any]:
    """A committed result, for the few figures that stand in no table."""
    return records(experiment)[name]


def options(experiment: str, name: str) -> dict[str, Any]:
    """What made a committed result."""
    from experiments.harness.records import RESULTS, read_records

    found = (each for each in read_records(RESULTS / experiment / "results.jsonl") if each["name"] == name)
    chosen: dict[str, Any] = next(found)["options"]
    return chosen


@cache
def records(experiment: str) -> dict[str, dict[str, Any]]:
    """All committed results of an experiment."""
    from experiments.harness.records import committed

    return committed(experiment)


def seeds(experiment: str, row: str) -> str:
    """How many seeds a row was trained with, in words."""
    count = sum(name.rpartition("-")[0] == row for name in records(experiment))
    return {1: "one seed", 2: "two seeds", 3: "three seeds"}.get(count, f"{count} seeds")


def last(experiment: str, row: str, term: str) -> list[Number]:
    """What a term was at the end of a row's trainings on all sets and seeds, sorted."""
    found = [each for name, each in records(experiment).items() if f"/{row}-" in name and "last_terms" in each]
    return sorted((number(each["last_terms"][term]) for each in found), key=lambda figure: figure.value)


def benchmark(name: str) -> Any:
    """The JSON file of a benchmark."""
    return json.loads((ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8"))


def page(file: str) -> Path:
    """A result page by its short name."""
    return (
        ROOT
        / ("benchmarks/results" if file.startswith("benchmarks/") else "experiments/results")
        / (file.removeprefix("benchmarks/"))
    )


def closed(kind: str, read: int) -> str:
    """The share of the gap to the teacher that committed runs of this kind and length closed, as `plan` has it."""
    from distilvec.choosing.prediction import like, shares

    found = like(read, kind)
    if not found:
        return ""
    low, middle, high = (f"{100 * share:.0f}" for share in shares(read, kind))
    return f"{middle} % ({low} to {high}), {len(found)} runs"


def planned(read: int) -> list[dict[str, str]]:
    """The candidates of the committed plan, with what `plan` predicts today for a training of `read` texts."""
    from distilvec.choosing.prediction import kind_of, predict

    found = []
    for row in record("choosing", "plan")["rows"]:
        untrained, free = (100 * row["kept"][way]["all"] for way in ("untrained", "free"))
        found.append(
            {
                "name": row["name"],
                "parameters": f"{row['parameters'] / 1e6:.2f} M",
                "disk": f"{row['size_bytes'] / 1e6:.1f} MB",
                "agreement": f"{row['agreement']:.3f}",
                "start": f"{untrained:.1f} / {free:.1f}",
                "predicted": str(predict(max(untrained, free) / 100, read, kind_of(row["section"]))),
            }
        )
    return found


def falling(*figures: Number) -> str:
    """Nothing, where each figure is larger than the next; what a sentence says of their order is checked with it."""
    for first, second in pairwise(figures):
        if not first.value > second.value:
            raise ValueError(f"the text says that {first.text or first.value} is above {second.text or second.value}")
    return ""


def tables(file: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """The tables of a markdown page, each with its title and section and the rule left out."""
    title, section, table = "", "", list[list[str]]()
    for line in [*file.read_text(encoding="utf-8").splitlines(), ""]:
        if line.startswith("| ") or line.startswith("|-"):
            table += [[cell.strip() for cell in line.strip("|").split("|")]] if line.startswith("| ") else []
            continue
        if table:
            yield f"{title}. {section}" if section else title, table
            table = []
        if line.startswith("# "):
            title = line[2:]
        elif line.startswith("#"):
            section = line.lstrip("# ").replace("`", "")
