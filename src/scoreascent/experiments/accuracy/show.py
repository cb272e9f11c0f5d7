"""The suite's tables and its figure, from the table of all fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markdown import Markdown

from scoreascent._figures import plt, save
from scoreascent.experiments.accuracy.metrics import RIGHT_MASS, RIGHT_MEAN, RIGHT_SD, is_right
from scoreascent.experiments.accuracy.models import MODELS
from scoreascent.experiments.accuracy.own import RIGHT
from scoreascent.experiments.accuracy.peers import PEERS
from scoreascent.plots.panels import legend_beside

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ERRORS = {
    "mean_error": ("worst error of a mean / posterior sd", RIGHT_MEAN),
    "sd_error": ("mean |log(sd / posterior sd)|", RIGHT_SD),
}
OWN = ("own_mean_error", "own_sd_error", "quantile_error")
SMALLEST_DRAWN, LARGEST_DRAWN = 1e-3, 1e3  # errors, in the figure
GROUPS = ("regular", "held out", "irregular")


def write(table: pd.DataFrame, folder: Path, console: Console) -> None:
    """Write `table.csv`, `models.csv` and `.md`, `summary.csv` and `.md`, `accuracy.png`."""
    table.to_csv(folder / "table.csv", index=False, float_format="%.5g")
    models, methods = by_model(table), summarise(table)
    models.to_csv(folder / "models.csv", index=False, float_format="%.5g")
    methods.to_csv(folder / "summary.csv", index=False, float_format="%.5g")
    (folder / "models.md").write_text(markdown_models(models), encoding="utf-8")
    text = markdown_summary(methods)
    (folder / "summary.md").write_text(text, encoding="utf-8")
    console.print(Markdown(text))
    save(draw_errors(table), folder / "accuracy.png", console)


# -- numbers ---------------------------------------------------------------------------------------


def by_model(table: pd.DataFrame) -> pd.DataFrame:
    """A row for every model and method: the worst of the seeds' errors, medians of the rest.

    `cold` is the first seed's time, `warm` the median of the others'. A fit that has no numbers
    counts as an error without bound, so one seed that fails is seen.
    """
    rows = []
    if "mass_error" not in table:  # of a run that did not measure it yet
        table = table.assign(mass_error=np.nan)
    for (model, method), part in table.groupby(["model", "method"], sort=False):
        absent = bool(part["note"].str.startswith("needs ").all())
        worst = lambda name, part=part, absent=absent: (  # noqa: E731
            np.nan if absent else float(part[name].fillna(np.inf).max())
        )
        fitted = bool(np.isfinite(worst("mean_error")))  # else unknown numbers are wrong ones
        far = np.log(part["sd_ratio"]).abs()
        rows.append(
            {
                "model": model,
                "method": method,
                "group": _group(part.iloc[0]),
                "seeds": len(part),
                "mean_error": worst("mean_error"),
                "sd_error": worst("sd_error"),
                "sd_ratio": part["sd_ratio"][far.idxmax()] if far.notna().any() else np.nan,
                "coverage": part["coverage"].median(),
                **{n: np.nan if fitted and part[n].isna().all() else worst(n) for n in OWN},
                "mass_error": _worst_mass(part),
                "k_hat": part["k_hat"].median(),
                "densities": part["densities"].median(),
                "gradients": part["gradients"].median(),
                "cold": part["clock"][part["seed"] == 0].median(),
                "warm": part["clock"][part["seed"] > 0].median(),
                "good": int((part["verdict"] == "good").sum()),
                "broken": int(((part["verdict"] == "good") & ~keeps_promise(part)).sum()),
                "verdict": "; ".join(dict.fromkeys(v for v in part["verdict"] if v)),
                "note": "; ".join(dict.fromkeys(v for v in part["note"] if v)),
            }
        )
    order = {name: i for i, name in enumerate((*MODELS, *PEERS))}
    result = pd.DataFrame(rows)
    result.insert(result.columns.get_loc("good"), "right", _right(result))
    at = result[["model", "method"]].replace(order).infer_objects()
    return result.loc[at.sort_values(["model", "method"]).index].reset_index(drop=True)


def _right(models: pd.DataFrame) -> Any:
    """Tell of every row whether it is right.

    No Gaussian has the moments of all shapes, and some sds cannot be known: of irregular models it
    is judged by what the method shows, and by the masses of modes where they are measured.
    """
    irregular = models["group"] == "irregular"
    shown = [models[name].fillna(0.0) <= RIGHT for name in OWN[:2]]
    shown += [models["mass_error"].fillna(0.0) <= RIGHT_MASS, np.isfinite(models["mean_error"])]
    regular = is_right(models["mean_error"], models["sd_error"])
    return np.where(irregular, np.logical_and.reduce(shown), regular)


def _worst_mass(part: pd.DataFrame) -> float:
    """The worst error of a mode's mass; NaN where it was not measured, or there are no modes."""
    refused = part["mean_error"].isna()
    if MODELS[part["model"].iloc[0]].masses is None or part["mass_error"][~refused].isna().any():
        return np.nan
    return float(part["mass_error"].fillna(np.inf).max())


def keeps_promise(table: pd.DataFrame) -> Any:
    """Tell of every fit whether it is what *good* promises, in ℝᵈ and in the model's own space.

    That is judged by the worst coordinate; what has no numbers keeps nothing. Of irregular models
    it is judged by what is shown, as whether they are right is, and by the masses of modes.
    """
    worst_sd = np.log(table["sd_ratio"]).abs().where(table["regular"], 0.0)
    errors = [table["mean_error"], worst_sd, *(table[name].fillna(0.0) for name in OWN[:2])]
    if "mass_error" in table:
        errors.append(table["mass_error"].fillna(0.0) * RIGHT / RIGHT_MASS)
    return np.logical_and.reduce([error.fillna(np.inf) <= RIGHT for error in errors])


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """A row for every method: on how many models it is right, and what that takes.

    `faster` counts the regular models, held out or not, on which the method is right and its cold
    time is below NUTS's; `good` those that its verdict calls good in every seed, `false_good` the
    models that it calls good in some seed though they are not right; `broken` counts
    single fits that are called good and do not keep what that promises. `masses` counts the models
    of which the mass of every mode is known, out of those `with_masses` that were measured.
    """
    models = by_model(table)
    models = models[~models["note"].str.startswith("needs ")]
    nuts = models[models["method"] == "nuts"].set_index("model")["cold"]
    rows = []
    for method, part in models.groupby("method", sort=False):
        regular = part[part["group"] != "irregular"]
        good = regular["good"] == regular["seeds"]
        false = (part["good"] > 0) & ~part["right"]
        fast = regular["right"] & (regular["cold"] < regular["model"].map(nuts).astype(float))
        row: dict[str, Any] = {"method": method}
        for group in GROUPS:
            chosen = part[part["group"] == group]
            row[group.replace(" ", "_")] = len(chosen)
            row[f"right_{group.replace(' ', '_')}"] = int(chosen["right"].sum())
        row |= {
            "masses": int((part["mass_error"] <= RIGHT_MASS).sum()),
            "with_masses": int(part["mass_error"].notna().sum()),
            "judges": bool((part["verdict"] != "").any()),
            "good": int(good.sum()),
            "false_good": int(false.sum()),
            "broken": int(part["broken"].sum()),
            **{name: regular[name].median() for name in OWN},
            "faster": int(fast.sum()),
            "densities": regular["densities"].median(),
            "gradients": regular["gradients"].median(),
            "cold": regular["cold"].median(),
            "warm": regular["warm"].median(),
        }
        rows.append(row)
    order = {name: i for i, name in enumerate(PEERS)}
    return pd.DataFrame(rows).sort_values("method", key=lambda x: x.map(order), ignore_index=True)


def _group(row: Any) -> str:
    if not row["regular"]:
        return "irregular"
    return "held out" if row["held_out"] else "regular"


# -- text ------------------------------------------------------------------------------------------


def markdown_summary(methods: pd.DataFrame) -> str:
    """A row for every method."""
    lines = [
        f"Right: worst mean error ≤ {RIGHT_MEAN:g} posterior sd and mean |log sd ratio| ≤ "
        f"{RIGHT_SD:g}, in every seed; irregular: worst mean and log sd that the method shows in "
        f"the model's own space off by ≤ {RIGHT:g}, and every mode's mass by ≤ {RIGHT_MASS:g}, in "
        "every seed. Masses: models with modes of which every mass is so right. Good: regular "
        "models that the method's own verdict calls good in every seed; false: models that it "
        "calls good in some seed though they are not right; broken: single fits called good of "
        "which the worst mean, in ℝᵈ or in the model's own space, is off by more than "
        f"{RIGHT:g} sds or the worst sd by more than {RIGHT:.0%}. Quicker: regular models on which "
        "it is right and its cold time is below NUTS's. Own mean, own sd, quantiles: the worst "
        "errors in the model's own space, in sds. These, evaluations and seconds are medians over "
        "the regular models, held out or not.",
        "",
        "| method | right | held out | irregular | masses | good | false | broken | quicker "
        "| own mean | own sd | quantiles | densities | gradients | cold s | warm s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in methods.to_dict("records"):
        counts = [str(row[name]) for name in ("good", "false_good", "broken")]
        verdicts = counts if row["judges"] else [""] * 3
        shown = [
            row["method"],
            f"{row['right_regular']}/{row['regular']}",
            f"{row['right_held_out']}/{row['held_out']}",
            f"{row['right_irregular']}/{row['irregular']}",
            f"{row['masses']}/{row['with_masses']}" if row["with_masses"] else "",
            *verdicts,
            "" if row["method"] == "nuts" else str(row["faster"]),
            *(_number(row[k]) for k in (*OWN, "densities", "gradients", "cold", "warm")),
        ]
        lines.append(f"| {' | '.join(shown)} |")
    lines += ["", *(f"- {m}: {PEERS[m].description}" for m in methods["method"])]
    return "\n".join(lines) + "\n"


def markdown_models(models: pd.DataFrame) -> str:
    """A table for every model, under its name and the reason why it is there."""
    lines = ["Errors are the worst of the seeds, other numbers their medians; **bold** is right."]
    for model, part in models.groupby("model", sort=False):
        entry = MODELS[str(model)]
        lines += [
            "",
            f"## {model}: d = {entry.dim}, {part['group'].iloc[0]}",
            "",
            f"{entry.reason[0].upper()}{entry.reason[1:]}.",
            "",
            "| method | mean error | sd error | worst sd ratio | k̂ | coverage of 90 % | own mean "
            "| own sd | quantiles | masses | densities | gradients | cold s | warm s | verdict |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for row in part.to_dict("records"):
            names = ("mean_error", "sd_error", "sd_ratio", "k_hat", "coverage", *OWN, "mass_error",
                     "densities", "gradients", "cold", "warm")  # fmt: skip
            method = f"**{row['method']}**" if row["right"] else row["method"]
            says = "; ".join(x for x in (row["verdict"], row["note"]) if x).replace("|", "¦")
            lines.append(f"| {method} | {' | '.join(_number(row[n]) for n in names)} | {says} |")
    return "\n".join(lines) + "\n"


def _number(x: float) -> str:
    """A number with three digits, or its order of magnitude.

    >>> [_number(x) for x in (0.01234, 56.7, 1234.0, 1234567.0, float("nan"), float("inf"))]
    ['0.0123', '56.7', '1234', '1.2e+06', '', '∞']
    """
    if np.isnan(x):
        return ""
    if np.isinf(x):
        return "∞" if x > 0 else "−∞"
    return f"{x:.0f}" if 1000 <= abs(x) < 100_000 else f"{x:.2g}" if abs(x) >= 1e5 else f"{x:.3g}"


# -- the figure ------------------------------------------------------------------------------------


def draw_errors(table: pd.DataFrame) -> Any:
    """Draw both errors of every model and method: the seeds' median, and a line to the worst."""
    models = [m for m in MODELS if m in set(table["model"])]
    methods = [p for p in PEERS if p in set(table["method"])]
    height = 1.6 + 0.42 * len(models)
    figure, axes = plt.subplots(1, 2, figsize=(13, height), sharey=True, layout="constrained")
    for ax, (error, (label, limit)) in zip(axes, ERRORS.items()):
        _panel(ax, table, error, models, methods)
        ax.axvline(limit, color="0.3", lw=1, ls="--")
        ax.set_xlabel(f"{label} (right: left of the dashed line)")
    labels = [f"{m} †" if MODELS[m].held_out else m for m in models]
    labels = [x if MODELS[m].regular else f"({x})" for m, x in zip(models, labels)]
    axes[0].set_yticks(range(len(models)), labels)
    axes[0].set_ylim(len(models) - 0.5, -0.5)
    handles, names = axes[0].get_legend_handles_labels()
    legend_beside(figure, handles, names, columns=5, above=True)
    figure.supxlabel("† held out   ( ) irregular", fontsize=9, color="0.4")
    return figure


def _panel(
    ax: Axes, table: pd.DataFrame, error: str, models: list[str], methods: list[str]
) -> None:
    """Draw one error; what exceeds the scale stands at its edge."""
    for k, method in enumerate(methods):
        mine = table[(table["method"] == method) & ~table["note"].str.startswith("needs ")]
        seeds = mine.assign(
            at=mine[error].fillna(np.inf).clip(SMALLEST_DRAWN, LARGEST_DRAWN)
        ).groupby("model")
        shown = [m for m in models if m in seeds.groups]
        place = np.array([models.index(m) for m in shown]) + 0.7 * ((k + 0.5) / len(methods) - 0.5)
        middle, worst = (np.array([f(seeds["at"].get_group(m)) for m in shown])
                         for f in (np.median, np.max))  # fmt: skip
        peer = PEERS[method]
        ax.hlines(place, middle, worst, color=peer.colour, lw=1)
        ax.plot(middle, place, peer.marker, color=peer.colour, ms=5, label=method, ls="none")
    for y in range(1, len(models)):
        ax.axhline(y - 0.5, color="0.92", lw=0.8, zorder=0)
    ax.set_xscale("log")
    ax.set_xlim(SMALLEST_DRAWN / 1.5, LARGEST_DRAWN * 1.5)
    ax.grid(axis="x", color="0.92")
