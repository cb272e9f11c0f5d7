"""What happens between chunks on the host: the progress bar, and a Ctrl-C that loses nothing."""

from __future__ import annotations

import math
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, ClassVar, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

SECONDS_BETWEEN_LINES = 30.0
BAR = 12  # columns, so that all that is said beside it fits a terminal of 80


class Lines:
    """Plain lines on stderr where a bar cannot be drawn, for it is no terminal: a log stays short.

    The first comes after half a minute, so that short work says nothing before its end.
    """

    def __init__(self, show: bool) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.wanted = show and not self._console.is_terminal
        self._last, self._text = time.monotonic(), ""

    def say(self, text: str, force: bool = False) -> None:
        """Write the line, if there has been none for a while and it says something new."""
        now = time.monotonic()
        due = force or now - self._last >= SECONDS_BETWEEN_LINES
        if self.wanted and due and text != self._text:
            self._last, self._text = now, text
            self._console.print(text, markup=False)


class Aim(NamedTuple):
    """Where a run will end, as far as its rule can tell: after so many steps, and what is asked."""

    steps: int | None = None
    says: str = ""


class Bar:
    """A progress bar on stderr, silent when `show` is off: what runs, how far, how good it is.

    `label` says what is being done. Where a rule can end the run before its last step, the end that
    the bar runs towards is where the rule will likely be met.
    """

    def __init__(self, show: bool, total: int, done: int, label: str = "fit") -> None:
        self._lines, self._total, self._label, self._text = Lines(show), total, label, ""
        self._begun: tuple[float, int] | None = None  # when, and where, once it is compiled
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),  # rich forgets the pace when the end moves
            TextColumn("{task.fields[says]}"),
            console=Console(stderr=True),
            disable=not show or self._lines.wanted,
        )
        task = self._progress.add_task(
            label, total=total, completed=done, says="compiling", left=""
        )
        self._task = task

    def __enter__(self) -> Bar:
        if not self._progress.disable:
            self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if not self._progress.disable:  # older versions of rich write an empty line
            self._progress.stop()
        if self._text:
            self._lines.say(self._text, force=True)

    def update(self, done: int, loss: float, acceptance: float, aim: Aim | None = None) -> None:
        """Show where the run stands, and where it will likely end."""
        aim = Aim() if aim is None else aim
        total = self._total if aim.steps is None else min(self._total, max(done, aim.steps))
        moves = not math.isnan(acceptance)  # one run does; many fits have no acceptance in common
        says = f"loss {loss:.4g}  acceptance {acceptance:.1%}" if moves else ""
        left = self._left(done, total)
        left = "" if aim.says and aim.steps is None else left  # the end is not known yet
        self._progress.update(
            self._task, completed=done, total=total, says=aim.says or says, left=left
        )
        about = "" if aim.steps in (None, self._total) else "about "
        parts = (f"{self._label} {done}/{about}{total}", says, aim.says, left)
        self._text = "  ".join(part for part in parts if part.strip())
        self._lines.say(self._text)

    def _left(self, done: int, total: int) -> str:
        """Return how long the rest will take at the pace so far, in words."""
        now = time.monotonic()
        if self._begun is None:
            self._begun = now, done
        begun, first = self._begun
        if not first < done < total:
            return ""
        return f"about {in_words((now - begun) / (done - first) * (total - done))} left"


def in_words(seconds: float) -> str:
    """Return a length of time as one says it.

    >>> in_words(7.2), in_words(200), in_words(8000)
    ('7 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def busy(show: bool, text: str) -> Iterator[None]:
    """Say on a terminal what is being done, for as long as it takes; a log gets nothing."""
    console = Console(stderr=True)
    if not (show and console.is_terminal):
        yield
        return
    with console.status(text):
        yield


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
        Presses.times.clear()
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


PATIENCE = 5.0  # seconds that a press may wait for the main thread


class Presses:
    """Presses of Ctrl-C that the main thread has not seen, for it waits for compiled code.

    Python's handlers run there and nowhere else. What the system tells at once, by a socket, can be
    asked for by code that compiled code calls back.
    """

    ear: socket.socket | None = None
    times: ClassVar[list[float]] = []

    @classmethod
    def check(cls) -> None:
        """Raise if there were two, or one that nobody has seen for a while."""
        if cls.ear is None:
            return
        with suppress(BlockingIOError, OSError):
            heard = cls.ear.recv(64)
            cls.times += [time.monotonic()] * heard.count(bytes([signal.SIGINT]))
        if len(cls.times) > 1 or (cls.times and time.monotonic() - cls.times[0] > PATIENCE):
            cls.times.clear()
            raise KeyboardInterrupt


@contextmanager
def listening() -> Iterator[None]:
    """Let `Presses.check` hear of Ctrl-C while this lasts."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or Presses.ear or signal.getsignal(signal.SIGINT) in (None, signal.SIG_IGN):
        yield
        return
    ear, mouth = socket.socketpair()
    with ear, mouth:
        ear.setblocking(False)
        mouth.setblocking(False)
        before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
        Presses.ear = ear
        Presses.times.clear()
        try:
            yield
        finally:
            Presses.ear = None
            signal.set_wakeup_fd(before)
