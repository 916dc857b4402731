"""Learned linear maps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..registry import register
from ..solvers import Inversion, SolverOptions
from .base import Bijection


@register
class Linear(Bijection):
    r"""The map :math:`z = L U x + b` with a unit lower triangular L and an upper triangular U of positive diagonal.

    The log-determinant is :math:`\sum_i \log U_{ii}`, a constant. It starts as the identity.

    Example:
        >>> linear = Linear(features=3)
        >>> x = torch.randn(5, 3)
        >>> z, ladj = linear(x)
        >>> torch.allclose(linear.inverse(z)[0], x)
        True
    """

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.lower = nn.Parameter(torch.zeros(features, features))
        self.upper = nn.Parameter(torch.zeros(features, features))
        self.log_diagonal = nn.Parameter(torch.zeros(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def _factors(self) -> tuple[Tensor, Tensor]:
        identity = torch.eye(self.features, dtype=self.lower.dtype, device=self.lower.device)
        return self.lower.tril(-1) + identity, self.upper.triu(1) + self.log_diagonal.exp().diag()

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        lower, upper = self._factors()
        return torch.addmm(self.bias.unsqueeze(-1), lower, upper @ x), self.log_diagonal.sum().expand(x.shape[-1])

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> Inversion:
        lower, upper = self._factors()
        y = torch.linalg.solve_triangular(lower, z - self.bias.unsqueeze(-1), upper=False, unitriangular=True)
        x = torch.linalg.solve_triangular(upper, y, upper=True)
        return Inversion.exact(x, -self.log_diagonal.sum().expand(z.shape[-1]))
