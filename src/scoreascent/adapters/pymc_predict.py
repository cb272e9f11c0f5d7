"""Predictions of a PyMC model at draws of its variables, of data by name, drawn by PyTensor.

As `pymc.sample_posterior_predictive` after `pymc.set_data`, but the model stays as it is: other
data take the place of those it holds in a copy of its graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from scoreascent.model import Predicted

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

    Values = dict[Any, np.ndarray[Any, Any]]  # by the shared variable


def held(outputs: Sequence[Any]) -> Values:
    """Return the data that a graph holds now, sizes of dims among them."""
    return {v: np.array(v.get_value()) for v in _shared(outputs)}


def depend(outputs: Sequence[Any], variables: Sequence[Any]) -> bool:
    """Tell whether any output is computed from one of the variables."""
    from pytensor.graph.traversal import ancestors

    return bool(set(ancestors(outputs)) & set(variables))


def predictions(
    model: Any,
    data: Values,
    draws: Mapping[str, Any],
    key: PRNGKeyArray,
    new: Mapping[str, Any],
    anew: Sequence[str],
) -> Predicted:
    """Return observed variables, drawn, and Deterministics, at draws of the free variables.

    A free variable is drawn given the others if it is named, or if a dim of it has another length.
    """
    from pymc.pytensorf import compile as pymc_compile
    from pytensor.graph.replace import clone_replace

    data = {**data, **_replaced(model, data, new)}
    others = tuple(
        rv.name for rv in model.free_RVs if rv.name in anew or _changes(model, rv, data, draws)
    )
    inputs = {rv: rv.type(name=rv.name) for rv in model.free_RVs if rv.name not in others}
    outputs = [*model.observed_RVs, *model.deterministics]
    seed = int(np.asarray(jax.random.key_data(key))[-1])
    options = {"on_unused_input": "ignore", "allow_input_downcast": True}
    given = [np.asarray(draws[rv.name]) for rv in inputs]
    n = len(next(iter(draws.values())))
    try:
        graph = _with(clone_replace(outputs, replace=inputs), data)
        function: Any = pymc_compile(list(inputs.values()), graph, random_seed=seed, **options)
        found = [function(*(x[i] for x in given)) for i in range(n)]
    except (ValueError, IndexError) as error:
        names = sorted({v.name for v in data if v.name in model.named_vars})
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"predict: the model cannot be run with these data: {reason}; of {names}, give all "
            "that have as many rows, observed ones too (as zeros, they are not looked at), or "
            "state an observed variable with shape= or dims= of the data it depends on"
        ) from error
    named = zip((x.name for x in outputs), zip(*found))
    return Predicted({name: np.stack(values) for name, values in named}, others)


def _replaced(model: Any, data: Values, new: Mapping[str, Any]) -> Values:
    """Return other values for the data that are named, and the lengths of their dims."""
    known = {v.name: v for v in data if v.name in model.named_vars}
    found: Values = {}
    for name, value in new.items():
        if name not in known:
            raise ValueError(
                f"predict: {name!r} is not among the data of the model, {sorted(known)}; state "
                f"what is to change as pymc.Data({name!r}, …)"
            )
        kind = known[name].type
        array = np.asarray(value)
        if array.ndim != kind.ndim or array.dtype.kind not in "fiub":
            raise ValueError(
                f"predict: {name} must be an array of {kind.ndim} axes, as in the fit, got shape "
                f"{array.shape} of {array.dtype}"
            )
        found[known[name]] = array.astype(kind.dtype)
        for dim, length in zip(model.named_vars_to_dims.get(name, ()), array.shape):
            size = model.dim_lengths.get(dim)
            if size in data and found.setdefault(size, np.array(length, size.type.dtype)) != length:
                raise ValueError(
                    f"predict: {name} has {length} entries along dim {dim!r}, other data "
                    f"{int(found[size])}"
                )
    return found


def _changes(model: Any, rv: Any, data: Values, draws: Mapping[str, Any]) -> bool:
    """Tell whether a free variable has another length along its dims than in the fit."""
    import pytensor

    try:
        function: Any = pytensor.function(  # type: ignore[attr-defined]
            [], _with([rv.shape], data), mode="FAST_COMPILE", on_unused_input="ignore"
        )
        here = tuple(int(n) for n in function()[0])
    except (ValueError, IndexError):  # what it depends on does not fit; its own draws may
        return False
    fitted = np.shape(draws[rv.name])[1:]
    dims = model.named_vars_to_dims.get(rv.name) or (None,) * len(here)
    if len(here) == len(fitted) and all(
        a == b or dim is not None for a, b, dim in zip(here, fitted, dims)
    ):
        return here != fitted
    raise ValueError(
        f"predict: with these data variable {rv.name!r} has shape {here}, but in the fit it had "
        f"{fitted}; give data as those of the fit, with rows of your own, or anew=[{rv.name!r}] to "
        "draw it given the other parameters"
    )


def _with(outputs: Sequence[Any], data: Values) -> list[Any]:
    """Return a graph in which these are the data."""
    import pytensor.tensor as pt
    from pytensor.graph.replace import clone_replace

    constants = {v: pt.constant(data[v]) for v in _shared(outputs) if v in data}
    return list(clone_replace(list(outputs), replace=constants))


def _shared(outputs: Sequence[Any]) -> list[Any]:
    """Return what a graph holds, but for the states of random numbers."""
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.traversal import graph_inputs
    from pytensor.tensor.random.type import RandomType

    shared = [v for v in graph_inputs(outputs) if isinstance(v, SharedVariable)]
    return list(dict.fromkeys(v for v in shared if not isinstance(v.type, RandomType)))
