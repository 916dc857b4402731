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
#: A value on a grid is an atom if its count is at least the minimum, and exceeds twice the count that its neighbours
#: suggest by this number of standard errors; or, where atoms have levels, if it is frequent.
_FREQUENT, _STANDARD_ERRORS, _MIN_COUNT = 50, 4.0, 3
#: The number of different values on each side of a value that are its neighbours.
_NEIGHBOURS = 10
#: The minimum number of values for a continuous part.
_MIN_CONTINUOUS = 20
#: Values further from the median than this number of interquartile ranges are atoms: on a continuous scale, they would
#: make all other values indistinguishable.
_OUTLIER_RANGES = 1e7


def with_atoms(column: Column, values: Array) -> tuple[Column, Array]:
    """The column with its atoms and their probabilities, and the values of the continuous part.

    On a grid, an atom is a value that is much more frequent than its neighbours or, in tables whose atoms have levels,
    any value with enough rows to estimate its probability. Without a grid, it is a repeated value. ``values`` must not
    contain missing values.
    """
    distinct, number = np.unique(values, return_counts=True)
    counts = number.astype(np.float64)
    rows = len(values)
    discrete = len(distinct) <= _MAX_DISCRETE_VALUES and rows >= _MIN_REPETITIONS * len(distinct)
    if column.cell:
        expected = _expected_counts(distinct, counts, column.cell)
        threshold = 2 * expected + _STANDARD_ERRORS * np.sqrt(expected + 1)
        heaped = (counts >= _MIN_COUNT) & (counts > threshold) & (counts > 0.002 * rows)
        frequent = (counts >= _FREQUENT) & (column.rows >= LEVELS_ROWS)
        is_atom, expected = heaped | frequent, np.where(frequent, 0.0, np.minimum(np.round(expected), counts))
    else:
        is_atom, expected = counts >= max(_MIN_COUNT, 0.002 * rows), np.zeros(len(distinct))
    is_atom |= _outliers(distinct, values)
    continuous = np.where(is_atom, expected, counts).astype(np.int64)
    if discrete or continuous.sum() < _MIN_CONTINUOUS or (continuous > 0).sum() < _MIN_CONTINUOUS / 4:
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


def _expected_counts(distinct: Array, counts: Array, step: float) -> Array:
    """For each value, the mean count of the grid points around it, without the most frequent quarter of them."""
    if len(distinct) < 3:
        return np.zeros(len(distinct))
    size = min(2 * _NEIGHBOURS + 1, len(distinct))  # at the ends, more neighbours are on one side
    first = (np.arange(len(distinct)) - _NEIGHBOURS).clip(0, len(distinct) - size)
    indices, trimmed = first[:, None] + np.arange(size), max(1, size // 4)
    neighbours = np.sort(counts[indices], axis=1)[:, :-trimmed]
    points = (distinct[indices[:, -1]] - distinct[indices[:, 0]]) / step + 1 - trimmed
    expected: Array = neighbours.sum(1) / np.maximum(points, neighbours.shape[1])
    return expected


def _outliers(distinct: Array, values: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which values are too far from the median for a continuous scale."""
    lower, median, upper = np.quantile(values, [0.25, 0.5, 0.75])
    distance = np.abs(values - median)
    positive = distance[distance > 0]
    width = upper - lower if upper > lower else np.median(positive) if len(positive) else np.inf
    return np.asarray(np.abs(distinct - median) > _OUTLIER_RANGES * width)
