"""Opening .npy files safely."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError


def open_array(path: Path, remedy: str) -> np.ndarray[Any, Any]:
    """Memory-map a ``.npy`` file; ``remedy`` is for the message if it is missing or damaged."""
    if not os.path.isfile(path):  # Path.is_file raises for names that are too long
        raise DataError(f"there is no {path}: {remedy}")
    try:
        # Memory-mapping loads no pickles and trusts no size beyond the file.
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy parses the header with Python's parser, which raises many types
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} is not an array of numbers ({reason}): {remedy}") from error
