"""A run on disk: one npz file of plain arrays and a JSON header. No pickle, so no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from scoreascent import _npz

FORMAT = "scoreascent checkpoint 1"
# how far log densities may differ, relatively, because two machines round differently
ROUNDING = {"float32": 1e-5, "float64": 1e-11}


class CheckpointError(ValueError):
    """A file that is no checkpoint of this run. The file is left as it is.

    >>> import pathlib, tempfile
    >>> import jax.numpy as jnp, scoreascent as sa
    >>> target = sa.Target(lambda z: -0.5 * jnp.sum(z**2), dim=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder) / "run.ckpt"
    ...     _ = file.write_text("a shopping list")
    ...     try:
    ...         sa.fit(target, sa.pmcsa(4), steps=3, checkpoint=file, progress=False)
    ...     except sa.CheckpointError:
    ...         print(file.read_text())
    a shopping list
    """


def save(path: Path, tree: Any, run: dict[str, Any]) -> None:
    """Write atomically: a reader finds the old file or the new one, never a part of either."""
    arrays = {name: _to_numpy(leaf) for name, leaf in _named_leaves(tree)}
    _npz.write(path, arrays, {"format": FORMAT, "run": run})


def load(path: Path, template: Any, run: dict[str, Any]) -> Any:
    """The tree in a checkpoint, if it is one of the run described; `template` has its structure."""
    try:
        arrays, header = _npz.read(path)
        if header.get("format") != FORMAT:
            raise _npz.Damaged(f"its format is {header.get('format')!r}")
    except _npz.Damaged as error:
        raise CheckpointError(
            f"checkpoint {str(path)!r} is damaged or was not written by this version of "
            f"scoreascent ({error}); it was left as it is. Move it away to start afresh, or name "
            "another file."
        ) from error
    _check_same_run(path, header, run)
    leaves = []
    for name, like in _named_leaves(template):
        if name not in arrays:
            raise CheckpointError(f"checkpoint {str(path)!r} lacks {name}; it was left as it is")
        _check_shape(path, name, arrays[name], like)
        leaves.append(_from_numpy(arrays[name], like))
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _check_same_run(path: Path, header: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse to continue another run, saying what differs."""
    found = header.get("run", {})
    expected = json.loads(json.dumps(expected))  # what it looks like after a round trip
    differ = [k for k in expected if not is_same(found.get(k), expected[k], expected["float"])]
    if differ:
        says = "; ".join(f"{k}: file {found.get(k)!r}, now {expected[k]!r}" for k in differ)
        raise CheckpointError(
            f"checkpoint {str(path)!r} belongs to another run ({says}). It was left as it is. "
            "Name another file, or repeat the settings of that run."
        )


def is_same(found: Any, expected: Any, width: str) -> bool:
    """Tell whether two entries are equal; numbers may differ by another machine's rounding.

    These are lists of texts; `width` names the float they were computed in.
    """
    if found == expected:
        return True
    if not (isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected)):
        return False
    if not all(isinstance(x, str) for x in (*found, *expected)):
        return False
    tolerance = ROUNDING[width]
    a, b = np.array(found, np.float64), np.array(expected, np.float64)
    return bool(np.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))


def _check_shape(path: Path, name: str, array: np.ndarray[Any, Any], like: Any) -> None:
    """A template of no rows stands for any number of them."""
    # of the host's numbers jax would tell the dtype that a device has
    wanted = like if isinstance(like, np.ndarray | np.generic) else jax.eval_shape(_numbers, like)
    free = 1 if wanted.shape[:1] == (0,) else 0
    if array.dtype != wanted.dtype or array.shape[free:] != wanted.shape[free:]:
        raise CheckpointError(
            f"checkpoint {str(path)!r} holds {name} as {array.dtype}{array.shape} where "
            f"{wanted.dtype}{wanted.shape} was expected; it was left as it is"
        )


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(p), x) for p, x in jax.tree_util.tree_leaves_with_path(tree)]


def _is_key(x: Any) -> bool:
    return jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key)


def _numbers(x: Any) -> Any:
    return jax.random.key_data(x) if hasattr(x, "dtype") and _is_key(x) else x


def _to_numpy(x: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(_numbers(x))
    # bfloat16 and its kin are not dtypes of npz; no run of ours holds them
    if array.dtype.kind == "V":
        raise CheckpointError(f"dtype {array.dtype} cannot be written to a checkpoint")
    return array


def _from_numpy(array: np.ndarray[Any, Any], like: Any) -> Any:
    if hasattr(like, "dtype") and _is_key(like):
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=jax.random.key_impl(like))
    return array if isinstance(like, np.ndarray) else jax.numpy.asarray(array)
