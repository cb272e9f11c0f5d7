"""Two answers to one question: a mixture whose labels may be exchanged, its modes and its evidence.

Sixty waiting times, in minutes, between eruptions of a geyser: some short, some long, simulated
here. The means of the two kinds can change places and nothing in the data would notice, so the
posterior has two modes of exactly the same mass. Chains that move by small steps stay in one of
them, and so does NUTS; a fit with a component for each jumps between them, and counts.

    python examples/two_modes.py
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from reference import compare, nuts

import scoreascent as sa


def waits(y, kinds):
    """Every time is of one of the kinds, each as likely; which one is summed out."""
    mean = numpyro.sample("mean", dist.Normal(70, 20).expand([kinds]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(10))
    each = dist.Normal(mean, spread).log_prob(y[:, None]) - jnp.log(kinds)
    numpyro.factor("y", jnp.sum(logsumexp(each, -1)))


def eruptions(seed=0):
    """Thirty-five long ones and twenty-five short ones."""
    rng = np.random.default_rng(seed)
    times = np.concatenate([rng.normal(80, 6, 35), rng.normal(55, 6, 25)])
    return times.astype(np.float32)


def main(draws=1000, key=0):
    """Fit one kind and two, look at the modes, compare the models."""
    y = eruptions()
    targets = {kinds: sa.from_numpyro(waits, y, kinds) for kinds in (1, 2)}

    # Nothing is chosen: searches find both modes, so q is a mixture with a component for each, and
    # the chains take independent proposals from it, which is how they get from one to the other.
    results = {kinds: sa.fit(target, key=key) for kinds, target in targets.items()}
    two = results[2]
    print(two)
    for decision in two.decisions:
        print(" ", decision)

    # Which of the two means is the larger one is a toss: half of the draws must say so.
    mean = two.sample(1, 4000)["mean"]
    print(f"\nfirst mean above the second: {np.mean(mean[:, 0] > mean[:, 1]):.3f} of the draws")
    print(f"the weights of q's components: {np.round(np.sort(np.asarray(two.q.weights)), 3)}")

    # NUTS, from four places near the origin of ℝ³: each chain stays in the mode that it comes to,
    # so that their draws together say where the four began, and R̂ of them is far from 1.
    reference = nuts(targets[2], draws)
    above = np.asarray(reference["mean"][:, 0] > reference["mean"][:, 1]).reshape(4, -1)
    print(f"NUTS, chain by chain: {above.mean(1).round(3)}")
    compare(["mean", "spread"], NUTS=reference, sa_fit=two.sample(2, 4000))

    # The evidence is an integral over both modes. Had one been missed, it would be short by log 2.
    table = sa.compare({f"{kinds} kinds": result for kinds, result in results.items()})
    print(f"\n{table}")
    return results, table, reference


if __name__ == "__main__":
    main()
