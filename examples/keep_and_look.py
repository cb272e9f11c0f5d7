"""Keep a fit, read it again elsewhere, look at it in a browser.

Reaction times of a simple kind: a place, a spread and a delay before which nobody reacts. The fit
is written to one file without code in it. Read without the model the file still tells what was
found; read with it, everything goes on as if the fit had just been made. The page needs no network.

    python examples/keep_and_look.py out
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import scoreascent as sa


def reactions(seconds):
    """Times are log-normal after a delay."""
    delay = numpyro.sample("delay", dist.HalfNormal(0.2))
    place = numpyro.sample("place", dist.Normal(-1, 1))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    after = seconds - delay
    log_p = dist.LogNormal(place, spread).log_prob(jnp.maximum(after, 1e-6))
    numpyro.factor("seconds", jnp.sum(jnp.where(after > 0, log_p, -jnp.inf)))


def measured(seed=0):
    """Eighty of them, simulated."""
    return (0.15 + np.random.default_rng(seed).lognormal(-1.2, 0.5, 80)).astype(np.float32)


def main(folder="out", key=0, picture=True):
    """Fit, keep, read in both ways, and write the page."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    target = sa.from_numpyro(reactions, measured())
    result = sa.fit(target, key=key)
    print(result)
    result.save(folder / "fit.npz")

    # Somebody who has the file alone sees what you saw, and may draw from the posterior.
    alone = sa.load(folder / "fit.npz")
    print(f"\nthe same table: {str(alone) == str(result)}")
    draws = alone.sample(1, 2000)
    print(f"P(delay > 0.15 s) = {np.mean(draws['delay'] > 0.15):.2f}")
    try:
        alone.log_evidence()
    except ValueError as error:
        print(f"but: {error}")

    # With the model, all is there; another model is refused, with what differs.
    whole = sa.load(folder / "fit.npz", target)
    print(f"\n{whole.log_evidence()}")
    try:
        sa.load(folder / "fit.npz", sa.from_numpyro(reactions, measured(seed=1)))
    except sa.LoadError as error:
        print(f"another one: {error}")

    if picture:
        print(f"\n{whole.report(folder / 'fit.html')} opens in any browser")
    return result, alone, whole


if __name__ == "__main__":
    main(*sys.argv[1:])
