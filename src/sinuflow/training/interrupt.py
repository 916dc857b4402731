"""Signals that ask training to stop, between two steps and not in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from ..errors import SinuflowError
from ..signals import STOP_SIGNALS, is_used


class Interrupt:
    """While active, a signal that asks the process to stop only sets ``wanted``; on exit it is sent again.

    The previous handler then receives it: SIGINT raises KeyboardInterrupt, SIGTERM and SIGHUP end the
    process, and the command line exits with its own code. Ignored signals stay ignored. SIGTERM and SIGHUP are left
    alone if there is nothing to save, or if the user has a handler for them. Signals reach the main thread only:
    elsewhere this does nothing.

    Args:
        saves: whether a checkpoint is saved after the first signal. Further ones are then ignored; without a checkpoint
            the second interrupts at once.
    """

    def __init__(self, saves: bool) -> None:
        self.wanted = False
        self._saves = saves
        self._number = 0
        self._count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            try:
                for number in STOP_SIGNALS:
                    before = signal.getsignal(number)
                    if self._takes(number, before):
                        self._before[number] = before
                        signal.signal(number, self._handle)
            except BaseException:
                self._restore()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._restore()
        # A SinuflowError is more informative than the signal: such as why no checkpoint could be saved.
        if self.wanted and not (kind is not None and issubclass(kind, SinuflowError)):
            signal.raise_signal(self._number)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal asked to stop."""
        if self.wanted:
            raise KeyboardInterrupt

    def _takes(self, number: int, before: Any) -> bool:
        if number == signal.SIGINT:
            return before not in (signal.SIG_IGN, None)
        return self._saves and (before == signal.SIG_DFL or is_used(before))

    def _restore(self) -> None:
        # SIGINT last: its handler may raise in the middle of this.
        for number, before in reversed(self._before.items()):
            signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        self._number = self._number or number
        self.wanted = True
        if self._count == 2 and not self._saves:
            raise KeyboardInterrupt
