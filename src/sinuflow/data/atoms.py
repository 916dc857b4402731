"""The atoms of a column: values that repeat too often for a continuous distribution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .columns import Column
from .numbers import Array

#: A column with at most this number of different values, each repeated at least so often on average, has only atoms.
_MAX_DISCRETE_VALUES, _MIN_REPETITIONS = 20, 3
#: From this number of training rows on, atoms of numbers have levels, whose probabilities a categorical network
#: learns. In smaller tables, such atoms are cells of the flow's axes.
LEVELS_ROWS = 5_000
#: An atom has at least this count and share of the rows, and its count exceeds twice the count that its neighbours
#: suggest by this number of standard errors.
_MIN_COUNT, _MIN_SHARE, _STANDARD_ERRORS = 3, 0.002, 4.0
#: With this number of rows per value, repeated values without a grid are atoms whatever their neighbours.
_ROWS_PER_ATOM = 10
#: The number of different values on each side of a value that are its neighbours.
_NEIGHBOURS = 10
#: The minimum number of values for a continuous part beside atoms.
_MIN_CONTINUOUS = 20
#: Values further from the median than this number of interquartile ranges are atoms: on a continuous scale, they would
#: make all other values indistinguishable.
_OUTLIER_RANGES = 1e7


def with_atoms(column: Column, values: Array) -> tuple[Column, Array]:
    """The column with its atoms and their probabilities, and the values of the continuous part.

    An atom is much more frequent than its neighbours. Without a grid, where values have many rows each, every repeated
    value is an atom: there are no others between them. ``values`` must not contain missing values.
    """
    distinct, number = np.unique(values, return_counts=True)
    counts = number.astype(np.float64)
    rows = len(values)
    repeated = len(distinct) <= _MAX_DISCRETE_VALUES and rows >= _MIN_REPETITIONS * len(distinct)
    discrete = repeated or len(distinct) == 1
    is_atom = counts >= max(_MIN_COUNT, _MIN_SHARE * rows)
    expected = np.zeros(len(distinct))
    if column.cell:
        expected = _expected_counts(distinct / column.cell, counts)
        is_atom &= counts > 2 * expected + _STANDARD_ERRORS * np.sqrt(expected + 1)
        expected = np.minimum(np.round(expected), counts)
    elif rows < _ROWS_PER_ATOM * len(distinct):
        repetitions = _expected_counts(np.arange(len(distinct), dtype=np.float64), counts - 1)
        is_atom &= counts - 1 > 2 * repetitions + _STANDARD_ERRORS * np.sqrt(repetitions)
    is_atom |= _outliers(distinct, values)
    continuous = np.where(is_atom, expected, counts).astype(np.int64)
    few_others = continuous.sum() < _MIN_CONTINUOUS or (continuous > 0).sum() < _MIN_CONTINUOUS / 4
    if discrete or (is_atom.any() and few_others):
        return all_atoms(column, distinct, counts, column.rows - rows), values[:0]
    excess = (counts - continuous)[is_atom]
    column = replace(column, atoms=tuple(distinct[is_atom].tolist()), masses=tuple((excess / column.rows).tolist()))
    return column, np.repeat(distinct, continuous)


def all_atoms(column: Column, values: Array, counts: Array, missing: int) -> Column:
    """The column with atoms alone; their frequencies are smoothed by half a row for each value."""
    smoothed = np.append(counts + 0.5, missing + 0.5 * (missing > 0))
    *masses, missing_mass = (smoothed / smoothed.sum()).tolist()
    atoms = tuple(float(value) for value in values)
    return replace(column, atoms=atoms, masses=tuple(masses), missing=missing_mass, discrete=True)


def _expected_counts(places: Array, counts: Array) -> Array:
    """For each value, the mean count of the grid points around it, without the most frequent quarter of them.

    ``places`` are the numbers of the values on the grid, in increasing order.
    """
    if len(places) < 3:
        return np.zeros(len(places))
    size = min(2 * _NEIGHBOURS + 1, len(places))  # at the ends, more neighbours are on one side
    first = (np.arange(len(places)) - _NEIGHBOURS).clip(0, len(places) - size)
    indices, trimmed = first[:, None] + np.arange(size), max(1, size // 4)
    neighbours = np.sort(counts[indices], axis=1)[:, :-trimmed]
    points = places[indices[:, -1]] - places[indices[:, 0]] + 1 - trimmed
    expected: Array = neighbours.sum(1) / np.maximum(points, neighbours.shape[1])
    return expected


def _outliers(distinct: Array, values: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which values are too far from the median for a continuous scale."""
    lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75])
    distance = np.abs(values - median)
    positive = distance[distance > 0]
    width = upper - lower if upper > lower else np.median(positive) if len(positive) else np.inf
    return np.asarray(np.abs(distinct - median) > _OUTLIER_RANGES * width)
