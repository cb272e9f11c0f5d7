"""Draws of q, states of its chains and a reference, scalar by scalar, under their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from scoreascent._random import as_key
from scoreascent._structs import check_count
from scoreascent.diagnostics.measure import MAX_ROWS, chain_states
from scoreascent.fitting.result import Result
from scoreascent.plots.panels import Numbers, check_result, pyplot
from scoreascent.run import check_single

Sources = dict[str, Numbers]  # q, chains and reference: draws of one scalar each


def collect(
    result: Result, names: Any, reference: Any, key: Any, draws: int, most: int
) -> dict[str, Sources]:
    """What there is to draw of each scalar: finite draws of q, states of chains, the reference."""
    pyplot()
    check_result(result)
    check_single(result)
    draws = check_count("draws", draws, 100)
    key_draw, key_chain = jax.random.split(as_key(key))  # as `diagnose` does
    found = {"q": _numpy(result.sample(key_draw, draws))}
    entries = _chosen(found["q"], result.target.site_names, names, most)
    if reference is not None:
        found["reference"] = _reference(reference, found["q"], {site for site, _ in entries})
    seen = chain_states(result, key_chain)
    if seen is not None:
        z = seen[0][:, MAX_ROWS // 4 :].reshape(-1, result.target.dim)  # q left these behind
        thin = np.linspace(0, len(z) - 1, min(len(z), draws)).astype(int)
        found["chains"] = _numpy(jax.jit(jax.vmap(result.target.named))(z[thin]))
    scalars: dict[str, Sources] = {}
    for site, index in entries:
        label = _label(site, index)
        scalars[label] = {
            source: _entry(values, site, index)
            for source, values in found.items()
            if site in values
        }
    return scalars


def _chosen(
    draws: dict[str, Numbers], sites: tuple[str, ...], names: Any, most: int
) -> list[tuple[str, tuple[int, ...]]]:
    """The scalars that are asked for, less constant ones, as the zeros of a Cholesky factor."""
    every = {
        _label(site, index): (site, index)
        for site, values in draws.items()
        for index in np.ndindex(values.shape[1:])
    }
    asked = list(sites) if names is None else [names] if isinstance(names, str) else list(names)
    labels: list[str] = []
    for name in asked:
        name = name.replace(", ", ",") if isinstance(name, str) else name
        matching = (
            [name] if name in every else [k for k, (site, _) in every.items() if site == name]
        )
        if not matching:
            raise ValueError(
                f"names must be parameters ({', '.join(draws)}) or their entries, such as "
                f"{list(every)[-1]!r}, got {name!r}"
            )
        labels += matching
    free = [every[k] for k in dict.fromkeys(labels) if varies(_entry(draws, *every[k]))]
    if not free:
        raise ValueError(f"names must choose something that varies, got {asked}: constant or NaN")
    if len(free) > most:
        raise ValueError(
            f"names must choose at most {most} scalars, got {len(free)}; say which, such as "
            f"names={[_label(*entry) for entry in free[:3]]}"
        )
    return free


def _reference(reference: Any, ours: dict[str, Numbers], sites: set[str]) -> dict[str, Numbers]:
    """The draws to compare with, by name, in one row; ArviZ's objects have them in `posterior`."""
    given = getattr(reference, "posterior", reference)
    if not isinstance(given, Mapping):
        raise ValueError(
            "reference must be arrays of draws by name, or an ArviZ object with a posterior, got "
            f"{type(reference).__name__}"
        )
    found = {}
    for site in sorted(sites & set(given)):
        values, shape = np.asarray(given[site], np.float64), ours[site].shape[1:]
        lead = values.ndim - len(shape)
        if lead < 1 or values.shape[lead:] != shape:
            raise ValueError(
                f"reference[{site!r}] must have draws in front and the parameter's shape {shape} "
                f"behind, got {values.shape}"
            )
        if values.size == 0 or not np.isfinite(values).all():
            raise ValueError(f"reference[{site!r}] must be finite numbers, and at least one draw")
        found[site] = values.reshape(-1, *shape)
    if not found:
        raise ValueError(
            f"reference must have draws of {', '.join(sorted(sites))}, got {list(given)}"
        )
    return found


def _numpy(draws: Mapping[str, Any]) -> dict[str, Numbers]:
    return {name: np.asarray(values, np.float64) for name, values in draws.items()}


def _entry(draws: dict[str, Numbers], site: str, index: tuple[int, ...]) -> Numbers:
    at: Any = (slice(None), *index)
    entry: Numbers = draws[site][at]
    return entry


def _label(site: str, index: tuple[int, ...]) -> str:
    return site + (f"[{','.join(map(str, index))}]" if index else "")


def varies(x: Numbers) -> bool:
    """Whether the finite ones among the numbers are not all the same."""
    x = x[np.isfinite(x)]
    return x.size > 0 and bool(np.any(x != x[0]))
