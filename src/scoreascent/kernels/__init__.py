from scoreascent.kernels.base import Info, Kernel, Metropolis, Particles, Point, Proposal
from scoreascent.kernels.cis import CIS
from scoreascent.kernels.combinators import Moves, Parallel, Select, Sequential
from scoreascent.kernels.imh import IMH

__all__ = [
    "CIS",
    "IMH",
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
