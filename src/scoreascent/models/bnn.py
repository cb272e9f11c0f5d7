"""The paper's Bayesian neural network for regression, with any hidden layers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from scoreascent._structs import Config, check_count
from scoreascent.families import Family
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

__all__ = ["BNN", "Weights"]

SHAPE = RATE = 6.0  # of the Gamma prior of both precisions


class Weights(NamedTuple):
    """An unknown z, taken apart.

    >>> net = BNN(inputs=5, hidden=(3,))
    >>> weights = net.unpack(jnp.zeros(net.dim))
    >>> [layer.shape for layer in weights.layers]  # with a row for the biases
    [(6, 3), (4, 1)]
    """

    layers: list[Float[Array, "inputs_and_bias outputs"]]
    log_prior_precision: Float[Array, ""]
    log_noise_precision: Float[Array, ""]


@dataclass(frozen=True, repr=False)
class BNN(Config):
    """A fully connected ReLU network with a linear output and Gaussian noise.

    A layer of fan-in F (its inputs and a bias) computes W x̃ / √F. Entries of W are N(0, 1/λ) and
    the noise N(0, 1/γ), with λ, γ ~ Gamma(6, rate 6); z holds all W, then log λ and log γ.

    >>> BNN(inputs=5).dim  # 50 hidden units: 50 · 6 + 51 + 2
    353
    >>> x, y = np.ones((4, 5), np.float32), np.ones(4, np.float32)
    >>> BNN(inputs=5, hidden=(20, 10)).target(x, y)
    Target(BNN(inputs=5, hidden=(20, 10)), dim=343, data=…)
    """

    inputs: int
    hidden: tuple[int, ...] = (50,)

    def __post_init__(self) -> None:
        check_count("inputs", self.inputs, 1)
        if not isinstance(self.hidden, tuple):
            raise ValueError(f"hidden must be a tuple of layer sizes, got {self.hidden!r}")
        for units in self.hidden:
            check_count("hidden", units, 1)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(fan-in with bias, units) of every layer."""
        sizes = (self.inputs, *self.hidden, 1)
        return [(a + 1, b) for a, b in itertools.pairwise(sizes)]

    @property
    def dim(self) -> int:
        """The number of unknowns."""
        return sum(math.prod(s) for s in self.shapes) + 2

    def target(self, x: Any, y: Any) -> Target:
        """The posterior given rows x (n, inputs) and responses y (n,), whitened or not."""
        return Target(self, dim=self.dim, data=check_rows(x, y, self.inputs))

    def unpack(self, z: Float[Array, " d"]) -> Weights:
        """The layers and the two log precisions in z."""
        layers, start = [], 0
        for shape in self.shapes:
            stop = start + math.prod(shape)
            layers.append(z[start:stop].reshape(shape))
            start = stop
        return Weights(layers, z[-2], z[-1])

    def forward(self, z: Float[Array, " d"], x: Float[Array, "n inputs"]) -> Float[Array, " n"]:
        """The network's output ŷ for every row of x.

        Inside, a column is a row of x: on a CPU that makes the gradient three times as fast, and so
        does the first layer's bias as a row of ones, which needs no sum over rows of its own.
        """
        first, *rest = self.unpack(z).layers
        h = _scaled(first).T @ _with_ones(x)
        for i, w in enumerate(rest):
            w = w[:, 0] if i == len(rest) - 1 else w  # the output is one number: a vector product
            h = _affine(w, jax.nn.relu(h))
        return h if rest else h[0]

    def __call__(self, z: Float[Array, " d"], data: Any) -> Float[Array, ""]:
        """Return the log joint density of z and the data, normalised."""
        x, y = data
        _, log_prior, log_noise = self.unpack(z)
        hyper = SHAPE * z[-2:] - RATE * jnp.exp(z[-2:])
        constant = 2 * (SHAPE * math.log(RATE) - math.lgamma(SHAPE))
        return (
            _log_gaussian(y - self.forward(z, x), log_noise)
            + _log_gaussian(z[:-2], log_prior)
            + jnp.sum(hyper)
            + constant
        )

    def predict(self, q: Family, x: Float[Array, "n inputs"]) -> tuple[Any, Any]:
        """Mean and variance of y at new rows, by propagating moments through the layers.

        Hernández-Lobato and Adams (2015): activations are treated as independent Gaussians, q by
        its marginal means and sds. The variance includes the noise's, E_q[1/γ].
        """
        mean, sd = self.unpack(q.mean), self.unpack(q.sd)
        m, v = x, jnp.zeros_like(x)
        for i, (weight, spread) in enumerate(zip(mean.layers, sd.layers)):
            if i:
                m, v = relu_moments(m, v)
            m, v = _affine_moments(m, v, weight, spread**2)
        noise = jnp.exp(-mean.log_noise_precision + 0.5 * sd.log_noise_precision**2)
        return m[:, 0], v[:, 0] + noise

    def predict_draws(
        self, key: PRNGKeyArray, q: Family, x: Float[Array, "n inputs"], draws: int = 100
    ) -> tuple[Float[Array, "draws n"], Float[Array, " draws"]]:
        """Outputs ŷ of networks drawn from q, and the noise variance of each."""
        z = q.sample(key, (check_count("draws", draws, 1),))
        outputs = jax.vmap(self.forward, (0, None))(z, x)
        return outputs, jnp.exp(-z[:, -1])


def relu_moments(m: Float[Array, ...], v: Float[Array, ...]) -> tuple[Any, Any]:
    """Mean and variance of max(0, a), a ~ N(m, v)."""
    sd = jnp.sqrt(v)
    # beyond this the unit is certainly off or on, and the formulas would overflow
    alpha = jnp.clip(m / jnp.maximum(sd, jnp.finfo(v.dtype).tiny), -1e4, 1e4)
    inside = norm.cdf(alpha)
    gamma = jnp.exp(norm.logpdf(alpha) - norm.logcdf(alpha))
    positive = jnp.maximum(m + sd * gamma, 0)  # E[a | a > 0]
    mean = inside * positive
    variance = mean * positive * norm.cdf(-alpha) + inside * v * (1 - gamma * (gamma + alpha))
    return mean, jnp.maximum(variance, 0)


def check_rows(x: Any, y: Any, inputs: int) -> tuple[Any, Any]:
    """Return x and y, if they are rows of so many features and one response each."""
    if np.ndim(x) != 2 or np.shape(x)[1] != inputs or not np.shape(x)[0]:
        raise ValueError(f"x must have shape (rows, {inputs}), got {np.shape(x)}")
    if np.shape(y) != np.shape(x)[:1]:
        raise ValueError(f"y must have shape {np.shape(x)[:1]}, as x has rows, got {np.shape(y)}")
    return x, y


def _log_gaussian(values: Any, log_precision: Any) -> Any:
    """Return the log density of independent N(0, 1/precision)."""
    constant = values.size * (log_precision - math.log(2 * math.pi))
    return 0.5 * (constant - jnp.exp(log_precision) * jnp.sum(values**2))


def _with_ones(x: Any) -> Any:
    """The rows of x as columns, and below them a one each for the bias."""
    return jnp.concatenate([x, jnp.ones((len(x), 1), x.dtype)], axis=1).T


def _scaled(w: Any) -> Any:
    return w / math.sqrt(len(w))


def _affine(w: Any, h: Any) -> Any:
    """Wᵀ h̃ / √fan-in for the columns of h; the bias is the last row of `w`."""
    w = _scaled(w)
    return w[:-1].T @ h + w[-1][..., None]


def _affine_moments(m: Any, v: Any, weight: Any, variance: Any) -> tuple[Any, Any]:
    spread = v @ weight[:-1] ** 2 + (m**2 + v) @ variance[:-1] + variance[-1]
    return m @ _scaled(weight)[:-1] + _scaled(weight)[-1], spread / len(weight)
