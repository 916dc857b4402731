"""Stop signals during training, deferred to the end of a step."""

from __future__ import annotations

import signal
import threading
from typing import Any

from ..errors import SinuflowError
from ..signals import STOP_SIGNALS, is_used


class Interrupt:
    """While active, a stop signal is only added to ``received``; on exit the first one is raised again.

    The previous handler then receives it: SIGINT raises KeyboardInterrupt, SIGTERM and SIGHUP end the process, and the
    command line exits with its own code. Ignored signals stay ignored, and users' handlers of SIGTERM and SIGHUP are
    kept. A run that ``saves`` checkpoints saves one after the first signal, and ignores further ones; otherwise only
    SIGINT is handled, and a second one interrupts at once. In threads other than the main one this does nothing.
    """

    def __init__(self, saves: bool) -> None:
        self.received: list[int] = []
        self._saves = saves
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
            self._previous = {number: handler for number, handler in handlers.items() if self._defers(number, handler)}
            try:
                for number in self._previous:
                    signal.signal(number, self._handle)
            except BaseException:
                self._restore()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._restore()
        # An error that the checkpoint could not be saved is more informative than the signal.
        if self.received and not (kind is not None and issubclass(kind, SinuflowError)):
            signal.raise_signal(self.received[0])

    def check(self) -> None:
        if self.received:
            raise KeyboardInterrupt

    def _defers(self, number: int, previous: Any) -> bool:
        if number == signal.SIGINT:
            return previous not in (signal.SIG_IGN, None)
        return self._saves and (previous == signal.SIG_DFL or is_used(previous))

    def _restore(self) -> None:
        # SIGINT last: its handler may raise during this loop.
        for number, previous in reversed(self._previous.items()):
            signal.signal(number, previous)

    def _handle(self, number: int, _: object) -> None:
        self.received.append(number)
        if len(self.received) == 2 and not self._saves:
            raise KeyboardInterrupt
