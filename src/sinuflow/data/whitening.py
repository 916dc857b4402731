"""The Gaussian that a flow starts from."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Shares of the diagonal that are tried against overfitting the covariance.
_SHRINKAGES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7)
_FOLDS = 5


def whitening(y: Tensor) -> tuple[Tensor, Tensor]:
    r"""The mean μ and the triangular factor L of the covariance of the rows, :math:`\Sigma = L L^T`.

    :math:`\Sigma = (1 - \lambda) S + \lambda \operatorname{diag} S` with the λ that makes held-out rows
    most likely, by cross-validation: with few rows the plain covariance S fits them too well.
    """
    scores = torch.zeros(len(_SHRINKAGES), dtype=torch.float64)
    fold = torch.arange(len(y)) % _FOLDS
    for k in range(_FOLDS if len(y) >= 2 * _FOLDS else 0):
        inner, outer = y[fold != k], y[fold == k]
        if len(inner) <= y.shape[1]:
            scores += _log_densities_wide(outer, inner)
            continue
        mean, covariance = _moments(inner)
        for i, share in enumerate(_SHRINKAGES):
            scores[i] += _log_density(outer, mean, covariance, share)
    mean, covariance = _moments(y)
    for i in scores.argsort(descending=True).tolist():
        factor = _factor(covariance, _SHRINKAGES[i])
        if factor is not None:
            return mean, factor
    return mean, torch.diag(covariance.diagonal().clamp(min=1e-12).sqrt())


def _moments(y: Tensor) -> tuple[Tensor, Tensor]:
    mean = y.mean(0)
    centred = y - mean
    return mean, centred.mT @ centred / len(y)


def _factor(covariance: Tensor, share: float) -> Tensor | None:
    diagonal = covariance.diagonal().clamp(min=1e-12)
    shrunk = (1 - share) * covariance
    shrunk.diagonal().add_(share * diagonal)
    factor, failed = torch.linalg.cholesky_ex(shrunk)
    # A variance of 1e-10 next to others of 1 is rounding, not information.
    return None if int(failed) or bool((factor.diagonal() ** 2 < 1e-9 * diagonal).any()) else factor


def _log_density(y: Tensor, mean: Tensor, covariance: Tensor, share: float) -> float:
    factor = _factor(covariance, share)
    if factor is None:
        return -torch.inf
    z = torch.linalg.solve_triangular(factor, (y - mean).mT, upper=False)
    # Far rows would decide alone, and the flow will treat them better than a Gaussian does.
    distance = (z * z).sum(0).clamp(max=50.0 * len(z))
    return float(-0.5 * distance.sum() - len(y) * factor.diagonal().log().sum())


def _log_densities_wide(y: Tensor, inner: Tensor) -> Tensor:
    r"""The same for every shrinkage at once, if ``inner`` has no more rows than columns.

    With :math:`Z` the standardised inner rows, the shrunk correlation :math:`(1 - \lambda) Z^T Z / n + \lambda I` has
    the singular vectors of Z whatever λ is: one decomposition of n rows, and no factor of a large matrix.
    """
    rows, columns = inner.shape
    mean = inner.mean(0)
    centred = inner - mean
    scale = (centred**2).mean(0).clamp(min=1e-12).sqrt()
    _, singular, directions = torch.linalg.svd(centred / scale, full_matrices=False)
    z = (y - mean) / scale
    inside = (z @ directions.mT) ** 2
    outside = ((z * z).sum(1) - inside.sum(1)).clamp(min=0.0)
    scores = torch.full((len(_SHRINKAGES),), -torch.inf, dtype=torch.float64)  # without shrinkage it is singular
    for i, share in enumerate(_SHRINKAGES[1:], start=1):
        variances = (1 - share) * singular**2 / rows + share
        distance = ((inside / variances).sum(1) + outside / share).clamp(max=50.0 * columns)
        half = scale.log().sum() + 0.5 * (variances.log().sum() + (columns - rows) * math.log(share))
        scores[i] = -0.5 * distance.sum() - len(y) * half
    return scores
