"""Where a mean-field q fails, how the verdict says so, and two ways out.

A cubic in the powers 1, x, x², x³, which are nearly the same curve on [0, 3]: the data say much
about the curve and little about any one coefficient, so the coefficients' posterior is a thin
ridge (correlations up to −0.98). The noise is known, so the posterior is Gaussian and in closed
form: nothing here has to be believed.

    python examples/mean_field_fails.py [picture.png]
"""

import sys

import jax.numpy as jnp
import numpy as np

import scoreascent as sa

# Data of a known cubic with standard normal noise; the prior of a coefficient is N(0, 5²).
X = np.vander(np.linspace(0, 3, 40), 4, increasing=True).astype(np.float32)
Y = X @ [1.0, -1.0, 2.0, -0.5] + np.random.default_rng(0).normal(size=40)
COVARIANCE = np.linalg.inv(X.T @ X + np.eye(4) / 25)
MEAN, SD = COVARIANCE @ X.T @ Y, np.sqrt(np.diag(COVARIANCE))


def log_density(p, data):
    """Normal errors and a normal prior."""
    x, y = data
    return -0.5 * jnp.sum((y - x @ p["beta"]) ** 2) - 0.5 * jnp.sum((p["beta"] / 5) ** 2)


def log_density_rotated(p, data):
    """The same in gamma = R beta, where x = QR: the Jacobian is a constant."""
    x, y, inverse = data
    return log_density({"beta": inverse @ p["gamma"]}, (x, y))


def report(name, result, beta):
    """The verdict on a fit, and what is in fact the case."""
    diagnosis = result.diagnose()
    print(f"\n-- {name}\n{diagnosis}")
    print("in truth: means off by (sds)", np.round((beta.mean(0) - MEAN) / SD, 2))
    print("          sds over the true ones", np.round(beta.std(0) / SD, 2))
    return diagnosis


def main(steps=10_000, picture=None):
    """Fail, be told so, and mend it twice."""
    four = {"beta": sa.Param(shape=(4,))}
    target = sa.Target(log_density, params=four, data=(X, Y.astype(np.float32)))

    # 1. The usual q: independent coordinates. Its proposals leave the ridge, so hardly any is
    #    accepted, the chains stay where they are, and q shrinks around them. The loss looks
    #    perfectly calm; only the chains know. The verdict is that they did not mix, and what it
    #    says next, a richer family, is number 2.
    failed = sa.fit(target, sa.pmcsa(50), steps=steps, average=True, key=0)
    print(failed)
    draws = 10_000
    verdicts = {"mean-field": report("mean-field", failed, failed.sample(1, draws)["beta"])}

    # 2. A richer family. A full-rank Gaussian learns the ridge, proposes along it, and its chains
    #    mix. It has d²/2 numbers to fit: fine for tens of parameters, too many for thousands.
    q0 = sa.FullRank.standard(target.dim)
    ridge = sa.fit(target, sa.pmcsa(50), q0=q0, steps=steps, average=True, key=0)
    verdicts["full rank"] = report("full rank", ridge, ridge.sample(1, draws)["beta"])

    # 3. Other coordinates. What the data determine is the curve: with x = QR, the coefficients
    #    gamma of the orthonormal columns of Q are nearly independent, and the cheap q will do.
    #    Centring a predictor and non-centring a hierarchy are the same trick.
    inverse = np.linalg.inv(np.linalg.qr(X)[1])
    turned = sa.Target(
        log_density_rotated,
        params={"gamma": sa.Param(shape=(4,))},
        data=(X, Y.astype(np.float32), inverse),
    )
    start = sa.MeanField.from_moments(jnp.zeros(4), jnp.full(4, 5.0))
    rotated = sa.fit(turned, sa.pmcsa(50), q0=start, steps=steps, average=True, key=0)
    beta = rotated.sample(1, draws)["gamma"] @ inverse.T
    verdicts["other coordinates"] = report("other coordinates", rotated, beta)

    # The picture: draws of q, states of its chains, and the truth as outlines. Chains that are
    # spikes rather than a histogram are chains that do not move.
    if picture is not None:
        exact = np.random.default_rng(1).multivariate_normal(MEAN, COVARIANCE, 10_000)
        axes = sa.plots.plot_pairs(failed, reference={"beta": exact})
        axes[0, 0].figure.savefig(picture, dpi=80)
    return verdicts, {"mean-field": failed, "full rank": ridge, "other coordinates": rotated}


if __name__ == "__main__":
    main(picture=sys.argv[1] if len(sys.argv) > 1 else None)
