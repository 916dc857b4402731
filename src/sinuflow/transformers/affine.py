"""The affine transformer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.conditional_waves import LOG_SCALE_MAX
from ..ops.pixel_affine import log_scale
from ..registry import register
from ..solvers import Root, SolverOptions
from .base import Transformer


@register
class Affine(Transformer):
    r"""The map :math:`z = e^s (x + c)` with h = (c, r) and the bounded log-scale :math:`s = 2 \tanh(r / 2)`.

    Example:
        >>> h = torch.tensor([[[3.0], [0.0]]])
        >>> z, ladj = Affine()(torch.ones(1, 1), h)
        >>> z.item(), ladj.item()
        (4.0, 0.0)
    """

    kind = "affine"
    num_parameters = 2

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        shift, free = h.unbind(-2)
        s = log_scale(free)
        return torch.exp(s) * (x + shift), s.sum(0)

    def inverse(self, z: Tensor, h: Tensor, options: SolverOptions) -> Root:
        shift, free = h.unbind(-2)
        s = log_scale(free)
        return Root.exact(z * torch.exp(-s) - shift, torch.exp(s))

    def gradients(self, x: Tensor, h: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
        shift, free = h.unbind(-2)
        s = log_scale(free)
        grad = grad_z * torch.exp(s)
        grad_free = (grad * (x + shift) + grad_ladj) * (1 - (s / LOG_SCALE_MAX) ** 2)
        return grad, torch.stack([grad, grad_free], dim=-2)
