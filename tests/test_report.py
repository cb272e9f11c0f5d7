"""The report: what stands on the page, what it refuses, and the page in a browser."""

import base64
import json
import re
import shutil
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from scoreascent.cli import app
from scoreascent.experiments import report, tables
from scoreascent.experiments.methods import METHODS

NAMES = {name: method.label for name, method in METHODS.items()}
DATASETS = ["yacht", "energy", "boston"]
COLUMNS = [("elbo", 1), ("elbo", 10), ("pmcsa", 10), ("jsa", 10), ("msc", 10), ("msc_rb", 10)]
STEPS = np.arange(1000, 20_001, 1000)
SPLITS = 4
VERSIONS = {"scoreascent": "0.1.0", "python": "3.11.2", "device": "a <fast> one"}
HOSTILE = "bad </script><script>alert(1)</script> & <b>loud</b>"
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def known_table(published=False, seed=0):
    """Curves that rise to a different height for each method and data set."""
    rng = np.random.default_rng(seed)
    rows = []
    for i, dataset in enumerate(DATASETS):
        for j, (method, n) in enumerate(COLUMNS):
            for split in range(SPLITS):
                end = -1 - i - 0.2 * j + 0.1 * rng.standard_normal()
                lpd = end - 2 * np.exp(-STEPS / 3000)
                rows.append(
                    pd.DataFrame(
                        {
                            "dataset": dataset, "method": method, "n": n, "split": split,
                            "step": STEPS, "rmse": np.exp(-0.3 * lpd), "lpd": lpd,
                            "acceptance": np.nan if method == "elbo" else 0.3 + 0.1 * j,
                        }
                    )
                )  # fmt: skip
    table = pd.concat(rows, ignore_index=True)
    return table.assign(lpd_published=table["lpd"] + 0.5) if published else table


def known_times():
    return pd.DataFrame(
        {"dataset": dataset, "method": method, "n": n, "first_split": first, "splits": SPLITS // 2,
         "step": step, "seconds": step / 1000 * (j + 1)}
        for dataset in DATASETS for j, (method, n) in enumerate(COLUMNS)
        for first in (0, SPLITS // 2) for step in STEPS
    )  # fmt: skip


def known_weights(seed=1):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {"dataset": dataset, "method": method, "n": n, "index": index, "mean": mean, "sd": 0.1}
        for dataset in DATASETS for j, (method, n) in enumerate(COLUMNS)
        for index, mean in enumerate((0.1 + 0.1 * j) * rng.standard_normal(60))
    )  # fmt: skip


def make_run(folder, experiment):
    (folder / "cells").mkdir(parents=True)
    settings = {"steps": 20_000, "datasets": DATASETS, "note": "a & <i>b</i>", "seed": 0}
    manifest = {"experiment": experiment, "settings": settings, "versions": VERSIONS}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def make_table_run(folder, experiment="table-bnn"):
    make_run(folder, experiment)
    known_table(experiment == "table-gp").to_parquet(folder / "table.parquet")
    known_times().to_parquet(folder / "times.parquet")
    known_weights().to_parquet(folder / "weights.parquet")
    return folder


def make_cells(folder, datasets=("yacht",)):
    """The first cells of an unfinished run: a file for each data set and method."""
    table = known_table().assign(seconds=lambda t: t["step"] / 500)
    for (dataset, method, n), cell in table.groupby(["dataset", "method", "n"]):
        if dataset in datasets:
            cell.to_parquet(folder / "cells" / f"{dataset}-{method}-{n}.parquet")


def fail(folder, cell, error=HOSTILE):
    left = {"cell": cell, "error": error, "traceback": f"Traceback:\n  {error}", "when": "noon"}
    (folder / "cells" / f"{cell}.error.json").write_text(json.dumps(left))


@pytest.fixture
def bnn(tmp_path):
    folder = make_table_run(tmp_path / "runs" / "bnn")
    fail(folder, "boston-jsa")
    return folder


@pytest.fixture
def short(monkeypatch):
    """Plotly's five megabytes are left out where the page is only read."""
    monkeypatch.setattr(report, "_plotly", lambda: "/* plotly */")


class Page(HTMLParser):
    """The page's elements, its text, and the text of its tables' cells."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.words, self.tables, self.data, self._open = [], [], [], [], []
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self._open.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append((dict(attrs), []))

    def handle_endtag(self, tag):
        assert self._open[-1][0] == tag, f"</{tag}> ends {self._open[-1]}"
        self._open.pop()

    def handle_data(self, data):
        tags = [tag for tag, _ in self._open]
        if "script" in tags:
            if self._open[-1][1].get("type") == "application/json":
                self.data.append(json.loads(data))
        elif "style" not in tags:
            self.words.append(data)
            if "td" in tags or "th" in tags:
                self.tables[-1][-1][-1][1].append(data)

    def cell(self, table, dataset, column):
        (row,) = [r for r in self.tables[table] if "".join(r[0][1]) == dataset]
        return row[1 + COLUMNS.index(column)]


def read(*runs):
    out = report.write(list(runs), runs[0].parent / "report.html")
    return Page(out.read_text(encoding="utf-8"))


# -- finding runs ----------------------------------------------------------------------------------


def test_runs_are_found_once_in_order(tmp_path):
    one, two = make_run(tmp_path / "b", "figure1"), make_run(tmp_path / "a", "figure2")
    (tmp_path / "notes").mkdir()
    assert report.find([one]) == [one]
    assert report.find([tmp_path]) == [two, one]
    assert report.find([one, tmp_path]) == [one, two]


@pytest.mark.parametrize("where", ["nowhere", "empty"])
def test_nothing_found(tmp_path, where):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=rf"{where}' is no run folder.*scoreascent reproduce"):
        report.find([make_run(tmp_path / "run", "figure1"), tmp_path / where])


def test_nothing_named(tmp_path):
    with pytest.raises(ValueError, match="no run folder was named"):
        report.find([])
    with pytest.raises(ValueError, match="`runs` is empty"):
        report.write([], tmp_path / "report.html")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="is a folder; name a file"):
        report.write([make_run(tmp_path / "run", "figure1")], tmp_path)


# -- the page --------------------------------------------------------------------------------------


def test_tables_hold_the_numbers(bnn, short):
    page = read(bnn)
    last = known_table().query("step == @STEPS.max()")
    for place, value in enumerate(["lpd", "rmse"]):
        for (dataset, method, n), rows in last.groupby(["dataset", "method", "n"]):
            attributes, words = page.cell(place, dataset, (method, n))
            mean = f"{rows[value].mean():.3f}".replace("-", "−")
            assert words[0].startswith(f"{mean} ± ")
            median = f"{rows[value].median():.3f}".replace("-", "−")
            assert f"median {median}, {SPLITS} splits" in attributes["title"]
    for name in [*DATASETS, *(NAMES[m] for m in ("pmcsa", "jsa", "msc", "msc_rb"))]:
        assert name in page.text
    assert "3 data sets, 6 methods, 4 splits, 20,000 iterations" in page.text


def test_published_values_stand_below(bnn, short, monkeypatch):
    """Bold, tint and the published value are those of the summary, whatever it says."""

    def summarise(table, experiment, value="lpd"):
        rows = table.drop_duplicates(["dataset", "method", "n"])[["dataset", "method", "n"]]
        first = rows["method"] == "pmcsa"
        absent = rows["method"] == "msc"
        single = rows["n"] == 1  # one split has no interval, and nothing to compare with
        return rows.assign(
            splits=7, mean=-123.456, low=-124.0, high=-123.0, ci95=0.5, median=-120.0, bold=first,
            published=np.where(absent, np.nan, -5.4321), published_ci95=0.25, published_bold=~first,
            difference=0.75, agrees=np.where(absent | single, None, first),
        )  # fmt: skip

    monkeypatch.setattr(tables, "summarise", summarise)
    html = report.write([bnn], bnn / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    attributes, words = page.cell(0, "yacht", ("pmcsa", 10))
    assert words == ["−123.5 ± 0.5", "−5.43 ± 0.25"]
    assert "class" not in attributes
    assert attributes["title"] == "median −120.0, 7 splits, differs from the paper by 0.8"
    assert "<b>−123.5 ± 0.5</b><small>−5.43 ± 0.25</small>" in html
    assert "−123.5 ± 0.5<small><b>−5.43 ± 0.25</b></small>" in html
    assert page.cell(0, "yacht", ("jsa", 10))[0]["class"] == "differs"
    attributes, words = page.cell(0, "yacht", ("msc", 10))
    assert words == ["−123.5 ± 0.5"]
    assert "class" not in attributes
    attributes, words = page.cell(0, "yacht", ("elbo", 1))
    assert len(words) == 2
    assert "class" not in attributes
    assert "3 of 12 agree with the paper" in page.text


def test_medians_of_data_with_outliers_have_their_own_line(bnn, short):
    table = known_table()
    table["dataset"] = table["dataset"].replace("energy", "gas")
    table.to_parquet(bnn / "table.parquet")
    page = read(bnn)
    rows = table.query("dataset == 'gas' and method == 'jsa' and step == @STEPS.max()")
    median = f"median {rows['lpd'].median():.3f}".replace("-", "−")
    assert median in page.cell(0, "gas", ("jsa", 10))[1]
    assert "median" not in "".join(page.cell(0, "yacht", ("jsa", 10))[1])


def test_a_gp_run_has_both_densities(tmp_path, short):
    page = read(make_table_run(tmp_path / "gp", "table-gp"))
    values = [a["data-value"] for tag, a in page.elements if "data-value" in a and tag == "table"]
    assert values == ["lpd", "lpd_published", "rmse"]
    assert [v for v, _ in page.data[0]["values"]] == ["lpd", "lpd_published", "rmse", "acceptance"]


def test_curves_are_the_means_over_splits(bnn, short):
    curves = read(bnn).data[0]
    ends = tables.summarise(known_table(), "table-bnn").set_index(["dataset", "method", "n"])
    assert list(curves["curves"]) == DATASETS
    for dataset in DATASETS:
        assert [c["method"] for c in curves["curves"][dataset]] == list(range(len(COLUMNS)))
        for (method, n), curve in zip(COLUMNS, curves["curves"][dataset]):
            rows = known_table().query("dataset == @dataset and method == @method and n == @n")
            wide = rows.pivot(index="step", columns="split", values="lpd").to_numpy()
            mean, low, high = map(np.asarray, curve["lpd"])
            assert curve["step"] == STEPS.tolist()
            np.testing.assert_allclose(mean, wide.mean(1), rtol=1e-4)
            assert np.all((wide.min(1) - 1e-4 <= low) & (low < mean) & (mean < high))
            # the interval ends as the table's, up to the noise of fewer draws
            told = ends.loc[dataset, method, n]
            noise = 0.1 * (told["high"] - told["low"])
            assert low[-1] == pytest.approx(told["low"], abs=noise)
            assert high[-1] == pytest.approx(told["high"], abs=noise)
            share = STEPS / 1000 * (COLUMNS.index((method, n)) + 1) / (SPLITS // 2)
            np.testing.assert_allclose(curve["seconds"], share, rtol=1e-4)
            if method == "elbo":
                assert set(curve["acceptance"][0]) == {None}
    assert [m["name"] for m in curves["methods"]][2] == "pMCSA, N = 10"
    assert len(json.dumps(curves)) < 100_000


def test_data_sets_stand_in_the_order_of_the_paper(bnn, short):
    for name in ("table", "weights"):
        path = bnn / f"{name}.parquet"
        pd.read_parquet(path).sort_values("dataset", kind="stable").to_parquet(path)
    page = read(bnn)
    assert ["".join(row[0][1]) for row in page.tables[0][1:]] == DATASETS
    assert [list(data["curves"]) for data in page.data] == [DATASETS, DATASETS]


def test_a_split_that_is_not_finite_leaves_a_gap(bnn, short):
    table = known_table()
    bad = (table["dataset"] == "yacht") & (table["method"] == "jsa") & (table["split"] == 1)
    table.loc[bad & (table["step"] == 2000), "lpd"] = np.nan
    table.loc[bad & (table["step"] == 3000), "lpd"] = -np.inf
    table.to_parquet(bnn / "table.parquet")
    for row in read(bnn).data[0]["curves"]["yacht"][3]["lpd"]:
        assert [i for i, x in enumerate(row) if x is None] == [1, 2]


def test_a_run_that_diverged_throughout_is_still_shown(bnn, short):
    known_table().assign(lpd=np.nan, rmse=np.nan, acceptance=np.nan).to_parquet(
        bnn / "table.parquet"
    )
    page = read(bnn)
    assert page.cell(0, "yacht", ("jsa", 10))[1][0] == "–"
    assert set(page.data[0]["curves"]["yacht"][0]["lpd"][0]) == {None}


def test_weights_have_a_density(bnn, short):
    weights = known_weights()
    weights.loc[(weights["method"] == "msc") & (weights["dataset"] == "yacht"), "mean"] = 0.0
    weights.to_parquet(bnn / "weights.parquet")
    data = read(bnn).data[1]
    assert data["kind"] == "weights"
    # there is no density at a point
    assert [c["method"] for c in data["curves"]["yacht"]] == [0, 1, 2, 3, 5]
    for curve in data["curves"]["energy"]:
        area = np.trapezoid(curve["density"][0], curve["weight"])
        assert area == pytest.approx(1, abs=0.01)


def test_failed_cells_are_shown_as_text(bnn, short):
    page = read(bnn)
    assert "Failed cells (1)" in page.text
    assert "boston-jsa" in page.text
    assert page.text.count(HOSTILE) == 2  # the error, and the traceback
    scripts = [a for tag, a in page.elements if tag == "script"]
    assert len(scripts) == 4  # two figures' data, Plotly, the page's own
    assert ("details", {}) in page.elements


def test_hostile_names_are_text_too(tmp_path, short):
    run = make_table_run(tmp_path / "run<b>")
    table = known_table()
    table["dataset"] = table["dataset"].replace("yacht", HOSTILE)
    table.to_parquet(run / "table.parquet")
    page = read(run)
    assert HOSTILE in page.text
    assert "run<b>" in page.text
    assert HOSTILE in page.data[0]["curves"]
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 4


def test_a_cell_that_came_after_all_is_not_failed(bnn, short):
    make_cells(bnn)
    fail(bnn, "yacht-jsa-10", "at first")
    (bnn / "cells" / "odd.error.json").write_text("not json")
    page = read(bnn)
    assert "at first" not in page.text
    assert "Failed cells (2)" in page.text
    assert "odd.error.json cannot be read" in page.text


def test_settings_and_versions_are_shown(bnn, short):
    page = read(bnn)
    for words in ["steps 20000", "yacht, energy, boston", "a & <i>b</i>", "device a <fast> one"]:
        assert words in page.text


def test_nothing_is_loaded_from_elsewhere(bnn):
    html = report.write([bnn], bnn / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            target = attributes.get(name, "#")
            assert target.startswith(("#", "data:")), (tag, name, target)
    from plotly.offline import get_plotlyjs

    assert html.count(get_plotlyjs()) == 1
    ours = html.replace(get_plotlyjs(), "")
    assert not re.search(r"https?://|url\(|@import", ours)
    assert len(ours) < 200_000


def test_figure_runs_show_their_table_and_pictures(tmp_path):
    run = make_run(tmp_path / "runs" / "figure1", "figure1")
    pd.DataFrame({"method": ["pmcsa"], "n": [8], "variance": [0.123456]}).to_csv(
        run / "summary.csv", index=False
    )
    (run / "figure1.png").write_bytes(PIXEL)
    page = read(run, make_run(tmp_path / "other" / "figure1", "figure2"))
    assert "pMCSA 8 0.1235" in page.text
    (picture,) = [a for tag, a in page.elements if tag == "img"]
    assert base64.b64decode(picture["src"].split(",")[1]) == PIXEL
    assert "runs/figure1" in page.text
    assert "other/figure1" in page.text
    assert "no cells finished" in page.text
    (tmp_path / "other" / "figure1" / "cells" / "pmcsa-8.parquet").write_text("x\n1\n")
    again = read(tmp_path / "other" / "figure1")
    assert "1 cell finished; its pictures are not drawn yet" in again.text
    assert not any(tag == "script" for tag, _ in page.elements)  # nothing needs Plotly


def test_an_unfinished_run_is_made_of_its_cells(tmp_path, short):
    run = make_run(tmp_path / "bnn", "table-bnn")
    make_cells(run)
    cells = run / "cells"
    (cells / ".yacht-new.parquet").write_bytes(b"half")
    (cells / "yacht-jsa-10.weights.parquet").write_bytes(b"other")
    fail(run, "energy-jsa-10", "out of memory")
    page = read(run)
    assert "This run is unfinished : 6 cells finished, 1 failed" in page.text
    assert "1 data set, 6 methods, 4 splits, 20,000 iterations so far" in page.text
    assert list(page.data[0]["curves"]) == ["yacht"]
    curve = page.data[0]["curves"]["yacht"][0]
    np.testing.assert_allclose(curve["seconds"], STEPS / 500 / SPLITS, rtol=1e-4)
    assert "out of memory" in page.text


def test_a_run_without_a_cell_is_said_to_be_empty(tmp_path):
    page = read(make_run(tmp_path / "bnn", "table-bnn"))
    assert "no cells finished; there is nothing to show yet" in page.text
    assert "steps 20000" in page.text


@pytest.mark.parametrize("name", ["table", "times", "weights"])
def test_a_damaged_file_is_named(bnn, short, name):
    out = bnn / "report.html"
    out.write_text("the last one")
    (bnn / f"{name}.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(ValueError, match=rf"{name}\.parquet' cannot be read.*delete it"):
        report.write([bnn], out)
    assert out.read_text() == "the last one"


def test_a_damaged_cell_is_named(tmp_path):
    run = make_run(tmp_path / "bnn", "table-bnn")
    make_cells(run)
    (run / "cells" / "yacht-jsa-10.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match=r"yacht-jsa-10\.parquet' cannot be read"):
        report.write([run], run / "report.html")


def test_a_table_of_something_else_is_named(bnn):
    pd.DataFrame({"x": [1]}).to_parquet(bnn / "table.parquet")
    with pytest.raises(ValueError, match=r"table\.parquet' has no column 'dataset'"):
        report.write([bnn], bnn / "report.html")


def test_a_damaged_summary_is_named(tmp_path):
    run = make_run(tmp_path / "figure1", "figure1")
    (run / "summary.csv").write_text("")
    with pytest.raises(ValueError, match=r"summary\.csv' cannot be read"):
        report.write([run], run / "report.html")


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"experiment": "figure1", "settings": 3}'])
def test_a_damaged_manifest_is_named(tmp_path, content):
    run = make_run(tmp_path / "run", "figure1")
    (run / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json' is no manifest"):
        report.write([run], tmp_path / "report.html")


def test_the_extra_is_named_where_plotly_is_missing(bnn, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'scoreascent\[experiments\]'"):
        report.write([bnn], bnn / "report.html")
    assert not (bnn / "report.html").exists()


def test_the_command_says_where_the_page_is(tmp_path):
    run, out = make_run(tmp_path / "runs" / "figure1", "figure1"), tmp_path / "page.html"
    ran = CliRunner().invoke(app, ["report", str(run.parent), "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    assert "report: " in ran.output
    assert "Figure 1: variance of the gradient" in Page(out.read_text(encoding="utf-8")).text
    ran = CliRunner().invoke(app, ["report", str(tmp_path / "nowhere"), "--out", str(out)])
    assert ran.exit_code == 1
    assert ran.stderr.startswith("error: ")


# -- in a browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium, headless, with the network off."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="the page's tests need selenium")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("NOT TESTED IN A BROWSER: chromium and chromedriver are not both installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    flags = [
        "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
        "disable-background-networking", "disable-component-update", "disable-sync",
        "disable-dev-shm-usage", "window-size=1400,1000",
        f"user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ]  # fmt: skip
    for flag in flags:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    chromium = webdriver.Chrome(options=options, service=service)
    chromium.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    chromium.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    yield chromium
    chromium.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    gp = make_table_run(folder / "runs" / "gp", "table-gp")
    fail(gp, "boston-jsa")
    half = make_run(folder / "runs" / "half", "table-bnn")
    make_cells(half)
    runs = report.find([folder / "runs"])
    return report.write(runs, folder / "report.html").as_uri()


@pytest.fixture
def opened(browser, address):
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(address)
    until(browser, "return document.querySelectorAll('.main-svg .scatterlayer .trace').length > 0")
    return browser


def until(browser, script, *arguments):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 20).until(lambda b: b.execute_script(script, *arguments))


def choose(browser, name, option):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    select = browser.find_element(By.CSS_SELECTOR, f"#run-1-curves-plot select[name={name}]")
    Select(select).select_by_visible_text(option)


def trace(browser, name="pMCSA, N = 10", plot="run-1-curves-plot"):
    """The trace of that name, as Plotly holds it, and the paths that are drawn."""
    return browser.execute_script(
        """const canvas = document.querySelector("#" + arguments[1] + " .canvas");
        const trace = canvas._fullData.find(t => t.name === arguments[0]);
        const band = canvas._fullData.find(t => t.uid === trace.uid.replace("line", "band"));
        const drawn = canvas.querySelectorAll(".scatterlayer .trace .js-line");
        return {x: Array.from(trace.x), y: Array.from(trace.y), visible: trace.visible,
                band: band && band.visible, drawn: drawn.length,
                fills: canvas.querySelectorAll(".js-fill").length,
                range: canvas._fullLayout.xaxis.range, title: canvas._fullLayout.xaxis.title.text,
                paths: Array.from(drawn).map(p => p.getAttribute("d"))};""",
        name,
        plot,
    )


def click_legend(browser, name):
    from selenium.webdriver.common.action_chains import ActionChains

    item = browser.execute_script(
        """return Array.from(document.querySelectorAll("#run-1-curves-plot .legend .traces"))
            .find(t => t.textContent === arguments[0]).querySelector(".legendtoggle");""",
        name,
    )
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", item)
    ActionChains(browser).move_to_element(item).click().perform()


def visibility(browser, wanted):
    until(
        browser,
        """const canvas = document.querySelector("#run-1-curves-plot .canvas");
        return canvas._fullData.filter(t => t.legendgroup === "2")
            .every(t => t.visible === arguments[0]);""",
        wanted,
    )


def test_the_page_loads_offline_without_an_error(opened):
    plots = "return document.querySelectorAll('.js-plotly-plot .main-svg .scatterlayer').length"
    assert opened.execute_script(plots) == 3  # curves and weights, and the unfinished run's curves
    severe = [entry for entry in opened.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []
    messages = [json.loads(e["message"])["message"] for e in opened.get_log("performance")]
    sent = [m for m in messages if m["method"] == "Network.requestWillBeSent"]
    addresses = {m["params"]["request"]["url"].split(":")[0] for m in sent}
    assert addresses <= {"file", "data", "blob"}


def test_another_data_set_is_another_curve(opened):
    before = trace(opened)
    choose(opened, "dataset", "energy")
    after = trace(opened)
    expected = known_table().query("dataset == 'energy' and method == 'pmcsa'")
    np.testing.assert_allclose(after["y"], expected.groupby("step")["lpd"].mean(), rtol=1e-4)
    assert before["y"] != after["y"]
    choose(opened, "value", "RMSE")
    expected = expected.groupby("step")["rmse"].mean()
    np.testing.assert_allclose(trace(opened)["y"], expected, rtol=1e-4)
    until(
        opened,
        "return document.querySelector('#run-1-curves-plot .js-line').getAttribute('d') "
        "!== arguments[0]",
        before["paths"][0],
    )


def test_a_click_in_the_legend_hides_line_and_band(opened):
    before = trace(opened)
    assert (before["visible"], before["band"]) == (True, True)
    drawn = len(COLUMNS)
    assert (before["drawn"], before["fills"]) == (2 * drawn, drawn)  # a band has an edge too
    click_legend(opened, "pMCSA, N = 10")
    visibility(opened, "legendonly")
    hidden = trace(opened)
    assert (hidden["drawn"], hidden["fills"]) == (2 * (drawn - 1), drawn - 1)
    # what is hidden stays hidden for another data set, and comes back with a click
    choose(opened, "dataset", "boston")
    visibility(opened, "legendonly")
    click_legend(opened, "pMCSA, N = 10")
    visibility(opened, True)
    assert trace(opened)["drawn"] == 2 * drawn


def test_curves_against_seconds(opened):
    assert trace(opened)["title"] == "iterations"
    choose(opened, "axis", "seconds per split")
    after = trace(opened)
    assert after["title"] == "seconds per split"
    np.testing.assert_allclose(after["x"], STEPS / 1000 * 3 / (SPLITS // 2), rtol=1e-4)
    assert after["range"] == pytest.approx([0, 60.6])  # the slowest method's end, and a margin
    assert after["drawn"] == 2 * len(COLUMNS)


def test_no_button_sends_the_chart_away(opened):
    buttons = (
        "return Array.from(document.querySelectorAll('.modebar-btn')).map(b => b.dataset.title)"
    )
    titles = {title.lower() for title in opened.execute_script(buttons)}  # "PNG" since plotly 7
    assert titles == {"download plot as a png", "zoom", "pan", "autoscale", "reset axes"}
    contexts = "return Array.from(document.querySelectorAll('.canvas')).map(c => c._context)"
    for context in opened.execute_script(contexts):
        assert (context["showSendToCloud"], context["plotlyServerURL"]) == (False, "")


def test_an_error_text_runs_nothing(opened):
    assert "alert(1)" in opened.find_element("css selector", ".failed").text
    assert opened.execute_script("return document.querySelectorAll('.failed script').length") == 0
