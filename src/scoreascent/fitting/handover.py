"""From a fit to NUTS, which then needs no long warm-up; and from a sampler's draws to a fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import as_default
from scoreascent._batches import log_probs
from scoreascent._random import as_key, split
from scoreascent._structs import check_count
from scoreascent.diagnostics.draws import late_states, points
from scoreascent.families import Family, FullRank, LowRank
from scoreascent.run import Run, Start, check_single
from scoreascent.searches import MAX_FULL_RANK, START_RANK
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

    Numbers = np.ndarray[Any, np.dtype[np.float64]]

MAX_STATES = 20_000  # that tell the metric
DRAWS_OF_Q = 4000  # that tell it where a fit kept no states
PER_DIMENSION = 5  # states that a dense metric needs
SHRINK = 5.0  # states that count for a covariance of nothing, in the metric
MIN_DRAWS = 16  # of another sampler
POINTS = 512  # of them, where chains begin
SAME = 1e-3  # by how much, of its size, a value may differ when it has been to ℝᵈ and back

Sampler = Literal["pymc", "numpyro", "nutpie"]


@dataclass(frozen=True, eq=False)
class Handover:
    """Where NUTS may begin, and its inverse mass matrix, in the coordinates of other libraries.

    `target` is the fit's, but with every site of a model stated as it is written, as NumPyro and
    PyMC sample it. `z` are late states of its chains, a row for each chain of NUTS, and `metric`
    their covariance matrix, or in many dimensions their variances. What NUTS still has to find is
    its step size: 50 to 100 iterations of warm-up do.

    >>> import jax.numpy as jnp, numpy as np, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> handover = sa.Handover(target, np.zeros((4, 2), np.float32), np.eye(2, dtype=np.float32))
    >>> arguments, positions = handover.blackjax()
    >>> sorted(arguments), positions.shape
    (['inverse_mass_matrix', 'logdensity_fn', 'step_size'], (4, 2))
    """

    target: Target
    z: Float[Array, "chains d"]
    metric: Float[Array, "d d"] | Float[Array, " d"]

    @property
    def step_size(self) -> float:
        """A step to begin with: what a Gaussian with this metric would allow."""
        return float(self.target.dim**-0.25)

    def potential_fn(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """The target's log density, negated."""
        return -self.target.log_prob(z)

    def numpyro(self, model: bool = True) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return arguments of NumPyro's `NUTS`, and those of `MCMC.run`.

        `kernel, run = handover.numpyro()`, and then
        `MCMC(NUTS(**kernel), num_warmup=50, num_samples=1000, num_chains=4).run(key, **run)`. Of a
        NumPyro model the kernel has the model itself, unless `model` is False; else `potential_fn`,
        and its draws are points of ℝᵈ, which `handover.target.named` names.
        """
        first = self.z[0] if len(self.z) == 1 else self.z
        of, data = self.target.model, self.target.data
        own = of.for_nuts("numpyro", first, self.metric, data) if model and of else None
        if own is not None:
            kernel, run = own
            return kernel, run
        dense = self.metric.ndim == 2
        kernel = {"potential_fn": self.potential_fn, "inverse_mass_matrix": self.metric}
        kernel |= {"dense_mass": dense, "adapt_mass_matrix": False}
        return kernel, {"init_params": first}

    def blackjax(self) -> tuple[dict[str, Any], Float[Array, "chains d"]]:
        """Return arguments of `blackjax.nuts`, and the positions of the chains.

        The step size among them is a first guess.
        """
        arguments = {"logdensity_fn": self.target.log_prob, "step_size": self.step_size}
        return arguments | {"inverse_mass_matrix": self.metric}, self.z

    def pymc(self, sampler: Sampler = "pymc", tune: int = 100) -> dict[str, Any]:
        """Return arguments of `pymc.sample`, by PyMC's own NUTS, NumPyro's or nutpie's.

        nutpie chooses its own metric: it is given places to begin at, no more.
        """
        if sampler not in ("pymc", "numpyro", "nutpie"):
            raise ValueError(f"sampler must be 'pymc', 'numpyro' or 'nutpie', got {sampler!r}")
        library = sampler if sampler == "pymc" else f"pymc-{sampler}"
        of, data = self.target.model, self.target.data
        own = of.for_nuts(library, self.z, self.metric, data) if of else None
        if own is None:
            raise ValueError(
                "pymc() needs a fit of a PyMC model, by from_pymc; this one is of "
                f"{self.target!r}: take numpyro() or blackjax()"
            )
        return own | {"tune": check_count("tune", tune, 0)}

    def __repr__(self) -> str:
        kind = "dense" if self.metric.ndim == 2 else "diagonal"
        return f"Handover({self.target!r}, chains={len(self.z)}, {kind} metric)"


def hand_over(run: Run, key: PRNGKeyArray | int, chains: int, dense: bool | None) -> Handover:
    """Return where NUTS may go on from a fit; see `Result.to_nuts`."""
    check_single(run)
    chains = check_count("chains", chains, 1)
    key_draw, key_choose = split(as_key(key))
    states = late_states(run)
    if states is None:
        flat = np.asarray(points(run, key_draw, max(DRAWS_OF_Q, chains), "q"))
        last = flat
    else:
        last = states[-1]
        thin = -(-states.shape[0] * states.shape[1] // MAX_STATES)
        flat = states[::-1][::thin].reshape(-1, states.shape[-1])
        last = last if len(last) >= chains else flat
    chosen = jax.random.choice(key_choose, len(last), (chains,), replace=len(last) < chains)
    target, flat = _as_written(run.target, flat)
    _, first = _as_written(run.target, last[np.asarray(chosen)])
    if dense is None:
        dense = target.dim <= MAX_FULL_RANK and len(flat) >= PER_DIMENSION * target.dim
    return Handover(target, jnp.asarray(as_default(first)), jnp.asarray(_metric(flat, dense)))


def _metric(z: Any, dense: bool) -> Any:
    """Return the covariance matrix of the rows of z, or their variances."""
    z = np.asarray(z, np.float64)
    z = z[np.all(np.isfinite(z), 1)]
    variance = z.var(0, ddof=1)
    if not dense:
        return as_default(variance)
    share = SHRINK / (len(z) + SHRINK)
    cov = np.atleast_2d(np.cov(z, rowvar=False))
    return as_default((1 - share) * cov + share * np.diag(variance))


def _as_written(target: Target, z: Any) -> tuple[Target, Any]:
    """Return the target with its model as it was written, and points of ℝᵈ in its coordinates."""
    model = target.model
    if model is None:
        return target, z
    moved, data = _moved(target, jnp.asarray(z))
    return Target(model, dim=target.dim, data=data), np.asarray(moved)


@jax.jit
def _moved(target: Target, z: Any) -> Any:
    model: Any = target.model
    return jax.vmap(lambda z: model.as_written(z, target.data), out_axes=(0, None))(z)


# -- from draws ------------------------------------------------------------------------------------


def from_draws(target: Target, draws: Any) -> Start:
    """A start at the draws of another sampler, for `fit(start=…)`.

    `draws` are points of ℝᵈ (n, d); or a dictionary of parameters inside their supports, n in front
    of each, with the names of `target.site_names` (others are ignored); or ArviZ's container, whose
    `posterior` is taken. Chains may stand in front of n. q begins at their means and covariances
    and the chains at up to 512 of them, so it is what was drawn that is fitted, unless fresh
    searches find more.

    >>> import jax.numpy as jnp, numpy as np
    >>> from numpyro.distributions import constraints
    >>> target = Target(lambda p: -p["scale"], params={"scale": constraints.positive})
    >>> start = from_draws(target, {"scale": np.random.default_rng(0).exponential(size=500)})
    >>> print(start, [round(float(x), 1) for x in start.q.mean])
    500 points [-0.5]
    """
    if not isinstance(target, Target):
        raise ValueError(f"target must be a Target, got {target!r}")
    named = _named(target, draws)
    z = _points(target, draws) if named is None else _unconstrained(target, named)
    n, dim = z.shape
    enough = max(MIN_DRAWS, dim + 2 if dim <= MAX_FULL_RANK else 0)
    if n < enough:
        raise ValueError(f"draws: {n} are too few for {dim} dimensions; give at least {enough}")
    if still := np.flatnonzero(np.ptp(z, axis=0) == 0).tolist():
        raise ValueError(f"draws do not vary in coordinates {still} of the unconstrained space")
    chosen = z[np.unique(np.linspace(0, n - 1, min(n, POINTS)).round().astype(int))]
    finite = np.isfinite(log_probs(target, as_default(chosen)))
    if not finite.any():
        raise ValueError("draws: the log density is not finite at any; are they of this target?")
    q: Family
    if dim > MAX_FULL_RANK:
        q = LowRank.from_moments(as_default(z.mean(0)), as_default(z.std(0)), START_RANK)
    else:
        q = FullRank.from_moments(as_default(z.mean(0)), as_default(np.atleast_2d(np.cov(z.T))))
    return Start(q, jnp.asarray(as_default(chosen[finite])), (), 1, True, (len(chosen), 0))


def _points(target: Target, draws: Any) -> Numbers:
    """Return an array of points as (n, d)."""
    try:
        z = np.asarray(draws, np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            "draws must be an array (n, d) of points of ℝᵈ, a dictionary of named draws, or "
            f"ArviZ's container, got {type(draws).__name__}"
        ) from None
    if z.ndim not in (2, 3) or z.shape[-1] != target.dim:
        raise ValueError(
            f"draws must have shape (n, {target.dim}), as the target's unconstrained space, got "
            f"{z.shape}; values inside their supports are given as a dictionary by name"
        )
    z = z.reshape(-1, target.dim)
    if not np.all(np.isfinite(z)):
        raise ValueError("draws must be finite")
    return z


def _named(target: Target, draws: Any) -> dict[str, Any] | None:
    """Return draws by name; None if they are an array."""
    if isinstance(draws, np.ndarray | jax.Array | list | tuple):
        return None
    posterior = getattr(draws, "posterior", draws)  # of ArviZ's containers, of either version
    variables = getattr(posterior, "data_vars", None)
    if variables is not None:
        draws = {str(k): x.transpose("chain", "draw", ...) for k, x in variables.items()}
    if not isinstance(draws, Mapping):
        return None
    if missing := [name for name in target.site_names if name not in draws]:
        raise ValueError(f"draws have no {missing}; they must name all of {target.site_names}")
    return {name: np.asarray(draws[name], np.float64) for name in target.site_names}


def _unconstrained(target: Target, named: dict[str, Any]) -> Numbers:
    """Return named draws as points of ℝᵈ."""
    shapes = jax.eval_shape(target.named, jax.ShapeDtypeStruct((target.dim,), jnp.float32))
    flat = {}
    for name, x in named.items():
        shape = shapes[name].shape
        lead = x.ndim - len(shape)
        if lead not in (1, 2) or x.shape[lead:] != shape:
            raise ValueError(
                f"draws[{name!r}] must have shape {('n', *shape)}, n in front of the parameter's "
                f"own, got {x.shape}".replace("'n'", "n")
            )
        flat[name] = x.reshape(-1, *shape)
    if len(counts := {len(x) for x in flat.values()}) > 1:
        raise ValueError(f"draws must be as many for every name, got {sorted(counts)}")
    values = {name: jnp.asarray(as_default(x)) for name, x in flat.items()}
    z, back = _there_and_back(target, values)
    for name, x in flat.items():
        off = np.abs(np.asarray(back[name], np.float64) - x)
        wrong = ~(off <= SAME * (1 + np.abs(x))).reshape(len(x), -1).all(1)
        if wrong.any():
            first = int(np.argmax(wrong))
            raise ValueError(
                f"draws[{name!r}]: draw {first} is outside the support, or at its very edge: "
                f"{x[first]}"
            )
    return np.asarray(z, np.float64)


@jax.jit
def _there_and_back(target: Target, values: Any) -> Any:
    def one(values: Any) -> Any:
        z = target.unconstrain(target.structured(values))
        return z, target.named(z)

    return jax.vmap(one)(values)
