"""The Gaussian that a flow starts from."""

from __future__ import annotations

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
    shrunk = (1 - share) * covariance + share * torch.diag(diagonal)
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
