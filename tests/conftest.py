"""Settings that every test shares."""

import os

import pytest

# A test run uses two processes on two cores: one thread each keeps them out of each other's way.
# Nearly all of its time is compilation of small programs that run once, so the compiler hurries.
# What the caller has set in XLA_FLAGS stays, and comes last, so that it wins.
QUICK = "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0"
if QUICK not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}".strip()


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit hands back to the host after every iteration."""
    from tests.helpers import host  # imports jax, which reads the settings above

    monkeypatch.setattr(host, "CHUNK_SECONDS", 0)
