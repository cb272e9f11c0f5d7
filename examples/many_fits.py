"""A logistic regression for each of many shops, and a table of all of them.

`python examples/many_fits.py` fits 200 of them at once, prints how many are good, the shops with
the largest effects, and one of the fits beside the coefficients that its data were drawn with.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import scoreascent as sa

ROWS, COEFFICIENTS = 80, 3


def log_density(z: Any, data: Any) -> Any:
    """Coefficients N(0, 2²), and a sale or none in every row."""
    x, y = data
    logits = x @ z
    return jnp.sum(y * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(z**2) / 4


def shop(i: int) -> tuple[sa.Target, np.ndarray]:
    """The posterior of a shop, and the coefficients that its data were drawn with."""
    rng = np.random.default_rng(i)
    x = np.column_stack([np.ones(ROWS), rng.normal(size=(ROWS, COEFFICIENTS - 1))])
    beta = rng.normal(size=COEFFICIENTS)
    y = rng.uniform(size=ROWS) < 1 / (1 + np.exp(-x @ beta))
    data = (x.astype(np.float32), y.astype(np.float32))
    return sa.Target(log_density, dim=COEFFICIENTS, data=data), beta


def main(shops: int = 200) -> sa.Fits:
    """Fit all shops, and print what one would look at."""
    targets, truth = zip(*(shop(i) for i in range(shops)))
    fits = sa.fit(targets, key=0)
    print(fits)
    rows = [row for row in fits.summary() if row["name"] == "z[1]"]
    print("\nthe largest effects:")
    for row in sorted(rows, key=lambda row: -row["mean"])[:3]:
        says = f"{row['mean']:.2f} ± {row['sd']:.2f}"
        print(
            f"  shop {row['fit']}: {says}, drawn with {truth[row['fit']][1]:.2f} ({row['verdict']})"
        )
    off = [(row["mean"] - truth[row["fit"]][1]) / row["sd"] for row in rows]
    print(f"true effects are {np.std(off):.2f} posterior sds from the means; it should be about 1")
    print(fits[0])
    return fits


if __name__ == "__main__":
    main()
