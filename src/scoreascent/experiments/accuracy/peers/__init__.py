"""The methods of the suite, each at its defaults, on one and the same density on ℝᵈ."""

from __future__ import annotations

from scoreascent.experiments.accuracy.peers import blackjax, numpyro, nuts, ours, pymc, smc
from scoreascent.experiments.accuracy.peers.base import Peer

__all__ = ["PEERS", "Peer", "peer"]

PEERS: dict[str, Peer] = {
    **ours.PEERS,
    **numpyro.PEERS,
    **blackjax.PEERS,
    **smc.PEERS,
    **pymc.PEERS,
    **nuts.PEERS,
}


def peer(name: str) -> Peer:
    """The method of that name.

    >>> peer("pymc-advi").needs
    'pymc'
    """
    if name not in PEERS:
        raise ValueError(f"there is no method {name!r}; choose from {', '.join(PEERS)}")
    return PEERS[name]
