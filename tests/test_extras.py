"""Every extra missing: the library imports and fits, and what needs it names it in one line."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import pytest

import scoreascent as sa

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"]) - {"dev", "docs"}
OURS = (
    "experiments",
    "cli",
    "demo",
    "page",
    "from_csv",
    "_figures",
)  # what imports an extra when it is imported
MODULES = {"scikit-learn": "sklearn"}  # where a package is imported by another name


def packages(extra: str) -> set[str]:
    """The modules that an extra adds by itself."""
    names = [x.split(">")[0].split("[")[0] for x in PROJECT["optional-dependencies"][extra]]
    return {MODULES.get(name, name) for name in names} - {"scoreascent"}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Hides a module, and forgets which of our own have imported it; all comes back afterwards."""
    ours = tuple(f"scoreascent.{name}" for name in OURS)
    modules, names = dict(sys.modules), dict(vars(sa))

    def hide(module: str) -> None:
        for name in [module, *sys.modules]:
            if name == module or name.startswith(f"{module}."):
                sys.modules[name] = None  # type: ignore[assignment]
            elif name.startswith(ours):
                del sys.modules[name]
        for name in OURS:
            vars(sa).pop(name, None)

    yield hide
    sys.modules.clear()
    sys.modules.update(modules)
    vars(sa).clear()
    vars(sa).update(names)


def a_fit() -> sa.Result:
    target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    return sa.fit(target, sa.pmcsa(2), steps=3, progress=False)


def command(*arguments: str) -> Callable[[Any, Path], str]:
    """What a command says when it gives up."""

    def use(capsys: Any, folder: Path) -> str:
        from scoreascent.__main__ import main

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["scoreascent", *arguments])
            patch.chdir(folder)
            with pytest.raises(SystemExit) as caught:
                main()
        said = capsys.readouterr().err
        assert caught.value.code not in (0, None)
        return said or str(caught.value.code)

    return use


def call(function: Callable[[], Any]) -> Callable[[Any, Path], str]:
    """The message of what a function raises."""

    def use(capsys: Any, folder: Path) -> str:
        with pytest.raises((ModuleNotFoundError, ValueError)) as caught:
            function()
        return str(caught.value)

    return use


def discrete() -> None:
    sa.from_numpyro(lambda: numpyro.sample("k", dist.Bernoulli(0.5)))


FIGURE = ("reproduce", "figure1", "--quick")
TABLE = ("reproduce", "table-bnn", "--quick")
TABLE_OF: list[tuple[str, str, Callable[[Any, Path], str]]] = [
    ("arviz", "arviz", call(lambda: a_fit().to_arviz())),
    ("blackjax", "blackjax", call(lambda: sa.from_blackjax(lambda log_p, q: None))),
    ("pymc", "pymc", call(lambda: sa.from_pymc())),
    ("enumerate", "funsor", call(discrete)),
    ("flows", "flowjax", call(lambda: sa.Flow.standard(2))),
    ("plots", "matplotlib", call(lambda: sa.plots.plot_trace(a_fit()))),
    ("plots", "matplotlib", call(lambda: a_fit().report("fit.html"))),
    ("cli", "typer", command("doctor")),
    ("cli", "sklearn", command("demo")),
    ("cli", "matplotlib", command("demo")),
    ("experiments", "joblib", command(*FIGURE, "--jobs", "2")),
    ("experiments", "pandas", command(*FIGURE)),
    ("experiments", "pyarrow", command(*FIGURE)),
    ("experiments", "matplotlib", command(*FIGURE)),
    ("experiments", "pandas", command("report", ".")),
    ("experiments", "jinja2", command("report", ".")),
    ("experiments", "pandas", command("bench", "accuracy", "--quick")),
    ("dask", "distributed", command(*TABLE, "--backend", "dask")),
    ("ray", "ray", command(*TABLE, "--backend", "ray")),
]


@pytest.mark.parametrize(
    ("extra", "module", "use"),
    TABLE_OF,
    ids=[f"{m}-{i}" for i, (_, m, _) in enumerate(TABLE_OF)],
)
def test_what_is_missing_is_named_in_one_line(
    extra: str,
    module: str,
    use: Callable[[Any, Path], str],
    without: Any,
    capsys: Any,
    tmp_path: Path,
) -> None:
    without(module)
    says = use(capsys, tmp_path)
    assert f"pip install 'scoreascent[{extra}]'" in says
    assert module in says
    assert len(says.strip().splitlines()) == 1


def test_every_extra_has_a_row() -> None:
    """And each of its packages, but for those that only another of them would miss."""
    assert {extra for extra, _, _ in TABLE_OF} == EXTRAS
    hidden = {module for _, module, _ in TABLE_OF}
    assert hidden >= set.union(*(packages(extra) for extra in EXTRAS)) - {"plotly"}  # test_report


def test_the_library_imports_and_fits_without_any_extra() -> None:
    """In a process of its own, in which none of them can be imported."""
    hidden = sorted(set.union(*(packages(extra) for extra in EXTRAS)))
    code = f"""
import sys
sys.modules.update(dict.fromkeys({hidden!r}))
import jax.numpy as jnp, scoreascent as sa
target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
result = sa.fit(target, sa.pmcsa(4), steps=3, progress=False)
print(result)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "max_steps after 3 steps" in ran.stdout
