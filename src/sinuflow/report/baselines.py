"""Densities that need no training, for comparison: a Gaussian and a kernel estimate."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..errors import ArgumentError
from .content import Floats

MOST_KERNELS = 20_000
ROWS_TO_CHOOSE = 2_000
# Multiples of Scott's bandwidth, a sixth of an octave apart; the smallest keeps repeated rows from driving it to zero.
MULTIPLES = 2.0 ** (np.arange(-30, 13) / 6)
_CELLS = 2_000_000  # of a block of distances: 16 MB


def gaussian_log_density(train: ArrayLike, test: ArrayLike) -> Floats:
    """log N(x; μ, Σ) at the rows of ``test``, with maximum likelihood's μ = mean(train), Σ = cov(train).

    log p(x) = −½ |L⁻¹(x − μ)|² − log det L − (D/2) log 2π, where LLᵀ = Σ.
    """
    rows, queries = _tables(train, test)
    whitening = _whitening(rows)
    return _log_normalised(-0.5 * np.square(whitening(queries)).sum(axis=1), whitening)


def kde_log_density(train: ArrayLike, test: ArrayLike, *, bandwidth: float | None = None) -> Floats:
    """log of a kernel density estimate, p(x) = (1/n) Σᵢ N(x; xᵢ, h²Σ), where Σ = cov(train).

    h is ``bandwidth``, or else c·n^(−1/(D+4)), Scott's rule times the c with the best leave-one-out likelihood on at
    most 2,000 rows. Of a larger table, 20,000 rows drawn at random carry a kernel.
    """
    rows, queries = _tables(train, test)
    whitening = _whitening(rows)
    kernels = whitening(_draw(rows, MOST_KERNELS))
    n, features = kernels.shape
    if bandwidth is None:
        bandwidth = _best_multiple(kernels) * _scott(n, features)
    if not (math.isfinite(bandwidth) and bandwidth > 0):
        raise ArgumentError(f"a bandwidth is positive and finite, not {bandwidth}")
    total = np.empty(len(queries))
    step = max(1, _CELLS // n)
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        exponents = _squared_distances(whitening(queries[part]), kernels) / (-2 * bandwidth**2)
        total[part] = _log_sum_exp(exponents)
    return _log_normalised(total - math.log(n) - features * math.log(bandwidth), whitening)


class _Whitening(NamedTuple):
    """x ↦ L⁻¹((x − μ)/s), where LLᵀ is the correlation matrix and s the standard deviations."""

    mean: Floats
    scale: Floats
    factor: Floats

    def __call__(self, rows: Floats) -> Floats:
        return np.linalg.solve(self.factor, ((rows - self.mean) / self.scale).T).T

    @property
    def log_volume(self) -> float:
        return float(np.log(np.diag(self.factor)).sum() + np.log(self.scale).sum())


def _whitening(rows: Floats) -> _Whitening:
    """Factor the covariance, lifting its eigenvalues only where rounding leaves no positive definite matrix."""
    mean = rows.mean(axis=0)
    scale = rows.std(axis=0)
    scale[(np.ptp(rows, axis=0) == 0) | (scale == 0)] = 1.0
    standard = (rows - mean) / scale
    correlation = standard.T @ standard / len(rows)
    eigenvalues = np.linalg.eigvalsh(correlation)
    # The eigenvalues themselves are uncertain by about D ulps of the largest.
    floor = 16 * len(mean) * np.finfo(np.float64).eps * max(float(eigenvalues[-1]), 1.0)
    jitter = max(0.0, floor - float(eigenvalues[0]))
    return _Whitening(mean, scale, np.linalg.cholesky(correlation + jitter * np.eye(len(mean))))


def _log_normalised(exponent: Floats, whitening: _Whitening) -> Floats:
    return exponent - whitening.log_volume - 0.5 * len(whitening.mean) * math.log(2 * math.pi)


def _best_multiple(kernels: Floats) -> float:
    """The c that maximises Σᵢ log Σ_{j≠i} N(xᵢ; xⱼ, (c·s)²I), s being Scott's bandwidth for the rows used."""
    rows = _draw(kernels, ROWS_TO_CHOOSE)
    n, features = rows.shape
    distances = _squared_distances(rows, rows)
    np.fill_diagonal(distances, np.inf)
    bandwidths = MULTIPLES * _scott(n, features)
    scores = [_log_sum_exp(distances / (-2 * h**2)).mean() - features * math.log(h) for h in bandwidths]
    return float(MULTIPLES[int(np.argmax(scores))])


def _scott(n: int, features: int) -> float:
    return float(n ** (-1.0 / (features + 4)))


def _squared_distances(left: Floats, right: Floats) -> Floats:
    squares = np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1) - 2 * left @ right.T
    return np.asarray(np.maximum(squares, 0.0))


def _log_sum_exp(exponents: Floats) -> Floats:
    highest = exponents.max(axis=1)
    return np.asarray(highest + np.log(np.exp(exponents - highest[:, None]).sum(axis=1)))


def _draw(rows: Floats, most: int) -> Floats:
    """At most ``most`` rows, drawn without replacement and always the same: the table may be sorted."""
    if len(rows) <= most:
        return rows
    chosen = np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))
    return np.asarray(rows[chosen])


def _tables(train: ArrayLike, test: ArrayLike) -> tuple[Floats, Floats]:
    tables = [np.asarray(table, dtype=np.float64) for table in (train, test)]
    shapes: list[Any] = [table.shape for table in tables]
    if any(len(shape) != 2 for shape in shapes) or shapes[0][1] != shapes[1][1] or 0 in shapes[0] or shapes[0][0] < 2:
        raise ArgumentError(
            f"a baseline needs two tables with equal columns, and two rows to fit, not shapes {shapes[0]}, {shapes[1]}"
        )
    if not all(np.isfinite(table).all() for table in tables):
        raise ArgumentError("a baseline needs finite values")
    return tables[0], tables[1]
