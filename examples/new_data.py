"""Predictions at data that the fit has not seen: new rows, new groups, functions of parameters.

Seven sorts of plants grow with light, each at its own pace; the paces are alike as far as `spread`
says. The data are made up, so that what is predicted can be compared with what is true.

    python examples/new_data.py
"""

import numpy as np
import numpyro
from numpyro import distributions as dist

import scoreascent as sa

SORTS, ROWS = 7, 84


def growth(sorts, sort, light, height=None):
    """Heights of plants: a line in light for each sort."""
    level = numpyro.sample("level", dist.Normal(0, 2))
    typical = numpyro.sample("typical", dist.Normal(0, 2))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("sorts", sorts):
        pace = numpyro.sample("pace", dist.Normal(typical, spread))
    with numpyro.plate("plants", len(light)):
        mean = numpyro.deterministic("mean", level + pace[sort] * light)
        numpyro.sample("height", dist.Normal(mean, noise), obs=height)


def made_up(seed=3):
    """Sort, light and height of every plant, and the true pace of every sort."""
    rng = np.random.default_rng(seed)
    pace = 1.5 + 0.5 * rng.normal(size=SORTS)
    sort, light = np.arange(ROWS) % SORTS, rng.uniform(-1, 1, ROWS)
    height = 0.7 + pace[sort] * light + 0.3 * rng.normal(size=ROWS)
    return sort.astype("i4"), light.astype("f4"), height.astype("f4"), pace


def main(n=4000):
    """Fit, then predict in three ways."""
    sort, light, height, pace = made_up()
    result = sa.fit(sa.from_numpyro(growth, SORTS, sort, light, height=height), key=0)
    print(result)

    # New rows: the model is called with them, and what is not given is drawn.
    new_sort, new_light = np.array([0, 3, 6], "i4"), np.array([0.5, 0.5, 2.0], "f4")
    rows = result.predict(1, SORTS, new_sort, new_light, n=n)
    print("\nthree new plants of known sorts")
    print(rows)
    low, high = rows.interval(0.9)["mean"]
    true = 0.7 + pace[new_sort] * new_light
    print("their mean heights, in truth:", true.round(2), "- within:", (low < true) & (true < high))

    # New groups: a sort that nobody has seen has a pace like the others'. The plate has another
    # size then, so all of its paces are drawn given the rest, and `anew` says that this is meant.
    groups = result.predict(2, 1, np.array([0], "i4"), np.array([1.0], "f4"), n=n, anew=["pace"])
    print("\na plant of a new sort")
    print(groups)

    # Without arguments: the data of the fit once more, to hold against those that there were.
    again = result.predict(3, n=n)["height"]
    share = float(np.mean(again.std(1) > height.std()))
    print(f"\nheights drawn anew vary more than those seen in {share:.0%} of the draws")
    return result, rows, groups, share


if __name__ == "__main__":
    main()
