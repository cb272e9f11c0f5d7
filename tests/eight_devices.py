"""What `tests/test_mesh.py` asks of eight devices, in a process of its own: prints JSON.

A process has as many devices as it was started with, so the tests themselves have one.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import scoreascent as sa
from tests.helpers import Layout, first_state, put, run_chunk
from tests.registry import FAMILIES, MATCHED, METHODS, MOVES, TARGETS

DIM, ROWS, STEPS = 5, 64, 8
QUICK = ("method pmcsa", "family full-rank")


def log_density(z: Any, data: Any) -> Any:
    """A logistic regression under a standard normal prior."""
    logits = data["x"] @ z
    return jnp.sum(data["y"] * logits - jax.nn.softplus(logits)) - 0.5 * jnp.sum(z**2)


def regression(rows: int = ROWS) -> sa.Target:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, DIM)).astype(np.float32)
    y = (x.sum(1) + 2 * rng.normal(size=rows) > 0).astype(np.float32)
    return sa.Target(log_density, dim=DIM, data={"x": x, "y": y}, rows=True)


def mesh(chains: int, rows: int = 1) -> Mesh:
    devices = np.array(jax.devices()[: chains * rows])
    if rows == 1:
        return Mesh(devices, ("chains",))
    return Mesh(devices.reshape(chains, rows), ("chains", "rows"))


def cases() -> dict[str, Any]:
    """Every method, kernel and family of the registry: method, first q, update, target."""
    gaussian, data = TARGETS["gaussian-5d"].target, regression()
    q, step = sa.FullRank.standard(DIM), sa.moment_matching()
    found: dict[str, Any] = {}
    for name, method in METHODS.items():
        found[f"method {name}"] = (method, q, None, data)
    for name, moves in MOVES.items():
        found[f"moves {name}"] = (sa.ScoreAscent(moves), q, step, gaussian)
    for name, family in FAMILIES.items():
        update = step if name in MATCHED else None
        found[f"family {name}"] = (sa.pmcsa(8), family(DIM), update, data)
    return found


def off(a: Any, b: Any) -> float:
    """The largest difference of two trees' floats, as a share of the numbers beside it."""
    worst = 0.0
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        worst = max(worst, float(np.max(np.abs(x - y), initial=0) / (1 + np.max(np.abs(x)))))
    return worst


def same(name: str, where: Mesh) -> dict[str, Any]:
    """How far points and q are off after one step and after a few, beside one device."""
    method, q, update, target = cases()[name]
    found: dict[str, Any] = {}
    if "rows" in where.shape and target.data is None:
        return found
    for steps in (1, STEPS):
        options: Any = {"q0": q, "optimizer": update, "steps": steps, "progress": False, "key": 1}
        one, many = (sa.fit(target, method, **options, mesh=m) for m in (None, where))
        found[str(steps)] = {
            "points": off(one.state.eta, many.state.eta), "q": off(one.q, many.q),
            "trace": off(one.trace, many.trace),
        }  # fmt: skip
    return found


COLLECTIVE = re.compile(
    r"= (?P<shape>.*?) (?P<op>all-reduce|all-gather|collective-permute|all-to-all|reduce-scatter)"
    r"(?:-start)?\(.*op_name=\"(?P<at>[^\"]*)\""
)
NUMBERS = re.compile(r"(?:[a-z]+\d+)\[([\d,]*)\]")


def compiled(method: Any, update: Any, where: Mesh, rows: int = ROWS) -> Any:
    """The program of a chunk on a mesh."""
    layout, target = Layout(where), regression(rows)
    q, key = sa.FullRank.standard(DIM), jax.random.key(0)
    there = put(target, layout)
    begin = (there, method, update, "nothing", False, q, key, np.int32(0), None)
    state = first_state(*begin, layout=layout)
    return run_chunk.lower(
        there, method, update, "nothing", state, np.int32(1), layout=layout
    ).compile()


def exchanged(program: Any) -> list[dict[str, Any]]:
    """What devices exchange in the loop of a program: each operation, and how many numbers."""
    found = []
    for line in program.as_text().splitlines():
        seen = COLLECTIVE.search(line)
        if seen and "while/body" in seen["at"]:
            sizes = [
                int(np.prod([int(n) for n in x.split(",") if n] or [1]))
                for x in NUMBERS.findall(seen["shape"])
            ]
            inner = seen["at"].count("while/body") > 1
            found.append({"op": seen["op"], "numbers": sorted(sizes), "inner": inner})
    return found


def memory(program: Any) -> int:
    """The bytes that a device needs for arguments and in between."""
    told = program.memory_analysis()
    return int(told.argument_size_in_bytes + told.temp_size_in_bytes)


def refused() -> dict[str, str]:
    """What is said of meshes that a fit cannot be spread over."""
    data, plain = regression(), TARGETS["gaussian-5d"].target
    both = mesh(4, 2)
    bad: dict[str, Any] = {
        "axes": lambda: sa.fit(data, mesh=Mesh(np.array(jax.devices()), ("model",))),
        "no rows": lambda: sa.fit(plain, mesh=both),
        "rows": lambda: sa.fit(regression(63), mesh=both),
        "chains": lambda: sa.fit(data, chains=30, mesh=both),
        "method": lambda: sa.fit(data, sa.pmcsa(30), mesh=both),
        "several": lambda: sa.fit(data, sa.pmcsa(8), replications=2, mesh=both),
        "both": lambda: sa.fit(data, mesh=both, devices="all"),
        "no mesh": lambda: sa.fit(data, mesh=(4, 2)),
        "some": lambda: sa.fit(data, devices="some"),
    }
    said = {}
    for name, call in bad.items():
        try:
            call()
        except ValueError as error:
            said[name] = str(error)
    return said


def judged() -> dict[str, Any]:
    """An automatic fit on one device, with chains spread, and with both."""
    found = {}
    for name, where in {"one": None, "chains": mesh(8), "both": mesh(4, 2)}.items():
        result = sa.fit(regression(256), mesh=where, key=2, progress=False)
        assert result.diagnosis is not None
        found[name] = {
            "mean": result.q.mean.tolist(), "sd": result.q.sd.tolist(),
            "verdict": result.diagnosis.verdict, "decisions": list(result.decisions),
        }  # fmt: skip
    host = sa.Target.from_host(lambda z: -0.5 * np.sum(z**2), lambda z: -z, dim=2)
    result = sa.fit(host, sa.pmcsa(8, sa.HMC()), steps=50, mesh=mesh(8), progress=False)
    one = sa.fit(host, sa.pmcsa(8, sa.HMC()), steps=50, progress=False)
    found["host"] = {"off": off(one.q, result.q)}
    return found


def everything(quick: bool) -> dict[str, Any]:
    """What the quick tests ask, or all of it."""
    moments, still = sa.moment_matching(), sa.update.Still()
    eight = mesh(8), mesh(4, 2)
    told: dict[str, Any] = {"same": {}, "exchanged": {}, "refused": refused()}
    for name in QUICK if quick else cases():
        n = 8 if cases()[name][0].chains == 8 else 4  # as many as the chains, or draws
        told["same"][name] = {"both": same(name, eight[1])}
        if not quick:
            told["same"][name]["chains"] = same(name, mesh(n))
    rules = {"moments": moments} if quick else {"moments": moments, "still": still}
    for kernel, at in {"imh": sa.IMH(), "hmc": sa.HMC()}.items():
        for update, rule in rules.items():
            for axes, where in zip(("chains", "both"), eight):
                program = compiled(sa.pmcsa(16, at), rule, where)
                told["exchanged"][f"{kernel} {update} {axes}"] = exchanged(program)
    numbers = (1, 8) if quick else (1, 2, 4, 8)
    told["memory"] = {
        "chains": [memory(compiled(sa.pmcsa(4096), still, mesh(n))) for n in numbers],
        "rows": [memory(compiled(sa.pmcsa(8), still, mesh(1, n), 65536)) for n in numbers],
    }
    if not quick:
        told["judged"] = judged()
    return told


if __name__ == "__main__":
    print(json.dumps(everything(sys.argv[1] == "quick")))
