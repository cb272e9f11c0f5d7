"""NumPyro: guides fitted by SVI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import SVI, Trace_ELBO, autoguide

import scoreascent as sa
from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.peers import base
from scoreascent.experiments.accuracy.peers.base import Begin, Peer, Read, Seeded


def _svi(guide_class: Any) -> Begin:
    def begin(entry: Entry, target: sa.Target) -> Seeded:
        model, args, names = _native(entry, target)
        guide = guide_class(model)
        svi = SVI(model, guide, numpyro.optim.Adam(base.RATE), Trace_ELBO())

        def fit(seed: int) -> Read:
            params = svi.run(jax.random.key(seed), base.STEPS, *args, progress_bar=False).params
            jax.block_until_ready(params)
            return lambda: base.gaussian_fit(
                *_moments(guide, params, names), target, seed, base.STEPS
            )

        return fit

    return begin


def _native(
    entry: Entry, target: sa.Target
) -> tuple[Callable[..., None], tuple[Any, ...], tuple[str, ...]]:
    """The NumPyro model itself, or one that adds a density as a factor; arguments, names of z."""
    if entry.model is not None:
        return entry.model, entry.arguments(), target.site_names

    def flat() -> None:
        support = dist.ImproperUniform(constraints.real_vector, (), (target.dim,))
        z = numpyro.sample("z", support)
        with handlers.block():  # a target may be made of a NumPyro model; its sites are its own
            log_p = target.log_prob(z)
        numpyro.factor("log_p", log_p)

    return flat, (), ("z",)


def _moments(guide: Any, params: Any, names: tuple[str, ...]) -> tuple[Any, Any]:
    """The mean and the covariance of a guide, in the order of z."""
    if isinstance(guide, autoguide.AutoNormal):
        flat = lambda moment: jnp.concatenate(  # noqa: E731
            [jnp.ravel(params[f"{name}_auto_{moment}"]) for name in names]
        )
        return flat("loc"), jnp.diag(flat("scale") ** 2)
    q = guide.get_posterior(params)
    places = guide._unpack_latent(jnp.arange(q.mean.size, dtype=float))
    order = np.concatenate([np.ravel(places[name]) for name in names]).astype(int)
    return q.mean[order], q.covariance_matrix[np.ix_(order, order)]


PEERS = {
    "numpyro-normal": Peer(_svi(autoguide.AutoNormal), "AutoNormal, SVI", "o", "#9ecae1"),
    "numpyro-multivariate": Peer(
        _svi(autoguide.AutoMultivariateNormal), "AutoMultivariateNormal, SVI", "s", "#3182bd"
    ),
    "numpyro-low-rank": Peer(
        _svi(autoguide.AutoLowRankMultivariateNormal),
        "AutoLowRankMultivariateNormal, SVI",
        "P",
        "#6baed6",
    ),
}
