"""NumPyro's NUTS, at the length that one would run."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpyro.infer import NUTS

import scoreascent as sa
from scoreascent._nuts import nuts_sampler
from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.metrics import Fit
from scoreascent.experiments.accuracy.peers import base
from scoreascent.experiments.accuracy.peers.base import Peer, Read, Seeded


class _CountingNUTS(NUTS):  # type: ignore[misc]
    """NUTS whose state counts the leapfrog steps of the whole run, warm-up included."""

    def sample(self, state: Any, model_args: Any, model_kwargs: Any) -> Any:
        new = super().sample(state, model_args, model_kwargs)
        return new._replace(num_steps=new.num_steps + state.num_steps)


def _nuts(entry: Entry, target: sa.Target) -> Seeded:
    sampler = nuts_sampler(target, warmup=1000, draws=1000, kernel=_CountingNUTS)

    def fit(seed: int) -> Read:
        key, start = jax.random.split(jax.random.key(seed))
        sampler.run(key, init_params=base.uniform_start(start, (4, target.dim)))
        draws = np.asarray(sampler.get_samples(), np.float64)
        steps = float(np.sum(np.asarray(sampler.last_state.num_steps)))
        return lambda: Fit(draws.mean(0), draws.std(0, ddof=1), draws, None, 0.0, steps)

    return fit


PEERS = {"nuts": Peer(_nuts, "NumPyro's NUTS, 4 × (1000 + 1000)", "*", "#111111")}
