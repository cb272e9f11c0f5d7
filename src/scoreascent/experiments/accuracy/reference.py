"""What a posterior's means and spreads are: long runs of NUTS in 64 bits, or exact values."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scoreascent._files import write_atomically
from scoreascent._nuts import nuts_sampler
from scoreascent._structs import x64
from scoreascent.diagnostics.chains import ess_bulk, rhat
from scoreascent.experiments.accuracy.models import coordinates, entry
from scoreascent.experiments.accuracy.moments import LEVELS, Moments
from scoreascent.fitting.provenance import versions
from scoreascent.target import Target

# in an installed package, and in the repository
INSTALLED = Path(__file__).parent / "references"
STORED = Path(__file__).parents[4] / "docs" / "results" / "accuracy" / "references"
T = TypeVar("T")
QUANTILE_COLUMNS = [f"q{100 * level:g}" for level in LEVELS]


@dataclass(frozen=True)
class Settings:
    """How long a reference run is: blocks of draws are added until both rules hold."""

    chains: int = 4
    warmup: int = 2000
    block: int = 5000
    blocks: int = 20
    accept: float = 0.9
    dense: int = 60  # the mass matrix is dense up to so many dimensions
    rhat: float = 1.005
    ess: float = 10_000.0
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Reference(Moments):
    """Moments, with what the chains say of their error: R̂ and ESS are 1 and ∞ if exact.

    `log_density` is that of the mean: a model that was changed since has another.
    """

    names: tuple[str, ...]
    rhat: NDArray[Any]
    ess: NDArray[Any]
    log_density: float = np.nan


def compute(
    name: str,
    look: Callable[[Target, NDArray[Any]], T] | None = None,
    settings: Settings | None = None,
) -> tuple[Reference, dict[str, Any], T | None]:
    """Compute the reference of a model; say also how it was made, and what `look` makes of it.

    `look` is called with the target and the draws (n, d), in 64 bits, unless moments are exact.
    """
    settings = settings or Settings()
    model = entry(name)
    origin: dict[str, Any] = {
        "command": f"scoreascent bench accuracy --references --model {name}",
        **versions(),
    }
    seen: T | None = None
    with x64():
        target = model.target()
        names = tuple(coordinates(target))
        if model.exact is not None:
            found, origin["source"] = _known(model.exact(), names), "exact"
        else:
            draws, divergent = _sample(name, target, settings)
            found = summarise(draws, names)
            if look is not None:
                seen = look(target, draws.reshape(-1, draws.shape[-1]))
            origin |= {"source": f"NUTS, {draws.shape[1]} draws a chain, 64 bits"}
            origin |= {**asdict(settings), "divergent": divergent}
        origin["log_density"] = float(target.log_prob(jnp.asarray(found.mean)))
    return replace(found, log_density=origin["log_density"]), origin, seen


def summarise(draws: NDArray[Any], names: tuple[str, ...]) -> Reference:
    """The moments of draws (chains, draws, d), and what the chains say of their error."""
    flat = draws.reshape(-1, draws.shape[-1])
    return Reference(
        mean=flat.mean(0),
        sd=flat.std(0, ddof=1),
        quantiles=np.quantile(flat, LEVELS, axis=0).T,
        names=names,
        rhat=np.atleast_1d(rhat(draws)),
        ess=np.atleast_1d(ess_bulk(draws)),
    )


def _known(moments: Moments, names: tuple[str, ...]) -> Reference:
    """Exact moments as a reference."""
    one = np.ones(len(names))
    numbers = {f.name: getattr(moments, f.name) for f in fields(moments)}
    return Reference(**numbers, names=names, rhat=one, ess=np.inf * one)


def _sample(name: str, target: Any, settings: Settings) -> tuple[NDArray[Any], int]:
    """Take draws (chains, draws, d), block by block until both rules hold; count divergences."""
    sampler = nuts_sampler(
        target,
        warmup=settings.warmup,
        draws=settings.block,
        chains=settings.chains,
        parallel=jax.device_count() >= settings.chains,
        target_accept_prob=settings.accept,
        dense_mass=target.dim <= settings.dense,
    )
    key, start = jax.random.split(jax.random.key(settings.seed))
    first = jax.random.uniform(start, (settings.chains, target.dim), minval=-2, maxval=2)
    draws, divergent = np.empty((settings.chains, 0, target.dim)), 0
    for block in range(settings.blocks):
        if block:
            sampler.post_warmup_state = sampler.last_state
            sampler.run(sampler.last_state.rng_key, extra_fields=("diverging",))
        else:
            sampler.run(key, init_params=first, extra_fields=("diverging",))
        draws = np.concatenate([draws, sampler.get_samples(group_by_chain=True)], axis=1)
        divergent += int(np.sum(sampler.get_extra_fields()["diverging"]))
        worst, least = float(np.max(rhat(draws))), float(np.min(ess_bulk(draws)))
        if worst < settings.rhat and least >= settings.ess:
            return draws, divergent
    raise RuntimeError(
        f"the reference of {name!r} has R̂ {worst:.4f} and ESS {least:.0f} after {draws.shape[1]} "
        "draws a chain; raise blocks in reference.Settings"
    )


# -- files -----------------------------------------------------------------------------------------


def write(folder: Path, name: str, reference: Reference, origin: dict[str, Any]) -> Path:
    """Write one row a coordinate; how it was made stands above, as comments."""
    table = pd.DataFrame(
        {
            "coordinate": reference.names,
            "mean": reference.mean,
            "sd": reference.sd,
            "rhat": reference.rhat,
            "ess": np.round(reference.ess),
            **dict(zip(QUANTILE_COLUMNS, reference.quantiles.T)),
        }
    )
    text = io.StringIO()
    for key, value in origin.items():
        text.write(f"# {key}: {value}\n")
    table.to_csv(text, index=False, float_format="%.7g")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    write_atomically(path, lambda file: file.write(text.getvalue().encode()))
    return path


def load(name: str, folder: Path | None = None) -> Reference:
    """The stored reference of a model.

    >>> load("gaussian-ar1").sd[:2].tolist()
    [1.0, 1.0]
    """
    dim = entry(name).dim
    path = (folder or (INSTALLED if INSTALLED.is_dir() else STORED)) / f"{name}.csv"
    if not path.exists():
        raise ValueError(
            f"model {name!r} has no reference at {str(path)!r}; make it with "
            f"`scoreascent bench accuracy --references --model {name}`"
        )
    text = path.read_text(encoding="utf-8")
    table = pd.read_csv(io.StringIO(text), comment="#")
    if len(table) != dim:
        raise ValueError(
            f"{str(path)!r} has {len(table)} coordinates, but model {name!r} has {dim}; "
            "make it anew with --references"
        )
    head = dict(x[2:].split(": ", 1) for x in text.splitlines() if x.startswith("# "))
    return Reference(
        mean=table["mean"].to_numpy(np.float64),
        sd=table["sd"].to_numpy(np.float64),
        quantiles=table[QUANTILE_COLUMNS].to_numpy(np.float64),
        names=tuple(table["coordinate"]),
        rhat=table["rhat"].to_numpy(np.float64),
        ess=table["ess"].to_numpy(np.float64),
        log_density=float(head.get("log_density", "nan")),
    )
