"""How centred each site of a model should be: by how much the data say of each of its elements.

Stated non-centred, an element has curvature κ = 1 + s²/v, 1 from its prior and what the data add,
s being its scale and v the variance that the data alone would leave it. Given the scale, its value
by centredness c varies by s^c/√κ, and the logarithm of that has the slope c − (1 − 1/κ) in log s.
So c should be 1 − 1/κ, and how far u varies would not depend on s. But κ depends on it: where s may
be next to nothing, no c but 0 leaves u alone, and too large a c makes a funnel that has no end on
that side, where too small a one makes one that ends. So c is a low quantile of 1 − 1/κ over the
posterior, and 0 or 1 unless it is well between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import as_default
from scoreascent.kernels import Count
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

LOW = 0.05  # the quantile; by the mean, two hierarchies of weak groups took twice as long
SNAP = 0.25  # nearer to 0 or 1 than this is 0 or 1


def is_open(target: Target) -> bool:
    """Tell whether the centredness of some sites is left to the fit."""
    sites = getattr(target.model, "centrable", ())
    return bool(sites) and bool(np.any(np.isnan(np.asarray(target.data[-1]))))


def stated(target: Target, c: Any) -> Target:
    """Return the target with its sites so centred."""
    assert target.model is not None
    c = np.asarray(c, target.data[-1].dtype)
    return Target(target.model, dim=target.dim, data=(*target.data[:-1], c))


def centred(
    target: Target,
    key: PRNGKeyArray,
    points: Callable[[Target, PRNGKeyArray], tuple[Any, Count]],
    say: Callable[[str], None],
) -> tuple[Target, Count]:
    """Return the target with its sites centred as the data ask for, and what that took.

    `points(target, key)` are some where the posterior is, of the target with no site centred, and
    what they took.
    """
    model: Any = target.model
    at, names = model.centred_at()
    plain = stated(target, np.zeros(len(at)))
    z, cost = points(plain, key)
    curvature = np.asarray(_curvatures(plain, as_default(z), at), np.float64)
    curvature = np.where(np.isfinite(curvature), np.maximum(curvature, 1.0), 1.0)
    c = np.quantile(1 - 1 / curvature, LOW, axis=0)
    c = np.where(c < SNAP, 0.0, np.where(c > 1 - SNAP, 1.0, c))
    for name in model.centrable:
        mine = c[[n == name for n in names]]
        low, high = f"{mine.min():.2g}", f"{mine.max():.2g}"
        say(f"centring: {name!r} {low if low == high else f'{low} to {high}'} (1 is as written)")
    return stated(target, c), cost.plus((0, 2 * len(z) * len(at)))


@jax.jit
def _curvatures(target: Target, z: Float[Array, "n d"], at: Any) -> Float[Array, "n m"]:
    """Return −∂² log p / ∂z_i² at every point, for the coordinates i that are asked for."""
    slope = jax.grad(target.log_prob)

    def one(z: Any, i: Any) -> Any:
        along = jnp.zeros_like(z).at[i].set(1)
        return -jax.jvp(slope, (z,), (along,))[1][i]

    return jax.lax.map(lambda z: jax.lax.map(lambda i: one(z, i), at, batch_size=64), z)
