"""Moment matching as an update: where it rests, its schedule and memory, its average, its scale.

tests/test_families.py holds each family's `match` against the natural gradient; here is what the
update and the loop make of it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import scoreascent as sa
from scoreascent.schedules import Decay
from tests.helpers import MomentMatching, pytree, x64
from tests.stats import Z_MAX, Z_MUTANT, z_score

MEAN = np.array([0.6, -1.0, 0.2])
COV = np.array([[1.0, 0.5, -0.3], [0.5, 0.8, 0.1], [-0.3, 0.1, 1.5]])


def log_density(z: Any, data: Any) -> Any:
    """N(MEAN, COV), its coordinates multiplied by a scale."""
    x = z / data["scale"] - data["mean"]
    return -0.5 * x @ data["precision"] @ x


def make_target(scale: Any = 1.0) -> sa.Target:
    scale = jnp.asarray(scale * np.ones(3), jnp.float32)
    precision = jnp.asarray(np.linalg.inv(COV), jnp.float32)
    data = {"scale": scale, "mean": jnp.asarray(MEAN, jnp.float32), "precision": precision}
    return sa.Target(log_density, dim=3, data=data)


TARGET = make_target()
METHOD = sa.pmcsa(16, kernel=sa.Adapted(sa.IMH()))
STARTS: dict[str, Any] = {
    "mean-field": sa.MeanField.standard(3),
    "full-rank": sa.FullRank.standard(3),
    "low-rank": sa.LowRank.standard(3, rank=2),
    "student-t": sa.StudentT.standard(3, df=30),
}
each_family = pytest.mark.parametrize("family", STARTS)


def fit(target: Any = TARGET, method: Any = METHOD, **options: Any) -> sa.Result:
    options = {"progress": False, "optimizer": sa.moment_matching(), "steps": 600} | options
    return sa.fit(target, method, **options)


# -- where it rests ------------------------------------------------------------------------------


@functools.cache
def replicated(family: str) -> Any:
    q0 = STARTS[family]
    return fit(q0=q0, replications=40, average=True)


def optimum(family: str) -> tuple[Any, Any]:
    """Means and sds of the member nearest to N(MEAN, COV) in inclusive KL.

    A Gaussian has those of the target. A mean-field t with many degrees of freedom is nearest to
    N(0, 1) with the scale that solves E[(ν + 1) x²/(ν s² + x²)] = 1.
    """
    sd = np.sqrt(np.diag(COV))
    if family != "student-t":
        return MEAN, sd
    df = STARTS[family].df
    x, w = np.polynomial.hermite_e.hermegauss(80)
    w = w / w.sum()
    low, high = 0.5, 1.5
    for _ in range(60):
        s = (low + high) / 2
        low, high = (s, high) if w @ ((df + 1) * x**2 / (df * s**2 + x**2)) > 1 else (low, s)
    return MEAN, sd * s * np.sqrt(df / (df - 2))


@pytest.mark.slow
@each_family
def test_it_rests_at_the_optimum(family: str) -> None:
    q = replicated(family).q
    mean, sd = optimum(family)
    assert z_score(q.mean, mean) < Z_MAX
    # a variance is known to the square of what its sd is, so its bias is of no account
    sds = np.asarray(jax.vmap(lambda q: q.sd)(q))
    assert z_score(sds**2, sd**2) < Z_MAX
    assert z_score(sds**2, (1.05 * sd) ** 2) > Z_MUTANT
    np.testing.assert_allclose(sds.mean(0), sd, rtol=0.02)


def test_the_whole_covariance_is_found() -> None:
    cov = np.asarray(jax.vmap(lambda q: q.cov)(replicated("full-rank").q))
    assert z_score(cov, COV) < Z_MAX
    assert z_score(cov, np.diag(np.diag(COV))) > Z_MUTANT


# -- one step ------------------------------------------------------------------------------------


@each_family
@pytest.mark.parametrize("count", [0, 200])
def test_a_step_is_the_familys_match(family: str, count: int) -> None:
    """At the rate of the schedule; the loss is the objective at the q of before."""
    q, rate = STARTS[family], Decay(first=0.3)
    z = jax.random.normal(jax.random.key(0), (8, 3)) + 0.5
    eta = sa.Particles(z, jnp.zeros(8), jax.nn.softmax(z[:, 0]))
    step = jax.jit(sa.moment_matching(rate).step, static_argnums=0)
    moved, memory, loss, size = step(METHOD, TARGET, q, eta, jnp.int32(count))
    gamma = min(0.3, (count + 1) ** -0.6)
    expected = jax.jit(q.match)(z, eta.weight, jnp.float32(gamma))
    leaves = zip(jax.tree.leaves(moved), jax.tree.leaves(expected), jax.tree.leaves(q))
    total = 0.0
    for new, want, old in leaves:
        np.testing.assert_allclose(new, want, rtol=1e-5, atol=1e-6)
        total += np.sum(((np.asarray(want) - np.asarray(old)) / gamma) ** 2)
    assert int(memory) == count + 1
    np.testing.assert_allclose(size, np.sqrt(total), rtol=1e-2)
    objective = METHOD.objective(TARGET, q, eta)
    np.testing.assert_allclose(loss, objective, rtol=1e-5)


def test_the_first_step_of_rate_one_has_the_points_moments() -> None:
    seen = []
    fit(
        q0=STARTS["full-rank"], steps=1, optimizer=sa.moment_matching(Decay(first=1.0)),
        callback=lambda state, trace: seen.append(state),
    )  # fmt: skip
    z = np.asarray(seen[-1].eta.z, np.float64)
    np.testing.assert_allclose(seen[-1].q.mean, z.mean(0), atol=1e-5)
    np.testing.assert_allclose(seen[-1].q.cov, np.cov(z.T, bias=True), atol=1e-4)
    assert int(seen[-1].memory) == 1


def test_a_skipped_step_is_not_counted() -> None:
    """Rates of more than one may leave no distribution at all: q stays, and so does the count."""
    result = fit(
        q0=STARTS["mean-field"], steps=5, optimizer=sa.moment_matching(lambda t: 50.0), throw=False
    )
    skipped = int(np.sum(result.trace.skipped))
    assert skipped > 0
    assert int(result.state.memory) == 5 - skipped
    assert np.all(np.isfinite(result.q.mean))


# -- scale ---------------------------------------------------------------------------------------


def in_units(result: sa.Result, scale: np.ndarray) -> np.ndarray:
    return np.stack([result.q.mean / scale, result.q.sd / scale])


def fits_in_units(optimizer: Any, family: Any) -> float:
    """The largest difference of two fits whose targets differ in their units alone.

    The same noise, so the same run but for rounding. q0 and its kernel have those units too.
    """
    out = []
    for scale in (np.ones(3), np.array([1e-3, 1.0, 1e3])):
        if family is sa.MeanField:
            q0 = family.from_moments(np.zeros(3, np.float32), scale.astype(np.float32))
        else:
            q0 = family.from_moments(np.zeros(3, np.float32), np.diag(scale**2).astype(np.float32))
        result = fit(
            make_target(scale), sa.pmcsa(16), q0=q0, optimizer=optimizer, steps=150, throw=False
        )
        out.append(in_units(result, scale))
    return float(np.max(np.abs(out[0] - out[1])))


@pytest.mark.parametrize("family", [sa.MeanField, sa.FullRank])
def test_it_has_no_scale_of_its_own(family: Any) -> None:
    assert fits_in_units(sa.moment_matching(), family) < 0.01


def test_adam_has() -> None:
    assert not fits_in_units(optax.adam(1e-2), sa.MeanField) < 0.1  # nor if one is NaN


# -- the average ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mean-field", "full-rank"])
@pytest.mark.parametrize("average", [0.0, True])
def test_the_average_is_that_of_the_points_after_the_start(family: str, average: Any) -> None:
    """The iterate at the beginning and the points of every later step, in equal shares."""
    states = []
    with x64():
        q0 = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), STARTS[family])
        result = fit(
            q0=q0, steps=12, average=average, callback=lambda state, _: states.append(state),
            callback_every=1,
        )  # fmt: skip
        start = 6 if average is True else 0
        late = {int(s.step): s for s in states if int(s.step) > start}
        assert sorted(late) == list(range(start + 1, 13))
        q = late[start + 1].q
        mean = np.asarray(q.mean)
        seconds = [np.asarray(q.cov) + np.outer(mean, mean)]
        means = [mean]
        for state in late.values():
            z = np.asarray(state.eta.z)
            means.append(z.mean(0))
            seconds.append(z.T @ z / len(z))
        mean = np.mean(means, 0)
        cov = np.mean(seconds, 0) - np.outer(mean, mean)
        np.testing.assert_allclose(result.q.mean, mean, rtol=1e-6)
        np.testing.assert_allclose(result.q.sd, np.sqrt(np.diag(cov)), rtol=1e-6)
        if family == "full-rank":
            np.testing.assert_allclose(result.q.cov, cov, rtol=1e-5, atol=1e-8)
        assert not np.allclose(result.q.mean, result.state.q.mean, rtol=1e-3)  # not the iterate


def test_the_average_without_points_is_the_iterate() -> None:
    update, q = MomentMatching(), STARTS["mean-field"]
    eta = sa.Particles(jnp.full((2, 3), jnp.nan), jnp.zeros(2), jnp.full(2, 0.5))
    for count, bad in ((-3, False), (0, False), (5, True)):
        points = eta if bad else eta._replace(z=jnp.ones((2, 3)))
        mean = update.average(q, q, points, jnp.int32(count))
        np.testing.assert_array_equal(mean.mean, q.mean)


# -- bad input -----------------------------------------------------------------------------------


@pytree
@dataclass(frozen=True)
class Matchless(sa.Family):
    """N(loc, I), by gradients only."""

    loc: Any
    dim: ClassVar[int] = 3
    sd: ClassVar[float] = 1.0

    @property
    def mean(self) -> Any:
        return self.loc

    def noise(self, key: Any) -> Any:
        return jax.random.normal(key, self.loc.shape)

    def transport(self, noise: Any) -> Any:
        return self.loc + noise

    def sample(self, key: Any) -> Any:
        return self.transport(self.noise(key))

    def log_prob(self, z: Any) -> Any:
        return -0.5 * jnp.sum((z - self.loc) ** 2)


REFUSED: dict[str, tuple[Any, str]] = {
    "no points": (
        lambda: fit(method=sa.elbo(3), steps=2),
        r"moment_matching needs a method that moves points.*got PathElbo\(n=3\)",
    ),
    "no match": (
        lambda: fit(method=sa.pmcsa(2), q0=Matchless(jnp.zeros(3)), steps=2),
        "moment_matching needs a family with the method match, got Matchless; use an optax",
    ),
    "number": (lambda: sa.moment_matching(0.1), "rate must be a function of .* got 0.1"),
    "first": (lambda: Decay(first=0.0), r"first must lie in \(0, 1\], got 0.0"),
    "first > 1": (lambda: Decay(first=1.5), r"first must lie in \(0, 1\], got 1.5"),
    "power": (lambda: Decay(power=-0.5), r"power must lie in \(0, 1\], got -0.5"),
    "power > 1": (lambda: Decay(power=1.1), r"power must lie in \(0, 1\], got 1.1"),
}


@pytest.mark.parametrize(("call", "says"), REFUSED.values(), ids=REFUSED)
def test_refused(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_rates() -> None:
    rate = Decay(first=0.1, power=0.6)
    np.testing.assert_allclose(rate(0), 0.1, rtol=1e-6)
    np.testing.assert_allclose(rate(jnp.int32(99)), 100**-0.6, rtol=1e-6)
    assert sa.moment_matching() == sa.moment_matching(Decay())
    assert hash(sa.moment_matching(rate)) == hash(sa.moment_matching(Decay()))
    assert fit(method=sa.pmcsa(2), optimizer=sa.moment_matching(optax.constant_schedule(0.1)),
               steps=2).status == "max_steps"  # fmt: skip


# -- a mean-field fit that reaches its optimum ---------------------------------------------------

AR, RHO = 50, 0.9


def autoregressive(z: Any) -> Any:
    """z₁ ~ N(0, 1), z_t | z_{t−1} ~ N(ρ z_{t−1}, 1 − ρ²): every sd is one."""
    steps = (z[1:] - RHO * z[:-1]) / np.sqrt(1 - RHO**2)
    return -0.5 * (z[0] ** 2 + jnp.sum(steps**2))


def auto_normal() -> np.ndarray:
    """The sds that NumPyro's AutoNormal finds by stochastic variational inference."""

    def model() -> None:
        z = numpyro.sample("z", numpyro.distributions.Normal(jnp.zeros(AR), 1).to_event(1))
        prior = -0.5 * jnp.sum(z**2)
        numpyro.factor("rest", autoregressive(z) - prior)

    guide = AutoNormal(model)
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO(num_particles=4))
    result = svi.run(jax.random.key(0), 1500, progress_bar=False)
    return np.asarray(result.params["z_auto_scale"])


@pytest.mark.slow
def test_a_mean_field_fit_reaches_the_marginals_where_svi_does_not() -> None:
    """With a proposal that knows the correlations; q itself stays mean-field."""
    kernel = sa.Adapted(sa.Cycle(sa.IMH(), sa.HMC()))
    target = sa.Target(autoregressive, dim=AR)
    result = fit(target, sa.pmcsa(128, kernel=kernel), steps=600, average=True)
    assert isinstance(result.q, sa.MeanField)
    assert np.max(np.abs(np.asarray(result.q.sd) - 1)) < 0.05
    assert np.max(np.abs(np.asarray(result.q.mean))) < 0.1
    assert np.median(auto_normal()) < 0.5
