"""From a call of `fit` to its result: arguments, the host's loop, stopping, starts, files."""

from scoreascent.fitting.checkpoint import CheckpointError
from scoreascent.fitting.compare import compare
from scoreascent.fitting.entry import fit
from scoreascent.fitting.loading import LoadError, load
from scoreascent.fitting.result import DivergenceError, Result
from scoreascent.fitting.starts import laplace, pathfinder
from scoreascent.fitting.stopping import Converged
from scoreascent.fitting.tempered import tempered

__all__ = [
    "CheckpointError",
    "Converged",
    "DivergenceError",
    "LoadError",
    "Result",
    "compare",
    "fit",
    "laplace",
    "load",
    "pathfinder",
    "tempered",
]
