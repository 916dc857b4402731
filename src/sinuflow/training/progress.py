"""What a user sees while a model trains: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, NamedTuple, Protocol, TextIO

from ..printable import printable

#: Seconds between plain lines.
_PAUSE = 10.0
#: Seconds between updates of the bar.
_TICK = 0.2


class Standing(NamedTuple):
    """Where a run stands."""

    step: int
    steps: int
    loss: float
    best: float | None
    rows_per_second: float
    unit: str = ""

    def text(self) -> str:
        best = "" if self.best is None else f"  best validation {self.best:.4f}{self.unit}"
        return f"loss {self.loss:.4f}{best}  {self.rows_per_second:,.0f} rows/s"


class Progress(Protocol):
    """Shows how far a run is."""

    def show(self, standing: Standing) -> None:
        """Called at every step; decides itself how often to show something."""

    def say(self, message: str) -> None:
        """Show a message now."""

    def close(self) -> None:
        """Called once, at the end."""


class Silent:
    """Shows nothing."""

    def show(self, standing: Standing) -> None:
        pass

    def say(self, message: str) -> None:
        pass

    def close(self) -> None:
        pass


class Lines:
    """A line now and then, for files and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._started = time.monotonic()
        self._first: int | None = None
        self._shown = self._started
        self._last: Standing | None = None

    def show(self, standing: Standing) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = standing.step
        self._last = standing
        if now - self._shown >= _PAUSE:
            self._shown = now
            self._write(standing, now)

    def say(self, message: str) -> None:
        print(printable(message), file=self._stream, flush=True)

    def close(self) -> None:
        if self._last is not None:
            self._write(self._last, time.monotonic())
            self._last = None

    def _write(self, standing: Standing, now: float) -> None:
        done = standing.step - (self._first or 0) + 1
        left = (now - self._started) / done * (standing.steps - standing.step)
        ahead = f"  {_duration(left)} left" if standing.step < standing.steps else ""
        self.say(f"step {standing.step}/{standing.steps}  {standing.text()}{ahead}")


class Bar:
    """A progress bar, by rich."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            BarColumn(bar_width=16),  # all of it fits 80 columns
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self._task: Any = None
        self._shown = 0.0

    def show(self, standing: Standing) -> None:
        now = time.monotonic()
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task("", total=standing.steps, completed=standing.step)
        if now - self._shown >= _TICK or standing.step == standing.steps:
            self._shown = now
            best = "" if standing.best is None else f" best {standing.best:.3f}{standing.unit}"
            text = f"loss {standing.loss:.3f}{best} {standing.rows_per_second:,.0f} rows/s"
            self._progress.update(self._task, completed=standing.step, description=text)

    def say(self, message: str) -> None:
        self._progress.console.print(printable(message), markup=False, highlight=False)

    def close(self) -> None:
        self._progress.stop()


def make_progress(wanted: bool) -> Progress:
    """A bar in a terminal that can show one, lines elsewhere, nothing if not wanted."""
    if not wanted:
        return Silent()
    if sys.stderr.isatty():
        try:
            return Bar()
        except ImportError:
            pass
    return Lines()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
