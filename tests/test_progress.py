"""What long work says while it runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import functools
import io
import re

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import scoreascent as sa
from scoreascent import _progress
from scoreascent.fitting import ladder
from tests.helpers import same_run, stopping

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


def test_lines_say_what_runs_how_far_and_how_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_chunks: None
) -> None:
    """Of a fit that chooses for itself: its stage, the step, where it will likely end, the rest."""
    monkeypatch.setattr(_progress, "SECONDS_BETWEEN_LINES", 0.0)
    result = sa.fit(TARGET, steps=400)
    lines = capsys.readouterr().err.splitlines()
    runs = [line for line in lines if line.startswith("stage ")]
    assert re.match(r"stage 1, proposals \d+/400  loss ", runs[0])
    assert "to be known to 0.03 sds" in runs[0]
    assert any(" left" in line for line in runs[:-1])
    last = re.fullmatch(r"stage 1, .* (\d+)/about (\d+)  .*known to ([\d.]+) of 0.03 sds", runs[-1])
    assert last is not None
    assert int(last[1]) == int(last[2]) == result.steps
    assert float(last[3]) <= 0.03
    assert sum(line.startswith("auto: ") for line in lines) == len(result.decisions)


def test_showing_changes_no_bit(tiny_chunks: None) -> None:
    stop = sa.Converged(tolerance=0.1, every=20)
    shown, silent = (
        sa.fit(TARGET, sa.pmcsa(32), steps=600, stop=stop, progress=p) for p in (True, False)
    )
    assert same_run(shown, silent)


def test_where_a_rule_will_be_met() -> None:
    """Errors that are twice too large take four times as many steps."""
    method = sa.pmcsa(64)
    state = sa.fit(TARGET, method, steps=0, progress=False).state
    rule = stopping.Converged(tolerance=0.02, every=10)
    watch = rule.watch(method, rule.blank(method, state, False), TARGET)
    assert watch.aim() == (None, "to be known to 0.02 sds")
    watch.windows = watch.windows._replace(skipped=np.zeros(20), origin=np.asarray(100))
    watch.seen = watch.seen._replace(windows=10, error=0.04)
    assert watch.aim() == (100 + 4 * 200, "known to 0.04 of 0.02 sds")
    climb_rule = ladder.Ladder(tolerance=0.02)
    climb = climb_rule.watch(method, climb_rule.blank(method, state, False), TARGET)
    assert climb.aim().steps is None
    climb.seen = climb.seen._replace(windows=40, error=0.06)
    climb.windows = climb.windows._replace(told=np.array([40, 0.06, 1.0, 50, 80, 0.06]))
    assert climb.aim() == (720, "known to 0.06 of 0.02 sds")
    assert stopping.Watch(None, method, None).aim() == (None, "")


def test_the_end_of_the_bar_is_never_beyond_the_last_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with _progress.Bar(True, 100, 0) as bar:
        bar.update(50, 1.0, 0.5, _progress.Aim(1000, "far"))
        assert "fit 50/about 100  " in bar._text
        bar.update(60, 1.0, 0.5, _progress.Aim(20, "near"))
        assert "fit 60/about 60  " in bar._text
        assert "left" not in bar._text


def test_a_terminal_is_told_what_goes_on_between(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = functools.partial(Console, file=out, force_terminal=True)
    monkeypatch.setattr(_progress, "Console", lambda **_: console())
    with _progress.busy(False, "searching"):
        pass
    assert out.getvalue() == ""
    with _progress.busy(True, "searching"):
        pass
    assert "searching" in out.getvalue()


def test_a_log_is_not_told_of_short_work(capsys: pytest.CaptureFixture[str]) -> None:
    with _progress.busy(True, "searching"):
        pass
    assert capsys.readouterr().err == ""
