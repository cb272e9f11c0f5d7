"""The masses of a posterior's modes: which part of a mixture owns the states of the chains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from scoreascent.diagnostics.draws import standard_errors
from scoreascent.families import Family, Mixture
from scoreascent.families.mixture import owners

if TYPE_CHECKING:
    from jaxtyping import Float

_owners = jax.jit(owners)


def look_at_modes(q: Family, states: Any) -> dict[str, Any]:
    """Measure how well states (chains, times, d) tell the mass of every part of q.

    Chains move independently, so the spread of the shares of their time that they spent in a part
    tells the error of its mass, however seldom they change: chains that stayed where they began
    differ most.
    """
    if not isinstance(q, Mixture):
        return {"parts": 1, "mass_unsure": 0.0, "changes": np.nan}
    if states is None:
        return {"parts": q.components, "mass_unsure": np.inf, "changes": np.nan}
    inside = indicators(q, states)
    chains = len(inside)
    error = inside.mean(1).std(0, ddof=1) / np.sqrt(chains) if chains > 1 else np.inf
    changed = np.any(inside[:, 1:] != inside[:, :-1], -1)
    return {
        "parts": q.components,
        "mass_unsure": float(standard_errors(chains) * np.max(error)),
        "changes": float(np.mean(np.sum(changed, 1))),
    }


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
