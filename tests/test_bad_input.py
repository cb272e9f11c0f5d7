"""Wrong arguments raise errors that name the argument; bad densities are survived and reported."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.stats
from numpyro.distributions import constraints

import scoreascent as sa
from tests import helpers
from tests.helpers import x64
from tests.registry import METHODS


def gaussian(z: Any) -> Any:
    return -0.5 * jnp.sum(z**2)


TARGET = sa.Target(gaussian, dim=2)
KEYS = jax.random.split(jax.random.key(0))


def named(support: Any, shape: Any = ()) -> Any:
    return lambda: sa.Target(
        lambda p: -jnp.sum(p["s"] ** 2), params={"s": sa.Param(support, shape)}
    )


def returning(value: Any) -> Any:
    return lambda: sa.Target(value, dim=2)


def fitted(**options: Any) -> Any:
    options = {"target": TARGET, "steps": 3, "progress": False} | options
    return lambda: sa.fit(options.pop("target"), options.pop("method", None), **options)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, z: Any) -> Any:
        return gaussian(z)


MATCHING = {"optimizer": sa.moment_matching()}


def one_scale() -> None:
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    numpyro.sample("theta", dist.Normal(0, tau))


def centring(of: Any) -> Any:
    return lambda: sa.from_numpyro(one_scale, centring=of)


def observed(y: Any) -> None:
    numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0, 1)), 1), obs=y)


def calibrated(model: Any = observed, *args: Any, **settings: Any) -> Any:
    return lambda: sa.calibrate(model, *args, **({"simulations": 2, "progress": False} | settings))


WITH_DATA = sa.Target(
    lambda z, y: gaussian(z) - jnp.sum((y - z[0]) ** 2), dim=1, data=np.zeros(3, np.float32)
)


REFUSED: dict[str, tuple[Any, str]] = {
    # the target
    "dim 0": (lambda: sa.Target(gaussian, dim=0), "dim must be an integer ≥ 1, got 0"),
    "dim < 0": (lambda: sa.Target(gaussian, dim=-2), "dim .* got -2"),
    "dim float": (lambda: sa.Target(gaussian, dim=3.0), "dim .* got 3.0"),
    "dim bool": (lambda: sa.Target(gaussian, dim=True), "dim .* got True"),
    "dim string": (lambda: sa.Target(gaussian, dim="3"), "dim .* got '3'"),
    "dim and params": (
        lambda: sa.Target(gaussian, dim=2, params={"x": constraints.real}),
        "exactly one of dim .* and params",
    ),
    "neither": (lambda: sa.Target(gaussian), "exactly one of dim .* and params"),
    "not callable": (lambda: sa.Target(3.0, dim=2), "log_density must be a function, got 3.0"),
    "not hashable": (lambda: sa.Target(Unhashable(), dim=2), "log_density must be hashable"),
    "a vector": (returning(lambda z: -(z**2)), r"log_density must return a scalar.*\(2,\)"),
    "shape (1,)": (returning(lambda z: -jnp.sum(z, keepdims=True)), "log_density .* scalar"),
    "an integer": (returning(lambda z: jnp.int32(1)), "log_density must return a real float.*int"),
    "a complex": (returning(lambda z: jnp.sum(z) * 1j), "log_density must return a real float"),
    "a bool": (returning(lambda z: z[0] > 0), "log_density must return a real float.*bool"),
    "a tuple": (returning(lambda z: (gaussian(z), z)), "log_density must return a scalar.*tuple"),
    "nothing": (returning(lambda z: None), "log_density must return a scalar"),
    "text data": (
        lambda: sa.Target(lambda z, d: gaussian(z), dim=2, data={"x": "abc"}),
        "data must hold numeric arrays",
    ),
    # supports
    "no params": (lambda: sa.Target(gaussian, params={}), "params must name at least one"),
    "discrete": (named(constraints.nonnegative_integer), r"params\['s'\] has a discrete support"),
    "boolean": (named(constraints.boolean), r"params\['s'\] has a discrete support"),
    "dependent": (named(constraints.dependent), r"params\['s'\]"),
    "no transform": (named(constraints.sphere, (3,)), r"params\['s'\].*no transform"),
    "not a support": (named("positive"), r"params\['s'\] must be a Param or a numpyro constraint"),
    "class of supports": (named(constraints.interval), r"params\['s'\] must be a Param"),
    "scalar simplex": (named(constraints.simplex), r"params\['s'\].*at least 1 axes"),
    "vector Cholesky": (named(constraints.corr_cholesky, (3,)), r"params\['s'\].*at least 2"),
    "not square": (named(constraints.corr_cholesky, (2, 3)), r"params\['s'\]"),
    "negative shape": (named(constraints.real, (-1,)), r"params\['s'\].shape"),
    "real shape": (named(constraints.real, (2.0,)), r"params\['s'\].shape"),
    "no free entry": (named(constraints.simplex, (1,)), "no free entry"),
    "shape of a value": (
        lambda: named(constraints.real, (2,))().unconstrain({"s": jnp.zeros(3)}),
        r"params\['s'\] must have shape \(2,\), got \(3,\)",
    ),
    # families
    "no entry": (lambda: sa.MeanField.from_moments([], []), "mean must be a vector"),
    "matrix": (lambda: sa.MeanField(np.zeros((2, 2)), np.zeros(2)), "loc must be a vector"),
    "two lengths": (lambda: sa.MeanField.from_moments([0.0], [1.0, 1.0]), "the same shape"),
    "sd 0": (lambda: sa.MeanField.from_moments([0.0], [0.0]), "sd must be positive"),
    "sd < 0": (lambda: sa.MeanField.from_moments([0.0], [-1.0]), "sd must be positive"),
    "sd NaN": (lambda: sa.MeanField.from_moments([0.0], [np.nan]), "sd must be finite"),
    "mean infinite": (lambda: sa.MeanField.from_moments([np.inf], [1.0]), "mean must be finite"),
    "complex mean": (lambda: sa.MeanField.from_moments([1j], [1.0]), "mean must be real"),
    "components 0": (lambda: sa.Mixture.standard(2, components=0), "components must be an integer"),
    "components coincide": (
        lambda: sa.Mixture.from_moments(np.zeros((2, 1), "f4"), np.ones((2, 1, 1), "f4")),
        "mean and cov: components 0 and 1 coincide",
    ),
    "weights < 0": (
        lambda: sa.Mixture.from_moments([[0.0], [9.0]], np.ones((2, 1, 1), "f4"), [1.0, -1.0]),
        "weights must be 2 positive numbers",
    ),
    "components of particles": (
        lambda: sa.tempered(TARGET, particles=64, components=50),
        "components: 50 of 2 dimensions are more than 64 particles can tell",
    ),
    "components of points": (
        fitted(method=sa.pmcsa(4), q0=sa.Mixture.standard(2, components=5), **MATCHING),
        "q0 has 5 components, which 4 points at a time cannot tell apart",
    ),
    "standard 0": (lambda: sa.MeanField.standard(0), "dim must be an integer"),
    # flows
    "flow of 10⁴": (lambda: sa.Flow.standard(10_000), "dim must be at most 200 for a Flow, got 10"),
    "fit by a flow of 10⁴": (
        lambda: sa.fit(sa.Target(gaussian, dim=10_000), family="flow", progress=False),
        "dim must be at most 200 for a Flow, got 10000; use FullRank, or LowRank",
    ),
    "family word": (fitted(method="auto", family="spline"), "family must be 'auto' or 'flow', got"),
    "family and q0": (
        fitted(method="auto", family="flow", q0=sa.MeanField.standard(2)),
        "family is for an automatic fit that chooses its own start, but q0 is given",
    ),
    "family and a method": (
        fitted(method=sa.pmcsa(4), family="flow"),
        "but a method is given",
    ),
    "layers": (lambda: sa.Flow.standard(2, layers=17), "layers must be at most 16, got 17"),
    "knots": (lambda: sa.Flow.standard(2, knots=0), "knots must be an integer ≥ 1, got 0"),
    "interval": (lambda: sa.Flow.standard(2, interval=0.0), "interval must be positive and finite"),
    "InBase of what": (lambda: sa.InBase(3), "kernel must be a kernel such as IMH"),
    "InBase of which q": (
        fitted(method=sa.pmcsa(4, sa.InBase(sa.HMC())), q0=sa.LowRank.standard(2, rank=1)),
        "InBase needs a family with forward and inverse, such as Flow or FullRank, got LowRank",
    ),
    # sites that are stated otherwise
    "centring word": (centring("some"), "centring must be 'auto', 'as written', or a dictionary"),
    "centring of a scale": (centring({"tau": 0.5}), "'tau' cannot be stated otherwise, for its"),
    "centring of nothing": (centring({"mu": 0.5}), "'mu' .* the model has no such latent site"),
    "centring 2": (centring({"theta": 2.0}), r"centring\['theta'\] must lie between 0 and 1"),
    "centring shape": (centring({"theta": np.ones(3)}), r"centring\['theta'\] must have a shape"),
    # kernels and methods
    "pmcsa n": (lambda: sa.pmcsa(0), "n must be an integer ≥ 1, got 0"),
    "jsa n": (lambda: sa.jsa(-1), "n must be an integer ≥ 1, got -1"),
    "elbo n": (lambda: sa.elbo(0), "n must be an integer ≥ 1, got 0"),
    "msc n": (lambda: sa.msc(1), "n must be an integer ≥ 2 .* got 1"),
    "msc_rb n": (lambda: sa.msc_rb(1), "n must be an integer ≥ 2 .* got 1"),
    "CIS n": (lambda: sa.CIS(1), "n must be an integer ≥ 2 .* got 1"),
    "n float": (lambda: sa.pmcsa(2.5), "n must be an integer ≥ 1, got 2.5"),
    "n bool": (lambda: sa.elbo(True), "n must be an integer ≥ 1, got True"),
    "kernel class": (lambda: sa.pmcsa(2, kernel=sa.IMH), "kernel must be a kernel such as IMH"),
    "kernel string": (lambda: sa.jsa(2, kernel="imh"), "kernel must be a kernel such as IMH"),
    "IMH of what": (lambda: sa.IMH(0.9), "defensive must be a Defensive or None, got 0.9"),
    "CIS of what": (lambda: sa.CIS(3, 0.9), "defensive must be a Defensive or None, got 0.9"),
    "Select of what": (lambda: sa.Select(sa.IMH()), "moves must have init and step"),
    "ScoreAscent of what": (lambda: sa.ScoreAscent(sa.IMH()), "moves must"),
    "alpha 1": (lambda: sa.Defensive(alpha=1.0), "alpha .* got 1.0"),
    "alpha 0": (lambda: sa.Defensive(alpha=0.0), "alpha .* got 0.0"),
    "tail": (lambda: sa.Defensive(tail="gauss"), "tail must be .* got 'gauss'"),
    "df": (lambda: sa.Defensive(df=0.0), "df and scale must be positive"),
    "scale": (lambda: sa.Defensive(scale=-1.0), "df and scale must be positive"),
    "gamma": (lambda: sa.schedules.duchi(0.0), "gamma must be positive"),
    "gamma < 0": (lambda: sa.schedules.doan(-1.0), "gamma must be positive"),
    "smoothness": (lambda: sa.schedules.doan_nesterov(0.0), "smoothness must be positive"),
    # fit
    "no target": (fitted(target=gaussian), "target must be a Target or a list"),
    "no targets": (fitted(target=[]), "target"),
    "method class": (fitted(method=sa.PathElbo), "method must be one such as"),
    "method function": (fitted(method=sa.pmcsa), "method must be one such as"),
    "method string": (fitted(method="pmcsa"), "method must be one such as .* got 'pmcsa'"),
    "dim of q0": (fitted(q0=sa.MeanField.standard(3)), "q0 has dim 3 but the target has dim 2"),
    "start": (fitted(start=sa.MeanField.standard(2)), r"start must be one such as tempered"),
    "start and q0": (
        lambda: sa.fit(TARGET, start=sa.laplace(TARGET), q0=sa.MeanField.standard(2)),
        "give start or q0, not both",
    ),
    "q0 number": (fitted(q0=3), "q0 must be a family"),
    "q0 class": (fitted(q0=sa.MeanField), r"q0 must be a member of a family, such as Mean"),
    "q0 gives none": (fitted(q0=lambda key: 3.0), "q0"),
    "optimizer tuple": (fitted(optimizer=("adam", 0.01)), r"optimizer must be an optax .*\('adam'"),
    "optimizer string": (fitted(optimizer="adam"), "optimizer must be an optax .* got 'adam'"),
    "optimizer uncalled": (fitted(optimizer=optax.adam), "optimizer must be an optax"),
    "optimizer number": (fitted(optimizer=0.01), "optimizer must be an optax .* got 0.01"),
    "steps < 0": (fitted(steps=-1), "steps must be an integer ≥ 0, got -1"),
    "steps 0": (lambda: sa.fit(TARGET, steps=0, progress=False), "steps is 0, but fit.target."),
    "steps float": (fitted(steps=1e4), "steps must be an integer ≥ 0, got 10000.0"),
    "steps text": (fitted(steps="many"), "steps must be an integer"),
    "tolerance 0": (fitted(tolerance=0), "tolerance must be a number from 0.005 to 1"),
    "tolerance NaN": (fitted(tolerance=float("nan")), "tolerance must be a number .* got nan"),
    "tolerance string": (fitted(tolerance="low"), "tolerance must be a number .* got 'low'"),
    "average 1": (fitted(average=1.0), r"average must be a bool or a fraction in \[0, 1\), got 1"),
    "average < 0": (fitted(average=-0.1), "average must be a bool"),
    "average NaN": (fitted(average=float("nan")), "average must be a bool"),
    "average string": (fitted(average="half"), "average must be a bool .* got 'half'"),
    "average None": (fitted(average=None), "average must be a bool"),
    "key string": (fitted(key="0"), "key must be an integer seed or one jax.random.key"),
    "key float": (fitted(key=1.5), "key must be .* got 1.5"),
    "key bool": (fitted(key=True), "key must be .* got True"),
    "key None": (fitted(key=None), "key must be .* got None"),
    "keys": (fitted(key=KEYS), "key must be"),
    "key of ints": (fitted(key=np.zeros(2, np.int32)), "key must be"),
    "key of three": (fitted(key=np.zeros(3, np.uint32)), "key must be"),
    "key too large": (fitted(key=2**70), "key"),
    "replications 0": (fitted(replications=0), "replications must be an integer ≥ 1, got 0"),
    "replications float": (fitted(replications=2.0), "replications .* got 2.0"),
    "replications bool": (fitted(replications=True), "replications .* got True"),
    "replications differ": (
        fitted(target=[TARGET, TARGET], replications=3),
        "replications is 3 but 2 targets",
    ),
    "load what": (lambda: sa.load("/no/such/fit.npz"), "path: '/no/such/fit.npz' does not exist"),
    "load a folder": (lambda: sa.load("/"), "path: '/' is a folder; name a file that result.save"),
    "save where": (
        lambda: fitted(method=sa.pmcsa(2))().save("/no/such/fit.npz"),
        "path: the folder '/no/such' does not exist",
    ),
    "save how many": (
        lambda: fitted(method=sa.pmcsa(2))().save("fit.npz", draws=-1),
        "draws must be an integer ≥ 0, got -1",
    ),
    "no folder": (fitted(checkpoint="/no/such/folder/run"), "checkpoint: the folder '/no/such"),
    "a folder": (fitted(checkpoint="/"), "checkpoint: '/' is a folder"),
    "state of nothing": (fitted(state="state", method=sa.pmcsa()), "state does not fit this run"),
    "state without a method": (fitted(state="state"), "with state give a method"),
    "replications without a method": (fitted(replications=2), "replications give a method"),
    "method of another name": (fitted(method="pmcsa"), "method must be one such as pmcsa"),
    # calibration
    "calibrate nothing": (calibrated(3), "model must be a NumPyro or PyMC model, or a Target"),
    "calibrate a density": (calibrated(WITH_DATA), "knows neither its prior nor how its data"),
    "calibrate without data": (
        calibrated(TARGET, simulator=lambda key: ({}, None)), "knows neither its prior",
    ),
    "calibrate what observes nothing": (calibrated(one_scale), "model observes nothing"),
    "calibrate 0 times": (calibrated(simulations=0), "simulations must be an integer ≥ 1, got 0"),
    "calibrate by 3 draws": (calibrated(draws=3), "draws must be an integer ≥ 10, got 3"),
    "calibrate at level 95": (calibrated(level=95.0), "level must be a number between 0 and 1"),
    "calibrate with a key": (
        calibrated(observed, np.zeros(3, np.float32), options={"key": 1}),
        r"options\['key'\] is for calibrate to set",
    ),
    "a simulator of other names": (
        calibrated(observed, np.zeros(3, np.float32), simulator=lambda y: numpyro.sample(
            "y", dist.Normal(numpyro.sample("n", dist.Normal(0, 1)), 1), obs=y)),
        r"simulator gives \['n'\], and the model has \['m'\]: no name is in both",
    ),
    "a simulator of other data": (
        calibrated(WITH_DATA, simulator=lambda key: ({"z": np.zeros(1)}, np.zeros(4, np.float32))),
        r"data like the target's, float32\[3\], got float32\[4\]",
    ),
    "a simulator of nothing": (
        calibrated(WITH_DATA, simulator=lambda key: 3), "simulator must return .parameters by name",
    ),
    "calibrate into no folder": (
        calibrated(observed, np.zeros(3, np.float32), checkpoint="/nowhere/ranks.npz"),
        "the folder '/nowhere' does not exist",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "says"), REFUSED.values(), ids=REFUSED)
def test_refused_with_the_name_of_the_argument(call: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()


def test_unknown_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match="stepz"):
        sa.fit(TARGET, stepz=3)
    with pytest.raises(TypeError, match="dims"):
        sa.Target(gaussian, dims=3)
    with pytest.raises(TypeError, match="chains"):
        sa.pmcsa(chains=3)
    with pytest.raises(TypeError, match="positional"):
        sa.fit(TARGET, sa.pmcsa(2), sa.MeanField.standard(2))


def test_q0_of_fewer_dimensions_than_the_density_uses() -> None:
    with pytest.raises((TypeError, ValueError)):
        sa.Target(lambda z: z @ jnp.ones(3), dim=2)


# -- states and checkpoints of other runs --------------------------------------------------------


@pytest.fixture(scope="module")
def done() -> sa.Result:
    return helpers.fit("pmcsa", steps=5)


@pytest.mark.parametrize(
    "change",
    [
        {"method": sa.jsa(5)},
        {"method": METHODS["elbo"]},
        {"optimizer": optax.sgd(0.1)},
        {"average": True},
        {"replications": 2},
        {"target": sa.Target(gaussian, dim=3)},
    ],
    ids=["moves", "method", "optimizer", "average", "replications", "target"],
)
def test_state_of_another_run(done: sa.Result, change: Any) -> None:
    options = {
        "target": helpers.TARGET,
        "method": METHODS["pmcsa"],
        "optimizer": helpers.OPTIMIZER,
        "state": done.state,
    }
    with pytest.raises(ValueError, match="state does not fit this run"):
        fitted(**options | change)()


def test_state_beyond_the_end(done: sa.Result) -> None:
    with pytest.raises(ValueError, match="steps is 3, but this run has already done 5"):
        helpers.fit("pmcsa", steps=3, state=done.state)


def test_state_and_checkpoint(done: sa.Result, tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="state or checkpoint, not both"):
        helpers.fit("pmcsa", state=done.state, checkpoint=tmp_path / "run")


def test_checkpoint_beyond_the_end(tmp_path: Any) -> None:
    path = tmp_path / "run"
    helpers.fit("pmcsa", steps=5, checkpoint=path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="steps is 3, but this run has already done 5"):
        helpers.fit("pmcsa", steps=3, checkpoint=path)
    assert path.read_bytes() == before


def test_no_steps_give_q0_back() -> None:
    q0 = sa.MeanField.from_moments([1.0, 2.0], [0.5, 3.0])
    result = helpers.fit("pmcsa", q0=q0, steps=0)
    assert result.status == "max_steps"
    np.testing.assert_array_equal(result.q.loc, q0.loc)
    np.testing.assert_array_equal(result.q.omega, q0.omega)
    assert result.trace.loss.shape == (0,)
    assert result.warnings() == ["no iteration was run"]
    assert "max_steps after 0 steps" in str(result)


def test_no_steps_of_replications_and_numpy_numbers(tmp_path: Any) -> None:
    result = helpers.fit(
        "pmcsa",
        steps=np.int64(0),
        key=np.int32(1),
        replications=np.int64(3),
        checkpoint=tmp_path / "run",
    )
    assert len(result) == 3
    assert result.status == ("max_steps",) * 3
    assert result.trace.loss.shape == (3, 0)


# -- densities that are not finite ---------------------------------------------------------------

NEVER = {"nan_below": -1e9, "inf_above": 1e9, "zero_below": -1e9, "trap": -1e9}


def holes(z: Any, at: Any) -> Any:
    """N(1, I) with places where it is NaN, +∞ or −∞, or finite with a gradient that is NaN."""
    log_p = -0.5 * jnp.sum((z - 1) ** 2)
    log_p = jnp.where(z[0] < at["zero_below"], -jnp.inf, log_p)
    log_p = jnp.where(z[0] < at["nan_below"], jnp.nan, log_p)
    log_p = jnp.where(z[0] > at["inf_above"], jnp.inf, log_p)
    return log_p + jnp.where(z[0] > at["trap"], 0 * jnp.sqrt(z[0] - at["trap"]), 0.0)


def with_holes(**at: float) -> sa.Target:
    return sa.Target(holes, dim=2, data=NEVER | at)


OPTIMIZER = optax.adam(0.02)


def fit_holes(name: str, steps: int = 6000, **at: Any) -> sa.Result:
    options = {k: at.pop(k) for k in ("key", "throw") if k in at}
    return sa.fit(
        with_holes(**at), METHODS[name], optimizer=OPTIMIZER, steps=steps, average=True,
        progress=False, **options
    )  # fmt: skip


def assert_truncated(result: sa.Result, low: float, high: float) -> None:
    """The means and standard deviations of N(1, I) with its first coordinate in [low, high]."""
    cut = scipy.stats.truncnorm(low - 1, high - 1, loc=1)
    np.testing.assert_allclose(result.q.mean, [cut.mean(), 1.0], atol=0.15)
    np.testing.assert_allclose(result.q.sd, [cut.std(), 1.0], atol=0.15)


score_ascent = pytest.mark.parametrize("name", [n for n in METHODS if n != "elbo"])
each_method = pytest.mark.parametrize("name", METHODS)


@score_ascent
@pytest.mark.parametrize("hole", ["nan_below", "inf_above"])
def test_nan_in_places_is_counted_and_impossible(name: str, hole: str) -> None:
    with pytest.warns(RuntimeWarning, match=r"NaN or \+∞ at \d+ proposals"):
        result = fit_holes(name, **{hole: 0.5})
    low, high = (0.5, np.inf) if hole == "nan_below" else (-np.inf, 0.5)
    assert_truncated(result, low, high)
    assert result.status == "max_steps"
    count = int(np.sum(result.trace.invalid))
    assert count > 100
    assert any(f"at {count} proposals" in line for line in result.warnings())
    assert f"at {count} proposals" in str(result).replace("\n", " ")
    assert not np.any(result.trace.skipped)


@score_ascent
def test_minus_infinity_is_a_legal_value(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        result = fit_holes(name, zero_below=0.5)
    assert_truncated(result, 0.5, np.inf)
    assert not np.any(result.trace.invalid)
    assert not np.any(result.trace.skipped)
    assert np.all(np.isfinite(result.trace.loss))


@each_method
def test_first_points_are_drawn_again(name: str) -> None:
    """q0 = N(0, I) has mass 2 % where the density is positive."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = fit_holes(name, steps=3, zero_below=2.0, throw=False)
    if name != "elbo":
        used = np.asarray(result.state.eta.weight) > 0
        assert np.all(np.isfinite(np.asarray(result.state.eta.log_p)[used]))
        assert np.all(np.asarray(result.state.eta.z)[used, 0] >= 2.0)
        assert np.all(np.isfinite(result.trace.loss))


@each_method
@pytest.mark.parametrize(
    ("hole", "says"), [("nan_below", "100% are NaN"), ("zero_below", "100% are −∞")]
)
def test_a_density_that_is_finite_nowhere(name: str, hole: str, says: str) -> None:
    with pytest.raises(ValueError, match=rf"log density is not finite at any draw of q0.*{says}"):
        fit_holes(name, **{hole: 1e8})


def test_infinite_everywhere() -> None:
    with pytest.raises(ValueError, match="log density is not finite"):
        fit_holes("pmcsa", inf_above=-1e8)


@pytest.mark.parametrize("hole", ["nan_below", "trap"])
def test_updates_that_are_not_finite_are_skipped(hole: str) -> None:
    """The ELBO differentiates the density: where value or gradient is NaN, q stays."""
    with pytest.warns(RuntimeWarning, match="updates were skipped"):
        result = fit_holes("elbo", **{hole: -0.5})
    skipped = int(np.sum(result.trace.skipped))
    assert 0 < skipped < 6000
    assert any(line.startswith(f"{skipped} of 6000 updates") for line in result.warnings())
    assert np.all(np.isfinite(np.asarray(result.q.mean)))
    assert result.status == "max_steps"
    np.testing.assert_allclose(result.q.mean[1], 1.0, atol=0.15)


def test_a_gradient_that_is_always_nan() -> None:
    with pytest.raises(sa.DivergenceError, match=r"diverged: .* smaller step size") as caught:
        fit_holes("elbo", trap=1e8)
    result = caught.value.result
    assert result.status == "diverged"
    assert np.all(result.trace.skipped == 1)
    assert 100 <= int(result.state.step) < 6000  # it does not go on to the end
    np.testing.assert_array_equal(result.q.mean, [0.0, 0.0])
    with pytest.warns(RuntimeWarning, match="diverged"):
        again = fit_holes("elbo", trap=1e8, throw=False)
    assert again.status == "diverged"
    assert "diverged after" in str(again)


def test_a_short_run_diverges_too() -> None:
    with pytest.raises(sa.DivergenceError, match="diverged"):
        fit_holes("elbo", steps=5, trap=1e8)


def test_diverged_replications_tell_and_do_not_raise() -> None:
    targets = [with_holes(), with_holes(trap=1e8)]
    with pytest.warns(RuntimeWarning, match="diverged"):
        result = sa.fit(targets, METHODS["elbo"], optimizer=OPTIMIZER, steps=300, progress=False)
    assert result.status == ("max_steps", "diverged")
    assert result[0].warnings() == []
    assert result[1].status == "diverged"
    assert "1 max_steps, 1 diverged" in str(result)


def test_a_diverged_run_is_still_diverged_when_its_file_is_read(tmp_path: Any) -> None:
    options = {"optimizer": OPTIMIZER, "progress": False, "checkpoint": tmp_path / "run"}
    run = functools.partial(
        sa.fit, with_holes(trap=1e8), METHODS["elbo"], steps=50, average=True, **options
    )
    for _ in range(2):
        with pytest.raises(sa.DivergenceError, match="diverged"):
            run()


# -- numbers that do not fit ---------------------------------------------------------------------


def scaled(z: Any, data: Any) -> Any:
    return -jnp.sum(z**2) * sum(jnp.sum(x) for x in jax.tree.leaves(data))


@pytest.mark.parametrize("data", [np.ones(3), {"x": np.ones((2, 2)), "y": np.ones(3, np.float32)}])
def test_float64_arrays_are_narrowed_aloud(data: Any) -> None:
    with pytest.warns(UserWarning, match=re.escape('jax.config.update("jax_enable_x64", True)')):
        target = sa.Target(scaled, dim=1, data=data)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(target.data))


@pytest.mark.parametrize("make", [sa.MeanField, sa.MeanField.from_moments], ids=["init", "moments"])
def test_float64_families_are_narrowed_aloud(make: Any) -> None:
    with pytest.warns(UserWarning, match=re.escape('jax.config.update("jax_enable_x64", True)')):
        q = make(np.zeros(2), np.ones(2))
    assert q.loc.dtype == q.omega.dtype == jnp.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(np.zeros(2, np.float32), np.ones(2, np.float32))
        make([0.0, 1], [1.0, 2])
        sa.MeanField.standard(2)
    with x64(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make(np.zeros(2), np.ones(2)).loc.dtype == jnp.float64


@pytest.mark.parametrize("data", [np.ones(3, np.float32), 1.0, [1.0, 2], np.ones(2, bool), None])
def test_data_that_fit_are_taken_in_silence(data: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sa.Target(scaled if data is not None else gaussian, dim=1, data=data)
        with x64():
            sa.Target(scaled, dim=1, data=np.ones(3))


@pytest.mark.parametrize(
    "data",
    [np.array([1.0, 1e300]), np.array([2**40]), 1e300, np.float64(-1e300), 2**40, [1.0, 1e300]],
    ids=["array", "integers", "float", "numpy float", "integer", "list"],
)
def test_data_that_overflow_are_refused(data: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"data holds .* do not fit .*jax_enable_x64"):
            sa.Target(scaled, dim=1, data=data)
