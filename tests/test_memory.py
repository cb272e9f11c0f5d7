"""The allocator keeps memory while it is told to, and no longer."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import scoreascent as sa
from scoreascent import _memory
from scoreascent._memory import KEEP, USUAL_MMAP, memory_kept


class Heard:
    """A C library that notes what it is told."""

    def __init__(self) -> None:
        self.mmap: list[int] = []
        self.trims = 0

    def mallopt(self, what: int, value: int) -> int:
        if what == _memory.M_MMAP_THRESHOLD:
            self.mmap.append(value)
        return 1

    def malloc_trim(self, pad: int) -> int:
        self.trims += 1
        return 1


@pytest.fixture
def libc(monkeypatch: pytest.MonkeyPatch) -> Heard:
    heard = Heard()
    monkeypatch.setattr(_memory, "_glibc", lambda: heard)
    return heard


def test_memory_is_kept_and_given_back_after_the_last_user(libc: Heard) -> None:
    with memory_kept():
        with memory_kept():
            assert libc.mmap == [KEEP, KEEP]
        assert libc.trims == 0
    assert libc.mmap[-1] == USUAL_MMAP
    assert libc.trims == 1


def test_memory_is_given_back_after_an_error(libc: Heard) -> None:
    with pytest.raises(KeyError), memory_kept():
        raise KeyError
    assert libc.trims == 1


def test_little_data_and_other_allocators_are_left_alone(
    libc: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    sa.fit(sa.Target(lambda z: -0.5 * z @ z, dim=2), steps=20, progress=False)
    with memory_kept(False):
        pass
    assert not libc.mmap
    monkeypatch.setattr(_memory, "_glibc", lambda: None)
    with memory_kept():
        pass


def test_a_fit_of_many_data_keeps_memory(libc: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scoreascent.fitting.entry.MANY_DATA", 10)

    def density(z: Any, x: Any) -> Any:
        return -0.5 * ((z - x) ** 2).sum() - 0.5 * (z**2).sum()

    target = sa.Target(density, dim=1, data=np.zeros((20, 1), np.float32))
    sa.fit(target, steps=20, progress=False)
    assert libc.trims == (jax.default_backend() == "cpu")
