"""How far the model's samples are from the data, one column at a time."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .content import ColumnView, Floats

HUGE = 1e300


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
    return 0.5 * sum(abs(p[value] / len(left) - q[value] / len(right)) for value in sorted(p.keys() | q.keys()))


def chance(rows: int, samples: int) -> float:
    """The gap that two samples of one continuous distribution exceed one time in twenty: 1.358·√(1/n + 1/m)."""
    return 1.358 * math.sqrt(1 / rows + 1 / samples) if rows and samples else math.nan


def noticeable(column: ColumnView) -> float:
    """A gap that chance hardly explains: twice :func:`chance` for numbers, and for categories one
    :func:`chance` more than the total variation to be expected, ½ Σ √(2 p(1 − p)(1/n + 1/m)/π).
    """
    n, m = len(column.data), len(column.samples)
    if column.kind not in ("category", "constant") or not n or not m:
        return 2 * chance(n, m)
    counts = Counter(map(str, [*column.data.tolist(), *column.samples.tolist()])).values()
    shares = np.array(sorted(counts)) / (n + m)
    return chance(n, m) + 0.5 * float(np.sqrt(2 * shares * (1 - shares) * (1 / n + 1 / m) / np.pi).sum())


def numbers(values: NDArray[Any]) -> Floats:
    """The finite ones, in float64, of a size whose differences are finite too."""
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.abs(array) < HUGE]
