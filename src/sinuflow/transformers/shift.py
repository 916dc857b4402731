"""The shift transformer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry import register
from ..solvers import Root, SolverOptions
from .base import Transformer


@register
class Shift(Transformer):
    """The map z = x + h.

    Example:
        >>> z, ladj = Shift()(torch.zeros(1, 2), torch.ones(1, 1, 2))
        >>> z.tolist(), ladj.tolist()
        ([[1.0, 1.0]], [0.0, 0.0])
    """

    kind = "shift"
    num_parameters = 1
    unimodular = True

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return x + h.squeeze(-2), x.new_zeros(x.shape[-1])

    def inverse(self, z: Tensor, h: Tensor, options: SolverOptions) -> Root:
        x = z - h.squeeze(-2)
        return Root.exact(x, torch.ones_like(x))

    def gradients(self, x: Tensor, h: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
        return grad_z, grad_z.unsqueeze(-2)
