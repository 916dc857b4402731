"""Progress of a training run: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from datetime import timedelta
from typing import Any, NamedTuple, TextIO

from ..printable import printable

#: Seconds between lines, and between updates of the bar.
_LINE_SECONDS, _BAR_SECONDS = 10.0, 0.2
#: The length of a bar.
_BAR_UNITS = 10_000


class Status(NamedTuple):
    """The state of a run."""

    step: int
    steps: int | None  # None if only the time is limited
    loss: float
    best: float | None
    rows_per_second: float
    unit: str = ""
    elapsed: float = 0.0  # the share of a limited time that is over

    @property
    def share(self) -> float:
        """The share of the run that is over."""
        return max(self.elapsed, 0.0 if self.steps is None else self.step / self.steps)

    @property
    def position(self) -> str:
        """The number of steps so far, and of all if it is known."""
        return str(self.step) if self.steps is None else f"{self.step}/{self.steps}"


class Progress:
    """Shows nothing; the base of what does."""

    def show(self, status: Status) -> None:
        """Called at every step; decides itself how often to show something."""

    def say(self, message: str) -> None:
        """Show a message."""

    def close(self) -> None:
        """Called once, at the end."""


class Lines(Progress):
    """A line every ten seconds, for files and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._started = self._shown = time.monotonic()
        self._first = 0  # the first step that was shown
        self._last: Status | None = None

    def show(self, status: Status) -> None:
        now = time.monotonic()
        if self._last is None:
            self._first = status.step
        self._last = status
        if now - self._shown >= _LINE_SECONDS:
            self._shown = now
            self._write(status)

    def say(self, message: str) -> None:
        print(printable(message), file=self._stream, flush=True)

    def close(self) -> None:
        if self._last is not None:
            self._write(self._last)

    def _write(self, status: Status) -> None:
        here = status.share * (status.step - self._first + 1) / max(1, status.step)  # not before the run was resumed
        seconds = (time.monotonic() - self._started) * (1 - status.share) / max(1e-9, here)
        left = f"  {timedelta(seconds=min(round(seconds), 10**9))} left" if status.share < 1 else ""
        best = "" if status.best is None else f"  best validation {status.best:.4f}{status.unit}"
        speed = f"{status.rows_per_second:,.0f} rows/s"
        self.say(f"step {status.position}  loss {status.loss:.4f}{best}  {speed}{left}")


class Bar(Progress):
    """A progress bar by rich."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            BarColumn(bar_width=16),  # so that all of it fits 80 columns
            TextColumn("{task.fields[position]}"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self._task: Any = None
        self._shown = 0.0

    def show(self, status: Status) -> None:
        now, done = time.monotonic(), int(_BAR_UNITS * status.share)
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task("", total=_BAR_UNITS, completed=done, position=status.position)
        if now - self._shown >= _BAR_SECONDS or status.share >= 1:
            self._shown = now
            best = "" if status.best is None else f" best {status.best:.3f}{status.unit}"
            text = f"loss {status.loss:.3f}{best} {status.rows_per_second:,.0f} rows/s"
            self._progress.update(self._task, completed=done, position=status.position, description=text)

    def say(self, message: str) -> None:
        self._progress.console.print(printable(message), markup=False, highlight=False)

    def close(self) -> None:
        self._progress.stop()


def make_progress(enabled: bool) -> Progress:
    """A bar in a terminal if rich is installed, lines elsewhere, nothing if disabled."""
    if not enabled:
        return Progress()
    with contextlib.suppress(ImportError):
        if sys.stderr.isatty():
            return Bar()
    return Lines()
