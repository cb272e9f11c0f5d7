"""The documentation is executed: its code runs and prints what it says, its links lead there.

A ```python block is run, one namespace to a page, from the root of the repository; one fenced as
```python slow runs among the slow tests, and one as ```python notest is only compiled. Where a
```text block follows at once, it is what was printed; as ```text near, but for numbers, which may
be off by a fifth: on another machine a fit may take another turn.
"""

from __future__ import annotations

import contextlib
import functools
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

import scoreascent as sa
from scoreascent.diagnostics.rules import promise
from scoreascent.experiments.accuracy import own
from scoreascent.experiments.verdict import bench
from scoreascent.run import TOLERANCE
from tests.stats import Z_MAX, Z_MUTANT, quick_jit, z_score

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
PAGES += sorted(DOCS.glob("tutorials/*.md"))
OTHERS = [ROOT / "CODE_OF_CONDUCT.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md"]
OTHERS += [*sorted(DOCS.glob("results/**/*.md")), ROOT / "examples" / "README.md"]

FENCED = re.compile(r"^( *)```([^\n`]*)\n(.*?)^ *```[^\S\n]*$", re.DOTALL | re.MULTILINE)
INLINE_CODE = re.compile(r"`[^`\n]*`")
LONG = ("guide.md", "models.md", "shapes.md")
NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
NEAR = 0.2  # by which share a number may be off, and 0.05 whatever it is
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")


class Block(NamedTuple):
    """A ```python block, the line it starts on, and the ```text block that follows it at once."""

    code: str
    line: int
    runs: bool
    slow: bool
    prints: str | None
    nearly: bool = False


def blocks(text: str) -> list[Block]:
    """The Python of a page."""
    found = []
    fences = list(FENCED.finditer(text))
    for fence, after in zip(fences, [*fences[1:], None]):
        language, *options = fence[2].split() or [""]
        if language != "python":
            continue
        assert options in ([], ["notest"], ["slow"]), f"unknown fence: python {' '.join(options)}"
        shown, nearly = None, False
        if (
            after
            and after[2].split()[:1] == ["text"]
            and not text[fence.end() : after.start()].strip()
        ):
            assert after[2].split() in (["text"], ["text", "near"]), f"unknown fence: {after[2]}"
            shown, nearly = outdented(after), after[2].split() == ["text", "near"]
        line = text.count("\n", 0, fence.start()) + 1
        runs, slow = options != ["notest"], options == ["slow"]
        found.append(Block(outdented(fence), line, runs, slow, shown, nearly))
    return found


def outdented(fence: re.Match[str]) -> str:
    """What is fenced, less the indentation of the fence."""
    return re.sub(f"^{fence[1]}", "", fence[3], flags=re.MULTILINE)


def stripped(text: str) -> str:
    """Without whitespace at the end of lines and of the text."""
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()


def are_near(printed: str, said: str) -> bool:
    """Whether two texts have the same words, and numbers that are near each other.

    White space and the lines of tables do not count, since they follow the width of numbers.
    """
    texts = [re.sub(r"[\s━─]+", " ", text) for text in (printed, said)]
    words, numbers = ([find(text) for text in texts] for find in (NUMBER.split, NUMBER.findall))
    if [w.strip() for w in words[0]] != [w.strip() for w in words[1]]:
        return False
    pairs = [(float(a.replace("−", "-")), float(b.replace("−", "-"))) for a, b in zip(*numbers)]
    return all(abs(a - b) <= max(0.05, NEAR * abs(b)) for a, b in pairs)


def run(text: str, path: str, slow: bool = True) -> None:
    """Execute a page, slow blocks included or not; a traceback names the page and its line."""
    namespace: dict[str, Any] = {"__name__": "docs"}
    for block in blocks(text):
        source = "\n" * block.line + block.code
        compiled = compile(source, path, "exec", dont_inherit=True)
        if not block.runs or (block.slow and not slow):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compiled, namespace)
        if block.nearly:
            assert are_near(printed.getvalue(), block.prints or ""), (
                f"{path}:{block.line} printed\n{printed.getvalue()}"
            )
        elif block.prints is not None:
            assert stripped(printed.getvalue()) == stripped(block.prints), f"{path}:{block.line}"


def missing(text: str, folder: Path) -> list[str]:
    """The relative links and images of a page that lead nowhere."""
    prose = INLINE_CODE.sub("", FENCED.sub("", text))
    targets = [link.split("#")[0] for link in LINK.findall(prose)]
    relative = [x for x in targets if x and not re.match(r"[a-z][a-z0-9+.-]*:", x)]
    return [x for x in relative if not (folder / x).exists()]


@pytest.fixture
def quiet_root(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The root as working directory, no windows, no progress bars, jax as it was before."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sa, "fit", functools.partial(sa.fit, progress=False))
    pyplot = pytest.importorskip("matplotlib.pyplot")
    backend, x64 = pyplot.get_backend(), jax.config.jax_enable_x64
    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")
    pyplot.switch_backend(backend)
    jax.config.update("jax_enable_x64", x64)


def long_ones_slow(pages: list[Path]) -> list[Any]:
    """Pages that fit many models are run among the slow tests."""
    return [pytest.param(p, marks=[pytest.mark.slow] * (p.name in LONG)) for p in pages]


@pytest.mark.usefixtures("quiet_root")
@pytest.mark.parametrize("page", long_ones_slow([*PAGES]), ids=lambda page: page.name)
def test_code_runs_and_prints_what_it_says(page):
    run(page.read_text(encoding="utf-8"), str(page), slow=False)


def has_slow_blocks(page: Path) -> bool:
    return any(block.slow for block in blocks(page.read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_root")
@pytest.mark.parametrize("page", [*filter(has_slow_blocks, PAGES)], ids=lambda page: page.name)
def test_slow_code_runs_and_prints_what_it_says(page):
    run(page.read_text(encoding="utf-8"), str(page))


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    assert missing(page.read_text(encoding="utf-8"), page.parent) == []


def test_the_checks_can_fail(tmp_path):
    page = "```python\nx = 2\nprint(x, ' ')\n```\n\n```text\n2\n```\n"
    run(page, "page")
    with pytest.raises(AssertionError, match="page:1"):
        run(page.replace("text\n2", "text\n3"), "page")
    with pytest.raises(AssertionError, match="printed"):
        run(page.replace("text\n2", "text near\n3"), "page")
    run(page.replace("text\n2", "text near\n 2.3"), "page")
    assert are_near("┃ a ┃ 1.0 ┃ -10 ┃", "┃ a ┃  1.04 ┃  -9 ┃")
    for other in ("sd 10", "mean -10", "mean 10 10", "mean 13"):
        assert not are_near("mean 10", other)
    with pytest.raises(NameError):
        run("```python\nundefined\n```\n", "page")
    run("```python notest\nundefined\n```\n", "page")
    run("```python slow\nundefined\n```\n", "page", slow=False)
    with pytest.raises(NameError):
        run("```python slow\nundefined\n```\n", "page")
    with pytest.raises(SyntaxError):
        run("```python notest\nx = = 2\n```\n", "page")
    run("```\nno = = python\n```\n\n- in a list\n\n  ```python\n  y = 1\n  ```\n", "page")
    assert [b.prints for b in blocks(page.replace("```\n\n```t", "```\nprose\n\n```t"))] == [None]
    (tmp_path / "here.md").touch()
    links = "[a](here.md#part) [b](#part) [c](https://x.org/y) ![d](no.png) `[e](no.md)`"
    assert missing(links, tmp_path) == ["no.png"]


@pytest.fixture(scope="module")
def random_walk():
    """The kernel that CONTRIBUTING.md writes as its example."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = [b for b in blocks(page) if "class RandomWalk" in b.code]
    namespace: dict[str, Any] = {"__name__": "docs"}
    exec(compile(block.code, "CONTRIBUTING.md", "exec", dont_inherit=True), namespace)
    return namespace["RandomWalk"]


TARGET = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)


def largest_z(kernel: Any) -> float:
    """20 000 chains from the target N(0, I), three steps; means and variances against 0 and 1."""
    q = sa.MeanField(jnp.array([0.5, -1.0]), jnp.array([1.0, 2.0]))  # λ has no say in what is left

    def chain(key: Any) -> Any:
        start, *keys = jax.random.split(key, 4)
        point: sa.Point = sa.evaluate(TARGET, jax.random.normal(start, (2,)))[0]
        for key in keys:
            point, _ = kernel.step(key, TARGET, q, point)
        return point.z

    z = quick_jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), 20_000))
    moments = jnp.column_stack([z, z**2, z[:, :1] * z[:, 1:]])
    return z_score(moments, jnp.array([0.0, 0.0, 1.0, 1.0, 0.0]))


def test_the_kernel_of_contributing_leaves_a_gaussian_invariant(random_walk):
    class AcceptsAll(random_walk):
        def propose(self, *args):
            return super().propose(*args)._replace(acceptance=jnp.float32(1))

    assert largest_z(random_walk()) < Z_MAX
    assert largest_z(AcceptsAll()) > Z_MUTANT


def test_the_kernel_of_contributing_works_in_pmcsa(random_walk):
    method = sa.pmcsa(4, kernel=random_walk(), rao_blackwell=True)
    assert "RandomWalk()" in repr(method)
    result = sa.fit(TARGET, method, steps=20, progress=False)
    assert result.status == "max_steps"
    assert 0.2 < float(result.trace.acceptance.mean()) < 1
    assert bool(jnp.all(jnp.isfinite(result.q.mean)) & jnp.all(result.q.sd > 0))


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md", "docs/verdict.md"])
def test_pages_promise_what_the_verdict_does(page: str) -> None:
    """One sentence, which `print` shows, and by which both benches judge."""
    sentence = promise(TOLERANCE).removeprefix("good promises that ")
    assert sentence in " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert TOLERANCE == bench.MAX_MEAN_ERROR == bench.MAX_SD_ERROR == own.RIGHT
