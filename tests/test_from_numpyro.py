"""NumPyro models as targets: against NumPyro's potential energy and densities written by hand."""

from __future__ import annotations

import functools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from jax.scipy import stats
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import constraints
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import potential_energy

import scoreascent as sa
from scoreascent.adapters import from_numpyro
from tests.helpers import stack, x64
from tests.models import (
    CASES,
    EFFECTS,
    ERRORS,
    HEADS,
    ROWS,
    TRIALS,
    X,
    Y,
    coins,
    covariance,
    line,
    narrow,
    schools,
)

each_case = pytest.mark.parametrize("name", CASES)


def points(target: sa.Target, n: int = 4) -> Any:
    return jnp.asarray(np.random.default_rng(5).normal(size=(n, target.dim)))


def split(target: sa.Target, z: Any) -> dict[str, Any]:
    return target.log_density._split(z)  # type: ignore[attr-defined]


@each_case
def test_density_against_numpyro_and_by_hand(name: str) -> None:
    with x64():
        case = CASES[name]
        target = from_numpyro(case.model, *case.args, **case.kwargs)
        by_hand = sa.Target(case.by_hand, params=case.params, data=case.data)
        assert set(target.site_names) == set(by_hand.site_names)

        @jax.jit
        @jax.vmap
        def check(z: Any) -> Any:
            free = split(target, z)
            energy = potential_energy(case.model, case.args, case.kwargs, free)
            in_order = jnp.concatenate([jnp.ravel(free[k]) for k in by_hand.site_names])
            ours, gradient = jax.value_and_grad(target.log_prob)(z)
            named = [target.constrain(z)[k] for k in by_hand.site_names]
            theirs = list(by_hand.named(in_order).values())
            return ours, -energy, by_hand.log_prob(in_order), gradient, named, theirs

        ours, numpyros, hands, gradient, named, theirs = check(points(target))
        np.testing.assert_allclose(ours, numpyros, rtol=1e-12)
        np.testing.assert_allclose(ours, hands, rtol=1e-8, atol=1e-8)
        assert np.all(np.isfinite(gradient))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), named, theirs)


@each_case
def test_float32(name: str) -> None:
    case = CASES[name]
    with x64():
        wide = from_numpyro(case.model, *case.args, **case.kwargs)
        z = points(wide)
        expected = np.asarray(jax.jit(jax.vmap(wide.log_prob))(z))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = from_numpyro(case.model, *narrow(case.args), **narrow(case.kwargs))
    ours = jax.jit(jax.vmap(target.log_prob))(np.asarray(z, np.float32))
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(ours, expected, rtol=1e-4)


def test_order_shapes_and_names() -> None:
    target = from_numpyro(schools, 8, narrow(ERRORS), y=narrow(EFFECTS))
    assert target.site_names == ("tau", "mu", "raw")
    assert target.dim == 10
    z = jnp.arange(10.0) / 10
    values = target.constrain(z)
    np.testing.assert_allclose(values["tau"], jnp.exp(z[0]), rtol=1e-6)
    assert values["mu"] == z[1]
    np.testing.assert_array_equal(values["raw"], z[2:])
    np.testing.assert_allclose(values["theta"], z[1] + values["tau"] * z[2:], rtol=1e-6)
    assert repr(target) == ("Target(NumPyroModel(schools(8, …, y=…), params=['tau', 'mu', 'raw']))")
    model = target.log_density
    assert isinstance(model, sa.target.Model)
    assert model.dims == {"raw": ("school",), "theta": ("school",), "y": ("school",)}
    assert model.coords == {}


# -- supports --------------------------------------------------------------------------------------


def improper(support: Any, *shape: int) -> Any:
    return dist.ImproperUniform(support, (), shape)


SUPPORTS: dict[str, Callable[[], Any]] = {
    "simplex": lambda: dist.Dirichlet(jnp.array([2.0, 3.0, 4.0])),
    "simplexes": lambda: dist.Dirichlet(jnp.ones((2, 3))),
    "ordered": lambda: improper(constraints.ordered_vector, 3),
    "positive-ordered": lambda: improper(constraints.positive_ordered_vector, 3),
    "positive-definite": lambda: improper(constraints.positive_definite, 3, 3),
    "corr-matrix": lambda: dist.LKJ(3, 2.0),
    "lower-cholesky": lambda: improper(constraints.lower_cholesky, 2, 2),
    "interval": lambda: dist.Uniform(-1.0, jnp.array([2.0, 3.0])),
    "half-open": lambda: dist.Pareto(2.0, 3.0),
    "less-than": lambda: dist.TruncatedNormal(0.5, 1.0, high=2.0),
    "circular": lambda: dist.VonMises(0.5, 2.0),
    "real-line": lambda: improper(constraints.real, 2, 2),
    "zero-sum": lambda: dist.ZeroSumNormal(1.0, (4,)),
}


@pytest.mark.parametrize("name", SUPPORTS)
def test_supports_round_trip(name: str) -> None:
    with x64():
        model = lambda: numpyro.sample("x", SUPPORTS[name]())  # noqa: E731
        target = from_numpyro(model)

        @jax.jit
        @jax.vmap
        def check(z: Any) -> Any:
            value = target.constrain(z)
            inside = jnp.all(SUPPORTS[name]().support(value["x"]))
            energy = potential_energy(model, (), {}, split(target, z))
            return inside, target.unconstrain(value), target.log_prob(z), -energy

        z = points(target)
        inside, back, ours, numpyros = check(z)
        assert np.all(inside)
        np.testing.assert_allclose(back, z, rtol=1e-8, atol=1e-8)
        np.testing.assert_array_equal(ours, numpyros)


def nested_bounds() -> None:
    y = numpyro.sample("y", dist.Gamma(3.0, 1.0))
    numpyro.sample("x", dist.Uniform(0.0, y))


def test_support_that_depends_on_another_value() -> None:
    with x64():
        target = from_numpyro(nested_bounds)
        z = jnp.array([0.7, -0.4])
        y, share = np.exp(0.7), 1 / (1 + np.exp(0.4))

        @jax.jit
        def everything(z: Any) -> Any:
            value = target.constrain(z)
            energy = potential_energy(nested_bounds, (), {}, {"y": z[0], "x": z[1]})
            return value, target.unconstrain(value), target.log_prob(z), -energy

        value, back, ours, numpyros = everything(z)
        np.testing.assert_allclose([value["y"], value["x"]], [y, share * y])
        np.testing.assert_allclose(back, z)
        # p(y) y · (1 / y) · y share (1 − share)
        expected = scipy.stats.gamma.logpdf(y, 3.0) + np.log(y) + np.log(share * (1 - share))
        np.testing.assert_allclose(ours, expected, rtol=1e-12)
        np.testing.assert_allclose(ours, numpyros, rtol=1e-12)


# -- what a model may be made of -------------------------------------------------------------------


def motley(y: Any, mask: Any) -> None:
    """Nested plates, masks, scales, scopes, factors, a reparameterised site and a missing one."""
    with handlers.scope(prefix="top"):
        loc = numpyro.sample("loc", dist.Normal(0.0, 2.0))
    with handlers.reparam(config={"theta": LocScaleReparam(0.0)}), numpyro.plate("group", 4):
        theta = numpyro.sample("theta", dist.Normal(loc, 3.0))
        numpyro.factor("pull", -(theta**2))
    outer = numpyro.plate("outer", 3, dim=-2)
    with outer, numpyro.plate("inner", 4, dim=-1):
        w = numpyro.sample("w", dist.Dirichlet(jnp.ones(2)))
        with handlers.mask(mask=mask), handlers.scale(scale=0.5):
            numpyro.sample("y", dist.Normal(theta + w[..., 0], 1.0), obs=y)
        numpyro.deterministic("wide", w[..., None] * jnp.ones(3))
    with outer:
        numpyro.sample("missing", dist.Normal(loc, 1.0), obs=None)


def test_handlers_plates_factors_and_missing_values() -> None:
    with x64():
        rng = np.random.default_rng(4)
        y, mask = rng.normal(size=(3, 4)), rng.random((3, 4)) < 0.5
        target = from_numpyro(motley, y, mask=mask, centring="as written")
        assert target.site_names == ("top/loc", "theta_decentered", "w", "missing")
        assert target.dim == 1 + 4 + 12 + 3
        z = points(target, 1)[0]
        model: Any = target.log_density

        @jax.jit
        def everything(z: Any) -> Any:
            value = target.constrain(z)
            energy = potential_energy(motley, (y, mask), {}, split(target, z))
            terms = model.log_likelihood(z, target.data)
            return target.log_prob(z), -energy, value, target.unconstrain(value), terms

        ours, numpyros, value, back, terms = everything(z)
        np.testing.assert_allclose(ours, numpyros, rtol=1e-13)
        assert set(value) == {*target.site_names, "theta", "wide"}
        np.testing.assert_allclose(back, z, rtol=1e-10)
        assert model.dims == {
            "theta_decentered": ("group",), "theta": ("group",), "w": ("outer", "inner"),
            "y": ("outer", "inner"), "missing": ("outer",),
        }  # fmt: skip
        assert set(terms) == {"y"}  # no factor
        expected = scipy.stats.norm.logpdf(y, value["theta"] + value["w"][..., 0])
        np.testing.assert_allclose(terms["y"], np.where(mask, expected, 0.0))
        assert set(model.observed(target.data)) == {"y"}
        new = jax.eval_shape(model.predict, jax.random.key(0), z, target.data)
        assert new["y"].shape == (3, 4)


def walk(y: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))

    def step(x: Any, y: Any) -> Any:
        x = numpyro.sample("x", dist.Normal(x, scale))
        width = numpyro.sample("width", dist.Uniform(0.0, scale))
        numpyro.sample("y", dist.Normal(x, width), obs=y)
        return x, None

    scan(step, 0.0, y)


def test_scan() -> None:
    with x64():
        target = from_numpyro(walk, Y[:4])
        assert target.dim == 1 + 4 + 4
        z = points(target, 1)[0]
        model: Any = target.log_density
        assert isinstance(model, sa.target.Model)

        @jax.jit
        def everything(z: Any) -> Any:
            value = target.constrain(z)
            energy = potential_energy(walk, (Y[:4],), {}, split(target, z))
            terms = model.log_likelihood(z, target.data)["y"]
            return target.log_prob(z), -energy, value, target.unconstrain(value), terms

        ours, numpyros, value, back, terms = everything(z)
        np.testing.assert_allclose(ours, numpyros, rtol=1e-13)
        np.testing.assert_allclose(back, z, rtol=1e-10)
        expected = scipy.stats.norm.logpdf(Y[:4], value["x"], value["width"])
        np.testing.assert_allclose(terms, expected, rtol=1e-10)
        new = jax.eval_shape(model.predict, jax.random.key(0), z, target.data)
        assert new["y"].shape == (4,)


def test_arguments_may_be_nested_and_settings_are_static() -> None:
    def model(data: Any, names: Any, flag: bool, rate: float, nothing: None = None) -> None:
        assert nothing is None
        assert type(flag) is bool
        assert type(rate) in (int, float)
        for name in names:
            x = numpyro.sample(name, dist.Exponential(rate))
            if flag:
                numpyro.sample(f"y_{name}", dist.Normal(x, 1.0), obs=data[name][0])

    data = {"b": [jnp.ones(2)], "a": [jnp.zeros(2)]}
    target = from_numpyro(model, data, names=("b", "a"), flag=True, rate=2)
    assert target.site_names == ("b", "a")
    assert [x.shape for x in target.data] == [(2,), (2,)]
    same = from_numpyro(model, jax.tree.map(jnp.cos, data), names=("b", "a"), flag=True, rate=2)
    other = from_numpyro(model, data, names=("b", "a"), flag=True, rate=2.0)
    assert hash(target.log_density) == hash(same.log_density)
    assert target.log_density == same.log_density
    assert target.log_density != other.log_density
    stack([target, same])
    with pytest.raises(ValueError, match="targets must share one log_density"):
        stack([target, other])


def test_a_model_with_sizes_as_numpy_scalars_and_without_arrays() -> None:
    def model(n: Any) -> None:
        with numpyro.plate("n", n):
            numpyro.sample("x", dist.Normal(0.0, 1.0))

    target = from_numpyro(model, np.int64(3))
    assert target.dim == 3
    assert target.data == ()
    observed: Any = target.log_density
    assert observed.observed(()) == observed.predict(jax.random.key(0), jnp.zeros(3), ()) == {}


def test_the_model_pickles() -> None:
    target = from_numpyro(schools, 8, narrow(ERRORS), y=narrow(EFFECTS))
    assert pickle.loads(pickle.dumps(target.log_density)) == target.log_density


# -- fits ------------------------------------------------------------------------------------------


def test_fit_sample_and_print() -> None:
    target = from_numpyro(schools, 8, narrow(ERRORS), y=narrow(EFFECTS))
    result = sa.fit(target, sa.pmcsa(10), steps=200, progress=False)
    draws = result.sample(1, 50)
    assert {k: v.shape for k, v in draws.items()} == {
        "tau": (50,), "mu": (50,), "raw": (50, 8), "theta": (50, 8)
    }  # fmt: skip
    together = draws["mu"][:, None] + draws["tau"][:, None] * draws["raw"]
    np.testing.assert_allclose(draws["theta"], together, rtol=1e-4, atol=1e-5)
    assert "theta[7]" in str(result)
    assert result.provenance["target"] == repr(target)


def test_other_data_do_not_retrace() -> None:
    calls = 0

    def counted(x: Any, y: Any) -> None:
        nonlocal calls
        calls += 1
        line(x, y)

    def fit(shift: float, n: int = 12) -> Any:
        nonlocal calls
        target = from_numpyro(counted, narrow(X)[:n], narrow(Y)[:n] + shift)
        calls = 0
        result = sa.fit(target, sa.pmcsa(5), steps=100, progress=False)
        result.sample(0, 10)
        return result

    first = fit(0.0)
    assert calls > 0
    second = fit(1.0)
    assert calls == 0
    assert not np.array_equal(first.q.mean, second.q.mean)
    fit(0.0, n=11)
    assert calls > 0, "the mutant: other shapes must trace"


def test_list_of_targets() -> None:
    targets = [from_numpyro(line, narrow(X), narrow(Y) + shift) for shift in (0.0, 30.0)]
    result = sa.fit(targets, sa.pmcsa(5), steps=300, progress=False)
    draws = result.sample(0, 20)
    assert draws["beta"].shape == (2, 20, 2)
    assert np.mean(draws["sigma"][1]) > 2 * np.mean(draws["sigma"][0])  # each saw its own data
    assert result[1].sample(0, 20)["sigma"].shape == (20,)
    z = jnp.zeros(3)
    together = jax.vmap(lambda t: t.log_prob(z))(stack(targets))
    np.testing.assert_allclose(together, [t.log_prob(z) for t in targets], rtol=1e-5)


def test_initial_values_are_draws_of_the_prior() -> None:
    def model(y: Any) -> None:
        scale = numpyro.sample("scale", dist.LogNormal(3.0, 0.5))
        with numpyro.plate("rows", 2):
            x = numpyro.sample("x", dist.Normal(10 * scale, 1.0))
        flat = numpyro.sample("flat", dist.ImproperUniform(constraints.positive, (), ()))
        numpyro.sample("y", dist.Normal(x.sum(), flat), obs=y)

    target = sa.from_numpyro(model, jnp.array(1.0))
    keys = jax.random.split(jax.random.key(0), 200)
    z = np.stack([target.log_density.initial(key, target.data) for key in keys])
    assert z.shape == (200, 4)
    np.testing.assert_allclose(z[:, 0].mean(), 3.0, atol=4 * 0.5 / np.sqrt(200))
    np.testing.assert_allclose(z[:, 0].std(), 0.5, rtol=0.25)
    away = z[:, 1:3] - 10 * np.exp(z[:, :1])
    np.testing.assert_allclose(away.std(), 1.0, rtol=0.25)
    assert np.all(np.abs(z[:, 3]) <= 2)  # it has no draws: NumPyro's box


# -- observations ----------------------------------------------------------------------------------


def predictive_scores(predict: Callable[[Any, Any], Any], n: int = 20_000) -> Any:
    """Z-scores of the first two moments of heads at a given p, coin by coin."""
    p = np.array([0.2, 0.5, 0.9])
    z = jnp.log(p / (1 - p)).astype(jnp.float32)
    draw = jax.jit(jax.vmap(lambda k: predict(k, z)))
    draws = np.asarray(draw(jax.random.split(jax.random.key(2), n)))
    mean, var = TRIALS * p, TRIALS * p * (1 - p)
    fourth = var * (1 + 3 * (TRIALS - 2) * p * (1 - p))
    first = (draws.mean(0) - mean) / np.sqrt(var / n)
    second = (((draws - mean) ** 2).mean(0) - var) / np.sqrt((fourth - var**2) / n)
    return np.abs([first, second])


def test_predictions_have_the_moments_of_the_model() -> None:
    target = from_numpyro(coins, narrow(TRIALS), narrow(HEADS))
    model: Any = target.log_density
    right = predictive_scores(lambda k, z: model.predict(k, z, target.data)["heads"])
    assert np.max(right) < 5

    def from_the_prior(key: Any, z: Any) -> Any:
        sites = handlers.trace(handlers.seed(coins, key)).get_trace(narrow(TRIALS), None)
        return sites["heads"]["value"]

    for mutant in (from_the_prior, lambda key, z: narrow(HEADS)):
        assert np.max(predictive_scores(mutant)) > 20


def test_predictions_are_independent_in_the_shape_of_the_observations() -> None:
    """One distribution for many observations, without a plate: each gets a draw of its own."""

    def model(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        y = numpyro.sample("y", dist.Normal(mu, 0.1), obs=y)
        numpyro.sample("next", dist.Normal(y[0], 1e-3), obs=jnp.float32(100.0))

    target = from_numpyro(model, jnp.full(5, 30.0))
    adapter: Any = target.log_density
    new = adapter.predict(jax.random.key(0), jnp.array([7.0]), target.data)
    assert new["y"].shape == (5,)
    assert len(set(new["y"].tolist())) == 5
    np.testing.assert_allclose(new["y"], 7.0, atol=1.0)
    np.testing.assert_allclose(new["next"], new["y"][0], atol=0.01)  # it sees the new one
    observed = adapter.observed(target.data)
    np.testing.assert_array_equal(observed["y"], jnp.full(5, 30.0))
    assert observed["next"] == 100.0


def test_log_likelihood() -> None:
    with x64():
        target = from_numpyro(covariance, ROWS)
        model: Any = target.log_density

        @jax.jit
        def both(z: Any) -> Any:
            value = target.constrain(z)
            cov = jnp.diag(value["scale"]) @ value["chol"]
            expected = stats.multivariate_normal.logpdf(ROWS, jnp.zeros(3), cov @ cov.T)
            return model.log_likelihood(z, target.data)["rows"], expected

        terms, expected = both(points(target, 1)[0])
        assert terms.shape == (7,)
        np.testing.assert_allclose(terms, expected, rtol=1e-10)
        np.testing.assert_array_equal(model.observed(target.data)["rows"], ROWS)


# -- what is refused -------------------------------------------------------------------------------


def all_observed(y: Any) -> None:
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def discrete() -> None:
    numpyro.sample("k", dist.Poisson(3.0))


def minibatch(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y), subsample_size=2) as i:
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[i])


def with_param() -> None:
    numpyro.sample("x", dist.Normal(numpyro.param("loc", 0.0), 1.0))


def with_key() -> None:
    numpyro.sample("x", dist.Normal(jax.random.normal(numpyro.prng_key()), 1.0))


def sphere() -> None:
    numpyro.sample("x", dist.ProjectedNormal(jnp.ones(3)))


class NoSupport(dist.Distribution):  # type: ignore[misc]
    support = None

    def log_prob(self, value: Any) -> Any:
        return jnp.zeros(())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: from_numpyro(3), "model must be a function"),
        (lambda: from_numpyro(lambda: None), "model has no latent site"),
        (lambda: from_numpyro(all_observed, jnp.ones(2)), "no latent"),
        (lambda: from_numpyro(discrete), r"site 'k' .*is discrete and not observed; marginalise"),
        (lambda: from_numpyro(minibatch, jnp.ones(4)), "plate 'rows' subsamples 2 of 4.*minib"),
        (lambda: from_numpyro(with_param), r"numpyro.param\('loc'\)"),
        (lambda: from_numpyro(with_key), "numpyro.prng_key"),
        (lambda: from_numpyro(sphere), "site 'x' .*has no transform"),
        (lambda: from_numpyro(lambda: numpyro.sample("x", NoSupport())), "site 'x' .*no support"),
        (lambda: from_numpyro(line, np.array(["a"]), Y), r"args\[0\] must be a numeric array"),
        (lambda: from_numpyro(line, X, y=jax.random.key(0)), r"kwargs\['y'\] must be a numeric"),
        (lambda: from_numpyro(line, X, Y, rate={1, 2}), r"kwargs\['rate'\] is a set"),
    ],
    ids=["callable", "empty", "observed", "discrete", "minibatch", "param", "key",
         "sphere", "support", "strings", "prng", "set"],
)  # fmt: skip
def test_refuses(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()


def test_unconstrain_refuses() -> None:
    target = from_numpyro(line, narrow(X), narrow(Y))
    for values, says in [
        ({"beta": jnp.zeros(2)}, r"values must be a dictionary of \('sigma', 'beta'\), got \['be"),
        (jnp.zeros(3), "values must be a dictionary"),
        ({"beta": jnp.zeros(3), "sigma": 1.0}, r"values\['beta'\] must have shape \(2,\)"),
    ]:
        with pytest.raises(ValueError, match=says):
            target.unconstrain(values)
    z = target.unconstrain({"beta": [1, 2], "sigma": 1, "else": 3})
    np.testing.assert_array_equal(z, [0.0, 1.0, 2.0])


def branches() -> None:
    if numpyro.sample("x", dist.Normal(0.0, 1.0)) > 0:
        numpyro.sample("y", dist.Normal(0.0, 1.0))


def compared(y: Any) -> None:
    """It looks by a function of jax's, which gives no values while a model is compiled."""
    if jnp.sum(y) > 0:
        numpyro.sample("y", dist.Normal(numpyro.sample("x", dist.Normal())), obs=y)


def growing() -> Callable[[], None]:
    names = iter("abcdef")
    return lambda: numpyro.sample(next(names), dist.Normal(0.0, 1.0))


@pytest.mark.parametrize(
    ("model", "args", "kind"),
    [
        (branches, (), jax.errors.TracerBoolConversionError),
        (compared, (jnp.ones(3),), jax.errors.TracerBoolConversionError),
        (growing(), (), AssertionError),
    ],
    ids=["branches", "compared", "growing"],
)
def test_errors_of_abstract_values_are_explained(model: Any, args: Any, kind: Any) -> None:
    with pytest.raises(kind) as caught:
        from_numpyro(model, *args)
    assert any("same sites at every call" in note for note in caught.value.__notes__)


def test_the_models_own_errors_pass() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument") as caught:
        from_numpyro(line, X)
    assert not any("from_numpyro" in note for note in getattr(caught.value, "__notes__", []))
    with pytest.raises(ZeroDivisionError):
        from_numpyro(lambda: 1 / 0)


def test_narrowed_data_are_announced_once() -> None:
    with pytest.warns(UserWarning, match="64-bit") as caught:
        from_numpyro(line, X, Y)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_partial_and_a_conditioned_model() -> None:
    with x64():
        given = handlers.condition(functools.partial(line, y=None), data={"y": jnp.asarray(Y)})
        z = jnp.array([0.1, 0.2, 0.3])
        expected = jax.jit(from_numpyro(line, X, Y).log_prob)(z)
        ours = jax.jit(from_numpyro(given, X).log_prob)(z)
        np.testing.assert_allclose(ours, expected, rtol=1e-12)
