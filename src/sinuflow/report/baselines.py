"""Baseline densities without training: a Gaussian and a kernel density estimate."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..errors import ArgumentError
from .content import Floats

#: Rows with which the bandwidth is chosen.
BANDWIDTH_ROWS = 2_000
#: Multiples of Scott's bandwidth, a sixth of an octave apart; the smallest keeps repeated rows from driving it to zero.
MULTIPLES = 2.0 ** (np.arange(-30, 13) / 6)
_BLOCK = 2_000_000  # distances at a time: 16 MB


def gaussian_log_density(train: ArrayLike, test: ArrayLike) -> Floats:
    """log N(x; μ, Σ) at the rows of ``test``, with maximum likelihood's μ = mean(train), Σ = cov(train).

    log p(x) = −½ |L⁻¹(x − μ)|² − log det L − (D/2) log 2π, where LLᵀ = Σ.
    """
    (_, queries), log_volume = _whitened(train, test)
    return np.asarray(-0.5 * np.square(queries).sum(axis=1) - log_volume)


def kde_log_density(train: ArrayLike, test: ArrayLike) -> Floats:
    """log of a kernel density estimate, p(x) = (1/n) Σᵢ N(x; xᵢ, h²Σ), where Σ = cov(train).

    h = c·n^(−1/(D+4)), Scott's rule times the c with the best leave-one-out likelihood on at most 2,000 rows.
    """
    (kernels, queries), log_volume = _whitened(train, test)
    n, features = kernels.shape
    bandwidth = _best_bandwidth(kernels)
    blocks = np.array_split(queries, -(-len(queries) * n // _BLOCK) or 1)
    total = np.concatenate([_log_kernels(_squared_distances(block, kernels), bandwidth, features) for block in blocks])
    return np.asarray(total - math.log(n) - log_volume)


def subsample(rows: np.ndarray, most: int, random: np.random.Generator | None = None) -> np.ndarray:
    """At most ``most`` rows in their order, drawn without replacement, because the table may be sorted."""
    if len(rows) <= most:
        return rows
    random = random or np.random.default_rng(0)
    return np.asarray(rows[np.sort(random.choice(len(rows), most, replace=False))])


def _whitened(train: ArrayLike, test: ArrayLike) -> tuple[tuple[Floats, ...], float]:
    """Both tables under x ↦ L⁻¹((x − μ)/s), and log det(sL) + (D/2) log 2π.

    LLᵀ is the correlation matrix of the training rows, whose eigenvalues are raised only where rounding makes it not
    positive definite, and s are their standard deviations.
    """
    rows, queries = (np.asarray(table, dtype=np.float64) for table in (train, test))
    if rows.ndim != 2 or queries.ndim != 2 or rows.shape[1] != queries.shape[1] or len(rows) < 2 or not rows.shape[1]:
        raise ArgumentError(
            f"a baseline needs two tables with equal columns, and two rows to fit, "
            f"not shapes {rows.shape}, {queries.shape}"
        )
    if not (np.isfinite(rows).all() and np.isfinite(queries).all()):
        raise ArgumentError("a baseline needs finite values")
    mean, scale = rows.mean(axis=0), rows.std(axis=0)
    scale[(np.ptp(rows, axis=0) == 0) | (scale == 0)] = 1.0
    standardized = (rows - mean) / scale
    correlation = standardized.T @ standardized / len(rows)
    eigenvalues = np.linalg.eigvalsh(correlation)
    # The eigenvalues themselves have errors of about D ulps of the largest.
    floor = 16 * len(mean) * np.finfo(np.float64).eps * max(float(eigenvalues[-1]), 1.0)
    jitter = max(0.0, floor - float(eigenvalues[0]))
    factor = np.linalg.cholesky(correlation + jitter * np.eye(len(mean)))
    log_volume = np.log(np.diag(factor)).sum() + np.log(scale).sum() + 0.5 * len(mean) * math.log(2 * math.pi)
    return tuple(np.linalg.solve(factor, table.T).T for table in (standardized, (queries - mean) / scale)), log_volume


def _best_bandwidth(kernels: Floats) -> float:
    """Scott's bandwidth s times the c that maximizes Σᵢ log Σ_{j≠i} N(xᵢ; xⱼ, (c·s)²I) over a subsample."""
    rows = subsample(kernels, BANDWIDTH_ROWS)
    distances = _squared_distances(rows, rows).fill_diagonal_(math.inf)
    scott, scott_of_rows = (len(table) ** (-1 / (table.shape[1] + 4)) for table in (kernels, rows))
    scores = [_log_kernels(distances, h, rows.shape[1]).mean() for h in MULTIPLES * scott_of_rows]
    return float(MULTIPLES[int(np.argmax(scores))] * scott)


def _squared_distances(left: Floats, right: Floats) -> Tensor:
    return torch.cdist(torch.from_numpy(left), torch.from_numpy(right)).square()


def _log_kernels(squared_distances: Tensor, bandwidth: float, features: int) -> Floats:
    """log Σⱼ exp(−dᵢⱼ²/(2h²)) / h^D."""
    return np.asarray((squared_distances / (-2 * bandwidth**2)).logsumexp(1).numpy() - features * math.log(bandwidth))
