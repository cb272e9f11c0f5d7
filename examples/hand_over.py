"""From a fit to NUTS without its warm-up, and from NUTS's draws to a fit.

A regression whose columns have scales from a hundredth to a hundred: what NUTS learns of that in
its warm-up the fit knows already.

    python examples/hand_over.py
"""

import jax
import numpy as np
import numpyro
from numpyro import distributions as dist
from numpyro.infer import MCMC, NUTS

import scoreascent as sa

SCALES = np.array([0.01, 0.1, 1.0, 10.0, 100.0], np.float32)


def regression(x, y=None):
    """A line in several columns."""
    beta = numpyro.sample("beta", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(x @ beta, noise), obs=y)


def run(kernel, arguments, warmup, draws):
    """NUTS's draws, and the gradients that it took, warm-up included."""
    sampler = MCMC(
        NUTS(**kernel),
        num_warmup=warmup,
        num_samples=draws,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    key, fields = jax.random.key(1), ("num_steps",)
    sampler.warmup(key, **arguments, extra_fields=fields, collect_warmup=True)
    gradients = int(np.sum(sampler.get_extra_fields()["num_steps"]))
    sampler.run(key, **arguments, extra_fields=fields)
    return sampler.get_samples(), gradients + int(np.sum(sampler.get_extra_fields()["num_steps"]))


def main(draws=500, warmup=1000):
    """Fit, hand over, and come back."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(60, 5)) * SCALES).astype("f4")
    y = (x @ (rng.normal(size=5) / SCALES) + rng.normal(size=60)).astype("f4")
    target = sa.from_numpyro(regression, x, y=y)
    result = sa.fit(target, key=0)
    print(result)

    # Places to begin at and an inverse mass matrix: all that is left to NUTS is its step size.
    kernel, arguments = result.to_nuts(chains=4).numpyro()
    handed, few = run(kernel, arguments, 50, draws)

    # The same model, by NUTS alone.
    target_kernel = {"potential_fn": lambda z: -target.log_prob(z)}
    start = 0.1 * jax.random.normal(jax.random.key(2), (4, target.dim))
    alone, many = run(target_kernel, {"init_params": start}, warmup, draws)
    print(f"\ngradients of NUTS: {many} with a warm-up of its own, {few} after the fit")

    # And the other way: a fit may begin at what a sampler has drawn.
    again = sa.fit(target, start=sa.from_draws(target, handed), key=0)
    print(f"a fit of these draws: {again.diagnosis.verdict}")
    return result, handed, jax.vmap(target.named)(alone), (many, few), again


if __name__ == "__main__":
    main()
