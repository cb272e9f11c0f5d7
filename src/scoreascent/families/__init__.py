from scoreascent.families.base import Family
from scoreascent.families.defensive import Defensive
from scoreascent.families.divergence import kl
from scoreascent.families.fullrank import FullRank
from scoreascent.families.lowrank import LowRank
from scoreascent.families.meanfield import MeanField
from scoreascent.families.student import FullRankStudentT, StudentT

__all__ = [
    "Defensive",
    "Family",
    "FullRank",
    "FullRankStudentT",
    "LowRank",
    "MeanField",
    "StudentT",
    "kl",
]
