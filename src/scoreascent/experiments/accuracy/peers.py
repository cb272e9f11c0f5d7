"""The methods of the suite, each at its defaults, on one and the same density on ℝᵈ.

A peer's `begin` makes what one can keep between two fits of the same posterior (a sampler, compiled
code) and gives a function that fits; that gives one that reads the result. The first fit's clock
starts before `begin`, and no clock sees the reading.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpy.typing import NDArray
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO, autoguide

import scoreascent as sa
from scoreascent._batches import log_probs
from scoreascent.diagnostics.weights import log_weights
from scoreascent.experiments.accuracy.metrics import Fit
from scoreascent.experiments.accuracy.models import Entry

STEPS = 10_000  # of every optimiser
RATE = 0.01
DRAWS = 4000
RADIUS = 2.0  # starts are uniform in (−2, 2)ᵈ, as NumPyro's

Read = Callable[[], Fit]
Seeded = Callable[[int], Read]


@dataclass(frozen=True)
class Peer:
    """A way to fit: `begin(entry, target)(seed)()`, what it is in words, the extra it needs."""

    begin: Callable[[Entry, sa.Target], Seeded]
    what: str
    needs: str | None = None

    def missing(self) -> str:
        """The extra that is not installed, in words; empty if all is there."""
        try:
            if self.needs is not None:
                importlib.import_module(self.needs)
        except ModuleNotFoundError as error:
            return f"needs {error.name}: pip install 'scoreascent[{self.needs}]'"
        return ""


# -- this library ----------------------------------------------------------------------------------


def _automatic(entry: Entry, target: sa.Target) -> Seeded:
    def fit(seed: int) -> Read:
        result = sa.fit(target, key=seed, progress=False)
        verdict = _verdict(result)
        return lambda: _read(result, verdict, seed)

    return fit


# A mean-field q whose chains move by a proposal richer than q: exact marginals in 2d numbers.
MEAN_FIELD = sa.pmcsa(128, kernel=sa.Adapted(sa.Cycle(sa.IMH(), sa.HMC())))
MEAN_FIELD_STEPS = 1000


def _paper(entry: Entry, target: sa.Target) -> Seeded:
    return _by_hand(target, sa.pmcsa(10), STEPS, densities=10.0 * (STEPS + 1))


def _mean_field(entry: Entry, target: sa.Target) -> Seeded:
    def fit(seed: int) -> Read:
        start = sa.laplace(target, seed)
        q0 = replace(start, q=sa.MeanField.from_moments(start.q.mean, start.q.sd))
        fitted = _by_hand(
            target, MEAN_FIELD, MEAN_FIELD_STEPS, optimizer=sa.moment_matching(), q0=q0
        )
        return fitted(seed)

    return fit


def _by_hand(
    target: sa.Target, method: Any, steps: int, densities: float = np.nan, **options: Any
) -> Seeded:
    """A mean-field q by a method that was chosen; its verdict is not in the time."""
    options = {"q0": sa.MeanField.standard(target.dim)} | options
    options |= {"steps": steps, "average": True, "progress": False, "throw": False}

    def fit(seed: int) -> Read:
        result = sa.fit(target, method, key=seed, **options)
        jax.block_until_ready(result.q)
        return lambda: _read(result, _verdict(result), seed, densities)

    return fit


def _verdict(result: Any) -> str:
    """In words; the automatic method brings its own."""
    diagnosis = getattr(result, "diagnosis", None)
    return str((result.diagnose() if diagnosis is None else diagnosis).verdict)


def _read(result: Any, verdict: str, seed: int, densities: float = np.nan) -> Fit:
    draws = result.q.sample(jax.random.key(seed), (DRAWS,))
    log_q = jax.vmap(result.q.log_prob)(draws)
    counts = getattr(result, "evaluations", None)
    known = (densities, 0.0 * densities)  # a NaN stays one
    densities, gradients = known if counts is None else _counts(counts)
    return Fit(
        np.asarray(result.q.mean, np.float64),
        np.asarray(result.q.sd, np.float64),
        np.asarray(draws, np.float64),
        _weights(result.target, draws, log_q),
        densities,
        gradients,
        verdict,
    )


def _counts(counts: Any) -> tuple[float, float]:
    """Densities and gradients, of a mapping or a tuple of the two."""
    values = list(counts.values()) if hasattr(counts, "values") else list(counts)
    return float(values[0]), float(values[1])


def _weights(target: sa.Target, draws: Any, log_q: Any) -> NDArray[Any]:
    return log_weights(log_probs(target, draws), log_q)[0]


# -- NumPyro ---------------------------------------------------------------------------------------


def _numpyro(guide_class: Any) -> Callable[[Entry, sa.Target], Seeded]:
    def begin(entry: Entry, target: sa.Target) -> Seeded:
        model, args, names = _native(entry, target)
        guide = guide_class(model)
        svi = SVI(model, guide, numpyro.optim.Adam(RATE), Trace_ELBO())

        def fit(seed: int) -> Read:
            params = svi.run(jax.random.key(seed), STEPS, *args, progress_bar=False).params
            jax.block_until_ready(params)
            return lambda: _gaussian(*_moments(guide, params, names), target, seed, STEPS)

        return fit

    return begin


def _native(
    entry: Entry, target: sa.Target
) -> tuple[Callable[..., None], tuple[Any, ...], tuple[str, ...]]:
    """The NumPyro model itself, or one that adds a density as a factor; arguments, names of z."""
    if entry.model is not None:
        return entry.model, entry.arguments(), target.site_names

    def flat() -> None:
        support = dist.ImproperUniform(constraints.real_vector, (), (target.dim,))
        z = numpyro.sample("z", support)
        with handlers.block():  # a target may be made of a NumPyro model; its sites are its own
            log_p = target.log_prob(z)
        numpyro.factor("log_p", log_p)

    return flat, (), ("z",)


def _moments(guide: Any, params: Any, names: tuple[str, ...]) -> tuple[Any, Any]:
    """Mean and covariance of a guide in the order of z."""
    if isinstance(guide, autoguide.AutoNormal):
        flat = lambda what: jnp.concatenate(  # noqa: E731
            [jnp.ravel(params[f"{name}_auto_{what}"]) for name in names]
        )
        return flat("loc"), jnp.diag(flat("scale") ** 2)
    q = guide.get_posterior(params)
    places = guide._unpack_latent(jnp.arange(q.mean.size, dtype=float))
    order = np.concatenate([np.ravel(places[name]) for name in names]).astype(int)
    return q.mean[order], q.covariance_matrix[np.ix_(order, order)]


def _gaussian(mean: Any, cov: Any, target: sa.Target, seed: int, gradients: float) -> Fit:
    """The fit of a Gaussian q; its draws and density are computed in 64 bits."""
    mean, cov = np.asarray(mean, np.float64), np.asarray(cov, np.float64)
    sd = np.sqrt(np.diag(cov))
    noise = np.random.default_rng(seed).normal(size=(DRAWS, len(mean)))
    try:
        root = np.linalg.cholesky(cov / np.outer(sd, sd)) * sd[:, None]
    except np.linalg.LinAlgError:  # singular, or not finite
        return Fit(mean, sd, mean + noise * sd, None, 0.0, gradients)
    draws = mean + noise @ root.T
    log_q = -0.5 * np.sum(noise**2, 1) - np.sum(np.log(np.diag(root)))
    weights = _weights(target, jnp.asarray(draws, jnp.zeros(()).dtype), log_q)
    return Fit(mean, sd, draws, weights, 0.0, gradients)


class _CountingNUTS(NUTS):  # type: ignore[misc]
    """NUTS whose state counts the leapfrog steps of the whole run, warm-up included."""

    def sample(self, state: Any, model_args: Any, model_kwargs: Any) -> Any:
        new = super().sample(state, model_args, model_kwargs)
        return new._replace(num_steps=new.num_steps + state.num_steps)


def _nuts(entry: Entry, target: sa.Target) -> Seeded:
    sampler = MCMC(
        _CountingNUTS(potential_fn=lambda z: -target.log_prob(z)),
        num_warmup=1000,
        num_samples=1000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )

    def fit(seed: int) -> Read:
        key, start = jax.random.split(jax.random.key(seed))
        sampler.run(key, init_params=_uniform(start, (4, target.dim)))
        draws = np.asarray(sampler.get_samples(), np.float64)
        steps = float(np.sum(np.asarray(sampler.last_state.num_steps)))
        return lambda: Fit(draws.mean(0), draws.std(0, ddof=1), draws, None, 0.0, steps)

    return fit


def _uniform(key: Any, shape: tuple[int, ...]) -> Any:
    return jax.random.uniform(key, shape, minval=-RADIUS, maxval=RADIUS)


# -- BlackJAX --------------------------------------------------------------------------------------


def _blackjax(name: str) -> Callable[[Entry, sa.Target], Seeded]:
    def begin(entry: Entry, target: sa.Target) -> Seeded:
        module = importlib.import_module(f"blackjax.vi.{name}")
        optimizer = optax.adam(RATE)

        @jax.jit
        def run(key: Any, target: sa.Target) -> Any:
            def step(state: Any, key: Any) -> tuple[Any, None]:
                return module.step(key, state, target.log_prob, optimizer)[0], None

            first = module.init(jnp.zeros(target.dim), optimizer)
            return jax.lax.scan(step, first, jax.random.split(key, STEPS))[0]

        def root(state: Any) -> Any:
            if name == "meanfield_vi":
                return jnp.diag(jnp.exp(state.rho))
            return module._unflatten_cholesky(state.chol_params, target.dim)

        def fit(seed: int) -> Read:
            state = jax.block_until_ready(run(jax.random.key(seed), target))
            cost = 5.0 * STEPS  # samples a step, by default

            def read() -> Fit:
                factor = np.asarray(root(state), np.float64)
                return _gaussian(state.mu, factor @ factor.T, target, seed, cost)

            return read

        return fit

    return begin


def _pathfinder(entry: Entry, target: sa.Target) -> Seeded:
    from blackjax.vi import pathfinder

    run = jax.jit(lambda key, z, t: pathfinder.approximate(key, t.log_prob, z)[0])

    def fit(seed: int) -> Read:
        key, start, key_draw = jax.random.split(jax.random.key(seed), 3)
        state = jax.block_until_ready(run(key, _uniform(start, (target.dim,)), target))

        def read() -> Fit:
            draws, log_q = pathfinder.sample(key_draw, state, DRAWS)
            host = np.asarray(draws, np.float64)
            weights = _weights(target, draws, log_q)
            # thirty iterations of L-BFGS, each with 200 draws; its line searches are not told
            return Fit(host.mean(0), host.std(0, ddof=1), host, weights, 31.0 * 200, 30.0)

        return read

    return fit


# -- PyMC ------------------------------------------------------------------------------------------


def _advi(entry: Entry, target: sa.Target) -> Seeded:
    from scoreascent.adapters.pymc import _pymc

    pymc, pytensor = _pymc(), importlib.import_module("pytensor")
    with pymc.Model() as model, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        z = pymc.Flat("z", shape=target.dim)
        pymc.Potential("log_p", pytensor.wrap_jax(target.log_prob)(z))

    def fit(seed: int) -> Read:
        with model:
            fitted = pymc.fit(n=STEPS, method="advi", random_seed=seed, progressbar=False)
        mean, sd = fitted.mean.eval(), fitted.std.eval()
        return lambda: _gaussian(mean, np.diag(sd**2), target, seed, STEPS)

    return fit


PEERS: dict[str, Peer] = {
    "scoreascent": Peer(_automatic, "sa.fit(target): chooses for itself"),
    "scoreascent-paper": Peer(_paper, "the paper's pMCSA: mean-field, IMH, N = 10, averaged"),
    "scoreascent-mean-field": Peer(
        _mean_field, f"{MEAN_FIELD!r}, mean-field, moment matching, {MEAN_FIELD_STEPS} steps"
    ),
    "numpyro-normal": Peer(_numpyro(autoguide.AutoNormal), "AutoNormal, SVI"),
    "numpyro-multivariate": Peer(
        _numpyro(autoguide.AutoMultivariateNormal), "AutoMultivariateNormal, SVI"
    ),
    "numpyro-low-rank": Peer(
        _numpyro(autoguide.AutoLowRankMultivariateNormal), "AutoLowRankMultivariateNormal, SVI"
    ),
    "blackjax-mean-field": Peer(_blackjax("meanfield_vi"), "meanfield_vi, ADAM", "blackjax"),
    "blackjax-full-rank": Peer(_blackjax("fullrank_vi"), "fullrank_vi, ADAM", "blackjax"),
    "blackjax-pathfinder": Peer(_pathfinder, "pathfinder, one path", "blackjax"),
    "pymc-advi": Peer(_advi, "ADVI", "pymc"),
    "nuts": Peer(_nuts, "NumPyro's NUTS, 4 × (1000 + 1000)"),
}


def peer(name: str) -> Peer:
    """The method of that name.

    >>> peer("pymc-advi").needs
    'pymc'
    """
    if name not in PEERS:
        raise ValueError(f"there is no method {name!r}; choose from {', '.join(PEERS)}")
    return PEERS[name]
