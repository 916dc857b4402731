"""The linear bijection that makes columns uncorrelated, and its estimate from data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..registry import register
from .columns import DataBijection

#: Shrinkages λ of the covariance towards its diagonal that are tried.
_SHRINKAGES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.4, 0.7)
_FOLDS = 5


@register
class Whitening(DataBijection):
    r"""The map :math:`z = L^{-1}(x - \mu)` with a lower triangular L: rows of covariance :math:`L L^T` become white.

    It starts as the identity; :meth:`initialize` estimates μ and L.

    Example:
        >>> x = torch.randn(2, 1000, dtype=torch.float64)
        >>> x[1] += x[0]
        >>> z = Whitening(2).initialize(x, None)
        >>> bool((torch.cov(z) - torch.eye(2)).abs().max() < 0.1)
        True
    """

    mean: Tensor
    factor: Tensor

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.register_buffer("mean", torch.zeros(features, dtype=torch.float64))
        self.register_buffer("factor", torch.eye(features, dtype=torch.float64))

    def value(self, x: Tensor) -> Tensor:
        z: Tensor = torch.linalg.solve_triangular(self.factor, x.double() - self.mean.unsqueeze(1), upper=False)
        return z

    def inverse_value(self, y: Tensor) -> Tensor:
        return self.factor @ y.double() + self.mean.unsqueeze(1)

    def log_determinant(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.factor.diagonal().log().sum().expand(y.shape[-1])

    @torch.no_grad()
    def initialize(self, x: Tensor, context: Tensor | None) -> Tensor:
        self.mean, self.factor = estimate_whitening(x.mT.contiguous())
        return self.value(x)


def estimate_whitening(y: Tensor) -> tuple[Tensor, Tensor]:
    r"""The mean μ of rows y and the triangular factor L of their covariance, :math:`\Sigma = L L^T`.

    :math:`\Sigma = (1 - \lambda) S + \lambda \operatorname{diag} S` with the λ of the highest held-out likelihood, by
    cross-validation: the covariance S of few rows overfits.
    """
    scores = torch.zeros(len(_SHRINKAGES), dtype=torch.float64)
    fold = torch.arange(len(y)) % _FOLDS
    for k in range(_FOLDS if len(y) >= 2 * _FOLDS else 0):
        inner, outer = y[fold != k], y[fold == k]
        if len(inner) <= y.shape[1]:
            scores += _log_densities_wide(outer, inner)
            continue
        mean, covariance = _moments(inner)
        for i, shrinkage in enumerate(_SHRINKAGES):
            scores[i] += _log_density(outer, mean, covariance, shrinkage)
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


def _factor(covariance: Tensor, shrinkage: float) -> Tensor | None:
    diagonal = covariance.diagonal().clamp(min=1e-12)
    shrunk = (1 - shrinkage) * covariance
    shrunk.diagonal().add_(shrinkage * diagonal)
    factor, failed = torch.linalg.cholesky_ex(shrunk)
    # A variance of 1e-10 next to others of 1 is rounding, not information.
    return None if int(failed) or bool((factor.diagonal() ** 2 < 1e-9 * diagonal).any()) else factor


def _log_density(y: Tensor, mean: Tensor, covariance: Tensor, shrinkage: float) -> float:
    factor = _factor(covariance, shrinkage)
    if factor is None:
        return -torch.inf
    z = torch.linalg.solve_triangular(factor, (y - mean).mT, upper=False)
    # Outliers must not decide alone: the flow will model them better than a Gaussian does.
    distance = (z * z).sum(0).clamp(max=50.0 * len(z))
    return float(-0.5 * distance.sum() - len(y) * factor.diagonal().log().sum())


def _log_densities_wide(y: Tensor, inner: Tensor) -> Tensor:
    r"""The log-densities for all shrinkages, if ``inner`` has no more rows than columns.

    With :math:`Z` the standardized inner rows, the shrunk correlation :math:`(1 - \lambda) Z^T Z / n + \lambda I` has
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
    for i, shrinkage in enumerate(_SHRINKAGES[1:], start=1):
        variances = (1 - shrinkage) * singular**2 / rows + shrinkage
        distance = ((inside / variances).sum(1) + outside / shrinkage).clamp(max=50.0 * columns)
        half = scale.log().sum() + 0.5 * (variances.log().sum() + (columns - rows) * math.log(shrinkage))
        scores[i] = -0.5 * distance.sum() - len(y) * half
    return scores
