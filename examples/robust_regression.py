"""Robust regression with a plain JAX density: Student-t errors for data with outliers.

Twenty-one days of a plant that makes nitric acid (Brownlee, 1965): how much ammonia escapes, given
the flow of air, the temperature of the cooling water and the concentration of the acid. A few days
are known to be odd. Normal errors let them bend the fit; Student-t errors with unknown degrees of
freedom let the data say how odd a day may be.

    python examples/robust_regression.py
"""

import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist
from numpyro.distributions import constraints
from reference import compare, nuts

import scoreascent as sa

AIR = [80, 80, 75, 62, 62, 62, 62, 62, 58, 58, 58, 58, 58, 58, 50, 50, 50, 50, 50, 56, 70]
WATER = [27, 27, 25, 24, 22, 23, 24, 24, 23, 18, 18, 17, 18, 19, 18, 18, 19, 19, 20, 20, 20]
ACID = [89, 88, 90, 87, 87, 87, 93, 93, 87, 80, 89, 88, 82, 93, 89, 86, 72, 79, 80, 82, 91]
LOSS = [42, 37, 37, 28, 18, 18, 19, 20, 15, 14, 14, 13, 11, 12, 8, 7, 8, 8, 9, 15, 15]


def log_density(p, data):
    """The log of the joint density, of parameters that are inside their supports."""
    x, y = data
    prior = (
        dist.Normal(0, 20).log_prob(p["intercept"])
        + jnp.sum(dist.Normal(0, 5).log_prob(p["slope"]))
        + dist.HalfNormal(5).log_prob(p["scale"])
        + dist.Gamma(2, 0.1).log_prob(p["freedom"])
    )
    line = p["intercept"] + x @ p["slope"]
    return prior + jnp.sum(dist.StudentT(p["freedom"], line, p["scale"]).log_prob(y))


# What a parameter may be. The maps to ℝ and their Jacobians are NumPyro's: log_density need not
# know of them.
PARAMS = {
    "intercept": constraints.real,
    "slope": sa.Param(constraints.real, (3,)),
    "scale": constraints.positive,
    "freedom": constraints.positive,
}


def main(steps=10_000, draws=2000):
    """Fit, judge, compare."""
    # Predictors are standardised, so that a slope is the change over one sd of its predictor and
    # the intercept does not depend on the slopes.
    x = np.column_stack([AIR, WATER, ACID]).astype(np.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = np.array(LOSS, np.float32)

    # Data go in by `data=`, not from the surrounding scope: they are then arguments of the compiled
    # loop, and a second fit on other data of the same shape compiles nothing.
    target = sa.Target(log_density, params=PARAMS, data=(x, y))

    # A start near the data saves iterations: q0 is N(m, s²) on the unconstrained scale.
    start = {"intercept": y.mean(), "slope": np.zeros(3), "scale": y.std(), "freedom": 10.0}
    q0 = sa.MeanField.from_moments(target.unconstrain(start), jnp.ones(target.dim))
    result = sa.fit(target, sa.pmcsa(50), q0=q0, steps=steps, average=True, key=0)
    print(result)
    diagnosis = result.diagnose()
    print(diagnosis)

    # Least squares, for what the odd days do: they pull at the slope of the water. NUTS, for
    # whether q is right. Air and water go together (correlation 0.78): a q with independent
    # coordinates has the spreads of their slopes but not that they trade off, and so a draw of q
    # is worth about a fifth of one of the posterior's. Resampling by weights mends that.
    design = np.column_stack([np.ones(len(y)), x])
    print("\nleast squares:", np.round(np.linalg.lstsq(design, y, rcond=None)[0], 2))
    reference = nuts(target, draws)
    compare(list(PARAMS), NUTS=reference, q=result.sample(2, 4000), resampled=result.resample(3))
    return result, diagnosis, reference


if __name__ == "__main__":
    main()
