"""Ways to fit a large model: the library itself, and NUTS at the length that one would run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

import scoreascent as sa
from scoreascent._nuts import nuts_sampler
from scoreascent.diagnostics.chains import rhat
from scoreascent.diagnostics.draws import late_states
from scoreascent.diagnostics.rules import GOOD

NUTS_RHAT = 1.01
CHAINS, WARMUP, DRAWS = 4, 1000, 1000
MAX_DENSE = 300  # dimensions up to which a dense mass matrix is tried
FIELDS = ("num_steps", "diverging")

Moments = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Seen:
    """What a method says of a posterior on ℝᵈ, and what that took.

    `moments` are all the means and sds that it gives: of q and of chains, if it has both. A
    gradient counts once, its value included, in warm-ups and searches too; `densities` are
    evaluations without one.
    """

    moments: tuple[Moments, ...]
    good: bool
    says: str
    gradients: int
    densities: int = 0
    rhat: float = np.nan
    divergences: int = 0


Read = Callable[[], Seen]
Method = Callable[[sa.Target, int], Read]


@dataclass(frozen=True)
class Way:
    """A method, `fit(target, seed)()`, of which the first call is timed and the second is not."""

    fit: Method
    description: str
    max_dim: float = np.inf


def _ours(target: sa.Target, seed: int) -> Read:
    result = sa.fit(target, key=seed, progress=False)

    def read() -> Seen:
        moments = [(np.asarray(result.q.mean, np.float64), np.asarray(result.q.sd, np.float64))]
        states = late_states(result) if result.draws_from == "chains" else None
        if states is not None:
            flat = states.reshape(-1, states.shape[-1]).astype(np.float64)
            moments.append((flat.mean(0), flat.std(0, ddof=1)))
        assert result.diagnosis is not None
        assert result.evaluations is not None
        densities, gradients = result.evaluations
        verdict = str(result.diagnosis.verdict)
        return Seen(tuple(moments), verdict == GOOD, verdict, int(gradients), int(densities))

    return read


def _nuts(dense: bool) -> Method:
    def fit(target: sa.Target, seed: int) -> Read:
        sampler = nuts_sampler(target, warmup=WARMUP, draws=DRAWS, chains=CHAINS, dense_mass=dense)
        key, start = jax.random.split(jax.random.key(seed))
        first = jax.random.uniform(start, (CHAINS, target.dim), minval=-2.0, maxval=2.0)
        sampler.warmup(key, init_params=first, extra_fields=FIELDS, collect_warmup=True)
        warmup = int(np.sum(sampler.get_extra_fields()["num_steps"]))
        sampler.run(sampler.post_warmup_state.rng_key, extra_fields=FIELDS)
        z = np.asarray(sampler.get_samples(group_by_chain=True), np.float64)

        def read() -> Seen:
            extra = {name: np.asarray(x) for name, x in sampler.get_extra_fields().items()}
            with np.errstate(all="ignore"):
                worst = float(np.max(np.nan_to_num(rhat(z), nan=np.inf)))
            diverging = int(extra["diverging"].sum())
            return Seen(
                ((z.mean((0, 1)), z.std((0, 1), ddof=1)),),
                worst <= NUTS_RHAT and diverging == 0,
                f"R̂ {worst:.3f}, {diverging} divergences",
                warmup + int(extra["num_steps"].sum()),
                rhat=worst,
                divergences=diverging,
            )

        return read

    return fit


METHODS: dict[str, Way] = {
    "scoreascent": Way(_ours, "sa.fit(target)"),
    "nuts": Way(_nuts(dense=False), "NumPyro's NUTS, 4 × (1000 + 1000)"),
    "nuts-dense": Way(_nuts(dense=True), "the same with a dense mass matrix", MAX_DENSE),
}


def way(name: str) -> Way:
    """The method of that name.

    >>> way("nuts-dense").max_dim
    300
    """
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; choose from {', '.join(METHODS)}")
    return METHODS[name]
