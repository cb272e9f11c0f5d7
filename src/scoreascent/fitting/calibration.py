"""Is a whole procedure calibrated for a model? Simulation-based calibration of fits."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from scoreascent._progress import Lines
from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.adapters.simulate import simulator_of
from scoreascent.diagnostics.rules import GOOD
from scoreascent.diagnostics.uniform import p_value
from scoreascent.fitting.arguments import check_path
from scoreascent.fitting.simulations import Simulation, Store, integers

if TYPE_CHECKING:
    from jaxtyping import Float, PRNGKeyArray

MIN_SIMULATIONS = 20  # fewer cannot tell a posterior half as wide as it should be
MAX_SHOWN = 30  # parameters that `print` shows
OURS = ("key", "progress", "throw", "replications", "checkpoint", "state")  # options not to give


@dataclass(frozen=True, eq=False)
class Calibration:
    """Where true parameters lie among draws of their posteriors, over many simulations.

    If prior, data and posterior belong together and the fits are right, every column of `pit` is
    uniform on (0, 1).

    Attributes:
        names: of the scalars, as `Result.summary` names them, and the log likelihood.
        pit: the share of posterior draws that are below the true value, a row a simulation; ties
            are broken at random.
        verdicts: what each fit says of itself; or what went wrong, of fits without a row.
        level: how often a procedure that is calibrated is called so.
        wanted: how many simulations were asked for.

    >>> import numpy as np
    >>> pit = (np.arange(40)[:, None] + 0.5) / 40  # as even as can be
    >>> found = Calibration(("mu",), pit, ("good",) * 40, 0.99, 40)
    >>> found.verdict
    'calibrated, as far as 40 simulations tell'
    """

    names: tuple[str, ...]
    pit: Float[np.ndarray, "n k"]
    verdicts: tuple[str, ...]
    level: float
    wanted: int
    p_values: Float[np.ndarray, " k"] = field(init=False)

    def __post_init__(self) -> None:
        known = self.pit[np.all(np.isfinite(self.pit), axis=1)]
        few = len(known) < MIN_SIMULATIONS
        found = np.full(len(self.names), np.nan) if few else [p_value(x) for x in known.T]
        object.__setattr__(self, "pit", known)
        object.__setattr__(self, "p_values", np.asarray(found, float))

    @property
    def simulations(self) -> int:
        """How many gave a row."""
        return len(self.pit)

    @property
    def calibrated(self) -> bool:
        """Whether nothing speaks against it, at the level and for all scalars together."""
        return self.simulations >= MIN_SIMULATIONS and not self.wrong

    @property
    def verdict(self) -> str:
        """What the ranks say, in words."""
        if self.simulations < MIN_SIMULATIONS:
            return f"too few simulations: {self.simulations} of at least {MIN_SIMULATIONS}"
        wrong = self.wrong
        if not wrong:
            return f"calibrated, as far as {self.simulations} simulations tell"
        says = [f"{self.names[i]} {how_wrong(self.pit[:, i])}" for i in wrong[:3]]
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        return f"NOT calibrated: {'; '.join(says)}{more}"

    @property
    def wrong(self) -> list[int]:
        """The scalars that are not uniform, the worst first; Holm's rule for so many at once."""
        order = np.argsort(self.p_values, kind="stable")
        wrong = []
        for rank, i in enumerate(order):
            if not self.p_values[i] * (len(order) - rank) < 1 - self.level:
                break
            wrong.append(int(i))
        return wrong

    def __str__(self) -> str:
        return _render(self)


def how_wrong(pit: Float[np.ndarray, " n"]) -> str:
    """Say in words how numbers that should be uniform are not, by their mean and their variance.

    >>> how_wrong(np.array([0.01, 0.02, 0.5, 0.97, 0.99]))
    'comes out too narrow'
    >>> how_wrong(np.array([0.01, 0.02, 0.05, 0.1, 0.12]))
    'comes out too large'
    """
    n = len(pit)
    shift = (pit.mean() - 0.5) * np.sqrt(12 * n)
    width = (12 * np.mean((pit - 0.5) ** 2) - 1) * np.sqrt(n / 0.8)
    if abs(shift) > abs(width):
        return "comes out too small" if shift > 0 else "comes out too large"
    return "comes out too narrow" if width > 0 else "comes out too wide"


def calibrate(
    model: Any,
    /,
    *args: Any,
    simulations: int = 100,
    draws: int = 99,
    simulator: Any = None,
    options: Mapping[str, Any] | None = None,
    key: PRNGKeyArray | int = 0,
    level: float = 0.95,
    progress: bool = True,
    checkpoint: str | PathLike[str] | None = None,
    map: Callable[..., Iterable[Any]] | None = None,
    **kwargs: Any,
) -> Calibration:
    """Tell whether fits of a model are calibrated, by parameters and data that it draws itself.

    Parameters are drawn from the prior, data at them, and the posterior of these data is fitted.
    Over many such simulations the rank of a true parameter among draws of its posterior must be
    uniform (Talts et al., 2018), and so must that of the log likelihood of the data (Modrák et al.,
    2023): if not, the model's density, the fits, or the simulator is wrong.

    Args:
        model: a NumPyro model, called as `model(*args, **kwargs)` with its data, in whose place
            new ones of the same shapes are drawn; or a PyMC model; or a `Target` with `data=`, and
            a `simulator`.
        *args: of the model.
        simulations: how many parameters and data sets are drawn.
        draws: of each posterior, among which the true parameters are ranked.
        simulator: what draws parameters and data if it is not the model itself: another model of
            the same kind, called in the same way; for a `Target`, a function of a key that returns
            parameters by name and data.
        options: arguments of `fit`. With a `method` among them, many fits run as one program.
        key: an integer seed or a `jax.random.key`.
        level: how often a procedure that is calibrated is called so.
        progress: show a progress bar on stderr.
        checkpoint: a file that finished simulations are saved to, and taken from if it is there.
        map: what runs the simulations, the built-in `map` if not said: `Executor.map` of
            `concurrent.futures`, or the same of a Dask client (`client.get_executor().map`) or
            of Ray (`ray.util.multiprocessing.Pool().imap`). The model must then be picklable.
        **kwargs: of the model, by name.

    Ctrl-C ends it after the fit at hand and gives back what is there.

    >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, scoreascent as sa
    >>> def model(y):
    ...     mu = numpyro.sample("mu", dist.Normal(0, 1))
    ...     numpyro.sample("y", dist.Normal(mu, 1), obs=y)
    >>> found = sa.calibrate(model, jnp.zeros(5), simulations=20, progress=False)
    >>> found.names, found.simulations, found.calibrated
    (('mu', 'log likelihood'), 20, True)
    """
    count = check_count("simulations", simulations, 1)
    if not (isinstance(level, float) and 0 < level < 1):
        raise ValueError(f"level must be a number between 0 and 1, got {level!r}")
    options = dict(options or {})
    if taken := [name for name in OURS if name in options]:
        raise ValueError(f"options[{taken[0]!r}] is for calibrate to set; leave it out")
    source = simulator_of(model, simulator, args, kwargs)
    seeds = np.asarray(jax.random.key_data(as_key(key)))
    one = Simulation(source, tuple(integers(seeds)), check_count("draws", draws, 10), options)
    names = one.names()
    path = None if checkpoint is None else check_path(checkpoint)
    store = Store(path, names, {"draws": draws, "key": seeds.tolist(), "model": one.describe()})
    todo = [i for i in range(count) if i not in store.rows]
    with _Shown(progress, count, len(store.rows)) as shown:
        try:
            for i, pit, verdict in one.run(todo, map):
                store.add(i, pit, verdict)
                shown.update(store.rows)
        except KeyboardInterrupt:
            if not store.rows:
                raise
        finally:
            store.save()
    done = [store.rows[i] for i in sorted(store.rows) if i < count]
    pit = np.array([x for x, _ in done]).reshape(len(done), len(names))
    return Calibration(names, pit, tuple(v for _, v in done), level, count)


class _Shown:
    """A bar on stderr, or plain lines where there is no terminal."""

    def __init__(self, show: bool, total: int, done: int) -> None:
        self._lines, self._total = Lines(show), total
        self._bar = Progress(
            TextColumn("calibrate"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[says]}"), console=Console(stderr=True),
            disable=not show or self._lines.wanted,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=total, completed=done, says="")

    def __enter__(self) -> _Shown:
        if not self._bar.disable:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if not self._bar.disable:
            self._bar.stop()

    def update(self, rows: Mapping[int, tuple[Any, str]]) -> None:
        good = sum(verdict == GOOD for _, verdict in rows.values())
        says = f"{good} of {len(rows)} fits good" if any(v for _, v in rows.values()) else ""
        self._bar.update(self._task, completed=len(rows), says=says)
        self._lines.say(f"calibrate {len(rows)}/{self._total}  {says}")


def _render(found: Calibration) -> str:
    """Return what `print` shows."""
    table = Table(title=f"{found.simulations} simulations", title_justify="left")
    table.add_column("scalar")
    for name in ("mean of PIT", "sd of PIT", "p"):
        table.add_column(name, justify="right")
    order = np.argsort(found.p_values, kind="stable")
    for i in order[:MAX_SHOWN]:
        x = found.pit[:, i]
        mean, sd = (x.mean(), x.std()) if len(x) else (np.nan, np.nan)
        table.add_row(found.names[i], f"{mean:.3f}", f"{sd:.3f}", f"{found.p_values[i]:.3g}")
    if len(order) > MAX_SHOWN:
        table.add_row(f"… {len(order) - MAX_SHOWN} more")
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    console.print(table)
    console.print("uniform PITs have mean 0.500 and sd 0.289; the worst p first")
    console.print(f"verdict: {found.verdict}")
    if counts := Counter(v for v in found.verdicts if v):
        says = ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())
        console.print(f"what the fits say: {says}")
    if missing := found.wanted - found.simulations:
        console.print(f"! {missing} of {found.wanted} simulations are missing")
    return out.getvalue().rstrip()
