"""Conditional waves, with the parameters of every row."""

from __future__ import annotations

import torch
from torch import Tensor

from ...conditional_waves import Shape
from . import library


def forward(x: Tensor, parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """The value (D, B) and the log-determinant (B,)."""
    return library.forward("conditional", shape, [parameters], x)


def backward(x: Tensor, parameters: Tensor, grad_z: Tensor, grad_ladj: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Gradients of x and of the parameters."""
    gradients = torch.empty_like(parameters, memory_format=torch.contiguous_format)
    return library.backward("conditional", shape, [parameters], gradients, x, grad_z, grad_ladj)


def inverse(
    z: Tensor, parameters: Tensor, shape: Shape, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x, the slope of the forward map, iterations, residual and whether it converged, all of shape (D, B)."""
    return library.inverse("conditional", shape, [parameters], z, max_iterations)
