"""A normalising flow around a Gaussian, for posteriors that bend: funnels, bananas, rings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from scoreascent._extras import later, require
from scoreascent._structs import Config, check_count, pytree, unchecked, x64
from scoreascent._triangles import solve
from scoreascent.families._numbers import check_fit, dot, matrix, vector
from scoreascent.families.base import Family
from scoreascent.families.fullrank import FullRank, lower, tril_of

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

MAX_DIM = 200  # beyond, what the layers would have to learn is more than chains can tell them
LAYERS, MAX_LAYERS = 8, 16
STRAIGHT = 8.0  # sds, within which what a layer sees goes straight on
LOG_SCALE = 4.0  # the most that a layer's network changes the logarithm of a scale,
MAX_LOG_SCALE = 20.0  # and what is straight
MOMENT_POINTS = 2048  # over which moments are averages


@dataclass(frozen=True, repr=False)
class Net(Config):
    """What a flow is built of; its weights are λ, and stand in `Flow.theta`.

    `layers` affine couplings, in each of which half of the coordinates are scaled and shifted by a
    network of `width` hidden units that looks at the other half; then for every coordinate a
    rational quadratic spline of `knots` inner knots on ±`interval`, and the identity beyond. The
    hidden weights begin at random numbers of `seed`.
    """

    layers: int = LAYERS
    width: int = 32
    knots: int = 8
    interval: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in {"layers": 1, "width": 1, "knots": 1, "seed": 0}.items():
            object.__setattr__(self, name, check_count(name, getattr(self, name), least))
        if self.layers > MAX_LAYERS:
            raise ValueError(f"layers must be at most {MAX_LAYERS}, got {self.layers}")
        if not 0 < self.interval < math.inf:
            raise ValueError(f"interval must be positive and finite, got {self.interval!r}")
        object.__setattr__(self, "interval", float(self.interval))


@pytree(static=("net",))
@dataclass(frozen=True)
class Flow(Family):
    """z = loc + L f(ε), ε standard normal; f is a bijection of flowjax, L made of raw as elsewhere.

    f is the identity at first, so that `from_gaussian` begins at that Gaussian; what it learns is
    where scales and means of some coordinates depend on others, and what shapes marginals have. Far
    out it is affine in each coordinate given the others, and so is its inverse, which costs as
    much. `fitting.flows.trained` fits it to states of chains, gradient steps of `fit` to points.

    The moments have no closed form: `mean`, `sd` and `cov` are averages over 2048 fixed points,
    quasi-random and antithetic, whose own mean and covariance are those of ε.

    >>> q = Flow.from_gaussian(FullRank.from_moments([0.0, 1.0], [[1.0, 0.6], [0.6, 1.0]]))
    >>> [round(abs(float(x)), 4) for x in (*q.mean, *q.sd)]
    [0.0, 1.0, 1.0, 1.0]
    >>> q.sample(jax.random.key(0), (5,)).shape
    (5, 2)
    """

    is_bent: ClassVar[bool] = True
    is_elliptical: ClassVar[bool] = False

    loc: Float[Array, " d"]
    raw: Float[Array, "d d"]
    theta: Float[Array, " p"]
    net: Net = Net()

    def __post_init__(self) -> None:
        if not isinstance(self.net, Net):
            raise ValueError(f"net must be a Net, got {self.net!r}")
        loc, raw = vector("loc", self.loc), matrix("raw", self.raw)
        theta = vector("theta", self.theta)
        _check_dim(loc.shape[0])
        size = _parts(self.net, loc.shape[0], str(loc.dtype)).size
        check_fit({"raw": 2 * loc.shape, "theta": (size,)}, loc=loc, raw=raw, theta=theta)
        for name, value in {"loc": loc, "raw": lower(raw), "theta": theta}.items():
            object.__setattr__(self, name, value)

    @classmethod
    def standard(cls, dim: int, scale: float = 1.0, dtype: Any = None, **net: Any) -> Flow:
        """N(0, scale² I) on ℝᵈ, before anything is learnt; `net` are settings of `Net`.

        >>> Flow.standard(2, layers=4).net
        Net(layers=4)
        """
        _check_dim(check_count("dim", dim, 1))
        return cls.from_gaussian(FullRank.standard(dim, scale, dtype), **net)

    @classmethod
    def from_gaussian(cls, q: Any, **net: Any) -> Flow:
        """The flow that begins as N(q.mean, q.cov); `net` are settings of `Net`."""
        require_flows(q.dim)
        base = q if isinstance(q, FullRank) else FullRank.from_moments(q.mean, q.cov)
        settings = Net(**{"layers": max(LAYERS, 2 * _bits(base.dim)), **net})
        theta = _first_theta(settings, base.dim, str(base.loc.dtype))
        return cls(base.loc, base.raw, jnp.asarray(theta), settings)

    def begun_at(self, base: FullRank) -> Flow:
        """Return the flow of the same net that begins as this Gaussian."""
        theta = jnp.asarray(_first_theta(self.net, self.dim, str(base.loc.dtype)))
        return unchecked(self, loc=base.loc, raw=base.raw, theta=theta)

    @property
    def straight(self) -> np.ndarray[Any, Any]:
        """1 for the weights in `theta` of what goes straight on beyond what points show, else 0."""
        return _parts(self.net, self.dim, str(self.loc.dtype)).straight

    @property
    def dim(self) -> int:
        """The number of coordinates d."""
        return int(self.loc.shape[-1])

    @property
    def mean(self) -> Float[Array, " d"]:
        """The mean of the fixed points' images."""
        return _moments(self)[0]

    @property
    def sd(self) -> Float[Array, " d"]:
        """The standard deviation of every coordinate, over the fixed points' images."""
        return jnp.sqrt(jnp.diagonal(_moments(self)[1]))

    @property
    def cov(self) -> Float[Array, "d d"]:
        """The covariance matrix of the fixed points' images."""
        return _moments(self)[1]

    def noise(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Draw a standard normal vector."""
        return jax.random.normal(key, self.loc.shape, self.loc.dtype)

    def transport(self, noise: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return loc + L f(ε)."""
        return self.forward(noise)[0]

    def forward(self, noise: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """Return z = T(ε), and log |det T'(ε)|."""
        tril = tril_of(self.raw)
        x, log_det = bent(self.net, self.theta, noise)
        return self.loc + dot(tril, x), log_det + jnp.sum(jnp.log(jnp.diagonal(tril)))

    def inverse(self, z: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        """Return ε = T⁻¹(z), and log |det T'(ε)| there."""
        tril = tril_of(self.raw)
        x = solve(tril, z - self.loc)
        noise, log_det = straightened(self.net, self.theta, x)
        return noise, log_det + jnp.sum(jnp.log(jnp.diagonal(tril)))

    def log_prob(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log q(z; λ)."""
        noise, log_det = self.inverse(z)
        return log_normal(noise) - log_det

    def envelope(self) -> FullRank:
        """Return the Gaussian with the mean and the covariance of q."""
        return FullRank.from_moments(*_moments(self))

    def top(self) -> Float[Array, " d"]:
        """Return the likeliest image of a fixed point: the mean may lie where q is nearly zero."""
        z, log_q = _images(self)
        return z[jnp.argmax(log_q)]

    def pooled(self) -> Flow:
        """Return the last of those stacked along a first axis: no average of λ would be a flow's.

        Networks that do the same may differ in all their weights.
        """
        return jax.tree.map(lambda x: x[-1], self)

    def describe(self) -> str:
        """Name the family, for a person."""
        return f"{type(self).__name__} of {self.net.layers} layers"


def log_normal(noise: Float[Array, " d"]) -> Float[Array, ""]:
    """Return the log density of a standard normal vector."""
    return -0.5 * jnp.sum(noise**2) - 0.5 * noise.shape[-1] * math.log(2 * math.pi)


# -- the bijection ---------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def bent(
    net: Net, theta: Float[Array, " p"], noise: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Float[Array, ""]]:
    """Return f(ε), and log |det f'(ε)|: the couplings, then the splines."""
    parts = _parts(net, noise.shape[-1], str(theta.dtype))
    splines, layers = parts.split(theta)

    def couple(carry: Any, layer: Any) -> Any:
        (x, log_det), (weights, there, back) = carry, layer
        y, change = parts.layer(weights).transform_and_log_det(x[there])
        return (y[back], log_det + change), None

    start = (noise, jnp.zeros((), noise.dtype))
    (x, log_det), _ = jax.lax.scan(couple, start, (layers, *parts.orders))
    y, changes = jax.vmap(lambda w, x: parts.spline(w).transform_and_log_det(x))(splines, x)
    return y.astype(x.dtype), log_det + jnp.sum(changes).astype(x.dtype)


@functools.partial(jax.jit, static_argnums=0)
def straightened(
    net: Net, theta: Float[Array, " p"], x: Float[Array, " d"]
) -> tuple[Float[Array, " d"], Float[Array, ""]]:
    """Return ε = f⁻¹(x), and log |det f'(ε)| there."""
    parts = _parts(net, x.shape[-1], str(theta.dtype))
    splines, layers = parts.split(theta)
    y, changes = jax.vmap(lambda w, x: parts.spline(w).inverse_and_log_det(x))(splines, x)

    def uncouple(carry: Any, layer: Any) -> Any:
        (y, log_det), (weights, there, back) = carry, layer
        x, change = parts.layer(weights).inverse_and_log_det(y[there])
        return (x[back], log_det - change), None

    start = (y.astype(x.dtype), -jnp.sum(changes).astype(x.dtype))
    (noise, log_det), _ = jax.lax.scan(uncouple, start, (layers, *parts.orders), reverse=True)
    return noise, log_det


class _Parts(NamedTuple):
    """The bijections of a flow as functions of their weights, and the orders of coordinates."""

    spline: Callable[[Any], Any]
    layer: Callable[[Any], Any]
    spline_shape: tuple[int, int]
    layer_shape: tuple[int, int]
    orders: tuple[Any, Any]

    @property
    def straight(self) -> np.ndarray[Any, Any]:
        """1 for the weights of what is straight: those of each layer that stand last."""
        dim = self.orders[0].shape[1]
        count = dim // 2 * 2 * (dim - dim // 2)
        layers = np.zeros(self.layer_shape, np.float32)
        layers[:, max(0, self.layer_shape[1] - count) :] = 1
        return np.concatenate([np.zeros(math.prod(self.spline_shape), np.float32), layers.ravel()])

    @property
    def size(self) -> int:
        """The number of all weights."""
        return math.prod(self.spline_shape) + math.prod(self.layer_shape)

    def split(self, theta: Any) -> tuple[Any, Any]:
        """Return the weights of the splines, and of the layers, a row each."""
        first = math.prod(self.spline_shape)
        return theta[:first].reshape(self.spline_shape), theta[first:].reshape(self.layer_shape)


@functools.lru_cache(maxsize=64)
def _parts(net: Net, dim: int, dtype: str) -> _Parts:
    """Build the bijections in this dtype. Where all weights are 0, f is the identity."""
    bijections = require("flowjax.bijections", "flows", "Flow")
    utils = require("flowjax.utils", "flows", "Flow")
    equinox = require("equinox", "flows", "Flow")
    is_weight = equinox.is_inexact_array
    affine = equinox.filter_eval_shape(bijections.Affine)  # its checks want no constants
    with jax.ensure_compile_time_eval(), x64(dtype == "float64"):
        spline = bijections.RationalQuadraticSpline(knots=net.knots, interval=net.interval)
        spline_of, count = utils.get_ravelled_pytree_constructor(spline, is_weight)
        if dim == 1:  # there is no other half to look at
            layer_of, size, layers = lambda weights: bijections.Identity((1,)), 0, 0
        else:
            layer = jax.tree.map(
                lambda x: 0 * x if is_weight(x) else x, _coupling(net, dim, affine)
            )
            layer_of, size = utils.get_ravelled_pytree_constructor(layer, is_weight)
            layers = net.layers
    order = _orders(dim, layers)
    return _Parts(
        spline_of, layer_of, (dim, count), (layers, size), (order, np.argsort(order, axis=1))
    )


def _coupling(net: Net, dim: int, affine: Any) -> Any:
    """Return one layer, whose network sees the conditioning half through arsinh, and past it.

    Coordinates may lie far out, where a funnel's neck is narrow and its mouth wide. But beyond what
    points show, the logarithm of a scale goes on as a straight line rather than not at all.
    """
    bijections = require("flowjax.bijections", "flows", "Flow")
    equinox = require("equinox", "flows", "Flow")
    wrap = require("paramax", "flows", "Flow").Parameterize
    scale = wrap(lambda x: jnp.exp(MAX_LOG_SCALE * jnp.tanh(x / MAX_LOG_SCALE)), jnp.zeros(()))
    affine = equinox.tree_at(lambda a: (a.loc, a.scale), affine, (jnp.zeros(()), scale))
    layer = bijections.Coupling(
        jax.random.key(0),
        transformer=affine,
        untransformed_dim=dim // 2,
        dim=dim,
        nn_width=net.width,
        nn_depth=1,
        nn_activation=jnp.tanh,
    )
    network, inputs, outputs = layer.conditioner, dim // 2, layer.conditioner.out_size

    class Conditioner(equinox.Module):  # type: ignore[misc, name-defined]
        network: Any
        straight: Any

        def __call__(self, x: Any) -> Any:
            bent = self.network(jnp.arcsinh(x)).reshape(-1, 2)
            bent = bent.at[:, 1].set(LOG_SCALE * jnp.tanh(bent[:, 1] / LOG_SCALE))
            near = x / (1 + (x / STRAIGHT) ** 4) ** 0.25
            return bent.ravel() + self.straight(near)

    straight = equinox.nn.Linear(inputs, outputs, use_bias=False, key=jax.random.key(0))
    return equinox.tree_at(lambda c: c.conditioner, layer, Conditioner(network, straight))


def _orders(dim: int, layers: int) -> np.ndarray[Any, Any]:
    """Return the order of the coordinates in each layer; the first half conditions the second.

    Layers take turns with the bits of the coordinates' numbers, and with their order, so that of
    any two coordinates each comes to look at the other if there are layers enough.
    """
    bits = _bits(dim)
    orders = np.zeros((layers, dim), int)
    for i in range(layers):
        order = np.argsort((np.arange(dim) >> (i // 2 % bits)) & 1, kind="stable")
        orders[i] = order[::-1] if i % 2 else order
    return orders


def _bits(dim: int) -> int:
    """Return how many bits the coordinates' numbers have."""
    return max(1, (dim - 1).bit_length())


def _first_theta(net: Net, dim: int, dtype: str) -> Any:
    """Return weights that make f the identity: hidden ones at random, what they lead to zero."""
    parts = _parts(net, dim, dtype)
    rng = np.random.default_rng(net.seed)
    splines, layers = (np.array(x) for x in parts.split(np.zeros(parts.size, dtype)))
    inputs = dim // 2
    hidden = net.width * (inputs + 1)  # weights and offsets of the hidden units stand first
    if layers.size:
        bound = 1 / math.sqrt(inputs)
        layers[:, :hidden] = rng.uniform(-bound, bound, (len(layers), hidden))
    return np.concatenate([splines.ravel(), layers.ravel()])


# -- moments ---------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def _points(dim: int) -> np.ndarray[Any, Any]:
    """Return quasi-random normal points with mean 0 and covariance I, each with its opposite."""
    qmc = later("scipy.stats.qmc")
    half = ndtri(qmc.Sobol(dim, seed=0).random(MOMENT_POINTS // 2))
    root = np.linalg.cholesky(half.T @ half / len(half))
    half = np.linalg.solve(root, half.T).T
    return np.concatenate([half, -half])


@jax.jit
def _images(q: Flow) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """Return where the fixed points go, and log q there."""
    noise = jnp.asarray(_points(q.dim), q.loc.dtype)
    z, log_det = jax.vmap(q.forward)(noise)
    return z, jax.vmap(log_normal)(noise) - log_det


@jax.jit
def _moments(q: Flow) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Return mean and covariance of the fixed points' images."""
    z, _ = _images(q)
    mean = jnp.mean(z, 0)
    away = (z - mean) / math.sqrt(len(z))
    return mean, dot(away.T, away)


def require_flows(dim: int) -> None:
    """Raise if a flow of so many coordinates cannot be had here, or should not be."""
    _check_dim(dim)
    require("flowjax", "flows", "Flow")


def _check_dim(dim: int) -> None:
    """Raise if a flow of so many coordinates is asked for."""
    if dim > MAX_DIM:
        raise ValueError(
            f"dim must be at most {MAX_DIM} for a Flow, got {dim}; use FullRank, or LowRank in "
            "thousands of dimensions"
        )
