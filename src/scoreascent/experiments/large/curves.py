"""Regressions with many coefficients, curves and series."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from numpyro.distributions import constraints
from scipy.interpolate import BSpline
from scipy.linalg import solve_triangular

from scoreascent import Param
from scoreascent._structs import x64
from scoreascent.experiments.large.densities import cauchy, normal, poisson_log
from scoreascent.experiments.large.entry import Data, Detour, LargeModel, rounded
from scoreascent.experiments.large.hierarchies import POSITIVE, REAL, reals
from scoreascent.target import Target

# -- splines ---------------------------------------------------------------------------------------

KNOTS = 40
SLOPE_UNIT = 0.05  # of a walk, from one coefficient to the next
TYPICAL_BEND = np.array([0.002, 0.002])  # of the mean and of the log sd


def splines(p: Any, data: Any) -> Any:
    """A mean and a log sd that are smooth curves: B-splines, random walks of second order."""
    walks = (p["mean"], p["log_sd"])
    prior = normal(_bends(walks[0]), 0, p["tau"][0]) + normal(_bends(walks[1]), 0, p["tau"][1])
    return prior + _splines_rest(p, walks, data)


def _bends(walk: Any) -> Any:
    return walk[2:] - 2 * walk[1:-1] + walk[:-2]


def _splines_rest(p: Any, walks: tuple[Any, Any], data: Any) -> Any:
    prior = normal(jnp.log(p["tau"]), jnp.log(TYPICAL_BEND), 0.5) - jnp.sum(jnp.log(p["tau"]))
    prior += normal(walks[0][:2], 0, 3) + normal(walks[1][:2], 0, 1.5)
    mean, log_sd = (data["basis"] @ walk for walk in walks)
    return prior + normal(data["y"], mean, jnp.exp(log_sd))


def splines_data() -> Data:
    """133 readings along a curve that bends slowly, of which the later ones are less exact."""
    rng = np.random.default_rng(21)
    x = np.sort(rng.random(133))
    knots = np.concatenate([np.zeros(3), np.linspace(0, 1, KNOTS - 2), np.ones(3)])
    basis = BSpline.design_matrix(x, knots, 3).toarray()
    mean = 0.5 + 1.5 * x - 1.2 * x**2
    return {"basis": basis, "y": mean + np.exp(-0.7 + 1.2 * x) * rng.normal(size=len(x))}


def _splines_of_bends(p: Any, data: Any) -> Any:
    """The same by a level, a slope and all bends, non-centred, in units that starts can be of."""
    tau = TYPICAL_BEND * p["tau"]
    walks = _walk(p["mean"], tau[0]), _walk(p["log_sd"], tau[1])
    bends = normal(p["mean"][2:]) + normal(p["log_sd"][2:])
    return bends + _splines_rest({"tau": tau}, walks, data)


def _walk(parts: Any, tau: Any) -> Any:
    """A random walk of second order from its level, slope and bends, along the last axis."""
    first, step = parts[..., :1], SLOPE_UNIT * parts[..., 1:2]
    steps = jnp.concatenate([step, step + tau * jnp.cumsum(parts[..., 2:], -1)], -1)
    return jnp.concatenate([first, first + jnp.cumsum(steps, -1)], -1)


def _bends_target() -> Target:
    data = {name: rounded(x) for name, x in splines_data().items()}
    return Target(_splines_of_bends, params=SPLINE_PARAMS, data=data)


def _walks_of_bends(z: NDArray[Any]) -> NDArray[Any]:
    """From the parts of both walks and relative bends to the walks and the bends."""
    log_sd, mean, log_tau = z[:, :KNOTS], z[:, KNOTS:-2], z[:, -2:] + np.log(TYPICAL_BEND)
    tau = np.exp(log_tau)
    with x64():
        walks = _walk(log_sd, tau[:, 1:]), _walk(mean, tau[:, :1])
        return np.concatenate([*map(np.asarray, walks), log_tau], axis=1)


SPLINE_PARAMS = {
    "log_sd": reals(KNOTS),
    "mean": reals(KNOTS),
    "tau": Param(constraints.positive, (2,)),
}


# -- coefficients ----------------------------------------------------------------------------------

FACTOR_PRIOR = 0.1


def factors(z: Any, data: Any) -> Any:
    """Linear regression with unit noise and a normal prior."""
    return normal(data["y"], data["x"] @ z) + normal(z, 0, FACTOR_PRIOR)


def factors_data() -> Data:
    """500 rows of 1000 predictors that five common factors explain to seven tenths."""
    rng = np.random.default_rng(22)
    common = rng.normal(size=(500, 5)) @ rng.normal(size=(5, 1000)) / np.sqrt(5)
    x = np.sqrt(0.7) * common + np.sqrt(0.3) * rng.normal(size=(500, 1000))
    beta = FACTOR_PRIOR * rng.normal(size=1000)
    return {"x": x, "y": x @ beta + rng.normal(size=500)}


def factors_exact() -> tuple[NDArray[Any], NDArray[Any]]:
    """The means and sds of the coefficients."""
    data = {name: x.astype(np.float32).astype(np.float64) for name, x in factors_data().items()}
    precision = data["x"].T @ data["x"] + np.eye(1000) / FACTOR_PRIOR**2
    cov = np.linalg.inv(precision)
    return cov @ (data["x"].T @ data["y"]), np.sqrt(np.diag(cov))


SLAB = 2.0


def horseshoe(p: Any, data: Any) -> Any:
    """Regularised horseshoe, non-centred: few of 200 coefficients are far from zero."""
    tau, local = p["tau"], p["local"]
    slab = SLAB**2 * p["slab"]
    spread = jnp.sqrt(slab / (slab + (tau * local) ** 2)) * local
    beta = tau * spread * p["raw"]
    prior = normal(p["raw"]) + cauchy(local) + cauchy(tau, 0.05) + normal(p["sigma"], 0, 2)
    prior += -3.0 * jnp.log(p["slab"]) - 2.0 / p["slab"]  # inverse gamma(2, 2)
    return prior + normal(data["y"], data["x"] @ beta, p["sigma"])


def horseshoe_data() -> Data:
    """150 rows, 200 predictors, eight of which matter."""
    rng = np.random.default_rng(23)
    x = rng.normal(size=(150, 200))
    beta = np.zeros(200)
    beta[:8] = [2.0, -1.5, 1.5, 1.0, -1.0, 0.8, 0.6, -0.4]
    return {"x": x, "y": x @ beta + rng.normal(size=150)}


# -- a series --------------------------------------------------------------------------------------


def volatility(p: Any, data: Any) -> Any:
    """Log variances μ + σ x of returns, where x is an AR(1) of unit steps."""
    x, phi = p["x"], p["phi"]
    prior = normal(p["mu"], 0, 2) + normal(p["sigma"], 0, 0.5)
    prior += 19 * jnp.log(phi) + jnp.log1p(-phi)  # beta(20, 2)
    prior += normal(x[0], 0, 1 / jnp.sqrt(1 - phi**2)) + normal(x[1:], phi * x[:-1])
    return prior + normal(data["y"], 0, jnp.exp((p["mu"] + p["sigma"] * x) / 2))


def volatility_data() -> Data:
    """500 returns, in per cent."""
    rng, h = np.random.default_rng(24), [0.0]
    for _ in range(499):
        h.append(0.95 * h[-1] + 0.25 * rng.normal())
    return {"y": np.exp((-0.4 + np.array(h)) / 2) * rng.normal(size=500)}


def _volatility_of_noise(p: Any, data: Any) -> Any:
    """The same with the steps of the AR(1) as parameters."""
    phi = p["phi"]
    prior = normal(p["mu"], 0, 2) + normal(p["sigma"], 0, 0.5) + normal(p["noise"])
    prior += 19 * jnp.log(phi) + jnp.log1p(-phi)
    x = _filtered(phi, p["noise"])
    return prior + normal(data["y"], 0, jnp.exp((p["mu"] + p["sigma"] * x) / 2))


def _filtered(phi: Any, noise: Any) -> Any:
    """x_t = φ x_{t−1} + noise_t, begun in the stationary law."""
    first = noise.at[0].divide(jnp.sqrt(1 - phi**2))
    join = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])  # noqa: E731
    return jax.lax.associative_scan(join, (jnp.full_like(first, phi), first))[1]


def _volatility_noise_target() -> Target:
    data = {name: rounded(x) for name, x in volatility_data().items()}
    params = {**SERIES_ABOVE, "noise": reals(500)}
    return Target(_volatility_of_noise, params=params, data=data)


def _x_of_noise(z: NDArray[Any]) -> NDArray[Any]:
    """From mu, noise, phi, sigma, the last two without bounds, to mu, phi, sigma, x."""
    phi, noise = 1 / (1 + np.exp(-z[:, 501])), z[:, 1:501]
    x = np.empty_like(noise)
    x[:, 0] = noise[:, 0] / np.sqrt(1 - phi**2)
    for t in range(1, 500):
        x[:, t] = phi * x[:, t - 1] + noise[:, t]
    return np.concatenate([z[:, :1], z[:, 501:], x], axis=1)


SERIES_ABOVE = {"mu": REAL, "phi": Param(constraints.unit_interval), "sigma": POSITIVE}


# -- a process -------------------------------------------------------------------------------------

POINTS = 300
JITTER = 1e-3  # of the variance
WAVES, EDGE = 128, 3.0  # how the reference writes the kernel as a sum


def process(p: Any, data: Any) -> Any:
    """Counts whose log rate is a Gaussian process, non-centred by a Cholesky factor."""
    square = (data["x"][:, None] - data["x"]) ** 2
    kernel = jnp.exp(-0.5 * square * jnp.exp(-2 * p["log_length"]))
    root = jnp.linalg.cholesky(kernel + JITTER * jnp.eye(POINTS, dtype=kernel.dtype))
    eta = p["mean"] + jnp.exp(p["log_amplitude"]) * (root @ p["raw"])
    return _process_prior(p) + normal(p["raw"]) + poisson_log(data["y"], eta)


def _process_prior(p: Any) -> Any:
    above = normal(p["log_length"], np.log(0.25), 0.4) + normal(p["log_amplitude"], 0, 0.5)
    return above + normal(p["mean"], 0, 2)


def process_data() -> Data:
    """300 counts along [−1, 1]."""
    rng = np.random.default_rng(25)
    x = np.sort(rng.uniform(-1, 1, POINTS))
    eta = 0.8 + 0.7 * np.sin(7 * x) + 0.5 * np.cos(3 * x + 1)
    return {"x": x, "y": rng.poisson(np.exp(eta)).astype(float)}


def _process_of_waves(p: Any, data: Any) -> Any:
    """The same process as a sum of sines, whose number leaves out nothing that rounding keeps."""
    length = jnp.exp(p["log_length"])
    height = jnp.exp(-0.25 * (length * data["frequency"]) ** 2)  # root of the spectral density
    height *= (2 * jnp.pi) ** 0.25 * jnp.sqrt(length)
    smooth = data["waves"] @ (height * p["wave"])
    f = jnp.exp(p["log_amplitude"]) * (smooth + np.sqrt(JITTER) * p["rough"])
    prior = _process_prior(p) + normal(p["wave"]) + normal(p["rough"])
    return prior + poisson_log(data["y"], p["mean"] + f)


def _waves(x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Eigenfunctions of the Laplacian on [−EDGE, EDGE] at x, and the roots of its eigenvalues."""
    frequency = np.pi * np.arange(1, WAVES + 1) / (2 * EDGE)
    return np.sin(frequency * (x[:, None] + EDGE)) / np.sqrt(EDGE), frequency


def _waves_target() -> Target:
    data = {name: rounded(x) for name, x in process_data().items()}
    data["waves"], data["frequency"] = _waves(data["x"].astype(float))
    params = {**PROCESS_ABOVE, "rough": reals(POINTS), "wave": reals(WAVES)}
    return Target(_process_of_waves, params=params, data=data)


def _raw_of_waves(z: NDArray[Any]) -> NDArray[Any]:
    """From log amplitude, log length, mean, rough, wave to the first three and raw = L⁻¹ f."""
    x = process_data()["x"].astype(np.float32).astype(float)
    waves, frequency = _waves(x)
    square = (x[:, None] - x) ** 2
    above, rough, wave = z[:, :3], z[:, 3 : POINTS + 3], z[:, POINTS + 3 :]
    length = np.exp(above[:, 1:2])
    height = (2 * np.pi) ** 0.25 * np.sqrt(length) * np.exp(-0.25 * (length * frequency) ** 2)
    f = (height * wave) @ waves.T + np.sqrt(JITTER) * rough
    raw = np.empty_like(f)
    for i, size in enumerate(length[:, 0]):
        kernel = np.exp(-0.5 * square / size**2) + JITTER * np.eye(POINTS)
        raw[i] = solve_triangular(np.linalg.cholesky(kernel), f[i], lower=True)
    return np.concatenate([above, raw], axis=1)


PROCESS_ABOVE = {"log_amplitude": REAL, "log_length": REAL, "mean": REAL}


# -- entries ---------------------------------------------------------------------------------------

CURVES: dict[str, LargeModel] = {
    "splines": LargeModel(
        82,
        "splines for a mean and a log sd, neighbours correlated by up to 0.999",
        splines,
        splines_data,
        SPLINE_PARAMS,
        detour=Detour(_bends_target, _walks_of_bends),
    ),
    "factors-regression": LargeModel(
        1000,
        "1000 coefficients, 500 rows, five strong factors; exactly Gaussian",
        factors,
        factors_data,
        exact=factors_exact,
    ),
    "horseshoe-200": LargeModel(
        403,
        "regularised horseshoe on 200 coefficients, non-centred: many funnels",
        horseshoe,
        horseshoe_data,
        {
            "local": Param(constraints.positive, (200,)),
            "raw": reals(200),
            "sigma": POSITIVE,
            "slab": POSITIVE,
            "tau": POSITIVE,
        },
        held_out=True,
    ),
    "state-space": LargeModel(
        503,
        "stochastic volatility over 500 times",
        volatility,
        volatility_data,
        {**SERIES_ABOVE, "x": reals(500)},
        detour=Detour(_volatility_noise_target, _x_of_noise),
    ),
    "latent-gp": LargeModel(
        303,
        "a latent Gaussian process of 300 points and its hyperparameters, non-centred",
        process,
        process_data,
        {**PROCESS_ABOVE, "raw": reals(POINTS)},
        held_out=True,
        detour=Detour(_waves_target, _raw_of_waves),
    ),
}
