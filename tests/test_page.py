"""What a notebook shows of a fit, and the page about one: read strictly, nothing from outside."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

import scoreascent as sa

pytest.importorskip("matplotlib").use("Agg")
from scoreascent import page  # noqa: E402
from scoreascent.fitting import showing  # noqa: E402

VOID = ("meta", "img", "br")


class Strict(HTMLParser):
    """Refuses what is not balanced, and what would be fetched from anywhere."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags, self.words, self.images, self._open = [], [], [], []  # type: ignore[var-annotated]
        self.feed(html)
        self.close()
        assert self._open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        assert tag in VOID, f"<{tag}/>"
        self._seen(tag, dict(attrs))

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag not in VOID, f"<{tag}> is not closed"
        assert tag not in ("script", "link", "iframe", "object")
        self._open.append(tag)
        self._seen(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            assert "url(" not in data
            assert "@import" not in data
        else:
            self.words.append(data)

    def _seen(self, tag: str, attrs: dict[str, Any]) -> None:
        self.tags.append(tag)
        for name in ("href", "srcset", "action", "data"):
            assert name not in attrs
        assert not any(name.startswith("on") for name in attrs)
        assert "url(" not in (attrs.get("style") or "")
        if tag == "img":
            assert attrs["alt"]
            kind, _, data = attrs["src"].partition(",")
            assert kind == "data:image/png;base64"
            self.images.append(base64.b64decode(data, validate=True))


def test_the_parser_refuses() -> None:
    for bad in ("<p>", "<p></div>", "<br>", "<script></script>", '<img alt="a" src="https://x"/>',
                '<p onclick="f()"></p>', "<style>p { background: url(x) }</style>"):  # fmt: skip
        with pytest.raises((AssertionError, IndexError)):
            Strict(bad)
    assert Strict('<p style="margin:0">a &lt; b<br/></p>').text == "a < b"


def log_density(p: Any) -> Any:
    """Two places that go together, a scale of a long tail, and hostile names."""
    a, b = p["<b>a</b>"], p["b$x & y"]
    return -0.5 * (a**2 - 1.6 * a * b + b**2) / 0.36 - p["scale"]


HEADINGS = (
    "What the verdict rests on",
    "Numbers",
    "Marginals",
    "What correlates most",
    "How it went",
    "Where the chains were",
    "What it decided",
    "How it was made",
)
NAMES = ("<b>a</b>", "b$x & y", "scale")


@pytest.fixture(scope="module")
def result() -> sa.Result:
    params = dict.fromkeys(NAMES[:2], constraints.real) | {"scale": constraints.positive}
    return sa.fit(sa.Target(log_density, params=params), progress=False)


# -- in a notebook ---------------------------------------------------------------------------------


def test_a_notebook_shows_numbers_errors_verdict_and_what_is_folded(result: sa.Result) -> None:
    seen = Strict(result._repr_html_())
    for row in result.summary():
        for text in (row["name"], *(showing.shown(row, k) for k in ("mean", "mean_error", "sd"))):
            assert text in seen.text
    assert f"verdict: {result.diagnosis.verdict} , because" in seen.text
    assert all(" ".join(x.split()) in seen.text for x in result.decisions)
    assert seen.tags.count("details") == 3
    assert showing.GREEN in result._repr_html_()


def test_a_notebook_shows_a_diagnosis(result: sa.Result) -> None:
    seen = Strict(result.diagnosis._repr_html_())
    assert f"verdict: {result.diagnosis.verdict}" in seen.text
    assert f"{result.diagnosis.k_hat:.2f}" in seen.text
    assert "R̂ over the chains" in seen.text
    bad = replace(result.diagnosis, verdict="not converged: run longer", advice="<more>")
    seen = Strict(bad._repr_html_())
    assert "try <more>" in seen.text
    assert "good promises" not in seen.text
    seen = Strict(replace(result, diagnosis=bad)._repr_html_())
    assert "try <more>" in seen.text


def test_a_notebook_shows_a_fit_by_hand_and_replications() -> None:
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=40)
    one = sa.fit(target, sa.pmcsa(2), steps=3, progress=False)
    seen = Strict(one._repr_html_())
    assert "not judged" in seen.text
    assert "… 10 more" in seen.text
    assert showing.AMBER in one._repr_html_()
    many = sa.fit(target, sa.pmcsa(2), steps=3, replications=2, progress=False)
    assert "2 replications" in Strict(many._repr_html_()).text


def test_html_and_text_say_the_same(result: sa.Result) -> None:
    seen, printed = Strict(result._repr_html_()).text, " ".join(str(result).split())
    for says in (showing.how_it_ended(result), *showing.notes(result, result.summary())):
        assert says in seen
        assert says in printed


# -- the page --------------------------------------------------------------------------------------


def test_the_page_has_all_of_it(result: sa.Result, tmp_path: Path) -> None:
    path = result.report(tmp_path / "fit.html")
    assert path == tmp_path / "fit.html"
    html = path.read_text(encoding="utf-8")
    seen = Strict(html)
    assert html.startswith("<!doctype html>")
    assert "prefers-color-scheme: dark" in html
    assert not re.search(r"https?://", html)
    for heading in HEADINGS:
        assert heading in seen.text
    assert all(name in seen.text for name in NAMES)
    for row in result.summary():
        assert showing.shown(row, "sd_error") in seen.text
    assert sa.__version__ in seen.text
    assert repr(result.method) in seen.text
    assert "densities" in seen.text
    assert len(seen.images) == 4
    for image in seen.images:
        assert image.startswith(b"\x89PNG\r\n\x1a\n")
        assert image.endswith(b"IEND\xaeB`\x82")
    again = sa.Result.report(result, str(tmp_path / "again.html"))
    assert again.read_bytes() == path.read_bytes()  # the same fit, the same page


def test_what_correlates_is_found(result: sa.Result) -> None:
    scalars = page._scalars(result, 0)
    assert list(scalars) == list(NAMES)
    assert set(scalars["scale"]) == {"q", "chains"}
    assert page.most_correlated(scalars, 4) == list(NAMES[:2])
    assert page.most_correlated({"scale": scalars["scale"]}, 4) == []


def test_a_fit_by_hand_is_judged_first(tmp_path: Path) -> None:
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    one = sa.fit(target, sa.pmcsa(32), steps=400, progress=False)
    seen = Strict(one.report(tmp_path / "fit.html").read_text(encoding="utf-8"))
    assert "verdict:" in seen.text
    assert "What correlates most" not in seen.text
    assert one.diagnosis is None


def test_the_page_of_a_file_without_its_target(result: sa.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "fit.npz")
    bare = sa.load(tmp_path / "fit.npz")
    seen = Strict(bare.report(tmp_path / "fit.html").read_text(encoding="utf-8"))
    assert f"verdict: {result.diagnosis.verdict}" in seen.text
    assert "Marginals" in seen.text
    result.save(tmp_path / "none.npz", draws=0)
    none = sa.load(tmp_path / "none.npz")
    seen = Strict(none.report(tmp_path / "none.html").read_text(encoding="utf-8"))
    assert "Marginals" not in seen.text
    assert "How it went" in seen.text


def test_many_parameters(result: sa.Result, tmp_path: Path) -> None:
    """Only some of very many are shown: those that are known worst."""
    d = 1500
    target = sa.Target(lambda p: -0.5 * jnp.sum(p["x"] ** 2), params={"x": sa.Param(shape=(d,))})
    one = sa.fit(target, sa.pmcsa(4), q0=sa.MeanField.standard(d), steps=2, progress=False)
    draws = one.sample(0, 4000)["x"]
    rows = [
        {"name": f"x[{i}]", "mean": float(m), "sd": 1.0, "q05": -1.0, "q50": 0.0, "q95": 1.0,
         "mean_error": 0.001 * i, "sd_error": 0.0, "tail": 0.0}
        for i, m in enumerate(np.mean(draws, 0))
    ]  # fmt: skip
    judged = replace(one, diagnosis=replace(result.diagnosis, numbers=tuple(rows)))
    html = judged.report(tmp_path / "fit.html").read_text(encoding="utf-8")
    seen = Strict(html)
    assert "200 of 1500 numbers: those known worst" in seen.text
    assert "x[1499]" in seen.text
    assert "x[1299]" not in seen.text
    assert "Marginals: 12 of 1500" in seen.text
    assert len(html) < 3_000_000


def test_bad_input(result: sa.Result, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path: the folder '.*none' does not exist"):
        result.report(tmp_path / "none" / "fit.html")
    with pytest.raises(ValueError, match=r"path: .* is a folder; name a file in it"):
        result.report(tmp_path)
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    many = sa.fit(target, sa.pmcsa(2), steps=3, replications=2, progress=False)
    with pytest.raises(ValueError, match=r"take one of them, such as result\[0\]"):
        many.report(tmp_path / "fit.html")
    with pytest.raises(ValueError, match=r"key must be"):
        result.report(tmp_path / "fit.html", key="x")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
