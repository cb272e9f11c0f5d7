"""What once fooled the verdict, and right fits that it once refused: before, and as stored now."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

OURS = "scoreascent"
HEADER = ("target", "shapes", "before", "good now", "not good now")


@dataclass(frozen=True)
class Case:
    """A target in words, the shapes that stand for it, and what an earlier version said of it."""

    target: str
    shapes: tuple[str, ...]
    before: str


CASES = (
    Case(
        "a narrow Gaussian in a wide one",
        ("spike-0.1-10", "spike-0.01-2", "spike-0.01-5", "spike-0.01-10"),
        "good: the narrow part alone, sds 10 to 70 times too small",
    ),
    Case(
        "t₃, t₄, t₅ in 2 to 20 dimensions",
        ("t3-2", "t3-20", "t4-5", "t5-2", "t5-20"),
        "good: sds 6 to 33 % too small",
    ),
    Case(
        "regressions with flat priors, 8 rows for 5 coefficients",
        ("flat-prior-5", "flat-prior-6"),
        "good: sds 6 to 33 % too small",
    ),
    Case("t₂, and t₃ in one dimension", ("t2-1", "t2-5", "t3-1"), "good: a finite sd"),
    Case(
        "two Gaussians, 0.996 and 0.004, 16 sds apart",
        ("two-light-16-2",),
        "good: sd 1.00 for 1.42",
    ),
    Case(
        "two equal Gaussians 10 sds apart, 10-d",
        ("two-equal-10-10",),
        "good: one mode, in one seed of three",
    ),
    Case("N(0, I) + 10⁸ in float32", ("offset-1e8",), "good: sds 20 % too large"),
    Case(
        "centred hierarchies, 18-d and 26-d",
        ("centred-18", "centred-26", "centred-mild-18", "centred-mild-26"),
        "good, in one seed of two: a mean off by 0.15 sds, a sd by 26 to 31 %",
    ),
    Case("N(3, diag(10⁻⁴, 1, 10⁴)²)", ("scales-4",), "right, not good: improper"),
    Case(
        "bananas with one mode",
        ("banana-2", "banana-5", "banana-bent-2", "banana-mild-20"),
        "right, not good: several modes",
    ),
    Case(
        "boxes and half-normals by −∞",
        ("box-1", "box-3", "box-8", "half-normal-2", "half-normal-6"),
        "right, not good",
    ),
)


def before_and_after(table: pd.DataFrame) -> str:
    """Return the cases as a table in Markdown, from judged fits.

    Errors are the worst of a mean, in exact sds, and of a log sd.
    """
    ours = table[table["method"] == OURS]
    rows = [HEADER, ("---",) * len(HEADER)]
    for case in CASES:
        fits = ours[ours["shape"].isin(case.shapes)]
        if len(fits):
            names = ", ".join(f"`{name}`" for name in case.shapes)
            good, rest = fits[fits["good"]], fits[~fits["good"]]
            rows.append((case.target, names, case.before, _good(good), _refused(rest)))
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _good(fits: pd.DataFrame) -> str:
    return f"{len(fits)}: {_errors(fits)}" if len(fits) else "0"


def _refused(fits: pd.DataFrame) -> str:
    """Return how many fits are not good, how many of them are right, and what is said of them."""
    if fits.empty:
        return "0"
    says = fits["says"].str.split(":").str[0].value_counts()
    reasons = ", ".join(f"{name} ({says[name]})" for name in sorted(says.index))
    return f"{len(fits)}, {fits['right'].sum()} right: {_errors(fits)}; {reasons}"


def _errors(fits: pd.DataFrame) -> str:
    worst = (fits["mean_error"].max(), fits["sd_error"].max())
    mean, sd = (f"{x:.2f}" if np.isfinite(x) else "∞" for x in worst)
    return f"mean {mean}, log sd {sd}"
