"""Real processes at one fit: the same answer, one of them writes, and what if one has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreascent as sa
from tests.one_of_many import options, parsed, target

ROOT = Path(__file__).parents[1]
SCRIPT = str(ROOT / "tests" / "one_of_many.py")
LIMIT = 600  # seconds, after which a test is over


def launched(processes: int, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the script in so many processes."""
    start = "import sys; from scoreascent import distributed as d; "
    start += f"sys.exit(d.launch({processes}, [sys.executable, *sys.argv[1:]], 40))"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return subprocess.run(
        [sys.executable, "-c", start, SCRIPT, *args],
        env=env, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the first process printed; the others print nothing."""
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 1
    assert done.stderr.count("40/40") <= 1  # one bar
    return json.loads(lines[0])


def alone(*args: str) -> sa.Result:
    """The same fit by this process."""
    given = parsed(list(args))
    return sa.fit(target(), **options(given), checkpoint=given.checkpoint, progress=False)


def check_same(found: dict[str, Any], result: sa.Result) -> None:
    np.testing.assert_allclose(found["mean"], result.q.mean, atol=1e-4)
    np.testing.assert_allclose(found["sd"], result.q.sd, atol=1e-4)
    np.testing.assert_allclose(found["acceptance"], result.trace.acceptance, atol=1e-3)
    assert found["steps"] == result.steps


def test_two_processes_fit_as_one_does_and_their_checkpoint_is_anyones(tmp_path: Path) -> None:
    path = str(tmp_path / "run.ckpt")
    found = told(launched(2, "--checkpoint", path))
    assert found["mesh"] == "2 devices of 2 processes: chains 2"
    check_same(found, alone())
    on = alone("--checkpoint", path, "--steps", "60")  # goes on from what two processes wrote
    assert on.steps == 60
    np.testing.assert_allclose(on.q.mean, alone("--steps", "60").q.mean, atol=1e-4)


@pytest.mark.slow
def test_rows_over_two_processes() -> None:
    check_same(told(launched(2, "--axis", "rows")), alone("--axis", "rows"))


@pytest.mark.slow
def test_four_processes_judge_as_one_does() -> None:
    found = told(launched(4, "--auto", "--judge"))
    result = alone("--auto")
    np.testing.assert_allclose(found["mean"], result.q.mean, atol=0.05 * np.max(result.q.sd))
    assert result.diagnosis is not None
    assert found["verdict"] == result.diagnosis.verdict


@pytest.mark.slow
def test_what_four_processes_wrote_two_go_on_with(tmp_path: Path) -> None:
    path = str(tmp_path / "run.ckpt")
    told(launched(4, "--checkpoint", path))
    check_same(told(launched(2, "--checkpoint", path, "--steps", "60")), alone("--steps", "60"))


@pytest.mark.slow
@pytest.mark.parametrize("die", [1, 0])
def test_a_process_that_is_killed_ends_all_and_the_run_goes_on(tmp_path: Path, die: int) -> None:
    """The others end by themselves: the launcher would otherwise kill them, with status 9."""
    path = str(tmp_path / "run.ckpt")
    done = launched(2, "--checkpoint", path, "--die", str(die), "--patience", "10")
    assert done.returncode == 9
    assert f"process {die} ended with -9" in done.stderr
    assert f"process {1 - die} ended with -9" not in done.stderr
    assert "another process of this fit has ended" in done.stderr or "heartbeat" in done.stderr
    check_same(told(launched(2, "--checkpoint", path)), alone())


@pytest.mark.slow
def test_processes_with_other_data_are_told_so() -> None:
    done = launched(2, "--other-data", "1")
    assert done.returncode == 1
    assert "the processes of this fit were not given the same: they differ in data" in done.stderr


@pytest.mark.slow
def test_what_slurm_says_is_enough() -> None:
    """Two processes that a cluster's launcher has started, as its variables tell."""
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost",
             "SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "1"}  # fmt: skip
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | slurm
    running = [
        subprocess.Popen(
            [sys.executable, SCRIPT],
            env=env | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)},
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    said = [p.communicate(timeout=LIMIT) for p in running]
    assert [p.returncode for p in running] == [0, 0], said[0][1][-3000:]
    assert json.loads(said[0][0].splitlines()[-1])["processes"] == 2


RAY = """
import json, socket, sys
import ray
sys.path[:0] = {path!r}

@ray.remote(num_cpus=1)
def work(address, processes, index):
    import jax
    import numpy as np
    import scoreascent as sa
    from tests.one_of_many import options, parsed, target

    sa.distributed.start(address, processes, index)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("chains",))
    result = sa.fit(target(), **options(parsed([])), mesh=mesh, progress=False)
    return {{"mean": result.q.mean.tolist(), "sd": result.q.sd.tolist(), "steps": result.steps,
            "acceptance": np.asarray(result.trace.acceptance).tolist()}}

path = {{"env_vars": {{"PYTHONPATH": {joined!r}}}}}
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=path)
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = "127.0.0.1:%d" % free.getsockname()[1]
print(json.dumps(ray.get([work.remote(address, 2, i) for i in range(2)])))
"""


@pytest.mark.slow
def test_workers_of_ray_are_processes(tmp_path: Path) -> None:
    """As docs/scaling.md has them, on this machine."""
    pytest.importorskip("ray", reason="ray is not installed here")
    script, path = tmp_path / "work.py", [str(ROOT), *sys.path]
    script.write_text(RAY.format(path=path, joined=os.pathsep.join(path)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert first == second
    check_same(first, alone())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("node:1", None, None), "give coordinator, processes and index, or none"),
        (("node:1", 2, 2), "index must be below processes, 2, got 2"),
        (("node:1", 0, 0), "processes must be an integer ≥ 1"),
    ],
)
def test_who_one_is_must_make_sense(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sa.distributed.start(*given)
