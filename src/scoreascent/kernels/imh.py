"""Independent Metropolis–Hastings: propose from q (the paper's IMH pseudocode)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from scoreascent._layout import by_chain, together
from scoreascent._structs import Config
from scoreascent.families import Defensive, Family
from scoreascent.kernels.base import (
    Info,
    Metropolis,
    Point,
    Proposal,
    accept,
    draw,
    evaluate,
    log_weight,
    metropolis_probability,
)
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray


@dataclass(frozen=True, repr=False)
class IMH(Config, Metropolis):
    """Propose z* ~ q_def(·; λ), accept with prob. min(1, w(z*)/w(z)), w = p(z, x)/q_def(z; λ).

    log p of the retained point is cached; its log q is computed anew each time, because λ moved.
    One evaluation of p, two of q and one draw of q a step.

    >>> IMH()
    IMH()
    """

    defensive: Defensive | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.defensive, Defensive | None):
            raise ValueError(f"defensive must be a Defensive or None, got {self.defensive!r}")

    def candidate(
        self, key: PRNGKeyArray, target: Target, q: Family
    ) -> tuple[Point, Float[Array, ""], Int[Array, ""]]:
        """Return a proposal, its log weight, and whether its log p was invalid.

        It does not depend on the chain, so `Sequential` makes all of an iteration's in one batch.
        """
        point, invalid = evaluate(target, draw(key, q, self.defensive))
        return point, self.log_weight(q, point), invalid

    @property
    def is_independent(self) -> bool:
        """Whether all moves are draws of q: they are."""
        return True

    def log_weight(self, q: Family, point: Point) -> Float[Array, ""]:
        """Return log w of a point, at today's λ."""
        return log_weight(q, point, self.defensive)

    def propose(self, key: PRNGKeyArray, target: Target, q: Family, point: Point) -> Proposal:
        """Return a draw of q_def and its acceptance probability."""
        proposed, log_w, invalid = self.candidate(key, target, q)
        probability = metropolis_probability(log_w - self.log_weight(q, point))
        return Proposal(proposed, probability, invalid)

    def chain(
        self, keys: PRNGKeyArray, target: Target, q: Family, point: Point, tuning: Any
    ) -> tuple[Point, Info, Any]:
        """Return the states after a transition for each key.

        The same states as as many calls of `step`, with all target evaluations in one batch and
        log q of the first point computed once: only accept/reject is sequential.
        """
        pairs = jax.vmap(jax.random.split)(keys)
        candidates = by_chain(
            lambda whole, keys: jax.vmap(lambda k: self.candidate(k, *whole))(keys), (target, q)
        )
        pairs, (proposals, log_ws, invalid) = together((pairs, candidates(pairs[:, 0])))

        def transition(carry, inputs):  # type: ignore[no-untyped-def]
            current, log_w = carry
            key, proposed, log_w_proposed = inputs
            probability = metropolis_probability(log_w_proposed - log_w)
            carry = accept(key, probability, (proposed, log_w_proposed), (current, log_w))
            return carry, (carry[0], probability)

        start = (point, self.log_weight(q, point))
        inputs = (pairs[:, 1], proposals, log_ws)
        _, (states, probabilities) = jax.lax.scan(transition, start, inputs)
        return states, Info(probabilities, invalid), None
