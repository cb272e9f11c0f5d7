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


def main(steps=10_000, draws=2000):
    """Fit, judge, compare."""
    # One line makes a target of the model: its parameters on ℝ¹⁰, and the way back.
    target = sa.from_numpyro(schools, ERRORS, effects=EFFECTS)

    # Fifty chains propose from q, and q follows them. `average` gives back the mean of the second
    # half of the iterates, which jitter around the optimum.
    result = sa.fit(target, sa.pmcsa(50), steps=steps, average=True, key=0)
    print(result)

    # Whether to believe it: the weights of q's draws, the chains at the fitted q, and a word for
    # it all. Here q is near, but k̂ is at the edge of what passes for a light tail.
    diagnosis = result.diagnose()
    print(diagnosis)

    # This model is small enough to have a reference. The parameters of q agree with it; theta is
    # too wide, for it multiplies tau and raw, which q takes for independent, and log tau has not
    # quite a Gaussian's tails. Draws that are resampled by their weights agree: k̂ is below 0.7.
    reference = nuts(target, draws)
    fitted, resampled = result.sample(2, 4000), result.resample(3, 4000)
    compare(["mu", "tau", "theta"], NUTS=reference, q=fitted, q_resampled=resampled)
    return result, diagnosis, reference


if __name__ == "__main__":
    main()
