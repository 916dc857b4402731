"""Transformers: what an autoregressive layer does to a feature, given that feature's parameters."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..ops.conditional_waves import Shape, conditional_waves, constrained, gradients
from ..ops.select import wave_kernels
from ..ops.stack_inverse import invert_stack
from ..solvers import Root, SolverOptions


class Transformer(Protocol):
    """A monotone map of each feature, whose parameters have shape (D, P, B)."""

    parameters: int

    def forward(self, x: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """z of shape (D, B) and the log-determinant of shape (B,)."""

    def inverse(self, z: Tensor, parameters: Tensor, options: SolverOptions) -> Root:
        """x with its certificate; the slope is that of ``forward``."""

    def gradients(self, x: Tensor, parameters: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
        """The chain rule through ``forward``, without automatic differentiation: for x, the parameters."""


class Shift:
    """The map x + c."""

    parameters = 1

    def forward(self, x: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        return x + parameters.squeeze(-2), x.new_zeros(x.shape[-1])

    def inverse(self, z: Tensor, parameters: Tensor, options: SolverOptions) -> Root:
        x = z - parameters.squeeze(-2)
        return Root(x, torch.ones_like(x), torch.ones_like(x, dtype=torch.int32), torch.zeros_like(x), x.isfinite())

    def gradients(self, x: Tensor, parameters: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
        return grad_z, grad_z.unsqueeze(-2)


class ConditionalWaves:
    """The map of :mod:`sinuflow.ops.conditional_waves`: the waves and an affine map, all parameters given."""

    def __init__(self, scales: int, waves: int) -> None:
        self.scales, self.waves = scales, waves
        self.shape = Shape(scales, waves)
        self.parameters = self.shape.parameters

    def forward(self, x: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        return conditional_waves(x, parameters, self.shape)

    def inverse(self, z: Tensor, parameters: Tensor, options: SolverOptions) -> Root:
        kernels = wave_kernels(self.waves, z, parameters) if options.method == "certified" else None
        if kernels is not None:
            return Root(*kernels.conditional_waves.inverse(z, parameters, *self.shape, options.limit))
        shift, log_scale, waves = constrained(parameters, self.shape)
        root = invert_stack(z, waves, options)
        scale = torch.exp(log_scale)
        x = (root.x - shift) / scale
        finite = x.isfinite()  # the division may overflow
        residual = torch.where(finite, root.residual, torch.inf)
        return Root(x, root.slope * scale, root.iterations, residual, root.converged & finite)

    def gradients(self, x: Tensor, parameters: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
        return gradients(x, parameters, self.shape, grad_z, grad_ladj)
