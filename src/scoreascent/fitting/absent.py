"""What a file cannot hold, as a result has it: it knows what it was, and asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from scoreascent.families import Family
from scoreascent.methods import Method
from scoreascent.model import Model
from scoreascent.target import Target
from scoreascent.update import Update


class Absent:
    """The log density of a target that was not given: it knows what it was, and says so."""

    def __init__(self, identity: dict[str, Any], file: Path) -> None:
        self.identity, self._file = identity, file

    def __call__(self, z: Any, data: Any = None) -> NoReturn:
        """Say what is missing."""
        raise ValueError(
            f"this result was read from {str(self._file)!r} without its target; what needs the log "
            f"density or names of new draws needs it: sa.load({str(self._file)!r}, target)"
        )

    def __repr__(self) -> str:
        return f"absent: {self.identity['target']}"


class AbsentModel(Absent, Model):
    """The same of a target whose parameters have names."""

    def __init__(self, identity: dict[str, Any], file: Path) -> None:
        super().__init__(identity, file)
        self.dim, self.site_names = identity["dim"], tuple(identity["names"])

    def constrain(self, z: Any, data: Any) -> NoReturn:
        """Say what is missing."""
        self(z)

    def unconstrain(self, values: Any, data: Any) -> NoReturn:
        """Say what is missing."""
        self(values)


def absent(identity: dict[str, Any], file: Path) -> Target:
    """Return a target that only knows its names."""
    target = Target(_flat, dim=identity["dim"])
    target.log_density = (AbsentModel if identity["named"] else Absent)(identity, file)
    target.site_names = tuple(identity["names"])
    return target


def _flat(z: Any) -> Any:
    return 0 * z[0]


@dataclass(frozen=True, repr=False)
class AbsentMethod(Method):
    """A method that was made of functions; it knows what it was."""

    text: str
    count: int
    independent: bool

    def _missing(self) -> NoReturn:
        raise ValueError(f"the file cannot hold {self.text}: sa.load(path, target, method=…)")

    def init(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Say what is missing."""
        self._missing()

    def step(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Say what is missing."""
        self._missing()

    def objective(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Say what is missing."""
        self._missing()

    @property
    def chains(self) -> int:
        """The number of chains that ran side by side."""
        return self.count

    @property
    def is_independent(self) -> bool:
        """Whether the chains moved by independent draws of q alone."""
        return self.independent

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, repr=False)
class AbsentUpdate(Update):
    """An optimiser that was made of functions; it knows what it was."""

    text: str
    does: str

    def init(self, q: Family) -> NoReturn:
        """Say what is missing."""
        raise ValueError(f"the file cannot hold {self.text}: sa.load(path, target, optimizer=…)")

    def step(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Say what is missing."""
        raise ValueError(f"the file cannot hold {self.text}: sa.load(path, target, optimizer=…)")

    def fingerprint(self, q: Family) -> str:
        """Return what the optimiser did."""
        return self.does

    def __repr__(self) -> str:
        return self.text
