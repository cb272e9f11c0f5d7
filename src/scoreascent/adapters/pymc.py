"""A PyMC model as a target: PyMC's own log density, turned into JAX by PyTensor."""

from __future__ import annotations

import functools
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from scoreascent._arrays import default_dtype
from scoreascent._extras import install_hint
from scoreascent.adapters.centring import (
    AS_WRITTEN,
    AUTO,
    as_written,
    asked,
    by_site,
    elements,
)
from scoreascent.adapters.pymc_centring import Statement, sites, state
from scoreascent.adapters.pymc_ops import supply
from scoreascent.adapters.pymc_predict import depend, held, predictions
from scoreascent.model import Model, Predicted
from scoreascent.target import Target

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PRNGKeyArray

    Named = dict[str, Float[Array, ...]]
    Graph = tuple[list[Any], list[Any]]  # PyTensor's inputs and outputs


def from_pymc(model: Any = None, *, centring: str | Mapping[str, Any] = AUTO) -> Target:
    """The posterior of a PyMC model, by default the one whose `with` block this is in.

    The density on ℝᵈ is that of PyMC's own samplers, potentials included; z holds the values of
    the free variables on PyMC's unconstrained scale, in the order of `model.free_RVs`. The data
    are those the model holds now and become constants of the compiled loop: after
    `pymc.set_data`, call `from_pymc` again.

    `centring` says how variables of location–scale families (Normal, LogNormal, StudentT, Cauchy,
    Laplace, Logistic, Gumbel) are stated on ℝᵈ whose location or scale is another free variable, or
    depends on one: "auto" leaves it to `fit(target)`, which looks how much the data say of each
    element, and states it as written, non-centred, or in between; "as written"; or a dictionary of
    variables and numbers between 1, as written, and 0. The posterior, its names, draws and
    predictions are those of the model in every case; z, and the means of q, are not:
    `result.target` is the target they are of.

    Numbers are jax's: without x64 everything runs in float32, whatever PyTensor's floatX is.
    Discrete free variables and `pymc.Minibatch` are refused.

    >>> import pymc as pm, scoreascent as sa
    >>> with pm.Model() as model:
    ...     mean = pm.Normal("mean", 0.0, 5.0)
    ...     data = pm.Normal("data", mean, 1.0, observed=[1.0, 2.0])
    >>> target = sa.from_pymc(model)
    >>> target.dim, target.site_names
    (1, ('mean',))
    """
    pymc = load_pymc()
    if model is None:
        try:
            model = pymc.modelcontext(None)
        except TypeError:
            raise ValueError(
                "model is None and there is no model around: give a pymc.Model, or call "
                "from_pymc inside its `with` block"
            ) from None
    if not isinstance(model, pymc.Model):
        raise ValueError(f"model must be a pymc.Model, got {model!r}")
    found = PyMCModel(model, centring)
    return target_of(found, found.asked)


def target_of(found: PyMCModel, data: Any) -> Target:
    """The target of a model at these data."""
    try:
        return Target(found, dim=found.dim, data=data)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise ValueError(
            "model: its log density cannot be compiled by JAX, most often because a shape or an "
            f"index depends on a parameter: {error}"
        ) from error


class PyMCModel(Model):
    """The log density of a PyMC model and all that it says of its variables.

    It is what the model was when this was made, and equals only itself: compiled code is kept by
    the identity of this object, so make one and reuse it.
    """

    def __init__(
        self, model: Any, centring: str | Mapping[str, Any] = AS_WRITTEN, simulates: bool = False
    ) -> None:
        """With `simulates`, what is observed is first of the target's data, and can be drawn."""
        _check(model)
        self.model = model
        self.site_names: tuple[str, ...] = tuple(rv.name for rv in model.free_RVs)
        shapes = model.eval_rv_shapes()
        free = [shapes[value.name] for value in model.value_vars]
        self.shapes = tuple(tuple(map(int, shapes[name])) for name in self.site_names)
        self.free_shapes = tuple(tuple(map(int, shape)) for shape in free)
        self.dim: int = sum(map(math.prod, self.free_shapes))
        names, whys = sites(model, shapes) if centring != AS_WRITTEN else ({}, {})
        c = asked(centring, names, whys)
        self.asked = None if c is None else (c,)  # the data of a target that is stated so
        self.centrable: tuple[str, ...] = () if c is None else tuple(names)
        named = [*model.free_RVs, *model.deterministics]
        observed = model.observed_RVs
        self.names = tuple(x.name for x in named)
        self.observed_names = tuple(rv.name for rv in observed)
        self._axes, self._coords = _axes(model, {*self.names, *self.observed_names})
        stated = state(model, self.centrable)
        log_p = stated.log_density(model) if self.centrable else model.logp()
        likelihood = model.logp(observed, sum=False) if observed else []
        latent = stated.by_u(model.replace_rvs_by_values(named))
        given = dict(zip(model.free_RVs, latent))
        inputs = stated.inputs
        values = [model.rvs_to_values[rv] for rv in observed] if simulates else []
        data = {x: x.type() for x in values}  # in the place of observed values
        self._simulates = simulates
        self._graphs: dict[str, Graph] = {
            "log density": _frozen([*inputs, *data.values()], [log_p], data),
            "constrain": _frozen(inputs, latent),
            "unconstrain": _unconstrain_graph(model, stated),
            "log likelihood": _frozen([*inputs, *data.values()], stated.by_u(likelihood), data),
            "observed": _frozen([], [model.rvs_to_values[rv] for rv in observed]),
            "predict": _frozen(inputs, observed, given, random=True),
        }
        if simulates:
            self._graphs["simulate"] = _frozen([], [*named, *observed], random=True)
        self._held = held([*named, *observed, *(model.rvs_to_values[rv] for rv in observed)])
        self._computes_of_observed = depend(model.deterministics, observed)
        self._compiled: dict[tuple[str, str], Callable[..., Any]] = {}

    def __call__(self, z: Float[Array, " d"], data: Any = None) -> Float[Array, ""]:
        """PyMC's `model.logp()` at z, Jacobians of what is stated otherwise included."""
        return self._run("log density", *self._inputs(z, data, True))[0].astype(z.dtype)

    def constrain(self, z: Float[Array, " d"], data: Any = None) -> Named:
        """The free variables at z inside their supports, and the Deterministics."""
        return dict(zip(self.names, self._run("constrain", *self._inputs(z, data))))

    def unconstrain(self, values: Any, data: Any = None) -> Float[Array, " d"]:
        """The z of a dictionary of free variables; other names are ignored."""
        if not isinstance(values, Mapping) or not values.keys() >= set(self.site_names):
            got = list(values) if isinstance(values, Mapping) else values
            raise ValueError(f"values must be a dictionary of {self.site_names}, got {got!r}")
        latent = [jnp.asarray(values[name], float) for name in self.site_names]
        for name, value, shape in zip(self.site_names, latent, self.shapes):
            if value.shape != shape:
                raise ValueError(f"values[{name!r}] must have shape {shape}, got {value.shape}")
        free = self._run("unconstrain", *latent, *self._centredness(data))
        return jnp.concatenate([jnp.ravel(x) for x in free])

    def log_likelihood(self, z: Float[Array, " d"], data: Any = None) -> Named:
        """The log density of every observation; potentials are not among them."""
        terms = self._run("log likelihood", *self._inputs(z, data, True))
        return dict(zip(self.observed_names, terms))

    def predict(self, key: PRNGKeyArray, z: Float[Array, " d"], data: Any = None) -> Named:
        """New observations of the shapes of the old, drawn at z; later ones see the new ones."""
        inputs = self._inputs(z, data)
        states = self._states("predict", key, len(inputs))
        return dict(zip(self.observed_names, self._run("predict", *inputs, *states)))

    def simulate(self, key: PRNGKeyArray) -> tuple[Named, Named]:
        """Draw parameters of the prior, Deterministics too, and observations at them."""
        found = self._run("simulate", *self._states("simulate", key, 0))
        return (
            dict(zip(self.names, found)),
            dict(zip(self.observed_names, found[len(self.names) :])),
        )

    def _states(self, what: str, key: PRNGKeyArray, inputs: int) -> list[Any]:
        """Random states of a graph, as PyTensor writes them."""
        count = len(self._graphs[what][0]) - inputs
        keys = jax.random.split(key, max(1, count))
        return [{"jax_state": keys[i]} for i in range(count)]

    def predictions(
        self,
        key: PRNGKeyArray,
        z: Float[Array, "n d"],
        data: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        anew: Sequence[str] = (),
    ) -> Predicted:
        """What the model says at draws z, of other data by name if any are given."""
        if args:
            raise ValueError(
                "predict: the data of a PyMC model are given by name, as pymc.set_data takes "
                f"them: predict(key, x=…); got {len(args)} without a name"
            )
        values = _constrained(self, z, data)
        if not kwargs and not anew and not self._computes_of_observed:
            try:
                found = super().predictions(key, z, data).draws
                return Predicted(
                    {k: v for k, v in values.items() if k not in self.site_names} | found
                )
            except NotImplementedError:  # not in JAX, but PyTensor has its own ways
                pass
        return predictions(self.model, self._held, values, key, kwargs or {}, anew)

    def observed(self, data: Any = None) -> Named:
        """The values of the observed variables."""
        values = data[0] if self._simulates else self._run("observed")
        return dict(zip(self.observed_names, values))

    def initial(self, key: PRNGKeyArray, data: Any = None) -> Float[Array, " d"]:
        """PyMC's initial point, moved by up to one in every coordinate, as PyMC's chains are."""
        seed = int(jax.random.key_data(key).astype(jnp.uint32)[-1])
        point = self.model.initial_point(random_seed=seed)
        z = [np.ravel(np.asarray(point[v.name], np.float64)) for v in self.model.value_vars]
        place = np.concatenate(z)
        if self.centrable:
            place = np.asarray(self.unconstrain(self.constrain(jnp.asarray(place, float)), data))
        rng = np.random.default_rng(seed)
        return jnp.asarray(place + rng.uniform(-1, 1, self.dim), float)

    def as_written(self, z: Float[Array, " d"], data: Any) -> tuple[Float[Array, " d"], Any]:
        """The z of PyMC's own samplers, and the data that say so."""
        return as_written(self, z, data)

    def for_nuts(self, library: str, z: Float[Array, "n d"], metric: Any, data: Any) -> Any:
        """Arguments of `pymc.sample`: by PyMC's own NUTS, or by NumPyro's or nutpie's."""
        if library not in ("pymc", "pymc-numpyro", "pymc-nutpie"):
            return None
        values = _constrained(self, jnp.atleast_2d(z), data)
        points = [{k: np.asarray(values[k][i]) for k in self.site_names}
                  for i in range(len(jnp.atleast_2d(z)))]  # fmt: skip
        arguments: dict[str, Any] = {"initvals": points, "chains": len(points)}
        metric = np.asarray(metric, np.float64)
        if library == "pymc":
            pymc = load_pymc()
            return arguments | {"step": pymc.NUTS(scaling=metric, is_cov=True, model=self.model)}
        arguments["nuts_sampler"] = library.removeprefix("pymc-")
        if library == "pymc-numpyro":
            kernel = {"inverse_mass_matrix": metric, "dense_mass": metric.ndim == 2}
            kernel["adapt_mass_matrix"] = False
            arguments["nuts_sampler_kwargs"] = {"jitter": False, "nuts_kwargs": kernel}
        return arguments

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The model's dims of every variable that has any."""
        return self._axes

    @property
    def coords(self) -> dict[str, Any]:
        """The model's labels along those dims."""
        return self._coords

    def centred_at(self) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
        """Return where in z the elements are that data has the centredness of, and their sites."""
        return elements(dict(zip(self.site_names, self.free_shapes)), self.centrable)

    def _centredness(self, data: Any) -> list[Float[Array, ...]]:
        """The centredness of every site that is stated by u; without data, all are as written."""
        shapes = dict(zip(self.site_names, self.shapes))
        c = np.nan if data is None or not self.centrable else data[-1]
        return list(by_site(c, {k: shapes[k] for k in self.centrable}).values())

    def _inputs(
        self, z: Float[Array, " d"], data: Any, with_observed: bool = False
    ) -> list[Float[Array, ...]]:
        observed = data[0] if with_observed and self._simulates else ()
        return [*self._split(z), *self._centredness(data), *observed]

    def _split(self, z: Float[Array, " d"]) -> list[Float[Array, ...]]:
        stops = np.cumsum([math.prod(s) for s in self.free_shapes])
        return [x.reshape(s) for x, s in zip(jnp.split(z, stops[:-1]), self.free_shapes)]

    def _run(self, what: str, *args: Any) -> list[Float[Array, ...]]:
        """A graph's outputs. PyTensor asks for 64 bits everywhere; jax gives what it has."""
        at = what, default_dtype().name  # constants have a width, so one function for each
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
                if at not in self._compiled:
                    self._compiled[at] = _jaxify(*self._graphs[what])
                return [jnp.asarray(x) for x in self._compiled[at](*args)]
        except NotImplementedError as error:
            if what in ("predict", "simulate"):
                raise NotImplementedError(
                    f"new observations cannot be drawn in JAX: {error}; use "
                    "pymc.sample_posterior_predictive(result.to_arviz(), model=model)"
                ) from error
            raise ValueError(f"model: PyTensor cannot turn its {what} into JAX: {error}") from error

    def __repr__(self) -> str:
        name = f"{self.model.name!r}, " if self.model.name else ""
        return f"PyMCModel({name}params={list(self.site_names)})"


@functools.partial(jax.jit, static_argnums=0)
def _constrained(model: PyMCModel, z: Float[Array, "n d"], data: Any) -> Named:
    return jax.vmap(model.constrain, (0, None))(z, data)


def _check(model: Any) -> None:
    from pymc.data import MinibatchIndexRV, MinibatchOp
    from pymc.pytensorf import continuous_types

    if not model.free_RVs:
        raise ValueError("model has no free variables, that is, none without observed=…")
    values = zip(model.free_RVs, model.value_vars)
    if discrete := [rv.name for rv, value in values if value.dtype not in continuous_types]:
        raise ValueError(
            f"model has discrete free variables {discrete}; marginalise them out first, for "
            "example with pymc.Mixture or pymc_extras.MarginalModel"
        )
    data = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    if any(
        isinstance(op, MinibatchIndexRV | MinibatchOp)
        for op in _ops([*model.basic_RVs, *model.potentials, *model.deterministics, *data])
    ):
        raise ValueError("model uses pymc.Minibatch, which is not supported; give it all the data")


def _ops(outputs: Sequence[Any]) -> list[Any]:
    """Every op of a graph, those inside random variables made of others included."""
    from pytensor.graph.traversal import applys_between

    ops = [node.op for node in applys_between([], outputs)]
    inner = [op.inner_outputs for op in ops if hasattr(op, "inner_outputs")]
    return [*ops, *(op for outputs in inner for op in _ops(outputs))]


def _frozen(inputs: Any, outputs: Any, given: Any = None, random: bool = False) -> Graph:
    """A graph with the data the model holds now; its random states, if any, become inputs."""
    import pytensor.tensor as pt
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.replace import clone_replace
    from pytensor.graph.traversal import graph_inputs
    from pytensor.tensor.random.type import RandomType

    outputs = clone_replace(list(outputs), replace=given or {})
    shared: list[Any] = [v for v in graph_inputs(outputs) if isinstance(v, SharedVariable)]
    states = {v: v.type() for v in shared if isinstance(v.type, RandomType)}
    if states and not random:
        raise ValueError(
            "model draws random numbers outside its named variables; make them variables of the "
            "model, or remove them"
        )
    constants = {v: pt.constant(v.get_value()) for v in shared if v not in states}
    frozen: Any = clone_replace(outputs, replace={**constants, **states})
    return [*inputs, *states.values()], list(frozen)


def _unconstrain_graph(model: Any, stated: Statement) -> Graph:
    """From the values of the free variables, and c, to what z holds."""
    values = {rv: rv.type(name=rv.name) for rv in model.free_RVs}
    transforms = [model.rvs_to_transforms[rv] for rv in values]
    free = [
        x if t is None else t.forward(x, *rv.owner.inputs)
        for (rv, x), t in zip(values.items(), transforms)
    ]
    free = [stated.of(rv, x) for rv, x in zip(values, free)]
    data = {rv: rv.type.filter_variable(model.rvs_to_values[rv]) for rv in model.observed_RVs}
    return _frozen([*values.values(), *stated.c.values()], free, {**values, **data})


def _jaxify(inputs: list[Any], outputs: list[Any]) -> Callable[..., Any]:
    from pymc.sampling.jax import get_jaxified_graph
    from pytensor.tensor.random.basic import CategoricalRV, MultinomialRV

    # PyTensor's draws of these in JAX are of other probabilities, and NaN in float32
    if any(isinstance(op, CategoricalRV | MultinomialRV) for op in _ops(outputs)):
        raise NotImplementedError("PyTensor's Categorical and Multinomial are wrong there")
    supply()
    with jax.ensure_compile_time_eval():  # constants, even if this is within a trace
        return get_jaxified_graph(inputs=inputs, outputs=outputs)


def _axes(model: Any, names: set[str]) -> tuple[dict[str, tuple[str, ...]], dict[str, Any]]:
    """The model's dims and coords, as far as they are of these variables."""
    dims = {
        name: tuple(axis or f"{name}_dim_{i}" for i, axis in enumerate(axes))
        for name, axes in model.named_vars_to_dims.items()
        if name in names
    }
    used = {axis for axes in dims.values() for axis in axes}
    coords = {k: v for k, v in model.coords.items() if k in used and v is not None}
    return dims, {k: np.asarray(v) for k, v in coords.items()}


def is_pymc(model: Any) -> bool:
    """Tell whether something is a PyMC model, without importing PyMC for it."""
    pymc = sys.modules.get("pymc")
    return pymc is not None and isinstance(model, pymc.Model)


def load_pymc() -> Any:
    """The library, without what its import changes for others: x64 and 100 CPU devices."""

    def load() -> Any:
        wide, flags = jax.config.jax_enable_x64, os.environ.get("XLA_FLAGS")  # type: ignore[attr-defined]
        try:
            import pymc
            import pymc.sampling.jax

            return pymc
        finally:
            jax.config.update("jax_enable_x64", wide)
            os.environ.pop("XLA_FLAGS", None)
            if flags is not None:
                os.environ["XLA_FLAGS"] = flags

    try:
        with ThreadPoolExecutor(1) as thread:  # where jax's settings are the global ones
            return thread.submit(load).result()
    except ModuleNotFoundError as error:
        if error.name != "pymc":
            raise
        raise ModuleNotFoundError(
            f"from_pymc {install_hint('pymc', 'pymc')}", name="pymc"
        ) from None
