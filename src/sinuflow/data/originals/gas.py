"""GAS: sixteen gas sensors, less those that say the same as another."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..benchmarks import Splits
from .common import Array, find_file, read_numbers, standardised, tenths

#: Of the published file; before them are the time and what the mixture was.
_SENSORS = range(3, 19)


def prepare_gas(original: Path) -> Splits:
    """From ``ethylene_CO.txt``."""
    path = find_file(original, "ethylene_CO.txt")
    return split_gas(read_numbers(path, str(path), skiprows=1, usecols=_SENSORS))


def split_gas(table: Array, share: float = 0.25) -> Splits:
    """A random part of the rows; nearly equal columns left out; tenths; standardised by all rows.

    The published set has a quarter of the rows. Which ones is not recorded, so these are others.

    Example:
        >>> [part.shape for part in split_gas(np.random.default_rng(0).normal(size=(800, 3)))]
        [(162, 3), (18, 3), (20, 3)]
    """
    chosen = np.random.RandomState(42).permutation(len(table))[: round(share * len(table))]
    table = without_copies(table[chosen])
    return standardised(tenths(table), by=table, ddof=1)


def without_copies(table: Array, limit: float = 0.98) -> Array:
    """Take away the first column that correlates with another one by more than a limit, until there is none.

    Example:
        >>> a, b = np.random.default_rng(0).normal(size=(2, 100))
        >>> without_copies(np.stack([a, b, 2 * a, -a], 1)).shape  # -a correlates by -1
        (100, 3)
    """
    if len(table) < 2:
        return table
    # Leaving a column out changes nothing between the others, so the correlations are needed only once.
    with np.errstate(invalid="ignore", divide="ignore"):  # a constant column has no correlation
        alike = np.corrcoef(table, rowvar=False).reshape(table.shape[1], -1) > limit
    np.fill_diagonal(alike, False)
    kept = np.ones(len(alike), dtype=bool)
    while (copies := (alike & kept).any(1) & kept).any():
        kept[copies.argmax()] = False
    return table[:, kept]
