"""Variational inference that gets the uncertainties right, by Markov chain score ascent.

The public names are those that each room lists in its `__all__`, and a few more.
"""

from scoreascent import (
    adapters,
    distributed,
    families,
    fitting,
    kernels,
    methods,
    plots,
    schedules,
    update,
)
from scoreascent._cache import use_cache
from scoreascent._structs import Config, pytree
from scoreascent._version import __version__
from scoreascent.adapters import *
from scoreascent.families import *
from scoreascent.fitting import *
from scoreascent.kernels import *
from scoreascent.loop import State, Trace
from scoreascent.methods import *
from scoreascent.model import Model, Param
from scoreascent.run import Start
from scoreascent.target import Target
from scoreascent.update import *

__all__ = [
    "Config",
    "Model",
    "Param",
    "Start",
    "State",
    "Target",
    "Trace",
    "__version__",
    "distributed",
    "plots",
    "pytree",
    "schedules",
    "use_cache",
]
__all__ += adapters.__all__
__all__ += families.__all__
__all__ += fitting.__all__
__all__ += kernels.__all__
__all__ += methods.__all__
__all__ += update.__all__
