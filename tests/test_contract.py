"""What every family, kernel, move and method of the registry owes its user, in one table.

Compiled or not, cut into chunks or not, resumed or not, alone or replicated: the same numbers.
Everything here runs over the registry, so that a new row is held to all of it at once.
"""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import scoreascent as sa
from tests.helpers import (
    OPTIMIZER,
    OTHER,
    STEPS,
    TARGET,
    TARGETS,
    TRACES,
    arrays,
    first_state,
    fit,
    gradient,
    host,
    make_target,
    run_chunk,
    same_bits,
    same_run,
    x64,
)
from tests.registry import FAMILIES, METHODS, MOVES, quick_rows
from tests.stats import Z_MAX, z_score

# methods and moves, each different value once
EVERY: dict[str, Any] = {}
for _name, _method in (METHODS | {k: sa.ScoreAscent(m) for k, m in MOVES.items()}).items():
    if _method not in EVERY.values():
        EVERY[_name] = _method

CONFIGS = [*METHODS.values(), *MOVES.values(), sa.IMH(), sa.Defensive(), sa.Defensive(0.5, df=2.0)]
KERNELS: dict[str, Any] = {
    repr(m.kernel): m.kernel for m in MOVES.values() if isinstance(m, sa.Parallel | sa.Sequential)
}

each_method = pytest.mark.parametrize("name", METHODS)
everything = pytest.mark.parametrize("name", EVERY)
each_family = pytest.mark.parametrize(
    "family", quick_rows(FAMILIES, "mean-field", "full-rank", "low-rank")
)


# -- one iteration -------------------------------------------------------------------------------


def step_and_objective(method: Any, key: Any, target: Any, q: Any, eta: Any) -> Any:
    eta, info = method.step(key, target, q, eta)
    return eta, info, method.objective(target, q, eta)


@pytest.mark.parametrize(  # op by op, jax compiles every op: the moves of no method can wait
    "name", quick_rows(EVERY, *METHODS)
)
def test_jit_equals_eager(name: str) -> None:
    """In float64, so that no rounding can turn an acceptance over."""
    with x64():
        key, target, q = jax.random.key(1), make_target(), sa.MeanField.standard(2)
        eta = jax.jit(EVERY[name].init)(key, target, q)
        eager = step_and_objective(EVERY[name], key, target, q, eta)
        compiled = jax.jit(step_and_objective, static_argnums=0)(EVERY[name], key, target, q, eta)
        for a, b in zip(arrays(eager), arrays(compiled), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
        if name != "elbo":
            weight = eager[0].weight
            assert np.all(weight >= 0)
            np.testing.assert_allclose(np.sum(weight), 1.0, rtol=1e-12)
        if name in ("pmcsa", "jsa", "msc"):
            np.testing.assert_allclose(weight, 1 / len(weight), rtol=1e-12)


@everything
@pytest.mark.parametrize("mode", ["float32", "float64", "float32 under x64"])
def test_dtype_of_q_is_kept(name: str, mode: str) -> None:
    """Of η and of the gradient too, and through an update by ADAM; shapes alone tell."""
    dtype = jnp.dtype(mode.split()[0])

    def whole(key: Any, target: Any, q: Any) -> Any:
        method, update = EVERY[name], gradient(OPTIMIZER)
        eta = method.init(key, target, q)
        moved, _ = method.step(key, target, q, eta)
        g = jax.grad(lambda q: method.objective(target, q, moved))(q)
        new, memory, *_ = update.step(method, target, q, moved, update.init(q))
        return eta, moved, g, new, memory

    def check() -> None:
        q = sa.MeanField.standard(2, dtype=dtype)
        out = jax.eval_shape(whole, jax.random.key(0), make_target(dtype=dtype), q)
        assert float_dtypes(out) == {dtype}

    if mode == "float32":
        check()
    else:
        with x64():
            check()


@each_method
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.filterwarnings("error::FutureWarning")  # jax warns of casts that it will refuse
def test_dtype_is_kept_through_the_loop_under_x64(name: str, dtype: str) -> None:
    with x64():
        q = sa.MeanField.standard(2, dtype=dtype)
        setup = (make_target(dtype=dtype), METHODS[name], gradient(OPTIMIZER), "nothing")
        one = jax.ShapeDtypeStruct((), jnp.int32)
        state = jax.eval_shape(partial(first_state, *setup, True), q, jax.random.key(0), one)
        after, trace, _ = jax.eval_shape(partial(run_chunk, *setup), state, one)
        assert float_dtypes(after) == float_dtypes(trace) == {jnp.dtype(dtype)}


def float_dtypes(tree: Any) -> set[Any]:
    dtypes = {x.dtype for x in jax.tree.leaves(tree)}
    return {d for d in dtypes if jnp.issubdtype(d, jnp.floating)}


# -- the loop ------------------------------------------------------------------------------------

RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "replicated and averaged": {"target": TARGETS, "average": 0.25},
}
each_run = pytest.mark.parametrize("kind", RUNS)


@pytest.fixture(scope="module")
def whole() -> Any:
    """The run in as few chunks as may be, once for each method and kind of run."""
    seen: dict[Any, sa.Result] = {}

    def get(name: str, kind: str = "plain") -> sa.Result:
        if (name, kind) not in seen:
            with pytest.MonkeyPatch.context() as patch:  # a test that asks may have set it to 0
                patch.setattr(host, "CHUNK_SECONDS", 1e9)
                seen[name, kind] = fit(name, **RUNS[kind])
        return seen[name, kind]

    return get


@each_method
def test_never_traced_again(name: str, whole: Any) -> None:
    whole(name)
    before = TRACES[0]
    fit(name, steps=5000)  # more than a chunk can hold
    fit(name, key=jax.random.key(9), steps=3)
    fit(name, OTHER)
    assert TRACES[0] == before


def test_traced_a_few_times_at_first() -> None:
    def log_density(z: Any) -> Any:
        count[0] += 1
        return -0.5 * jnp.sum(z**2)

    count = [0]
    target = sa.Target(log_density, dim=2)
    count[0] = 0
    fit("elbo", target, steps=200)
    assert 2 <= count[0] <= 4  # in the first state and in the loop


@each_method
@each_run
def test_chunks_do_not_change_a_bit(name: str, kind: str, whole: Any, tiny_chunks: None) -> None:
    assert same_run(fit(name, **RUNS[kind]), whole(name, kind))


@each_method
@each_run
def test_progress_does_not_change_a_bit(
    name: str, kind: str, whole: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert same_run(fit(name, progress=True, **RUNS[kind]), whole(name, kind))
    assert capfd.readouterr().out == ""  # it is shown on stderr


@each_method
@pytest.mark.parametrize("cut", [0, 1, 17, STEPS])
def test_resumed_from_a_state(name: str, cut: int, whole: Any) -> None:
    first = fit(name, steps=cut)
    second = fit(name, state=first.state, key=99)  # the state's own key is used
    assert same_bits(second.state, whole(name).state)
    for a, b, c in zip(first.trace, second.trace, whole(name).trace):
        assert np.array_equal(np.concatenate([a, b]), c)


@each_method
def test_resumed_from_a_checkpoint(name: str, whole: Any, tmp_path: Any) -> None:
    path = tmp_path / "run.ckpt"
    fit(name, steps=17, checkpoint=path)
    assert same_run(fit(name, checkpoint=path), whole(name))
    assert same_run(fit(name, checkpoint=path), whole(name))  # nothing is left to do


@each_method
@each_run
def test_resumed_after_an_interruption(
    name: str,
    kind: str,
    whole: Any,
    tmp_path: Any,
    tiny_chunks: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Averaging begins at a share of `steps`, so an averaged run must be cut with `steps` kept."""
    path = tmp_path / "run.ckpt"
    with monkeypatch.context() as patch:
        patch.setattr(host, "catch_interrupt", asked)
        cut = fit(name, checkpoint=path, **RUNS[kind])
    assert set(np.atleast_1d(cut.status)) == {"interrupted"}
    assert 0 < cut.trace.loss.shape[-1] < STEPS
    assert same_run(fit(name, checkpoint=path, **RUNS[kind]), whole(name, kind))


class asked:
    """Stands for `catch_interrupt` after Ctrl-C; tests/test_checkpoint.py sends real signals."""

    asked = True

    def __enter__(self) -> asked:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


# -- chains and replications ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pmcsa", "pmcsa-rb"])
def test_objective_ignores_the_order_of_particles(name: str) -> None:
    n = 6
    keys = jax.random.split(jax.random.key(0), 2)
    z = jax.random.normal(keys[0], (n, 2))
    eta = sa.Particles(z, jnp.zeros(n), jax.nn.softmax(jax.random.normal(keys[1], (n,))))
    order = jnp.array([3, 0, 5, 1, 4, 2])
    q = sa.MeanField.from_moments([0.3, -0.2], [0.8, 1.4])
    both = jax.jit(jax.value_and_grad(lambda q, eta: METHODS[name].objective(TARGET, q, eta)))
    permuted = both(q, jax.tree.map(lambda x: x[order], eta))
    for a, b in zip(arrays(both(q, eta)), arrays(permuted)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    mixed = both(q, eta._replace(weight=eta.weight[order]))  # weights that go with other points
    assert not np.allclose(both(q, eta)[0], mixed[0], rtol=1e-3)


@pytest.mark.parametrize("name", KERNELS)
def test_chains_move_independently(name: str) -> None:
    """Permuting chains together with their keys permutes where they go, bit for bit."""
    n, order = 6, jnp.array([3, 0, 5, 1, 4, 2])
    keys = jax.random.split(jax.random.key(4), n)
    q = sa.MeanField.from_moments([0.3, -0.2], [0.8, 1.4])
    z = jax.vmap(q.sample)(keys)
    points = sa.Point(z, jax.vmap(TARGET.log_prob)(z))
    step = jax.jit(jax.vmap(lambda k, p: KERNELS[name].step(k, TARGET, q, p)))
    straight = jax.tree.map(lambda x: x[order], step(keys, points))
    assert same_bits(straight, step(keys[order], jax.tree.map(lambda x: x[order], points)))


@each_method
def test_replications_over_data_are_single_fits(name: str, whole: Any) -> None:
    """Each with the key that `jax.random.split` gives it; rounding may differ under vmap."""
    many = whole(name, "replicated and averaged")
    assert len(many) == 3
    keys = jax.random.split(jax.random.key(3), 3)
    for i, target in enumerate(TARGETS):
        one = fit(name, target, key=keys[i])
        assert_close(many[i].state.q, one.q)
        assert_close(many[i].trace, one.trace)
        assert_close(many[i].target.data, target.data)
        assert many[i].status == one.status
        assert many[i].replications is None


def test_replications_over_seeds_are_single_fits() -> None:
    many = fit("pmcsa", replications=3)
    keys = jax.random.split(jax.random.key(3), 3)
    for i in range(3):
        assert_close(many[i].q, fit("pmcsa", key=keys[i]).q)
        assert many[i].target is TARGET
    assert not np.allclose(many[0].q.mean, many[1].q.mean, atol=1e-4)


def assert_close(a: Any, b: Any) -> None:
    for x, y in zip(arrays(a), arrays(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)


def test_replications_can_be_indexed(whole: Any) -> None:
    many = whole("pmcsa", "replicated and averaged")
    assert many[-1].status == "max_steps"
    assert same_bits(many[-1].state, many[2].state)
    assert [same_bits(a.q, many[i].q) for i, a in enumerate(many)] == [True] * 3
    assert many.trace.loss.shape == (3, STEPS)
    for i in (3, -4):
        with pytest.raises(IndexError, match="replication"):
            many[i]
    with pytest.raises(TypeError, match="replications"):
        len(whole("pmcsa"))
    with pytest.raises(TypeError, match="replications"):
        whole("pmcsa")[0]


# -- families ------------------------------------------------------------------------------------


@each_family
@pytest.mark.parametrize("dim", [1, 2])
def test_density_integrates_to_one(family: str, dim: int) -> None:
    """Over z = sinh(t), which reaches far enough for heavy tails."""
    with x64():
        q = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), FAMILIES[family](dim))
        axis = jnp.linspace(-9.0, 9.0, 301)
        grid = jnp.stack(jnp.meshgrid(*[axis] * dim), -1).reshape(-1, dim)
        density = jnp.exp(jax.vmap(q.log_prob)(jnp.sinh(grid))) * jnp.prod(jnp.cosh(grid), -1)
        total = jnp.sum(density) * (axis[1] - axis[0]) ** dim
        smooth = family != "flow"  # a spline has knots, on which a sum over a grid is less exact
        np.testing.assert_allclose(total, 1.0, rtol=1e-8 if smooth else 2e-3)


@each_family
def test_draws_have_the_moments(family: str) -> None:
    q = FAMILIES[family](3)
    z = np.asarray(q.sample(jax.random.key(0), (100, 200)))
    assert z.shape == (100, 200, 3)
    z = z.reshape(-1, 3)
    assert z_score(z, q.mean) < Z_MAX
    assert z_score((z - np.asarray(q.mean)) ** 2, q.sd**2) < Z_MAX
    assert z_score((z - np.asarray(q.mean)) ** 2, 1.1 * q.sd**2) > Z_MAX
    centred = z - np.asarray(q.mean)
    assert z_score(centred[:, :, None] * centred[:, None, :], q.cov) < Z_MAX
    np.testing.assert_allclose(np.sqrt(np.diag(q.cov)), q.sd, rtol=1e-6)
    key = jax.random.key(5)
    np.testing.assert_array_equal(q.sample(key), q.transport(q.noise(key)))


@each_family
def test_score_has_mean_zero(family: str) -> None:
    """E_q ∇_λ log q(z; λ) = 0, and the score has the shape of q."""
    q = FAMILIES[family](3)
    z = q.sample(jax.random.key(1), (20_000,))
    score = jax.jit(jax.vmap(lambda z: jax.grad(lambda q: q.log_prob(z))(q)))(z)
    assert jax.tree.structure(score) == jax.tree.structure(q)
    assert all(z_score(leaf, 0.0) < Z_MAX for leaf in jax.tree.leaves(score))


@each_family
def test_family_under_jit_and_vmap(family: str) -> None:
    q = FAMILIES[family](3)
    key = jax.random.key(2)
    z = q.sample(key)
    np.testing.assert_allclose(jax.jit(lambda q: q.sample(key))(q), z, rtol=1e-6)
    np.testing.assert_allclose(jax.jit(lambda q: q.log_prob(z))(q), q.log_prob(z), rtol=1e-5)
    pair = jax.tree.map(lambda x: jnp.stack([x, x + 1]), q)
    both = jax.vmap(lambda q: q.log_prob(z))(pair)
    np.testing.assert_allclose(both[0], q.log_prob(z), rtol=1e-5)
    assert abs(float(both[1] - both[0])) > 0.1


def test_mean_field_against_scipy() -> None:
    mean, sd = np.array([0.5, -2.0, 30.0]), np.array([0.1, 1.0, 7.0])
    z = np.array([0.7, -2.5, 50.0])
    with x64():
        q = sa.MeanField.from_moments(mean, sd)
        expected = np.sum(scipy.stats.norm.logpdf(z, mean, sd))
        np.testing.assert_allclose(q.log_prob(jnp.asarray(z)), expected, rtol=1e-12)
        score = jax.grad(lambda q: q.log_prob(jnp.asarray(z)))(q)
        np.testing.assert_allclose(score.loc, (z - mean) / sd**2, rtol=1e-10)
        in_sd = (z - mean) ** 2 / sd**3 - 1 / sd
        slope = 1 / (1 + np.exp(-np.asarray(q.omega)))  # dσ/dω
        np.testing.assert_allclose(score.omega, in_sd * slope, rtol=1e-10)
        np.testing.assert_allclose(q.cov, np.diag(sd**2), rtol=1e-10)


log_sds = st.lists(st.floats(math.log(1e-3), math.log(1e3)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=40, derandomize=True, database=None)
@given(log_sds, st.integers(0, 10**6))
def test_moments_round_trip(log_sd: list[float], seed: int) -> None:
    sd = np.exp(log_sd)
    mean = np.random.default_rng(seed).normal(0, 100, len(sd))
    for dtype, rtol in (("float32", 3e-6), ("float64", 1e-12)):
        with x64():
            q = sa.MeanField.from_moments(mean.astype(dtype), sd.astype(dtype))
            assert q.mean.dtype == q.sd.dtype == dtype
            np.testing.assert_array_equal(q.mean, mean.astype(dtype))
            np.testing.assert_allclose(q.sd, sd, rtol=rtol)


def test_mean_field_takes_whole_numbers() -> None:
    q = sa.MeanField.from_moments([0, 1], [1, 2])
    assert q.loc.dtype == q.omega.dtype == jnp.float32
    np.testing.assert_allclose(q.sd, [1, 2], rtol=1e-6)
    np.testing.assert_allclose(sa.MeanField.standard(2, scale=3).sd, [3, 3], rtol=1e-6)


# -- settings and names --------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_settings_are_values(config: Any) -> None:
    twin = eval(repr(config), vars(sa) | vars(sa.schedules))
    assert twin == config
    assert hash(twin) == hash(config)
    assert repr(twin) == repr(config)
    assert config != sa.pmcsa(99)
    with pytest.raises(AttributeError):  # frozen
        config.n = 5


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (sa.pmcsa(10), "ScoreAscent(Parallel(IMH(), n=10))"),
        (sa.pmcsa(3, rao_blackwell=True), "ScoreAscent(Parallel(IMH(), n=3, rao_blackwell=True))"),
        (sa.jsa(), "ScoreAscent(Sequential(IMH(), n=10))"),
        (sa.msc(7), "ScoreAscent(Select(CIS(n=7)))"),
        (sa.msc_rb(7, sa.Defensive()), "ScoreAscent(CIS(n=7, defensive=Defensive()))"),
        (sa.elbo(2), "PathElbo(n=2)"),
        (sa.IMH(sa.Defensive(0.5)), "IMH(Defensive(alpha=0.5))"),
        (sa.pmcsa(np.int64(10)), "ScoreAscent(Parallel(IMH(), n=10))"),
        (sa.msc_rb(np.int32(7)), "ScoreAscent(CIS(n=7))"),
        (sa.elbo(np.int32(7)), "PathElbo(n=7)"),
    ],
    ids=str,
)
def test_settings_print_as_what_they_are(config: Any, says: str) -> None:
    assert repr(config) == says


def test_settings_differ_when_they_do() -> None:
    distinct = {repr(c): c for c in CONFIGS}
    assert len(set(distinct.values())) == len(distinct)


def public_things() -> list[Any]:
    """Every public name and every public method and property of the public classes."""
    things = []
    for name in sa.__all__:
        thing = getattr(sa, name)
        if isinstance(thing, str):
            continue
        things.append(pytest.param(thing, name, id=name))
        members = vars(thing) if inspect.ismodule(thing) else dict(inspect.getmembers(thing))
        for key, member in members.items():
            function = member.fget if isinstance(member, property) else member
            module = getattr(inspect.unwrap(function), "__module__", None) or ""
            if (
                key.startswith("_")
                or not inspect.isroutine(function)
                or "scoreascent" not in module
            ):
                continue
            things.append(pytest.param(member, key, id=f"{name}.{key}"))
    return things


@pytest.mark.parametrize(("thing", "name"), public_things())
def test_public_api(thing: Any, name: str) -> None:
    """It says what it is, in words of its own (dataclasses and tuples write their signature)."""
    doc = inspect.getdoc(thing) or ""
    assert len(doc) > 5
    assert not doc.startswith((f"{name}(", "Alias for field"))


def test_public_names_are_there_and_sorted_out() -> None:
    assert len(set(sa.__all__)) == len(sa.__all__)
    assert all(hasattr(sa, name) for name in sa.__all__)
    assert any(p.id == "MeanField.log_prob" for p in public_things())
    assert any(p.id == "Result.sample" for p in public_things())
    assert any(p.id == "schedules.duchi" for p in public_things())
