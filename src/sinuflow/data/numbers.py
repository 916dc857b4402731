"""Arrays of float64, and strings that are numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def parse_number(text: Any) -> float | None:
    """The number that a string represents, or None."""
    try:
        return None if "_" in text else float(text)  # 1_000 is Python's notation, and an identifier elsewhere
    except (TypeError, ValueError):
        return None
