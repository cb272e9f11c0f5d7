"""From a call of `fit` to its result: arguments, the host's loop, stopping, starts, files."""

from scoreascent.fitting.calibration import Calibration, calibrate
from scoreascent.fitting.checkpoint import CheckpointError
from scoreascent.fitting.compare import compare
from scoreascent.fitting.entry import fit
from scoreascent.fitting.handover import Handover, from_draws
from scoreascent.fitting.into_folder import fit_many
from scoreascent.fitting.loading import LoadError, load
from scoreascent.fitting.many import Fits
from scoreascent.fitting.predict import Predictions
from scoreascent.fitting.processes import ProcessLostError
from scoreascent.fitting.result import DivergenceError, Result
from scoreascent.fitting.starts import laplace, pathfinder
from scoreascent.fitting.stopping import Converged
from scoreascent.fitting.tempered import tempered

__all__ = [
    "Calibration",
    "CheckpointError",
    "Converged",
    "DivergenceError",
    "Fits",
    "Handover",
    "LoadError",
    "Predictions",
    "ProcessLostError",
    "Result",
    "calibrate",
    "compare",
    "fit",
    "fit_many",
    "from_draws",
    "laplace",
    "load",
    "pathfinder",
    "tempered",
]
