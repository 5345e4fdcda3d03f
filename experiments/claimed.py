"""What the papers claim, as comparisons of two rows of ours; `claims.py` judges them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import image_tables
import many_text_table
import molecule_rows
import molecule_tables
import talas_table
from claim import (
    IMAGES,
    LABELLED,
    LABELLED_LATER,
    LONG,
    MIXTURES,
    MOLECULES,
    OUT_OF_DOMAIN,
    OWN_RADIUS,
    SIMILAR,
    STARTS,
    STUDENTS,
    TEXTS,
    WRITING,
    Claim,
)
from cross_rows import FIXED, MAIN
from image_starts_table import BEST_SINGLE as BEST_OF_STARTS
from image_starts_table import START
from measured import MEASURED
from molecules_long_table import BEST_SINGLE as BEST_OF_LONG
from molecules_long_table import LIKE
from similar_teachers_table import BEST_SINGLE as BEST_OF_SIMILAR

#: Sets that one metric judges.
PARTS = {
    "classification": many_text_table.KINDS["classification"],
    "AUROC": tuple(name for name in molecule_rows.SETS if name not in molecule_rows.NUMBERS),
    "out of domain": talas_table.OUT_OF_DOMAIN,
}


#: Of TALAS's Table 3 and of token_steps.py: the teacher's forward pass is in these ratios, and it grows with its size.
_OTHER_SIZES = "theirs a teacher of 4 B and a student of 109 M on a GPU, ours 23 M and 5 M on one core"


def _live(name: str, limit: float) -> Claim:
    """A step with the teacher in it, in steps of SimCSE."""
    text = f"A step of {name}, teacher live, in steps of SimCSE"
    row = f"{name.lower()} live"
    return Claim("TALAS", "Table 3", text, f"{limit:g}", "cost", row, "simcse", limit, STUDENTS[:1], _OTHER_SIZES)


def _talas(
    where: str,
    text: str,
    figure: str,
    a: str,
    b: str,
    kind: Any = "better",
    limit: float = 0.0,
    part: str = "",
    own_radius: bool = False,
) -> Claim:
    students = STUDENTS[:1] if kind == "cost" else (*STUDENTS, *(OWN_RADIUS if own_radius else []))
    return Claim("TALAS", where, text, figure, kind, a, b, limit, students, part=part)


def _flatter(a: str, b: str, figure: str) -> Claim:
    names = {"asam": "ASAM", "sam": "SAM", "disam": "DISAM", "adamw": "AdamW"}
    text = f"{names[a]} is flatter than {names[b]}, each at its own rate"
    return Claim("TALAS", "Table 4", text, figure, "flatter", a, b, students=tuple(OWN_RADIUS))


def _molecules(where: str, text: str, figure: str, b: str, kind: Any = "rank", **more: Any) -> Claim:
    """About the student of all teachers by likelihood, unless `a` is another."""
    return Claim(
        "Many teachers", where, text, figure, kind, **{"a": molecule_tables.MAIN, **more}, b=b, students=(MOLECULES,)
    )


def _images(where: str, text: str, figure: str, b: str, kind: Any = "ahead", a: str = "gaussian") -> Claim:
    return Claim("Many teachers", where, text, figure, kind, a, b, students=(IMAGES,))


def _texts(where: str, text: str, figure: str, b: str, a: str = "gaussian", part: str = "") -> Claim:
    return Claim("Many teachers", where, text, figure, "better", a, b, students=(TEXTS,), part=part)


def _similar(where: str, text: str, figure: str, a: str, b: str) -> Claim:
    """About students of teachers of similar strength, each row with a rate of its own."""
    return Claim("Many teachers", where, f"Similar teachers: {text}", figure, "better", a, b, students=SIMILAR)


def _long(where: str, text: str, figure: str, a: str, b: str) -> Claim:
    """About molecules at length, each row with a rate of its own."""
    return Claim("Many teachers", where, f"At length: {text}", figure, "better", a, b, students=(LONG,))


def _starts(where: str, text: str, figure: str, a: str, b: str) -> Claim:
    """About a trained image network as the student, each row with a rate of its own."""
    return Claim("Many teachers", where, f"Pretrained: {text}", figure, "better", a, b, students=(STARTS,))


def _cross(paper: str, where: str, text: str, figure: str, a: str, b: str) -> tuple[Claim, ...]:
    """About students trained with labels, across tokenizers: with the paper's presets, and with our defaults.

    The rivals of both papers have no rows with presets of their own papers.
    """
    students = (LABELLED, LABELLED_LATER) if {a, b} <= MAIN.keys() else (LABELLED,)  # ablations from `bpe` alone
    ours = Claim(paper, where, text, figure, "labelled", a, b, students=students)
    if where == "ours":
        return (ours,)
    return replace(ours, a=_as_published(a), b=_as_published(b), preset="paper"), ours


def _as_published(row: str) -> str:
    """The row with its paper's preset, of EMO and DistillMoE."""
    method, _, rest = row.partition(" ")
    return f"{method} paper {rest}".strip() if method in ("emo", "distillmoe") else row


def _outside(text: str, figure: str, b: str) -> Claim:
    """DistillMoE's protocol without labels."""
    return Claim("DistillMoE", "out of domain", text, figure, "better", "distillmoe", b, students=(OUT_OF_DOMAIN,))


def _mixed(where: str, text: str, figure: str, a: str, b: str) -> Claim:
    return Claim("SBA", where, text, figure, "mixed", a, b, students=(MIXTURES,))


def _written(where: str, text: str, figure: str, b: str, a: str = "distillmoe") -> tuple[Claim, ...]:
    """About students that write: with the paper's preset, and with our defaults."""
    ours = Claim("DistillMoE", where, f"Writing: {text}", figure, "written", a, b, students=(WRITING,))
    if where == "ours" or a != "distillmoe":
        return (ours,)
    return replace(ours, a=_as_published(a), preset="paper"), ours


#: The likelihood without what the preset `sound` adds to it (clipped coordinates, means trained as by squared error),
#: and the squared error of the same vectors.
PLAIN, PLAIN_ERROR = "gaussian unclipped beta 0", "multi_mse unclipped"

#: Table 2's rows with sharpness-aware steps; "tamd only+asam" has neither SimCSE nor LASD.
_TAMD, _WITH_LASD, _WITH_SIMCSE = "tamd only+asam", "talas without simcse+asam", "talas without lasd+asam"

_EACH: tuple[Claim, ...] = (
    _talas("Table 1", "The teacher is ahead of TALAS", "79.29 > 74.79", "teacher", "talas+asam"),
    _talas("Table 1", "TALAS beats DistillCSE", "74.79 > 72.30", "talas+asam", "distillcse"),
    _talas("Table 1", "TALAS beats Jasper and Stella", "74.79 > 71.94", "talas+asam", "jasper_stella"),
    _talas("Table 1", "TALAS beats SimCSE", "74.79 > 68.80", "talas+asam", "simcse"),
    _talas("Table 1", "DistillCSE beats Jasper and Stella", "72.30 > 71.94", "distillcse", "jasper_stella"),
    _talas("Table 1", "Jasper and Stella beats SimCSE", "71.94 > 68.80", "jasper_stella", "simcse"),
    _talas("Table 1", "SimCSE beats the untrained student", "68.80 > 52.60", "simcse", "untrained student"),
    _talas("Table 1", "TALAS beats EMO", "74.79 > 72.98", "talas+asam", "emo"),
    _talas("Table 1", "TALAS beats DSKD", "74.79 > 69.76", "talas+asam", "dskd"),
    _talas("Table 1", "TALAS beats CDM", "74.79 > 69.51", "talas+asam", "cdm"),
    # Of the paper's third pair: in the other two the row of SimCSE alone repeats an untrained student of Table 1.
    _talas("Table 2", "TAMD helps: with SimCSE it beats SimCSE", "74.88 > 71.47", "talas without lasd", "simcse"),
    _talas("Table 2", "TAMD helps: TALAS needs it", "not given", "talas", "talas without tamd"),
    _talas("Table 2", "LASD helps", "72.85 > 71.99", "talas", "talas without lasd"),
    _talas("Table 2", "ASAM helps", "74.79 > 72.85", "talas+asam", "talas", own_radius=True),
    _talas("Table 2", "ASAM helps without LASD", "73.97 > 71.99", _WITH_SIMCSE, "talas without lasd"),
    _talas("Table 2", "LASD helps under ASAM", "74.79 > 73.97", "talas+asam", _WITH_SIMCSE),
    _talas("Table 2", "LASD helps under ASAM, without SimCSE", "74.28 > 73.95", _WITH_LASD, _TAMD),
    _talas("Table 2", "SimCSE helps under ASAM", "74.79 > 74.28", "talas+asam", _WITH_LASD),
    _talas("Table 2", "SimCSE helps under ASAM, without LASD", "73.97 > 73.95", _WITH_SIMCSE, _TAMD),
    _talas(
        "Table 2",
        "LASD helps more than SimCSE out of domain, under ASAM",
        "77.78 > 76.93",
        _WITH_LASD,
        _WITH_SIMCSE,
        part="out of domain",
    ),
    _talas("weights", "The SimCSE term has a small effect", "weight 0.001", "talas", "talas without simcse", "small"),
    _talas("Table 9", "ASAM beats DISAM", "74.79 > 74.37", "talas+asam", "talas+disam", own_radius=True),
    _talas("Table 9", "ASAM beats SAM", "74.79 > 73.90", "talas+asam", "talas+sam", own_radius=True),
    _talas("Table 9", "DISAM beats SAM", "74.37 > 73.90", "talas+disam", "talas+sam", own_radius=True),
    _talas("Table 9", "SAM beats plain AdamW", "73.90 > 72.85", "talas+sam", "talas", own_radius=True),
    _talas("Table 7", "Two anchored layers beat one", "78.83 > 77.17", "talas", "talas anchored 1"),
    _talas("Table 7", "Two anchored layers beat more (three)", "74.79 > 74.36", "talas", "talas anchored 3"),
    _talas("Table 7", "Two anchored layers beat all (four)", "78.83 > 77.68 (all)", "talas", "talas anchored 4"),
    _talas("Table 8", "LASD over all layers beats the top two", "78.83 > 77.30", "talas", "talas lasd layers 2"),
    _talas(
        "Table 8",
        "LASD over all layers beats all but one",
        "78.83 > 78.45 (nine of twelve)",
        "talas",
        "talas lasd layers 3",
    ),
    _talas("Table 3", "A step of TALAS without ASAM, in steps of SimCSE", "1.29", "talas", "simcse", "cost", 1.29),
    _talas("Table 3", "A step of TALAS with ASAM, in steps of SimCSE", "2.48", "talas+asam", "simcse", "cost", 2.48),
    _flatter("asam", "adamw", "30.24/14.89 = 2.0 times"),
    _flatter("sam", "adamw", "not given"),
    _flatter("disam", "adamw", "not given"),
    _flatter("asam", "sam", "not given"),
    _flatter("asam", "disam", "not given"),
    _talas("Table 1", "EMO beats DSKD", "72.98 > 69.76", "emo", "dskd"),
    _talas("Table 1", "DSKD beats CDM", "69.76 > 69.51", "dskd", "cdm"),
    _talas("Table 1", "CDM beats SimCSE", "69.51 > 68.80", "cdm", "simcse"),
    _live("EMO", 8.1),
    _live("DSKD", 6.6),
    _live("CDM", 7.1),
    _molecules("Table 2", "The student beats its best teacher", "3.72 < 4.79", molecule_tables.BEST_TEACHER),
    _molecules("Figure 5", "All teachers beat the best single one", "not given", molecule_tables.BEST_SINGLE),
    _molecules("Table 2", "Likelihood beats squared error", "3.94 < 6.15", "multi_mse"),
    _molecules("Table 2", "Likelihood beats cosine", "3.94 < 5.13", "multi_cosine"),
    _molecules("Table 2", "Plain likelihood beats squared error", "3.94 < 6.15", PLAIN_ERROR, "better", a=PLAIN),
    _long("Table 2", "likelihood beats squared error", "3.94 < 6.15", LIKE, "squared error"),
    _long("Table 2", "likelihood beats cosine", "3.94 < 5.13", LIKE, "cosine"),
    _long("Figure 5", "all teachers beat the best single one", "not given", LIKE, BEST_OF_LONG),
    *(
        _molecules(
            "text",
            f"Kernel depth hardly matters ({count} hidden layers)",
            "not given",
            f"gaussian depth {depth}",
            "small",
            part="AUROC",
        )
        for depth, count in ((2, "two"), (5, "five"))
    ),
    _texts("ours", "All teachers beat the best single one", "not given", many_text_table.BEST_SINGLE),
    _texts("Table 3", "Likelihood beats squared error", "74.0 > 72.9", "multi_mse", part="classification"),
    _texts("ours", "Likelihood beats squared error, all sets", "not given", "multi_mse"),
    _texts("ours", "Plain likelihood beats squared error, all sets", "not given", PLAIN_ERROR, PLAIN),
    _texts("ours", "Likelihood beats cosine", "not given", "multi_cosine"),
    _texts(
        "Table 3",
        "Likelihood beats squared error, kernels started at random",
        "74.0 > 72.9",
        "multi_mse random start",
        "gaussian random start",
        "classification",
    ),
    _texts(
        "ours",
        "Likelihood beats cosine, kernels started at random",
        "not given",
        "multi_cosine random start",
        "gaussian random start",
    ),
    *(
        _similar(
            "Table 3",
            f"likelihood beats squared error, {vectors} vectors",
            "74.0 > 72.9",
            f"likelihood, {vectors}",
            f"squared error, {vectors}",
        )
        for vectors in ("standardised", "raw")
    ),
    _similar("ours", "likelihood beats cosine", "not given", "likelihood, standardised", "cosine, random start"),
    _similar(
        "ours",
        "squared error of raw vectors beats that of standardised ones",
        "not given",
        "squared error, raw",
        "squared error, standardised",
    ),
    _similar(
        "ours", "squared error of raw vectors beats cosine", "not given", "squared error, raw", "cosine, random start"
    ),
    _similar("ours", "our likelihood beats our cosine", "not given", "likelihood, ours", "cosine, ours"),
    _similar("ours", "our likelihood beats the paper's", "not given", "likelihood, ours", "likelihood, standardised"),
    _similar("ours", "our cosine beats that of random kernels", "not given", "cosine, ours", "cosine, random start"),
    *(
        _similar("ours", f"all beat the best single one, {called}", "not given", row, f"{row}{BEST_OF_SIMILAR}")
        for row, called in (("likelihood, ours", "by likelihood"), ("cosine, ours", "by cosine"))
    ),
    _starts("Table 1", "likelihood beats squared error", "92.43 > 90.30", "likelihood", "squared error"),
    _starts("Table 1", "likelihood beats cosine", "92.43 > 91.02", "likelihood", "cosine"),
    _starts("Table 1", "the student beats itself without distillation", "92.43 > 88.48", "likelihood", START),
    _starts("Table 21", "all teachers beat the best single one", "92.21 > 91.78", "likelihood", BEST_OF_STARTS),
    _starts("ours", "our likelihood beats the paper's", "not given", "likelihood, ours", "likelihood"),
    _images("Table 21", "All teachers beat the best single one", "92.21 > 91.78", image_tables.BEST_SINGLE),
    _images("Table 1", "Likelihood beats squared error", "92.43 > 90.30", "multi_mse"),
    _images("Table 1", "Plain likelihood beats squared error", "92.43 > 90.30", PLAIN_ERROR, a=PLAIN),
    _images("Table 1", "Likelihood beats cosine", "92.43 > 91.02", "multi_cosine"),
    _images("Table 1", "The student beats its best teacher", "92.43 > 90.99", image_tables.BEST_TEACHER),
    _images("Table 1", "The student beats itself without distillation", "92.43 > 88.48", "labels"),
    _images("ours", "A weak teacher beside seven does not hurt", "not given", "gaussian without vww", "harmless"),
    _images(
        "ours",
        "A weak teacher beside a good one does not hurt",
        "not given",
        "gaussian from resnet56",
        "harmless",
        "gaussian from resnet56+vww",
    ),
    *_cross("EMO", "Table 1", "EMO beats labels alone", "SciTail 90.9 > 88.1", "emo", "sft"),
    *_cross("EMO", "Table 1", "EMO beats ULD", "SciTail 90.9 > 87.0", "emo", "uld"),
    *_cross("EMO", "Table 1", "EMO beats MinED", "SciTail 90.9 > 86.9", "emo", "mined"),
    *_cross("EMO", "Table 1", "EMO beats MultiLevelOT", "SciTail 90.9 > 88.2", "emo", "multilevel_ot"),
    *_cross("EMO", "ours", "EMO beats CDM", "not given with labels", "emo", "cdm"),
    *_cross("EMO", "Table 1", "EMO beats DSKD", "SciTail 90.9 > 88.0", "emo", "dskd"),
    *_cross("EMO", "Table 3", "IRA helps", "STS-B 81.3 > 78.5", "emo", "emo without ira"),
    *_cross("EMO", "Table 3", "OTIS helps", "STS-B 81.3 > 80.9", "emo", "emo without otis"),
    *_cross("EMO", "Table 4", "A third of the pairs beats all", "SICK 80.1 > 76.9", "emo", "emo share 1"),
    *_cross("EMO", "Table 4", "A third of the pairs beats half", "SICK 80.1 > 79.4", "emo", "emo share 0.5"),
    *_cross("DistillMoE", "Table 2", "DistillMoE beats labels alone", "SciTail 92.4 > 88.1", "distillmoe", "sft"),
    *_cross("DistillMoE", "Table 2", "DistillMoE beats EMO", "SciTail 92.4 > 90.9", "distillmoe", "emo"),
    *_cross("DistillMoE", "Table 2", "DistillMoE beats DSKD", "SciTail 92.4 > 88.0", "distillmoe", "dskd"),
    *_cross("DistillMoE", "Table 2", "DistillMoE beats CDM", "SciTail 92.4 > 88.8", "distillmoe", "cdm"),
    *_cross("DistillMoE", "Table 2", "DistillMoE beats MinED", "SciTail 92.4 > 86.9", "distillmoe", "mined"),
    *_cross("DistillMoE", "Table 2", "DistillMoE beats ULD", "SciTail 92.4 > 87.0", "distillmoe", "uld"),
    *_cross(
        "DistillMoE", "Table 2", "DistillMoE beats MultiLevelOT", "SciTail 92.4 > 88.2", "distillmoe", "multilevel_ot"
    ),
    *_cross(
        "DistillMoE",
        "ablation",
        "DynamicCKA helps",
        "STS-B 82.1 > 81.9",
        "distillmoe",
        "distillmoe without dynamic_cka",
    ),
    *_cross(
        "DistillMoE", "ablation", "The experts help", "STS-B 82.1 > 79.9", "distillmoe", "distillmoe without experts"
    ),
    *_cross(
        "DistillMoE",
        "ablation",
        "The cosine expert helps",
        "STS-B 82.1 > 81.2",
        "distillmoe",
        "distillmoe without cosine",
    ),
    *_cross(
        "DistillMoE",
        "ablation",
        "The contrastive expert helps",
        "STS-B 82.1 > 81.7",
        "distillmoe",
        "distillmoe without contrast",
    ),
    *_cross(
        "DistillMoE",
        "ablation",
        "The margin expert helps",
        "STS-B 82.1 > 81.5",
        "distillmoe",
        "distillmoe without margin",
    ),
    *(
        claim
        for other, figure, row in (
            ("one", "91.7", "distillmoe layers 1"),
            ("two", "92.2", "distillmoe layers 2"),
            ("all (six; here four)", "90.9", "distillmoe layers all"),
        )
        for claim in _cross(
            "DistillMoE", "ablation", f"Three layers beat {other}", f"SciTail 92.4 > {figure}", "distillmoe", row
        )
    ),
    *(
        claim
        for other, figure, row in (
            ("the small one", "SciTail 92.4 > 92.0", "distillmoe width 512"),
            ("the large one", "SciTail 92.4 > 92.2", "distillmoe width 1536"),
        )
        for claim in _cross("DistillMoE", "ablation", f"The middle head beats {other}", figure, "distillmoe", row)
    ),
    *_cross("EMO", "ours", "The repaired formulas help (sound against paper)", "not given", "emo", "emo paper"),
    *_cross("DistillMoE", "ours", "The repaired formulas help", "not given", "distillmoe", "distillmoe paper"),
    *(
        claim
        for weights in (" ".join(map(str, each)) for each in FIXED)
        for claim in _cross(
            "DistillMoE",
            "Table 11",
            f"The gate beats fixed weights {weights}",
            "ConTRoL 49.6 > 43.4 to 46.0",
            "distillmoe",
            f"distillmoe fixed {weights}",
        )
    ),
    _outside("DistillMoE beats DSKD", "74.90/70.77 > 73.78/69.59", "dskd"),
    _outside("DistillMoE beats MinED", "74.90/70.77 > 73.49/69.18", "mined"),
    _outside("DistillMoE beats CDM", "74.90/70.77 > 73.60/68.55", "cdm"),
    *_written("Table 16", "DistillMoE beats answers alone", "17.24 > 13.62", "sft"),
    *_written("Table 16", "DistillMoE beats ULD", "17.24 > 14.78", "uld"),
    *_written("Table 16", "DistillMoE beats MinED", "17.24 > 15.18", "mined"),
    *_written("Table 16", "DistillMoE beats MultiLevelOT", "17.24 > 14.76", "multilevel_ot"),
    *_written("Table 16", "DistillMoE beats DSKD", "17.24 > 15.58", "dskd"),
    *_written("Table 16", "DSKD beats answers alone", "15.58 > 13.62", "sft", "dskd"),
    *_written("Table 16", "The teacher is ahead of DistillMoE", "23.19 > 17.24", "distillmoe", "teacher"),
    *_written("ours", "DistillMoE beats CDM", "not given", "cdm"),
    *_written("ours", "DistillMoE beats EMO", "not given", "emo"),
    *_cross(
        "SBA",
        "ours",
        "Spherical beats linear in DistillMoE's head (random start)",
        "not given",
        "distillmoe sba but start random gate_kl 0.0 scope batch",
        "distillmoe but start random gate_kl 0.0 scope batch",
    ),
    _mixed("Table I", "SBA beats linear on similarity", "71.51 > 71.18", "sba", "linear similarity"),
    _mixed("Table I", "SBA beats linear on clustering", "86.19 > 85.66", "sba", "linear clustering"),
    _mixed("Table I", "SBA beats linear on pairs", "89.06 > 83.66", "sba", "linear pair classification"),
    _mixed("Table II", "SBA beats norm-free on similarity", "71.51 > 71.37", "sba", "norm_free similarity"),
    _mixed("Table II", "SBA beats unit on similarity", "71.51 > 68.35", "sba", "unit similarity"),
    _mixed("Table II", "SBA beats unit on clustering", "86.19 > 0.00", "sba", "unit clustering"),
)
#: A paper's claims stand together.
CLAIMS: tuple[Claim, ...] = tuple(
    claim
    for paper in dict.fromkeys(claim.paper for claim in _EACH)
    for claim in (*_EACH, *MEASURED)
    if claim.paper == paper
)
