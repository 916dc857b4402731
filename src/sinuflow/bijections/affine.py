"""Elementwise affine maps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..solvers import SolverOptions
from .base import Bijection, LayerInverse


class ElementwiseAffine(Bijection):
    r"""The map :math:`z_i = (x_i - \mu_i) \, e^{-s_i}`.

    It starts as the identity. :meth:`initialize` sets it from data, as ActNorm does (Kingma and
    Dhariwal, 2018), so that its output has mean 0 and standard deviation 1; this happens when it
    is called and never inside ``forward``, whose meaning must not depend on what it saw before.

    Example:
        >>> affine = ElementwiseAffine(2)
        >>> x = 3 + 5 * torch.randn(1000, 2)
        >>> _ = affine.initialize(x.T, None)
        >>> z, _ = affine(x)
        >>> bool(z.mean().abs() < 1e-5)
        True
    """

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.mean = nn.Parameter(torch.zeros(features))
        self.log_scale = nn.Parameter(torch.zeros(features))

    def transform(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        log_scale = self.log_scale.to(x.dtype)
        z = (x - self.mean.unsqueeze(-1)) * torch.exp(-log_scale).unsqueeze(-1)
        return z, -log_scale.sum().expand(x.shape[-1])

    def invert(self, z: Tensor, context: Tensor | None, options: SolverOptions) -> list[LayerInverse]:
        mean, log_scale = self.mean.to(z.dtype), self.log_scale.to(z.dtype)
        x = torch.addcmul(mean.unsqueeze(-1), z, torch.exp(log_scale).unsqueeze(-1))
        return [LayerInverse.exact(x, log_scale.sum().expand(z.shape[-1]))]

    @torch.no_grad()
    def initialize(self, x: Tensor, context: Tensor | None) -> Tensor:
        spread = x.std(dim=-1, correction=0)
        # A feature that does not vary gives no scale: leave it as it is.
        self.log_scale.copy_(torch.where(spread > 0, spread.log(), self.log_scale))
        self.mean.copy_(x.mean(-1))
        return self.transform(x, context)[0]
