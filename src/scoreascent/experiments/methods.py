"""The paper's methods and optimisers: how each is made, its name, its place and its colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import scoreascent as sa


@dataclass(frozen=True)
class NamedMethod:
    """A method with a free budget N: `make(n)` gives the method itself."""

    label: str
    colour: str
    make: Callable[[int], sa.Method]


# in the order of the figures
METHODS: dict[str, NamedMethod] = {
    "elbo": NamedMethod("ELBO", "#1f78b4", sa.elbo),
    "msc": NamedMethod("MSC", "#7f7f7f", sa.msc),
    "msc_rb": NamedMethod("MSC-RB", "#e6ab02", sa.msc_rb),
    "jsa": NamedMethod("JSA", "#7570b3", sa.jsa),
    "pmcsa": NamedMethod("pMCSA", "#1b9e77", sa.pmcsa),
    "pmcsa_rb": NamedMethod(
        "pMCSA, Rao–Blackwellised", "#d95f02", lambda n: sa.pmcsa(n, rao_blackwell=True)
    ),
}
REPORT_ORDER = ("elbo", "pmcsa", "pmcsa_rb", "jsa", "msc", "msc_rb")
OPTIMIZER_LABELS = {
    "sgd": "SGD",
    "momentum": "Momentum 0.9",
    "nesterov": "Nesterov 0.9",
    "adam": "ADAM",
    "duchi": "SGD, γ/√t (Duchi)",
    "doan": "SGD, γ/t (Doan)",
    "doan_nesterov": "Nesterov, 2/(t+1) (Doan)",
}
PAPER_OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam")
UNKNOWN_COLOURS = ("#e7298a", "#66a61e", "#1f78b4", "#a6761d")


def label(name: str) -> str:
    """What a method or an optimiser is called; a name that is not known stays as it is.

    >>> label("pmcsa"), label("adam"), label("mine")
    ('pMCSA', 'ADAM', 'mine')
    """
    return METHODS[name].label if name in METHODS else OPTIMIZER_LABELS.get(name, name)


def label_with_budget(name: str, n: int) -> str:
    """The name of a method with its budget.

    >>> label_with_budget("jsa", 10)
    'JSA, N = 10'
    """
    return f"{label(name)}, N = {n}"


def colour(name: str, otherwise: str) -> str:
    """The colour of a method, if it is one that is known."""
    return METHODS[name].colour if name in METHODS else otherwise


def in_figure_order(names: Iterable[str]) -> list[str]:
    """Each name once, as the figures show them; unknown ones come last, by the alphabet."""
    return _in_order(names, tuple(METHODS))


def in_report_order(names: Iterable[str]) -> list[str]:
    """Each name once, as the report shows them; unknown ones come last, by the alphabet."""
    return _in_order(names, REPORT_ORDER)


def _in_order(names: Iterable[str], order: tuple[str, ...]) -> list[str]:
    found = set(names)
    return [name for name in order if name in found] + sorted(found - set(order))
