"""The command line and the demo; a missing extra is the matter of `test_extras.py`."""

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import scoreascent as sa
from scoreascent import demo
from scoreascent.cli import app


def test_doctor_tells_the_versions():
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert sa.__version__ in result.output
    assert "jax" in result.output


def test_demo_target_is_the_conjugate_posterior():
    """Given σ, the coefficients are Gaussian: the density must differ from it by a constant."""
    target, names = demo.diabetes()
    assert len(names) == target.dim == 12
    X, y = (np.asarray(x, np.float64) for x in target.data)
    X = np.column_stack([X, np.ones(len(X))])
    sigma = 0.7
    precision = X.T @ X / sigma**2 + np.eye(11)
    mean = np.linalg.solve(precision, X.T @ y / sigma**2)
    rng = np.random.default_rng(0)
    gaps = []
    for _ in range(5):
        z = mean + 0.05 * rng.normal(size=11)
        exact = -0.5 * (z - mean) @ precision @ (z - mean)
        gaps.append(float(target.log_prob(np.append(z, np.log(sigma)).astype("f"))) - exact)
    np.testing.assert_allclose(gaps, gaps[0], atol=0.02)


def numbers(*ratios):
    mean, cov = np.zeros(3), np.eye(3)
    reference = demo.Fitted(mean, cov, 1.0)
    return reference, {
        name: demo.Fitted(mean, ratio**2 * cov, 1.0) for name, ratio in zip(demo.METHODS, ratios)
    }


def test_the_demo_says_what_its_numbers_say():
    good = demo._verdict(*numbers(0.3, 0.5, 0.97))
    assert "pMCSA-256 gets the spreads better than the ELBO" in good
    assert "Few chains are not enough" in good
    bad = demo._verdict(*numbers(0.9, 0.95, 0.2))
    assert "pMCSA-256 gets the spreads no better than the ELBO" in bad
    assert "Few chains are not enough" not in bad


@pytest.mark.slow
def test_the_whole_demo(tmp_path):
    console = Console(record=True, width=100)
    demo.run(console, tmp_path / "demo.png", key=1)
    text = console.export_text()
    assert "pMCSA-256 gets the spreads better than the ELBO" in text
    assert "sa.fit gets the spreads better than the ELBO: off by a factor of 1.01" in text
    assert "sa.fit's own verdict: good" in text
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
