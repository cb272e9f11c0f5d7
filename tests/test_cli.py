"""The command line, the demo, and what happens where an optional dependency is missing."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import scoreascent as sa
from scoreascent import demo
from scoreascent.cli import app

OPTIONAL = ("typer", "matplotlib", "sklearn", "pandas", "pyarrow", "blackjax", "arviz", "pymc")


def python_without(modules, code):
    """Run code in a fresh interpreter in which these modules cannot be imported."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({list(modules)!r}))"
    script = f"{hide}\n{textwrap.dedent(code)}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def test_the_core_runs_without_any_extra():
    ran = python_without(
        OPTIONAL,
        """
        import jax.numpy as jnp, scoreascent as sa
        target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
        print(sa.fit(target, sa.pmcsa(), steps=3, progress=False).status)
        """,
    )
    assert ran.stdout == "max_steps\n", ran.stderr


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        (["typer"], ["demo"], "scoreascent[cli]"),
        (["sklearn"], ["demo"], "scoreascent[cli]"),
        (["matplotlib"], ["demo"], "scoreascent[cli]"),
        (["pandas"], ["reproduce", "figure1"], "scoreascent[experiments]"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(missing, arguments, extra):
    ran = python_without(
        missing,
        f"""
        import sys
        sys.argv = ["scoreascent", *{arguments!r}]
        from scoreascent.__main__ import main
        main()
        """,
    )
    assert ran.returncode == 1
    assert extra in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr


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
