"""A regression on real data, four ways: what mass covering means, in one picture."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist
from numpyro.distributions import constraints
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes

from scoreascent._figures import plt, save
from scoreascent._nuts import nuts_sampler
from scoreascent.fitting import fit
from scoreascent.methods import Method, elbo, pmcsa
from scoreascent.model import Param
from scoreascent.target import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = 20_000
CHAINS = 4
LARGE_ERROR = 0.1  # of the logarithm of a spread, on average


class Contender(NamedTuple):
    """A method, or None for a fit that chooses for itself; and its colour."""

    method: Method | None
    colour: str


METHODS = {
    "ELBO": Contender(elbo(10), "#d95f02"),
    "pMCSA-10": Contender(pmcsa(10), "#7570b3"),
    "pMCSA-256": Contender(pmcsa(256), "#1b9e77"),
    "sa.fit": Contender(None, "#111111"),
}


@dataclass(frozen=True)
class Fitted:
    """Moments of the unconstrained parameters, and what they cost."""

    mean: np.ndarray[Any, Any]
    cov: np.ndarray[Any, Any]
    seconds: float
    acceptance: float = float("nan")

    @property
    def sd(self) -> np.ndarray[Any, Any]:
        """The standard deviations of the parameters."""
        return np.sqrt(np.diag(self.cov))

    def error(self, reference: Fitted) -> np.ndarray[Any, Any]:
        """Errors of the means, in posterior standard deviations."""
        return (self.mean - reference.mean) / reference.sd

    def ratio(self, reference: Fitted) -> np.ndarray[Any, Any]:
        """The fitted standard deviations over the true ones."""
        return self.sd / reference.sd


def log_density(p: dict[str, Any], data: tuple[Any, Any]) -> Any:
    """Linear regression with unknown noise; everything is standardised."""
    X, y = data
    prior = (
        dist.Normal(0, 1).log_prob(p["intercept"])
        + jnp.sum(dist.Normal(0, 1).log_prob(p["beta"]))
        + dist.HalfNormal(1).log_prob(p["sigma"])
    )
    return prior + jnp.sum(dist.Normal(p["intercept"] + X @ p["beta"], p["sigma"]).log_prob(y))


def diabetes() -> tuple[Target, list[str]]:
    """The posterior on the diabetes data, ten collinear predictors, and its parameters' names."""
    raw = load_diabetes()
    X = (raw.data - raw.data.mean(0)) / raw.data.std(0)
    y = (raw.target - raw.target.mean()) / raw.target.std()
    target = Target(
        log_density,
        params={
            "intercept": constraints.real,
            "beta": Param(constraints.real, (X.shape[1],)),
            "sigma": constraints.positive,
        },
        data=(X.astype(np.float32), y.astype(np.float32)),
    )
    # leaves of a dictionary come in alphabetical order
    return target, [*raw.feature_names, "intercept", "log σ"]


def nuts(target: Target, key: int) -> tuple[np.ndarray[Any, Any], Fitted]:
    """A long reference run: four chains of 4000 draws after 1000 of warm-up."""
    clock = time.perf_counter()
    sampler = nuts_sampler(target, warmup=1000, draws=4000, chains=CHAINS)
    start = 0.1 * jax.random.normal(jax.random.key(key), (CHAINS, target.dim))
    sampler.run(jax.random.key(key + 1), init_params=start)
    draws = np.asarray(sampler.get_samples(), np.float64)
    fitted = Fitted(draws.mean(0), np.cov(draws.T), time.perf_counter() - clock)
    return draws, fitted


def run(console: Console, picture: Path, key: int) -> None:
    """Fit, compare, print and draw."""
    target, names = diabetes()
    console.print(
        f"Linear regression on scikit-learn's diabetes data: 442 rows, {target.dim} parameters, "
        "predictors that are strongly collinear."
    )
    with console.status("reference: NUTS, 4 × 4000 draws"):
        draws, reference = nuts(target, key)
    fits = {}
    for name, (method, _) in METHODS.items():
        clock = time.perf_counter()
        if method is None:
            console.print(f"{name}: sa.fit(target), nothing else said")
            result = fit(target, key=key)
        else:
            console.print(f"{name}: {method!r}, {STEPS} iterations")
            result = fit(target, method, steps=STEPS, key=key, average=True)
        late = max(1, result.trace.acceptance.size // 10)
        fits[name] = Fitted(
            np.asarray(result.q.mean, np.float64),
            np.asarray(result.q.cov, np.float64),  # type: ignore[attr-defined]
            time.perf_counter() - clock,
            float(np.mean(result.trace.acceptance[-late:])),
        )
    console.print(_parameters(names, reference, fits))
    console.print(_overall(reference, fits))
    console.print(_verdict(reference, fits))
    assert result.diagnosis is not None
    console.print(f"sa.fit's own verdict: {result.diagnosis.verdict}")
    draw_figure(picture, names, draws, reference, fits)
    console.print(f"picture: {picture}")


def _parameters(names: list[str], reference: Fitted, fits: dict[str, Fitted]) -> Table:
    table = Table(title="Posterior by NUTS, and sd of q / sd by NUTS (1 is right)")
    for column in ("parameter", "mean", "sd", *fits):
        table.add_column(column, justify="left" if column == "parameter" else "right")
    for i, name in enumerate(names):
        cells = [f"{f.ratio(reference)[i]:.2f}" for f in fits.values()]
        table.add_row(name, f"{reference.mean[i]:.3f}", f"{reference.sd[i]:.3f}", *cells)
    return table


def _overall(reference: Fitted, fits: dict[str, Fitted]) -> Table:
    table = Table(title="Over all parameters (seconds include compiling)")
    for column in ("", "worst mean error", "mean |log sd ratio|", "worst sd ratio", "acceptance",
                   "seconds"):  # fmt: skip
        table.add_column(column, justify="right" if column else "left")
    table.add_row("NUTS", "", "", "", "", f"{reference.seconds:.1f}")
    for name, f in fits.items():
        logs = np.log(f.ratio(reference))
        table.add_row(
            name,
            f"{np.max(np.abs(f.error(reference))):.2f} sd",
            f"{np.mean(np.abs(logs)):.3f}",
            f"{np.exp(logs[np.argmax(np.abs(logs))]):.2f}",
            "" if name == "ELBO" else f"{f.acceptance:.1%}",
            f"{f.seconds:.1f}",
        )
    return table


def _verdict(reference: Fitted, fits: dict[str, Fitted]) -> str:
    """What the numbers say, computed from them."""
    off = {n: float(np.mean(np.abs(np.log(f.ratio(reference))))) for n, f in fits.items()}
    says = [
        f"{name} gets the spreads {'better' if off[name] < off['ELBO'] else 'no better'} than the "
        f"ELBO: off by a factor of {np.exp(off[name]):.2f} on average, against "
        f"{np.exp(off['ELBO']):.2f}."
        for name in fits
        if name != "ELBO"
    ]
    if off["pMCSA-10"] > LARGE_ERROR:
        says.append(
            "Few chains are not enough here: proposals from a mean-field q rarely fit a correlated "
            "posterior, and before ten chains have explored it q has shrunk around them."
        )
    return " ".join(says)


def draw_figure(
    path: Path,
    names: list[str],
    draws: np.ndarray[Any, Any],
    reference: Fitted,
    fits: dict[str, Fitted],
) -> None:
    """Draw two collinear coefficients, and every standard deviation over its true value."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    _joint(left, names, draws, fits, names.index("s1"), names.index("s2"))
    positions = np.arange(len(names))
    for k, (name, f) in enumerate(fits.items()):
        right.plot(f.ratio(reference), positions + 0.18 * (1.5 - k), "o", ms=6,
                   color=METHODS[name].colour, label=name)  # fmt: skip
    right.axvline(1, color="0.3", lw=1)
    right.set_xscale("log")
    ticks = [0.125, 0.25, 0.5, 1.0, 2.0]
    right.set_xticks(ticks, [f"{t:g}" for t in ticks])
    right.minorticks_off()
    right.set_yticks(positions, names)
    right.invert_yaxis()
    right.set_xlabel("standard deviation of q / posterior's (log scale)")
    right.set_title("How wide is q?")
    right.grid(axis="x", color="0.9")
    right.legend(frameon=False, loc="lower left")
    save(figure, path)


def _joint(
    axes: Axes,
    names: list[str],
    draws: np.ndarray[Any, Any],
    fits: dict[str, Fitted],
    i: int,
    j: int,
) -> None:
    """Draw NUTS's draws of two parameters, under the 1- and 2-sd ellipses of every q."""
    thin = draws[:: max(1, len(draws) // 3000)]
    axes.plot(thin[:, i], thin[:, j], ".", ms=2, color="0.75", label="posterior (NUTS)")
    angle = np.linspace(0, 2 * np.pi, 200)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    for name, f in fits.items():
        root = np.linalg.cholesky(f.cov[np.ix_([i, j], [i, j])])
        for radius in (1, 2):
            axes.plot(
                *(f.mean[[i, j], None] + radius * root @ circle),
                color=METHODS[name].colour,
                lw=2 if radius == 1 else 1.2,
                label=name if radius == 1 else None,
            )
    axes.set_xlabel(f"coefficient of {names[i]}")
    axes.set_ylabel(f"coefficient of {names[j]}")
    axes.set_title("1- and 2-sd contours of q over the posterior")
    axes.legend(frameon=False, markerscale=4)
