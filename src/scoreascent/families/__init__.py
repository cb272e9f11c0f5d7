from scoreascent.families.base import Family
from scoreascent.families.defensive import Defensive
from scoreascent.families.fullrank import FullRank
from scoreascent.families.meanfield import MeanField

__all__ = ["Defensive", "Family", "FullRank", "MeanField"]
