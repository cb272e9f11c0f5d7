"""Runs on disk: killed, interrupted, out of space, damaged, foreign, of other settings."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scoreascent as sa
from tests.helpers import Bar, host, same_bits, same_run, x64

ROOT = Path(__file__).parents[1]
T = 60


def log_density(z: Any, centre: Any) -> Any:
    return -0.5 * jnp.sum((z - centre) ** 2)


def other_density(z: Any, centre: Any) -> Any:
    return -jnp.sum((z - centre) ** 2)


TARGET = sa.Target(log_density, dim=2, data=jnp.array([1.0, -0.5]))
METHOD = sa.pmcsa(3)
OPTIMIZER = optax.adam(0.05)


def run(**options: Any) -> sa.Result:
    """Averaged over all iterations, so that where averaging begins does not depend on `steps`."""
    options = {"target": TARGET, "method": METHOD, "optimizer": OPTIMIZER, "steps": T, "key": 7,
               "average": 0.0, "progress": False, "checkpoint_every": 0.0} | options  # fmt: skip
    return sa.fit(options.pop("target"), options.pop("method"), **options)


@pytest.fixture(scope="module")
def whole() -> sa.Result:
    return run()


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A checkpoint of the same run, half-way."""
    path = tmp_path_factory.mktemp("half") / "run"
    run(steps=T // 2, checkpoint=path)
    return path.read_bytes()


@contextlib.contextmanager
def refused(path: Path, says: str = "checkpoint") -> Iterator[None]:
    """A CheckpointError that names the file, which stays as it is, as does its folder."""
    before, folder = path.read_bytes(), sorted(path.parent.iterdir())
    with pytest.raises(sa.CheckpointError, match=says) as caught:
        yield
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == folder


# -- what is in the file -------------------------------------------------------------------------


def test_file_holds_plain_arrays_and_json(half: bytes, tmp_path: Path) -> None:
    with np.load(io.BytesIO(half), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    assert all(array.dtype.kind in "fiu" for array in arrays.values())
    header = json.loads(arrays["header"].tobytes())
    assert header["run"]["method"] == "ScoreAscent(Parallel(IMH(), n=3))"
    assert sum(array.size for array in arrays.values() if len(array.shape) == 1) > 5 * T // 2


class Model:
    """A density that is an object: it prints with its address in memory."""

    def __call__(self, z: Any) -> Any:
        return -jnp.sum(z**2)


@pytest.mark.parametrize(
    "density",
    [functools.partial(other_density, centre=1.0), Model()],
    ids=["partial", "object"],
)
def test_description_holds_in_another_process(density: Any, half: bytes, tmp_path: Path) -> None:
    """No address in memory tells one run from another, or no other process could resume it."""
    path = tmp_path / "run"
    path.write_bytes(half)
    with pytest.raises(sa.CheckpointError, match=r"target: file .*, now") as caught:
        run(target=sa.Target(density, dim=2), checkpoint=path)
    assert " at 0x" not in str(caught.value)


def prior_of(scale: float) -> sa.Target:
    """A posterior whose prior's scale is closed over, so that it is no part of its name or data."""
    return sa.Target(lambda z: -0.5 * jnp.sum((z / scale) ** 2) - 0.5 * jnp.sum((z - 1) ** 2), 2)


@pytest.mark.parametrize(
    "method",
    [sa.pmcsa(4), pytest.param(None, marks=pytest.mark.slow)],
    ids=["by hand", "automatic"],
)
def test_a_changed_prior_is_another_run(method: Any, tmp_path: Path) -> None:
    path = tmp_path / "run"
    settings = {"checkpoint": path, "steps": 40, "progress": False}
    first = sa.fit(prior_of(1.0), method, **settings)
    assert same_bits(sa.fit(prior_of(1.0), method, **settings).q, first.q)
    with refused(path, r"log_density: file .* now"):
        sa.fit(prior_of(1.001), method, **settings)


def test_rounding_of_another_machine_is_the_same_run(half: bytes, tmp_path: Path) -> None:
    """A log density that differs by an ulp or so, as on another processor, is the same model."""

    def altered(by: float) -> Path:
        with np.load(io.BytesIO(half)) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays["header"].tobytes())
        densities = header["run"]["log_density"]
        header["run"]["log_density"] = [str(float(x) * (1 + by)) for x in densities]
        arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        path = tmp_path / "run"
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        return path

    assert run(checkpoint=altered(2e-7)).status == "max_steps"
    with refused(altered(1e-3), "log_density"):
        run(checkpoint=tmp_path / "run")


def test_finished_run_is_read_back(whole: sa.Result, tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert same_run(run(checkpoint=path), whole)
    before = path.read_bytes()
    assert same_run(run(checkpoint=str(path)), whole)
    assert path.read_bytes() == before


def test_a_longer_run_goes_on(whole: sa.Result, half: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(half)
    assert same_run(run(checkpoint=path), whole)
    assert list(tmp_path.iterdir()) == [path]


def test_a_longer_average_is_that_of_a_whole_run(tmp_path: Path) -> None:
    """`average=True` leaves out half of all steps: fewer of them left out would not be the same."""
    path = tmp_path / "run"
    run(checkpoint=path, average=True, steps=T // 2)
    with contextlib.suppress(ValueError):  # to refuse is right too
        assert same_bits(run(checkpoint=path, average=True).q, run(average=True).q)


# -- damaged and foreign files -------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.9999])
def test_truncated(share: float, half: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(half[: int(share * len(half))])
    with refused(path, "damaged"):
        run(checkpoint=path)


FIELDS = {  # in the zip format: what, signature of the record, offset in it, value
    "encrypted, local": (b"PK\x03\x04", 6, 1),
    "encrypted": (b"PK\x01\x02", 8, 1),
    "patched data": (b"PK\x01\x02", 8, 0x20),
    "strong encryption": (b"PK\x01\x02", 8, 0x40),
    "method, local": (b"PK\x03\x04", 8, 8),
    "compressed": (b"PK\x01\x02", 10, 8),
    "unknown method": (b"PK\x01\x02", 10, 0x80),
    "needs a later version": (b"PK\x01\x02", 6, 0x80),
    "check sum": (b"PK\x01\x02", 16, 1),
    "size": (b"PK\x01\x02", 24, 1),
    "name": (b"PK\x01\x02", 48, 1),
    "offset": (b"PK\x01\x02", 42, 4),
    "end": (b"PK\x05\x06", 16, 1),
}


@pytest.mark.parametrize("field", FIELDS)
def test_damaged_directory(field: str, half: bytes, whole: sa.Result, tmp_path: Path) -> None:
    """One bit of a record of the zip file: refused, or of no consequence."""
    signature, offset, bit = FIELDS[field]
    damaged = bytearray(half)
    damaged[half.index(signature) + offset] ^= bit
    check_damaged(bytes(damaged), whole, tmp_path / "run")


@settings(
    deadline=None,
    max_examples=200,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_bit_flipped(
    at: float, bit: int, half: bytes, whole: sa.Result, tmp_path: Path
) -> None:
    damaged = bytearray(half)
    damaged[int(at * len(half))] ^= 1 << bit
    check_damaged(bytes(damaged), whole, tmp_path / "run")


@pytest.mark.parametrize(
    ("place", "now"), [(rb"'shape': \((?=[2-9])", b"1"), (rb"\}(?= *\n)", b"(")]
)
def test_damage_where_numpy_does_not_look(
    place: bytes, now: bytes, half: bytes, tmp_path: Path
) -> None:
    """An array that says it is shorter ends before its check sum, which numpy alone never sees."""
    found = re.search(place, half)
    assert found is not None
    at = found.end() if now == b"1" else found.start()
    path = tmp_path / "run"
    path.write_bytes(half[:at] + now + half[at + 1 :])
    with refused(path, "damaged .*check sum"):
        run(checkpoint=path)


def check_damaged(content: bytes, whole: sa.Result, path: Path) -> None:
    """Either the damage is found, or the run is what it would have been."""
    path.write_bytes(content)
    outcome: Any = None
    try:
        outcome = run(checkpoint=path)
    except sa.CheckpointError as error:
        outcome = error
    if isinstance(outcome, sa.Result):
        assert same_run(outcome, whole)
    else:
        assert str(path) in str(outcome)
        assert path.read_bytes() == content


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("readme.txt", "hello")
    return out.getvalue()


def header(**entries: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(entries).encode(), np.uint8)


FOREIGN = {
    "empty": b"",
    "text": b"dear diary\n",
    "zeros": bytes(1000),
    "someone's npz": npz(x=np.arange(3)),
    "someone's npy": npy(np.arange(3)),
    "a zip file": zipped(),
    "a pickle in an npz": npz(header=np.array([{"a": 1}], dtype=object)),
    "another format": npz(header=header(format="another", run={})),
    "a later version": npz(header=header(format="scoreascent checkpoint 99", run={})),
    "no header": npz(header=np.frombuffer(b"[1, 2", np.uint8)),
    "a list for a header": npz(header=np.frombuffer(b"[1, 2]", np.uint8)),
    "a number for a header": npz(header=np.array(3.0)),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_foreign_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(content)
    with refused(path, "damaged or was not written"):
        run(checkpoint=path)


def rewritten(content: bytes, change: Any) -> bytes:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    change(arrays)
    return npz(**arrays)


@pytest.mark.parametrize("what", ["left out", "of another shape"])
def test_array_missing_or_reshaped(what: str, half: bytes, tmp_path: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        name = next(name for name in arrays if name.endswith("q.loc"))
        array = arrays.pop(name)
        if what == "of another shape":
            arrays[name] = np.append(array, 0).astype(array.dtype)

    path = tmp_path / "run"
    path.write_bytes(rewritten(half, change))
    with refused(path):
        run(checkpoint=path)


# -- other settings ------------------------------------------------------------------------------

OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": sa.jsa(3)}, r"method: file '.*Parallel.*', now '.*Sequential"),
    "n": ({"method": sa.pmcsa(4)}, "method: file"),
    "estimator": ({"method": sa.pmcsa(3, rao_blackwell=True)}, "method: file"),
    "step size": ({"optimizer": optax.adam(0.04)}, "update: file"),
    "optimizer": ({"optimizer": optax.sgd(0.05)}, "update: file"),
    "schedule": ({"optimizer": optax.sgd(sa.schedules.duchi(0.05))}, "update: file"),
    "density": (
        {"target": sa.Target(other_density, dim=2, data=jnp.array([1.0, -0.5]))},
        "target: file",
    ),
    "dim": ({"target": sa.Target(log_density, dim=3, data=jnp.ones(1))}, "target: file"),
    "data": (
        {"target": sa.Target(log_density, dim=2, data=jnp.array([1.0, -0.4]))},
        "data: file",
    ),
    "start": ({"q0": sa.MeanField.standard(2, scale=1.5)}, "q0: file"),
    "key": ({"key": 8}, "key: file"),
    "average": ({"average": 0.5}, "average: file"),
    "no average": ({"average": False}, "average: file"),
    "replications": ({"replications": 2}, "replications: file None, now 2"),
}


@pytest.mark.parametrize(("change", "says"), OTHER.values(), ids=OTHER)
def test_other_settings(change: Any, says: str, half: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(half)
    with refused(path, f"belongs to another run.*{says}"):
        run(checkpoint=path, **change)


def test_other_precision(half: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(half)
    with x64(), refused(path, "float: file 'float32', now 'float64'"):
        run(checkpoint=path)


def test_same_settings_spelt_again(whole: sa.Result, half: bytes, tmp_path: Path) -> None:
    """Equal values make the same run, whichever objects hold them."""
    path = tmp_path / "run"
    path.write_bytes(half)
    target = sa.Target(log_density, dim=2, data=jnp.array([1.0, -0.5]))
    resumed = run(checkpoint=path, target=target, method=sa.pmcsa(3), q0=sa.MeanField.standard(2))
    assert same_run(resumed, whole)


# -- a disk that fails ---------------------------------------------------------------------------


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def part_then_full(file: Any, *_: Any, **__: Any) -> None:
    file.write(b"PK\x03\x04 half of a file")
    full()


@contextlib.contextmanager
def file_size_limit() -> Iterator[None]:
    """No file may grow beyond 1000 bytes: the system itself refuses the rest."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


FAILURES: dict[str, Any] = {
    "os.replace": lambda: patched(os, "replace", full),
    "os.fsync": lambda: patched(os, "fsync", full),
    "np.savez": lambda: patched(np, "savez", part_then_full),
    "limit": file_size_limit,
}


@contextlib.contextmanager
def patched(*args: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*args)
        yield


@pytest.mark.parametrize("place", FAILURES)
def test_full_disk_costs_the_file_not_the_run(
    place: str, half: bytes, whole: sa.Result, tmp_path: Path, tiny_chunks: None
) -> None:
    path = tmp_path / "run"
    path.write_bytes(half)
    with (
        pytest.warns(RuntimeWarning, match=r"checkpoint .* could not be written"),
        FAILURES[place](),
    ):
        result = run(checkpoint=path)
    assert same_run(result, whole)
    assert path.read_bytes() == half
    assert list(tmp_path.iterdir()) == [path]  # no parts are left
    assert same_run(run(checkpoint=path), whole)  # and now there is space again


def test_no_warning_where_nothing_fails(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(checkpoint=tmp_path / "run")


# -- killed --------------------------------------------------------------------------------------


def victim(path: str, where: str) -> None:
    """A run that saves after every iteration and dies in the middle; runs in its own process."""
    host.CHUNK_SECONDS = 0  # type: ignore[attr-defined]
    place, name = {"between two saves": (Bar, "update"), "while writing": (os, "fsync")}[where]
    original, calls = getattr(place, name), [0]

    def deadly(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == 12:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args)

    setattr(place, name, deadly)
    run(checkpoint=path)


@pytest.mark.parametrize(
    "where", ["while writing", pytest.param("between two saves", marks=pytest.mark.slow)]
)
def test_killed_and_resumed(where: str, whole: sa.Result, tmp_path: Path) -> None:
    path = tmp_path / "run"
    code = f"from tests.test_checkpoint import victim; victim({str(path)!r}, {where!r})"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    with np.load(path, allow_pickle=False) as file:
        done = int(file[next(name for name in file.files if name.endswith("step"))])
    assert 0 < done < T
    assert same_run(run(checkpoint=path), whole)


# -- interrupted ---------------------------------------------------------------------------------


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch, tiny_chunks: None) -> Any:
    """Presses Ctrl-C so many times when the host has seen its fifth chunk.

    A background job ignores Ctrl-C; this test has to hear it even if it is one.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press(times: int) -> None:
        calls = [0]

        def update(self: Bar, *_: Any) -> None:
            calls[0] += 1
            if calls[0] == 5:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(Bar, "update", update)

    yield press
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("average", [0.0, True], ids=["average all", "average half"])
def test_interrupted_and_resumed(
    average: Any, ctrl_c: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    uncut = run(average=average)
    before = signal.getsignal(signal.SIGINT)
    ctrl_c(1)
    cut = run(average=average, checkpoint=path)
    assert signal.getsignal(signal.SIGINT) is before
    assert cut.status == "interrupted"
    done = int(cut.state.step)
    assert 0 < done < T
    assert cut.trace.loss.shape == (done,)
    for a, b in zip(cut.trace, uncut.trace):
        np.testing.assert_array_equal(a, b[:done])
    assert f"interrupted after {done} steps" in str(cut)
    assert cut.sample(0, 10)["z"].shape == (10, 2)
    monkeypatch.undo()
    assert same_run(run(average=average, checkpoint=path), uncut)
    onward = run(average=average, state=cut.state)
    assert same_bits(onward.state, uncut.state)
    assert same_bits(onward.q, uncut.q)


def test_pressed_twice_it_raises(ctrl_c: Any, whole: sa.Result, tmp_path: Path) -> None:
    path = tmp_path / "run"
    before = signal.getsignal(signal.SIGINT)
    ctrl_c(2)
    with pytest.raises(KeyboardInterrupt):
        run(checkpoint=path)
    assert signal.getsignal(signal.SIGINT) is before
    assert path.exists()  # of the chunk before
    assert same_run(run(checkpoint=path), whole)


def test_handler_is_restored_when_a_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("lost")

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Bar, "update", fail)
    with pytest.raises(RuntimeError, match="lost"):
        run()
    assert signal.getsignal(signal.SIGINT) is before


def test_fit_runs_in_any_thread(whole: sa.Result) -> None:
    """Signals go to the main thread alone, so elsewhere there is no handler to set."""
    results: list[sa.Result] = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    thread.join()
    assert same_run(results[0], whole)
