"""The suite: posteriors of many kinds, each written down in one place with its data."""

from __future__ import annotations

import numpy as np

from scoreascent.experiments.accuracy.entry import Entry
from scoreascent.experiments.accuracy.exact import GAUSSIANS, IRREGULAR
from scoreascent.experiments.accuracy.regressions import REGRESSIONS
from scoreascent.experiments.accuracy.shapes import SHAPES
from scoreascent.experiments.accuracy.structured import STRUCTURED
from scoreascent.target import Target

MODELS: dict[str, Entry] = {**GAUSSIANS, **REGRESSIONS, **STRUCTURED, **IRREGULAR, **SHAPES}


def entry(name: str) -> Entry:
    """The model of that name.

    >>> entry("ar2").dim
    4
    """
    if name not in MODELS:
        raise ValueError(f"there is no model {name!r}; choose from {', '.join(MODELS)}")
    return MODELS[name]


def coordinates(target: Target) -> list[str]:
    """A name for every unconstrained coordinate.

    >>> coordinates(entry("ar2").target())
    ['constant', 'phi[0]', 'phi[1]', 'sigma']
    """
    shapes = getattr(target.log_density, "free_shapes", None) or target._free_shapes
    return [
        name + (f"[{','.join(map(str, index))}]" if index else "")
        for name, shape in zip(target.site_names, shapes)
        for index in np.ndindex(shape)
    ]
