"""The pictures of the pages: `python docs/tools/pictures.py` draws them into docs/pictures.

Names as arguments draw these alone: `python docs/tools/pictures.py chains`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import optax
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.patches import Ellipse

import scoreascent as sa

FOLDER = Path(__file__).parents[1] / "pictures"
EXCLUSIVE, INCLUSIVE, TRUTH = "#d95f02", "#1b9e77", "0.45"
COV = np.array([[1.0, 0.85], [0.85, 1.0]])
EDGE = 3.2  # the pictures show ±EDGE


def log_density(z: Any) -> Any:
    """A Gaussian whose two coordinates correlate by 0.85."""
    return -0.5 * z @ jnp.asarray(np.linalg.inv(COV), z.dtype) @ z


TARGET = sa.Target(log_density, dim=2)


def contours(ax: Any) -> None:
    """The regions of 50, 90 and 99 % of the posterior."""
    axis = np.linspace(-EDGE, EDGE, 200)
    x, y = np.meshgrid(axis, axis)
    z = np.stack([x, y], -1)
    height = np.exp(-0.5 * np.einsum("...i,ij,...j", z, np.linalg.inv(COV), z))
    ax.contourf(x, y, height, [0.01, 0.1, 0.5, 1.01], colors=["0.93", "0.86", "0.78"])
    ax.set(xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), aspect="equal", xticks=[], yticks=[])


def ellipse(ax: Any, mean: Any, sd: Any, colour: str, **options: Any) -> None:
    """The region of 90 % of a mean-field Gaussian."""
    size = 2 * np.sqrt(2 * np.log(10))
    ax.add_patch(
        Ellipse(mean, size * sd[0], size * sd[1], fill=False, ec=colour, lw=2.2, **options)
    )


def covering() -> None:
    """What either divergence asks of a q that cannot be the posterior."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4), layout="constrained")
    contours(left)
    narrow = 1 / np.sqrt(np.diag(np.linalg.inv(COV)))
    ellipse(left, (0, 0), narrow, EXCLUSIVE, label="KL(q‖π): the ELBO's q", zorder=3)
    ellipse(left, (0, 0), np.sqrt(np.diag(COV)), INCLUSIVE, label="KL(π‖q): mass covering")
    left.set_title("two parameters that correlate")
    left.legend(loc="upper left", fontsize=8)

    x = np.linspace(-6.5, 6.5, 800)
    normal = lambda x, m, s: np.exp(-0.5 * ((x - m) / s) ** 2) / (s * np.sqrt(2 * np.pi))  # noqa: E731
    posterior = 0.35 * normal(x, -2.5, 0.7) + 0.65 * normal(x, 2, 0.9)
    mean = 0.35 * -2.5 + 0.65 * 2
    var = 0.35 * (0.49 + 2.5**2) + 0.65 * (0.81 + 4) - mean**2
    right.fill_between(x, posterior, color="0.86", label="posterior")
    right.plot(x, normal(x, 2, 0.9), color=EXCLUSIVE, lw=2, label="KL(q‖π): one mode")
    right.plot(x, normal(x, mean, np.sqrt(var)), color=INCLUSIVE, lw=2, label="KL(π‖q): both")
    right.plot(x, posterior, color=INCLUSIVE, lw=2, ls=":", label="KL(π‖q), q a mixture")
    right.set(title="two modes", yticks=[], ylim=(0, None))
    right.legend(fontsize=8, loc="upper left")
    right.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(FOLDER / "covering.png", dpi=110)


def step() -> None:
    """One iteration of pMCSA: propose, accept or refuse, pull."""
    n, rate = 12, 0.35
    q = sa.MeanField.from_moments([-0.5, 0.1], [0.7, 0.7])
    keys = jax.random.split(jax.random.key(4), n)
    begin = np.random.default_rng(2).multivariate_normal([0.1, 0.2], 0.8 * COV, n)
    points = jax.vmap(lambda z: sa.evaluate(TARGET, z)[0])(jnp.asarray(begin, jnp.float32))
    kernel = sa.IMH()
    split = jax.vmap(jax.random.split)(keys)
    proposed = jax.vmap(lambda k, p: kernel.propose(k, TARGET, q, p))(split[:, 0], points)
    moved, _ = jax.vmap(lambda k, p: kernel.step(k, TARGET, q, p))(keys, points)
    after = q.match(moved.z, jnp.full(n, 1 / n), rate)
    went = np.any(np.asarray(moved.z) != np.asarray(points.z), axis=1)
    figure, axes = plt.subplots(1, 3, figsize=(11, 4), layout="constrained")
    for ax in axes:
        contours(ax)
    ellipse(axes[0], q.mean, q.sd, INCLUSIVE)
    axes[0].scatter(*points.z.T, color="black", s=18, zorder=3, label="chains")
    axes[0].scatter(*proposed.point.z.T, fc="none", ec=INCLUSIVE, s=26, label="draws of q")
    axes[0].set_title("1. q proposes")
    ellipse(axes[1], q.mean, q.sd, INCLUSIVE, alpha=0.35)
    for a, b, yes in zip(points.z, proposed.point.z, went):
        axes[1].annotate(
            "", b, a,
            arrowprops={"arrowstyle": "->", "color": "black" if yes else "0.75", "lw": 0.9},
        )  # fmt: skip
    axes[1].scatter(*np.asarray(moved.z).T, color="black", s=18, zorder=3, label="chains")
    axes[1].set_title("2. the posterior accepts or refuses")
    ellipse(axes[2], q.mean, q.sd, INCLUSIVE, alpha=0.35, label="q before")
    ellipse(axes[2], after.mean, after.sd, INCLUSIVE, label="q after")
    axes[2].scatter(*np.asarray(moved.z).T, color="black", s=18, zorder=3)
    axes[2].annotate(
        "", after.mean, q.mean, arrowprops={"arrowstyle": "-|>", "color": INCLUSIVE, "lw": 2}
    )
    axes[2].set_title("3. the chains pull q")
    for ax in (axes[0], axes[2]):
        ax.legend(loc="upper left", fontsize=8)
    figure.savefig(FOLDER / "step.png", dpi=110)


def chains() -> None:
    """A whole run of pMCSA beside the ELBO's, as an animation."""
    frames = np.unique(np.round(np.geomspace(1, 600, 46)).astype(int))
    q0 = sa.MeanField.from_moments([-1.8, 1.8], [0.5, 0.5])
    ours, theirs = (watched(method, q0, frames) for method in (sa.pmcsa(200), sa.elbo(40)))
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 4), layout="constrained")
    sds = f"{1.0:.2f}"

    def draw(i: int) -> None:
        for ax, run, colour, title in (
            (left, ours, INCLUSIVE, "pMCSA: chains pull q"),
            (right, theirs, EXCLUSIVE, "the ELBO: q climbs"),
        ):
            ax.clear()
            contours(ax)
            q, z = run[i]
            if z is not None:
                ax.scatter(z[:60, 0], z[:60, 1], color="black", s=9, zorder=3)
            ellipse(ax, q.mean, q.sd, colour)
            ax.set_title(title, fontsize=11)
            sd = float(np.mean(q.sd))
            ax.set_xlabel(f"sd of q {sd:.2f}, of the posterior {sds}", fontsize=9)
        figure.suptitle(f"step {frames[i]}", fontsize=10)

    order = [*range(len(frames)), *[len(frames) - 1] * 12]  # the last picture stays for a while
    animation = FuncAnimation(figure, draw, frames=order, init_func=lambda: None)
    path = FOLDER / "chains.gif"
    animation.save(path, PillowWriter(fps=8), dpi=75)
    smaller(path)


def smaller(path: Path, colours: int = 48) -> None:
    """Write an animation anew with few colours."""
    from PIL import Image, ImageSequence

    with Image.open(path) as picture:
        pages = [
            page.convert("RGB").quantize(colours, dither=Image.Dither.NONE)
            for page in ImageSequence.Iterator(picture)
        ]
        wait = picture.info["duration"]
    pages[0].save(
        path, save_all=True, append_images=pages[1:], duration=wait, loop=0, optimize=True
    )


def watched(method: sa.Method, q0: sa.Family, steps: Any) -> list[tuple[Any, Any]]:
    """q and the chains, if there are any, after so many steps of a run."""
    seen: list[tuple[Any, Any]] = []
    state = None
    for step in steps:
        result = sa.fit(
            TARGET, method, q0=q0, optimizer=optax.adam(0.03), steps=int(step), state=state,
            progress=False,
        )  # fmt: skip
        state = result.state
        z = np.asarray(state.eta.z) if isinstance(state.eta, sa.Particles) else None
        seen.append((jax.tree.map(np.asarray, result.q), z))
    return seen


def icon() -> None:
    """The sign of the site: a wide curve over a narrow one."""
    figure = plt.figure(figsize=(1, 1))
    ax = figure.add_axes((0, 0, 1, 1))
    x = np.linspace(-3.2, 3.2, 300)
    ax.fill_between(x, np.exp(-0.5 * x**2), color=INCLUSIVE)
    ax.plot(x, np.exp(-2 * x**2), color=EXCLUSIVE, lw=4)
    ax.axis("off")
    figure.savefig(FOLDER / "icon.png", dpi=64, transparent=True)


def method_study() -> None:
    """Run the page of that name, whose code leaves its two pictures in out/method-study."""
    page = FOLDER.parent / "tutorials" / "method-study.md"
    source, fence = page.read_text(encoding="utf-8"), "```python"
    space: dict[str, Any] = {"__name__": "docs"}
    for block in source.split(f"\n{fence}")[1:]:
        code = block.split("\n```")[0].split("\n", 1)[1]
        exec(compile(code, str(page), "exec"), space)
    for name in ("figure1", "figure2"):
        made = Path("out") / "method-study" / name / f"{name}.png"
        (FOLDER / f"method-study-{name}.png").write_bytes(made.read_bytes())


ALL: dict[str, Callable[[], None]] = {
    "covering": covering,
    "step": step,
    "chains": chains,
    "icon": icon,
    "method-study": method_study,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ALL:
        if name not in ALL:
            sys.exit(f"no picture is called {name!r}; there are {', '.join(ALL)}")
        ALL[name]()
        print(FOLDER / name)
