"""A fit as ArviZ's container, whichever major version of ArviZ is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import last_tenth
from scoreascent._batches import log_probs
from scoreascent._extras import require
from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.diagnostics.draws import late_states, points
from scoreascent.diagnostics.measure import MAX_ROWS, chain_states
from scoreascent.diagnostics.psis import psis
from scoreascent.diagnostics.weights import log_weights
from scoreascent.run import Run, check_single
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import PRNGKeyArray

CHAINS = 4  # independent draws have no chains; ArviZ's plots and summaries want some


def to_arviz(run: Run, key: PRNGKeyArray | int = 0, n: int = 1000, draws: str = "q") -> Any:
    """An `InferenceData` (ArviZ 0.x) or `DataTree` (ArviZ 1.x); see `Result.to_arviz`."""
    arviz = require("arviz", "arviz", "to_arviz")
    check_single(run)
    n = check_count("n", n, CHAINS)
    keys = jax.random.split(as_key(key), 3)
    states = _chains(run, keys[2])
    z = _posterior(run, keys[0], CHAINS * -(-n // CHAINS), draws, states)
    shown, terms, moved = _shown(run.target, z, states)
    groups: dict[str, dict[str, Any]] = {
        "posterior": _numpy(shown),
        "sample_stats": _stats(run, z, weigh=draws == "q"),
    }
    model, data = run.target.model, run.target.data
    dims: dict[str, list[str]] = {}
    coords: dict[str, Any] = {}
    if model is not None:
        dims = {name: list(axes) for name, axes in model.dims.items()}
        coords = dict(model.coords)
        if observed := _numpy(model.observed(data)):
            groups["observed_data"] = observed
            groups |= {"log_likelihood": _numpy(terms)} if terms else {}
            predicted = _predicted(run.target, jax.random.split(keys[1], z.shape[:2]), z)
            groups |= {} if predicted is None else {"posterior_predictive": predicted}
    if states is not None:
        groups["chains"] = _numpy(moved)
    attrs = {
        k: v if isinstance(v, int | float | str) else str(v) for k, v in run.provenance.items()
    }
    return _assemble(arviz, groups, coords, dims, {"inference_library": "scoreascent", **attrs})


def _chains(run: Run, key: PRNGKeyArray) -> Any:
    """Return states (chains, draws, d) of the chains; None if there are none.

    Where a fit has kept late states these are some of them; else the chains go on from its end.
    """
    late = late_states(run)
    if late is None:
        moved = chain_states(run, key)
        return None if moved is None else moved[0]
    return np.swapaxes(late[::-1][:: -(-len(late) // MAX_ROWS)][::-1], 0, 1)


def _posterior(run: Run, key: PRNGKeyArray, n: int, draws: str, states: Any) -> Any:
    """Unconstrained draws of shape (chains, draws, d)."""
    if draws == "chains" and states is not None and late_states(run) is None:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        flat = states.reshape(-1, states.shape[-1])
        z: Any = rng.choice(flat, n, replace=len(flat) < n)
    elif draws == "chains" and states is None:
        raise ValueError(f"draws='chains': {run.method!r} has no chains; take 'resampled'")
    else:
        z = points(run, key, n, draws)
    return jnp.asarray(z).reshape(CHAINS, n // CHAINS, -1)


def _stats(run: Run, z: Any, weigh: bool) -> dict[str, Any]:
    """Return what is known of every draw; k̂ and acceptance, which belong to all, are repeated.

    Draws that are of π already have no weights.
    """
    flat = np.asarray(z).reshape(-1, z.shape[-1])
    log_p, log_q = (log_probs(x, flat).reshape(z.shape[:2]) for x in (run.target, run.q))
    log_w, _ = log_weights(log_p, log_q)
    some = bool(np.any(log_w > -np.inf))
    late = last_tenth(run.trace.acceptance)
    stats = {
        "lp": log_p,
        "log_q": log_q,
        "acceptance_rate": np.full(log_w.shape, np.mean(late) if late.size else np.nan),
    }
    if weigh:
        smooth = psis(log_w.ravel()) if some else None
        stats["log_weight"] = log_w if smooth is None else smooth.log_weights.reshape(log_w.shape)
        stats["k_hat"] = np.full(log_w.shape, np.inf if smooth is None else smooth.k_hat)
    return stats


@jax.jit
def _shown(target: Target, z: Any, states: Any) -> tuple[Any, Any, Any]:
    """Return named draws, the log densities of observations there, and named states."""
    named, model = _over(target.named), target.model
    terms: Any = {} if model is None else _over(lambda z: model.log_likelihood(z, target.data))(z)
    return named(z), terms, None if states is None else named(states)


def _predicted(target: Target, keys: Any, z: Any) -> dict[str, Any] | None:
    """Return new data at draws; None of an adapter that cannot draw inside compiled code."""
    try:
        return _numpy(_new_data(target, keys, z))
    except NotImplementedError:
        return None


@jax.jit
def _new_data(target: Target, keys: Any, z: Any) -> Any:
    model: Any = target.model
    return _over(lambda key, z: model.predict(key, z, target.data))(keys, z)


def _over(f: Callable[..., Any]) -> Callable[..., Any]:
    return jax.vmap(jax.vmap(f))


def _numpy(tree: Any) -> dict[str, Any]:
    return {name: np.asarray(value) for name, value in tree.items()}


def _assemble(arviz: Any, groups: Any, coords: Any, dims: Any, attrs: dict[str, Any]) -> Any:
    if int(arviz.__version__.split(".")[0]) >= 1:
        return arviz.from_dict(groups, coords=coords, dims=dims, attrs={"/": attrs})
    chains = groups.pop("chains", None)
    found = arviz.from_dict(**groups, coords=coords, dims=dims, attrs=attrs)
    if chains is not None:
        extra = arviz.dict_to_dataset(chains, coords=coords, dims=dims)
        found.add_groups({"chains": extra}, warn_on_custom_groups=False)
    return found
