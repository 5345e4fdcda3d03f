"""From differences by set and seed to a verdict: intervals, p-values, Holm's correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

#: A difference of the average that counts as none, in points of percent.
SMALL = 0.5
#: What three test sets of 460 to 2,000 images cannot tell apart, in points.
HARM = 1.0
#: What a counted share may differ by from the published one, in points.
NEAR = 1.0
#: Seeds that a verdict needs.
SEEDS = 3
HOLDS, OPEN, OPPOSITE, UNTESTED = "holds", "open", "opposite", "not tested"
VERDICTS = (HOLDS, OPEN, OPPOSITE, UNTESTED)
_WORDS = {0: "no seed in common", 1: "one seed", 2: "two seeds"}
#: Set -> seed -> difference. A seed is None where neither side was trained here.
Differences = Mapping[str, Mapping[int | None, float]]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Finding:
    """Our figure, what it is made of, and the verdict.

    Attributes:
        interval: 95 %, the wider of `sets` and `seeds`.
        basis: sets, seeds and what to know about the rows.
        why: why it is not tested.
        sets, seeds: the interval over sets, and that over seeds; None where there is only one.
        p: two-sided, of no difference: the larger of that over sets and that over seeds; None without a verdict.
        holm: the same after Holm's correction over the claims of the paper.
    """

    verdict: str
    value: float | None = None
    interval: Interval | None = None
    basis: str = ""
    why: str = ""
    sets: Interval | None = None
    seeds: Interval | None = None
    p: float | None = None
    holm: float | None = None

    @property
    def reach(self) -> float:
        """Half the width of the interval: a smaller difference could not have been told from none."""
        assert self.interval is not None
        return (self.interval[1] - self.interval[0]) / 2

    def not_tested(self, why: str) -> Finding:
        """The same figure without a verdict."""
        return replace(self, verdict=UNTESTED, why=why, p=None)


def untested(why: str) -> Finding:
    return Finding(UNTESTED, why=why)


def judge(kind: str, differences: Differences, basis: str = "") -> Finding:
    """The finding of a claim about the mean over sets of differences in points.

    Sets and seeds were drawn, so the difference has to stand out against both: each gives a Student interval of the
    mean, and the wider one counts. A seed counts where at least half of the sets have it.

    Args:
        kind: see `verdict`.
        differences: first minus second, paired.
        basis: what to say after the numbers of sets and seeds.
    """
    if not differences:
        return untested("no set and seed in common")
    by_set = np.array([np.mean(list(each.values())) for each in differences.values()])
    value = float(by_set.mean())
    seeds = common_seeds(differences)
    whole = [each for each in differences.values() if set(seeds) <= set(each)]
    by_seed = np.array([np.mean([each[seed] for each in whole]) for seed in seeds] if whole else [])
    over_sets, over_seeds = student_interval(by_set, value), student_interval(by_seed, value)
    known = [found[0] for found in (over_sets, over_seeds) if found]
    interval = max(known, key=lambda found: found[1] - found[0]) if known else None
    count = f"{len(by_set)} set{'s'[: len(by_set) > 1]}, {len(seeds)} seed{'s'[: len(seeds) > 1]}"
    sides = [found[0] if found else None for found in (over_sets, over_seeds)]
    shown = Finding("", value, interval, f"{count}{'; ' if basis else ''}{basis}", "", *sides)
    if len(seeds) < SEEDS or not whole:
        return shown.not_tested(_WORDS.get(len(seeds), "no set with all seeds"))
    if not over_sets or not over_seeds or interval is None:
        return shown.not_tested("one set")
    return replace(shown, verdict=verdict(kind, interval), p=max(over_sets[1], over_seeds[1]))


def common_seeds(differences: Differences) -> list[int | None]:
    """The seeds that at least half of the sets have, sorted."""
    every = {seed for each in differences.values() for seed in each}
    enough = [seed for seed in every if 2 * sum(seed in each for each in differences.values()) >= len(differences)]
    return sorted(enough, key=str)


def student_interval(values: Sequence[float] | np.ndarray, centre: float) -> tuple[Interval, float] | None:
    """95 % Student interval around a mean, and the two-sided p-value of 0; None of fewer than two values.

    Args:
        centre: the mean of the interval, where it is not exactly that of these values (not every set has every seed).
    """
    given = np.asarray(values, float)
    if len(given) < 2:
        return None
    error, freedom = float(given.std(ddof=1) / np.sqrt(len(given))), len(given) - 1
    reach = float(stats.t.ppf(0.975, freedom)) * error
    p = 2 * float(stats.t.sf(abs(centre) / error, freedom)) if error else float(centre == 0)
    return (centre - reach, centre + reach), p


def verdict(kind: str, interval: Interval, limit: float = 0.0) -> str:
    """The rule of each kind, as the head of CLAIMS.md states it."""
    low, high = interval
    if kind == "small":
        return HOLDS if low >= -SMALL and high <= SMALL else OPEN if low <= SMALL and high >= -SMALL else OPPOSITE
    if kind in ("cost", "time"):
        return HOLDS if high <= limit else OPPOSITE if low > limit else OPEN
    neutral = -HARM if kind == "harmless" else 0.0
    if low > neutral:
        return HOLDS
    return OPPOSITE if high < neutral else OPEN


def holm(findings: Sequence[Finding]) -> list[Finding]:
    """The same findings of one family with the p-values after Holm's correction.

    Source: Holm, "A Simple Sequentially Rejective Multiple Test Procedure" (1979).
    """
    tested = sorted((i for i, each in enumerate(findings) if each.p is not None), key=lambda i: findings[i].p or 0.0)
    corrected, least = list(findings), 0.0
    for rank, index in enumerate(tested):
        p = findings[index].p or 0.0
        least = max(least, min(1.0, (len(tested) - rank) * p))
        corrected[index] = replace(findings[index], holm=least)
    return corrected


def figure(value: float | None, interval: Interval | None, sign: str = "+") -> str:
    """A figure with its interval: +1.40 (+0.72 to +2.08)."""
    if value is None:
        return ""
    shown = f"{value:{sign}.2f}"
    return shown if interval is None else f"{shown} ({interval[0]:{sign}.2f} to {interval[1]:{sign}.2f})"
