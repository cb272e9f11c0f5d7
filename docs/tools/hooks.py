"""What MkDocs is told beyond mkdocs.yml: pages made of other files, and links that lead to them.

Pages in docs/ are read on the site and in the repository, so their links are those of the
repository. On the site, a link to an example leads to the page made of it, one to CONTRIBUTING.md
or CHANGELOG.md to theirs, and one to any other file outside docs/ to the repository on the web.
"""

from __future__ import annotations

import ast
import html
import logging
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from contents import GROUPS, MODULES, ROOT_PAGES
from mkdocs.structure.files import File, Files

log = logging.getLogger("mkdocs.hooks")  # its warnings are errors
ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/scoreascent/scoreascent"
FENCE = re.compile(r"(^ *```.*?^ *```[^\S\n]*$)", re.DOTALL | re.MULTILINE)
OPTIONS = re.compile(r"^( *```(?:python|text)) (?:slow|notest|near)$", re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
NAMES = {name for names in GROUPS.values() for name in names}
WORDS = {"compare", "evaluate", "fit", "gradient", "load"}  # of arguments and attributes too
CODE = re.compile(r"<code>(sa\.)?(\w+)((?:\(.*?\))?)</code>")
ELSEWHERE = {"cli.py", "datasets", "experiments", "models"}  # where names mean something else
OPEN = re.compile(r"(<(?:a|pre|h[1-6])\b.*?</(?:a|pre|h[1-6])>)", re.DOTALL)


def on_config(config: Any) -> Any:
    """Put the pages of the reference under its heading."""
    pages: list[Any] = ["reference/index.md"]
    for group, names in GROUPS.items():
        pages.append({group: [{name: reference(name)} for name in names]})
    pages.append({"Submodules": [{name: reference(name)} for name in MODULES]})
    for entry in config.nav:
        if "Reference" in entry:
            entry["Reference"] = pages
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made of other files."""
    made = {page: text(ROOT / path) for path, page in ROOT_PAGES.items() if page != "index.md"}
    for script in sorted((ROOT / "examples").glob("*.py")):
        made[f"examples/{script.stem}.md"] = example(script)
    for name in sorted(NAMES):
        made[reference(name)] = f"---\ntitle: {name}\n---\n\n::: scoreascent.{name}\n"
    for name in MODULES:
        made[reference(name)] = module_page(name)
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links of the repository into links of the site, and fill the reference's first page."""
    if page.file.src_uri == "reference/index.md":
        markdown += reference_index()
    home = {site: repo for repo, site in ROOT_PAGES.items() if site != "index.md"}
    source = home.get(page.file.src_uri)
    if source is None and page.file.src_uri.startswith("examples/"):
        source = page.file.src_uri.replace(".md", ".py")
    here = posixpath.dirname(source if source else f"docs/{page.file.src_uri}")
    away = posixpath.dirname(page.file.src_uri)

    def turned(match: re.Match[str]) -> str:
        link, _, anchor = match[2].partition("#")
        if not link or re.match(r"[a-z][a-z0-9+.-]*:", link):
            return match[0]
        there = posixpath.normpath(posixpath.join(here, link))
        found = placed(there, files, page.file.src_uri)
        if not found.startswith("https:"):
            found = posixpath.relpath(found, away or ".")
        return f"{match[1]}{found}{'#' + anchor if anchor else ''}{match[3]}"

    # what the tests make of a block ("slow", "near") is nothing to the reader
    parts = FENCE.split(OPTIONS.sub(r"\1", markdown))
    return "".join(part if FENCE.match(part) else LINK.sub(turned, part) for part in parts)


def placed(path: str, files: Files, seen_from: str) -> str:
    """Where a file of the repository is on the site; the repository's own page if it is not."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith("examples/") and path.endswith(".py"):
        return path.removesuffix(".py") + ".md"
    inside = path.removeprefix("docs/")
    found = files.get_file_from_path(inside) if path.startswith("docs/") else None
    if found is not None and not found.inclusion.is_excluded():
        return inside
    if not (ROOT / path).exists():
        log.warning("%s leads to %s, which is not there", seen_from, path)
    kind = "tree" if (ROOT / path).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{path}"


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """Make names of the reference links: `sa.fit` everywhere, `fit` too within the reference."""
    away = os.path.relpath("reference", posixpath.dirname(page.file.dest_uri) or ".")
    within = page.file.src_uri.startswith("reference/")

    def linked(match: re.Match[str]) -> str:
        prefix, name, call = match[1], match[2], match[3]
        itself = page.file.src_uri == reference(name)
        meant = prefix or (within and (call or name not in WORDS))
        if name not in NAMES or itself or not meant:
            return match[0]
        return f'<a class="name" href="{away}/{name}.html">{match[0]}</a>'

    return "".join(
        part if OPEN.match(part) else CODE.sub(linked, part) for part in OPEN.split(content)
    )


# -- the pages -------------------------------------------------------------------------------------


def reference(name: str) -> str:
    """The page of a name."""
    return f"reference/{name}.md"


def text(path: Path) -> str:
    """What is in a file."""
    return path.read_text(encoding="utf-8")


def example(script: Path) -> str:
    """The page of an example: its docstring's first line, and all of it."""
    said = ast.get_docstring(ast.parse(text(script))) or script.stem
    title = said.splitlines()[0].rstrip(".")
    return f"# {title}\n\n`examples/{script.name}`\n\n```python\n{text(script)}```\n"


def module_page(name: str) -> str:
    """The page of a submodule, with all that it has."""
    options = "    options:\n      show_root_full_path: true\n      show_submodules: false\n"
    return f"---\ntitle: {name}\n---\n\n::: scoreascent.{name}\n{options}"


def reference_index() -> str:
    """Tables for the first page of the reference: every name with what it is, in a line."""
    lines: list[str] = []
    said = docstrings()
    for group, names in GROUPS.items():
        lines += ["", f"## {group}", "", "| | |", "|---|---|"]
        lines += [f"| [`{name}`]({name}.md) | {said.get(name, '')} |" for name in names]
    lines += ["", "## Submodules", "", "| | |", "|---|---|"]
    lines += [f"| [`{name}`]({name}.md) | {what} |" for name, what in MODULES.items()]
    return "\n".join(lines) + "\n"


def docstrings() -> dict[str, str]:
    """The first line of every public name's docstring, read without importing anything."""
    found: dict[str, str] = {}
    library = ROOT / "src" / "scoreascent"
    for path in sorted(library.rglob("*.py")):
        if path.relative_to(library).parts[0] in ELSEWHERE:
            continue
        for node in ast.parse(text(path)).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in NAMES:
                said = ast.get_docstring(node)
                if said:
                    found[node.name] = html.escape(said.splitlines()[0]).replace("|", "\\|")
    return found


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Take the stand-in for workers from the site itself; the theme would take one from the web."""
    away = os.path.relpath("tools/worker.js", posixpath.dirname(page.file.dest_uri) or ".")
    return output.replace("https://unpkg.com/iframe-worker/shim", away)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """The same for the page that a server shows where there is none."""
    return output_content.replace("https://unpkg.com/iframe-worker/shim", "/tools/worker.js")
