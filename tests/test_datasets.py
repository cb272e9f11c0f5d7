"""Data sets are what the registry says, bad files are refused by name, splits are the paper's."""

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from scoreascent.datasets import AVAILABLE, FOLDER, REGISTRY, Dataset, DatasetError, load

UCI = tuple(name for name in AVAILABLE if name != "diabetes")
TRAINING_ROWS = dict(zip(UCI, (277, 927, 1352, 691, 1439, 455, 3723, 2308)))


@pytest.fixture
def uci():
    """The folder with the UCI files."""
    if FOLDER not in os.environ:
        pytest.skip(f"set {FOLDER} to the folder of the UCI files to test them")
    return Path(os.environ[FOLDER])


def small(rows=10, columns=3, seed=0):
    rng = np.random.default_rng(seed)
    names = tuple(f"x{i}" for i in range(columns))
    return Dataset("small", 5 + 3 * rng.normal(size=(rows, columns)), rng.normal(size=rows),
                   names, "y")  # fmt: skip


# -- what is there ---------------------------------------------------------------------------------


def test_names():
    assert AVAILABLE == (
        "yacht", "concrete", "airfoil", "energy", "wine", "boston", "sml", "gas", "diabetes",
    )  # fmt: skip


def check(data):
    source = REGISTRY[data.name]
    assert data.x.shape == (source.rows, source.features)
    assert data.y.shape == (source.rows,)
    assert data.x.dtype == data.y.dtype == np.float64
    assert np.all(np.isfinite(data.x))
    assert np.all(np.isfinite(data.y))
    assert len(data.features) == len(set(data.features)) == source.features
    assert data.target == source.target not in data.features


def test_diabetes_needs_no_folder(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    data = load("diabetes")
    check(data)
    assert data.features[:3] == ("age", "sex", "bmi")
    assert data.x[0, :3].tolist() == [59.0, 2.0, 32.1]
    assert (data.y.min(), data.y.max()) == (25.0, 346.0)


@pytest.mark.parametrize("name", UCI)
def test_uci(uci, name):
    check(load(name))


@pytest.mark.parametrize(
    ("name", "mean", "sd"),
    [("yacht", 10.495, 15.16), ("wine", 5.636, 0.80757), ("gas", 4.3565, 1.0411)],
)
def test_the_target_is_in_its_original_unit(uci, name, mean, sd):
    y = load(name).y
    assert (y.mean(), y.std(ddof=1)) == (pytest.approx(mean, rel=1e-4), pytest.approx(sd, rel=1e-4))


def test_a_data_set_prints_without_its_numbers():
    assert repr(small(columns=1)) == "Dataset(name='small', features=('x0',), target='y')"


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("yatch", r"no data set 'yatch'; did you mean 'yacht'\? choose from yacht, concrete"),
        ("Boston", "did you mean 'boston'"),
        ("mnist", "no data set 'mnist'; choose from yacht, .*, diabetes$"),
    ],
)
def test_an_unknown_name(name, says):
    with pytest.raises(DatasetError, match=says):
        load(name)


@pytest.mark.parametrize("value", [None, ""])
def test_no_folder(monkeypatch, value):
    monkeypatch.delenv(FOLDER, raising=False)
    if value is not None:
        monkeypatch.setenv(FOLDER, value)
    with pytest.raises(DatasetError, match=f"{FOLDER} is not set") as caught:
        load("yacht")
    for fact in ("Yacht Hydrodynamics", "243", "10.24432/C5XG7R", "yacht.csv", "header", "last"):
        assert fact in str(caught.value)


@pytest.mark.parametrize("folder", ["", "elsewhere"])
def test_no_file(monkeypatch, tmp_path, folder):
    monkeypatch.setenv(FOLDER, str(tmp_path / folder))
    with pytest.raises(DatasetError, match=r"no file .*boston\.csv.*StatLib"):
        load("boston")


def broken_yacht(monkeypatch, tmp_path, content):
    (tmp_path / "yacht.csv").write_bytes(content)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(DatasetError) as caught:
        load("yacht")
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it has 0 lines"),
        (b"a,b,c\n", "it has 1 lines"),
        (b"a,b\n1,2\n3,oak\n", "oak"),
        (b"a,b\n1,2\n3\n", "number of columns"),
        (b"a,b,c\n1,2\n3,4\n", "3 names stand over 2 columns"),
        (b"a,b\n1,\xff\n", "decode"),
        (b"<!DOCTYPE html>\n<html>\n</html>\n", "html"),
    ],
)
def test_an_unreadable_file(monkeypatch, tmp_path, content, says):
    message = broken_yacht(monkeypatch, tmp_path, content)
    assert "no CSV file of numbers" in message
    assert says in message
    assert "fetch it again" in message


def stand_in(rows=308, target="residuary_resistance"):
    """A file of yacht's shape with other numbers."""
    line = ",".join(["1.5"] * 7)
    return "\n".join([f"a,b,c,d,e,f,{target}", *[line] * rows, ""]).encode()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (stand_in(200), "found 200 rows, 7 columns"),
        (stand_in(), "A value, a name or the line endings were changed"),
        (stand_in(target="froude_number"), "last column is 'froude_number', and should be"),
        (b"a,b\n1,2\n", "found 1 rows, 2 columns"),
    ],
)
def test_another_file(monkeypatch, tmp_path, content, says):
    message = broken_yacht(monkeypatch, tmp_path, content)
    assert says in message
    assert "expected 308 rows, 7 columns, sha256 0f076fe825b9…" in message


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content[: len(content) // 2].rpartition(b"\n")[0], "cut short"),
        (lambda content: content[:-2] + b"7\n", "A value"),
        (lambda content: content.replace(b"\n", b"\r\n"), "line endings"),
        (lambda content: content.replace(b"froude_number", b"speed"), "a name"),
        (lambda content: content + content.splitlines()[-1] + b"\n", "found 309 rows"),
        (lambda content: content[:-10], "no CSV file"),
    ],
)
def test_a_damaged_copy(uci, monkeypatch, tmp_path, change, says):
    content = (uci / "yacht.csv").read_bytes()
    assert says in broken_yacht(monkeypatch, tmp_path, change(content))


def test_a_good_copy_is_the_same(uci, monkeypatch, tmp_path):
    before = load("energy")
    shutil.copy(uci / "energy.csv", tmp_path)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    after = load("energy")
    assert np.array_equal(before.x, after.x)
    assert before.features == after.features


def test_a_folder_in_place_of_the_file(monkeypatch, tmp_path):
    (tmp_path / "yacht.csv").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(DatasetError, match="no file"):
        load("yacht")


def test_a_file_that_cannot_be_read(monkeypatch, tmp_path):
    (tmp_path / "yacht.csv").write_text("a")

    def refuse(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(DatasetError, match="cannot be read: Permission denied"):
        load("yacht")


def test_without_sklearn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"scoreascent\[cli\]"):
        load("diabetes")


def test_another_diabetes(monkeypatch):
    import sklearn.datasets

    raw = sklearn.datasets.load_diabetes(scaled=False)
    raw.data[3, 3] += 1
    monkeypatch.setattr(sklearn.datasets, "load_diabetes", lambda scaled: raw)
    with pytest.raises(DatasetError, match=r"expected 442 rows, 11 columns.*found 442 rows"):
        load("diabetes")


# -- splits ----------------------------------------------------------------------------------------


def test_splits_are_whitened_by_the_training_rows():
    data = load("diabetes")
    split = data.split(3)
    assert split.x_train.shape == (397, 10)
    assert split.x_test.shape == (45, 10)
    np.testing.assert_allclose(split.x_train.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(split.x_train.std(0, ddof=1), 1)
    np.testing.assert_allclose(split.y_train.std(ddof=1), 1)
    assert abs(split.x_test.mean(0)).max() > 0.01
    rows = np.random.default_rng(3).permutation(442)
    train, test = rows[:397], rows[397:]
    np.testing.assert_array_equal(split.y_test, data.y[test])
    np.testing.assert_allclose(split.y_mean + split.y_sd * split.y_train, data.y[train])
    mean, sd = data.x[train].mean(0), data.x[train].std(0, ddof=1)
    np.testing.assert_allclose(mean + sd * split.x_test, data.x[test])
    arrays = (split.x_train, split.y_train, split.x_test, split.y_test)
    assert all(a.dtype == np.float64 for a in arrays)


def test_a_seed_is_a_split():
    data = small(100)
    assert np.array_equal(data.split(1).x_train, data.split(1).x_train)
    assert not np.array_equal(data.split(1).y_test, data.split(2).y_test)


@pytest.mark.parametrize("name", UCI)
def test_training_rows_are_the_papers(uci, name):
    data = load(name)
    for seed in range(20):
        split = data.split(seed)
        assert len(split.y_train) == TRAINING_ROWS[name]
        assert split.x_train.shape[1] == REGISTRY[name].features
        assert len(split.y_test) == REGISTRY[name].rows - TRAINING_ROWS[name]


@pytest.mark.parametrize(
    ("rows", "fraction", "train"),
    [
        (10, 0.9, 9),
        (308, 0.9, 277),
        (1030, 0.9, 927),
        (100, 0.29, 29),
        (100, 0.57, 57),
        (9, 0.9, 8),
    ],
)
def test_fractions_are_exact(rows, fraction, train):
    """In floating point 0.29 · 100 and 0.57 · 100 lie below 29 and 57."""
    assert len(small(rows).split(0, fraction).y_train) == train


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_a_bad_fraction(fraction):
    with pytest.raises(ValueError, match="fraction must lie between 0 and 1, not"):
        small().split(0, fraction)


def test_a_fraction_that_leaves_too_few_rows():
    with pytest.raises(ValueError, match="trains on 1: at least 2"):
        small().split(0, 0.1)


def test_a_bad_seed():
    with pytest.raises(ValueError, match="seed must not be negative, not -1"):
        small().split(-1)


@pytest.mark.parametrize(("column", "name"), [(1, "x1"), (None, "y")])
def test_a_constant_column_is_named(column, name):
    data = small()
    if column is None:
        data.y[:] = 2.0
    else:
        data.x[:, column] = 1e-7 * data.x[:, column]
    with pytest.raises(DatasetError, match=f"'{name}' of data set 'small'.*leave it out"):
        data.split(0)
