"""Modules imported where they are used: those that an extra brings, and those that take long."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import and return `module`, or say in one line which extra has to be installed.

    The module may be another package's, or one of our own that imports some; the message and the
    error's `name` are about what is missing in the end.

    >>> require("nowhere", "cli", "the demo")
    Traceback (most recent call last):
    ModuleNotFoundError: the demo needs nowhere: pip install 'scoreascent[cli]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise ModuleNotFoundError(
            f"{purpose} {install_hint(missing, extra)}", name=missing
        ) from None


def install_hint(missing: str, extra: str) -> str:
    """What to do about a missing module.

    >>> install_hint("typer", "cli")
    "needs typer: pip install 'scoreascent[cli]'"
    """
    return f"needs {missing}: pip install 'scoreascent[{extra}]'"


def later(module: str) -> ModuleType:
    """Import and return a module of a package that is always there, but takes long to import.

    >>> later("scipy.stats").__name__
    'scipy.stats'
    """
    return importlib.import_module(module)
