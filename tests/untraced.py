"""Code that coverage need not see."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def untraced() -> Iterator[None]:
    """Pause coverage's trace function, which slows Python down, even where nothing is measured, to half its speed.

    For long work of other libraries, as tracing by torch.compile or drawing by Matplotlib.
    """
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)
