"""What turns moved points into a new q: gradient steps by any optax optimiser, or moments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from scoreascent._arrays import all_finite, select
from scoreascent._structs import Config
from scoreascent.families import Family
from scoreascent.families.base import can_match
from scoreascent.kernels import Particles
from scoreascent.methods import Method
from scoreascent.schedules import DECAY
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int


__all__ = ["Update", "gradient", "moment_matching"]


class Update(ABC):
    """A rule that moves q, given where the points are. It must hash: `jit` compiles for it.

    An update must have `init` and `step`; averaging and telling itself apart have defaults.

    >>> isinstance(moment_matching(), Update), isinstance(gradient(optax.adam(0.01)), Update)
    (True, True)
    """

    @abstractmethod
    def init(self, q: Family) -> Any:
        """Return what the rule remembers between steps."""

    @abstractmethod
    def step(
        self, method: Method, target: Target, q: Family, eta: Any, memory: Any
    ) -> tuple[Family, Any, Float[Array, ""], Float[Array, ""]]:
        """Return the new q, the new memory, the loss, and the norm of the loss's gradient."""

    def average(self, mean: Family, q: Family, eta: Any, count: Int[Array, ""]) -> Family:
        """Return the running average after iterate number `count`, q, and its points η.

        The default averages the iterates; up to and including number one it is the iterate itself.
        """
        count = jnp.maximum(count, 1)
        return jax.tree.map(lambda m, x: m + (x - m) / count.astype(x.dtype), mean, q)

    def fingerprint(self, q: Family) -> str:
        """Return what tells this update from others that print alike, for a checkpoint."""
        return "unknown"


@dataclass(frozen=True)
class Gradient(Update):
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

    def fingerprint(self, q: Family) -> str:
        """Return how far q would move under three fixed gradients.

        optax optimisers do not say what they are, so a step size is told by what it does.
        """
        try:
            optimizer = optax.with_extra_args_support(self.optimizer)
            memory, moves = optimizer.init(q), []  # type: ignore[arg-type]
            for slope in (1.0, -0.5, 2.0):
                g = jax.tree.map(lambda x, slope=slope: jnp.full_like(x, slope), q)
                step, memory = optimizer.update(
                    g, memory, q, value=jnp.ones(()), grad=g, value_fn=lambda _: jnp.ones(())
                )
                moves.append(f"{float(norm(step)):.5g}")
        except (TypeError, ValueError, KeyError, AttributeError):  # it wants more than a gradient
            return "unknown"
        return " ".join(moves)


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
class MomentMatching(Config, Update):
    """The moments of q follow those of the points: θ ← (1 − γ_t) θ + γ_t Σ w_n T(z⁽ⁿ⁾).

    θ = E_q T are q's expectation parameters, for a Gaussian its first two moments. That is the
    natural gradient of the inclusive KL, which is why it has no scale of its own: a coordinate
    whose sd is 10⁻³ and one whose sd is 10³ move alike. In spirit it is adaptive MCMC.
    """

    rate: Any = DECAY

    def init(self, q: Family) -> Any:
        """The number of steps taken."""
        if not can_match(q):
            raise ValueError(
                f"moment_matching needs a family with the method match, got {type(q).__name__}; "
                "use an optax optimiser instead"
            )
        return jnp.int32(0)

    def step(
        self, method: Method, target: Target, q: Family, eta: Any, memory: Any
    ) -> tuple[Family, Any, Float[Array, ""], Float[Array, ""]]:
        """One step; the gradient's norm is that of the natural gradient, in the leaves of q."""
        points = method.particles(eta)
        if points is None:
            raise ValueError(
                f"moment_matching needs a method that moves points, such as pmcsa, got {method!r}"
            )
        n, parts = len(points.z), getattr(q, "components", 1)
        if n < parts:
            raise ValueError(
                f"q0 has {parts} components, which {n} points at a time cannot tell apart; move at "
                "least as many points, or give fewer components"
            )
        rate = jnp.asarray(self.rate(memory), q.mean.dtype)
        moved = q.match(points.z, points.weight, rate)  # type: ignore[attr-defined]
        change = jax.tree.map(lambda new, old: (new - old) / rate, moved, q)
        return moved, memory + 1, method.objective(target, q, eta), norm(change)

    def average(self, mean: Any, q: Any, eta: Particles, count: Int[Array, ""]) -> Any:
        """Return the average of the moments of all points since it began, not of the iterates.

        Iterates remember points for 1/γ_t steps, so their averages know less than the points do.
        The iterate at the beginning counts as one step's points, which keeps it positive definite.
        """
        first = count <= 1
        base = select(first, q, mean)
        rate = 1 / (jnp.maximum(count, 1) + 1).astype(q.mean.dtype)
        moved = base.match(eta.z, eta.weight, rate)
        return select(all_finite(moved) & (count >= 1), moved, base)


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


@dataclass(frozen=True, repr=False)
class Still(Config, Update):
    """q stands still in the compiled loop; a stopping rule sets it between chunks."""

    def init(self, q: Family) -> Any:
        """Nothing."""
        return ()

    def step(
        self, method: Method, target: Target, q: Family, eta: Any, memory: Any
    ) -> tuple[Family, Any, Float[Array, ""], Float[Array, ""]]:
        """Return q as it is, and the objective there."""
        loss = method.objective(target, q, eta)
        return q, memory, loss, jnp.zeros_like(loss)

    def average(self, mean: Any, q: Any, eta: Any, count: Int[Array, ""]) -> Any:
        """Return the mean as it is."""
        return mean


# One object, so that every fit that takes the default shares one compiled loop.
DEFAULT = gradient(optax.adam(1e-2))


def as_update(optimizer: Any) -> Update:
    """Return the update that `optimizer` stands for: an optax optimiser, an update, or None."""
    if optimizer is None:
        return DEFAULT
    return optimizer if isinstance(optimizer, Update) else gradient(optimizer)
