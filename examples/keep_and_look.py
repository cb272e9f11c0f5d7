"""Keep a fit, read it again elsewhere, look at it in a browser.

Reaction times with and without a warning, and how much time the warning saves. The fit is written
to one file without code in it. Read without the model the file still tells what was found; read
with it, everything goes on as if the fit had just been made. The page needs no network.

    python examples/keep_and_look.py
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import scoreascent as sa


def reactions(seconds, warned):
    """Times are log-normal; a warning shifts their logarithm."""
    place = numpyro.sample("place", dist.Normal(-1, 1))
    effect = numpyro.sample("effect", dist.Normal(0, 0.5))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    median = jnp.exp(place + effect * warned)
    numpyro.deterministic("saved", jnp.exp(place) - jnp.exp(place + effect))
    numpyro.sample("seconds", dist.LogNormal(jnp.log(median), spread), obs=seconds)


def measured(seed=0):
    """Eighty of them, simulated; every second one after a warning."""
    warned = np.arange(80) % 2
    times = np.random.default_rng(seed).lognormal(-1.2 - 0.3 * warned, 0.5)
    return times.astype(np.float32), warned.astype(np.float32)


def main(folder="out", key=0, picture=True):
    """Fit, keep, read in both ways, and write the page."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    target = sa.from_numpyro(reactions, *measured())
    result = sa.fit(target, key=key)
    print(result)
    result.save(folder / "fit.npz")

    # Somebody who has the file alone sees what you saw, and may draw from the posterior.
    alone = sa.load(folder / "fit.npz")
    print(f"\nthe same table: {str(alone) == str(result)}")
    draws = alone.sample(1, 2000)
    print(f"P(a warning saves time) = {np.mean(draws['saved'] > 0):.2f}")
    try:
        alone.log_evidence()
    except ValueError as error:
        print(f"but: {error}")

    # With the model, all is there; another model is refused, with what differs.
    whole = sa.load(folder / "fit.npz", target)
    q = whole.sample(2, 1000, draws="q")["spread"]
    print(f"\nfresh draws of q: spread {np.mean(q):.2f} ± {np.std(q):.2f}")
    try:
        sa.load(folder / "fit.npz", sa.from_numpyro(reactions, *measured(seed=1)))
    except sa.LoadError as error:
        print(f"another one: {error}")

    if picture:
        print(f"\n{whole.report(folder / 'fit.html')} opens in any browser")
    return result, alone, whole


if __name__ == "__main__":
    main(*sys.argv[1:])
