"""Is the noise normal? If the model is right, T⁻¹ turns held-out rows into independent N(0, 1) draws."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .content import Floats


class Kolmogorov(NamedTuple):
    """One sample's Kolmogorov–Smirnov test against N(0, 1)."""

    statistic: float
    p_value: float


def kolmogorov_smirnov(sample: Floats) -> Kolmogorov:
    """The largest distance between the empirical distribution F̂ and Φ, and how likely chance makes it larger.

    D = maxᵢ max(i/n − Φ(z₍ᵢ₎), Φ(z₍ᵢ₎) − (i−1)/n), and p = Q(√n·D) with Kolmogorov's limit distribution.
    NaN stands for an empty sample; a value that is not a number counts as infinitely far out.
    """
    z = np.sort(np.nan_to_num(np.asarray(sample, dtype=np.float64).ravel(), nan=np.inf))
    n = len(z)
    if n == 0:
        return Kolmogorov(math.nan, math.nan)
    phi = normal_distribution(z)
    above = np.arange(1, n + 1) / n - phi
    below = phi - np.arange(n) / n
    statistic = float(max(above.max(), below.max()))
    return Kolmogorov(statistic, kolmogorov_tail(math.sqrt(n) * statistic))


def normal_distribution(z: Floats) -> Floats:
    """Φ(z) = erfc(−z/√2) / 2."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in z.tolist()])


def kolmogorov_tail(x: float) -> float:
    """Q(x) = P(K > x) = 2 Σₖ (−1)ᵏ⁻¹ exp(−2k²x²) = 1 − (√(2π)/x) Σₖ exp(−(2k−1)²π²/(8x²)).

    The first series converges fast for large x, the second for small x: below one, four terms of it are exact
    to rounding, and so are five of the first above.
    """
    if x < 0.04:  # the second series is then below the smallest double
        return 1.0
    if x < 1.0:
        terms = sum(math.exp(-(((2 * k - 1) * math.pi / x) ** 2) / 8) for k in range(1, 5))
        return 1.0 - math.sqrt(2 * math.pi) / x * terms
    return 2.0 * sum((1 if k % 2 else -1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 6))


def correlations(z: Floats) -> Floats:
    """Pearson's r of every two columns, over the finite rows; NaN for a column that does not vary."""
    rows = np.asarray(z, dtype=np.float64)
    rows = rows[np.isfinite(rows).all(axis=1)]
    if len(rows) < 2:
        return np.full((rows.shape[1], rows.shape[1]), np.nan)
    centred = rows - rows.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    norms[np.ptp(rows, axis=0) == 0] = np.nan
    unit = centred / norms
    return np.asarray(np.clip(unit.T @ unit, -1.0, 1.0))
