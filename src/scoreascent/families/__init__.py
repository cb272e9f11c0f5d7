from scoreascent.families.base import Family, Gaussian, kl
from scoreascent.families.defensive import Defensive
from scoreascent.families.directions import FewDirections
from scoreascent.families.flow import Flow
from scoreascent.families.fullrank import FullRank
from scoreascent.families.lowrank import LowRank
from scoreascent.families.meanfield import MeanField
from scoreascent.families.mixture import Mixture
from scoreascent.families.student import FullRankStudentT, StudentT

__all__ = [
    "Defensive",
    "Family",
    "FewDirections",
    "Flow",
    "FullRank",
    "FullRankStudentT",
    "Gaussian",
    "LowRank",
    "MeanField",
    "Mixture",
    "StudentT",
    "kl",
]
