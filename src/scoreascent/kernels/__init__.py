from scoreascent.kernels.base import (
    Adaptive,
    Info,
    Kernel,
    Metropolis,
    Particles,
    Point,
    Proposal,
)
from scoreascent.kernels.cis import CIS
from scoreascent.kernels.combinators import Moves, Parallel, Select, Sequential
from scoreascent.kernels.compose import Adapted, Cycle
from scoreascent.kernels.hmc import HMC, MALA
from scoreascent.kernels.imh import IMH

__all__ = [
    "CIS",
    "HMC",
    "IMH",
    "MALA",
    "Adapted",
    "Adaptive",
    "Cycle",
    "Info",
    "Kernel",
    "Metropolis",
    "Moves",
    "Parallel",
    "Particles",
    "Point",
    "Proposal",
    "Select",
    "Sequential",
]
