"""What the examples share: a reference to compare with, by NUTS, and the table that compares."""

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS


def nuts(target, draws=2000, key=1):
    """Named draws of any scoreascent target by NumPyro's NUTS, four chains of `draws`."""
    sampler = MCMC(
        NUTS(potential_fn=lambda z: -target.log_prob(z), target_accept_prob=0.95),
        num_warmup=max(200, draws // 2),
        num_samples=draws,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    start = 0.1 * jax.random.normal(jax.random.key(key), (4, target.dim))
    sampler.run(jax.random.key(key + 1), init_params=start)
    return jax.jit(jax.vmap(target.named))(sampler.get_samples())


def compare(names, **sources):
    """Print mean ± sd of these parameters, a row for each entry, a column for each source."""
    print(f"\n{'':12}" + "".join(f"{source.replace('_', ' '):>20}" for source in sources))
    for name in names:
        columns = [np.atleast_2d(np.asarray(draws[name]).T) for draws in sources.values()]
        for i, entries in enumerate(zip(*columns)):
            label = name if len(columns[0]) == 1 else f"{name}[{i}]"
            cells = [f"{x.mean():.3g} ± {x.std():.3g}" for x in entries]
            print(f"{label:12}" + "".join(f"{cell:>20}" for cell in cells))
