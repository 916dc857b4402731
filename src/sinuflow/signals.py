"""Signals that stop the process, and blocks that defer them."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, nullcontext
from typing import Any

#: Sent by Ctrl-C, schedulers, containers and closed terminals.
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_handler: Any = None


def use(handler: Any) -> None:
    """Register the process's signal handler, the command line's, whose method ``shielded`` defers signals."""
    global _handler
    _handler = handler


def is_used(handler: object) -> bool:
    """Whether a signal handler is the registered one."""
    return handler is not None and handler is _handler


def shielded() -> AbstractContextManager[None]:
    """A block that defers the command line's signals to its end."""
    return nullcontext() if _handler is None else _handler.shielded()
