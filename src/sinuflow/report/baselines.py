"""Baseline densities without training: a Gaussian and a kernel density estimate."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..errors import ArgumentError
from .content import Floats

MAX_KERNELS = 20_000
#: Rows with which the bandwidth is chosen.
BANDWIDTH_ROWS = 2_000
#: Multiples of Scott's bandwidth, a sixth of an octave apart; the smallest keeps repeated rows from driving it to zero.
MULTIPLES = 2.0 ** (np.arange(-30, 13) / 6)
_BLOCK = 2_000_000  # distances at a time: 16 MB


def gaussian_log_density(train: ArrayLike, test: ArrayLike) -> Floats:
    """log N(x; μ, Σ) at the rows of ``test``, with maximum likelihood's μ = mean(train), Σ = cov(train).

    log p(x) = −½ |L⁻¹(x − μ)|² − log det L − (D/2) log 2π, where LLᵀ = Σ.
    """
    rows, queries = _tables(train, test)
    whitening = _Whitening.of(rows)
    return whitening.log_density(-0.5 * np.square(whitening(queries)).sum(axis=1))


def kde_log_density(train: ArrayLike, test: ArrayLike, *, bandwidth: float | None = None) -> Floats:
    """log of a kernel density estimate, p(x) = (1/n) Σᵢ N(x; xᵢ, h²Σ), where Σ = cov(train).

    h is ``bandwidth``, or else c·n^(−1/(D+4)), Scott's rule times the c with the best leave-one-out likelihood on at
    most 2,000 rows. Of a larger table, 20,000 random rows carry a kernel.
    """
    rows, queries = _tables(train, test)
    whitening = _Whitening.of(rows)
    kernels = whitening(_subsample(rows, MAX_KERNELS))
    n, features = kernels.shape
    if bandwidth is None:
        bandwidth = _best_multiple(kernels) * _scott(n, features)
    if not (math.isfinite(bandwidth) and bandwidth > 0):
        raise ArgumentError(f"a bandwidth is positive and finite, not {bandwidth}")
    blocks = np.array_split(whitening(queries), -(-len(queries) * n // _BLOCK) or 1)
    total = np.concatenate([_log_kernels(_squared_distances(block, kernels), bandwidth, features) for block in blocks])
    return whitening.log_density(total - math.log(n))


class _Whitening(NamedTuple):
    """x ↦ L⁻¹((x − μ)/s), where LLᵀ is the correlation matrix and s the standard deviations."""

    mean: Floats
    scale: Floats
    factor: Floats

    @classmethod
    def of(cls, rows: Floats) -> _Whitening:
        """Factor the covariance, raising its eigenvalues only where rounding makes it not positive definite."""
        mean, scale = rows.mean(axis=0), rows.std(axis=0)
        scale[(np.ptp(rows, axis=0) == 0) | (scale == 0)] = 1.0
        standardized = (rows - mean) / scale
        correlation = standardized.T @ standardized / len(rows)
        eigenvalues = np.linalg.eigvalsh(correlation)
        # The eigenvalues themselves have errors of about D ulps of the largest.
        floor = 16 * len(mean) * np.finfo(np.float64).eps * max(float(eigenvalues[-1]), 1.0)
        jitter = max(0.0, floor - float(eigenvalues[0]))
        return cls(mean, scale, np.linalg.cholesky(correlation + jitter * np.eye(len(mean))))

    def __call__(self, rows: Floats) -> Floats:
        return np.linalg.solve(self.factor, ((rows - self.mean) / self.scale).T).T

    def log_density(self, exponent: Floats) -> Floats:
        """The log-density whose unnormalized value on whitened rows is the exponent."""
        log_volume = np.log(np.diag(self.factor)).sum() + np.log(self.scale).sum()
        return np.asarray(exponent - log_volume - 0.5 * len(self.mean) * math.log(2 * math.pi))


def _best_multiple(kernels: Floats) -> float:
    """The c that maximizes Σᵢ log Σ_{j≠i} N(xᵢ; xⱼ, (c·s)²I), where s is Scott's bandwidth."""
    rows = _subsample(kernels, BANDWIDTH_ROWS)
    distances = _squared_distances(rows, rows).fill_diagonal_(math.inf)
    scores = [_log_kernels(distances, h, rows.shape[1]).mean() for h in MULTIPLES * _scott(*rows.shape)]
    return float(MULTIPLES[int(np.argmax(scores))])


def _scott(n: int, features: int) -> float:
    return float(n ** (-1.0 / (features + 4)))


def _squared_distances(left: Floats, right: Floats) -> Tensor:
    return torch.cdist(torch.from_numpy(left), torch.from_numpy(right)).square()


def _log_kernels(squared_distances: Tensor, bandwidth: float, features: int) -> Floats:
    """log Σⱼ exp(−dᵢⱼ²/(2h²)) / h^D."""
    return np.asarray((squared_distances / (-2 * bandwidth**2)).logsumexp(1).numpy() - features * math.log(bandwidth))


def _subsample(rows: Floats, most: int) -> Floats:
    """At most ``most`` rows, drawn without replacement by a fixed seed, because the table may be sorted."""
    if len(rows) <= most:
        return rows
    return np.asarray(rows[np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))])


def _tables(train: ArrayLike, test: ArrayLike) -> tuple[Floats, Floats]:
    left, right = (np.asarray(table, dtype=np.float64) for table in (train, test))
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[1] or len(left) < 2 or not left.shape[1]:
        raise ArgumentError(
            f"a baseline needs two tables with equal columns, and two rows to fit, "
            f"not shapes {left.shape}, {right.shape}"
        )
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise ArgumentError("a baseline needs finite values")
    return left, right
