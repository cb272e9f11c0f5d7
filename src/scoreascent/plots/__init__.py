"""Pictures of a fit: how it went, its marginals and pairs over its chains, the tail of its weights.

Every function takes a `Result` (`plot_calibration` takes a `Calibration`), draws into the axes it
is given or into a new figure of pyplot, and returns the axes; saving and closing are the caller's.
matplotlib is imported when one is called.

>>> import jax.numpy as jnp, matplotlib.pyplot as plt, scoreascent as sa
>>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=3)
>>> result = sa.fit(target, sa.pmcsa(4), steps=100, progress=False)
>>> [ax.get_ylabel() for ax in sa.plots.plot_trace(result)]
['loss', 'acceptance']
>>> [ax.get_xlabel() for ax in sa.plots.plot_marginals(result)]
['z[0]', 'z[1]', 'z[2]']
>>> sa.plots.plot_pairs(result, ["z[0]", "z[2]"]).shape
(2, 2)
>>> figure, (left, right) = plt.subplots(1, 2)
>>> sa.plots.plot_khat(result, right) is right
True
>>> plt.close("all")
"""

from scoreascent.plots.calibration import plot_calibration
from scoreascent.plots.khat import plot_khat
from scoreascent.plots.marginals import plot_marginals
from scoreascent.plots.pairs import plot_pairs
from scoreascent.plots.trace import plot_trace

__all__ = ["plot_calibration", "plot_khat", "plot_marginals", "plot_pairs", "plot_trace"]
