"""The pictures: what is in them, that they draw where they are told, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from numpyro.distributions import constraints

import scoreascent as sa
from scoreascent import plots
from scoreascent.diagnostics.measure import MAX_ROWS, chain_states
from scoreascent.plots import khat
from scoreascent.plots.marginals import kernel_density
from scoreascent.plots.pairs import _outline
from tests.stats import Z_MAX, Z_MUTANT

plt = pytest.importorskip("matplotlib.pyplot")

MEAN, SD = np.array([1.0, -2.0, 0.5, 0.3]), np.array([1.0, 0.5, 2.0, 0.4])
PARAMS = {
    "a": constraints.real,
    "b": sa.Param(constraints.real, (2,)),
    "s": constraints.positive,
}


def density(p: Any) -> Any:
    z = jnp.concatenate([jnp.stack([p["a"], *p["b"], jnp.log(p["s"])])])
    return -0.5 * jnp.sum(((z - MEAN) / SD) ** 2) - z[3]  # s is lognormal


@pytest.fixture(scope="module")
def result():
    return sa.fit(sa.Target(density, params=PARAMS), sa.pmcsa(8), steps=300, progress=False)


@pytest.fixture(scope="module")
def exact(result):
    """The same with the posterior itself for q."""
    q = sa.MeanField.from_moments(jnp.asarray(MEAN, jnp.float32), jnp.asarray(SD, jnp.float32))
    return replace(result, q=q)


@pytest.fixture(scope="module")
def replicated(result):
    return sa.fit(result.target, sa.pmcsa(4), steps=60, replications=3, progress=False)


@pytest.fixture(autouse=True)
def _canvas():
    backend = plt.get_backend()
    plt.switch_backend("Agg")
    yield
    plt.close("all")
    plt.switch_backend(backend)


def labels(ax: Any) -> list[str]:
    return ax.get_legend_handles_labels()[1]


def line(ax: Any, label: str) -> Any:
    (found,) = [x for x in ax.lines if x.get_label() == label]
    return found


# -- the run ---------------------------------------------------------------------------------------


def test_trace_shows_every_number_and_its_running_median(result):
    axes = plots.plot_trace(result)
    assert [ax.get_ylabel() for ax in axes] == ["loss", "acceptance"]
    assert axes[1].get_xlabel() == "iteration"
    for ax, values in zip(axes, (result.trace.loss, result.trace.acceptance)):
        raw, median = ax.lines
        np.testing.assert_array_equal(raw.get_xdata(), np.arange(1, 301))
        np.testing.assert_allclose(raw.get_ydata(), values)
        windows = [np.median(values[i : i + 6]) for i in range(295)]
        np.testing.assert_allclose(median.get_ydata(), windows, rtol=1e-6)
        np.testing.assert_allclose(median.get_xdata(), np.arange(295) + 3.5)
    assert labels(axes[0]) == ["running median"]


def test_trace_marks_what_was_skipped_and_survives_it(result):
    skipped, loss = np.zeros(300, int), np.array(result.trace.loss)
    skipped[[4, 200]] = 1
    loss[:20] = np.inf
    changed = replace(result, trace=result.trace._replace(skipped=skipped, loss=loss))
    axes = plots.plot_trace(changed)
    marks = line(axes[0], "skipped updates: 2")
    np.testing.assert_array_equal(marks.get_xdata(), [5, 201])
    assert np.all(np.isfinite(axes[0].get_ylim()))
    axes[0].figure.canvas.draw()


def test_trace_of_a_resumed_run_counts_on(result):
    longer = sa.fit(result.target, sa.pmcsa(8), steps=310, state=result.state, progress=False)
    raw = plots.plot_trace(longer)[0].lines[0]
    np.testing.assert_array_equal(raw.get_xdata(), np.arange(301, 311))


def test_trace_draws_all_replications(replicated):
    axes = plots.plot_trace(replicated)
    assert len(axes[0].lines) == 6
    for i in range(3):
        np.testing.assert_allclose(axes[0].lines[i].get_ydata(), replicated.trace.loss[i])
    assert labels(axes[0]) == ["replication 0", "replication 1", "replication 2"]
    many = jax.tree.map(lambda x: np.repeat(x, 4, axis=0), replicated.trace)
    axes = plots.plot_trace(replace(replicated, trace=many))
    assert len(axes[0].lines) == 24
    assert labels(axes[0]) == ["running medians of 12 replications"]


# -- q, the chains, a reference --------------------------------------------------------------------


def test_marginals_are_the_densities_of_q(exact):
    """Against closed forms: where s is bounded, too."""
    axes = plots.plot_marginals(exact, draws=8000)
    assert [ax.get_xlabel() for ax in axes] == ["a", "b[0]", "b[1]", "s"]
    assert [t.get_text() for t in axes[0].figure.legends[0].get_texts()] == ["chains", "q"]
    laws = [scipy.stats.norm(m, s) for m, s in zip(MEAN[:3], SD[:3])]
    laws.append(scipy.stats.lognorm(SD[3], scale=np.exp(MEAN[3])))
    for ax, law in zip(axes, laws):
        x, y = line(ax, "q").get_data()
        assert np.max(np.abs(y - law.pdf(x))) < 0.08 * law.pdf(x).max()  # 5 sds and some bias
        assert law.cdf(x[-1]) - law.cdf(x[0]) > 0.98


def test_the_density_keeps_its_height_at_a_bound():
    """Exponential draws: 1 at zero, where an estimate that does not reflect has a half."""
    x = np.random.default_rng(0).exponential(size=20_000)
    at = np.array([x.min() + 0.01])
    width = 0.9 * np.subtract(*np.quantile(x, [0.75, 0.25])) / 1.349 * x.size**-0.2
    se = np.sqrt(2 / (2 * np.sqrt(np.pi)) / (x.size * width))  # twice the variance of the middle
    bias = width * 0.8  # of a reflected estimate where the density has slope −1
    assert abs(kernel_density(x, at)[0] - 1) < bias + Z_MAX * se
    mutant = scipy.stats.gaussian_kde(x, width / x.std())(at)[0]
    assert abs(mutant - 1) > bias + Z_MUTANT * se
    assert kernel_density(x, np.array([-0.1]))[0] == 0


def test_marginals_show_the_states_of_the_chains(exact):
    (ax,) = plots.plot_marginals(exact, "b[1]", key=3, draws=500)
    _, key = jax.random.split(jax.random.key(3))
    states = chain_states(exact, sa._random.as_key(key))[0][:, MAX_ROWS // 4 :, 2].ravel()
    states = states[np.linspace(0, states.size - 1, 500).astype(int)]
    (patch,) = ax.patches
    values, edges, _ = patch.get_data()
    width = edges[1] - edges[0]
    np.testing.assert_allclose(values * width * 500, np.histogram(states, edges)[0], atol=1e-6)


def test_names_choose_parameters_and_entries(result):
    axes = plots.plot_marginals(result, ["s", "b", "b[0]"])
    assert [ax.get_xlabel() for ax in axes] == ["s", "b[0]", "b[1]"]
    axes = plots.plot_pairs(result, ["b", "s"])
    assert axes.shape == (3, 3)
    assert [ax.get_xlabel() for ax in axes[2]] == ["b[0]", "b[1]", "s"]
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["", "b[1]", "s"]
    assert not axes[0, 1].axison
    assert axes[1, 0].axison


def test_pairs_show_draws_that_belong_together(result):
    axes = plots.plot_pairs(result, ["a", "s"], key=2, draws=300)
    key, _ = jax.random.split(jax.random.key(2))
    draws = result.sample(sa._random.as_key(key), 300)
    q, chains = axes[1, 0].lines
    np.testing.assert_allclose(q.get_xdata(), draws["a"], rtol=1e-6)
    np.testing.assert_allclose(q.get_ydata(), draws["s"], rtol=1e-6)
    assert len(chains.get_xdata()) == 300


def reference(n: int = 4000) -> dict[str, Any]:
    z = np.random.default_rng(1).normal(MEAN, SD, (n, 4))
    return {"a": z[:, 0], "b": z[:, 1:3], "s": np.exp(z[:, 3]), "other": z}


def test_references_of_every_kind_are_the_same_picture(result):
    flat = reference()
    chains = {k: v.reshape(4, 1000, *v.shape[1:]) for k, v in flat.items()}
    expected = [
        line(ax, "reference").get_ydata() for ax in plots.plot_marginals(result, None, flat)
    ]
    given = [chains]
    try:
        import arviz

        new = int(arviz.__version__.split(".")[0]) >= 1
        given.append(
            arviz.from_dict({"posterior": chains}) if new else arviz.from_dict(posterior=chains)
        )
    except ModuleNotFoundError:
        pass
    for same in given:
        axes = plots.plot_marginals(result, reference=same)
        for ax, y in zip(axes, expected):
            np.testing.assert_array_equal(line(ax, "reference").get_ydata(), y)
    law = scipy.stats.norm(MEAN[1], SD[1])
    x = line(axes[1], "reference").get_xdata()
    assert np.max(np.abs(expected[1] - law.pdf(x))) < 0.08 * law.pdf(MEAN[1])


def test_a_reference_of_one_value_and_of_some_names(result):
    axes = plots.plot_marginals(result, reference={"b": np.array([[7.0, -7.0]])})
    assert [len(ax.lines) for ax in axes] == [1, 2, 2, 1]
    np.testing.assert_array_equal(line(axes[1], "reference").get_xdata(), [7, 7])
    axes = plots.plot_pairs(result, "b", {"b": np.array([[7.0, -7.0]])})
    assert [float(x[0]) for x in axes[1, 0].lines[-1].get_data()] == [7, -7]


def test_outlines_hold_what_they_say():
    x, y = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.8], [0.8, 1]], 4000).T
    _, ax = plt.subplots()
    _outline(ax, x, y, ((-4, 4), (-4, 4)))
    (contours,) = ax.collections
    paths = contours.get_paths()
    inside = [np.mean(p.contains_points(np.column_stack([x, y]))) for p in paths]
    np.testing.assert_allclose(inside, [0.9, 0.5], atol=0.03)


def test_a_fit_without_chains(result):
    elbo = replace(result, method=sa.elbo(2))
    axes = plots.plot_marginals(elbo)
    assert labels(axes[0]) == ["q"]
    assert len(plots.plot_pairs(elbo, "b")[1, 0].lines) == 1


def test_constants_are_left_out():
    params = {"l": sa.Param(constraints.corr_cholesky, (2, 2)), "c": constraints.real}
    target = sa.Target(lambda p: -0.5 * p["c"] ** 2 + jnp.log(p["l"][1, 1]), params=params)
    result = sa.fit(target, sa.pmcsa(4), steps=0, progress=False)
    assert [ax.get_xlabel() for ax in plots.plot_marginals(result)] == ["c", "l[1,0]", "l[1,1]"]
    assert plots.plot_pairs(result, ["l[1, 0]", "c"]).shape == (2, 2)
    with pytest.raises(ValueError, match=r"something that varies, got \['l\[0,0\]'\]"):
        plots.plot_marginals(result, "l[0,0]")


# -- k̂ ---------------------------------------------------------------------------------------------


def test_khat_is_that_of_the_diagnosis(result, monkeypatch):
    diagnosis = result.diagnose(key=5, draws=2000)
    # a guide of the fitted shape must be the fitted tail, up to the largest weight, where it ends
    monkeypatch.setattr(khat, "MAX_USABLE_K", diagnosis.k_hat)
    ax = plots.plot_khat(result, key=5, draws=2000)
    share, log_w = line(ax, "draws of q").get_data()
    assert np.all(np.diff(log_w) >= 0)
    assert np.mean(np.exp(log_w)) == pytest.approx(1, rel=1e-6)
    assert log_w[-1] == pytest.approx(diagnosis.log_w_star, rel=1e-5)
    np.testing.assert_allclose(share, (2000 - np.arange(2000) - 0.5) / 2000)
    title = ax.get_title(loc="left")
    assert f"= {diagnosis.k_hat:.2f}" in title
    assert f"{diagnosis.ess:.0f} of 2000" in title
    guide, half, fitted = ax.lines[1:]
    assert len(fitted.get_xdata()) == np.ceil(3 * np.sqrt(2000))
    below = fitted.get_ydata() < log_w[-1] - 1e-9
    assert below.mean() > 0.9
    np.testing.assert_allclose(guide.get_ydata()[below], fitted.get_ydata()[below], atol=1e-6)
    assert np.max(np.abs(half.get_ydata() - fitted.get_ydata())[below]) > 1e-3


@pytest.mark.parametrize(
    ("sd", "says"), [(1.2, "light tail"), (0.65, "heavy tail"), (0.4, "tail too heavy for weights")]
)
def test_khat_says_what_it_means(exact, sd, says):
    """A q of `sd` times the posterior's, in four coordinates: weights of shape 1 − sd²."""
    other = sa.MeanField.from_moments(exact.q.mean, sd * exact.q.sd)
    title = plots.plot_khat(replace(exact, q=other), draws=20_000).get_title(loc="left")
    assert f": {says};" in title


def test_khat_of_weights_that_are_zero():
    flat = sa.fit(sa.Target(lambda z: 0 * z[0], dim=1), sa.pmcsa(2), steps=0, progress=False)
    box = sa.Target(lambda z: jnp.where(z[0] > 2.2, 0.0, -jnp.inf), dim=1)
    few = replace(flat, target=box)
    title = plots.plot_khat(few, draws=100).get_title(loc="left")
    assert "too few draws" in title
    never = sa.Target(lambda z: -jnp.inf * jnp.ones(()), dim=1)
    with pytest.raises(ValueError, match="no draw of q"):
        plots.plot_khat(replace(flat, target=never))


# -- axes and errors -------------------------------------------------------------------------------


def test_axes_are_accepted_and_returned(result):
    _, grid = plt.subplots(4, 4)
    before = plt.get_fignums()
    for found, given in (
        (plots.plot_trace(result, grid[:2, 3]), grid[:2, 3]),
        (plots.plot_marginals(result, axes=grid[0]), grid[0]),
        (plots.plot_marginals(result, "a", axes=grid[3, 3]), grid[3:, 3]),
        (plots.plot_pairs(result, "b", axes=grid[:2, :2]), grid[:2, :2]),
    ):
        assert found.shape == given.shape
        assert all(x is y for x, y in zip(found.ravel(), given.ravel()))
    assert plots.plot_khat(result, grid[3, 0]) is grid[3, 0]
    assert plt.get_fignums() == before
    assert grid[0, 0].get_legend() is not None
    grid[0, 0].figure.canvas.draw()


def test_a_call_opens_one_figure_at_most(result):
    for draw in (plots.plot_trace, plots.plot_marginals, plots.plot_pairs, plots.plot_khat):
        before = len(plt.get_fignums())
        draw(result)
        assert len(plt.get_fignums()) == before + 1


BAD: dict[str, tuple[Any, str]] = {
    "not a result": (lambda r: plots.plot_khat(1), "result must be what fit gave back, got int"),
    "trace of nothing": (lambda r: plots.plot_trace("x"), "result must be what fit gave back"),
    "no steps": (
        lambda r: plots.plot_trace(replace(r, trace=jax.tree.map(lambda x: x[:0], r.trace))),
        "no iteration was run",
    ),
    "a name": (lambda r: plots.plot_marginals(r, "c"), r"parameters \(a, b, s\).*got 'c'"),
    "an entry": (lambda r: plots.plot_pairs(r, ["b[2]", "a"]), r"got 'b\[2\]'"),
    "not a name": (lambda r: plots.plot_marginals(r, [3]), "got 3"),
    "no names": (lambda r: plots.plot_marginals(r, []), "something that varies"),
    "one pair": (lambda r: plots.plot_pairs(r, "a"), r"two scalars or more.*got \['a'\]"),
    "draws": (lambda r: plots.plot_marginals(r, draws=5), "draws must be an integer ≥ 100, got 5"),
    "key": (lambda r: plots.plot_pairs(r, key="x"), "key must be"),
    "reference": (lambda r: plots.plot_pairs(r, reference=[1.0]), "reference must be arrays.*list"),
    "reference's names": (
        lambda r: plots.plot_marginals(r, "a", reference={"z": [1.0]}),
        r"reference must have draws of a, got \['z'\]",
    ),
    "reference's shape": (
        lambda r: plots.plot_marginals(r, reference={"b": np.zeros((5, 3))}),
        r"reference\['b'\] must have draws in front and the parameter's shape \(2,\).*\(5, 3\)",
    ),
    "reference without draws": (
        lambda r: plots.plot_marginals(r, reference={"a": 1.0}),
        r"reference\['a'\] must have draws in front",
    ),
    "reference NaN": (
        lambda r: plots.plot_marginals(r, reference={"a": [1.0, np.nan]}),
        r"reference\['a'\] must be finite",
    ),
    "axes": (lambda r: plots.plot_trace(r, ["x", "y"]), r"axes must be 2 .*got str"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_refused_opens_no_figure(result, case):
    call, says = BAD[case]
    with pytest.raises(ValueError, match=says):
        call(result)
    assert plt.get_fignums() == []


def test_too_few_axes_and_too_many_parameters(result, replicated):
    figure, axes = plt.subplots(1, 3)
    with pytest.raises(ValueError, match=r"axes must be 4 .*one panel for each scalar.*got 3"):
        plots.plot_marginals(result, axes=axes)
    with pytest.raises(ValueError, match=r"ax must be 1 .*got 3"):
        plots.plot_khat(result, axes)
    plt.close(figure)
    for draw in (plots.plot_marginals, plots.plot_pairs, plots.plot_khat):
        with pytest.raises(ValueError, match=r"take one of them, such as result\[0\]"):
            draw(replicated)
    wide = sa.fit(sa.Target(lambda z: -jnp.sum(z**2), dim=40), sa.elbo(1), steps=0, progress=False)
    with pytest.raises(ValueError, match=r"at most 8 scalars, got 40; say which.*'z\[0\]'"):
        plots.plot_pairs(wide)
    with pytest.raises(ValueError, match="at most 36 scalars, got 40"):
        plots.plot_marginals(wide)
    assert plots.plot_marginals(wide, [f"z[{i}]" for i in range(5)]).shape == (5,)
    assert len(plt.gcf().axes) == 5  # no empty panels


def test_without_matplotlib_the_extra_is_named(result, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    for draw in (plots.plot_trace, plots.plot_marginals, plots.plot_pairs, plots.plot_khat):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'scoreascent\[plots\]'"):
            draw(result)
