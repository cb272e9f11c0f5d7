"""Summaries, their text and the curves, on made-up runs with known answers."""

import io
import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from scoreascent.datasets import REGISTRY
from scoreascent.experiments import curves, tables
from scoreascent.experiments.methods import colour as colour_of
from scoreascent.experiments.statistics import bootstrap, indistinct

METHODS = (("elbo", 1), ("elbo", 10), ("pmcsa", 10), ("jsa", 10), ("msc", 10), ("msc_rb", 10))


def runs(experiment="table-bnn", datasets=("airfoil", "yacht"), splits=20, spread=0.02, steps=3):
    """Runs that end at the published values, up to noise between the splits."""
    paper = tables.published(experiment)
    rng = np.random.default_rng(5)
    rows = []
    for cell in paper[paper["dataset"].isin(datasets)].itertuples():
        for split in range(splits):
            for step in range(1, steps + 1):
                lpd = cell.lpd + spread * rng.normal() + step - steps
                rows.append(
                    {"dataset": cell.dataset, "method": cell.method, "n": cell.n, "split": split,
                     "step": 100 * step, "rmse": np.exp(-lpd), "lpd": lpd, "acceptance": 0.3}
                )  # fmt: skip
    table = pd.DataFrame(rows)
    return table.assign(lpd_published=table["lpd"], lpd=table["lpd"] + 0.5) if "gp" in experiment \
        else table  # fmt: skip


def one(summary, dataset, method, n=10):
    rows = summary[
        (summary["dataset"] == dataset) & (summary["method"] == method) & (summary["n"] == n)
    ]
    assert len(rows) == 1
    return rows.iloc[0]


# -- the published tables --------------------------------------------------------------------------


@pytest.mark.parametrize(("experiment", "rows"), [("table-bnn", 48), ("table-gp", 35)])
def test_published_tables(experiment, rows):
    paper = tables.published(experiment)
    assert len(paper) == rows
    assert not paper.duplicated(["dataset", "method", "n"]).any()
    assert paper["bold"].dtype == bool
    assert set(paper["n"]) == {1, 10}
    for row in paper.itertuples():
        source = REGISTRY[row.dataset]
        assert row.n_train == source.rows * 9 // 10
        assert row.d_features == source.features
        bnn = 50 * (source.features + 1) + 53
        assert row.d_latent == (bnn if "bnn" in experiment else 4 + source.features + row.n_train)
    # the best is always bold
    assert paper.loc[paper.groupby("dataset")["lpd"].idxmax(), "bold"].all()


def test_published_numbers():
    bnn = tables.published("table-bnn")
    assert one(bnn, "energy", "pmcsa")["lpd"] == -1.92
    assert one(tables.published("table-gp"), "gas", "elbo", 1)["lpd"] == 0.18


def test_an_unknown_table():
    with pytest.raises(ValueError, match="no table 'bnn'; choose from table-bnn, table-gp"):
        tables.published("bnn")


# -- summaries -------------------------------------------------------------------------------------


def test_a_summary_is_of_the_last_step():
    table = runs()
    summary = tables.summarise(table.sample(frac=1, random_state=0), "table-bnn")
    assert list(dict.fromkeys(summary["dataset"])) == ["yacht", "airfoil"]  # the paper's order
    assert list(zip(summary["method"], summary["n"])) == [*METHODS, *METHODS]
    row = one(summary, "airfoil", "pmcsa")
    last = table[(table["step"] == 300) & (table["dataset"] == "airfoil")]
    values = last[last["method"] == "pmcsa"].sort_values("split")["lpd"].to_numpy()
    assert row["splits"] == 20
    assert row["mean"] == pytest.approx(values.mean())
    assert row["median"] == pytest.approx(np.median(values))
    assert (row["low"], row["high"]) == pytest.approx(bootstrap(values))
    assert row["ci95"] == pytest.approx((row["high"] - row["low"]) / 2)
    assert row["published"] == -2.27
    assert row["published_ci95"] == 0.02
    assert row["difference"] == pytest.approx(row["mean"] + 2.27)


def test_agreement_and_bold():
    summary = tables.summarise(runs(), "table-bnn")
    assert summary["agrees"].all()
    assert summary["median_agrees"].all()
    airfoil = summary[summary["dataset"] == "airfoil"]
    assert airfoil["bold"].tolist() == airfoil["published_bold"].tolist()
    away = runs()
    away["lpd"] += 0.2
    summary = tables.summarise(away, "table-bnn")
    assert not summary["agrees"].any()
    assert summary["difference"].to_numpy() == pytest.approx(0.2, abs=0.03)


def test_one_bad_split_moves_the_mean_and_not_the_median():
    table = runs(datasets=("gas",))
    table.loc[table["split"] == 3, "lpd"] -= 100
    row = one(tables.summarise(table, "table-bnn"), "gas", "pmcsa")
    assert row["difference"] < -4
    assert row["median_agrees"]
    assert row["median_ci95"] < 0.1 < row["ci95"]


def test_rmse_is_better_when_lower_and_has_nothing_published():
    summary = tables.summarise(runs(), "table-bnn", "rmse")
    assert list(dict.fromkeys(summary["dataset"])) == ["yacht", "airfoil"]
    airfoil = summary[summary["dataset"] == "airfoil"]
    assert airfoil.loc[airfoil["mean"].idxmin(), "method"] == "pmcsa"
    assert airfoil["bold"].tolist() == [False, False, True, False, False, False]
    assert summary["published"].isna().all()
    assert summary["agrees"].tolist() == [None] * 12
    assert "[" not in tables.markdown(summary)


def test_a_set_that_is_not_in_the_paper():
    table = runs(datasets=("yacht",))
    both = pd.concat([table.assign(dataset="diabetes"), table])
    summary = tables.summarise(both, "table-bnn")
    assert list(dict.fromkeys(summary["dataset"])) == ["yacht", "diabetes"]
    row = one(summary, "diabetes", "pmcsa")
    assert row["agrees"] is None
    assert row["published_bold"] is None
    assert np.isnan(row["published"])
    lines = tables.markdown(summary).splitlines()
    assert "[" in lines[2]
    assert "[" not in lines[3]


def test_one_split_has_no_interval():
    summary = tables.summarise(runs(splits=1), "table-bnn")
    assert (summary["splits"] == 1).all()
    assert summary[["low", "high", "ci95", "median_ci95"]].isna().all(axis=None)
    assert summary["agrees"].tolist() == [None] * 12
    assert summary["bold"].all()  # nothing can be told from one split
    assert "±" not in tables.markdown(summary).splitlines()[2]
    assert "nan" not in tables.latex(summary)


def test_unfinished_runs():
    """Methods with fewer splits, and one that is missing, are compared on what they share."""
    table = runs(datasets=("airfoil",))
    late = (table["method"] == "msc") & (table["split"] >= 12)
    table = table[~late & (table["method"] != "jsa")]
    summary = tables.summarise(table, "table-bnn")
    assert summary["splits"].tolist() == [20, 20, 20, 12, 20]
    last = table[(table["step"] == 300) & (table["split"] < 12)]
    shared = last.pivot(index="split", columns=["method", "n"], values="lpd")
    shared = shared[list(zip(summary["method"], summary["n"]))]
    assert summary["bold"].tolist() == indistinct(shared).tolist()
    assert 0 < summary["bold"].sum() < 5
    assert "Mean over 20 splits (airfoil, MSC, N = 10: 12) ±" in tables.markdown(summary)


def test_a_run_with_nan_is_not_hidden():
    table = runs(datasets=("airfoil",))
    table.loc[(table["method"] == "pmcsa") & (table["split"] == 0), "lpd"] = np.nan
    row = one(tables.summarise(table, "table-bnn"), "airfoil", "pmcsa")
    assert np.isnan(row["mean"])
    assert row["splits"] == 20
    assert not row["bold"]
    assert row["agrees"] is None


@pytest.mark.parametrize(
    ("change", "value", "says"),
    [
        (lambda t: t, "acceptance", "value must be one of lpd, lpd_published, rmse, not"),
        (lambda t: t, "lpd_published", "table has no column lpd_published"),
        (lambda t: t.drop(columns=["split", "n"]), "lpd", "table has no column n, split"),
        (lambda t: t[:0], "lpd", "no rows"),
        (lambda t: pd.concat([t, t]), "lpd", "two rows for"),
    ],
)
def test_bad_tables(change, value, says):
    with pytest.raises(ValueError, match=says):
        tables.summarise(change(runs()), "table-bnn", value)


# -- text ------------------------------------------------------------------------------------------


def test_markdown():
    lines = tables.markdown(tables.summarise(runs(spread=0.002), "table-bnn")).splitlines()
    assert lines[0].startswith("| data set | ELBO, N = 1 | ELBO, N = 10 | pMCSA, N = 10 | JSA")
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert lines[3].startswith("| airfoil | −2.53 ± 0.00 [−2.53] |")
    assert "**−2.27 ± 0.00** [−2.27]" in lines[3]
    assert "20 splits" in lines[-1]


def test_gas_has_a_line_of_medians():
    table = runs(datasets=("gas",))
    table.loc[table["split"] == 3, "lpd"] -= 1e6
    lines = tables.markdown(tables.summarise(table, "table-bnn")).splitlines()
    assert lines[2].startswith("| gas | **−5.00e+04")
    assert lines[3].startswith("| gas (median) | ")
    assert "[−0.09]" in lines[3]
    assert "e+" not in lines[3]


def test_one_split_of_gas_has_no_line_of_medians():
    text = tables.markdown(tables.summarise(runs(datasets=("gas",), splits=1), "table-bnn"))
    assert "median" not in text


def test_cells_with_fewer_splits_are_named():
    table = runs(datasets=("yacht", "airfoil", "gas"))
    few = (table["dataset"] == "gas") & (table["split"] > 0)
    few |= (table["dataset"] == "airfoil") & (table["method"] == "jsa") & (table["split"] > 4)
    text = tables.markdown(tables.summarise(table[~few], "table-bnn"))
    assert "Mean over 20 splits (airfoil, JSA, N = 10: 5; gas: 1) ± half" in text


def test_latex():
    text = tables.latex(tables.summarise(runs(spread=0.002), "table-bnn"))
    lines = text.splitlines()
    assert lines[0] == r"\begin{tabular}{lcccccc}"
    assert (lines[1], lines[3]) == (r"\toprule", r"\midrule")
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert all(line.count("&") == 6 and line.endswith(r"\\") for line in (lines[2], *lines[4:6]))
    assert r"{\boldmath\textbf{$-2.27$ $\pm$ $0.00$}} [$-2.27$]" in text
    assert text.count("{") == text.count("}")
    assert text.isascii()


def test_markdown_of_the_gp():
    table = runs("table-gp", spread=0.002)
    by_formula = tables.summarise(table, "table-gp", "lpd_published")
    correct = tables.summarise(table, "table-gp")
    assert by_formula["agrees"].all()
    assert not correct["agrees"].any()
    lines = tables.markdown_gp(by_formula, correct).splitlines()
    assert lines[0] == "| data set | method | paper | published formula | correct |"
    assert "| yacht | ELBO, N = 1 | −3.63 ± 0.02 | −3.63 ± 0.00 | −3.13 ± 0.00 |" in lines
    bold = "| airfoil | pMCSA, N = 10 | **−2.63 ± 0.01** | **−2.63 ± 0.00** | **−2.13 ± 0.00** |"
    assert bold in lines
    assert len([line for line in lines if line.startswith("|")]) == 2 + 10


def test_a_summary_survives_csv():
    summary = tables.summarise(runs(), "table-bnn")
    again = pd.read_csv(io.StringIO(summary.to_csv(index=False)))
    pd.testing.assert_frame_equal(summary, again, check_dtype=False)
    assert tables.markdown(again) == tables.markdown(summary)
    assert tables.latex(again) == tables.latex(summary)


# -- curves ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def clock(table, blocks=((0, 12), (12, 8)), seconds=24.0):
    runs_of = table[["dataset", "method", "n", "step"]].drop_duplicates()
    parts = [
        runs_of.assign(first_split=first, splits=splits, seconds=seconds * runs_of["step"] / 300)
        for first, splits in blocks
    ]
    return pd.concat(parts, ignore_index=True)


def test_seconds_of_a_block_are_shared_by_its_splits():
    table = runs(datasets=("yacht",))
    each = curves.seconds_per_split(clock(table))
    assert len(each) == len(table)
    assert not each.duplicated(["dataset", "method", "n", "split", "step"]).any()
    end = each[(each["method"] == "pmcsa") & (each["step"] == 300)].set_index("split")["seconds"]
    assert end.to_dict() == {**dict.fromkeys(range(12), 2.0), **dict.fromkeys(range(12, 20), 3.0)}


def drawn(ax):
    return {
        (line.get_color(), line.get_linestyle()): np.asarray(line.get_xydata())
        for line in ax.get_lines()
    }


def test_curves_are_the_means():
    table = runs(datasets=("yacht",))
    figure = curves.draw_curves(table, clock(table), "lpd")
    above, below = figure.axes
    colour = colour_of("pmcsa", "")
    run = table[table["method"] == "pmcsa"]
    means = run.groupby("step")["lpd"].mean()
    np.testing.assert_allclose(drawn(above)[colour, "-"], np.c_[[100, 200, 300], means])
    seconds = (12 * 2.0 + 8 * 3.0) / 20 * np.array([1, 2, 3]) / 3
    np.testing.assert_allclose(drawn(below)[colour, "-"], np.c_[seconds, means])
    assert above.get_ylim() == below.get_ylim()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:2] == ["ELBO, N = 1", "ELBO, N = 10"]
    assert len(labels) == 6


def test_there_is_a_panel_for_each_data_set():
    table = runs(datasets=tuple(tables.published("table-gp")["dataset"]), splits=3)
    figure = curves.draw_curves(table, None, "rmse")
    shown = [ax for ax in figure.axes if ax.get_visible()]
    assert sorted(ax.get_title() for ax in shown) == sorted(set(table["dataset"]))
    assert len(figure.axes) == 8


@pytest.mark.parametrize("value", ["lpd", "rmse"])
def test_one_bad_split_does_not_set_the_scale(value):
    table = runs(datasets=("gas",))
    limits = curves.draw_curves(table, None, value).axes[0].get_ylim()
    bad = table["split"] == 3
    table.loc[bad, "lpd"] -= 1000
    table.loc[bad, "rmse"] += 1000
    ax = curves.draw_curves(table, None, value).axes[0]
    assert ax.get_title() == "gas (medians)"
    assert ax.get_ylim() == pytest.approx(limits, abs=0.2 * (limits[1] - limits[0]))
    for line in drawn(ax).values():
        assert ax.get_ylim()[0] < line[-1, 1] < ax.get_ylim()[1]


@pytest.mark.parametrize("seconds", [8.0, 240.0, 24_000.0])
def test_labels_of_the_clock_do_not_collide(seconds):
    table = runs(datasets=("wine",))
    figure = curves.draw_curves(table, clock(table, seconds=seconds), "lpd")
    figure.canvas.draw()
    axis = figure.axes[1].xaxis
    assert not any(label.get_text() for label in axis.get_minorticklabels())
    low, high = figure.axes[1].get_xlim()
    shown = [t for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
    boxes = [tick.label1.get_window_extent() for tick in shown if tick.label1.get_text()]
    assert boxes
    # before 3.11, matplotlib has other ticks within a decade, which overlap by a pixel
    assert all(a.x1 < b.x0 + 2 for a, b in itertools.pairwise(boxes))


@pytest.mark.parametrize("splits", [1, 2])
def test_few_splits_and_nan_can_be_drawn(splits, tmp_path):
    table = runs(splits=splits)
    table.loc[0, "lpd"] = np.nan
    figure = curves.draw_curves(table, clock(table, blocks=((0, 1),)), "lpd")
    figure.savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_a_steep_beginning_does_not_set_the_scale():
    table = runs(datasets=("wine",), steps=20)
    table.loc[table["step"] <= 1000, "lpd"] -= 1000
    low, high = curves.draw_curves(table, None, "lpd").axes[0].get_ylim()
    assert low < -0.97 < -0.95 < high
    assert high - low < 5


def test_an_unknown_value():
    with pytest.raises(ValueError, match="value must be one of lpd, lpd_published, rmse, not 'kl'"):
        curves.draw_curves(runs(), None, "kl")


def weights():
    rng = np.random.default_rng(2)
    scales = {("elbo", 1): 0.05, ("pmcsa", 10): 1.0, ("msc", 10): 0.0}
    return pd.concat(
        [
            pd.DataFrame({"dataset": dataset, "method": method, "n": n, "index": np.arange(400),
                          "mean": scale * rng.normal(size=400), "sd": 1.0})
            for dataset in ("yacht", "energy")
            for (method, n), scale in scales.items()
        ],
        ignore_index=True,
    )  # fmt: skip


def test_pruned_weights_peak_at_zero(tmp_path):
    figure = curves.draw_pruning(weights())
    assert [ax.get_title() for ax in figure.axes] == ["yacht", "energy"]
    lines = {line.get_color(): np.asarray(line.get_xydata()) for line in figure.axes[0].get_lines()}
    elbo, pmcsa = lines[colour_of("elbo", "")], lines[colour_of("pmcsa", "")]
    assert elbo[:, 1].max() > 5 * pmcsa[:, 1].max()
    assert abs(elbo[elbo[:, 1].argmax(), 0]) < 0.05
    for line in (elbo, pmcsa):
        assert np.trapezoid(line[:, 1], line[:, 0]) == pytest.approx(1, abs=0.05)
    assert len(lines[colour_of("msc", "")]) == 2  # no spread: a line at zero
    figure.savefig(tmp_path / "pruning.png")
