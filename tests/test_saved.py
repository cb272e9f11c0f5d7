"""Results in files: the same bits back, with and without the target, and what is refused."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import constraints

import scoreascent as sa
from scoreascent.fitting import records
from tests.helpers import (
    TARGET,
    TARGETS,
    Config,
    arrays,
    fit,
    make_target,
    same_bits,
    same_run,
    x64,
)
from tests.registry import FAMILIES, METHODS, quick_rows

OLD = sorted((Path(__file__).parent / "data").glob("result-*.npz"))


def density(params: Any, data: Any) -> Any:
    """Of a skewed scale and two places, so that the model's own space is not ℝᵈ."""
    place = -0.5 * jnp.sum((params["place"] - data) ** 2)
    return place - params["scale"]


def positive(shift: float = 0.0) -> sa.Target:
    """A target with names."""
    params = {"place": sa.Param(shape=(2,)), "scale": constraints.positive}
    return sa.Target(density, params=params, data=jnp.array([1.0, -2.0]) + shift)


@pytest.fixture(scope="module")
def auto() -> sa.Result:
    """An automatic fit with names, which rests on its chains."""
    return sa.fit(positive(), progress=False)


@pytest.fixture(scope="module")
def file(auto: sa.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "fit.npz"
    auto.save(path, draws=500)
    return path


def back(result: sa.Result, folder: Path, *target: Any, **options: Any) -> sa.Result:
    """Write a result and read it."""
    result.save(folder / "fit.npz")
    return sa.load(folder / "fit.npz", *target, **options)


# -- the same bits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", quick_rows(FAMILIES, "mean-field", "full-rank-student-t", "flow"))
def test_every_family_comes_back(name: str, tmp_path: Path) -> None:
    result = fit("pmcsa", q0=FAMILIES[name](2), steps=3)
    for target in ((), (TARGET,)):
        found = back(result, tmp_path, *target)
        assert same_run(found, result)
        assert jax.tree.structure(found.q) == jax.tree.structure(result.q)
        assert jax.tree.structure(found.state) == jax.tree.structure(result.state)
        assert found.q.log_prob(jnp.ones(2)) == result.q.log_prob(jnp.ones(2))


def test_a_flow_of_another_flowjax_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers may be those of another map, if that is made otherwise."""
    result = fit("pmcsa", q0=FAMILIES["flow"](2), steps=3)
    result.save(tmp_path / "fit.npz")
    assert sa.load(tmp_path / "fit.npz").q.dim == 2
    monkeypatch.setattr(sa.Flow, "transport", lambda q, noise: q.loc + 1.01 * noise)
    with pytest.raises(sa.LoadError, match="another version of flowjax"):
        sa.load(tmp_path / "fit.npz")


@pytest.mark.parametrize("name", quick_rows(METHODS, "pmcsa", "elbo", "pmcsa-adapted"))
def test_every_method_comes_back_and_goes_on(name: str, tmp_path: Path) -> None:
    """A run that goes on from the file ends as one that never stopped."""
    found = back(fit(name, steps=10), tmp_path, TARGET)
    assert found.method == METHODS[name]
    onwards, whole = fit(name, state=found.state, steps=15), fit(name, steps=15)
    assert same_bits(onwards.state, whole.state)


def test_all_of_an_automatic_fit_comes_back(auto: sa.Result, file: Path) -> None:
    found = sa.load(file, positive())
    for field in dataclasses.fields(sa.Result):
        if field.name in ("target", "kept", "start", "diagnosis"):
            continue
        ours, theirs = getattr(found, field.name), getattr(auto, field.name)
        assert same_bits(ours, theirs) if field.name in ARRAYS else ours == theirs, field.name
    for name in ("start", "diagnosis"):
        assert same_record(getattr(found, name), getattr(auto, name))
    assert str(found) == str(auto)
    assert str(found.diagnosis) == str(auto.diagnosis)
    assert same_bits(found.sample(3, 100), auto.sample(3, 100))
    assert same_bits(found.sample(3, 100, draws="q"), auto.sample(3, 100, draws="q"))
    assert found.log_evidence() == auto.log_evidence()
    assert found.kept is None


ARRAYS = ("q", "state", "trace", "states", "controls")


def same_record(a: Any, b: Any) -> bool:
    """Tell whether all fields of two dataclasses are alike, NaN like NaN."""
    assert type(a) is type(b)
    ours, theirs = (
        {f.name: getattr(x, f.name) for f in dataclasses.fields(x)} for x in (a, b)
    )  # fmt: skip
    return repr(jax.tree.map(_plain, ours)) == repr(jax.tree.map(_plain, theirs))


def _plain(x: Any) -> Any:
    return x.tobytes() if hasattr(x, "tobytes") else x


@pytest.mark.parametrize("many", [3, TARGETS], ids=["seeds", "data"])
def test_replications_come_back(many: Any, tmp_path: Path) -> None:
    options = {"replications": many} if many == 3 else {"target": list(many)}
    result = fit("pmcsa", steps=5, **options)
    found = back(result, tmp_path, TARGET if many == 3 else list(TARGETS))
    assert same_run(found, result)
    assert len(found) == 3
    assert same_bits(found[1].sample(0, 10), result[1].sample(0, 10))
    bare = sa.load(tmp_path / "fit.npz")
    assert str(bare) == str(result)
    assert same_bits(bare[2].sample(0, 10), result[2].sample(0, 10))
    if many != 3:
        with pytest.raises(sa.LoadError, match=r"holds fits of 3 targets; give the list"):
            sa.load(tmp_path / "fit.npz", TARGET)
        with pytest.raises(sa.LoadError, match=r"data: file"):
            sa.load(tmp_path / "fit.npz", [TARGET] * 3)
    else:
        with pytest.raises(sa.LoadError, match=r"holds a fit of one target, got a list"):
            sa.load(tmp_path / "fit.npz", [TARGET])


def test_named_replications_without_their_target(tmp_path: Path) -> None:
    result = sa.fit([positive(), positive(1.0)], sa.pmcsa(4), steps=5, progress=False)
    bare = back(result, tmp_path)
    assert repr(bare.summary()) == repr(result.summary())
    assert bare[1].summary()[2]["mean"] == pytest.approx(result[1].summary()[2]["mean"], rel=0.2)
    assert bare.sample(0, 7)["place"].shape == (2, 7, 2)
    assert bare[1].sample(0, 7)["scale"].shape == (7,)


def test_float64_comes_back(tmp_path: Path) -> None:
    with x64():
        target = make_target(dtype=jnp.float64)
        result = fit("pmcsa", target, steps=3)
        found = back(result, tmp_path, target)
        assert same_run(found, result)
        assert found.q.loc.dtype == jnp.float64
    bare = sa.load(tmp_path / "fit.npz")  # no digit is lost
    assert same_bits(bare.q, result.q)
    with pytest.raises(sa.LoadError, match=r'float: file float64, now float32; .*"jax_enable_x64"'):
        sa.load(tmp_path / "fit.npz", TARGET)


def grouped(y: Any) -> None:
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfNormal(5))
    with numpyro.plate("group", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, 3.0), obs=y)


def test_a_model_is_centred_as_it_was(tmp_path: Path) -> None:
    """What `fit` chose is no part of the target that one gives again."""
    y = jnp.array([28.0, 8, -3, 7])
    fitted = sa.from_numpyro(grouped, y, centring={"theta": 0.25})
    result = sa.fit(fitted, sa.pmcsa(8), steps=50, progress=False)
    found = back(result, tmp_path, sa.from_numpyro(grouped, y))
    np.testing.assert_array_equal(found.target.data[-1], np.full(4, 0.25))
    assert same_bits(found.sample(0, 20), result.sample(0, 20))
    assert found.diagnose().k_hat == result.diagnose().k_hat
    with pytest.raises(sa.LoadError, match=r"another posterior .*data: file .* now"):
        sa.load(tmp_path / "fit.npz", sa.from_numpyro(grouped, y + 1))
    with pytest.raises(sa.LoadError, match=r"log_density .*; its sites may be centred otherwise"):
        sa.load(tmp_path / "fit.npz", sa.from_numpyro(grouped, y, centring="as written"))


# -- without the target ----------------------------------------------------------------------------


def test_without_its_target_it_shows_what_it_showed(auto: sa.Result, file: Path) -> None:
    bare = sa.load(file)
    assert str(bare) == str(auto)
    assert bare.diagnose() is bare.diagnosis
    assert same_bits(bare.q, auto.q)
    assert bare.draws_from == auto.draws_from == "chains"
    assert repr(bare.summary()) == repr(auto.summary())
    draws = bare.sample(1, 200)
    assert list(draws) == ["place", "scale"]
    assert draws["place"].shape == (200, 2)
    assert float(jnp.min(draws["scale"])) > 0
    every = auto.sample(jax.random.key(0), 500)
    assert set(np.asarray(draws["scale"]).tolist()) <= set(np.asarray(every["scale"]).tolist())
    assert len(np.unique(np.asarray(draws["scale"]))) == 200  # none of them twice
    assert bare.target.dim == 3
    assert bare.target.site_names == ("place", "scale")


def test_a_fit_by_hand_without_its_target(tmp_path: Path) -> None:
    """There is no diagnosis, so the rows must come of the draws, or of the file."""
    named = sa.fit(positive(), sa.pmcsa(8), steps=20, progress=False)
    assert repr(back(named, tmp_path).summary()) == repr(named.summary())
    few = named.save(tmp_path / "few.npz", draws=50) or sa.load(tmp_path / "few.npz")
    assert few.summary()[0]["mean"] == pytest.approx(named.summary()[0]["mean"], abs=1.0)
    stop = sa.Converged(tolerance=0.2, every=20)
    ended = sa.fit(positive(), sa.pmcsa(64), steps=1000, stop=stop, progress=False)
    assert ended.draws_from == "chains"
    assert repr(back(ended, tmp_path).summary()) == repr(ended.summary())
    plain = fit("pmcsa", steps=5)
    bare = back(plain, tmp_path)
    assert bare.kept is None
    assert same_bits(bare.sample(5, 9000), plain.sample(5, 9000))
    assert repr(bare.summary()) == repr(plain.summary())


NEEDS_DENSITY = {
    "log_evidence": lambda r: r.log_evidence(),
    "resample": lambda r: r.resample(0, 10),
    "diagnose": lambda r: r.diagnose(key=1),
    "to_arviz": lambda r: r.to_arviz(),
    "draws of q": lambda r: r.sample(0, 10, draws="q"),
    "names": lambda r: r.target.named(jnp.zeros(3)),
    "unconstrain": lambda r: r.target.unconstrain({}),
    "log density": lambda r: r.target.log_prob(jnp.zeros(3)),
}


@pytest.mark.parametrize("what", NEEDS_DENSITY)
def test_what_needs_the_density_asks_for_the_target(what: str, file: Path) -> None:
    if what == "to_arviz":
        pytest.importorskip("arviz")
    with pytest.raises(ValueError, match=r"without its target; .* sa\.load\(.*, target\)"):
        NEEDS_DENSITY[what](sa.load(file))


def test_a_parameter_that_is_called_z(tmp_path: Path) -> None:
    """It has a support all the same: draws of it are no points of ℝᵈ."""
    target = sa.Target(lambda p: -p["z"], params={"z": constraints.positive})
    result = sa.fit(target, sa.pmcsa(4), steps=5, progress=False)
    bare = back(result, tmp_path)
    assert float(jnp.min(bare.sample(0, 1000)["z"])) > 0
    assert repr(bare.summary()) == repr(result.summary())
    with pytest.raises(sa.LoadError, match=r"named: file True, now False"):
        sa.load(tmp_path / "fit.npz", sa.Target(lambda z: -z[0], dim=1))


def test_more_draws_than_the_file_has(file: Path) -> None:
    with pytest.raises(ValueError, match=r"n must be at most 500, the draws that the file holds"):
        sa.load(file).sample(0, 501)


def test_no_draws(auto: sa.Result, tmp_path: Path) -> None:
    auto.save(tmp_path / "fit.npz", draws=0)
    bare = sa.load(tmp_path / "fit.npz")
    assert str(bare) == str(auto)
    with pytest.raises(ValueError, match=r"without its target"):
        bare.sample(0)


def test_it_can_be_written_again_without_its_target(file: Path, tmp_path: Path) -> None:
    bare = sa.load(file)
    again = back(bare, tmp_path)
    assert str(again) == str(bare)
    assert same_bits(again.sample(0, 500), bare.sample(0, 500))
    assert sa.load(tmp_path / "fit.npz", positive()).log_evidence().error < 0.1


# -- what is made of functions ---------------------------------------------------------------------


def test_an_optimiser_is_asked_for_where_it_is_needed(tmp_path: Path) -> None:
    adam = optax.adam(0.05)
    result = sa.fit(TARGET, sa.pmcsa(4), optimizer=adam, steps=30, progress=False)
    found = back(result, tmp_path, TARGET)
    assert repr(found.update) == repr(result.update)
    with pytest.raises(ValueError, match=r"cannot hold gradient.optax.*optimizer=…"):
        found.diagnose(steps=20)
    whole = sa.load(tmp_path / "fit.npz", TARGET, optimizer=adam)
    assert str(whole.diagnose(steps=20)) == str(result.diagnose(steps=20))
    with pytest.raises(sa.LoadError, match=r"optimizer: .* got gradient"):
        sa.load(tmp_path / "fit.npz", TARGET, optimizer=optax.adam(0.01))


@dataclasses.dataclass(frozen=True, repr=False)
class ByFunction(Config, sa.Kernel):
    """A kernel that holds a function, as one of BlackJAX does."""

    scale: Any

    def step(self, key: Any, target: Any, q: Any, point: Any) -> Any:
        moved = point.z + self.scale(jax.random.normal(key, point.z.shape))
        new, invalid = sa.evaluate(target, moved)
        accepted = jnp.log(jax.random.uniform(key)) < new.log_p - point.log_p
        return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, point), sa.Info(
            jnp.ones(()), invalid
        )

    def __repr__(self) -> str:
        return "ByFunction()"


def test_a_method_is_asked_for_where_it_is_needed(tmp_path: Path) -> None:
    method = sa.pmcsa(4, kernel=ByFunction(jnp.tanh))
    result = sa.fit(TARGET, method, steps=5, progress=False)
    found = back(result, tmp_path, TARGET)
    assert repr(found.method) == repr(method)
    assert found.method.chains == 4
    with pytest.raises(ValueError, match=r"cannot hold ScoreAscent.*method=…"):
        found.diagnose()
    assert sa.load(tmp_path / "fit.npz", TARGET, method=method).method is method
    with pytest.raises(sa.LoadError, match=r"method: .* got ScoreAscent"):
        sa.load(tmp_path / "fit.npz", TARGET, method=sa.pmcsa(4))


@sa.pytree
@dataclasses.dataclass(frozen=True)
class Own(sa.MeanField):
    """A family of one's own."""


class Memory(NamedTuple):
    """What an optimiser of one's own might remember."""

    x: Any
    y: Any = 3.0


def test_classes_are_looked_for_among_those_that_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q0 = Own(jnp.zeros(2), jnp.ones(2))
    found = back(fit("pmcsa", q0=q0, steps=2), tmp_path)
    assert type(found.q) is Own
    monkeypatch.setattr(
        records, "_fields", lambda cls, old=records._fields: None if cls is Own else old(cls)
    )
    with pytest.raises(sa.LoadError, match=r"holds a tests\.test_saved\.Own, and import what"):
        sa.load(tmp_path / "fit.npz")


def test_values_of_all_kinds() -> None:
    packer = records.Packer()
    one = np.arange(3.0)
    value = {
        "a": [1, 2.5, None, True, "text", float("inf")],
        "b": (one, one, np.float32(0.1), np.bool_(True), np.int64(2**60)),
        3: Memory(jax.random.key(1), {"x": jnp.ones((2, 0))}),
        "c": sa.pmcsa(3, sa.Cycle(sa.IMH(), sa.HMC(length=(0.5, 2.0)))),
    }
    entry = json.loads(json.dumps(packer.pack(value, "value")))
    found = records.Unpacker(packer.arrays).unpack(entry)
    assert list(found) == list(value)
    assert found["a"] == value["a"]
    assert found["b"][0] is found["b"][1]
    assert [type(x) for x in found["b"]] == [type(x) for x in value["b"]]
    assert same_bits(found[3], value[3])
    assert type(found[3]) is Memory
    assert found["c"] == value["c"]
    assert len(packer.arrays) == 3  # what is there twice is kept once
    for refused in (len, object(), np.array([None]), jnp.ones(2, jnp.bfloat16)):
        with pytest.raises(records.Unkept, match=r"^x"):
            records.Packer().pack(refused, "x")


def test_records_that_have_changed_since() -> None:
    """A field that is new takes its default, one that is gone is left out, a class may move."""
    unpack = records.Unpacker({}).unpack
    here = f"{Memory.__module__}:Memory"
    made = lambda name, **of: unpack({"is": "named tuple", "class": name, "of": of})  # noqa: E731
    assert made(here, x=1, gone=2) == Memory(1)
    with pytest.raises(records.Unknown, match=r"Memory without x"):
        made(here, y=2)
    elsewhere = made("optax._src.gone:Memory", x=1, y=2)
    assert (type(elsewhere).__name__, elsewhere.x, elsewhere.y) == ("Memory", 1, 2)
    assert type(made("scoreascent.moved:Count", densities=1, gradients=2)) is sa.kernels.Count
    with pytest.raises(records.Unknown, match=r"scoreascent\.moved\.Gone, and this version has"):
        made("scoreascent.moved:Gone")


def test_class_names_of_the_library_are_of_one_class_each() -> None:
    """So that a class that is moved to another module is found by its name."""
    known = records.Unpacker({})._known
    names = [k.split(":")[1] for k in known if k.startswith("scoreascent.") and ".exp" not in k]
    assert len(set(names)) == len(names)


# -- what is refused -------------------------------------------------------------------------------


def half(params: Any, data: Any) -> Any:
    return density(params, data) / 2


OTHER: dict[str, tuple[Any, str]] = {
    "data": (lambda: positive(0.1), "data: file '.*', now '.*'; log_density"),
    "density": (
        lambda: sa.Target(
            half,
            params={"place": sa.Param(shape=(2,)), "scale": constraints.positive},
            data=jnp.array([1.0, -2.0]),
        ),
        r"log_density at a fixed point: file -.*, now -",
    ),
    "names": (
        lambda: sa.Target(
            lambda p: -p["s"], params={"place": sa.Param(shape=(2,)), "s": constraints.positive}
        ),
        r"names: file \['place', 'scale'\], now \['place', 's'\]",
    ),
    "dim": (
        lambda: make_target(),
        "named: file True, now False; names: file .*; dim: file 3, now 2",
    ),
}


@pytest.mark.parametrize("what", OTHER)
def test_another_posterior_is_refused_with_what_differs(what: str, file: Path) -> None:
    make, says = OTHER[what]
    before = file.read_bytes()
    with pytest.raises(sa.LoadError, match=rf"another posterior .*{says}") as caught:
        sa.load(file, make())
    assert str(file) in str(caught.value)
    assert file.read_bytes() == before


def test_no_target_at_all(file: Path) -> None:
    with pytest.raises(ValueError, match=r"target must be a Target or a list of them, got 3"):
        sa.load(file, 3)  # type: ignore[arg-type]


def rewritten(file: Path, change: Any) -> bytes:
    with np.load(file) as old:
        entries = {name: old[name] for name in old.files}
    header = json.loads(entries["header"].tobytes())
    change(header, entries)
    entries["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    out = io.BytesIO()
    np.savez(out, **entries)
    return out.getvalue()


def npz(**entries: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **entries)
    return out.getvalue()


def _rename(header: Any, entries: Any) -> None:
    entries["other"] = entries.pop("q.loc")


DAMAGED: dict[str, tuple[Any, str]] = {
    "empty": (lambda file: b"", "damaged or no file that result.save wrote"),
    "text": (lambda file: b"dear diary", "damaged or no file"),
    "someone's npz": (lambda file: npz(x=np.ones(3)), "damaged or no file"),
    "a pickle": (lambda file: npz(header=np.array([{}], dtype=object)), "damaged or no file"),
    "cut": (lambda file: file.read_bytes()[:-700], "damaged or no file"),
    "half": (lambda file: file.read_bytes()[: len(file.read_bytes()) // 2], "damaged or no file"),
    "an array less": (lambda file: rewritten(file, _rename), "damaged .*KeyError: 'q.loc'"),
    "no q": (
        lambda file: rewritten(file, lambda h, e: h["result"].update(q=3)),
        "damaged .*its q is a int",
    ),
    "an entry of no kind": (
        lambda file: rewritten(file, lambda h, e: h["result"].update(q={"is": "?", "of": {}})),
        "damaged or no file",
    ),
    "a later version": (
        lambda file: rewritten(file, lambda h, e: h.update(version=2, scoreascent="9.9")),
        "was written by scoreascent 9.9, whose format 2 is later than the 1",
    ),
    "another format": (
        lambda file: rewritten(file, lambda h, e: h.update(format="else")),
        "damaged or no file .*its format is 'else'",
    ),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damaged_and_foreign_files(what: str, file: Path, tmp_path: Path) -> None:
    content, says = DAMAGED[what]
    path = tmp_path / "fit.npz"
    path.write_bytes(content(file))
    before = path.read_bytes()
    with pytest.raises(sa.LoadError, match=says) as caught:
        sa.load(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_one_bit_flipped(auto: sa.Result, file: Path, tmp_path: Path) -> None:
    """Wherever it is, it is found, or of no consequence."""
    whole, path, found = file.read_bytes(), tmp_path / "fit.npz", 0
    rng = np.random.default_rng(0)
    for at in [*rng.integers(len(whole), size=60), *range(len(whole) - 60, len(whole), 2)]:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            result = sa.load(path)
        except sa.LoadError:
            found += 1
            continue
        assert same_run(result, auto)
        assert str(result) == str(auto)
    assert found > 60


def test_a_missing_file_a_folder_and_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(sa.LoadError, match=r"path: '.*none.npz' does not exist"):
        sa.load(tmp_path / "none.npz")
    with pytest.raises(sa.LoadError, match=r"path: .* is a folder"):
        sa.load(tmp_path)
    fit("pmcsa", steps=3, checkpoint=tmp_path / "run")
    with pytest.raises(sa.LoadError, match=r"is a checkpoint, from which fit"):
        sa.load(tmp_path / "run")
    result = fit("pmcsa", steps=3)
    with pytest.raises(ValueError, match=r"path: the folder '.*none' does not exist"):
        result.save(tmp_path / "none" / "fit.npz")
    with pytest.raises(ValueError, match=r"path: .* is a folder; name a file in it"):
        result.save(tmp_path)
    with pytest.raises(ValueError, match=r"draws must be an integer ≥ 0, got -1"):
        result.save(tmp_path / "fit.npz", draws=-1)


# -- a disk that fails -----------------------------------------------------------------------------


def test_a_full_disk_leaves_the_old_file(
    auto: sa.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fit.npz"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for content in (None, b"old"):
        if content is not None:
            path.write_bytes(content)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
        try:
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
                auto.save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert list(tmp_path.iterdir()) == ([path] if content else [])
    assert path.read_bytes() == b"old"


def test_killed_while_it_writes(tmp_path: Path) -> None:
    """The old file stays; a part that is left is no file of that name."""
    path = tmp_path / "fit.npz"
    path.write_bytes(b"old")
    code = f"""
import os, signal, pathlib
import numpy as np
from scoreascent import _npz
def half(file, **rest):
    file.write(b"PK")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
np.savez = half
_npz.write(pathlib.Path({str(path)!r}), {{}}, {{}})
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert ran.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"


# -- files of earlier versions ---------------------------------------------------------------------


def old_target() -> sa.Target:
    """What was fitted for the files in tests/data; see the end of this file."""
    return positive()


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_files_of_earlier_versions_are_read(path: Path) -> None:
    for result in (sa.load(path), sa.load(path, old_target())):
        assert "verdict: good" in str(result)
        assert result.diagnosis.verdict == "good"
        assert [row["name"] for row in result.summary()] == ["place[0]", "place[1]", "scale"]
        mean = {row["name"]: row["mean"] for row in result.summary()}
        assert mean["place[1]"] == pytest.approx(-2.0, abs=0.1)
        assert mean["scale"] == pytest.approx(1.0, abs=0.1)
        assert result.sample(0, 50)["scale"].shape == (50,)
        assert len(arrays(result.trace)) == 5
        assert result.decisions


def test_there_is_a_file_of_every_release() -> None:
    assert f"result-{sa.__version__}" in [path.stem for path in OLD]
    assert all(path.stat().st_size < 100_000 for path in OLD)


if __name__ == "__main__":  # python -m tests.test_saved: the file of this version
    fitted = sa.fit(old_target(), chains=32, steps=300, progress=False)
    small = dataclasses.replace(fitted, states=fitted.states[-40:])
    small.save(Path(__file__).parent / "data" / f"result-{sa.__version__}.npz", draws=50)
    print(small)
