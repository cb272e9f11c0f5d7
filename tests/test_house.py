"""Rules of the house that a machine can check: how tests are built, which versions are named."""

from __future__ import annotations

import ast
import re
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import scoreascent as sa
from tests import released

ROOT = Path(__file__).parents[1]
TESTS = sorted(ROOT.glob("tests/test_*.py"))


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
    assert imported_tests(path.read_text()) == set()


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


# -- versions --------------------------------------------------------------------------------------

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OLDEST = ROOT / "constraints" / "oldest.txt"


def requirements(lines: list[str]) -> dict[str, Requirement]:
    """What pyproject.toml asks for, by name, without the library itself and its extras."""
    found = {r.name: r for r in map(Requirement, lines)}
    return {name: r for name, r in found.items() if name != "scoreascent"}


def bound(requirement: Requirement, operator: str) -> str:
    """The version after the one operator that a requirement has."""
    (specifier,) = requirement.specifier
    assert specifier.operator == operator, f"{requirement} should name a version with {operator}"
    return specifier.version


@pytest.mark.parametrize("linter", ["ruff", "mypy"])
def test_linters_are_pinned_to_what_runs(linter: str) -> None:
    assert bound(requirements(EXTRAS["dev"])[linter], "==") == version(linter)


def test_a_commit_runs_what_make_lint_runs() -> None:
    """The same commands from the same environment, so that the versions cannot differ."""
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    lint = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert [hook["entry"] for hook in hooks] == lint
    assert {hook["language"] for hook in hooks} == {"system"}


def test_the_oldest_versions_are_the_floors() -> None:
    """constraints/oldest.txt pins what a user may install; tools of developers may be newer."""
    lines = [line for line in OLDEST.read_text().splitlines() if line and line[0] != "#"]
    pins = {name: bound(r, "==") for name, r in requirements(lines).items()}
    allowed = [*PROJECT["dependencies"]]
    tools = ("dev", "docs")
    allowed += [line for name, extra in EXTRAS.items() if name not in tools for line in extra]
    assert pins == {name: bound(r, ">=") for name, r in requirements(allowed).items()}


def test_the_workflow_runs_ci_on_every_version_it_should() -> None:
    path = ROOT / ".github" / "workflows" / "ci.yml"
    job = yaml.safe_load(path.read_text())["jobs"]["checks"]
    rows = job["strategy"]["matrix"]["include"]
    runs = {(row["python"], row.get("constraints")) for row in rows}
    assert runs == {("3.11", None), ("3.13", None), ("3.11", str(OLDEST.relative_to(ROOT)))}
    assert {row.get("tests", "test") for row in rows} == {"test", "coverage"}
    assert job["env"]["TESTS"] == "${{ matrix.tests || 'test' }}"
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert PROJECT["requires-python"] == f">={min(python for python, _ in runs)}"
    assert "matrix.constraints" in job["env"]["PIP_CONSTRAINT"]


# -- a release -------------------------------------------------------------------------------------


def test_every_place_names_one_version() -> None:
    assert f"\nversion: {sa.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## {re.escape(sa.__version__)} \(\d{{4}}-\d\d-\d\d\)$", CHANGES, re.M)


CHANGES = (ROOT / "CHANGELOG.md").read_text()


def test_a_release_is_tried_on_the_oldest_and_the_newest_python() -> None:
    path = ROOT / ".github" / "workflows" / "release.yml"
    jobs = yaml.safe_load(path.read_text())["jobs"]
    assert jobs["publish"]["needs"] == "try"
    assert jobs["try"]["strategy"]["matrix"]["python"] == ["3.11", "3.13"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}  # and no token is kept


def test_a_wheel_with_a_large_or_a_foreign_file_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "scoreascent-0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in released.NEEDED[1:]:
            archive.writestr(name, "")
        archive.writestr("scoreascent/table.csv", "x" * (released.LARGEST + 1))
        archive.writestr("tests/test_fit.py", "")
    about = " ".join(released.wrong(wheel))
    for name in (released.NEEDED[0], "scoreascent/table.csv", "tests/test_fit.py"):
        assert name in about
    assert released.NEEDED[1] not in about
