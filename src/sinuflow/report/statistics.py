"""Distances between data and samples of a column, and tests of the noise."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .content import ColumnView, Floats

#: Values of at least this size are left out, so that differences stay finite.
HUGE = 1e300


def distance(column: ColumnView) -> float:
    """The distance between data and samples, from 0 (equal) to 1 (disjoint); NaN where one of them has no values.

    Numbers: the Kolmogorov–Smirnov distance maxₓ |F̂(x) − Ĝ(x)|. Categories: the total variation ½ Σ |p̂ − q̂|.
    """
    if column.kind == "category":
        p, q = Counter(column.data.tolist()), Counter(column.samples.tolist())
        n, m = len(column.data), len(column.samples)
        return 0.5 * sum(abs(p[value] / n - q[value] / m) for value in sorted(p.keys() | q.keys()))
    data, samples = np.sort(finite(column.data)), np.sort(finite(column.samples))
    if not len(data) or not len(samples):
        return math.nan
    at = np.concatenate([data, samples])
    steps = np.searchsorted(data, at, "right") / len(data) - np.searchsorted(samples, at, "right") / len(samples)
    return float(np.abs(steps).max())


def chance(column: ColumnView) -> float:
    """The distance that two samples of one continuous distribution exceed with probability 5 %: 1.358·√(1/n + 1/m)."""
    return 1.358 * math.sqrt(1 / len(column.data) + 1 / len(column.samples))


def noticeable(column: ColumnView) -> float:
    """A distance that chance hardly explains.

    Twice :func:`chance` for numbers; for categories :func:`chance` plus the expected total variation,
    ½ Σ √(2 p(1 − p)(1/n + 1/m)/π).
    """
    if column.kind != "category":
        return 2 * chance(column)
    n, m = len(column.data), len(column.samples)
    counts = Counter([*column.data.tolist(), *column.samples.tolist()]).values()
    p = np.array(sorted(counts)) / (n + m)
    return chance(column) + 0.5 * float(np.sqrt(2 * p * (1 - p) * (1 / n + 1 / m) / np.pi).sum())


def finite(values: NDArray[Any]) -> Floats:
    """The finite values, in float64."""
    array = np.asarray(values, dtype=np.float64)
    return array[np.abs(array) < HUGE]


def kolmogorov_smirnov(sample: Floats) -> tuple[float, float]:
    """The Kolmogorov–Smirnov test of a sample against N(0, 1): the statistic and the p-value.

    D = maxᵢ max(i/n − Φ(z₍ᵢ₎), Φ(z₍ᵢ₎) − (i−1)/n), and p = Q(√n·D) with Kolmogorov's limit distribution. NaN in the
    sample counts as infinite.
    """
    z = np.sort(np.nan_to_num(np.asarray(sample, dtype=np.float64), nan=np.inf))
    n = len(z)
    phi = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z.tolist()])
    statistic = float(max((np.arange(1, n + 1) / n - phi).max(), (phi - np.arange(n) / n).max()))
    return statistic, kolmogorov_tail(math.sqrt(n) * statistic)


def kolmogorov_tail(x: float) -> float:
    """Q(x) = P(K > x) = 2 Σₖ (−1)ᵏ⁻¹ exp(−2k²x²)."""
    k = np.arange(1, 201)  # exact to rounding for x ≥ 0.04, below which Q is 1 to rounding
    return float(2 * np.sum((-1.0) ** (k - 1) * np.exp(-2 * (k * x) ** 2))) if x >= 0.04 else 1.0


def correlations(z: Floats) -> Floats:
    """Pearson's r of every two columns, over the finite rows; NaN for a constant column."""
    rows = np.asarray(z, dtype=np.float64)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if len(rows) < 2:
        return np.full((rows.shape[1], rows.shape[1]), np.nan)
    varying = np.where(np.ptp(rows, axis=0) > 0, rows, np.nan)
    return np.atleast_2d(np.corrcoef(varying, rowvar=False))
