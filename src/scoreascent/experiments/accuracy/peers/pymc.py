"""PyMC: ADVI."""

from __future__ import annotations

import importlib
import warnings

import numpy as np

import scoreascent as sa
from scoreascent.adapters.pymc import load_pymc
from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.peers import base
from scoreascent.experiments.accuracy.peers.base import Peer, Read, Seeded


def _advi(entry: Entry, target: sa.Target) -> Seeded:

    pymc, pytensor = load_pymc(), importlib.import_module("pytensor")
    with pymc.Model() as model, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        z = pymc.Flat("z", shape=target.dim)
        pymc.Potential("log_p", pytensor.wrap_jax(target.log_prob)(z))

    def fit(seed: int) -> Read:
        with model:
            fitted = pymc.fit(n=base.STEPS, method="advi", random_seed=seed, progressbar=False)
        mean, sd = fitted.mean.eval(), fitted.std.eval()
        return lambda: base.gaussian_fit(mean, np.diag(sd**2), target, seed, base.STEPS)

    return fit


PEERS = {"pymc-advi": Peer(_advi, "ADVI", "o", "#2ca02c", "pymc")}
