"""Eight schools in PyMC: the same posterior from a PyMC model, and an ArviZ object of the fit.

pip install 'scoreascent[pymc,arviz]'
python examples/eight_schools_pymc.py
"""

import arviz as az
import numpy as np
import pymc as pm
from reference import compare, nuts

import scoreascent as sa

SCHOOLS = ["Choate", "Deerfield", "Phillips A", "Phillips E", "Hotchkiss", "Lawrenceville",
           "St. Paul's", "Mt. Hermon"]  # fmt: skip
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def schools():
    """The non-centred model; examples/eight_schools_numpyro.py says why non-centred."""
    with pm.Model(coords={"school": SCHOOLS}) as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        raw = pm.Normal("raw", 0, 1, dims="school")
        theta = pm.Deterministic("theta", mu + tau * raw, dims="school")
        pm.Normal("effect", theta, ERRORS, observed=EFFECTS, dims="school")
    return model


def main(draws=2000):
    """Fit, judge, compare."""
    # PyMC compiles its own log density to JAX; transforms, names and coordinates come along.
    target = sa.from_pymc(schools())
    result = sa.fit(target, key=0)
    print(result)
    diagnosis = result.diagnose()
    print(diagnosis)

    # NUTS on the very density that was fitted.
    reference = nuts(target, draws)
    fitted, of_q = result.sample(2, 4000), result.sample(3, 4000, draws="q")
    compare(["mu", "tau", "theta"], NUTS=reference, fit=fitted, q_alone=of_q)

    # From here on it is ArviZ's: draws with the schools' names, the states of the chains as a
    # second group, predictions, pointwise likelihoods. R̂ and ESS would be those of independent
    # draws and say nothing about the fit, so they are left out: that is what `diagnose` is for.
    data = result.to_arviz()
    print()
    print(az.summary(data, var_names=["mu", "tau", "theta"], kind="stats").to_string())
    return result, diagnosis, reference


if __name__ == "__main__":
    main()
