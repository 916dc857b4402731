"""Opening the arrays of a prepared set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError


def open_array(path: Path, how: str) -> np.ndarray[Any, Any]:
    """The array of a ``.npy`` file, as a map of the file.

    Args:
        path: of the file.
        how: to get it, for the message if it is missing or damaged.

    Example:
        >>> open_array(Path("nowhere.npy"), "ask the author")
        Traceback (most recent call last):
        sinuflow.errors.DataError: there is no nowhere.npy: ask the author
    """
    if not os.path.isfile(path):  # Path.is_file raises for names that are too long
        raise DataError(f"there is no {path}: {how}")
    try:
        # A map of the file believes neither pickles nor sizes that the file does not have.
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy reads the header with Python's own parser, which has errors of all kinds
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} is not an array of numbers ({reason}): {how}") from error
