"""What one claim of a paper is: a comparison that our result files can speak to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

STUDENTS = ("bpe", "cut", "embedder")
#: With each optimizer's own rate and radius, see sharpness.py -> epochs.
OWN_RADIUS = {"embedder/own radius": "5", "embedder/own radius, longer": "15"}
MOLECULES = "molecules"
#: All of them, 20,000 steps, each row with a rate of its own, see molecules_long.py.
LONG = "molecules/long"
IMAGES = "images"
#: A trained image network as the student, see image_starts.py.
STARTS = "images/pretrained"
TEXTS = "texts"
#: Of teachers of similar strength; after the slash a student of similar_teachers.py.
SIMILAR = ("similar/static",)
LABELLED = "labelled"
#: From a student that is an embedder already; after the slash a setting of cross_tokenizer.py.
LABELLED_LATER = "labelled/embedder"
OUT_OF_DOMAIN = "out-of-domain"
MIXTURES = "mixtures"
WRITING = "writing"
#: Of what is counted or timed, with no trained student.
NONE = ("none",)

Kind = Literal[
    "better",
    "small",
    "cost",
    "flatter",
    "rank",
    "labelled",
    "mixed",
    "written",
    "ahead",
    "harmless",
    "teachers",
    "rate",
    "time",
    "geometry",
]
#: Kinds whose figure is no difference of two rows.
PLAIN_KINDS = ("cost", "flatter", "rate", "time", "geometry")


@dataclass(frozen=True)
class Claim:
    """One sentence of a paper that two rows of ours, or one measurement, can speak to.

    Attributes:
        paper, where: whose claim, and its table.
        text: the claim in our words.
        figure: the paper's figure.
        kind: better (a scores more than b), small (a and b differ by less than `SMALL`), cost (a step of a takes at
            most `limit` times a step of b; rows that end in "live" or "store" are those of token_steps.py), flatter
            (the largest eigenvalue is smaller with a than with b), rank (the average rank of a is
            better than that of b), labelled (better, over labelled sets and seeds), mixed (better, over seeds of
            mixtures.py), written (better, over sets and seeds of writing.py), ahead and harmless (the average accuracy
            of a over the data sets of images is above that of b, or at most `HARM` below it), teachers, rate, time and
            geometry (measured.py).
        a, b: names of rows, or of a measurement and of a part of it.
        limit: see `kind`.
        students: those that it is tested with.
        part: the sets that count, see `PARTS`; all where empty.
        preset: paper: the row of the paper's method has the paper's preset; ours: it has our defaults, for comparisons
            that the paper's preset has no rows of, or beside them.
        unlike: what makes our figure and the paper's no figures of the same thing; the claim has no verdict then.
    """

    paper: str
    where: str
    text: str
    figure: str
    kind: Kind
    a: str
    b: str
    limit: float = 0.0
    students: tuple[str, ...] = STUDENTS
    unlike: str = ""
    part: str = ""
    preset: Literal["paper", "ours"] = "ours"
