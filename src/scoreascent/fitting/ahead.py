"""Programs compiled in the background, while searches run that do not need them.

Only the compiler works there: tracing calls the user's own code, which need not bear two threads,
so it is done before. What was compiled is found by the call that needs it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Ahead:
    """A compiler in the background.

    >>> import jax
    >>> with Ahead() as ahead:
    ...     ahead.compile(jax.jit(lambda x: x + 1), 1.0)
    """

    def __enter__(self) -> Ahead:
        self._pool = ThreadPoolExecutor(1)
        self._waiting: list[Future[Any]] = []
        return self

    def compile(self, function: Any, *args: Any) -> None:
        """Compile a jitted function for such arguments, or for shapes in their place."""
        self._waiting.append(self._pool.submit(function.lower(*args).compile))

    def __exit__(self, *error: object) -> None:
        for future in self._waiting:
            future.exception()  # the call that needs it will say so in its own place
        self._pool.shutdown()
