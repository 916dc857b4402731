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


class Status(NamedTuple):
    """The state of a run."""

    step: int
    steps: int
    loss: float
    best: float | None
    rows_per_second: float
    unit: str = ""


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
        seconds = (time.monotonic() - self._started) / (status.step - self._first + 1) * (status.steps - status.step)
        left = f"  {timedelta(seconds=min(round(seconds), 10**9))} left" if status.step < status.steps else ""
        best = "" if status.best is None else f"  best validation {status.best:.4f}{status.unit}"
        speed = f"{status.rows_per_second:,.0f} rows/s"
        self.say(f"step {status.step}/{status.steps}  loss {status.loss:.4f}{best}  {speed}{left}")


class Bar(Progress):
    """A progress bar by rich."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            BarColumn(bar_width=16),  # so that all of it fits 80 columns
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self._task: Any = None
        self._shown = 0.0

    def show(self, status: Status) -> None:
        now = time.monotonic()
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task("", total=status.steps, completed=status.step)
        if now - self._shown >= _BAR_SECONDS or status.step == status.steps:
            self._shown = now
            best = "" if status.best is None else f" best {status.best:.3f}{status.unit}"
            text = f"loss {status.loss:.3f}{best} {status.rows_per_second:,.0f} rows/s"
            self._progress.update(self._task, completed=status.step, description=text)

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
