"""Write the parts of the documentation that follow from code and results: methods, options, recipe keys, commands.

    python docs/generate.py            # rewrite them in place
    python docs/generate.py --check    # exit code 1 where a page is out of date

A page marks the place with `<!-- generated: NAME -->` and `<!-- /generated -->`; NAME is `methods`, `commands`,
`defaults`, `navigation` (in mkdocs.yml), `method METHOD` (its docstring), `options METHOD`, `measured METHOD` (its rows
of the committed results), `keys NAME`, or `figures NAME`: the template docs/figures/NAME.md with figures of the results
(docs/figures.py). tests/test_docs.py runs the check.
"""

from __future__ import annotations

import argparse
import html
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from figures import TEMPLATES, filled, tables
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"(<!-- generated: ([^>]+?) -->\n).*?(<!-- /generated -->)", re.DOTALL)
#: The same in YAML, whose comments begin with a hash.
YAML_MARK = re.compile(r"( *# generated: (\w+)\n).*?( *# /generated)", re.DOTALL)
#: Committed tables: pattern of the titles and sections to show, and methods that go by another name there.
MEASURED: dict[str, tuple[str, dict[str, str]]] = {
    "headline/table.md": (".*other methods", {}),
    "talas/table.md": (".*", {}),
    "cross_tokenizer/table.md": (".*", {}),
    "many_text/table.md": (".*Corpus", {}),
    "images/table.md": (
        ".*methods",
        {
            "cosine": "multi_cosine",
            "squared error (L2)": "multi_mse",
            "likelihood (NLL)": "gaussian",
            "likelihood, beta 0.5": "gaussian beta 0.5",
            "likelihood, beta 1": "gaussian beta 1",
            "likelihood, paper's preset": "gaussian paper",
        },
    ),
    "molecules/table.md": (".*Teachers and students", {}),
    "mixtures/table.md": (".*", {}),
    "writing/table.md": (".*", {}),
    "scores/table.md": (".*(Retrieval|Chosen)", {}),
}
GREEK = {"alpha": "α", "beta": "β", "lambda": "λ", "mu": "μ", "Sigma": "Σ", "tau": "τ"}
#: Made of docs/figures/chart.svg.
CHART = ROOT / "docs/assets/chart.svg"
LIMITS = {"Gt": ">", "Ge": "≥", "Lt": "<", "Le": "≤", "MinLen": "at least"}


def pages() -> Iterator[Path]:
    """The files that may hold generated parts."""
    yield ROOT / "mkdocs.yml"
    yield ROOT / "README.md"
    yield from sorted({*(ROOT / "docs").rglob("*.md")} - {*TEMPLATES.glob("*.md")})


def rewritten(text: str, page: Path) -> str:
    """A page with its generated parts made anew."""
    mark = YAML_MARK if page.suffix == ".yml" else MARK
    return mark.sub(lambda found: f"{found[1]}{part(found[2], page)}\n{found[3]}", text)


def part(name: str, page: Path) -> str:
    """The markdown of one generated part of a page."""
    kind, _, detail = name.partition(" ")
    makers: dict[str, Callable[[], str]] = {
        "methods": lambda: methods_table(page),
        "navigation": navigation,
        "method": lambda: method_text(detail),
        "measured": lambda: measured(detail),
        "figures": lambda: filled(detail),
        "claims": lambda: claims_table(detail),
        "commands": commands_table,
        "options": lambda: options_table(detail),
        "keys": lambda: keys_table(detail),
        "defaults": defaults_table,
    }
    if kind not in makers:
        raise SystemExit(f'there is no generated part "{name}"')
    return makers[kind]()


def chart() -> str:
    """The picture of quality against parameters."""
    return filled("chart.svg") + "\n"


def navigation() -> str:
    """The methods' pages, as mkdocs.yml lists them."""
    from distilvec.methods.table import TABLE

    return "\n".join(f"      - {name}: methods/{name}.md" for name in TABLE)


def methods_table(page: Path) -> str:
    """Every method of the package with its summary and paper, and a link to its own page."""
    from distilvec.methods.table import TABLE, resolve

    folder = Path("docs/methods" if page.parent == ROOT else "methods")
    rows = [["method", "what it does", "source"]]
    for name in TABLE:
        cls = resolve(name)
        rows.append([f"[`{name}`]({folder.as_posix()}/{name}.md)", cls.summary, linked(cls.paper)])
    return pipes(rows)


def method_text(method: str) -> str:
    """What a method's file says about it, its formulas as blocks, and its source."""
    from distilvec.methods.table import resolve

    cls = resolve(method)
    said = inspect.cleandoc(sys.modules[cls.__module__].__doc__ or "")
    said = re.sub(r"\n*((?:^ {4}.*\n?)+)", lambda block: f"\n\n{formula(block[1])}\n", said, flags=re.MULTILINE)
    shared = "Symbols and presets: [what they share](../methods.md#what-they-share)."
    return f"{said}\n\n*Source:* {linked(cls.paper)}. {shared}"


def formula(text: str) -> str:
    """Lines of a formula as HTML, which needs no script: with letters below and above, and broken where it is too wide.

    >>> formula("    L = mean_i ||e_i - t_i||^2")
    '<p>L = mean<sub>i</sub> ‖e<sub>i</sub> − t<sub>i</sub>‖<sup>2</sup></p>'
    """
    shown = html.escape(textwrap.dedent(text).rstrip(), quote=False)
    for old, new in (("||", "‖"), ("&lt;=", "≤"), ("&gt;=", "≥"), ("!=", "≠"), (" - ", " − "), (" -", " −")):
        shown = shown.replace(old, new)
    shown = re.sub(rf"(?<![A-Za-z])({'|'.join(GREEK)})(?![A-Za-z])", lambda name: GREEK[name[1]], shown)
    shown = re.sub(r"(?<![A-Za-z])sum(?=_)", "∑", re.sub(r"sqrt(?=\()", "√", shown))
    for mark, tag in (("_", "sub"), (r"\^", "sup")):  # names such as student_space stay
        shown = re.sub(rf"{mark}\{{([^}}]*)\}}", rf"<{tag}>\1</{tag}>", shown)
        shown = re.sub(rf"(?<![a-z]{{4}}){mark}(\([^)]*\)|[A-Za-z0-9]+)", rf"<{tag}>\1</{tag}>", shown)
        shown = re.sub(rf"{mark}([a-z]{{1,2}})\b", rf"<{tag}>\1</{tag}>", shown)
    lines = [re.sub(r"(?<=\S) {2,}(?!=)|^ +", "&emsp;", re.sub(" +=", " =", line)) for line in shown.split("\n")]
    return "<p>" + "<br>\n".join(lines) + "</p>"


def measured(method: str) -> str:
    """A method's rows of the committed tables, with the rows of teachers and untrained students beside them."""
    found = []
    for name, (pattern, labels) in MEASURED.items():
        file = ROOT / "experiments/results" / name
        for heading, table in tables(file) if file.exists() else ():
            named = [(labels.get(row[0], row[0]), row) for row in table[1:]]
            own = [row for label, row in named if re.match(rf"{method}(?![\w])", label)]
            if own and re.match(pattern, heading):
                beside = [row for label, row in named if re.match("teacher|untrained|free baseline", label)]
                where = f"all rows, and how it was made: `experiments/results/{name}`"
                found.append(f"{heading} ({where}):\n\n{pipes([table[0], *beside, *own])}")
    return "\n\n".join(found) or "Nothing yet: no committed result has a row of this method."


def claims_table(paper: str) -> str:
    """The section of a paper in experiments/claims/CLAIMS.md."""
    _, _, rest = (ROOT / "experiments/claims/CLAIMS.md").read_text(encoding="utf-8").partition(f"\n## {paper}\n")
    if not rest:
        raise SystemExit(f"experiments/claims/CLAIMS.md has no section {paper}")
    section = rest.partition("\n## ")[0].strip()
    return f"{section}\n\nThe rules and the students are those of `experiments/claims/CLAIMS.md`."


def commands_table() -> str:
    """Every command with its own one line of help."""
    from typer.main import get_command

    from distilvec.cli.main import every_command

    commands: dict[str, Any] = get_command(every_command()).commands  # type: ignore[attr-defined]
    rows = [["command", "what it does"]]
    rows += [[f"`distilvec {name}`", command.get_short_help_str(limit=200)] for name, command in commands.items()]
    return pipes(rows)


def options_table(method: str) -> str:
    """A method's options, and what its presets change."""
    from distilvec.methods.table import resolve

    schema = resolve(method).Options
    rows = [["option", "default", "meaning"]]
    for name, field in schema.model_fields.items():
        rows.append([f"`{name}`", default_of(field), meaning_of(field)])
    lines = [pipes(rows)]
    for preset, values in schema.presets.items():
        shown = ", ".join(f"`{key}: {yaml_value(value)}`" for key, value in values.items())
        lines.append(f"`preset: {preset}` changes {shown}.")
    return "\n\n".join(lines)


def keys_table(section: str) -> str:
    """The keys of one section of a recipe, or of a task's description."""
    from distilvec.judging import spec
    from distilvec.recipe import recipe, student_sections
    from distilvec.recipe import sections as others
    from distilvec.recipe.sections import SCORERS
    from distilvec.teachers import sections as teachers
    from distilvec.teachers.table import sections

    if section in ("TeacherSection", "ScorerSection"):
        return kinds_table(sections() if section == "TeacherSection" else SCORERS)
    places = (spec, recipe, others, student_sections, teachers)
    home = next(each for each in places if hasattr(each, section))
    model: type[BaseModel] = getattr(home, section)
    rows = [["key", "default", "meaning"]]
    for name, field in model.model_fields.items():
        rows.append([f"`{name}`", default_of(field), meaning_of(field)])
    return pipes(rows)


def kinds_table(kinds: Mapping[str, type[BaseModel]]) -> str:
    """The keys of a section that is one of several kinds, each with the kinds that have it."""
    owners: dict[tuple[str, str, str], list[str]] = {}
    for kind, model in kinds.items():
        for name, field in model.model_fields.items():
            owners.setdefault((f"`{name}`", default_of(field), meaning_of(field)), []).append(f"`{kind}`")
    rows = [
        [key, "all" if len(found) == len(kinds) else ", ".join(found), default, meaning]
        for (key, default, meaning), found in owners.items()
    ]
    return pipes([["key", "of", "default", "meaning"], *rows])


def defaults_table() -> str:
    """What a recipe gets that leaves its settings open, a row per kind of student."""
    from distilvec import plain_yaml
    from distilvec.recipe.defaults import DEFAULTS

    head = ["student", "method", "student's keys", "learning rate", "batch", "epochs on 1,000 / 10,000 / 100,000 texts"]
    rows = [[*head, "chosen by"]]
    for row in DEFAULTS.values():
        method = " + ".join(f"`{plain_yaml.flow(entry)}`" for entry in row.method)
        keys = ", ".join(f"`{key}: {yaml_value(value)}`" for key, value in row.student.items())
        epochs = " / ".join(str(row.epochs(texts)) for texts in (1_000, 10_000, 100_000))
        page, separator, remark = row.evidence.partition(";")
        rows.append(
            [row.kind, method, keys, f"{row.lr:g}", str(row.batch_size), epochs, f"`{page}`{separator}{remark}"]
        )
    return pipes(rows)


def default_of(field: FieldInfo) -> str:
    """The default as one writes it in YAML; "required" without one."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "its own defaults"
    return "" if value is PydanticUndefined else f"`{yaml_value(value)}`"


def meaning_of(field: FieldInfo) -> str:
    """The description, the choices and the limits of a value."""
    parts = [field.description or ""]
    choices = [str(choice) for kind in literals(field.annotation) for choice in get_args(kind)]
    if choices:
        parts.append("one of " + ", ".join(f"`{choice}`" for choice in choices))
    known = [each for each in field.metadata if type(each).__name__ in LIMITS]
    limits = [limit_of(each) for each in known if field.annotation is not str]
    if limits:
        parts.append(", ".join(limits))
    return "; ".join(text for text in parts if text)


def literals(annotation: Any) -> Iterator[Any]:
    """The `Literal`s inside an annotation."""
    if get_origin(annotation) is Literal:
        yield annotation
    elif get_origin(annotation) in (typing.Union, types.UnionType):
        for each in get_args(annotation):
            yield from literals(each)


def limit_of(limit: Any) -> str:
    """One of annotated_types' limits in words."""
    (value,) = (getattr(limit, name) for name in limit.__dataclass_fields__)
    return f"{LIMITS[type(limit).__name__]} {value}"


def yaml_value(value: Any) -> str:
    """A Python value in YAML's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, frozenset):
        return str(sorted(value))
    return '""' if value == "" else str(value)


def linked(paper: str) -> str:
    """arXiv numbers as links."""
    return re.sub(r"arXiv:(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)


def pipes(rows: list[list[str]]) -> str:
    """Rows as a markdown table; the first is the header."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]])


def main() -> int:
    """Rewrite the pages, or with --check say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a page is out of date")
    check = parser.parse_args().check
    old = 0
    for page in (*pages(), CHART):
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        new = chart() if page == CHART else rewritten(text, page)
        if new == text:
            continue
        old += 1
        if check:
            sys.stdout.write(f"{page.relative_to(ROOT)} is out of date: run python docs/generate.py\n")
        else:
            page.write_text(new, encoding="utf-8")
            sys.stdout.write(f"{page.relative_to(ROOT)} rewritten\n")
    return 1 if old and check else 0


if __name__ == "__main__":
    sys.exit(main())
