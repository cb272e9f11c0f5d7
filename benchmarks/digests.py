"""Checksums of a dozen fits of all kinds: a change of structure must not change a bit of them.

    python -m benchmarks.digests > before.csv      # then change the code
    python -m benchmarks.digests --against before.csv

Bits depend on the processor and on the versions of jax and XLA, so two runs compare on one machine
only; which rows differ is what counts.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax

import scoreascent as sa

X = np.linspace(-1, 1, 24, dtype=np.float32)
Y = np.asarray(np.sin(3 * X) + 0.1 * np.cos(17 * X), np.float32)
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)


def _regression(z: Any, data: Any) -> Any:
    x, y = data
    noise = jnp.exp(z[2])
    residual = (y - z[0] - z[1] * x) / noise
    return -0.5 * jnp.sum(residual**2) - len(y) * z[2] - 0.5 * jnp.sum(z**2)


def _schools(effects: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfNormal(5))
    with numpyro.plate("school", 8):
        theta = numpyro.sample("theta", dist.Normal(0, 1))
        numpyro.sample("effect", dist.Normal(mu + tau * theta, ERRORS), obs=effects)


def _quadratic(z: Any) -> Any:
    scale = jnp.geomspace(0.1, 10, z.shape[0])
    return -0.5 * jnp.sum((z / scale) ** 2) - 0.3 * z[0] * z[-1]


def _modes(z: Any) -> Any:
    return jnp.logaddexp(-0.5 * jnp.sum((z - 3) ** 2), -0.5 * jnp.sum((z + 3) ** 2))


LINE = sa.Target(_regression, dim=3, data=(X, Y))
QUIET: dict[str, Any] = {"progress": False, "key": 3}


def _fitted(method: Any, **settings: Any) -> sa.Result:
    return sa.fit(LINE, method, **{"steps": 120, **QUIET, **settings})


def _resumed() -> sa.Result:
    """Half of a run, and the rest of it from its checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.ckpt"
        _fitted(sa.pmcsa(8), steps=60, checkpoint=path)
        return _fitted(sa.pmcsa(8), checkpoint=path)


def _verdict(result: sa.Result) -> str:
    d = result.diagnose()
    return f"{d.verdict} {d.k_hat:.12g} {d.rhat:.12g} {d.ess:.12g} {d.chain_ess:.12g}"


FITS: dict[str, Callable[[], sa.Result]] = {
    "pmcsa": lambda: _fitted(sa.pmcsa(8), average=True),
    "pmcsa-rb": lambda: _fitted(sa.pmcsa(8, rao_blackwell=True)),
    "jsa": lambda: _fitted(sa.jsa(8)),
    "msc": lambda: _fitted(sa.msc(8)),
    "msc-rb": lambda: _fitted(sa.msc_rb(8, sa.Defensive())),
    "elbo": lambda: _fitted(sa.elbo(4), optimizer=optax.sgd(1e-3)),
    "checkpoint": _resumed,
    "replications": lambda: _fitted(sa.pmcsa(4), replications=3),
    "data-replicated": lambda: sa.fit(
        [sa.Target(_regression, dim=3, data=(X, y)) for y in (Y, -Y)],
        sa.jsa(4), steps=80, q0=lambda k: sa.MeanField(jax.random.normal(k, (3,)), jnp.ones(3)),
        **QUIET,
    ),
    "moments-hmc": lambda: _fitted(
        sa.pmcsa(32, sa.Cycle(sa.IMH(), sa.HMC())), q0=sa.FullRank.standard(3),
        optimizer=sa.moment_matching(), stop=sa.Converged(every=20), steps=800,
    ),
    "adapted-lowrank": lambda: _fitted(
        sa.pmcsa(16, sa.Adapted(sa.IMH(), rank=2)), q0=sa.LowRank.standard(3, rank=2),
        optimizer=sa.moment_matching(), average=0.2,
    ),
    "student-start": lambda: _fitted(
        sa.pmcsa(16), q0=sa.laplace(LINE, key=1), optimizer=sa.moment_matching()
    ),
    "start-replicated": lambda: _fitted(sa.msc(6), q0=sa.laplace(LINE, key=1), replications=2),
    "auto": lambda: sa.fit(LINE, **QUIET),
    "auto-schools": lambda: sa.fit(sa.from_numpyro(_schools, EFFECTS), **QUIET),
    "auto-modes": lambda: sa.fit(sa.Target(_modes, dim=2), **QUIET),
    "auto-lowrank": lambda: sa.fit(sa.Target(_quadratic, dim=210), steps=240, **QUIET),
    "auto-meanfield": lambda: sa.fit(
        sa.Target(_quadratic, dim=4), q0=sa.MeanField.standard(4), **QUIET
    ),
}  # fmt: skip


def digest(result: sa.Result) -> str:
    """A checksum of q, the state, the trace and named draws."""
    sha = hashlib.sha256()
    state = result.state._replace(key=jax.random.key_data(result.state.key))
    for tree in (result.q, state, result.trace, result.sample(5, 16), result.evaluations):
        for leaf in jax.tree.leaves(tree):
            array = np.asarray(leaf)
            sha.update(f"{array.shape}{array.dtype}".encode())
            sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()[:16]


def main() -> None:
    """Print the table, or compare it with an earlier one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="an earlier table to compare with")
    against = parser.parse_args().against
    before = {}
    if against is not None:
        before = {row["fit"]: row for row in csv.DictReader(against.read_text().splitlines())}
    out = csv.writer(sys.stdout)
    out.writerow(("fit", "digest", "status", "verdict"))
    differ = []
    for name, fit in FITS.items():
        result = fit()
        words = _verdict(result) if result.replications is None else ""
        status = result.status if isinstance(result.status, str) else " ".join(result.status)
        row = {"fit": name, "digest": digest(result), "status": status, "verdict": words}
        out.writerow(row.values())
        sys.stdout.flush()
        if against is not None and before.get(name) != row:
            differ.append(name)
    if against is not None:
        sys.exit(f"different: {', '.join(differ)}" if differ else 0)


if __name__ == "__main__":
    main()
