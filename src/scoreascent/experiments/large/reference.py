"""What the means and sds of the large models are: exact values, or long runs of NUTS in 64 bits.

`python -m scoreascent.experiments.large.reference splines` makes that of one model anew; `--help`
says what else it takes.
"""

from __future__ import annotations

import argparse
import io
import math
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from scoreascent._files import write_atomically
from scoreascent._nuts import nuts_sampler
from scoreascent._structs import x64
from scoreascent.diagnostics.chains import ess_bulk, rhat
from scoreascent.experiments.accuracy.models import coordinates
from scoreascent.experiments.large.models import MODELS, large_model
from scoreascent.fitting.provenance import versions

STORED = Path(__file__).parent / "references"
GOOD_RHAT = 1.01

Origin = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How long a run is, unless it is told to end after so many `seconds`."""

    chains: int = 8
    warmup: int = 1000
    draws: int = 4000
    block: int = 250  # draws after which the clock is looked at
    accept: float = 0.9
    dense: bool = False
    seed: int = 0
    processes: int = 1  # which share the chains
    seconds: float = math.inf


# where the usual way would be slow, or wrong
SPECIAL: dict[str, dict[str, Any]] = {
    "splines": {"dense": True, "accept": 0.95},
    "horseshoe-200": {"accept": 0.98},
    "state-space": {"accept": 0.95},
}


@dataclass(frozen=True, eq=False)
class Reference:
    """Mean and sd of every unconstrained coordinate, and how well they are known.

    `mcse` is the standard error of the mean, R̂ that of the chains: 0 and 1 if exact. `log_density`
    is that of the mean: a model that was changed since has another.
    """

    names: tuple[str, ...]
    mean: NDArray[Any]
    sd: NDArray[Any]
    mcse: NDArray[Any]
    rhat: NDArray[Any]
    log_density: float = np.nan

    @property
    def good(self) -> bool:
        """Whether the chains agree on every coordinate."""
        return bool(np.all(self.rhat < GOOD_RHAT))


def settings_of(name: str, **given: Any) -> Settings:
    """The settings of a model, where nothing else is given."""
    return replace(Settings(**SPECIAL.get(name, {})), **given)


def compute(name: str, settings: Settings | None = None) -> Iterator[tuple[str, Reference, Origin]]:
    """Compute the references of a model and of its twins; say also how each was made.

    Twins are models whose draws are made of those of this one.
    """
    settings, model = settings or settings_of(name), large_model(name)
    how: Origin = {"command": f"python -m scoreascent.experiments.large.reference {name}"}
    how |= versions()
    if model.exact is not None:
        with x64():
            names = tuple(coordinates(model.target()))
        mean, sd = model.exact()
        found = Reference(names, mean, sd, np.zeros(len(names)), np.ones(len(names)))
        yield name, *_finished(name, found, how | {"source": "exact"})
        return
    draws, counts = _sampled(name, settings)
    how |= {"source": f"NUTS, {draws.shape[1]} draws a chain, 64 bits", **counts}
    how |= asdict(settings)
    for twin in (name, *twins(name)):
        with x64():
            names = tuple(coordinates(large_model(twin).target()))
        of_twin = back(twin, draws)
        how |= {"largest_correlation": round(largest_correlation(of_twin), 4)}
        yield twin, *_finished(twin, summarise(of_twin, names), how)


def twins(name: str) -> tuple[str, ...]:
    """The models whose reference is made of the draws of this one.

    >>> twins("slopes")
    ('slopes-centred',)
    """
    own = large_model(name).target
    return tuple(n for n, m in MODELS.items() if m.detour is not None and m.detour.target == own)


def _finished(name: str, found: Reference, how: Origin) -> tuple[Reference, Origin]:
    """The reference with the log density of its mean."""
    with x64():
        log_density = float(large_model(name).target().log_prob(jnp.asarray(found.mean)))
    return replace(found, log_density=log_density), how | {"log_density": log_density}


def largest_correlation(draws: NDArray[Any], most: int = 4000) -> float:
    """The largest correlation of two coordinates, from some of the draws (chains, draws, d)."""
    flat = draws.reshape(-1, draws.shape[-1])
    seen = np.abs(np.corrcoef(flat[:: -(-len(flat) // most)].T))
    return float(np.max(seen - np.eye(len(seen))))


def back(name: str, draws: NDArray[Any]) -> NDArray[Any]:
    """The draws (chains, draws, d) of the model, from those of its detour."""
    detour = large_model(name).detour
    if detour is None:
        return draws
    flat = detour.back(draws.reshape(-1, draws.shape[-1]))
    return flat.reshape(*draws.shape[:2], -1)


def summarise(draws: NDArray[Any], names: tuple[str, ...]) -> Reference:
    """The moments of draws (chains, draws, d), and what the chains say of their error."""
    flat = draws.reshape(-1, draws.shape[-1])
    sd = flat.std(0, ddof=1)
    mcse = sd / np.sqrt(ess_bulk(draws))
    return Reference(names, flat.mean(0), sd, np.atleast_1d(mcse), np.atleast_1d(rhat(draws)))


def _sampled(name: str, settings: Settings) -> tuple[NDArray[Any], dict[str, int]]:
    """Take draws (chains, draws, d), by one process or several; count what that took."""
    if settings.processes == 1:
        return sample(name, settings)
    each = replace(settings, chains=settings.chains // settings.processes, processes=1)
    parts = [replace(each, seed=1000 * i + settings.seed) for i in range(settings.processes)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(settings.processes, context) as pool:
        found = list(pool.map(sample, [name] * len(parts), parts))
    least = min(draws.shape[1] for draws, _ in found)
    draws = np.concatenate([draws[:, :least] for draws, _ in found])
    return draws, {key: sum(counts[key] for _, counts in found) for key in found[0][1]}


def sample(name: str, settings: Settings) -> tuple[NDArray[Any], dict[str, int]]:
    """Take draws by one process, until there are enough or time is up.

    Counted are gradients of the warm-up and of all, and divergences after it.
    """
    begun, model = time.monotonic(), large_model(name)
    with x64():
        target = (model.detour or model).target()
        sampler = nuts_sampler(
            target,
            warmup=settings.warmup,
            draws=min(settings.block, settings.draws),
            chains=settings.chains,
            target_accept_prob=settings.accept,
            dense_mass=settings.dense,
        )
        key, start = jax.random.split(jax.random.key(settings.seed))
        first = jax.random.uniform(start, (settings.chains, target.dim), minval=-2.0, maxval=2.0)
        first = first if settings.chains > 1 else first[0]  # NumPyro's way
        fields = ("num_steps", "diverging")
        sampler.warmup(key, init_params=first, extra_fields=fields, collect_warmup=True)
        warmup = gradients = int(np.sum(sampler.get_extra_fields()["num_steps"]))
        divergent = 0
        block, draws = 0.0, list[NDArray[Any]]()
        while not draws or sum(d.shape[1] for d in draws) < settings.draws:
            if draws and time.monotonic() - begun + block > settings.seconds:
                break
            clock = time.monotonic()
            sampler.run(sampler.post_warmup_state.rng_key, extra_fields=fields)
            sampler.post_warmup_state = sampler.last_state
            draws.append(np.asarray(sampler.get_samples(group_by_chain=True)))
            extra = sampler.get_extra_fields()
            gradients += int(np.sum(extra["num_steps"]))
            divergent += int(np.sum(extra["diverging"]))
            block = time.monotonic() - clock
    counts = {"warmup_gradients": warmup, "gradients": gradients, "divergent": divergent}
    return np.concatenate(draws, axis=1), counts


# -- files -----------------------------------------------------------------------------------------


def write(folder: Path, name: str, reference: Reference, origin: Origin) -> Path:
    """Write one row a coordinate; how it was made stands above, as comments."""
    text = io.StringIO()
    for key, value in origin.items():
        text.write(f"# {key}: {value}\n")
    columns = {"coordinate": reference.names, "mean": reference.mean, "sd": reference.sd}
    columns |= {"mcse": np.vectorize("{:.2g}".format)(reference.mcse)}
    columns |= {"rhat": np.vectorize("{:.4f}".format)(reference.rhat)}
    pd.DataFrame(columns).to_csv(text, index=False, float_format="%.6g")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.csv"
    write_atomically(path, lambda file: file.write(text.getvalue().encode()))
    return path


def load(name: str, folder: Path | None = None) -> Reference:
    """The stored reference of a model.

    >>> float(load("factors-regression").rhat.max())
    1.0
    """
    dim, path = large_model(name).dim, (folder or STORED) / f"{name}.csv"
    command = f"`python -m scoreascent.experiments.large.reference {name}`"
    if not path.exists():
        raise ValueError(f"model {name!r} has no reference at {str(path)!r}; make it by {command}")
    text = path.read_text(encoding="utf-8")
    table = pd.read_csv(io.StringIO(text), comment="#")
    if len(table) != dim:
        raise ValueError(
            f"{str(path)!r} has {len(table)} coordinates, but model {name!r} has {dim}; "
            f"make it anew by {command}"
        )
    head = dict(x[2:].split(": ", 1) for x in text.splitlines() if x.startswith("# "))
    numbers = {c: table[c].to_numpy(np.float64) for c in ("mean", "sd", "mcse", "rhat")}
    log_density = float(head.get("log_density", "nan"))
    return Reference(tuple(table["coordinate"]), **numbers, log_density=log_density)


def main() -> None:
    """Make the references of the models that are named."""
    parser = argparse.ArgumentParser(description="Compute references of large models.")
    parser.add_argument("model", nargs="+", choices=MODELS)
    parser.add_argument("--out", type=Path, default=STORED, help="folder")
    for name in ("chains", "warmup", "draws", "block", "seed", "processes"):
        parser.add_argument(f"--{name}", type=int, help=str(getattr(Settings, name)))
    parser.add_argument("--accept", type=float, help="acceptance rate to aim at")
    parser.add_argument("--seconds", type=float, help="end after so long, with fewer draws")
    given = vars(parser.parse_args())
    models, out = given.pop("model"), given.pop("out")
    given = {key: value for key, value in given.items() if value is not None}
    for model in models:
        clock = time.perf_counter()
        for name, found, origin in compute(model, settings_of(model, **given)):
            path = write(out, name, found, origin)
            worst = np.max(found.mcse / found.sd)
            says = f"{origin['source']}, R̂ ≤ {found.rhat.max():.4f}, error ≤ {worst:.3f} sds"
            kinds = ("warmup_gradients", "gradients", "divergent", "largest_correlation")
            counts = ", ".join(f"{origin[k]} {k}" for k in kinds if k in origin)
            print(f"{path.name}: {says}; {counts}, {time.perf_counter() - clock:.0f} s", flush=True)


if __name__ == "__main__":
    main()
