"""Other libraries' models and samplers."""

from scoreascent.adapters.blackjax import from_blackjax
from scoreascent.adapters.numpyro import from_numpyro
from scoreascent.adapters.pymc import from_pymc

__all__ = ["from_blackjax", "from_numpyro", "from_pymc"]
