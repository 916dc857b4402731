"""Signal handling of the command line; imports nothing slow."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..signals import STOP_SIGNALS, use

#: Seconds after a signal in which further ones are ignored, so that they do not interrupt the clean-up.
_GRACE = 5.0


class Stopped(BaseException):
    """A signal asked the command to stop; neither an Exception nor a KeyboardInterrupt, which libraries catch."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


class CommandHandler:
    """Exits at once while modules are imported, and raises :class:`Stopped` afterwards, for files to be cleaned up."""

    def __init__(self) -> None:
        self.importing = True
        self.received: int | None = None
        self._shields = 0
        self._waiting: int | None = None
        self._raised = -_GRACE

    def install(self) -> None:
        """Handle all signals that are not ignored, as SIGHUP is under nohup."""
        use(self)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self)
        sys.unraisablehook = self._on_unraisable

    def remove(self) -> None:
        """Restore the default actions for the interpreter's shutdown."""
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is self:
                signal.signal(number, signal.SIG_DFL)

    def __call__(self, number: int, _: object) -> None:
        if self.importing:
            with suppress(OSError):
                os.write(2, b"interrupted\n")
            os._exit(128 + number)
        if self._shields:
            self._waiting = self._waiting or number
        elif time.monotonic() - self._raised >= _GRACE:
            self.received = self.received or number
            self._raised = time.monotonic()
            raise Stopped(number)

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """A block that defers signals to its end."""
        self._shields += 1
        try:
            yield
        finally:
            self._shields -= 1
            number, self._waiting = self._waiting, None
            if number is not None and not self._shields:
                self(number, None)

    def _on_unraisable(self, unraisable: Any) -> None:
        # Python drops exceptions of destructors and weak reference callbacks: send the signal again.
        if not isinstance(unraisable.exc_value, Stopped):
            sys.__unraisablehook__(unraisable)
            return
        import threading

        self._raised = -_GRACE
        threading.Timer(0.01, os.kill, (os.getpid(), unraisable.exc_value.number)).start()


command_handler = CommandHandler()
