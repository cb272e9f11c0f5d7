"""The documentation site: its contents cover all pages and names, and it stands on its own.

Tests that build it need the extra `docs`, the last ones a browser; they skip loudly without.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import scoreascent as sa

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def module_at(path: Path) -> Any:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONTENTS = module_at(DOCS / "tools" / "contents.py")
GROUPS: dict[str, tuple[str, ...]] = CONTENTS.GROUPS
NAMES = [name for names in GROUPS.values() for name in names]


def in_nav(entry: Any) -> Iterator[str]:
    """The pages below an entry of the navigation."""
    if isinstance(entry, str):
        yield entry
    for below in entry.values() if isinstance(entry, dict) else entry:
        if not isinstance(entry, str):
            yield from in_nav(below)


# -- contents --------------------------------------------------------------------------------------


def test_the_navigation_has_every_page() -> None:
    """Each once; a page that is not there yet, or no more, is an error too."""
    listed = [*in_nav(CONFIG["nav"])]
    written = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md") if "results" not in p.parts}
    made = {*CONTENTS.ROOT_PAGES.values()} - {"index.md"}
    results = {page for page in listed if page.startswith("results/")}
    assert sorted(listed) == sorted(written | made | results)
    assert all((DOCS / page).exists() for page in results)


def test_the_reference_has_every_public_name() -> None:
    assert len(sa.__all__) == len(set(sa.__all__))
    assert sorted([*NAMES, *CONTENTS.WITHOUT_A_PAGE]) == sorted(sa.__all__)


def public() -> dict[str, Any]:
    """Every public thing by its name: the library's own, and what its submodules have."""
    found = {name: getattr(sa, name) for name in NAMES}
    for path in CONTENTS.MODULES:
        module = import_module(f"scoreascent.{path}")
        own = [
            n for n, x in vars(module).items() if getattr(x, "__module__", "") == module.__name__
        ]
        names = getattr(module, "__all__", [n for n in own if not n.startswith("_")])
        found[path] = module
        found |= {f"{path}.{name}": getattr(module, name) for name in names}
    return {n: x for n, x in found.items() if callable(x) or isinstance(x, types.ModuleType)}


PUBLIC = public()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented_with_an_example_and_typed(name: str) -> None:
    """The example is a doctest, so it runs."""
    thing = PUBLIC[name]
    said = inspect.getdoc(thing) or ""
    assert re.match(r"[^\n]+\.(\n\n|$)", said, re.DOTALL), f"{name} has no docstring"
    if not inspect.ismodule(thing):
        assert ">>> " in said, f"{name} has no example"
    if inspect.isfunction(thing):
        parameters = inspect.signature(thing).parameters.values()
        untyped = [p.name for p in parameters if p.annotation is p.empty]
        assert not untyped, f"{name}: {untyped} have no types"
        assert "return" in thing.__annotations__, f"{name} has no type of what it returns"


def test_the_first_page_has_the_readmes_ten_lines() -> None:
    """There they run."""
    ten = re.search(r"## Ten lines\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert ten is not None
    assert ten[1] in (DOCS / "index.md").read_text(encoding="utf-8")


def test_the_page_of_the_command_line_has_every_command_and_option() -> None:
    typer = pytest.importorskip("typer")
    from scoreascent.cli import app

    page = (DOCS / "command-line.md").read_text(encoding="utf-8")

    def missing(command: Any, path: str) -> Iterator[str]:
        for name, below in getattr(command, "commands", {}).items():
            if f"{path} {name}" not in page and f"`{name}`" not in page:
                yield f"{path} {name}"
            yield from missing(below, f"{path} {name}")
        for parameter in command.params:
            option = parameter.opts[0]
            if option.startswith("--") and option != "--help" and option not in page:
                yield f"{path} {option}"

    assert [*missing(typer.main.get_command(app), "scoreascent")] == []


# -- the built site --------------------------------------------------------------------------------

ATTRIBUTE = re.compile(r"""\b(src|href|srcset|data-src)=(?:"([^"]*)"|'([^']*)'|([^\s>]+))""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does."""
    pytest.importorskip("mkdocs", reason="THE SITE IS NOT TESTED: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_a_page_for_every_name(site: Path) -> None:
    for name in NAMES:
        page = (site / "reference" / f"{name}.html").read_text(encoding="utf-8")
        assert f'id="scoreascent.{name}"' in page, name
    for name in CONTENTS.MODULES:
        assert (site / "reference" / f"{name}.html").exists()


@pytest.mark.slow
def test_the_site_asks_nothing_of_the_network(site: Path) -> None:
    """Nothing but links that a reader may follow leads away, and all others lead somewhere."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for tag in re.findall(r"<\w+[^>]*>", text):
            for kind, *values in ATTRIBUTE.findall(tag):
                link = urlsplit("".join(values).replace("&amp;", "&"))
                if link.scheme in ("http", "https") or link.netloc:
                    assert (tag[:3], kind) == ("<a ", "href"), f"{page}: {tag}"
                elif link.path and link.scheme == "" and page.name != "404.html":
                    there = page.parent / unquote(link.path)
                    assert there.exists(), f"{page}: {tag}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", sheet.read_text()), sheet


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser without a network."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="the site's tests need selenium")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("THE SITE IS NOT TESTED IN A BROWSER: chromium and chromedriver are not there")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage",
        f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
        "host-resolver-rules=MAP * ~NOTFOUND",
    ):  # fmt: skip
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chromium = webdriver.Chrome(options, webdriver.ChromeService(executable_path=driver))
    chromium.set_page_load_timeout(120)
    chromium.implicitly_wait(60)
    yield chromium
    chromium.quit()


def look(browser: Any, page: Path, width: int = 1400, scheme: str = "light") -> None:
    """Open a page of that width, with what the system says of light and dark."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page.as_uri())


@pytest.mark.slow
def test_one_can_search_from_a_disk(site: Path, browser: Any) -> None:
    look(browser, site / "index.html")
    browser.find_element("css selector", "[data-md-component=search-query]").send_keys("tempered")
    found = browser.find_element("css selector", ".md-search-result__link")
    assert "tempered" in found.get_attribute("href")
    assert browser.get_log("browser") == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_pages_fit_and_follow_light_and_dark(
    site: Path, browser: Any, width: int, scheme: str
) -> None:
    """No page is wider than the window: tables and code scroll by themselves."""
    for name in ("index", "start", "choosing", "theory", "reference/fit", "tutorials/hierarchy"):
        look(browser, site / f"{name}.html", width, scheme)
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, name
        body = browser.find_element("tag name", "body")
        colour = body.value_of_css_property("background-color")
        numbers = [float(x) for x in re.findall(r"[\d.]+", colour)[:3]]
        assert (sum(numbers) / 3 < 100) == (scheme == "dark"), f"{name}: {colour}"
        pictures = "return [...document.images].every(x => !x.complete || x.naturalWidth > 0)"
        assert browser.execute_script(pictures), name
