"""The recipes that the package brings, and the papers' settings on their other data sets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

from distilvec.errors import DistilvecError, nearest

#: What the recipes with a task are written for.
_WRITTEN_FOR = "scitail"


@dataclass(frozen=True)
class PaperSet:
    """A data set of the supervised comparison of EMO and DistillMoE, whose lambda on it is `moe_weight`."""

    kind: str
    moe_weight: float = 0.8


SETS = {
    "patent": PaperSet("classification", moe_weight=0.7),
    "imdb": PaperSet("classification"),
    "banking77": PaperSet("classification"),
    "scitail": PaperSet("pairs"),
    "control": PaperSet("pairs", moe_weight=0.7),
    "anli_r2": PaperSet("pairs"),
    "stsb": PaperSet("similarity"),
    "sts12": PaperSet("similarity"),
    "sick": PaperSet("similarity"),
}
#: The task's weight per recipe, in the order of `SETS`. Methods of class logits have none on scores; the labels alone
#: have the whole weight whatever it says.
ALPHA: dict[str, tuple[float, ...]] = {
    "paper-sft": (0.5,) * 9,
    "paper-emo-supervised": (0.5, 0.1, 0.1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5),
    "paper-distillmoe-supervised": (0.5, 0.1, 0.1, 0.5, 0.3, 0.5, 0.5, 0.5, 0.5),
    "paper-dskd": (0.5, 0.1, 0.1, 0.4, 0.3, 0.5, 0.5, 0.5, 0.5),
    "paper-uld": (0.5, 0.1, 0.2, 0.5, 0.4, 0.5),
    "paper-multilevel-ot": (0.5, 0.2, 0.1, 0.5, 0.3, 0.4),
    "paper-mined": (0.5, 0.1, 0.2, 0.5, 0.5, 0.5),
    "paper-cdm": (0.5, 0.2, 0.1, 0.4, 0.5, 0.4),
}


def names() -> list[str]:
    """Names of the recipes, starters first."""
    folder = resources.files("distilvec.recipe.packaged")
    stems = [file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml")]
    return sorted(stems, key=lambda name: (not name.startswith("start-"), name))


def read(name: str, data: str | None = None) -> str:
    """The YAML text of a recipe.

    Args:
        name: with or without `.yaml`.
        data: another data set of the papers (`SETS`), for the recipes of their supervised comparison (`ALPHA`).

    Raises:
        DistilvecError: there is no such recipe or set, or the recipe is not one of that comparison, or has no settings
            for that set.
    """
    name = name.removesuffix(".yaml")
    if name not in names():
        raise DistilvecError(f"There is no recipe {name!r}", remedy=nearest(name, names()))
    text = (resources.files("distilvec.recipe.packaged") / f"{name}.yaml").read_text(encoding="utf-8")
    return text if data is None else _for_set(name, text, data)


def _for_set(name: str, text: str, data: str) -> str:
    weights = ALPHA.get(name)
    if weights is None:
        raise DistilvecError(f"{name} has one setting only", remedy=f"--data goes with {', '.join(ALPHA)}")
    known = dict(zip(SETS, weights, strict=False))
    if data not in known:
        told = "the papers do not have this method on scores" if data in SETS else "it is none of the papers' sets"
        raise DistilvecError(f"{name} has no settings for {data!r}: {told}", remedy=nearest(data, known))
    kind, pair = SETS[data].kind, SETS[data].kind != "classification"
    label = "score" if kind == "similarity" else "label"
    columns = ("text1, text2" if pair else "text") + f", {label}"
    finetune = f"--task {kind} " + ("--text text1 --text text2" if pair else "--text text")
    changes = {
        r"^  path: .*$": f"  path: {data}.train.jsonl  # columns: {columns}",
        r"^  text: .*$": f"  text: {'[text1, text2]' if pair else 'text'}",
        r"^  label: .*$": f"  label: {label}",
        r"^  kind: pairs$": f"  kind: {kind}",
        r"^  encoding: joint .*\n": r"\g<0>" if pair else "",
        r"^  alpha: \S+": f"  alpha: {known[data]}",
        r"^  moe_weight: \S+": f"  moe_weight: {SETS[data].moe_weight}",
        "--task pairs --text text1 --text text2": finetune + (" --label score" if label == "score" else ""),
        _WRITTEN_FOR: data,
    }
    for pattern, value in changes.items():
        text = re.sub(pattern, value, text, flags=re.MULTILINE)
    return text


def listing() -> str:
    width = max(len(name) for name in names())
    return "\n".join(f"{name:<{width}}  {_summary(name)}" for name in names())


def _summary(name: str) -> str:
    lines = []
    for line in read(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# ").rstrip())
    return re.split(r"(?<=[.;])(?<!et al\.) (?![^(]*\))", " ".join(lines))[0].rstrip(".;")
