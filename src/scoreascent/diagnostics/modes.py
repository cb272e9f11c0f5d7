"""The masses of a posterior's modes, as the parts of a mixture: by its chains, and by its draws."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from scoreascent._arrays import impossible
from scoreascent._batches import log_probs
from scoreascent._structs import unchecked
from scoreascent.diagnostics.draws import standard_errors
from scoreascent.families import Family, Mixture
from scoreascent.families.mixture import owners
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Float, PRNGKeyArray

    Floats = np.ndarray[Any, np.dtype[np.float64]]

DRAWS = 512  # of every part
NOISES = 3.0  # standard errors of a mass that are taken for noise
MIN_WORTH = 0.05  # of a draw, below which their masses are not believed

_owners = jax.jit(owners)
_share = jax.jit(lambda q, z: jnp.exp(jax.vmap(q.share)(z)))


class Masses(NamedTuple):
    """The mass of every part of a mixture and its standard error, by weighted draws z."""

    mass: Floats
    error: Floats
    z: Any
    weights: Floats  # they sum to one
    worth: float  # of a draw, in draws of the posterior


def weigh_parts(target: Target, q: Mixture, key: PRNGKeyArray) -> Masses:
    """Draw as often of every part, however little it weighs, and weigh the draws by π.

    A part of little weight is hardly ever drawn from q itself, and chains come to it seldom.
    """
    z = np.asarray(_draws(key, q, DRAWS)).reshape(-1, q.dim)
    even = unchecked(q, logits=jnp.zeros_like(q.logits))
    log_p = log_probs(target, z)
    log_w = np.where(impossible(log_p), -np.inf, log_p) - log_probs(even, z)
    if not np.any(np.isfinite(log_w)):
        nothing = np.full(q.components, np.nan)
        return Masses(nothing, nothing, z, np.full(len(z), 1 / len(z)), 0.0)
    w = np.exp(log_w - logsumexp(log_w))
    share = np.asarray(_share(q, z), np.float64)
    mass = w @ share
    # each part is a stratum of its own
    each = (w[:, None] * (share - mass)).reshape(q.components, DRAWS, -1)
    error = np.sqrt(np.sum(DRAWS * each.var(1, ddof=1), 0))
    return Masses(mass, error, z, w, float(1 / np.sum(w**2) / len(z)))


@functools.partial(jax.jit, static_argnames="n")
def _draws(key: PRNGKeyArray, q: Mixture, n: int) -> Any:
    """Return n draws of every part."""
    normal = jax.random.normal(key, (q.components, n, q.dim), q.loc.dtype)
    return q.loc[:, None] + jnp.einsum("kij,knj->kni", q.tril, normal)


def look_at_modes(
    q: Family, states: Any, target: Target | None = None, key: PRNGKeyArray | None = None
) -> dict[str, Any]:
    """Measure how well states (chains, times, d) tell the mass of every part of q.

    Chains move independently, so the spread of the shares of their time that they spent in a part
    tells the error of its mass, however seldom they change: chains that stayed where they began
    differ most. With a target draws of every part say what the masses should be.
    """
    if not isinstance(q, Mixture):
        return {"parts": 1, "mass_unsure": 0.0, "mass_gap": 0.0, "changes": np.nan}
    unsure, gap, changes = np.inf, 0.0, np.nan
    if states is not None:
        inside = indicators(q, states)
        chains = len(inside)
        error = inside.mean(1).std(0, ddof=1) / np.sqrt(chains) if chains > 1 else np.inf
        unsure = float(standard_errors(chains) * np.max(error))
        changes = float(np.mean(np.sum(np.any(inside[:, 1:] != inside[:, :-1], -1), 1)))
    if target is not None and key is not None:
        found = weigh_parts(target, q, key)
        if found.worth >= MIN_WORTH:
            weights = np.asarray(q.weights, np.float64)
            off = np.maximum(np.abs(found.mass - weights) - NOISES * found.error, 0)
            gap = float(np.max(off * _weight_of_masses(q)))
    return {"parts": q.components, "mass_unsure": unsure, "mass_gap": gap, "changes": changes}


def _weight_of_masses(q: Mixture) -> Floats:
    """Return by how much a number changes, in sds, with the mass of each part: by its distance."""
    loc, mean, sd = (np.asarray(x, np.float64) for x in (q.loc, q.mean, q.sd))
    far = np.max(np.abs(loc - mean) / sd, 1)
    return np.maximum(far, 0.5 * far**2)


def indicators(q: Family, states: Any) -> Float[np.ndarray, "chains times K"]:
    """Return 1 where a part of q owns a state, else 0; no columns if q has one part.

    >>> q = Mixture.from_moments([[-2.0], [2.0]], [[[1.0]], [[1.0]]])
    >>> indicators(q, np.array([[[-1.0], [3.0]]])).tolist()
    [[[1.0, 0.0], [0.0, 1.0]]]
    """
    shape = np.shape(states)
    if not isinstance(q, Mixture) or shape[-1] != q.dim:
        return np.zeros((*shape[:2], 0))
    z = np.asarray(states, q.loc.dtype).reshape(-1, q.dim)
    mine = np.asarray(_owners(q, z)).reshape(shape[:2])
    return np.eye(q.components)[mine]
