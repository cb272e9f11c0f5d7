"""The regression models: densities against other statements of them, moments against integrals."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, special, stats

import scoreascent as sa
from scoreascent.models import _gaussian_prior, bnn, robust_gp
from scoreascent.models._gaussian_prior import log_gaussian
from scoreascent.models.bnn import BNN, relu_moments
from scoreascent.models.robust_gp import Predictive, RobustGP
from tests.helpers import x64
from tests.stats import Z_MAX, Z_MUTANT, quick_jit, z_score

# -- the network ---------------------------------------------------------------------------------


def rows(seed: int, n: int = 7, inputs: int = 2) -> tuple[Any, Any]:
    draw = np.random.default_rng(seed).normal(size=(n, inputs + 1))
    return draw[:, :inputs], draw[:, inputs]


def network(z: Any, x: Any, y: Any, hidden: tuple[int, ...]) -> Any:
    """The joint density of SPEC, section 4, as distributions of NumPyro."""
    prior = dist.Normal(0, jnp.exp(-0.5 * z[-2]))
    log_gamma = dist.TransformedDistribution(
        dist.Gamma(6.0, rate=6.0), dist.transforms.ExpTransform().inv
    )
    sizes, h, at = (x.shape[1], *hidden, 1), x, 0
    log_p = jnp.sum(log_gamma.log_prob(z[-2:]))
    for layer, (a, b) in enumerate(itertools.pairwise(sizes)):
        w = z[at : at + (a + 1) * b].reshape(a + 1, b)
        log_p, at = log_p + jnp.sum(prior.log_prob(w)), at + (a + 1) * b
        h = jnp.concatenate([h, jnp.ones((len(h), 1))], 1) @ w / jnp.sqrt(a + 1.0)
        h = h if layer == len(hidden) else jnp.where(h > 0, h, 0)
    return log_p + jnp.sum(dist.Normal(h[:, 0], jnp.exp(-0.5 * z[-1])).log_prob(y))


def network_error(hidden: tuple[int, ...]) -> float:
    """How far the model is from `network`, at worst, relatively."""
    with x64():
        x, y = rows(0)
        net = BNN(2, hidden)
        target = net.target(x, y)
        z = jnp.asarray(np.random.default_rng(1).normal(size=(6, net.dim)))
        both = quick_jit(
            jax.vmap(lambda z: (target.log_prob(z), network(z, x, jnp.asarray(y), hidden)))
        )
        ours, other = both(z)
        assert ours.dtype == jnp.float64
        return float(np.max(np.abs(ours / other - 1)))


@pytest.mark.parametrize("hidden", [(), (3,), (4, 3)], ids=str)
def test_network_density(hidden: tuple[int, ...]) -> None:
    assert network_error(hidden) < 1e-12


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("RATE", 1 / 6.0),  # a scale, not a rate
        ("_scaled", lambda w: w),
        ("_affine", lambda w, h: (w[1:].T @ h + w[0]) / np.sqrt(len(w))),  # the bias comes first
        ("_affine", lambda w, h: jax.nn.relu(w[:-1].T @ h + w[-1]) / np.sqrt(len(w))),  # erratum 8
        ("_with_ones", lambda x: jnp.concatenate([jnp.ones((len(x), 1)), x], axis=1).T),
    ],
)
def test_network_density_rejects(name: str, mutant: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(bnn, name, mutant)
    assert network_error((3,)) > 1e-3


def test_the_papers_dimensions() -> None:
    features = (6, 8, 5, 8, 11, 13, 22, 128)
    assert [BNN(d).dim for d in features] == [403, 503, 353, 503, 653, 753, 1203, 6503]
    assert RobustGP(6, 277).dim == 287
    assert RobustGP(5, 1352).dim == 4 + 5 + 1352


def test_the_output_is_linear() -> None:
    net = BNN(1, (2,))
    z = jnp.zeros(net.dim).at[-3].set(-2.0)  # the bias of the output
    q = sa.MeanField.from_moments(z, jnp.full(net.dim, 1e-3))
    both = quick_jit(lambda x: (net.forward(z, x), net.predict(q, x)[0]))
    np.testing.assert_allclose(both(jnp.ones((3, 1))), np.full((2, 3), -2 / np.sqrt(3)), rtol=1e-3)


ALPHA = np.array([-1e6, -100, -40, -20, -8, -3, -1, -1e-3, 0, 1e-3, 1, 3, 8, 20, 40, 100, 1e6])
SD = np.array([1e-3, 1.0, 50.0])


def rectified(alpha: float) -> tuple[float, float]:
    """Mean and variance of max(0, a), a ~ N(α, 1), by quadrature."""

    def integral(f: Callable[[float], float]) -> float:
        low, high = max(0.0, alpha - 12), max(alpha, 0) + 12
        density = lambda a: f(a) * stats.norm.pdf(a - alpha)  # noqa: E731
        middle = [max(alpha, 0.1)]
        return integrate.quad(density, low, high, points=middle, epsabs=0, epsrel=1e-11)[0]

    mean = integral(lambda a: a)
    return mean, integral(lambda a: (a - mean) ** 2) + mean**2 * special.ndtr(-alpha)


@pytest.mark.parametrize(("dtype", "rtol", "atol"), [("f4", 1e-3, 1e-14), ("f8", 1e-8, 1e-30)])
def test_relu_moments_against_quadrature(dtype: Any, rtol: float, atol: float) -> None:
    mean, var = np.array([rectified(a) for a in ALPHA]).T[..., None]
    m, v = (ALPHA[:, None] * SD).astype(dtype), np.tile(SD**2, (len(ALPHA), 1)).astype(dtype)
    grad = jax.vmap(jax.grad(lambda m, v: sum(relu_moments(m, v)), (0, 1)))
    with x64():
        both = quick_jit(lambda m, v: (relu_moments(m, v), grad(m.ravel(), v.ravel())))
        ours, grads = jax.tree.map(np.array, both(m, v))
    np.testing.assert_allclose(ours[0], mean * SD, rtol=rtol, atol=atol)
    np.testing.assert_allclose(ours[1], var * SD**2, rtol=rtol, atol=atol)
    assert np.all(ours[1] >= 0)
    assert all(np.all(np.isfinite(g)) for g in grads)
    assert all(x.dtype == dtype for x in (*ours, *grads))


@pytest.mark.parametrize("m", [300.0, 1.0, 0.0, -1.0, -3.0, -300.0])
def test_relu_moments_of_a_number(m: float) -> None:
    np.testing.assert_allclose(
        relu_moments(jnp.float32(m), jnp.float32(0)), [max(m, 0), 0], atol=1e-18
    )


def mean_field(dim: int, seed: int, dtype: Any) -> sa.MeanField:
    draw = np.random.default_rng(seed)
    mean, sd = draw.normal(size=dim), draw.uniform(0.5, 1, size=dim)
    return sa.MeanField.from_moments(mean.astype(dtype), sd.astype(dtype))


def test_prediction_without_hidden_layers() -> None:
    """Closed form: a sum of independent products."""
    with x64():
        x, _ = rows(2, n=5, inputs=3)
        net = BNN(3, ())
        q = mean_field(net.dim, 3, np.float64)
        m, s = np.array(q.mean), np.array(q.sd)
        mean, var = quick_jit(net.predict)(q, x)
    tilde = np.column_stack([x, np.ones(5)])
    np.testing.assert_allclose(mean, tilde @ m[:4] / 2, rtol=1e-12)
    noise = stats.lognorm.mean(s[-1], scale=np.exp(-m[-1]))
    np.testing.assert_allclose(var, tilde**2 @ s[:4] ** 2 / 4 + noise, rtol=1e-12)


def prediction_score() -> tuple[float, float]:
    """|z| of the propagated mean and variance against draws: with one hidden layer they are exact.

    Given x the units are independent under a mean-field q, and so are the weights that they meet.
    """
    net, (x, _) = BNN(2, (3,)), rows(4, n=4)
    q = mean_field(net.dim, 5, np.float32)
    x = jnp.float32(x)
    both = quick_jit(lambda k, q: (net.predict(q, x), net.predict_draws(k, q, x, 40_000)))
    (mean, var), (outputs, noise) = both(jax.random.key(6), q)
    return z_score(outputs, mean), z_score((outputs - mean) ** 2 + noise[:, None], var)


def test_prediction_with_one_hidden_layer() -> None:
    assert max(prediction_score()) < Z_MAX


def no_product_term(m: Any, v: Any, weight: Any, variance: Any) -> Any:
    spread = v @ weight[:-1] ** 2 + m**2 @ variance[:-1] + variance[-1]
    return bnn._affine(weight, m.T).T, spread / len(weight)


@pytest.mark.parametrize(
    ("name", "mutant", "which"),
    [
        ("_affine_moments", no_product_term, 1),
        ("relu_moments", lambda m, v: (jnp.maximum(m, 0), jnp.where(m > 0, v, 0)), 0),
    ],
)
def test_prediction_rejects(name: str, mutant: Any, which: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(bnn, name, mutant)
    assert prediction_score()[which] > Z_MUTANT


def test_two_networks_are_fitted_side_by_side() -> None:
    x = np.linspace(-2, 2, 20, dtype=np.float32)[:, None]
    y = np.tanh(2 * x[:, 0])
    net = BNN(1, (4,))
    targets = [net.target(x, sign * y) for sign in (1, -1)]
    assert targets[0].log_prob(jnp.zeros(net.dim)).dtype == jnp.float32
    result = sa.fit(targets, sa.pmcsa(10), steps=2000, key=1, progress=False)
    assert result.q.loc.dtype == jnp.float32
    predict = quick_jit(net.predict)
    for i, sign in enumerate((1, -1)):
        mean, var = predict(result[i].q, x)
        assert mean.dtype == var.dtype == jnp.float32
        assert np.std(mean - sign * y) < 0.5 * np.std(y)
        loss = np.asarray(result[i].trace.loss)
        assert loss[-200:].mean() < loss[:200].mean()


# -- the Gaussian process ------------------------------------------------------------------------

D, N = 2, 6
X, Y = rows(10, N, D)
X[4] = X[1]  # a row may be there twice
NEW = np.vstack([rows(11, 3, D)[0], X[:1]])
MODEL, WHITENED = RobustGP(D, N), RobustGP(D, N, whitened=True)
HYPER = np.array([-0.7, -1.2, 0.4, 1.5, 0.2, -0.3])


def matern(z: Any, a: Any, b: Any) -> Any:
    """Erratum 6: r is a square root, the amplitude is squared."""
    r = np.sqrt((((a[:, None] - b) / np.exp(z[4 : 4 + D])) ** 2).sum(-1))
    return np.exp(z[2]) ** 2 * (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)


def prior(z: Any) -> Any:
    return matern(z, X, X) + (np.exp(z[1]) ** 2 + 1e-6) * np.eye(N)


def process(z: Any) -> float:
    """The joint density of SPEC, section 5, as distributions of scipy."""
    f, nu = z[4 + D :], np.exp(z[3])
    return float(
        stats.multivariate_normal(np.zeros(N), prior(z)).logpdf(f)
        + stats.norm(0, 4).logpdf(z[:3]).sum()
        + stats.norm(0, 0.2).logpdf(z[4 : 4 + D]).sum()
        + stats.gamma(4, scale=10).logpdf(nu)
        + z[3]
        + stats.t(nu, f, np.exp(z[0])).logpdf(Y).sum()
    )


def points(seed: int = 12, n: int = 4) -> Any:
    draw = np.random.default_rng(seed).normal(size=(n, MODEL.dim))
    return np.concatenate([HYPER, np.zeros(N)]) + 0.5 * draw


def densities(model: RobustGP, z: Any) -> Any:
    target = model.target(X, Y)
    return np.asarray(quick_jit(jax.vmap(target.log_prob))(jnp.asarray(z)))


def process_error() -> float:
    with x64():
        ours = densities(MODEL, points())
    return float(np.max(np.abs(ours - [process(z) for z in points()])))


def test_process_density() -> None:
    assert process_error() < 1e-9


def printed_kernel(hyper: Any, a: Any, b: Any) -> Any:
    r = jnp.sum(((a[:, None] - b) / jnp.exp(hyper.log_length)) ** 2, -1)  # no square root
    return jnp.exp(2 * hyper.log_amplitude - 5**0.5 * r) * (1 + 5**0.5 * r + 5 * r**2 / 3)


def plain_amplitude(hyper: Any, a: Any, b: Any, kernel: Any = robust_gp._matern) -> Any:
    return kernel(hyper._replace(log_amplitude=hyper.log_amplitude / 2), a, b)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("_matern", printed_kernel),
        ("_matern", plain_amplitude),
        ("NU_SCALE", 0.1),
        ("SCALE_SD", 2.0),
        ("JITTER", 1e-4),
    ],
)
def test_process_density_rejects(name: str, mutant: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(robust_gp, name, mutant)
    assert process_error() > 1e-5


def test_whitening_is_a_change_of_variables() -> None:
    z = points(13)
    image, log_det = z.copy(), []
    for row in image:
        root = np.linalg.cholesky(prior(row))
        row[4 + D :] = root @ row[4 + D :]
        log_det.append(np.log(np.diag(root)).sum())
    with x64():
        np.testing.assert_allclose(
            densities(WHITENED, z), densities(MODEL, image) + log_det, rtol=1e-10
        )


def test_covariance() -> None:
    with x64():
        z = points()[0]
        k = np.array(robust_gp.covariance(MODEL.unpack(jnp.asarray(z))[0], jnp.asarray(X)))
    np.testing.assert_allclose(k, prior(z), rtol=1e-12)
    np.testing.assert_allclose(k, k.T, rtol=1e-14)
    assert np.linalg.eigvalsh(k)[0] > 0


def by_cholesky(k: Any, f: Any) -> Any:
    root = jnp.linalg.cholesky(k)
    white = jax.scipy.linalg.solve_triangular(root, f, lower=True)
    constant = 0.5 * len(f) * np.log(2 * np.pi)
    return -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diag(root))) - constant


def test_gradient() -> None:
    """Of log N(f; 0, K) against autodiff, and of all against differences."""
    z = points()
    with x64():

        def through(density: Any) -> Any:
            def value(z: Any) -> Any:
                hyper, f = MODEL.unpack(z)
                return 3 * density(robust_gp.covariance(hyper, jnp.asarray(X)), f)

            return jax.vmap(jax.value_and_grad(value))

        ours, plain = quick_jit(lambda z: (through(log_gaussian)(z), through(by_cholesky)(z)))(z)
        np.testing.assert_allclose(ours[0], plain[0], rtol=1e-12)
        np.testing.assert_allclose(ours[1], plain[1], rtol=1e-8, atol=1e-9)
        assert np.all(np.linalg.norm(plain[1][:, 1:3], axis=1) > 1)  # K matters here
        for model in (MODEL, WHITENED):
            target = model.target(X, Y)
            grads = quick_jit(jax.vmap(jax.grad(target.log_prob)))(jnp.asarray(z))
            step = 1e-5 * np.eye(MODEL.dim)
            shifted = np.concatenate([z[:, None] + step, z[:, None] - step])
            up, down = densities(model, shifted.reshape(-1, MODEL.dim)).reshape(2, *z.shape)
            np.testing.assert_allclose(grads, (up - down) / 2e-5, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 4, 5, 11, 16, 21])
def test_a_matrix_is_factorised_by_panels(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What GPUs do: the factor, put together and read in pieces; NaN where there is none."""
    monkeypatch.setattr(_gaussian_prior, "PANEL", 4)
    draw = np.random.default_rng(n).normal(size=(2, n, n))
    k, f = draw @ draw.transpose(0, 2, 1) + np.eye(n), draw[:, 0]
    wrong = k.copy()
    wrong[0, n // 2, n // 2] = -1.0

    def by_panels(k: Any, f: Any) -> tuple[Any, Any]:
        found = _gaussian_prior.panels(_gaussian_prior._bordered(k, f))
        return _gaussian_prior._together(found), _gaussian_prior._read_panels(found)

    with x64():
        root, (white, diagonal) = quick_jit(jax.vmap(by_panels))(jnp.asarray(k), jnp.asarray(f))
        failed = quick_jit(jax.vmap(by_panels))(jnp.asarray(wrong), jnp.asarray(f))[1][1]
    known = np.linalg.cholesky(k)
    np.testing.assert_allclose(root[:, :n, :n], known, rtol=0, atol=1e-12)
    np.testing.assert_allclose(white, np.linalg.solve(known, f[..., None])[..., 0], atol=1e-11)
    np.testing.assert_allclose(diagonal, np.diagonal(known, axis1=1, axis2=2), atol=1e-12)
    assert np.isnan(failed[0]).any()
    assert np.isfinite(failed[1]).all()


@pytest.mark.parametrize("model", [MODEL, WHITENED], ids=["f", "u"])
def test_failures_are_impossible_points(model: RobustGP) -> None:
    """Overflow and failed factorisations are −∞; NaN that came in stays; both under one `vmap`."""
    bad = [(0, 800.0), (0, -800.0), (1, 400.0), (2, 400.0), (2, 1e300), (3, 800.0), (4, -800.0)]
    z = np.tile(points()[0], (len(bad) + 2, 1))
    for row, (i, value) in zip(z, bad):
        row[i] = value
    z[-2, 5] = np.nan
    with x64():
        log_p = densities(model, z)
        np.testing.assert_array_equal(log_p[:-2], -np.inf)
        assert np.isnan(log_p[-2])
        assert np.isfinite(log_p[-1])
        indefinite = jnp.array([[1.0, 2.0], [2.0, 1.0]])
        assert np.isnan(log_gaussian(indefinite, jnp.ones(2)))


def gp_q(sd: float = 0.6, centre: Any = None) -> sa.MeanField:
    centre = points(14, 1)[0] if centre is None else centre
    return sa.MeanField.from_moments(centre, sd * np.linspace(0.5, 1.5, MODEL.dim))


def test_prediction_against_dense_inverses() -> None:
    with x64():
        q = gp_q()
        z, s2 = np.array(q.mean), np.array(q.sd)[4 + D :] ** 2
        both = quick_jit(
            lambda q: [MODEL.predict(q, (X, Y), NEW, f) for f in ("correct", "published")]
        )
        correct, published = (Predictive(*map(np.array, p)) for p in both(q))
        student = np.array(published.log_prob(jnp.full(4, 0.3)))
    inverse, k = np.linalg.inv(prior(z)), matern(z, NEW, X)
    gain, amplitude = k @ inverse, np.exp(z[2]) ** 2
    var = amplitude + np.exp(z[1]) ** 2 + np.diag(gain @ np.diag(s2) @ gain.T - gain @ k.T)
    np.testing.assert_allclose(correct.mean, gain @ z[4 + D :], rtol=1e-9)
    np.testing.assert_allclose(correct.var, var, rtol=1e-9)
    np.testing.assert_allclose(correct.scale, np.exp(z[0]), rtol=1e-12)
    sites = np.linalg.inv(prior(z) + np.diag(1 / s2))
    scale = np.sqrt(amplitude + np.exp(z[0]) ** 2 - np.diag(k @ sites @ k.T))
    np.testing.assert_allclose(published.mean, correct.mean, rtol=1e-12)
    np.testing.assert_allclose(published.scale, scale, rtol=1e-9)
    expected = stats.t(np.exp(z[3]), correct.mean, scale).logpdf(0.3)
    np.testing.assert_allclose(student, expected, rtol=1e-7)

    # f ~ q, then f* given f by the conditional of the prior
    draw = np.random.default_rng(15).normal(size=(40_000, N + len(NEW)))
    f = z[4 + D :] + np.sqrt(s2) * draw[:, :N]
    given = amplitude + np.exp(z[1]) ** 2 - np.diag(gain @ k.T)
    new = f @ gain.T + np.sqrt(given) * draw[:, N:]
    assert z_score(new, correct.mean) < Z_MAX
    assert z_score((new - correct.mean) ** 2, correct.var) < Z_MAX
    for mutant in (given, published.scale**2):  # f known exactly; q's s² as a site's
        assert z_score((new - correct.mean) ** 2, mutant) > Z_MUTANT


def test_prediction_from_a_point() -> None:
    """Where q is sure of f: the plain GP; and of u = L⁻¹f: the same."""
    z = points(14, 1)[0]
    k, root = matern(z, NEW, X), np.linalg.cholesky(prior(z))
    u = np.concatenate([z[: 4 + D], np.linalg.solve(root, z[4 + D :])])
    given = np.exp(2 * z[2]) + np.exp(2 * z[1]) - np.diag(k @ np.linalg.inv(prior(z)) @ k.T)
    with x64():
        for model, centre in ((MODEL, z), (WHITENED, u)):
            sure = model.predict(gp_q(1e-9, centre), (X, Y), NEW)
            np.testing.assert_allclose(sure.mean, k @ np.linalg.solve(prior(z), z[4 + D :]))
            np.testing.assert_allclose(sure.var, given, rtol=1e-7)
        q = gp_q(centre=u)
        var = WHITENED.predict(q, (X, Y), NEW).var
        half = np.linalg.solve(root, k.T)  # u's own spread reaches f* through kL⁻ᵀ
        np.testing.assert_allclose(var, given + np.array(q.sd)[4 + D :] ** 2 @ half**2, rtol=1e-9)


@pytest.mark.parametrize("nu", [2.5, 30.0])
@pytest.mark.parametrize("sd", [0.1, 1.0, 10.0, 100.0])
def test_predictive_density(nu: float, sd: float) -> None:
    y = np.array([0.4, 0.4 + sd, 5.0])

    def exact(y: float) -> float:
        f = lambda f: stats.t.pdf(y, nu, f, 1.0) * stats.norm.pdf(f, 0.4, sd)  # noqa: E731
        return integrate.quad(f, 0.4 - 12 * sd, 0.4 + 12 * sd, points=[0.4, y], limit=300)[0]

    with x64():
        at = np.concatenate([y, np.sinh(np.linspace(-15, 15, 2001))])
        mean, var = jnp.full(at.shape, 0.4), jnp.full(at.shape, sd**2)
        ours = Predictive(mean, var, jnp.asarray(nu), jnp.asarray(1.0))
        log_p = np.array(quick_jit(lambda p: p.log_prob(at))(ours))
    np.testing.assert_allclose(log_p[:3], np.log([exact(v) for v in y]), atol=1e-5)
    np.testing.assert_allclose(np.trapezoid(np.exp(log_p[3:]), at[3:]), 1, atol=1e-3)


def test_two_processes_are_fitted_side_by_side() -> None:
    with x64():
        targets = [MODEL.target(X, sign * Y) for sign in (1, -1)]
        start = gp_q().mean.at[0].set(1.0)
        q0 = sa.MeanField.from_moments(start, jnp.ones(MODEL.dim).at[2].set(300.0))
        result = sa.fit(targets, sa.pmcsa(4), q0=q0, steps=50, progress=False)
        assert result.q.loc.dtype == jnp.float64
        assert np.all(np.isfinite(result.q.loc))
        assert np.asarray(result.trace.invalid).sum() == 0  # −∞ is legal
        several = jax.vmap(lambda q, data: MODEL.predict(q, data, NEW), (0, 0))
        many = quick_jit(several)(result.q, result.target.data)
        one = MODEL.predict(result[1].q, result[1].target.data, NEW)
        np.testing.assert_allclose(many.mean[1], one.mean, rtol=1e-9)


# -- bad input -----------------------------------------------------------------------------------

Q = sa.MeanField.standard(BNN(2, ()).dim)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: BNN(0), "inputs must be an integer ≥ 1, got 0"),
        (lambda: BNN(2.5), "inputs must be an integer"),
        (lambda: BNN(2, [5]), r"hidden must be a tuple of layer sizes, got \[5\]"),
        (lambda: BNN(2, (5, 0)), "hidden must be an integer ≥ 1, got 0"),
        (lambda: BNN(3).target(X, Y), r"x must have shape \(rows, 3\), got \(6, 2\)"),
        (lambda: BNN(2).target(X[0], Y), r"x must have shape \(rows, 2\), got \(2,\)"),
        (lambda: BNN(2).target(X[:0], Y[:0]), "x must have shape"),
        (lambda: BNN(2).target(X, Y[:, None]), r"y must have shape \(6,\).* got \(6, 1\)"),
        (lambda: BNN(2, ()).predict_draws(jax.random.key(0), Q, X, 0), "draws must be an integer"),
        (lambda: RobustGP(0, 3), "inputs must be an integer ≥ 1, got 0"),
        (lambda: RobustGP(2, 0), "rows must be an integer ≥ 1, got 0"),
        (lambda: RobustGP(3, N).target(X, Y), r"x must have shape \(rows, 3\)"),
        (lambda: MODEL.target(X, Y[:4]), r"y must have shape \(6,\)"),
        (lambda: MODEL.target(X[:4], Y[:4]), "x must have 6 rows, got 4"),
        (lambda: MODEL.predict(gp_q(), (X, Y), NEW, "other"), "formula must be one of .*'other'"),
        (lambda: WHITENED.predict(gp_q(), (X, Y), NEW, "published"), "use whitened=False"),
    ],
)
def test_bad_input(call: Callable[[], Any], says: str) -> None:
    with x64(), pytest.raises(ValueError, match=says):
        call()
