"""What turns moved points into a new q: gradient steps by any optax optimiser, or moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import optax

from scoreascent._structs import Config
from scoreascent.families import Family
from scoreascent.kernels import Particles
from scoreascent.methods import Method
from scoreascent.schedules import DECAY
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


class Update(Protocol):
    """A rule that moves q, given where the points are. It must hash: `jit` compiles for it."""

    def init(self, q: Family) -> Any:
        """What the rule remembers between steps."""

    def step(
        self, method: Method, target: Target, q: Family, eta: Any, memory: Any
    ) -> tuple[Family, Any, Float[Array, ""], Float[Array, ""]]:
        """The new q, the new memory, the loss, and the norm of the loss's gradient."""


@dataclass(frozen=True)
class Gradient:
    """Differentiate the method's objective in q and let an optax optimiser step."""

    optimizer: optax.GradientTransformation

    def __repr__(self) -> str:
        name = getattr(self.optimizer.update, "__qualname__", "?").split(".")[0]
        return f"gradient(optax {name})"

    def init(self, q: Family) -> Any:
        """The optimiser's own state."""
        return self.optimizer.init(q)  # type: ignore[arg-type]

    def step(
        self, method: Method, target: Target, q: Family, eta: Any, memory: Any
    ) -> tuple[Family, Any, Float[Array, ""], Float[Array, ""]]:
        """One step of the optimiser along g = ∇_λ f(λ, η)."""

        def objective(q: Family) -> Float[Array, ""]:
            return method.objective(target, q, eta)

        loss, g = jax.value_and_grad(objective)(q)
        # Optimisers that look at the loss (line searches, plateau rules) find it here; the others
        # ignore it.
        optimizer = optax.with_extra_args_support(self.optimizer)
        updates, memory = optimizer.update(g, memory, q, value=loss, grad=g, value_fn=objective)
        return optax.apply_updates(q, updates), memory, loss, norm(g)  # type: ignore


def norm(tree: Any) -> Float[Array, ""]:
    """The Euclidean norm of all of a pytree's numbers."""
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(tree)))


def gradient(optimizer: optax.GradientTransformation) -> Gradient:
    """Gradient steps by an optax optimiser, the default update.

    >>> gradient(optax.sgd(0.1))
    gradient(optax ...)
    """
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise ValueError(
            "optimizer must be an optax optimiser such as optax.adam(1e-2), "
            f"got {optimizer!r} of type {type(optimizer).__name__}"
        )
    return Gradient(optimizer)


@dataclass(frozen=True, repr=False)
class MomentMatching(Config):
    """The moments of q follow those of the points: θ ← (1 − γ_t) θ + γ_t Σ w_n T(z⁽ⁿ⁾).

    θ = E_q T are q's expectation parameters, for a Gaussian its first two moments. That is the
    natural gradient of the inclusive KL, which is why it has no scale of its own: a coordinate
    whose sd is 10⁻³ and one whose sd is 10³ move alike. In spirit it is adaptive MCMC.
    """

    rate: Any = DECAY

    def init(self, q: Family) -> Any:
        """The number of steps taken."""
        if not hasattr(q, "match"):
            raise ValueError(
                f"moment_matching needs a family with the method match, got {type(q).__name__}; "
                "use an optax optimiser instead"
            )
        return jnp.int32(0)

    def step(
        self, method: Method, target: Target, q: Family, eta: Any, memory: Any
    ) -> tuple[Family, Any, Float[Array, ""], Float[Array, ""]]:
        """One step; the gradient's norm is that of the natural gradient, in the leaves of q."""
        if not isinstance(eta, Particles):
            raise ValueError(
                f"moment_matching needs a method that moves points, such as pmcsa, got {method!r}"
            )
        rate = jnp.asarray(self.rate(memory), q.mean.dtype)
        moved = q.match(eta.z, eta.weight, rate)  # type: ignore[attr-defined]
        change = jax.tree.map(lambda new, old: (new - old) / rate, moved, q)
        return moved, memory + 1, method.objective(target, q, eta), norm(change)

    def average(self, mean: Any, q: Any, eta: Particles, count: Int[Array, ""]) -> Any:
        """The running average: of the moments of all points since it began, not of the iterates.

        Iterates remember points for 1/γ_t steps, so their averages know less than the points do.
        The iterate at the beginning counts as one step's points, which keeps it positive definite.
        """
        first = count <= 1
        base = jax.tree.map(lambda new, old: jnp.where(first, new, old), q, mean)
        rate = 1 / (jnp.maximum(count, 1) + 1).astype(q.mean.dtype)
        moved = base.match(eta.z, eta.weight, rate)
        finite = sum(jnp.sum(0 * leaf) for leaf in jax.tree.leaves(moved)) == 0
        return jax.tree.map(
            lambda new, old: jnp.where(finite & (count >= 1), new, old), moved, base
        )


def moment_matching(rate: Any = None) -> MomentMatching:
    """Moment matching, as the `optimizer` of `fit`. `rate` is an optax schedule of rates γ_t ≤ 1.

    >>> moment_matching()
    MomentMatching(Decay())
    >>> from scoreascent.schedules import Decay
    >>> moment_matching(Decay(first=0.5, power=1.0))
    MomentMatching(Decay(first=0.5, power=1.0))
    """
    rate = DECAY if rate is None else rate
    if not callable(rate):
        raise ValueError(f"rate must be a function of the step count such as Decay(), got {rate!r}")
    return MomentMatching(rate)


# One object, so that every fit that takes the default shares one compiled loop.
DEFAULT = gradient(optax.adam(1e-2))
