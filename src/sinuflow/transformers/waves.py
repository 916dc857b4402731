"""The sinusoidal transformers with every parameter computed by a conditioner."""

from __future__ import annotations

from torch import Tensor

from ..errors import ArgumentError
from ..ops.conditional_waves import Shape, backward, conditional_waves, inverse
from ..registry import register
from ..solvers import Root, SolverOptions
from .base import Transformer


@register
class ConditionalWaves(Transformer):
    r"""The map :math:`z = \tau_n \circ \dots \circ \tau_1 (e^s x + d)` of n ``scales`` with K ``waves`` each.

    The order of the parameters is that of :mod:`sinuflow.ops.conditional_waves`.

    Example:
        >>> import torch
        >>> waves = ConditionalWaves(scales=2, waves=4)
        >>> x = torch.randn(3, 5)
        >>> z, ladj = waves(x, torch.zeros(3, waves.num_parameters, 5))  # the identity
        >>> torch.allclose(z, x)
        True
    """

    def __init__(self, scales: int = 2, waves: int = 4) -> None:
        super().__init__()
        if scales < 1 or waves < 1:
            raise ArgumentError(f"scales and waves must be at least 1; got {scales} and {waves}")
        self.scales, self.waves = scales, waves
        self.shape = Shape(scales, waves)
        self.num_parameters = self.shape.parameters

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return conditional_waves(x, h, self.shape)

    def inverse(self, z: Tensor, h: Tensor, options: SolverOptions) -> Root:
        return inverse(z, h, self.shape, options)

    def gradients(self, x: Tensor, h: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
        return backward(x, h, self.shape, grad_z, grad_ladj)
