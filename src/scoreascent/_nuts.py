"""NumPyro's NUTS on a target, set up in one place."""

from __future__ import annotations

from typing import Any

from numpyro.infer import MCMC, NUTS

from scoreascent.target import Target


def nuts_sampler(
    target: Target,
    *,
    warmup: int,
    draws: int,
    chains: int = 4,
    parallel: bool = False,
    kernel: type[NUTS] = NUTS,
    **options: Any,
) -> MCMC:
    """A sampler of `chains` chains on ℝᵈ, each with `draws` draws after `warmup` others.

    Chains advance together under one `vmap`, or, if `parallel`, on a device each, where none waits
    for the longest trajectory of the others. `options` are those of the `kernel`, which is NUTS or
    a class derived from it.
    """
    return MCMC(
        kernel(potential_fn=lambda z: -target.log_prob(z), **options),
        num_warmup=warmup,
        num_samples=draws,
        num_chains=chains,
        chain_method="parallel" if parallel else "vectorized",
        progress_bar=False,
    )
