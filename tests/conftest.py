"""Settings that every test shares."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def known(flags: list[str]) -> list[str]:
    """Return those of the flags that this jaxlib takes: it aborts at one that it does not know."""

    def takes(some: list[str]) -> bool:
        env = os.environ | {"XLA_FLAGS": " ".join(some), "JAX_PLATFORMS": "cpu"}
        look = [sys.executable, "-c", "import jax; jax.devices()"]
        return subprocess.run(look, env=env, capture_output=True).returncode == 0

    return flags if takes(flags) else [flag for flag in flags if takes([flag])]


# Nearly all of the time of a test run is the compilation of small programs that run once, so the
# compiler hurries: it optimises nothing, fuses nothing, and splits no program among its threads.
# A run uses two processes on two cores: one thread each keeps them out of each other's way.
# What the caller has set in XLA_FLAGS comes last, and wins.
if "SCOREASCENT_TEST_FLAGS" not in os.environ:  # workers and other children have them already
    # ArviZ 0.23 notes in a file that it has warned today; two that do so at once can fail
    noted = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", "import arviz"], stderr=subprocess.DEVNULL
    )
    flags = known(
        [
            "--xla_backend_optimization_level=0",
            "--xla_cpu_use_fusion_emitters=false",
            "--xla_cpu_parallel_codegen_split_count=1",
            "--xla_cpu_multi_thread_eigen=false",
        ]
    )
    os.environ["SCOREASCENT_TEST_FLAGS"] = "set"
    os.environ["SCOREASCENT_CACHE"] = "0"  # tests compile for themselves
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    noted.wait()


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True, scope="module")
def _room_for_programs() -> Iterator[None]:
    """Compiled programs are let go before Linux refuses a process more memory maps (65 530).

    A fit takes some hundred of them; where none is left, XLA dies of a segmentation fault.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and len(maps.read_text().splitlines()) > 40_000:
        import jax

        jax.clear_caches()


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit hands back to the host after every iteration."""
    from tests.helpers import host  # imports jax, which reads the settings above

    monkeypatch.setattr(host, "CHUNK_SECONDS", 0)
