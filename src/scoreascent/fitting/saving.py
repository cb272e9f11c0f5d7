"""A result as one file: all of it but the target's code, and what tells the target from others."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri

from scoreascent import _npz
from scoreascent._structs import check_count
from scoreascent._version import __version__
from scoreascent.diagnostics.draws import best_source, count_scalars, draw, summarise
from scoreascent.fitting.provenance import posterior
from scoreascent.fitting.records import Packer, Unkept
from scoreascent.loop import Replicate
from scoreascent.run import Kept, Run
from scoreascent.target import Target
from scoreascent.update import DEFAULT

FORMAT, VERSION = "scoreascent result", 1
# Every field of a result but target, method, update and kept, which are written in their own ways
FIELDS = (
    "q", "state", "trace", "status", "replications", "data_replicated", "provenance", "start",
    "convergence", "states", "states_every", "controls", "tolerance", "decisions", "diagnosis",
    "evaluations",
)  # fmt: skip
MAX_NUMBERS = 2**26  # of named draws


def save(result: Any, path: str | PathLike[str], draws: int) -> None:
    """Write a `Result`; see `Result.save`."""
    draws = check_count("draws", draws, 0)
    file = checked(path)
    packer = Packer()
    try:
        fields = {name: packer.pack(getattr(result, name), name) for name in FIELDS}
    except Unkept as error:
        raise ValueError(
            f"result cannot be written: {error}, which a file of plain arrays does not hold"
        ) from None
    kept = kept_draws(result, draws) if result.kept is None else result.kept
    header = {
        "format": FORMAT,
        "version": VERSION,
        "scoreascent": __version__,
        "result": fields,
        "method": _method(result.method, packer),
        "update": _update(result, packer),
        "posterior": identity(result),
        "image": image(result),
        "centring": packer.pack(_centring(result.target), "centring"),
        "kept": packer.pack(kept, "kept"),
    }
    _npz.write(file, packer.arrays, header)


def checked(path: str | PathLike[str]) -> Path:
    """Return the path of a file that may be written."""
    file = Path(path)
    if not file.parent.is_dir():
        raise ValueError(f"path: the folder {str(file.parent)!r} does not exist")
    if file.is_dir():
        raise ValueError(f"path: {str(file)!r} is a folder; name a file in it")
    return file


def replicate(run: Run) -> Replicate:
    """Return what of a run is replicated."""
    if run.replications is None:
        return "nothing"
    return "data" if run.data_replicated else "seeds"


def image(run: Run) -> list[str]:
    """Return where a bent q maps fixed noise to: another flowjax may map it elsewhere."""
    if not run.q.is_bent or run.replications is not None:
        return []
    noise = ndtri((np.arange(run.q.dim) + 0.5) / run.q.dim).astype(run.q.loc.dtype)  # type: ignore[attr-defined]
    return [str(x) for x in np.asarray(run.q.transport(noise), np.float64)]


def identity(run: Run) -> dict[str, Any]:
    """Return what tells the posterior from others; of one whose target is not here, as it was."""
    if not run.has_density:
        return run.target.log_density.identity  # type: ignore[attr-defined]
    return posterior(run.target, run.q, replicate(run))


def kept_draws(run: Any, most: int) -> Kept | None:
    """Return draws in the model's own space, and the summary where they do not tell it."""
    if not run.target.is_named or most == 0:
        return None
    one = jax.tree.map(lambda x: x[0], run.target) if run.data_replicated else run.target
    scalars = count_scalars(one) * (run.replications or 1)
    n = max(1, min(most, MAX_NUMBERS // max(1, scalars)))
    found = draw(run, jax.random.key(0), n, run.draws_from)
    told = run.diagnosis is not None and run.diagnosis.numbers
    rows = [] if told or best_source(run) != "chains" else summarise(run, "chains")
    return Kept(run.draws_from, {k: np.asarray(x) for k, x in found.items()}, tuple(rows))


def _centring(target: Target) -> Any:
    """Return how centred the sites of a model are, if that can be chosen."""
    if not getattr(target.model, "centrable", ()):
        return None
    return np.asarray(target.data[-1])


def _method(method: Any, packer: Packer) -> dict[str, Any]:
    """Return a method's settings, and what is asked of one that is made of functions."""
    facts = {"chains": method.chains, "independent": method.is_independent}
    return {"text": repr(method), "of": _settings(method, "method", packer), **facts}


def _update(result: Any, packer: Packer) -> dict[str, Any]:
    """Return an update's settings; an optimiser of optax, which has none, by what it does."""
    update, text = result.update, repr(result.update)
    if update == DEFAULT:
        return {"text": text, "of": "default", "does": ""}
    of = _settings(update, "update", packer)
    return {"text": text, "of": of, "does": "" if of else update.fingerprint(result.q)}


def _settings(value: Any, name: str, packer: Packer) -> Any:
    try:
        return packer.pack(value, name)
    except Unkept:  # it is made of functions
        return None
