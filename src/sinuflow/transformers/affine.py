"""The shift transformer and the affine transformer."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.pixel_affine import log_scale
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

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return x + h.squeeze(-2), x.new_zeros(x.shape[-1])

    def inverse(self, z: Tensor, h: Tensor, options: SolverOptions) -> Root:
        x = z - h.squeeze(-2)
        return Root.exact(x, torch.ones_like(x))

    def gradients(self, x: Tensor, h: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
        return grad_z, grad_z.unsqueeze(-2)


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
