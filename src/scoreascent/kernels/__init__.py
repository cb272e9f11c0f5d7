from scoreascent.kernels.base import (
    Adaptive,
    Count,
    Info,
    Kernel,
    Metropolis,
    Particles,
    Places,
    Point,
    Proposal,
    evaluate,
    metropolis_probability,
)
from scoreascent.kernels.cis import CIS
from scoreascent.kernels.compose import Adapted, Cycle
from scoreascent.kernels.hmc import HMC, MALA
from scoreascent.kernels.imh import IMH
from scoreascent.kernels.moves import Moves, Parallel, Select, Sequential
from scoreascent.kernels.straight import InBase
from scoreascent.kernels.walk import Walk

__all__ = [
    "CIS",
    "HMC",
    "IMH",
    "MALA",
    "Adapted",
    "Adaptive",
    "Count",
    "Cycle",
    "InBase",
    "Info",
    "Kernel",
    "Metropolis",
    "Moves",
    "Parallel",
    "Particles",
    "Places",
    "Point",
    "Proposal",
    "Select",
    "Sequential",
    "Walk",
    "evaluate",
    "metropolis_probability",
]
