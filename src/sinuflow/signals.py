"""Signals that stop the process, and blocks that defer them."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

#: Sent by Ctrl-C, schedulers, containers and closed terminals.
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Handler(Protocol):
    """A signal handler that can defer signals."""

    def shielded(self) -> AbstractContextManager[None]:
        """A block that defers signals to its end."""


_handler: Handler | None = None


def use(handler: Handler) -> None:
    """Register the process's signal handler, the command line's, for shielded blocks."""
    global _handler
    _handler = handler


def is_used(handler: object) -> bool:
    """Whether a signal handler is the registered one."""
    return handler is not None and handler is _handler


def shielded() -> AbstractContextManager[None]:
    """A block that defers the command line's signals to its end."""
    return nullcontext() if _handler is None else _handler.shielded()
