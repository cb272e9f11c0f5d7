"""BlackJAX's samplers as kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from scoreascent._arrays import select
from scoreascent._extras import require
from scoreascent._structs import Config
from scoreascent.families import Family
from scoreascent.kernels import Info, Kernel, Point, evaluate
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

# (log density, q) -> a BlackJAX sampling algorithm; q may supply scales and mass matrices
Factory = Callable[[Callable[[Any], Any], Family], Any]


@dataclass(frozen=True, repr=False)
class BlackJAXKernel(Config, Kernel):
    """One transition of a BlackJAX algorithm; see `from_blackjax`."""

    factory: Factory

    def __repr__(self) -> str:
        name = getattr(self.factory, "__qualname__", repr(self.factory))
        return f"from_blackjax({name})"

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, point: Point
    ) -> tuple[Point, Info]:
        """Move one chain. The algorithm begins anew at `point`, for q has moved meanwhile."""

        def log_density(z: Float[Array, " d"]) -> Float[Array, ""]:
            return evaluate(target, z)[0].log_p  # NaN and +∞ are −∞: nothing goes there

        algorithm = self.factory(log_density, jax.lax.stop_gradient(q))
        state, info = algorithm.step(key, algorithm.init(point.z))
        # the state's own log density may be another one (a slice sampler's likelihood), so ask
        moved, invalid = evaluate(target, state.position)
        possible = jnp.isfinite(moved.log_p) & jnp.all(jnp.isfinite(moved.z))
        after = select(possible, moved, point)
        rate = getattr(info, "acceptance_rate", jnp.any(after.z != point.z))
        return after, Info(jnp.asarray(rate).astype(point.log_p.dtype), invalid)


def from_blackjax(factory: Factory) -> BlackJAXKernel:
    """Any BlackJAX MCMC algorithm as a kernel, for `pmcsa(n, kernel=…)` or `jsa(n, kernel=…)`.

    Args:
        factory: a function of a log density and of q that gives the algorithm, for example
            `lambda log_p, q: blackjax.mala(log_p, step_size=0.1)` or
            `lambda log_p, q: blackjax.hmc(log_p, 0.2, q.sd**2, 5)`, where q's variances are the
            inverse mass matrix. Elliptical slice sampling wants a likelihood and a Gaussian prior:
            `lambda log_p, q: blackjax.elliptical_slice(lambda z: log_p(z) - q.log_prob(z),
            mean=q.mean, cov=jnp.diag(q.sd**2))` makes them of a Gaussian q.

    The algorithm must leave its target invariant as it stands: warm-up and adaptation are not run.
    Each step begins with `algorithm.init`, and evaluates the density once more at the end.
    Write the factory once and reuse it: compiled code is kept by its identity.

    >>> import blackjax, jax.numpy as jnp, scoreascent as sa
    >>> def hmc(log_p, q):
    ...     return blackjax.hmc(log_p, 0.2, q.sd**2, 5)
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> method = sa.pmcsa(4, kernel=sa.from_blackjax(hmc))
    >>> sa.fit(target, method, steps=3, progress=False).status
    'max_steps'
    """
    blackjax = require("blackjax", "blackjax", "from_blackjax")
    if not callable(factory) or factory in vars(blackjax).values():
        raise ValueError(
            "factory must be a function of (log density, q) that gives a BlackJAX algorithm, such "
            f"as lambda log_p, q: blackjax.mala(log_p, step_size=0.1); got {factory!r}"
        )
    return BlackJAXKernel(factory)
