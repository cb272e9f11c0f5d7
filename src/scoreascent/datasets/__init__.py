"""Regression data sets, checked to the byte, and their train–test splits.

`diabetes` comes with scikit-learn. The eight UCI sets of the paper are read from the folder that
the environment variable `SCOREASCENT_DATA` names: nothing is downloaded, and a file that is not
the one the published numbers were compared with is refused.
"""

from scoreascent.datasets.files import FOLDER, check, load
from scoreascent.datasets.registry import AVAILABLE, REGISTRY, Source
from scoreascent.datasets.splits import Dataset, DatasetError, Split

__all__ = [
    "AVAILABLE",
    "FOLDER",
    "REGISTRY",
    "Dataset",
    "DatasetError",
    "Source",
    "Split",
    "check",
    "load",
]
