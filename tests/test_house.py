"""Rules of the house that a machine can check: how tests are built, which versions are named."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = sorted(ROOT.glob("tests/test_*.py"))
NOT_YET_APART = {"test_cells": {"test_runner"}}  # none may be added


def imported_modules(source: str) -> set[str]:
    """Every module that the code names in an import, also inside functions.

    `from tests import stats` names `tests` and, as far as one can tell, `tests.stats`.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found.add(module)
            found.update(f"{module.rstrip('.')}.{alias.name}" for alias in node.names)
    return found


def imported_tests(source: str) -> set[str]:
    """The test files among the modules that the code imports."""
    parts = (name.split(".") for name in imported_modules(source))
    return {part for path in parts for part in path if part.startswith("test_")} & {
        path.stem for path in TESTS
    }


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_no_test_file_imports_another(path: Path) -> None:
    """What two files need is in tests/helpers.py, registry.py, stats.py or models.py."""
    assert imported_tests(path.read_text()) <= NOT_YET_APART.get(path.stem, set())


@pytest.mark.parametrize(
    "line",
    [
        "import tests.test_fit",
        "from tests import test_fit",
        "from tests.test_fit import single",
        "from . import test_fit",
        "from .test_fit import single",
        "def late():\n    from tests.test_fit import single",
    ],
)
def test_an_import_of_a_test_file_is_seen(line: str) -> None:
    assert imported_tests(f"import os\n{line}\n") == {"test_fit"}
