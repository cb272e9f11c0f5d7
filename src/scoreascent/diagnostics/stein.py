"""Stein control variates: what states and the gradients there must average to, whatever π is.

For any function f that does not grow too fast, E[f′(z_i) + f(z_i) ∂_i log π] = 0, and likewise
E[f(z_i) u_i + f′(z_i) S_ii] = 0 with u = S ∇ log π. Where late states of chains do not average to
zero in such functions, chance has put too many of them in one place and too few in another. So
states are drawn again, each chain's from its own, by weights exp(−λ c) that mend it; what is left
of an average's error is the spread of what the functions do not explain. In a long tail that
chains visit seldom, f's of low degree explain most: a tail that falls like exp(−|z|) has a constant
gradient, and a polynomial of degree 2 then is a variance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import logsumexp

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Times = Int[np.ndarray, "times chains"]

# f = 1, x, x², x³ of a coordinate in its sds. Exponentials, of which scales are made, look better
# by far in their own estimate of what they leave, and made true errors three times larger.
DEGREES = 4
PER_COORDINATE = DEGREES + 2
MIN_WORTH = 0.8  # of a state that is drawn again, in states; below it, weights do more harm
MAX_TURNS, HALVINGS = 40, 20  # of Newton's method
TURN = 0.6180339887498949  # of a circle, the golden section's: spread evenly, however many
BALANCED = 1e-6  # sds that the averages may be from zero


def zero_means(
    z: Float[np.ndarray, "times chains d"],
    g: Float[np.ndarray, "times chains d"],
    root: Float[np.ndarray, "d d"],
    at: Any,
) -> Float[np.ndarray, "times chains p"]:
    """Return functions whose mean under π is zero, for coordinates `at`, in their own sds.

    `g` are the gradients of log π at the states z, and S = root rootᵀ.

    >>> z = np.random.default_rng(0).normal(size=(500, 20, 1))
    >>> c = zero_means(z, -z, np.eye(1), [0])
    >>> bool(np.max(np.abs(c.mean((0, 1)))) < 5 / 100)
    True
    """
    at = np.asarray(at)
    rows = root[at] @ root.T
    own = np.sum(root[at] ** 2, 1)
    u = np.stack([g_then.astype(np.float64) @ rows.T for g_then in g])  # all at once are many
    z, g = z[..., at].astype(np.float64), g[..., at].astype(np.float64)
    mean, sd = z.mean((0, 1)), z.std((0, 1))
    x, g, u, own = (z - mean) / sd, g * sd, u / sd, own / sd**2
    powers = [x**k * g + (k * x ** (k - 1) if k else 0.0) for k in range(DEGREES)]
    controls = np.concatenate([u, x * u + own, *powers], axis=-1)
    scale = controls.std((0, 1))
    return controls / np.where(scale > 0, scale, 1.0)


def balanced(controls: Float[np.ndarray, "times chains p"]) -> Times | None:
    """Return which states to take so that controls average to zero; None if none would do.

    Column by column these are times of that chain's own states, in their order. A state's weight
    within its chain is ∝ exp(−λ c), and λ minimises the convex Σ_chains log Σ_times exp(−λ c).
    """
    times, chains, _ = controls.shape
    weights = _weights(controls)
    if weights is None or 1 / np.mean(np.sum(weights**2, 0)) < MIN_WORTH * times:
        return None
    # each as often as its weight says, up to one: the fractions of a chain's light and heavy states
    # add up in the order of weights, and every chain rounds at another place
    order = np.argsort(weights, axis=0)
    total = np.cumsum(np.take_along_axis(weights, order, 0), 0)
    offset = np.mod(np.arange(chains) * TURN, 1.0)
    marks = (np.arange(times)[:, None] + offset) / times
    picked = [np.searchsorted(total[:, j] / total[-1, j], marks[:, j]) for j in range(chains)]
    at = np.minimum(np.stack(picked, 1), times - 1)
    return np.sort(np.take_along_axis(order, at, 0), axis=0)


def _weights(c: Float[np.ndarray, "times chains p"]) -> Floats | None:
    """Return weights of the states, 1 for each chain in all; None if controls cannot balance."""
    _, chains, p = c.shape

    def at(lam: Floats) -> tuple[float, Floats]:
        a = -c @ lam
        log_total = logsumexp(a, axis=0)
        return float(np.mean(log_total)), np.exp(a - log_total)

    lam = np.zeros(p)
    value, w = at(lam)
    for _ in range(MAX_TURNS):
        own = np.einsum("tn,tnp->np", w, c)
        slope = -own.mean(0)
        if np.max(np.abs(slope)) < BALANCED:
            return w
        flat = c.reshape(-1, p)
        curvature = (flat * w.reshape(-1, 1)).T @ flat / chains - own.T @ own / chains
        curvature += 1e-10 * np.eye(p)
        try:
            step = np.linalg.solve(curvature, slope)
        except np.linalg.LinAlgError:
            return None
        length = 1.0
        for _ in range(HALVINGS):
            new_value, new_w = at(lam - length * step)
            if new_value <= value - 1e-4 * length * float(slope @ step):
                break
            length /= 2
        else:
            return None
        lam = lam - length * step
        value, w = new_value, new_w
    return None


def slopes(y: Any, controls: Any) -> Floats:
    """Return β (controls, k) by which controls c (times, chains, controls) explain y best."""
    y, c = (x.reshape(-1, x.shape[-1]) for x in (y, controls.astype(np.float64)))
    c = c - c.mean(0)
    beta: Floats = np.linalg.lstsq(c.T @ c, c.T @ (y - y.mean(0)))[0]
    return beta


def unexplained(averages: Any, beta: Any, controls: Any) -> tuple[Any, Any]:
    """Return every chain's average of y − β (c − E c), c the controls; and β E c, E over states.

    Of y these are its averages, a chain in each row; several y may stand in front. The spread of
    the first is what an error is estimated from; the second is an error that is known: of states
    that were not balanced, or of some of them alone.

    >>> rng = np.random.default_rng(0)
    >>> c = rng.normal(size=(50, 10, 1))
    >>> y = 3 * c + 0.1 * rng.normal(size=c.shape)
    >>> rest, known = unexplained(y.mean(0), slopes(y, c), c)
    >>> bool(rest.std() < 0.03), bool(abs(known[0] - 3 * c.mean()) < 0.01)
    (True, True)
    """
    centre = controls.mean((0, 1), dtype=np.float64)
    return averages - (controls.mean(0, dtype=np.float64) - centre) @ beta, centre @ beta
