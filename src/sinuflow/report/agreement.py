"""How far the model's samples are from the data, one column at a time."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .content import ColumnView, Floats


def gap(column: ColumnView) -> float:
    """Between 0 (the same distribution) and 1 (nothing in common); NaN where a side has no values.

    Numbers: Kolmogorov–Smirnov's maxₓ |F̂(x) − Ĝ(x)| of the two empirical distributions. Categories: the total
    variation ½ Σ |p̂ − q̂|.
    """
    if column.kind in ("category", "constant"):
        return total_variation(column.data, column.samples)
    return largest_step(numbers(column.data), numbers(column.samples))


def largest_step(left: Floats, right: Floats) -> float:
    """maxₓ |F̂(x) − Ĝ(x)|, which is reached at one of the values."""
    if not len(left) or not len(right):
        return math.nan
    left, right = np.sort(left), np.sort(right)
    at = np.concatenate([left, right])
    steps = np.searchsorted(left, at, "right") / len(left) - np.searchsorted(right, at, "right") / len(right)
    return float(np.abs(steps).max())


def total_variation(left: NDArray[Any], right: NDArray[Any]) -> float:
    """½ Σ |p̂ − q̂| over all the values that occur."""
    if not len(left) or not len(right):
        return math.nan
    p, q = Counter(map(str, left.tolist())), Counter(map(str, right.tolist()))
    return 0.5 * sum(abs(p[value] / len(left) - q[value] / len(right)) for value in p.keys() | q.keys())


def chance(rows: int, samples: int) -> float:
    """The gap that two samples of one continuous distribution exceed one time in twenty: 1.358·√(1/n + 1/m)."""
    return 1.358 * math.sqrt(1 / rows + 1 / samples) if rows and samples else math.nan


def numbers(values: NDArray[Any]) -> Floats:
    """The finite ones, in float64."""
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]
