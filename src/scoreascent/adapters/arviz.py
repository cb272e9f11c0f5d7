"""A fit as ArviZ's container, whichever major version of ArviZ is installed."""

from __future__ import annotations

import functools
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
from scoreascent.diagnostics.draws import late_states
from scoreascent.diagnostics.measure import MAX_ROWS, chain_states
from scoreascent.diagnostics.psis import psis
from scoreascent.diagnostics.weights import log_weights, resample
from scoreascent.model import Model
from scoreascent.run import Run, check_single, rests_on_chains

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
    over_draws = lambda f: jax.jit(jax.vmap(jax.vmap(f)))  # noqa: E731
    groups: dict[str, dict[str, Any]] = {
        "posterior": _numpy(over_draws(run.target.named)(z)),
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
            terms = _numpy(over_draws(lambda z: model.log_likelihood(z, data))(z))
            groups |= {"log_likelihood": terms} if terms else {}
            predicted = _predicted(model, data, keys[1], z)
            if predicted is not None:
                groups["posterior_predictive"] = predicted
    if states is not None:
        groups["chains"] = _numpy(over_draws(run.target.named)(states))
    attrs = {
        k: v if isinstance(v, int | float | str) else str(v) for k, v in run.provenance.items()
    }
    return _assemble(arviz, groups, coords, dims, {"inference_library": "scoreascent", **attrs})


def _chains(run: Run, key: PRNGKeyArray) -> Any:
    """Return states (chains, draws, d) of the chains; None if there are none.

    Where a fit rests on its chains these are the late states that it shows, or some of them.
    """
    late = late_states(run) if rests_on_chains(run) else None
    if late is None:
        moved = chain_states(run, key)
        return None if moved is None else moved[0]
    return np.swapaxes(late[::-1][:: -(-len(late) // MAX_ROWS)][::-1], 0, 1)


def _posterior(run: Run, key: PRNGKeyArray, n: int, draws: str, states: Any) -> Any:
    """Unconstrained draws of shape (chains, draws, d)."""
    if draws == "q":
        return run.q.sample(key, (CHAINS, n // CHAINS))
    if draws == "resampled":
        z = resample(run, key, n, 10 * n)
    elif draws == "chains" and states is not None:
        flat = states.reshape(-1, states.shape[-1])
        z = jnp.asarray(flat)[jax.random.choice(key, len(flat), (n,), replace=len(flat) < n)]
    elif draws == "chains":
        raise ValueError(f"draws='chains': {run.method!r} has no chains; take 'resampled'")
    else:
        raise ValueError(f"draws must be 'q', 'resampled' or 'chains', got {draws!r}")
    return z.reshape(CHAINS, n // CHAINS, -1)


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


def _predicted(model: Model, data: Any, key: Any, z: Any) -> dict[str, Any] | None:
    keys = jax.random.split(key, z.shape[:2])
    try:
        predict: Callable[..., Any] = functools.partial(model.predict, data=data)
        return _numpy(jax.jit(jax.vmap(jax.vmap(predict)))(keys, z))
    except NotImplementedError:  # an adapter that cannot draw inside compiled code
        return None


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
