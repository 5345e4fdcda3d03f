"""What `cross_tokenizer` runs: labelled sets, rows with their options, and the published task weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from distilvec.methods.tokens.distillmoe import DistillMoEOptions
from distilvec.methods.tokens.emo import EMOOptions


@dataclass(frozen=True)
class LabelledSet:
    """A labelled set of the shared data.

    Attributes:
        train: rows that are drawn (seeded) from the training split; None = all.
        validation: rows drawn from the rest of it, for a set that has no official validation split.
        seeds: runs of every row, unless asked otherwise.
        encoding: of pairs: one input, or two that are encoded apart.
        file: whose files it reads; None = those of its own name.
        rates_of: the set whose chosen learning rates it takes; None = rates are chosen on its own validation data.
    """

    kind: str
    label: str = "label"
    train: int | None = None
    validation: int | None = None
    seeds: int = 1
    rates_of: str | None = None
    encoding: Literal["joint", "separate"] | None = None
    file: str | None = None

    @property
    def text(self) -> str | list[str]:
        return "text" if self.kind == "classification" else ["text1", "text2"]

    @property
    def metric(self) -> str:
        return "spearman" if self.kind == "similarity" else "accuracy"


SETS = {
    # Its training file is sorted by intent: the first 5,000 rows hold 40 of the 77, so rows are drawn.
    "banking77": LabelledSet("classification", train=5000, validation=1000, seeds=3),
    "sick": LabelledSet("pairs", seeds=3),
    "stsb_separate": LabelledSet("similarity", label="score", seeds=3, encoding="separate", file="stsb"),
    "stsb": LabelledSet("similarity", label="score", seeds=3),
    "mrpc": LabelledSet("pairs", rates_of="sick"),
    "sst2": LabelledSet("classification", train=4000),
    "emotion": LabelledSet("classification", train=5000, seeds=3),
    "ag_news": LabelledSet("classification", train=5000, validation=1000, seeds=3),
}
#: Of the student `bpe`, unless asked otherwise.
USUAL = ("banking77", "sick", "stsb_separate", "mrpc", "sst2")

#: Weight of the task, published per set and method. SICK's entailment and MRPC are not among the papers' sets and have
#: SciTail's, the other one on pairs of texts; SST-2 has IMDb's, Emotion and AG News have Banking77's.
_SCITAIL = {"emo": 0.5, "distillmoe": 0.5, "uld": 0.5, "multilevel_ot": 0.5, "mined": 0.5, "cdm": 0.4, "dskd": 0.4}
ALPHA: dict[str, dict[str, float]] = {
    "banking77": {
        "emo": 0.1,
        "distillmoe": 0.1,
        "uld": 0.2,
        "multilevel_ot": 0.1,
        "mined": 0.2,
        "cdm": 0.1,
        "dskd": 0.1,
    },
    "sick": _SCITAIL,
    "mrpc": _SCITAIL,
    "sst2": {"emo": 0.1, "distillmoe": 0.1, "uld": 0.1, "multilevel_ot": 0.2, "mined": 0.1, "cdm": 0.2, "dskd": 0.1},
    "stsb": {"emo": 0.5, "distillmoe": 0.5, "dskd": 0.5, "mined": 0.5, "cdm": 0.5},
}
ALPHA["stsb_separate"] = ALPHA["stsb"]
ALPHA["emotion"] = ALPHA["ag_news"] = ALPHA["banking77"]


@dataclass(frozen=True)
class Row:
    """A method with options.

    Attributes:
        like: the row whose learning rate it takes; None = it has the full grid.
        task: further keys of the task.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    like: str | None = None
    task: Mapping[str, Any] = field(default_factory=dict)


MAIN: dict[str, Row] = {
    "sft": Row("sft"),
    "uld": Row("uld"),
    "mined": Row("mined"),
    "multilevel_ot": Row("multilevel_ot"),
    "cdm": Row("cdm"),
    "dskd": Row("dskd"),
    "emo paper": Row("emo", {"preset": "paper"}),
    "emo": Row("emo"),
    "distillmoe paper": Row("distillmoe", {"preset": "paper"}),
    "distillmoe": Row("distillmoe"),
}
#: What is left of the logit methods where there are no classes.
ON_STATES = {f"{name} on states": Row(name, {"form": "embedding"}) for name in ("mined", "cdm")}

#: The main rows but those that sort logits, which train with labels first alone.
UNSORTED = {name: row for name, row in MAIN.items() if name not in ("uld", "multilevel_ot")}
#: Sorting forgets which class is which: here the first of three epochs is for the labels alone.
LABELS_FIRST = {f"{name} labels first": Row(name, task={"labels_first": 1 / 3}) for name in ("uld", "multilevel_ot")}

EXPERTS = ("cosine", "contrast", "margin")
#: How DistillMoE's head adds its experts up; `distillmoe` is linear.
AGGREGATION = {"distillmoe sba": Row("distillmoe", {"aggregation": "sba"}, like="distillmoe")}
#: What `sound` was before: EMO's two terms weighing the same, with the published plan; and DistillMoE's head from
#: random weights, its gate without Lemma 3.1's term, CKA over the batch. Learning rates of their own.
_BEFORE = {"start": "random", "gate_kl": 0.0, "scope": "batch"}
_NAMED = "but start random gate_kl 0.0 scope batch"
FORMER = {
    "emo but ira_weight 1 epsilon 0.1": Row("emo", {"ira_weight": 1.0, "epsilon": 0.1}),
    f"distillmoe {_NAMED}": Row("distillmoe", _BEFORE),
    f"distillmoe sba {_NAMED}": Row("distillmoe", {"aggregation": "sba", **_BEFORE}, like=f"distillmoe {_NAMED}"),
}
#: CKA over the tokens of the batch instead of each sentence's.
SCOPE = {"distillmoe but scope batch": Row("distillmoe", {"scope": "batch"}, like="distillmoe")}
#: DistillMoE's table 11.
FIXED = ((0.2, 0.6, 0.2), (0.3, 0.3, 0.3), (0.7, 0.2, 0.1), (0.1, 0.2, 0.7), (0.4, 0.4, 0.2), (0.4, 0.5, 0.1))
ALL_LAYERS = 4  # of the student
_ABLATIONS: dict[str, dict[str, dict[str, Any]]] = {
    "emo": {
        "without ira": {"ira_weight": 0},
        "without otis": {"otis_weight": 0},
        "share 1": {"share": 1.0},
        "share 0.5": {"share": 0.5},
    },
    "distillmoe": {
        "without dynamic_cka": {"moe_weight": 1},
        "without experts": {"experts": []},
        "without head": {"head": False},
        **{f"without {name}": {"experts": [e for e in EXPERTS if e != name]} for name in EXPERTS},
        "head_rate 1": {"head_rate": 1.0},
        "width 512": {"width": 512},
        "width 1536": {"width": 1536},
        "layers 1": {"layers": 1},
        "layers 2": {"layers": 2},
        "layers all": {"layers": ALL_LAYERS},
        # As in the paper: no mixture, its losses on the student's own embedding.
        **{f"fixed {' '.join(map(str, w))}": {"head": False, "loss_weights": list(w)} for w in FIXED},
    },
}
#: Little but the labels is left of these, which diverge on STS-B at the rate of their method, as `sft` does.
_OWN_RATES = ("without otis", "without experts")


def ablations(preset: str | None) -> dict[str, Row]:
    """The papers' ablations of both methods, from one preset."""
    rows = {}
    for method, parts in _ABLATIONS.items():
        base = f"{method} {preset}" if preset else method
        options = {"preset": preset} if preset else {}
        for name, changed in parts.items():
            rows[f"{base} {name}"] = Row(method, {**options, **changed}, None if name in _OWN_RATES else base)
    return rows


def repairs() -> dict[str, Row]:
    """The sound preset with one formula as the paper has it: what each repaired formula does."""
    rows = {}
    for method, schema in (("emo", EMOOptions), ("distillmoe", DistillMoEOptions)):
        paper = dict(schema.presets["paper"])
        paper.pop("causal_correction", None)  # the teachers here are not causal
        paper.pop("start", None)  # a group of its own
        changes = {key: {key: value} for key, value in paper.items()}
        if "token_map" in changes:  # one cannot be without the other
            changes["token_map"] |= changes.pop("differentiate_weights")
        for key, changed in changes.items():
            rows[f"{method} but {key} {str(paper[key]).lower()}"] = Row(method, changed, method)
    return rows


GROUPS: dict[str, dict[str, Row]] = {
    "main": MAIN,
    "unsorted": UNSORTED,
    "states": ON_STATES,
    "labels-first": LABELS_FIRST,
    "aggregation": AGGREGATION,
    "former": FORMER,
    "scope": SCOPE,
    "ablations": ablations(None),
    "paper-ablations": ablations("paper"),
    "repairs": repairs(),
}
ROWS: dict[str, Row] = {name: row for group in GROUPS.values() for name, row in group.items()}
#: The embedding forms, for training without labels: name -> method, options, sharpness-aware steps.
UNSUPERVISED: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    name: (row.method, dict(row.options), None)
    for name, row in MAIN.items()
    if row.method in ("mined", "cdm", "dskd", "emo", "distillmoe")
}
