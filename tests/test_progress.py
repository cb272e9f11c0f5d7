"""What long work says while it runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

import scoreascent as sa
from scoreascent import _progress

TARGET = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 6), (1e9, 1)])
def test_a_log_gets_plain_lines(
    seconds: float,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_chunks: None,
) -> None:
    """One after every chunk if they were due at once, else the last one alone; and no bar."""
    monkeypatch.setattr(_progress, "SECONDS_BETWEEN_LINES", seconds)
    sa.fit(TARGET, sa.pmcsa(2), steps=6, callback=lambda *_: None, callback_every=1)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines
    assert said[-1].startswith("fit 6/6  loss ")
    assert not any("━" in line or "\x1b" in line for line in said)


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    sa.fit(TARGET, sa.pmcsa(2), steps=6, progress=False)
    assert capsys.readouterr().err == ""
