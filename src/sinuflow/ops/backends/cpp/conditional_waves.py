"""Conditional waves, with the parameters of every row; the plain version is one folder up."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from .library import call


def forward(x: Tensor, parameters: Tensor, scales: int, waves: int) -> tuple[Tensor, Tensor]:
    """The value (D, B) and the log-determinant (B,)."""
    x, parameters = x.contiguous(), parameters.contiguous()
    value, ladj = torch.empty_like(x), x.new_empty(x.shape[-1])
    _call("conditional_forward", x, scales, waves, 2, x, parameters, value, ladj)
    return value, ladj


def backward(
    x: Tensor, parameters: Tensor, scales: int, waves: int, grad_z: Tensor, grad_ladj: Tensor
) -> tuple[Tensor, Tensor]:
    """The chain rule through :func:`forward`: gradients of x and of the parameters."""
    x, parameters = x.contiguous(), parameters.contiguous()
    grad_x, grad_parameters = torch.empty_like(x), torch.empty_like(parameters)
    tensors = (x, parameters, grad_z.contiguous(), grad_ladj.contiguous(), grad_x, grad_parameters)
    _call("conditional_backward", x, scales, waves, 4, *tensors)
    return grad_x, grad_parameters


def inverse(
    z: Tensor, parameters: Tensor, scales: int, waves: int, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x, the slope of the forward map, iterations, residual and whether it converged, all of shape (D, B)."""
    z, parameters = z.contiguous(), parameters.contiguous()
    x, slope, residual = torch.empty_like(z), torch.empty_like(z), torch.empty_like(z)
    iterations = torch.empty_like(z, dtype=torch.int32)
    converged = torch.empty_like(z, dtype=torch.bool)
    tensors = (z, parameters, x, slope, iterations, residual, converged)
    _call("conditional_inverse", z, scales, waves, 8, *tensors, last=(max_iterations,))
    return x, slope, iterations, residual, converged


def _call(
    name: str, x: Tensor, scales: int, waves: int, effort: int, *tensors: Tensor, last: tuple[int, ...] = ()
) -> None:
    features, rows = x.shape
    sizes = (features, ctypes.c_int64(rows), scales, waves, *last)
    call(name, effort * scales * x.numel(), rows, *tensors, *sizes)
