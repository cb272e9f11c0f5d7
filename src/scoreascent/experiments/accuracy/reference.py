"""What a posterior's means and spreads are: long runs of NUTS in 64 bits, or exact values."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from numpyro.infer import MCMC, NUTS

from scoreascent._files import write_atomically
from scoreascent._structs import x64
from scoreascent.diagnostics.chains import ess_bulk, rhat
from scoreascent.experiments.accuracy.exact import LEVELS, Moments
from scoreascent.experiments.accuracy.models import coordinates, entry
from scoreascent.provenance import versions

# in an installed package, and in the repository
HERE = Path(__file__).parent / "references"
STORED = Path(__file__).parents[4] / "docs" / "results" / "accuracy" / "references"
QUANTILES = [f"q{100 * level:g}" for level in LEVELS]


@dataclass(frozen=True)
class Settings:
    """How long a reference run is: blocks of draws are added until both rules hold."""

    chains: int = 4
    warmup: int = 2000
    block: int = 5000
    blocks: int = 20
    accept: float = 0.9
    rhat: float = 1.005
    ess: float = 10_000.0
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Reference(Moments):
    """Moments, with what the chains say of their error: R̂ and ESS are 1 and ∞ if exact."""

    names: tuple[str, ...]
    rhat: NDArray[Any]
    ess: NDArray[Any]


def compute(name: str, settings: Settings | None = None) -> tuple[Reference, dict[str, Any]]:
    """The reference of a model, and how it was made."""
    settings = settings or Settings()
    what = entry(name)
    made: dict[str, Any] = {
        "command": f"scoreascent bench accuracy --references --model {name}",
        **versions(),
    }
    if what.exact is not None:
        known = what.exact()
        one = np.ones(what.dim)
        numbers = {f.name: getattr(known, f.name) for f in fields(known)}
        names = tuple(coordinates(what.target()))
        made["source"] = "exact"
        return Reference(**numbers, names=names, rhat=one, ess=np.inf * one), made
    with x64():
        target = what.target()
        draws, divergent = _sample(name, target, settings)
        names = tuple(coordinates(target))
    made |= {"source": f"NUTS, {draws.shape[1]} draws a chain, 64 bits", **asdict(settings)}
    made["divergent"] = divergent
    return summarise(draws, names), made


def summarise(draws: NDArray[Any], names: tuple[str, ...]) -> Reference:
    """Moments of draws (chains, draws, d)."""
    flat = draws.reshape(-1, draws.shape[-1])
    return Reference(
        mean=flat.mean(0),
        sd=flat.std(0, ddof=1),
        quantiles=np.quantile(flat, LEVELS, axis=0).T,
        names=names,
        rhat=np.atleast_1d(rhat(draws)),
        ess=np.atleast_1d(ess_bulk(draws)),
    )


def _sample(name: str, target: Any, settings: Settings) -> tuple[NDArray[Any], int]:
    """Draws (chains, draws, d), a block at a time until both rules hold; and the divergences."""
    kernel = NUTS(potential_fn=lambda z: -target.log_prob(z), target_accept_prob=settings.accept)
    sampler = MCMC(
        kernel,
        num_warmup=settings.warmup,
        num_samples=settings.block,
        num_chains=settings.chains,
        chain_method="vectorized",
        progress_bar=False,
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


def write(folder: Path, name: str, reference: Reference, made: dict[str, Any]) -> Path:
    """One row a coordinate; how it was made stands above, as comments."""
    table = pd.DataFrame(
        {
            "coordinate": reference.names,
            "mean": reference.mean,
            "sd": reference.sd,
            "rhat": reference.rhat,
            "ess": np.round(reference.ess),
            **dict(zip(QUANTILES, reference.quantiles.T)),
        }
    )
    text = io.StringIO()
    for key, value in made.items():
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
    what = entry(name)
    path = (folder or (HERE if HERE.is_dir() else STORED)) / f"{name}.csv"
    if not path.exists():
        raise ValueError(
            f"model {name!r} has no reference at {str(path)!r}; make it with "
            f"`scoreascent bench accuracy --references --model {name}`"
        )
    table = pd.read_csv(path, comment="#")
    if len(table) != what.dim:
        raise ValueError(
            f"{str(path)!r} has {len(table)} coordinates, but model {name!r} has {what.dim}; "
            "make it anew with --references"
        )
    return Reference(
        mean=table["mean"].to_numpy(),
        sd=table["sd"].to_numpy(),
        quantiles=table[QUANTILES].to_numpy(),
        names=tuple(table["coordinate"]),
        rhat=table["rhat"].to_numpy(),
        ess=table["ess"].to_numpy(),
    )
