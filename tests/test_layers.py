"""Imports point one way, and this file reads them; CONTRIBUTING shows the table made here.

`python -m tests.test_layers` writes that table anew.
"""

from __future__ import annotations

import ast
import re
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "scoreascent"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- layers -->", "<!-- end of layers -->"

# From the ground up: a room may use what is below it, and rooms of its own floor. The public names
# of `scoreascent` itself are a floor like any other: what is above them uses what a user would.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        "_arrays",
        "_batches",
        "_cache",
        "_extras",
        "_figures",
        "_files",
        "_html",
        "_layout",
        "_memory",
        "_triangles",
    ),
    ("_npz", "_progress", "_random", "_structs", "_version"),
    ("distributed",),
    ("theory",),
    ("model", "foreign", "streamed"),
    ("target",),
    ("families",),
    ("climbs",),
    ("searches",),
    ("schedules",),
    ("kernels",),
    ("methods",),
    ("update",),
    ("loop",),
    ("run",),
    ("diagnostics",),
    ("adapters",),
    ("fitting",),
    ("plots",),
    ("page",),
    ("scoreascent",),
    ("from_csv",),
    ("_nuts",),
    ("models", "datasets"),
    ("experiments",),
    ("demo",),
    ("cli",),
    ("__main__",),
)
RANK = {room: floor for floor, rooms in enumerate(LAYERS) for room in rooms}
# what an extra brings may be imported where it is used
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ASKED = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]
EXTRAS = {re.split(r"[^\w-]", line)[0] for line in ASKED} - {"scoreascent"}
EXTRAS |= {"sklearn", "pytensor"}  # scikit-learn's own name, and what PyMC brings


def modules() -> dict[str, Path]:
    """Every module of the library, by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("scoreascent", *path.relative_to(SOURCE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST, names: set[str]) -> set[str]:
    """The library's modules that a piece of code imports, wherever the import stands."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            parts = whole & names  # `from package import module`
            found |= parts or {node.module}
    return {name for name in found if name.split(".")[0] == "scoreascent"}


def edges() -> dict[str, set[str]]:
    """What each module imports of the library."""
    known = modules()
    return {
        name: imports(ast.parse(path.read_text()), set(known)) - {name}
        for name, path in known.items()
    }


def room(module: str) -> str:
    """The room that a module is in: the first part of its name, or the public names themselves."""
    return module.split(".")[1] if "." in module else module


def upward(found: dict[str, set[str]]) -> list[str]:
    """The imports that point upwards."""
    return [
        f"{name} imports {other}"
        for name, others in sorted(found.items())
        for other in sorted(others)
        if RANK[room(other)] > RANK[room(name)]
    ]


def test_every_room_has_a_floor() -> None:
    assert {room(name) for name in modules()} == set(RANK)


def test_no_import_points_upwards() -> None:
    assert upward(edges()) == []


def test_an_import_that_points_upwards_is_seen() -> None:
    late = ast.parse("def f():\n    from scoreascent.fitting import fit\n")
    assert imports(late, set(modules())) == {"scoreascent.fitting"}
    assert upward({"scoreascent.loop": {"scoreascent.fitting"}}) == [
        "scoreascent.loop imports scoreascent.fitting"
    ]


def test_modules_do_not_import_in_circles() -> None:
    """Inside a room too; a package's `__init__` stands for its public names."""
    try:
        tuple(TopologicalSorter(edges()).static_order())
    except CycleError as error:
        pytest.fail(f"modules import each other: {error.args[1]}")


@pytest.mark.parametrize("name", modules())
def test_only_extras_are_imported_inside_functions(name: str) -> None:
    tree = ast.parse(modules()[name].read_text())
    late = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    late |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    late.add((node.module or "").split(".")[0])
    assert late <= EXTRAS


def table() -> str:
    """The floors as a Markdown table: each room and the rooms that it uses."""
    uses: dict[str, set[str]] = {name: set() for name in RANK}
    for name, others in edges().items():
        uses[room(name)] |= {room(other) for other in others} - {room(name)}
    lines = ["| room | uses |", "|---|---|"]
    for rooms in LAYERS:
        for one in rooms:
            if not one.startswith("_") or one == "__main__":
                used = sorted(uses[one], key=lambda r: (RANK[r], r))
                shown = [f"`{r}`" for r in used if not r.startswith("_")]
                lines.append(f"| `{one}` | {', '.join(shown)} |")
    return "\n".join(lines)


def test_the_page_shows_the_table() -> None:
    page = PAGE.read_text()
    shown = page[page.index(BEGIN) + len(BEGIN) : page.index(END)].strip()
    assert shown == table(), "run `python -m tests.test_layers`"


if __name__ == "__main__":
    text = PAGE.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{before}\n{table()}\n{after}")
