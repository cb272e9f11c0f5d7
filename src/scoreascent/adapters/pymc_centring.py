"""Variables of PyMC's location–scale families, stated half way between centred and not.

What `centring.py` says of x, u and c, in PyTensor's graphs: u takes the place of PyMC's value of a
variable (log x where x is log-normal), and u and c are inputs of every graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

FAMILIES = ("Normal", "StudentT", "Cauchy", "Laplace", "Logistic", "Gumbel", "LogNormal")
Shapes = dict[str, tuple[int, ...]]


def sites(model: Any, shapes: dict[str, Any]) -> tuple[Shapes, dict[str, str]]:
    """Return the free variables that can be stated so, with their shapes, and why others cannot."""
    whys = {rv.name: _why_not(model, rv, shapes) for rv in model.free_RVs}
    found = {k: tuple(map(int, shapes[k])) for k, why in whys.items() if not why}
    return found, {k: why for k, why in whys.items() if why}


@dataclass(frozen=True)
class Statement:
    """How the free variables of a model are stated: PyMC's value variables by u and c."""

    free: dict[Any, Any]  # by variable, what z holds of it: its value variable, or u
    c: dict[Any, Any]
    values: dict[Any, Any]  # by value variable that z does not hold, the value by u and c

    @property
    def inputs(self) -> list[Any]:
        """What every graph is of."""
        return [*self.free.values(), *self.c.values()]

    def by_u(self, graphs: Iterable[Any]) -> list[Any]:
        """Return graphs of value variables as graphs of what z holds, and c."""
        from pytensor.graph.replace import clone_replace

        return list(clone_replace(list(graphs), replace=self.values))

    def log_density(self, model: Any) -> Any:
        """Return the log density of z: of u, the family's own with c·loc and scale^c.

        Its scale is not 1/scale times a difference of large numbers, as that of x would be.
        """
        import pymc

        everything = [*model.free_RVs, *model.observed_RVs, *model.potentials]
        total = model.logp([x for x in everything if x not in self.c])
        for rv, c in self.c.items():
            *extra, loc, scale = model.replace_rvs_by_values(_numbers(rv))
            op = pymc.Normal.rv_op if _is_log(rv) else rv.owner.op
            u = self.free[rv]
            total += pymc.logp(op(*extra, c * loc, scale**c), u).sum()
        return self.by_u([total])[0]

    def of(self, rv: Any, value: Any) -> Any:
        """Return what z holds where a variable has this value on PyMC's unconstrained scale."""
        if rv not in self.c:
            return value
        *_, loc, scale = _numbers(rv)
        c = self.c[rv]
        return (value - loc) * scale ** (c - 1) + c * loc


def state(model: Any, names: Iterable[str]) -> Statement:
    """Return the model's free variables with the named ones stated by u."""
    from pytensor.graph.replace import clone_replace
    from pytensor.graph.traversal import ancestors

    every = set(model.free_RVs)
    chosen = [model[name] for name in names]
    free = {rv: model.rvs_to_values[rv] for rv in model.free_RVs}
    free |= {rv: free[rv].type(name=f"{rv.name}_u") for rv in chosen}
    c = {rv: free[rv].type(name=f"{rv.name}_c") for rv in chosen}
    values: dict[Any, Any] = {}
    for rv in sorted(chosen, key=lambda rv: len(every & {*ancestors([rv])})):  # parents first
        numbers = model.replace_rvs_by_values(_numbers(rv))
        *_, loc, scale = clone_replace(numbers, replace=values)
        x = loc + scale ** (1 - c[rv]) * (free[rv] - c[rv] * loc)
        values[model.rvs_to_values[rv]] = free[rv].type.filter_variable(x)
    return Statement(free, c, values)


def _why_not(model: Any, rv: Any, shapes: dict[str, Any]) -> str:
    """Return why a free variable cannot be stated by u; nothing if it can."""
    from pymc.logprob.transforms import LogTransform
    from pytensor.graph.traversal import ancestors

    if not _is_of_a_family(rv):
        return "its distribution is of no location–scale family"
    if not set(model.free_RVs) & {*ancestors(_numbers(rv)[-2:])}:
        return "its location and scale depend on no free variable"
    transform = model.rvs_to_transforms[rv]
    usual = type(transform) is LogTransform if _is_log(rv) else transform is None
    if not usual:
        return f"its transform is not the usual one of its distribution, but {transform}"
    value = model.rvs_to_values[rv]
    if tuple(shapes[value.name]) != tuple(shapes[rv.name]):
        return "its value has another shape than itself"
    return ""


def _is_of_a_family(rv: Any) -> bool:
    import pymc

    return type(rv.owner.op) in {type(getattr(pymc, name).rv_op) for name in FAMILIES}


def _is_log(rv: Any) -> bool:
    import pymc

    return type(rv.owner.op) is type(pymc.LogNormal.rv_op)


def _numbers(rv: Any) -> list[Any]:
    """Return the parameters of a variable's distribution: the last are its location and scale."""
    return list(rv.owner.op.dist_params(rv.owner))
