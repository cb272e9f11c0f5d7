"""What a fit gives back."""

from __future__ import annotations

import functools
import io
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from scoreascent._arrays import last_tenth
from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.adapters.arviz import to_arviz
from scoreascent.diagnostics.verdict import Diagnosis, diagnose
from scoreascent.diagnostics.weights import resample
from scoreascent.families import Family
from scoreascent.run import Run
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

MAX_ROWS = 30  # the most parameters that `print` shows


@dataclass(frozen=True, eq=False)
class Result(Run):
    """A fitted q and how it came about.

    With `replications`, every array has them in front, `result[i]` is the i-th fit on its own and
    `len(result)` their number; `status` is then one word for each.

    `decisions` says what `fit(target)` chose, `diagnosis` how it judges the outcome, and
    `evaluations` how many densities and gradients of the target it took.
    """

    decisions: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    evaluations: tuple[int, int] | None = None

    @property
    def made(self) -> dict[str, Any]:
        """The former name of `provenance`."""
        warnings.warn("Result.made is now Result.provenance", DeprecationWarning, stacklevel=2)
        return self.provenance

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        if self.replications is None:
            raise TypeError("this result has no replications")
        return self.replications

    def __getitem__(self, i: int) -> Result:
        if not -len(self) <= i < len(self):
            raise IndexError(f"replication {i} of {len(self)}")
        at = lambda tree: jax.tree.map(lambda x: x[i], tree)  # noqa: E731
        return replace(
            self,
            q=at(self.q),
            state=at(self.state),
            trace=at(self.trace),
            status=self.status[i],  # type: ignore[arg-type]
            target=at(self.target) if self.data_replicated else self.target,
            replications=None,
            data_replicated=False,
        )

    def sample(self, key: PRNGKeyArray | int, n: int = 1000) -> dict[str, Float[Array, "n ..."]]:
        """Return n draws of q as named parameters inside their supports.

        A target stated by `dim` has the one name `"z"`. With replications they stand in front.
        """
        n = check_count("n", n, 1)
        key = as_key(key)
        if self.replications is not None:
            keys = jax.random.split(key, self.replications)
            axes = (0, 0, 0 if self.data_replicated else None)
            many = jax.vmap(lambda k, q, t: _named_draws(k, q, t, n), axes)
            return self._in_order(many(keys, self.q, self.target))
        return self._in_order(_named_draws(key, self.q, self.target, n))

    def _in_order(self, draws: dict[str, Any]) -> dict[str, Any]:
        """Put the free parameters first, as the target has them; compiled code sorts names."""
        return {name: draws[name] for name in dict.fromkeys((*self.target.site_names, *draws))}

    def summary(self) -> list[dict[str, Any]]:
        """Return mean, sd and 90 % interval of every scalar parameter, from draws of q.

        With replications: the averages of these over the replications.
        """
        draws = self.sample(jax.random.key(0), 4000)
        rows = []
        for site, values in draws.items():
            array = np.asarray(values, np.float64)
            lead = 1 if self.replications is None else 2
            flat = array.reshape(*array.shape[:lead], -1)
            stats = [np.mean(flat, lead - 1), np.std(flat, lead - 1, ddof=1)]
            stats += list(np.quantile(flat, [0.05, 0.95], axis=lead - 1))
            if self.replications is not None:
                stats = [np.mean(s, 0) for s in stats]
            for i, index in enumerate(np.ndindex(array.shape[lead:])):
                name = site + (f"[{','.join(map(str, index))}]" if index else "")
                numbers = [float(s[i]) for s in stats]
                rows.append(dict(zip(("name", "mean", "sd", "q05", "q95"), (name, *numbers))))
        return rows

    def diagnose(
        self, key: PRNGKeyArray | int | None = None, draws: int = 4000, steps: int | None = None
    ) -> Diagnosis:
        """Tell whether to believe this fit: a verdict in words, and the numbers behind it.

        Draws of q are weighed against the posterior; the chains take up to 400 more steps at the
        fitted q; and the fit goes on for `steps` iterations (a fifth of those done, if not said)
        to see whether λ would still move, unless a stopping rule has seen that it does not. The
        result itself stays as it is.

        The verdict is "good", "use with importance weights", "not converged: run longer" or
        "chains did not mix: q is not the inclusive optimum"; `print` shows reason and remedy.
        """
        if self.diagnosis is not None and key is None:
            return self.diagnosis
        return diagnose(self, 0 if key is None else key, draws, steps)

    def to_arviz(
        self,
        key: PRNGKeyArray | int = 0,
        n: int = 1000,
        draws: Literal["q", "resampled", "chains"] = "q",
    ) -> Any:
        """Return ArviZ's container of the installed version: `InferenceData` or `DataTree`.

        Groups: `posterior` (n draws, as four chains of independent draws), `chains` (400
        states of each of the chains at the fitted q), `sample_stats` (log densities, smoothed
        importance weights, k̂, acceptance) and, for targets made of a model, `observed_data`,
        `posterior_predictive` and `log_likelihood`. Its attributes say how the fit was made.

        `draws` says what the n draws are: of q; of q and `resampled` by importance weights; or
        states of the `chains`, taken at random. What depends on tails, such as `arviz.loo`, is
        better with one of the last two, unless q is close to the posterior.
        """
        return to_arviz(self, key, n, draws)

    def resample(
        self, key: PRNGKeyArray | int, n: int = 1000, draws: int | None = None
    ) -> dict[str, Float[Array, "n ..."]]:
        """Return n draws of the posterior: some of many draws of q, by smoothed importance weights.

        `draws` is how many are drawn of q first, 10 n if not said. They are no better than the
        weights: look at `diagnose().k_hat`, which should be below 0.7.
        """
        n = check_count("n", n, 1)
        draws = 10 * n if draws is None else check_count("draws", draws, n)
        z = resample(self, key, n, draws)
        return self._in_order(jax.jit(jax.vmap(self.target.named))(z))

    def warnings(self) -> list[str]:
        """Say what went wrong, or makes the fit doubtful, in words; nothing if nothing was seen."""
        trace, says = self.trace, []
        if not trace.loss.shape[-1]:
            return ["no iteration was run"]
        statuses = {self.status} if isinstance(self.status, str) else set(self.status)
        if "diverged" in statuses:
            says.append(
                "diverged: the last steps would all have made q non-finite; try a smaller step "
                "size, another start q0, or look at the target's gradient"
            )
        if "stop" in self.provenance and statuses - {"converged", "diverged"}:
            says.append(self.provenance["stop"])
        if skipped := int(np.sum(trace.skipped)):
            says.append(
                f"{skipped} of {trace.skipped.size} updates were skipped because the loss or its "
                "gradient was not finite"
            )
        if invalid := int(np.sum(trace.invalid)):
            says.append(
                f"log p was NaN or +∞ at {invalid} proposals; they were treated as impossible"
            )
        late = float(np.mean(last_tenth(trace.acceptance)))
        if late < 0.01:
            says.append(
                f"chains hardly move (acceptance {late:.2%} over the last tenth): q need not be "
                "the inclusive-KL optimum, and its spreads may be far too small or too large"
            )
        return says

    def __str__(self) -> str:
        return _render(self)


class DivergenceError(RuntimeError):
    """Every one of the last updates would have made q non-finite. `.result` is what there was."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


@functools.partial(jax.jit, static_argnames="n")
def _named_draws(
    key: PRNGKeyArray, q: Family, target: Target, n: int
) -> dict[str, Float[Array, "n ..."]]:
    return jax.vmap(target.named)(q.sample(key, (n,)))


def _render(result: Result) -> str:
    """Return the table that `print(result)` shows."""
    many = "" if result.replications is None else f" × {result.replications} replications"
    status = result.status if isinstance(result.status, str) else ", ".join(
        f"{sum(s == w for s in result.status)} {w}" for w in dict.fromkeys(result.status)
    )  # fmt: skip
    table = Table(title=f"{result.method!r}", title_justify="left")
    table.add_column("parameter")
    for name in ("mean", "sd", "5 %", "95 %"):
        table.add_column(name, justify="right")
    rows = result.summary()
    for row in rows[:MAX_ROWS]:
        table.add_row(row["name"], *(f"{row[k]:.4g}" for k in ("mean", "sd", "q05", "q95")))
    if len(rows) > MAX_ROWS:
        table.add_row(f"… {len(rows) - MAX_ROWS} more", "", "", "", "")
    out = io.StringIO()
    console = Console(file=out, width=100, highlight=False)
    console.print(table)
    line = f"{status} after {result.steps} steps{many}"
    if "converged" in result.status:
        line = f"{result.provenance['stop']}{many}"
    if result.trace.loss.size:
        line += f"; last tenth: loss {np.mean(last_tenth(result.trace.loss)):.4g}"
        line += f", acceptance {np.mean(last_tenth(result.trace.acceptance)):.1%}"
    console.print(line)
    for warning in result.warnings():
        console.print(f"! {warning}")
    if result.diagnosis is not None:
        console.print(f"verdict: {result.diagnosis.verdict}, because {result.diagnosis.reason}")
    return out.getvalue().rstrip()
