"""Many groups, persons or animals around common means."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from numpyro.distributions import constraints

from scoreascent import Param
from scoreascent.experiments.large.densities import bernoulli_logit, cauchy, normal, poisson_log
from scoreascent.experiments.large.entry import Data, Detour, LargeModel, rounded
from scoreascent.target import Target

POSITIVE = Param(constraints.positive)
REAL = Param(constraints.real)


def reals(*shape: int) -> Param:
    """An array of parameters without bounds."""
    return Param(constraints.real, shape)


def _sigmoid(x: Any) -> NDArray[Any]:
    return np.asarray(1 / (1 + np.exp(-x)))


# -- two crossed effects ---------------------------------------------------------------------------


def crossed_counts(p: Any, data: Any) -> Any:
    """Counts whose log rates add an effect of the subject and one of the item, non-centred."""
    prior = normal(p["intercept"], 0, 2) + normal(p["slope"]) + normal(p["tau"])
    prior += normal(p["subject"]) + normal(p["item"])
    eta = p["intercept"] + data["x"] @ p["slope"]
    eta += p["tau"][0] * p["subject"][data["subject"]] + p["tau"][1] * p["item"][data["item"]]
    return prior + poisson_log(data["y"], eta)


def crossed_data() -> Data:
    """1800 counts of 150 subjects and 80 items."""
    rng, n = np.random.default_rng(11), 1800
    subject, item = np.tile(np.arange(150), 12), rng.integers(0, 80, n)
    x = rng.normal(size=(n, 4))
    eta = 0.7 + x @ np.array([0.3, -0.2, 0.1, 0.0])
    eta += 0.5 * rng.normal(size=150)[subject] + 0.35 * rng.normal(size=80)[item]
    y = rng.poisson(np.exp(eta)).astype(float)
    return {"subject": subject, "item": item, "x": x, "y": y}


# -- a line for every group ------------------------------------------------------------------------

LINES = 85


def lines(p: Any, data: Any) -> Any:
    """An intercept and a slope for every group: μ + τ·raw."""
    line = p["mu"] + p["tau"] * p["raw"]
    return normal(p["raw"]) + _lines_above(p, data) + _lines_below(p, line, data)


def lines_centred(p: Any, data: Any) -> Any:
    """The same, with the intercepts and slopes themselves as parameters."""
    below = _lines_below(p, p["line"], data)
    return normal(p["line"], p["mu"], p["tau"]) + _lines_above(p, data) + below


def _lines_above(p: Any, data: Any) -> Any:
    return normal(p["mu"], 0, 5) + normal(p["tau"]) + normal(p["sigma"])


def _lines_below(p: Any, line: Any, data: Any) -> Any:
    of_row = line[data["group"]]
    return normal(data["y"], of_row[:, 0] + of_row[:, 1] * data["x"], p["sigma"])


def lines_data() -> Data:
    """919 houses in 85 counties, as radon was measured: most counties have few, some have many."""
    rng = np.random.default_rng(12)
    share = rng.gamma(0.7, size=LINES)
    rest = rng.choice(LINES, 919 - LINES, p=share / share.sum())
    group = np.sort(np.concatenate([np.arange(LINES), rest]))
    x = (rng.random(919) < 0.17).astype(float)
    line = np.array([1.46, -0.69]) + np.array([0.33, 0.3]) * rng.normal(size=(LINES, 2))
    y = line[group, 0] + line[group, 1] * x + rng.normal(0, 0.75, 919)
    return {"group": group, "x": x, "y": y}


LINES_ABOVE = {"mu": reals(2), "sigma": POSITIVE, "tau": Param(constraints.positive, (2,))}


def _line_of_raw(z: NDArray[Any]) -> NDArray[Any]:
    """Draws of the non-centred model, in the order mu, raw, sigma, tau, as line, mu, sigma, tau."""
    n = 2 * LINES
    mu, raw, sigma, log_tau = z[:, :2], z[:, 2 : n + 2], z[:, n + 2 : n + 3], z[:, n + 3 :]
    line = mu[:, None] + np.exp(log_tau)[:, None] * raw.reshape(-1, LINES, 2)
    return np.concatenate([line.reshape(-1, n), mu, sigma, log_tau], axis=1)


# -- animals that are caught again -----------------------------------------------------------------

ANIMALS, OCCASIONS = 387, 6


def recapture(p: Any, data: Any) -> Any:
    """Each of 387 animals is there with probability ω, and is caught with one of its own (M_h).

    Those that were never caught may not exist: their number is what is asked for.
    """
    y, eta = data["y"], p["mean"] + p["tau"] * p["raw"]
    log_there, log_absent = jnp.log(p["omega"]), jnp.log1p(-p["omega"])
    caught = y * eta - OCCASIONS * jax.nn.softplus(eta)
    seen = log_there + caught
    unseen = jnp.logaddexp(log_there + caught, log_absent)
    prior = normal(p["mean"], 0, 1.5) + normal(p["tau"], 0, 1.5) + normal(p["raw"])
    return prior + jnp.sum(jnp.where(y > 0, seen, unseen))


def recapture_data() -> Data:
    """How often each of 250 animals was caught on six occasions; the others are zeros."""
    rng, there = np.random.default_rng(13), 250
    chance = _sigmoid(-0.8 + 0.9 * rng.normal(size=there))
    y = np.zeros(ANIMALS)
    y[:there] = rng.binomial(OCCASIONS, chance)
    return {"y": np.sort(y)[::-1].copy()}


# -- counties --------------------------------------------------------------------------------------

COUNTIES = 386


def counties(p: Any, data: Any) -> Any:
    """An intercept for every county around a line in the county's predictor; rows have one too."""
    prior = _counties_prior(p, data)
    eta = p["alpha"][data["county"]] + p["slope"] * data["x"]
    return prior + normal(data["y"], eta, p["sigma"])


def _counties_prior(p: Any, data: Any) -> Any:
    mean = p["mu"] + p["gamma"] * data["u"]
    prior = normal(p["mu"], 0, 5) + normal(p["gamma"]) + normal(p["slope"])
    return prior + normal(p["tau"]) + normal(p["sigma"]) + normal(p["alpha"], mean, p["tau"])


def counties_data() -> Data:
    """12 500 rows in 386 counties, of which the smallest have one."""
    rng, n = np.random.default_rng(14), 12_500
    share = rng.gamma(0.6, size=COUNTIES)
    rest = rng.choice(COUNTIES, n - COUNTIES, p=share / share.sum())
    county = np.sort(np.concatenate([np.arange(COUNTIES), rest]))
    u = rng.normal(size=COUNTIES)
    x = (rng.random(n) < 0.25).astype(float)
    alpha = 1.3 + 0.4 * u + 0.35 * rng.normal(size=COUNTIES)
    y = alpha[county] - 0.6 * x + rng.normal(0, 0.8, n)
    return {"county": county, "u": u, "x": x, "y": y}


def _counties_summed(p: Any, data: Any) -> Any:
    """The same density, by what the rows of a county add up to."""
    a, b = p["alpha"], p["slope"]
    square = data["yy"] - 2 * jnp.sum(a * data["y"]) - 2 * b * data["xy"]
    square += jnp.sum(a * (data["n"] * a + 2 * b * data["x"])) + b * b * data["xx"]
    rows = jnp.sum(data["n"])
    return _counties_prior(p, data) - 0.5 * square / p["sigma"] ** 2 - rows * jnp.log(p["sigma"])


def _counties_summed_target() -> Target:
    data = {name: rounded(x).astype(float) for name, x in counties_data().items()}
    county, x, y = data["county"].astype(int), data["x"], data["y"]
    add = lambda values: np.bincount(county, values, COUNTIES)  # noqa: E731
    sums = {"n": add(np.ones_like(x)), "x": add(x), "y": add(y), "u": data["u"]}
    sums |= {"xx": np.sum(x * x), "xy": np.sum(x * y), "yy": np.sum(y * y)}
    return Target(_counties_summed, params=COUNTY_PARAMS, data=sums)


COUNTY_PARAMS = {
    "alpha": reals(COUNTIES),
    "gamma": REAL,
    "mu": REAL,
    "sigma": POSITIVE,
    "slope": REAL,
    "tau": POSITIVE,
}


# -- answers to items ------------------------------------------------------------------------------


def two_parameters(p: Any, data: Any) -> Any:
    """Item response: log odds a (θ − b), and a scale for each of the three."""
    prior = normal(p["theta"], 0, p["sd_theta"]) + cauchy(p["sd_theta"], 2)
    prior += normal(jnp.log(p["a"]), 0, p["sd_a"]) - jnp.sum(jnp.log(p["a"]))
    prior += cauchy(p["sd_a"], 2) + normal(p["mean_b"], 0, 5)
    prior += normal(p["b"], p["mean_b"], p["sd_b"]) + cauchy(p["sd_b"], 2)
    return prior + bernoulli_logit(data["y"], p["a"] * (p["theta"][:, None] - p["b"]))


def two_parameters_data() -> Data:
    """100 persons, 20 items."""
    rng = np.random.default_rng(15)
    theta, b, a = rng.normal(size=100), rng.normal(0.3, 1, 20), np.exp(0.4 * rng.normal(size=20))
    chance = _sigmoid(a * (1.2 * theta[:, None] - b))
    return {"y": (rng.random((100, 20)) < chance).astype(float)}


def item_pairs(p: Any, data: Any) -> Any:
    """Item response where log a and b of an item correlate: xi holds both."""
    rho, tau, xi = p["rho"], p["tau"], p["xi"]
    unit = (xi - p["mu"]) / tau
    rest = (unit[:, 1] - rho * unit[:, 0]) / jnp.sqrt(1 - rho**2)
    items = xi.shape[0]
    prior = normal(unit[:, 0]) + normal(rest)
    prior -= items * (jnp.sum(jnp.log(tau)) + 0.5 * jnp.log1p(-(rho**2)))
    prior += 3 * jnp.log1p(-(rho**2)) - 0.1 * jnp.sum(tau)  # LKJ(4), exponential
    prior += normal(p["mu"], 0, jnp.array([1.0, 5.0])) + normal(p["theta"])
    eta = jnp.exp(xi[:, 0]) * (p["theta"][:, None] - xi[:, 1])
    return prior + bernoulli_logit(data["y"], eta)


def item_pairs_data() -> Data:
    """600 persons, 32 items: 19 200 answers."""
    rng = np.random.default_rng(16)
    xi = rng.multivariate_normal([0.1, 0.2], [[0.16, 0.12], [0.12, 1.0]], 32)
    theta = rng.normal(size=600)
    chance = _sigmoid(np.exp(xi[:, 0]) * (theta[:, None] - xi[:, 1]))
    return {"y": (rng.random((600, 32)) < chance).astype(float)}


# -- groups of yes and no --------------------------------------------------------------------------

GROUPS = 300


def groups(p: Any, data: Any) -> Any:
    """A log odds for every group, non-centred, and a slope that all share."""
    return normal(p["raw"]) + _groups_rest(p, p["mu"] + p["tau"] * p["raw"], data)


def groups_centred(p: Any, data: Any) -> Any:
    """The same with the log odds themselves."""
    return normal(p["alpha"], p["mu"], p["tau"]) + _groups_rest(p, p["alpha"], data)


def _groups_rest(p: Any, alpha: Any, data: Any) -> Any:
    prior = normal(p["mu"], 0, 2) + normal(p["slope"], 0, 2) + normal(p["tau"], 0, 1.5)
    return prior + bernoulli_logit(data["y"], alpha[:, None] + p["slope"] * data["x"])


def groups_data() -> Data:
    """Ten answers in each of 300 groups."""
    rng = np.random.default_rng(17)
    x = rng.normal(size=(GROUPS, 10))
    eta = -0.4 + 0.7 * rng.normal(size=(GROUPS, 1)) + 0.8 * x
    return {"x": x, "y": (rng.random(x.shape) < _sigmoid(eta)).astype(float)}


def _alpha_of_raw(z: NDArray[Any]) -> NDArray[Any]:
    """Draws of the non-centred model, in the order mu, raw, slope, tau, as alpha, mu, slope, tau.

    tau is a logarithm in both.
    """
    mu, raw, slope, log_tau = z[:, :1], z[:, 1 : GROUPS + 1], z[:, -2:-1], z[:, -1:]
    return np.concatenate([mu + np.exp(log_tau) * raw, mu, slope, log_tau], axis=1)


# -- two thousand rates ----------------------------------------------------------------------------

AREAS = 1996


def areas(p: Any, data: Any) -> Any:
    """A count in each of 1996 areas; log rates around a plane, non-centred."""
    prior = normal(p["mu"], 0, 3) + normal(p["slope"]) + normal(p["tau"]) + normal(p["raw"])
    eta = data["log_exposure"] + p["mu"] + data["x"] @ p["slope"] + p["tau"] * p["raw"]
    return prior + poisson_log(data["y"], eta)


def areas_data() -> Data:
    """Counts around eight, from areas of very different sizes."""
    rng = np.random.default_rng(18)
    x = rng.normal(size=(AREAS, 2))
    log_exposure = rng.normal(4, 1, AREAS)
    eta = log_exposure - 2.5 + x @ np.array([0.3, -0.15]) + 0.4 * rng.normal(size=AREAS)
    y = rng.poisson(np.exp(eta)).astype(float)
    return {"log_exposure": log_exposure, "x": x, "y": y}


# -- entries ---------------------------------------------------------------------------------------

_LINES = LargeModel(
    175,
    "varying intercepts and slopes of 85 groups, non-centred, most groups small",
    lines,
    lines_data,
    {"mu": reals(2), "raw": reals(LINES, 2), **LINES_ABOVE},
)
_GROUPS = LargeModel(
    303,
    "hierarchical logistic regression with 300 groups of ten, non-centred",
    groups,
    groups_data,
    {"mu": REAL, "raw": reals(GROUPS), "slope": REAL, "tau": POSITIVE},
    held_out=True,
)

HIERARCHIES: dict[str, LargeModel] = {
    "poisson-glmm": LargeModel(
        237,
        "Poisson regression with two crossed effects of 150 and 80 levels, non-centred",
        crossed_counts,
        crossed_data,
        {
            "intercept": REAL,
            "item": reals(80),
            "slope": reals(4),
            "subject": reals(150),
            "tau": Param(constraints.positive, (2,)),
        },
    ),
    "slopes": _LINES,
    "slopes-centred": LargeModel(
        175,
        "varying intercepts and slopes of 85 groups, centred, most groups small",
        lines_centred,
        lines_data,
        {"line": reals(LINES, 2), **LINES_ABOVE},
        detour=Detour(_LINES.target, _line_of_raw),
    ),
    "capture": LargeModel(
        390,
        "capture and recapture of animals that differ, some of them never seen, non-centred",
        recapture,
        recapture_data,
        {
            "mean": REAL,
            "omega": Param(constraints.unit_interval),
            "raw": reals(ANIMALS),
            "tau": POSITIVE,
        },
        held_out=True,
    ),
    "counties": LargeModel(
        391,
        "an intercept for each of 386 counties, 12 500 rows, centred",
        counties,
        counties_data,
        COUNTY_PARAMS,
        detour=Detour(_counties_summed_target, lambda z: z),
    ),
    "irt-2pl": LargeModel(
        144,
        "item response with two parameters, 100 persons by 20 items",
        two_parameters,
        two_parameters_data,
        {
            "a": Param(constraints.positive, (20,)),
            "b": reals(20),
            "mean_b": REAL,
            "sd_a": POSITIVE,
            "sd_b": POSITIVE,
            "sd_theta": POSITIVE,
            "theta": reals(100),
        },
    ),
    "irt-hierarchical": LargeModel(
        669,
        "item response with correlated parameters of items, 19 200 answers",
        item_pairs,
        item_pairs_data,
        {
            "mu": reals(2),
            "rho": Param(constraints.interval(-1.0, 1.0)),
            "tau": Param(constraints.positive, (2,)),
            "theta": reals(600),
            "xi": reals(32, 2),
        },
        held_out=True,
    ),
    "logistic-groups": _GROUPS,
    "logistic-groups-centred": LargeModel(
        303,
        "hierarchical logistic regression with 300 groups of ten, centred",
        groups_centred,
        groups_data,
        {"alpha": reals(GROUPS), "mu": REAL, "slope": REAL, "tau": POSITIVE},
        detour=Detour(_GROUPS.target, _alpha_of_raw),
    ),
    "wide-glm": LargeModel(
        2000,
        "counts of 1996 areas around a plane, non-centred",
        areas,
        areas_data,
        {"mu": REAL, "raw": reals(AREAS), "slope": reals(2), "tau": POSITIVE},
    ),
}
