"""Other libraries' models and samplers."""

from scoreascent.adapters.blackjax import from_blackjax
from scoreascent.adapters.numpyro import from_numpyro

__all__ = ["from_blackjax", "from_numpyro"]
