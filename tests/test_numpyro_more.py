"""NumPyro models with discrete sites, missing observations, and a look at their data."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy import stats
from numpyro.contrib.control_flow import scan
from numpyro.infer import Predictive

import scoreascent as sa
from tests.helpers import x64

RNG = np.random.default_rng(8)
Y = RNG.normal(size=6)
SEEN = np.array([True, False, True, True, False, True])
GROUP = np.array([0, 1, 2, 1, 0, 2])


def points(target: sa.Target, n: int = 3) -> Any:
    return jnp.asarray(np.random.default_rng(5).normal(size=(n, target.dim)))


def same_density(ours: sa.Target, theirs: sa.Target, offset: float = 0.0) -> None:
    """The same log density, and the same gradient, at a few points."""
    z = points(ours)
    one = jax.jit(jax.vmap(jax.value_and_grad(ours.log_prob)))(z)
    two = jax.jit(jax.vmap(jax.value_and_grad(theirs.log_prob)))(z)
    np.testing.assert_allclose(one[0], two[0] + offset, rtol=1e-9)
    np.testing.assert_allclose(one[1], two[1], rtol=1e-7, atol=1e-9)


# -- discrete sites --------------------------------------------------------------------------------


def mixture(y: Any, n: int = 6) -> None:
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    centre = numpyro.sample("centre", dist.Normal(0, 3).expand([2]).to_event(1))
    numpyro.deterministic("gap", centre[1] - centre[0])
    with numpyro.plate("rows", n):
        kind = numpyro.sample("kind", dist.Bernoulli(share))
        numpyro.deterministic("mean", centre[kind])
        numpyro.sample("y", dist.Normal(centre[kind], 0.5), obs=y)


def mixture_summed(y: Any) -> None:
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    centre = numpyro.sample("centre", dist.Normal(0, 3).expand([2]).to_event(1))
    parts = dist.Normal(centre, 0.5)
    kinds = dist.Categorical(jnp.stack([1 - share, share]))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(kinds, parts), obs=y)


def test_discrete_sites_are_summed_out() -> None:
    pytest.importorskip("funsor")
    with x64():
        ours = sa.from_numpyro(mixture, Y)
        assert ours.site_names == ("share", "centre")
        same_density(ours, sa.from_numpyro(mixture_summed, Y))
        named = ours.named(points(ours)[0])
        assert set(named) == {"share", "centre", "gap"}  # not the mean, which has a kind
        np.testing.assert_allclose(ours.unconstrain(named), points(ours)[0], rtol=1e-6)
        assert ours.initial(jax.random.key(0)).shape == (3,)


def test_a_chain_of_discrete_states_is_summed_out() -> None:
    pytest.importorskip("funsor")

    def hidden(y: Any) -> None:
        stay = numpyro.sample("stay", dist.Beta(5.0, 2.0))
        rows = jnp.stack([jnp.stack([stay, 1 - stay]), jnp.stack([1 - stay, stay])])

        def step(state: Any, value: Any) -> Any:
            state = numpyro.sample("state", dist.Categorical(rows[state]))
            numpyro.sample("y", dist.Normal(2.0 * state, 1.0), obs=value)
            return state, None

        scan(step, 0, y)

    def forward(z: Any) -> Any:
        stay = jax.nn.sigmoid(z[0])
        rows = jnp.stack([jnp.stack([stay, 1 - stay]), jnp.stack([1 - stay, stay])])
        alpha = jnp.array([1.0, 0.0])
        for value in Y:
            alpha = (alpha @ rows) * stats.norm.pdf(value, jnp.array([0.0, 2.0]), 1.0)
        prior = stats.beta.logpdf(stay, 5.0, 2.0) + jnp.log(stay * (1 - stay))
        return jnp.log(jnp.sum(alpha)) + prior

    with x64():
        same_density(sa.from_numpyro(hidden, Y), sa.Target(forward, dim=1))


def test_predictions_draw_discrete_sites() -> None:
    pytest.importorskip("funsor")
    target = sa.from_numpyro(mixture, Y.astype("f4"))
    result = sa.fit(target, sa.pmcsa(4), steps=2, progress=False)
    ours = result.predict(2, None, 9, n=50)
    posterior = {k: ours.parameters[k] for k in target.site_names}
    key = jax.random.split(jax.random.key(2))[1]
    theirs = Predictive(mixture, posterior)(key, None, 9)
    assert set(ours) == set(theirs) == {"kind", "mean", "y", "gap"}
    for name, x in theirs.items():
        np.testing.assert_allclose(ours[name], x, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_fit_of_a_model_with_discrete_sites() -> None:
    pytest.importorskip("funsor")

    def spikes(y: Any) -> None:
        share = numpyro.sample("share", dist.Beta(2.0, 2.0))
        with numpyro.plate("rows", len(y)):
            big = numpyro.sample("big", dist.Bernoulli(share))
            numpyro.sample("y", dist.Normal(0.0, 1.0 + 4.0 * big), obs=y)

    y = (RNG.normal(size=60) * np.where(np.arange(60) < 20, 5.0, 1.0)).astype("f4")
    result = sa.fit(sa.from_numpyro(spikes, y), progress=False)
    assert result.diagnosis is not None
    assert result.diagnosis.verdict == "good"
    assert "model: summed over the discrete big" in result.decisions
    shares = np.linspace(0.0005, 0.9995, 1000)
    parts = [np.exp(-0.5 * (y / s) ** 2) / s for s in (1.0, 5.0)]
    log_p = np.log(shares * (1 - shares)) + np.sum(
        np.log((1 - shares)[:, None] * parts[0] + shares[:, None] * parts[1]), -1
    )
    weights = np.exp(log_p - log_p.max()) / np.sum(np.exp(log_p - log_p.max()))
    mean = float(weights @ shares)
    sd = float(np.sqrt(weights @ (shares - mean) ** 2))
    (row,) = result.summary()
    assert abs(row["mean"] - mean) < 0.1 * sd
    assert abs(row["sd"] / sd - 1) < 0.1
    pytest.importorskip("arviz")
    assert "log_likelihood" not in result.to_arviz(n=40)


def test_models_that_enumerate_run_one_at_a_time() -> None:
    """NumPyro's handlers, and what it puts in the place of plates, are the same for all threads."""
    pytest.importorskip("funsor")
    y = Y.astype("f4")
    targets = [sa.from_numpyro(mixture, y), sa.from_numpyro(mixture_summed, y)]
    with ThreadPoolExecutor(4) as pool:

        def density(i: int) -> Any:
            target = targets[i % 2]
            return float(jax.jit(lambda z: target.log_prob(z) + 0 * i)(jnp.zeros(3)))

        found = list(pool.map(density, range(16)))
    np.testing.assert_allclose(found, found[0], rtol=1e-5)


def test_a_latent_count_is_refused() -> None:
    with pytest.raises(ValueError, match=r"site 'k' .*is discrete .* it has too many values"):
        sa.from_numpyro(lambda: numpyro.sample("k", dist.Poisson(3.0)))


# -- missing observations --------------------------------------------------------------------------


def masked(y: Any, seen: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("rows", len(y)):
        x = numpyro.sample("x", dist.LogNormal(0.3, scale), obs=jnp.exp(y), obs_mask=seen)
        numpyro.sample("z", dist.Normal(x, 1.0), obs=y)


def masked_by_hand(z: Any) -> Any:
    scale, missing = jnp.exp(z[0]), jnp.exp(z[1:])
    x = jnp.exp(jnp.asarray(Y)).at[np.flatnonzero(~SEEN)].set(missing)
    prior = jnp.log(2.0) + stats.norm.logpdf(scale, 0, 2) + z[0]
    of_x = jnp.sum(stats.norm.logpdf(jnp.log(x), 0.3, scale) - jnp.log(x)) + jnp.sum(z[1:])
    return prior + of_x + jnp.sum(stats.norm.logpdf(Y, x, 1.0))


def test_missing_observations_are_parameters() -> None:
    with x64():
        ours = sa.from_numpyro(masked, Y, SEEN)
        assert ours.site_names == ("scale", "x_unobserved")
        assert ours.dim == 3
        same_density(ours, sa.Target(masked_by_hand, dim=3))
        z = points(ours)[0]
        named = ours.named(z)
        assert named["x_unobserved"].shape == (2,)
        np.testing.assert_allclose(named["x"][~SEEN], named["x_unobserved"])
        np.testing.assert_allclose(named["x"][SEEN], np.exp(Y)[SEEN])
        np.testing.assert_allclose(ours.unconstrain(named), z)
        terms = ours.model.log_likelihood(z, ours.data)  # type: ignore[union-attr]
        assert np.all((np.asarray(terms["x_observed"]) == 0) == ~SEEN)
        assert ours.initial(jax.random.key(0)).shape == (3,)


def test_missing_vectors_are_parameters() -> None:
    rows = RNG.normal(size=(4, 3))
    seen = np.array([True, False, True, False])
    cov = np.eye(3) + 0.5

    def model() -> None:
        mean = numpyro.sample("mean", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", 4):
            numpyro.sample("x", dist.MultivariateNormal(mean, cov), obs=rows, obs_mask=seen)

    def by_hand(z: Any) -> Any:
        mean, missing = z[:3], z[3:].reshape(2, 3)
        whole = jnp.asarray(rows).at[np.flatnonzero(~seen)].set(missing)
        prior = jnp.sum(stats.norm.logpdf(mean))
        return prior + jnp.sum(stats.multivariate_normal.logpdf(whole, mean, cov))

    with x64():
        ours = sa.from_numpyro(model)
        assert ours.dim == 9
        same_density(ours, sa.Target(by_hand, dim=9))


def test_a_fit_imputes_what_is_missing() -> None:
    def model(y: Any, seen: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y, obs_mask=seen)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = sa.from_numpyro(model, np.where(SEEN, Y, np.nan).astype("f4"), SEEN)
    result = sa.fit(target, progress=False)
    assert result.diagnosis is not None
    assert result.diagnosis.verdict == "good"
    variance = 1 / (1 / 4 + SEEN.sum())
    mean = variance * Y[SEEN].sum()
    rows = {row["name"]: row for row in result.summary()}
    for name, sd in (("mean", variance**0.5), ("y_unobserved[0]", (1 + variance) ** 0.5)):
        assert abs(rows[name]["mean"] - mean) < 0.1 * sd
        assert abs(rows[name]["sd"] / sd - 1) < 0.1
    drawn = result.predict(0, n=200)
    assert drawn["y"].shape == (200, 6)
    assert np.all(np.isfinite(drawn["y"]))


# -- a look at the data ----------------------------------------------------------------------------


def looking(y: Any, group: Any, scale: Any) -> None:
    with numpyro.plate("groups", int(group.max()) + 1):
        level = numpyro.sample("level", dist.Normal(0, 3))
    wide = 2.0 if y.sum() > 1e6 else 1.0
    numpyro.sample("y", dist.Normal(level[group], wide * scale), obs=y)


def only_group(y: Any, group: Any, scale: Any) -> None:
    with numpyro.plate("groups", int(group.max()) + 1):
        level = numpyro.sample("level", dist.Normal(0, 3))
    numpyro.sample("y", dist.Normal(level[group], scale), obs=y)


def test_arrays_whose_values_a_model_looks_at_are_held() -> None:
    def closed(y: Any, scale: Any) -> None:
        level = numpyro.sample("level", dist.Normal(0, 3).expand([3]))
        numpyro.sample("y", dist.Normal(level[GROUP], scale), obs=y)

    with x64():
        ones = np.ones(6)
        ours = sa.from_numpyro(only_group, Y, jnp.asarray(GROUP), ones)
        same_density(ours, sa.from_numpyro(closed, Y, ones))
        assert "holds=['args[1]']" in repr(ours)
        assert len(ours.data) == 2  # the others are data as ever
        both = sa.from_numpyro(looking, Y, GROUP, ones)
        assert "holds=['args[0]', 'args[1]', 'args[2]']" in repr(both)
        same_density(both, ours)


def test_other_values_make_another_target() -> None:
    def make(group: Any) -> sa.Target:
        return sa.from_numpyro(looking, Y.astype("f4"), group, np.ones(6, np.float32))

    one, same, other = make(GROUP), make(GROUP.copy()), make(GROUP // 2)
    assert one.log_density == same.log_density
    assert one.log_density != other.log_density
    assert other.dim == 2


@pytest.mark.slow
def test_a_fit_says_what_it_holds() -> None:
    target = sa.from_numpyro(only_group, Y.astype("f4"), GROUP, np.ones(6, np.float32))
    result = sa.fit(target, steps=20, progress=False)
    assert result.decisions[0].startswith("model: it looks at the values of args[1], which are")
    new = result.predict(0, None, np.array([2, 2]), np.ones(2, np.float32), n=10)
    assert new["y"].shape == (10, 2)
