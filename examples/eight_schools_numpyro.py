"""Eight schools in NumPyro: a posterior from a model, a verdict, and the same by NUTS.

Eight schools each coached pupils for a test and estimated what it gained them (Rubin, 1981). The
estimates are rough; how alike the schools are is itself unknown, and that is `tau`.

    python examples/eight_schools_numpyro.py
"""

import numpy as np
import numpyro
from numpyro import distributions as dist
from reference import compare, nuts

import scoreascent as sa

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)


# The non-centred form: `raw` is a school's gain over the average, in units of tau. In the centred
# form, with theta itself a parameter, a small tau squeezes all the thetas together, and no q with
# independent coordinates can follow that.
def schools(errors, effects=None):
    """Gains of the schools are alike as far as tau says."""
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(errors)):
        raw = numpyro.sample("raw", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * raw)
        numpyro.sample("effect", dist.Normal(theta, errors), obs=effects)


def main(draws=2000):
    """Fit, judge, compare."""
    # One line makes a target of the model: its parameters on ℝ¹⁰, and the way back.
    target = sa.from_numpyro(schools, ERRORS, effects=EFFECTS)

    # Nothing to choose: chains propose from q, q follows them, and both stop when q is known.
    result = sa.fit(target, key=0)
    print(result)

    # Whether to believe it: the weights of q's draws, the chains, rays beyond them, and a word for
    # it all.
    diagnosis = result.diagnose()
    print(diagnosis)

    # This model is small enough to have a reference. What was printed, and what `sample` gives, are
    # states of the chains, and they agree with it. Draws of q itself have the right means and sds
    # of log tau and raw; but log tau has not quite a Gaussian's tails, so tau and theta, which
    # multiplies it, come out too wide.
    reference = nuts(target, draws)
    fitted, of_q = result.sample(2, 4000), result.sample(3, 4000, draws="q")
    compare(["mu", "tau", "theta"], NUTS=reference, fit=fitted, q_alone=of_q)
    return result, diagnosis, reference


if __name__ == "__main__":
    main()
