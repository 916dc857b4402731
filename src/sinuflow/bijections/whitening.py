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
        factor = torch.zeros(features, features, dtype=torch.float64)  # unlike eye, no memory before it is written
        factor.diagonal().fill_(1)
        self.register_buffer("factor", factor)

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
        scores += _log_densities(y[fold == k], y[fold != k])
    mean = y.mean(0)
    covariance = (y - mean).mT @ (y - mean) / len(y)
    diagonal = covariance.diagonal().clamp(min=1e-12)
    for i in scores.argsort(descending=True).tolist():
        shrunk = (1 - _SHRINKAGES[i]) * covariance
        shrunk.diagonal().add_(_SHRINKAGES[i] * diagonal)
        factor, failed = torch.linalg.cholesky_ex(shrunk)
        # A variance of 1e-10 next to others of 1 is rounding, not information.
        if not int(failed) and not bool((factor.diagonal() ** 2 < 1e-9 * diagonal).any()):
            return mean, factor
    return mean, torch.diag(diagonal.sqrt())


def _log_densities(y: Tensor, inner: Tensor) -> Tensor:
    r"""The Gaussian log-density of y up to a constant, for each shrinkage of the covariance of ``inner``.

    With :math:`Z` the standardized inner rows, the shrunk correlation :math:`(1 - \lambda) Z^T Z / n + \lambda I` has
    the same eigenvectors for every λ, and λ as its other eigenvalues if there are fewer rows than columns.
    """
    rows, columns = inner.shape
    mean = inner.mean(0)
    scale = (inner - mean).square().mean(0).clamp(min=1e-12).sqrt()
    standardized, z = (inner - mean) / scale, (y - mean) / scale
    if rows > columns:
        eigenvalues, directions = torch.linalg.eigh(standardized.mT @ standardized / rows)
    else:  # one decomposition of few rows, and none of a large matrix
        _, singular, transposed = torch.linalg.svd(standardized, full_matrices=False)
        eigenvalues, directions = singular**2 / rows, transposed.mT
    inside = (z @ directions).square()
    outside = (z.square().sum(1) - inside.sum(1)).clamp(min=0.0)
    scores = torch.full((len(_SHRINKAGES),), -torch.inf, dtype=torch.float64)
    for i, shrinkage in enumerate(_SHRINKAGES):
        variances = ((1 - shrinkage) * eigenvalues + shrinkage).clamp(min=1e-30)
        distance, log_determinant = (inside / variances).sum(1), variances.log().sum()
        if rows <= columns:
            if not shrinkage:
                continue  # the covariance is singular
            distance += outside / shrinkage
            log_determinant += (columns - rows) * math.log(shrinkage)
        # Outliers must not decide alone: the flow will model them better than a Gaussian does.
        distance = distance.clamp(max=50.0 * columns)
        scores[i] = -0.5 * (distance.sum() + len(y) * log_determinant) - len(y) * scale.log().sum()
    return scores
