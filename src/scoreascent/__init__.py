"""Variational inference that gets the uncertainties right, by Markov chain score ascent."""

from scoreascent import plots, schedules
from scoreascent._version import __version__
from scoreascent.adapters import from_blackjax, from_numpyro, from_pymc
from scoreascent.checkpoint import CheckpointError
from scoreascent.families import (
    Defensive,
    Family,
    FullRank,
    FullRankStudentT,
    LowRank,
    MeanField,
    StudentT,
    kl,
)
from scoreascent.fit import fit
from scoreascent.kernels import (
    CIS,
    HMC,
    IMH,
    MALA,
    Adapted,
    Cycle,
    Info,
    Kernel,
    Metropolis,
    Parallel,
    Particles,
    Point,
    Proposal,
    Select,
    Sequential,
)
from scoreascent.loop import State, Trace
from scoreascent.methods import (
    Method,
    PathElbo,
    ScoreAscent,
    elbo,
    jsa,
    msc,
    msc_rb,
    pmcsa,
)
from scoreascent.result import DivergenceError, Result
from scoreascent.starts import Start, laplace, pathfinder
from scoreascent.stopping import Converged
from scoreascent.target import Model, Param, Target
from scoreascent.update import Update, gradient, moment_matching

__all__ = [
    "CIS",
    "HMC",
    "IMH",
    "MALA",
    "Adapted",
    "CheckpointError",
    "Converged",
    "Cycle",
    "Defensive",
    "DivergenceError",
    "Family",
    "FullRank",
    "FullRankStudentT",
    "Info",
    "Kernel",
    "LowRank",
    "MeanField",
    "Method",
    "Metropolis",
    "Model",
    "Parallel",
    "Param",
    "Particles",
    "PathElbo",
    "Point",
    "Proposal",
    "Result",
    "ScoreAscent",
    "Select",
    "Sequential",
    "Start",
    "State",
    "StudentT",
    "Target",
    "Trace",
    "Update",
    "__version__",
    "elbo",
    "fit",
    "from_blackjax",
    "from_numpyro",
    "from_pymc",
    "gradient",
    "jsa",
    "kl",
    "laplace",
    "moment_matching",
    "msc",
    "msc_rb",
    "pathfinder",
    "plots",
    "pmcsa",
    "schedules",
]
