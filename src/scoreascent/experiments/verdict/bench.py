"""Right or wrong against good or not: `sa.fit(target)` on every shape, and NUTS beside it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from rich.console import Console
from rich.markdown import Markdown

import scoreascent as sa
from scoreascent._nuts import nuts_sampler
from scoreascent.diagnostics.chains import rhat
from scoreascent.diagnostics.rules import GOOD
from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.metrics import k_hat_of
from scoreascent.experiments.accuracy.peers import peer
from scoreascent.experiments.accuracy.peers.base import Seeded
from scoreascent.experiments.experiment import Experiment
from scoreascent.experiments.runner import Cell
from scoreascent.experiments.store import Frames, RunFolder, StoredRun
from scoreascent.experiments.verdict.fooled import before_and_after
from scoreascent.experiments.verdict.posteriors import POSTERIORS
from scoreascent.experiments.verdict.random import random_shape
from scoreascent.experiments.verdict.shapes import SHAPES, Shape
from scoreascent.run import TOLERANCE

# What *good* promises: every mean within so many posterior sds, every sd within so much
MAX_MEAN_ERROR = MAX_SD_ERROR = TOLERANCE
NUTS_RHAT = 1.01
MAX_PEER_K = 0.7  # k̂ up to which a peer's q is taken for good
RANDOM_SHAPES = 30
RANDOM = {f"random-{i:02d}": random_shape(i) for i in range(RANDOM_SHAPES)}
ALL_SHAPES = {**SHAPES, **POSTERIORS, **RANDOM}
REFUSALS = (ValueError, RuntimeError, FloatingPointError)

# other libraries' methods that have weights, and so a k̂
PEERS = ("numpyro-multivariate", "blackjax-pathfinder")

Method = Callable[[Shape, sa.Target, int], dict[str, Any]]


@dataclass(frozen=True)
class Settings:
    """Which shapes there are, and how many fits of each."""

    shapes: tuple[str, ...] = tuple(ALL_SHAPES)
    methods: tuple[str, ...] = ("scoreascent", "nuts", *PEERS)
    seeds: int = 5


QUICK = Settings(("normal-1", "t3-2"), ("scoreascent",), 1)


def cells(
    settings: Settings, only_shapes: tuple[str, ...] = (), only_methods: tuple[str, ...] = ()
) -> list[Cell]:
    """Return a cell for every shape and method; it holds all seeds."""
    for name in only_shapes:
        if name not in ALL_SHAPES:
            raise ValueError(f"there is no shape {name!r}; choose from {', '.join(ALL_SHAPES)}")
    for name in only_methods:
        if name not in METHODS:
            raise ValueError(f"there is no method {name!r}; choose from {', '.join(METHODS)}")
    return [
        Cell(
            f"{shape.replace('.', '_')}-by-{method}", (shape, method), float(ALL_SHAPES[shape].dim)
        )
        for shape in settings.shapes
        for method in settings.methods
        if (not only_shapes or shape in only_shapes)
        and (not only_methods or method in only_methods)
    ]


def compute(cell: Cell, settings: Settings, store: RunFolder, deadline: float) -> Frames | None:
    """Fit one shape with every seed, and hold what came out against the exact moments."""
    name, method = cell.piece
    shape, rows = ALL_SHAPES[name], []
    target = sa.Target(shape.log_density, dim=shape.dim)
    for seed in range(settings.seeds):
        if time.time() >= deadline:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            row = METHODS[method](shape, target, seed)
        about = {"shape": name, "kind": shape.kind, "dim": shape.dim, "regular": shape.regular,
                 "held_out": shape.held_out, "method": method, "seed": seed}  # fmt: skip
        rows.append({**about, **row})
    jax.clear_caches()
    return {"table": pd.DataFrame(rows)}


def errors(shape: Shape, mean: Any, sd: Any) -> dict[str, float]:
    """Return the worst error of a mean, in exact sds, and of a log sd.

    Where the exact moments do not exist, nothing is right.
    """
    if not (np.all(np.isfinite(shape.mean)) and np.all(np.isfinite(shape.sd))):
        return {"mean_error": np.inf, "sd_error": np.inf}
    with np.errstate(all="ignore"):
        mean_error = np.max(np.abs(np.asarray(mean, np.float64) - shape.mean) / shape.sd)
        sd_error = np.max(np.abs(np.log(np.asarray(sd, np.float64) / shape.sd)))
    return {"mean_error": float(mean_error), "sd_error": float(sd_error)}


def _ours(shape: Shape, target: sa.Target, seed: int) -> dict[str, Any]:
    """Fit by `sa.fit(target)`; the worse of what q says and what the summary shows counts.

    A number that is shown as a dash, for its tail is too heavy to be known, is no error. A flow's
    moments are averages over some of its draws; what counts are those that are shown.
    """
    try:
        result = sa.fit(target, key=seed, progress=False)
    except REFUSALS as error:
        return _refused(error)
    shown = result.summary()
    mean, sd = ([r[name] for r in shown] for name in ("mean", "sd"))
    seen = [errors(shape, *(np.where(np.isnan(x), y, x) for x, y in
                            ((mean, shape.mean), (sd, shape.sd))))]  # fmt: skip
    if not result.q.is_bent:  # whose moments are averages over some draws
        seen.append(errors(shape, result.q.mean, result.q.sd))
    diagnosis, count = result.diagnosis, result.evaluations
    assert diagnosis is not None
    assert count is not None
    return {
        **{k: max(s[k] for s in seen) for k in seen[0]},
        "densities": count[0],
        "gradients": count[1],
        "good": diagnosis.verdict == GOOD,
        "says": diagnosis.verdict,
        "reason": diagnosis.reason[:160],
    }


def _refused(error: Exception) -> dict[str, Any]:
    """Return the row of a fit that ended with an error: nothing right, nothing good."""
    blank = {"mean_error": np.inf, "sd_error": np.inf, "densities": 0, "gradients": 0}
    return {**blank, "good": False, "says": "refused", "reason": str(error)[:160]}


def _nuts(shape: Shape, target: sa.Target, seed: int) -> dict[str, Any]:
    """Sample by NUTS, four chains of 1000 + 1000; good if R̂ ≤ 1.01 and nothing diverged."""
    sampler = nuts_sampler(target, warmup=1000, draws=1000)
    key = jax.random.key(seed)
    first = jax.random.uniform(key, (4, shape.dim), minval=-2.0, maxval=2.0)
    steps = ("diverging", "num_steps")
    sampler.run(key, init_params=jnp.asarray(first), extra_fields=steps)
    z = np.asarray(sampler.get_samples(group_by_chain=True), np.float64)
    extra = {name: np.asarray(x) for name, x in sampler.get_extra_fields().items()}
    with np.errstate(all="ignore"):
        worst = np.max(np.nan_to_num(rhat(z), nan=np.inf))
    diverging = int(extra["diverging"].sum())
    return {
        **errors(shape, z.mean((0, 1)), z.std((0, 1))),
        "densities": 0,
        "gradients": int(extra["num_steps"].sum()),
        "good": bool(worst <= NUTS_RHAT and diverging == 0),
        "says": f"R̂ {worst:.3f}, {diverging} divergences",
        "reason": "",
    }


def _by_peer(name: str) -> Method:
    """Return a fit by another library's method of the accuracy suite; good if k̂ ≤ 0.7."""

    @lru_cache(maxsize=1)  # what it keeps between seeds: compiled code
    def begun(target: sa.Target) -> Seeded:
        return peer(name).begin(Entry(target.dim, "a shape", density=lambda: target), target)

    def fit(shape: Shape, target: sa.Target, seed: int) -> dict[str, Any]:
        try:
            found = begun(target)(seed)()
        except REFUSALS as error:
            return _refused(error)
        k_hat = np.inf if found.log_weights is None else k_hat_of(found.log_weights)
        return {
            **errors(shape, found.mean, found.sd),
            "densities": int(found.densities),
            "gradients": int(found.gradients),
            "good": bool(k_hat <= MAX_PEER_K),
            "says": f"k̂ {k_hat:.2f}",
            "reason": "",
        }

    return fit


METHODS: dict[str, Method] = {
    "scoreascent": _ours,
    "nuts": _nuts,
    **{name: _by_peer(name) for name in PEERS},
}


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with whether every fit is right."""
    right = (table["mean_error"] <= MAX_MEAN_ERROR) & (table["sd_error"] <= MAX_SD_ERROR)
    return table.assign(right=right)


def counts(table: pd.DataFrame) -> pd.DataFrame:
    """Return how many fits are right or wrong and called good or not, by method and kind."""
    t = judged(table)
    cases = {
        "right, good": t["right"] & t["good"],
        "right, not good": t["right"] & ~t["good"],
        "wrong, not good": ~t["right"] & ~t["good"],
        "WRONG, GOOD": ~t["right"] & t["good"],
        "regular, not good": t["regular"] & ~t["good"],
    }
    columns = pd.DataFrame({name: where.astype(int) for name, where in cases.items()})
    columns[["method", "kind"]] = t[["method", "kind"]]
    by_kind = columns.groupby(["method", "kind"], sort=True).sum()
    total = columns.drop(columns="kind").groupby("method").sum()
    total.index = pd.MultiIndex.from_tuples(
        [(m, "all") for m in total.index], names=by_kind.index.names
    )
    return pd.concat([by_kind, total]).sort_index().reset_index()


def draw(run: StoredRun, console: Console) -> None:
    """Write the counts, and what once fooled it; tell fits that were wrong and called good."""
    table = run.read_table(hint="run `scoreascent bench verdict` first")
    found = counts(table)
    header = "| " + " | ".join(found.columns) + " |\n|" + "---|" * len(found.columns)
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in found.itertuples(index=False)]
    text = "\n".join([header, *lines]) + "\n"
    (run.path / "counts.md").write_text(text)
    (run.path / "before-and-after.md").write_text(before_and_after(judged(table)))
    judged(table).to_csv(run.path / "table.csv", index=False, float_format="%.4g")
    console.print(Markdown(text))
    wrong = judged(table).query("good and not right")
    for row in wrong.itertuples():
        console.print(
            f"wrong and called good: {row.shape} by {row.method}, seed {row.seed}: mean "
            f"{row.mean_error:.2f}, log sd {row.sd_error:.2f}",
            markup=False,
        )


VERDICT = Experiment(
    "verdict",
    Settings(),
    QUICK,
    cells,
    compute,
    draw,
    parts=("only_shapes", "only_methods"),
    command="bench",
)
