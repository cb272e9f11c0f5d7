"""A result from its file: with its target all of it, without what needs no density."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import optax

from scoreascent import _npz
from scoreascent.families import Family
from scoreascent.fitting import centring
from scoreascent.fitting.absent import AbsentMethod, AbsentUpdate, absent
from scoreascent.fitting.checkpoint import FORMAT as CHECKPOINT
from scoreascent.fitting.checkpoint import is_same
from scoreascent.fitting.provenance import posterior
from scoreascent.fitting.records import Unknown, Unpacker
from scoreascent.fitting.result import Result
from scoreascent.fitting.saving import FIELDS, FORMAT, VERSION, identity, image, replicate
from scoreascent.methods import Method
from scoreascent.target import Target, stack
from scoreascent.update import DEFAULT, Update, as_update


class LoadError(ValueError):
    """A file that holds no result, or one of another posterior. The file is left as it is.

    >>> import pathlib, tempfile
    >>> import scoreascent as sa
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "fit.npz"
    ...     _ = file.write_text("a shopping list")
    ...     try:
    ...         sa.load(file)
    ...     except sa.LoadError as error:
    ...         print("fit.npz" in str(error))
    True
    """


def load(
    path: str | PathLike[str],
    target: Target | Sequence[Target] | None = None,
    *,
    method: Method | None = None,
    optimizer: optax.GradientTransformation | Update | None = None,
) -> Result:
    """Read a result that `Result.save` wrote, bit by bit as it was.

    Args:
        path: the file.
        target: what was fitted, or the list of them. It is refused if its names, its data, or its
            log density at a few fixed points are others. Without it there is all that needs no
            density: q, draws, `summary`, `diagnosis`, `print`; the rest says that the target is
            missing.
        method: the method of the fit, if that was made of functions (a kernel of BlackJAX); others
            are in the file.
        optimizer: likewise the optimiser, if it was one of optax other than the default.

    >>> import tempfile, jax.numpy as jnp, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum((z - 1) ** 2), dim=2)
    >>> result = sa.fit(target, sa.pmcsa(10), steps=500, average=True, progress=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result.save(f"{folder}/fit.npz")
    ...     bare, whole = sa.load(f"{folder}/fit.npz"), sa.load(f"{folder}/fit.npz", target)
    >>> str(bare) == str(whole) == str(result), bare.sample(0, 100)["z"].shape
    (True, (100, 2))
    >>> bare.log_evidence()
    Traceback (most recent call last):
    ValueError: this result was read from ...fit.npz' without its target; ...
    """
    file = Path(path)
    arrays, header = _read(file)
    try:
        unpacker = Unpacker(arrays)
        fields = {name: unpacker.unpack(header["result"].get(name)) for name in FIELDS}
        kept, c = (unpacker.unpack(header[name]) for name in ("kept", "centring"))
        settings = {name: header[name] for name in ("method", "update", "posterior")}
        if not isinstance(fields["q"], Family):
            raise TypeError(f"its q is a {type(fields['q']).__name__}")
        result = Result(
            **fields,
            target=absent(settings["posterior"], file),
            method=_method(settings["method"], unpacker, method, file),
            update=_update(settings["update"], unpacker, optimizer, fields["q"], file),
            kept=kept if target is None else None,
        )
    except Unknown as error:
        raise LoadError(f"{str(file)!r} cannot be read here: {error.args[0]}") from None
    except LoadError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise LoadError(_damaged(file, f"{type(error).__name__}: {error}")) from error
    then, now = header.get("image", []), image(result)
    if then and not is_same(then, now, str(result.state.q.loc.dtype)):  # type: ignore[attr-defined]
        raise LoadError(
            f"{str(file)!r} holds a flow of another version of flowjax, which this one maps "
            "otherwise; install the version with which it was written"
        )
    if target is None:
        return result
    return replace(result, target=_checked(target, result, c, file))


def _read(file: Path) -> tuple[_npz.Arrays, dict[str, Any]]:
    """Return what a file holds, if it is one of ours that this version can read."""
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise LoadError(f"path: {str(file)!r} {what}; name a file that result.save wrote")
    try:
        arrays, header = _npz.read(file)
    except _npz.Damaged as error:
        raise LoadError(_damaged(file, str(error))) from error
    if header.get("format") == CHECKPOINT:
        raise LoadError(
            f"path: {str(file)!r} is a checkpoint, from which fit(checkpoint=…) goes on; load "
            "reads what result.save wrote"
        )
    if header.get("format") != FORMAT:
        raise LoadError(_damaged(file, f"its format is {header.get('format')!r}"))
    if not isinstance(header.get("version"), int) or header["version"] > VERSION:
        raise LoadError(
            f"{str(file)!r} was written by scoreascent {header.get('scoreascent')}, whose format "
            f"{header.get('version')} is later than the {VERSION} that this version reads; install "
            "that version or a later one"
        )
    return arrays, header


def _damaged(file: Path, why: str) -> str:
    return (
        f"{str(file)!r} is damaged or no file that result.save wrote ({why}); it was left as it is"
    )


# -- the target ------------------------------------------------------------------------------------


def _checked(target: Any, result: Result, c: Any, file: Path) -> Target:
    """Return the target, centred as it was, if it is the one that was fitted."""
    many = isinstance(target, Sequence)
    if many and not result.data_replicated:
        raise LoadError(f"target: {str(file)!r} holds a fit of one target, got a list")
    if not many and result.data_replicated:
        raise LoadError(
            f"target: {str(file)!r} holds fits of {result.replications} targets; give the list"
        )
    found: Any = stack(target) if many else target
    if not isinstance(found, Target):
        raise ValueError(f"target must be a Target or a list of them, got {target!r}")
    then = identity(result)
    differ = _differences(then, _shape_of(found))
    is_open = not differ and c is not None and centring.is_open(found)
    if is_open and np.shape(found.data[-1]) == np.shape(c):
        found = centring.stated(found, c)
    if not differ:
        now = posterior(found, result.q, replicate(result))
        differ = _differences(then, now)
    if differ:
        otherwise = "" if is_open or c is None else "; its sites may be centred otherwise"
        raise LoadError(
            f"{str(file)!r} holds a fit of another posterior ({differ}{otherwise}). Give the "
            "target that was fitted, or none: load(path) reads what needs no density"
        )
    return found


def _shape_of(target: Target) -> dict[str, Any]:
    return {"named": target.is_named, "names": list(target.site_names), "dim": target.dim}


def _differences(then: dict[str, Any], now: dict[str, Any]) -> str:
    """Return what differs, in words; how a target prints is shown, but does not count."""
    width = then["float"]
    if now.get("float", width) != width:
        wide = width == "float64"
        remedy = f'call jax.config.update("jax_enable_x64", {wide}) first'
        return f"float: file {width}, now {now['float']}; {remedy}"
    differ = [k for k in now if k != "target" and then.get(k) != now[k]]
    if is_same(then["log_density"], now.get("log_density", then["log_density"]), width):
        differ = [k for k in differ if k != "log_density"]
    says = [f"{k}: file {then.get(k)!r}, now {now[k]!r}" for k in differ if k != "log_density"]
    if "log_density" in differ:
        pairs = zip(then["log_density"], now["log_density"])
        a, b = next(pair for pair in pairs if not is_same([pair[0]], [pair[1]], width))
        says.append(f"log_density at a fixed point: file {float(a):.9g}, now {float(b):.9g}")
    return "; ".join(says)


# -- what may be made of functions -----------------------------------------------------------------


def _method(entry: Any, unpacker: Unpacker, given: Method | None, file: Path) -> Method:
    """Return the method of the file, or the one that was given if it is the same."""
    if given is not None:
        if repr(given) != entry["text"]:
            raise LoadError(f"method: {str(file)!r} has {entry['text']}, got {given!r}")
        return given
    try:
        found = None if entry["of"] is None else unpacker.unpack(entry["of"])
    except Unknown:  # a kernel of a module that is not imported
        found = None
    if isinstance(found, Method):
        return found
    return AbsentMethod(entry["text"], entry["chains"], entry["independent"])


def _update(entry: Any, unpacker: Unpacker, given: Any, q: Family, file: Path) -> Update:
    """Return the update of the file, or the one that was given if it does the same."""
    if given is not None:
        update = as_update(given)
        does = update.fingerprint(q) if entry["does"] else ""
        if (repr(update), does) != (entry["text"], entry["does"]):
            then = f"{entry['text']} {entry['does']}"
            raise LoadError(f"optimizer: {str(file)!r} has {then}, got {update!r} {does}")
        return update
    if entry["of"] == "default":
        return DEFAULT
    try:
        found = None if entry["of"] is None else unpacker.unpack(entry["of"])
    except Unknown:
        found = None
    return found if isinstance(found, Update) else AbsentUpdate(entry["text"], entry["does"])
