"""What happens between chunks on the host: the progress bar, and a Ctrl-C that loses nothing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """A progress bar on stderr with the current loss and acceptance; silent when `show` is off."""

    def __init__(self, show: bool, total: int, done: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[says]}"),
            console=Console(stderr=True),
            disable=not show,
        )
        self._task = self._progress.add_task("fit", total=total, completed=done, says="compiling")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def update(self, done: int, loss: float, acceptance: float) -> None:
        """Show where the run stands."""
        says = f"loss {loss:.4g}  acceptance {acceptance:.1%}"
        self._progress.update(self._task, completed=done, says=says)


class Interrupt:
    """Whether Ctrl-C was pressed; read between chunks."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def catch_interrupt() -> Iterator[Interrupt]:
    """Turn the first Ctrl-C into a request to stop after this chunk; the second one raises.

    Python delivers signals to the main thread alone, so elsewhere this does nothing.
    """
    interrupt = Interrupt()
    before = signal.getsignal(signal.SIGINT)
    ours = threading.current_thread() is threading.main_thread()
    if not ours or before in (None, signal.SIG_IGN):  # a background job ignores Ctrl-C: so do we
        yield interrupt
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
