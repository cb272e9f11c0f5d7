"""The large models by name."""

from __future__ import annotations

from scoreascent.experiments.large.curves import CURVES
from scoreascent.experiments.large.entry import LargeModel
from scoreascent.experiments.large.hierarchies import HIERARCHIES

MODELS: dict[str, LargeModel] = {**HIERARCHIES, **CURVES}


def large_model(name: str) -> LargeModel:
    """The model of that name.

    >>> large_model("splines").dim
    82
    """
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; choose from {', '.join(MODELS)}")
    return MODELS[name]
