"""Predictions of a fit: what a model, or a function of its parameters, says at posterior draws."""

from __future__ import annotations

import functools
import inspect
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from scoreascent._random import as_key, split
from scoreascent._structs import check_count
from scoreascent.diagnostics.draws import named, points, scalar_names
from scoreascent.model import Predicted
from scoreascent.run import Run, check_single

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    Numbers = np.ndarray[Any, Any]

MAX_SHOWN = 30  # numbers that `print` shows
VALUE = "value"  # what a function's prediction is called if it has no names


@dataclass(frozen=True, eq=False)
class Predictions(Mapping[str, "Numbers"]):
    """Draws of what is predicted, by name, n in front; `predictions["y"]` is `draws["y"]`.

    `parameters` are the posterior draws that they were made at, one for one. `anew` names those
    among the parameters that were drawn given the others instead, such as those of new groups.

    >>> import jax.numpy as jnp, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum((z - 2) ** 2), dim=1)
    >>> result = sa.fit(target, sa.pmcsa(8), steps=5, progress=False)
    >>> predictions = result.predict(0, lambda z: {"square": z[0] ** 2}, n=100)
    >>> list(predictions), predictions["square"].shape, sorted(predictions.interval(0.5))
    (['square'], (100,), ['square'])
    """

    draws: dict[str, Numbers]
    parameters: dict[str, Numbers]
    anew: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Numbers:
        return self.draws[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.draws)

    def __len__(self) -> int:
        return len(self.draws)

    @property
    def mean(self) -> dict[str, Numbers]:
        """The means over the draws."""
        return {k: x.mean(0, dtype=np.float64) for k, x in self.draws.items()}

    @property
    def sd(self) -> dict[str, Numbers]:
        """The standard deviations over the draws."""
        return {k: x.std(0, dtype=np.float64, ddof=1) for k, x in self.draws.items()}

    def interval(self, mass: float = 0.9) -> dict[str, tuple[Numbers, Numbers]]:
        """Return the lower and the upper end of the central interval that holds so much."""
        if not (isinstance(mass, int | float) and 0 < mass < 1):
            raise ValueError(f"mass must be a number between 0 and 1, got {mass!r}")
        ends = [(1 - mass) / 2, (1 + mass) / 2]
        found = {k: np.quantile(x.astype(np.float64), ends, axis=0) for k, x in self.draws.items()}
        return {k: (low, high) for k, (low, high) in found.items()}

    def __str__(self) -> str:
        table = Table()
        for i, column in enumerate(("prediction", "mean", "sd", "5 %", "95 %")):
            table.add_column(column, justify="right" if i else "left")
        mean, sd, interval = self.mean, self.sd, self.interval()
        rows = [
            (label, *(f"{x:.4g}" for x in numbers))
            for name in self.draws
            for label, *numbers in zip(
                scalar_names(name, mean[name].shape),
                *(np.ravel(x) for x in (mean[name], sd[name], *interval[name])),
                strict=True,
            )
        ]
        for row in rows[:MAX_SHOWN]:
            table.add_row(*row)
        if len(rows) > MAX_SHOWN:
            table.add_row(f"… {len(rows) - MAX_SHOWN} more")
        out = io.StringIO()
        Console(file=out, width=100, highlight=False).print(table)
        n = len(next(iter(self.draws.values())))
        anew = f"; drawn anew: {', '.join(self.anew)}" if self.anew else ""
        return f"{out.getvalue().rstrip()}\n{n} draws{anew}"


def predict(
    run: Run,
    key: PRNGKeyArray | int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    n: int,
    source: str,
    anew: Sequence[str],
) -> Predictions:
    """Return predictions at n draws of the posterior; see `Result.predict`."""
    check_single(run)
    target, model = run.target, run.target.model
    key_draw, key_new = split(as_key(key))
    z = points(run, key_draw, check_count("n", n, 1), source)
    parameters = {k: np.asarray(x) for k, x in named(run, z).items()}
    if model is None:
        function = _function(args, kwargs, anew)
        found = Predicted(_of_function(function, key_new, target, z))
    else:
        _check_names(anew, target.site_names)
        found = model.predictions(key_new, z, target.data, args, kwargs, tuple(anew))
        if not found.draws:
            raise ValueError(f"predict: {model!r} has no observed site, and computes nothing")
        if surprising := [name for name in found.anew if name not in anew]:
            warnings.warn(
                f"predict: {surprising} have other shapes here than in the fit, so they are drawn "
                f"anew, given the other parameters; anew={surprising} says that this is meant",
                UserWarning,
                stacklevel=3,
            )
    draws = {k: np.asarray(x) for k, x in found.draws.items()}
    return Predictions(draws, parameters, tuple(found.anew))


def _check_names(anew: Sequence[str], names: tuple[str, ...]) -> None:
    """Raise if one is not a free parameter."""
    if isinstance(anew, str) or not all(name in names for name in anew):
        raise ValueError(f"anew must be a list of names among {list(names)}, got {anew!r}")


# -- functions of the parameters -------------------------------------------------------------------


def _function(args: tuple[Any, ...], kwargs: dict[str, Any], anew: Sequence[str]) -> Any:
    """Return the one argument that predictions of a plain target have."""
    if len(args) != 1 or not callable(args[0]) or kwargs or anew:
        raise ValueError(
            "predict: this target is a function, which knows of no observations, so give "
            "predict(key, function) with function(params) or function(key, params), and nothing "
            f"else but n and draws; got {(*args, *kwargs, *anew)!r}"
        )
    return args[0]


def _of_function(function: Callable[..., Any], key: PRNGKeyArray, target: Any, z: Any) -> Any:
    """Return the function's values at draws of the parameters, as a dictionary."""
    keys = jax.random.split(key, len(z)) if _takes_key(function) else None
    try:
        return _compiled(function, keys, target, z)
    except jax.errors.JAXTypeError:  # a function of numpy's, not of jax's
        many = jax.tree.map(np.asarray, _constrained(target, z))
        found = []
        for i in range(len(z)):
            params = jax.tree.map(lambda x, i=i: x[i], many)
            found.append(_by_name(function(*([] if keys is None else [keys[i]]), params)))
        return {k: np.stack([np.asarray(x[k]) for x in found]) for k in found[0]}


@functools.partial(jax.jit, static_argnums=0)
def _compiled(function: Callable[..., Any], keys: Any, target: Any, z: Any) -> Any:
    def one(key: Any, z: Any) -> Any:
        params = target.constrain(z)
        return _by_name(function(params) if key is None else function(key, params))

    return jax.vmap(one)(keys, z)


@jax.jit
def _constrained(target: Any, z: Any) -> Any:
    return jax.vmap(target.constrain)(z)


def _takes_key(function: Callable[..., Any]) -> bool:
    """Tell whether a function has two arguments that it needs: a key, and the parameters."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some of those written in C have none
        return False
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if not 1 <= len(needed) <= 2:
        raise ValueError(
            "predict: function must be one of params or of (key, params), got one that needs "
            f"{len(needed)} arguments"
        )
    return len(needed) == 2


def _by_name(value: Any) -> dict[str, Any]:
    """Return what a function gives as a dictionary of arrays."""
    found = dict(value) if isinstance(value, Mapping) else {VALUE: value}
    try:
        arrays = {k: jnp.asarray(x) for k, x in found.items()}
    except TypeError:
        arrays = {}
    if not arrays or not all(isinstance(k, str) for k in arrays):
        raise ValueError(
            f"predict: function must return an array or a dictionary of arrays, got {value!r}"
        )
    return arrays
