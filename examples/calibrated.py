"""Is a procedure calibrated for a model? One that is, and three that are not.

A line through six points. Parameters are drawn from the prior, data at them, and the posterior of
these data is fitted, a hundred times: where the true parameters lie among draws of their posteriors
must be uniform. It is not if the prior that drew them is wider than the model's, if the density
lacks the Jacobian of a transform (of four points, where that matters more), or if q is too narrow,
as that of the ELBO is.

    python examples/calibrated.py
"""

from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax

import scoreascent as sa

# Away from 0, so that the two coefficients correlate
X = np.linspace(0.5, 2.5, 6).astype(np.float32)
FEW = np.linspace(0.5, 2.5, 4).astype(np.float32)
Y = np.zeros(6, np.float32)  # only their shape matters: others are drawn in their place


def line(x, y, width=1.0):
    """Intercept, slope and noise, each with a prior."""
    a = numpyro.sample("a", dist.Normal(0, width))
    b = numpyro.sample("b", dist.Normal(0, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)


def wider(x, y):
    """The same with another prior for the intercept."""
    line(x, y, width=2.0)


def no_jacobian(x, y):
    """The same, but the prior of sigma is stated as if it were one of log sigma."""
    a = numpyro.sample("a", dist.Normal(0, 1))
    b = numpyro.sample("b", dist.Normal(0, 1))
    u = numpyro.sample("log_sigma", dist.ImproperUniform(dist.constraints.real, (), ()))
    sigma = numpyro.deterministic("sigma", jnp.exp(u))
    numpyro.factor("prior", dist.HalfNormal(1).log_prob(sigma))  # and + u is forgotten
    numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)


def main(simulations=100, key=0, picture="out/calibrated.png"):
    """Calibrate the four, print what the ranks say, draw them."""
    elbo = {"method": sa.elbo(8), "optimizer": optax.adam(3e-2), "steps": 2000, "average": True}
    found = {
        "sa.fit": sa.calibrate(line, X, Y, simulations=simulations, key=key),
        "a wider prior drew": sa.calibrate(
            line, X, Y, simulator=wider, simulations=simulations, key=key
        ),
        "no Jacobian": sa.calibrate(
            no_jacobian, FEW, Y[:4], simulator=line, simulations=simulations, key=key
        ),
        "the ELBO's q": sa.calibrate(line, X, Y, options=elbo, simulations=simulations, key=key),
    }
    names = ["a", "b", "sigma"]
    figure, axes = plt.subplots(4, 3, figsize=(8, 8.4), sharex=True, layout="constrained")
    for (title, one), row in zip(found.items(), axes):
        print(f"\n{title}\n{one}")
        sa.plots.plot_calibration(one, names, row)
        row[0].set_ylabel(title)
    Path(picture).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150)
    print(f"\npicture: {picture}")
    return found


if __name__ == "__main__":
    main()
