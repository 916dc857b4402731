"""GAS: sixteen gas sensors, without those that nearly copy another."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..datasets import Splits
from .common import Array, find_file, read_table, split_tenths, standardize

#: Columns of the published file; before them are the time and the mixture.
_SENSORS = range(3, 19)


def prepare_gas(original: Path) -> Splits:
    """From ``ethylene_CO.txt``."""
    path = find_file(original, "ethylene_CO.txt")
    return split_gas(read_table(path, str(path), skiprows=1, usecols=_SENSORS))


def split_gas(table: Array, share: float = 0.25) -> Splits:
    """A random quarter of the rows without correlated columns, split into tenths, standardized by all rows.

    The published dataset is another random quarter: which rows is not recorded.

    Example:
        >>> [part.shape for part in split_gas(np.random.default_rng(0).normal(size=(800, 3)))]
        [(162, 3), (18, 3), (20, 3)]
    """
    chosen = np.random.RandomState(42).permutation(len(table))[: round(share * len(table))]
    table = drop_correlated(table[chosen])
    return standardize(split_tenths(table), by=table, ddof=1)


def drop_correlated(table: Array, limit: float = 0.98) -> Array:
    """Drop the first column whose correlation with another exceeds the limit, until there is none.

    Example:
        >>> a, b = np.random.default_rng(0).normal(size=(2, 100))
        >>> drop_correlated(np.stack([a, b, 2 * a, -a], 1)).shape  # the correlation of -a is -1
        (100, 3)
    """
    if len(table) < 2:
        return table
    with np.errstate(invalid="ignore", divide="ignore"):  # a constant column has no correlation
        correlated = np.corrcoef(table, rowvar=False).reshape(table.shape[1], -1) > limit
    np.fill_diagonal(correlated, False)
    columns = np.ones(len(correlated), dtype=bool)
    while (copies := (correlated & columns).any(1) & columns).any():
        columns[copies.argmax()] = False
    return table[:, columns]
