"""The simulations of a calibration: draw, fit, rank; and the file that they are kept in."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from scoreascent._arrays import default_dtype
from scoreascent._files import write_atomically
from scoreascent._random import as_key, fold_in, split
from scoreascent.adapters.simulate import Simulator
from scoreascent.diagnostics.draws import scalar_names
from scoreascent.fitting.checkpoint import CheckpointError
from scoreascent.fitting.entry import fit
from scoreascent.fitting.provenance import versions
from scoreascent.fitting.result import DivergenceError
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Float, PRNGKeyArray

FORMAT = "scoreascent calibration 1"
LOG_LIKELIHOOD = "log likelihood"  # of the data, as a number to rank like any parameter
BATCH = 64  # fits by one given method that run as one program
SECONDS_BETWEEN_SAVES = 5.0


def integers(x: Any) -> list[int]:
    """Return numbers as Python's own, which any process can read."""
    return [int(i) for i in x]


@dataclass(frozen=True)
class Simulation:
    """One simulation, by its number: picklable if the model is."""

    source: Simulator
    seeds: tuple[int, ...]
    draws: int
    options: dict[str, Any]

    def keys(self, i: int) -> list[PRNGKeyArray]:
        """The keys of simulation i: to draw it, to fit it, to draw of the fit, to break ties."""
        key: Any = np.array(self.seeds, np.uint32)
        return split(fold_in(as_key(key), i), 4)

    def names(self) -> tuple[str, ...]:
        """The scalars that prior and posterior both have, in the order of the posterior's."""
        key_draw, _, _, _ = self.keys(0)
        values, data = self.source.draw(key_draw)
        target = self.source.target(data)
        z = jax.ShapeDtypeStruct((target.dim,), default_dtype())
        shapes = {k: x.shape for k, x in jax.eval_shape(target.named, z).items()}
        for name in [k for k in shapes if k in values]:
            if np.shape(values[name]) != shapes[name]:
                raise ValueError(
                    f"simulator gives {name!r} of shape {np.shape(values[name])}, and the model "
                    f"has it of shape {shapes[name]}"
                )
        if not (both := [k for k in shapes if k in values]):
            raise ValueError(
                f"simulator gives {sorted(values)}, and the model has {sorted(shapes)}: no name "
                "is in both"
            )
        likelihood = [LOG_LIKELIHOOD] if self._can_rank_likelihood(target, values) else []
        return tuple([s for k in both for s in scalar_names(k, shapes[k])] + likelihood)

    def describe(self) -> str:
        """What is simulated and how it is fitted, in words that are the same in every process."""
        return f"{self.source} {self.options}"

    def run(self, todo: list[int], mapped: Any) -> Iterable[tuple[int, Any, str]]:
        """Give number, PITs and verdict of every simulation as it is done."""
        if mapped is not None:
            yield from mapped(self, todo)
        elif self.options.get("method", "auto") != "auto":
            for block in dict.fromkeys(i // BATCH for i in todo):
                yield from self._side_by_side(range(block * BATCH, (block + 1) * BATCH))
        else:
            for i in todo:
                yield self(i)

    def __call__(self, i: int) -> tuple[int, Any, str]:
        """Return number, PITs and verdict of simulation i; no PITs, and why, if its fit failed."""
        key_draw, key_fit, key_sample, key_rank = self.keys(i)
        values, data = self.source.draw(key_draw)
        target = self.source.target(data)
        try:
            result = fit(target, key=key_fit, progress=False, **self.options)
        except DivergenceError as error:
            return i, None, f"failed: {error}"
        if result.status == "interrupted":
            raise KeyboardInterrupt
        draws = result.sample(key_sample, self.draws)
        verdict = "" if result.diagnosis is None else result.diagnosis.verdict
        return i, self._ranks(key_rank, target, values, draws), verdict

    def _side_by_side(self, numbers: Iterable[int]) -> Iterable[tuple[int, Any, str]]:
        """Fit by a method that was given, all of a block in one program; one key serves a block."""
        keys = [self.keys(i) for i in numbers]
        drawn = [self.source.draw(k[0]) for k in keys]
        targets = [self.source.target(data) for _, data in drawn]
        result: Any = fit(targets, key=keys[0][1], progress=False, **self.options)
        if "interrupted" in result.status:
            raise KeyboardInterrupt
        for at, i in enumerate(numbers):
            if result.status[at] == "diverged":
                yield i, None, "failed: diverged"
                continue
            draws = result[at].sample(keys[at][2], self.draws)
            yield i, self._ranks(keys[at][3], targets[at], drawn[at][0], draws), ""

    def _ranks(self, key: Any, target: Target, values: Any, draws: Any) -> Any:
        """Return the share of draws below the true values; ties are broken at random."""
        both = [k for k in draws if k in values]
        truth = [np.ravel(np.asarray(values[k], np.float64)) for k in both]
        found = [np.asarray(draws[k], np.float64).reshape(self.draws, -1) for k in both]
        if self._can_rank_likelihood(target, values):
            there = {k: np.asarray(values[k])[None] for k in target.site_names}
            truth.append(_log_likelihood(target, there))
            found.append(_log_likelihood(target, draws)[:, None])
        x, y = np.concatenate(truth), np.concatenate(found, axis=1)
        below, ties = np.sum(y < x, axis=0), np.sum(y == x, axis=0)
        rng = np.random.default_rng(integers(jax.random.key_data(key)))
        pit = (below + rng.uniform(size=len(x)) * (ties + 1)) / (self.draws + 1)
        return np.where(np.isfinite(x) & np.all(np.isfinite(y), axis=0), pit, np.nan)

    @staticmethod
    def _can_rank_likelihood(target: Target, values: Any) -> bool:
        """Whether the model tells the density of its data, at parameters that are all known."""
        model = target.model
        return (
            model is not None
            and bool(model.observed(target.data))
            and all(name in values for name in target.site_names)
        )


def _log_likelihood(target: Target, draws: Mapping[str, Any]) -> Float[np.ndarray, " n"]:
    """Return the log density of all data at named draws."""
    free = {name: jax.numpy.asarray(draws[name]) for name in target.site_names}
    return np.asarray(_summed(target, free), np.float64)


@jax.jit
def _summed(target: Target, draws: Any) -> Any:
    def one(values: Any) -> Any:
        assert target.model is not None
        z = target.unconstrain(values)
        return sum(x.sum() for x in target.model.log_likelihood(z, target.data).values())

    return jax.vmap(one)(draws)


class Store:
    """The simulations that are done, in a file if one is named."""

    def __init__(self, path: Path | None, names: tuple[str, ...], settings: dict[str, Any]) -> None:
        self.path, self.names, self.settings = path, names, settings
        self.rows: dict[int, tuple[Any, str]] = {}
        self._saved = time.monotonic()
        self._new = False
        if path is not None and path.exists():
            self._load(path)

    def add(self, i: int, pit: Any, verdict: str) -> None:
        """Keep one, and write the file if that was not done for a while."""
        row = np.full(len(self.names), np.nan) if pit is None else np.asarray(pit)
        self.rows[i], self._new = (row, verdict), True
        if time.monotonic() - self._saved > SECONDS_BETWEEN_SAVES:
            self.save()

    def save(self) -> None:
        """Write the file, if one is named and it lacks something."""
        if self.path is None or not self._new:
            return
        numbers = sorted(self.rows)
        header = {
            "format": FORMAT,
            "names": self.names,
            "settings": self.settings,
            "verdicts": [self.rows[i][1] for i in numbers],
            "versions": versions(),
        }
        arrays = {
            "numbers": np.array(numbers),
            "pit": np.array([self.rows[i][0] for i in numbers]),
            "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
        }
        write_atomically(self.path, lambda file: np.savez(file, allow_pickle=False, **arrays))
        self._saved, self._new = time.monotonic(), False

    def _load(self, path: Path) -> None:
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                header = json.loads(file["header"].tobytes().decode())
                numbers, pit = file["numbers"], file["pit"]
            if header["format"] != FORMAT:
                raise ValueError(header["format"])
            self.rows = {
                int(i): (x, v) for i, x, v in zip(numbers, pit, header["verdicts"], strict=True)
            }
        except (OSError, ValueError, LookupError, EOFError, TypeError, zipfile.BadZipFile) as error:
            raise CheckpointError(
                f"checkpoint {str(path)!r} is damaged or no calibration of this version "
                f"({type(error).__name__}: {error}); it was left as it is. Move it away to start "
                "afresh, or name another file."
            ) from error
        found = {"names": header["names"], **header["settings"]}
        now = json.loads(json.dumps({"names": self.names, **self.settings}))
        if differ := [k for k in now if found.get(k) != now[k]]:
            says = "; ".join(f"{k}: file {found.get(k)!r}, now {now[k]!r}" for k in differ)
            raise CheckpointError(
                f"checkpoint {str(path)!r} is of another calibration ({says}). It was left as it "
                "is. Name another file, or repeat its settings."
            )
