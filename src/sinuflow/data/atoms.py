"""The atoms of a column: values that occur too often to be part of a continuous distribution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .columns import Column
from .numbers import Array

#: A column with at most this many different values, each several times on average, has nothing but atoms.
_FEW, _ROWS_PER_VALUE = 20, 3
#: In a table of so many rows, a categorical network learns atoms; in smaller ones they are cells of the flow's axes.
LEVELS_ROWS = 5_000
#: An atom has so many rows, this share of them, and is more frequent than its neighbours by so many standard errors.
_LEAST, _SHARE, _ERRORS = 3, 0.002, 4.0
#: With so many rows per value, repeated values that are on no grid are atoms even if their neighbours are as frequent.
_ROWS_PER_ATOM = 10
#: The different values on each side of a value that count as its neighbours.
_NEIGHBOURS = 10
#: The fewest values for the continuous part.
_CONTINUOUS = 20
#: Values this many typical deviations from the median are atoms: they would make all others indistinguishable.
_FAR = 1e7


def with_atoms(column: Column, values: Array) -> tuple[Column, Array]:
    """The column with its atoms and their probabilities, and the values of the continuous part.

    An atom is more frequent than its neighbours. Where values are on no grid and have many rows each, all repeated ones
    are atoms: there are no others between them. ``values`` are without missing ones.
    """
    distinct, number = np.unique(values, return_counts=True)
    counts = number.astype(np.float64)
    rows = len(values)
    few = len(distinct) <= _FEW and rows >= _ROWS_PER_VALUE * len(distinct)
    atom = counts >= max(_LEAST, _SHARE * rows)
    usual = np.zeros(len(distinct))
    if column.cell or rows < _ROWS_PER_ATOM * len(distinct):
        places = distinct / column.cell if column.cell else np.arange(len(distinct), dtype=np.float64)
        usual = _usual_counts(places, counts)
        atom &= counts > 2 * usual + _ERRORS * np.sqrt(usual + 1)
        usual = np.minimum(np.round(usual), counts) if column.cell else np.zeros(len(distinct))
    atom |= _far(distinct, values)
    kept = np.where(atom, usual, counts).astype(np.int64)
    if few or kept.sum() < _CONTINUOUS or (kept > 0).sum() < _CONTINUOUS / 4:
        return all_atoms(column, distinct, counts, column.rows - rows), values[:0]
    excess = (counts - kept)[atom]
    column = replace(column, atoms=tuple(distinct[atom].tolist()), masses=tuple((excess / column.rows).tolist()))
    return column, np.repeat(distinct, kept)


def all_atoms(column: Column, values: Array, counts: Array, missing: int) -> Column:
    """The column with nothing but atoms: half a row is added to each value's."""
    shares = np.append(counts + 0.5, missing + 0.5 * (missing > 0))
    *masses, empty = (shares / shares.sum()).tolist()
    atoms = tuple(float(value) for value in values)
    return replace(column, atoms=atoms, masses=tuple(masses), missing=empty, discrete=True)


def _usual_counts(places: Array, counts: Array) -> Array:
    """The number of rows for each step of a grid among the neighbours of each value, without the largest quarter.

    ``places`` are the numbers of the values on the grid, in increasing order.
    """
    if len(places) < 3:
        return np.zeros(len(places))
    size = min(2 * _NEIGHBOURS + 1, len(places))  # at the ends, all neighbours are on one side
    first = (np.arange(len(places)) - _NEIGHBOURS).clip(0, len(places) - size)
    near_by, largest = first[:, None] + np.arange(size), max(1, size // 4)
    near = np.sort(counts[near_by], axis=1)[:, :-largest]
    length = places[near_by[:, -1]] - places[near_by[:, 0]] + 1 - largest
    usual: Array = near.sum(1) / np.maximum(length, near.shape[1])
    return usual


def _far(distinct: Array, values: Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    quarter, median, three = np.quantile(values, [0.25, 0.5, 0.75])
    distance = np.abs(values - median)
    others = distance[distance > 0]
    width = three - quarter if three > quarter else np.median(others) if len(others) else np.inf
    return np.asarray(np.abs(distinct - median) > _FAR * width)
