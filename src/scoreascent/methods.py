"""The methods: how points move, and the objective that pulls q towards them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from scoreascent._layout import by_chain, together
from scoreascent._random import materialise
from scoreascent._structs import Config, check_count
from scoreascent.families import Defensive, Family
from scoreascent.kernels import (
    CIS,
    IMH,
    Count,
    Info,
    Kernel,
    Moves,
    Parallel,
    Particles,
    Places,
    Select,
    Sequential,
)
from scoreascent.kernels.base import initial_points
from scoreascent.kernels.moves import check_moves
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray


__all__ = ["Method", "PathElbo", "ScoreAscent", "elbo", "jsa", "msc", "msc_rb", "pmcsa"]


class Method(ABC):
    """Markov chain gradient descent on f(λ) = E_Π f(λ, η).

    A method must have `init`, `step` and `objective`; the rest has defaults for a method without
    chains, whose η is not made of points.

    >>> isinstance(pmcsa(10), Method), isinstance(elbo(10), Method)
    (True, True)
    >>> import scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> q, method = sa.MeanField.standard(2), pmcsa(4)
    >>> eta = method.init(jax.random.key(0), target, q)
    >>> eta, info = method.step(jax.random.key(1), target, q, eta)
    >>> slope = jax.grad(lambda q: method.objective(target, q, eta))(q)  # of the shape of q
    >>> type(slope).__name__, slope.loc.shape
    ('MeanField', (2,))
    """

    @abstractmethod
    def init(
        self, key: PRNGKeyArray, target: Target, q: Family, places: Places | None = None
    ) -> Any:
        """Return the first η, of draws of q, or of `places` if there are any."""

    @abstractmethod
    def step(self, key: PRNGKeyArray, target: Target, q: Family, eta: Any) -> tuple[Any, Info]:
        """Draw η ~ P_λ(η, ·)."""

    @abstractmethod
    def objective(self, target: Target, q: Family, eta: Any) -> Float[Array, ""]:
        """Return f(λ, η). Its gradient in q is the g of the paper."""

    @property
    def chains(self) -> int:
        """The number of chains that run side by side; 0 if there are none."""
        return 0

    @property
    def is_independent(self) -> bool:
        """Whether chains, if there are any, move by independent draws of q alone."""
        return True

    def particles(self, eta: Any) -> Particles | None:
        """Return η as weighted points, which moment matching needs; None if it is not made so."""
        return None

    def states(self, key: PRNGKeyArray, eta: Any) -> Float[Array, "chains d"]:
        """Return where the chains are; only asked if there are any."""
        raise NotImplementedError(f"{self!r} has no chains")

    def reach(self, eta: Any) -> float:
        """Return how long the chains' moves are, as a share of the length that was asked for."""
        return 1.0

    def evaluations(self, eta: Any, steps: int) -> Count:
        """Return how often `steps` steps evaluate the target, given η at their end."""
        return Count(0, 0)

    def afresh(self, eta: Any, taken: int, stretch: float = 1.0) -> Any:
        """Return η whose kernel learns as if after so many steps, of moves that much longer."""
        return eta


@dataclass(frozen=True, repr=False)
class ScoreAscent(Config, Method):
    """Descend the inclusive KL(π‖q) by the score at particles that a Markov kernel moves.

    >>> ScoreAscent(Parallel(IMH(), n=10))
    ScoreAscent(Parallel(IMH(), n=10))
    """

    moves: Moves

    def __post_init__(self) -> None:
        check_moves(self.moves)

    def init(
        self, key: PRNGKeyArray, target: Target, q: Family, places: Places | None = None
    ) -> Particles:
        """Return the first particles, drawn from q or from `places`."""
        return self.moves.init(key, target, q, places)

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Particles
    ) -> tuple[Particles, Info]:
        """Move the particles."""
        return self.moves.step(key, target, q, eta)

    def objective(self, target: Target, q: Family, eta: Particles) -> Float[Array, ""]:
        """Return −Σ w_n log q(z⁽ⁿ⁾; λ), an estimate of KL(π‖q) up to a constant."""
        # A point of weight zero may lie where log q overflows, and 0 · ∞ is NaN, in the gradient
        # too: so its place is taken by a point where it does not.
        z = jnp.where(eta.weight[:, None] > 0, eta.z, jax.lax.stop_gradient(q.mean))
        return -jnp.sum(eta.weight * by_chain(_log_probs, q)(z))

    @property
    def chains(self) -> int:
        """The number of chains that run side by side."""
        return self.moves.chains

    @property
    def is_independent(self) -> bool:
        """Whether the chains move by independent draws of q alone."""
        return self.moves.is_independent

    def particles(self, eta: Particles) -> Particles:
        """Return η, which is made of weighted points."""
        return eta

    def states(self, key: PRNGKeyArray, eta: Particles) -> Float[Array, "chains d"]:
        """Return where the chains are."""
        return self.moves.states(key, eta)

    def reach(self, eta: Particles) -> float:
        """Return how long the chains' moves are, as a share of the length that was asked for."""
        return self.moves.reach(eta)

    def evaluations(self, eta: Particles, steps: int) -> Count:
        """Return how often `steps` steps evaluate the target."""
        return self.moves.evaluations(eta, steps)

    def afresh(self, eta: Particles, taken: int, stretch: float = 1.0) -> Particles:
        """Return η whose kernel learns as if after so many steps, of moves that much longer."""
        return self.moves.afresh(eta, taken, stretch)


@dataclass(frozen=True, repr=False)
class PathElbo(Config, Method):
    """Descend the exclusive KL(q‖π) by the path derivative of the ELBO ("sticking the landing").

    η is base noise and the kernel forgets its state. The gradient of log q in λ at a fixed point is
    left out: its expectation is zero, and without it the variance vanishes where q = π.

    >>> PathElbo(n=10)
    PathElbo(n=10)
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_count("n", self.n, 1))

    def init(
        self, key: PRNGKeyArray, target: Target, q: Family, places: Places | None = None
    ) -> Float[Array, "n d"]:
        """Return base noise; if no draw has a finite density, NaN, which `fit` reports."""
        found = jnp.isfinite(initial_points(key, target, q, 1, places).log_p[0])
        return jnp.where(found, self._noise(key, q), jnp.nan)

    def step(
        self, key: PRNGKeyArray, target: Target, q: Family, eta: Float[Array, "n d"]
    ) -> tuple[Float[Array, "n d"], Info]:
        """Draw fresh noise."""
        return self._noise(key, q), Info(jnp.ones((), eta.dtype), jnp.int32(0))

    def objective(self, target: Target, q: Family, eta: Float[Array, "n d"]) -> Float[Array, ""]:
        """Return the mean of log q(z; stop(λ)) − log p(z, x) over z = T_λ(ε), estimating −ELBO."""

        def losses(whole: Any, eta: Float[Array, "n d"]) -> Float[Array, " n"]:
            target, q = whole
            fixed = jax.lax.stop_gradient(q)

            def loss(noise: Float[Array, " d"]) -> Float[Array, ""]:
                z = q.transport(noise)
                return fixed.log_prob(z) - target.log_prob(z)

            return jax.vmap(loss)(eta)

        return jnp.mean(by_chain(losses, (target, q))(eta))

    def evaluations(self, eta: Any, steps: int) -> Count:
        """Return the gradients of `steps` steps, one for each draw."""
        return Count(0, steps * self.n)

    def _noise(self, key: PRNGKeyArray, q: Family) -> Float[Array, "n d"]:
        return together(materialise(jax.vmap(q.noise)(jax.random.split(key, self.n))))


def _log_probs(q: Family, z: Float[Array, "n d"]) -> Float[Array, " n"]:
    return jax.vmap(q.log_prob)(z)


def pmcsa(
    n: int = 10,
    kernel: Kernel | None = None,
    rao_blackwell: bool = False,
    batch: int | None = None,
) -> ScoreAscent:
    """Parallel Markov chain score ascent (Algorithm 1): N chains, one transition each.

    N evaluations of p, 2N of q, N draws of q and N score gradients an iteration. With
    `rao_blackwell` every chain contributes α s(z*) + (1 − α) s(z) instead of the score at the state
    it happened to reach, which lowers the gradient's variance at no further evaluation of p. With
    `batch` so many chains are moved at a time, where memory is short.

    >>> pmcsa(10)
    ScoreAscent(Parallel(IMH(), n=10))
    """
    kernel = IMH() if kernel is None else kernel
    return ScoreAscent(Parallel(kernel, n, rao_blackwell, batch))


def jsa(n: int = 10, kernel: Kernel | None = None) -> ScoreAscent:
    """Joint stochastic approximation (Algorithm 5): N transitions of one chain.

    N evaluations of p, N + 1 of q, N draws of q and N score gradients an iteration.

    >>> jsa(10)
    ScoreAscent(Sequential(IMH(), n=10))
    """
    return ScoreAscent(Sequential(IMH() if kernel is None else kernel, n))


def msc(n: int = 10, defensive: Defensive | None = None) -> ScoreAscent:
    """Markovian score climbing (Algorithm 4): CIS, then one draw by weight.

    N counts the retained point: N − 1 evaluations of p, N of q, N − 1 draws of q and one score
    gradient an iteration.

    >>> msc(10)
    ScoreAscent(Select(CIS(n=10)))
    """
    return ScoreAscent(Select(CIS(n, defensive)))


def msc_rb(n: int = 10, defensive: Defensive | None = None) -> ScoreAscent:
    """Rao–Blackwellised Markovian score climbing: all N points of CIS with their weights.

    N counts the retained point: N − 1 evaluations of p, N of q, N − 1 draws of q and N score
    gradients an iteration.

    >>> msc_rb(10)
    ScoreAscent(CIS(n=10))
    """
    return ScoreAscent(CIS(n, defensive))


def elbo(n: int = 10) -> PathElbo:
    """Ordinary variational inference, for comparison: the ELBO by N path derivatives.

    No evaluation but N gradients of p, N draws of q and N gradients of log q an iteration.

    >>> elbo(10)
    PathElbo(n=10)
    """
    return PathElbo(n)
