"""Conditional waves, with the parameters of every row."""

from __future__ import annotations

import torch
from torch import Tensor

from ...conditional_waves import Shape
from .library import call


def forward(x: Tensor, parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """The value (D, B) and the log-determinant (B,)."""
    x = x.contiguous()
    z, ladj = torch.empty_like(x), x.new_empty(x.shape[-1])
    call("conditional_forward", 2, x, *shape, x, parameters, z, ladj)
    return z, ladj


def backward(x: Tensor, parameters: Tensor, grad_z: Tensor, grad_ladj: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the parameters."""
    x, parameters = x.contiguous(), parameters.contiguous()
    grad_x, gradients = torch.empty_like(x), torch.empty_like(parameters)
    call("conditional_backward", 4, x, *shape, x, parameters, grad_z, grad_ladj, grad_x, gradients)
    return grad_x, gradients


def inverse(
    z: Tensor, parameters: Tensor, shape: Shape, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x, the slope of the forward map, iterations, residual and whether it converged, all of shape (D, B)."""
    z = z.contiguous()
    x, slope, residual = torch.empty_like(z), torch.empty_like(z), torch.empty_like(z)
    iterations, converged = torch.empty_like(z, dtype=torch.int32), torch.empty_like(z, dtype=torch.bool)
    outputs = (x, slope, iterations, residual, converged)
    call("conditional_inverse", 8, z, *shape, z, parameters, *outputs, last=(max_iterations,))
    return outputs
