"""Signals that ask the process to stop, and blocks that they do not interrupt."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

#: Ctrl-C, and what schedulers, containers and closed terminals send.
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Handler(Protocol):
    """A signal handler that can wait."""

    def shielded(self) -> AbstractContextManager[None]:
        """A block at whose end signals take effect that arrive in it."""


_handler: Handler | None = None


def use(handler: Handler) -> None:
    """Let a handler of this process's signals, which is the command line's, know of shielded blocks."""
    global _handler
    _handler = handler


def is_used(handler: object) -> bool:
    """Whether a signal handler is the one that knows of shielded blocks."""
    return handler is not None and handler is _handler


def shielded() -> AbstractContextManager[None]:
    """A block that the command line's signals do not interrupt; they take effect when it ends."""
    return nullcontext() if _handler is None else _handler.shielded()
