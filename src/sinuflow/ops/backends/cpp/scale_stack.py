"""The stack of sinusoidal transformers whose waves all rows share; the plain version is one folder up."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from ...waves import Waves
from .library import call


def forward(x: Tensor, waves: Waves, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The value (D, B), the log-determinant (B,), and with ``keep`` the input of every transformer, (n, D, B)."""
    x = x.contiguous()
    count, features, width, _ = waves.frequency.shape
    rows = x.shape[-1]
    value, ladj = torch.empty_like(x), x.new_empty(rows)
    inputs = x.new_empty((count, *x.shape) if keep else (0,))
    numbers = [t.contiguous() for t in waves]
    tensors = (x, *numbers, value, ladj, inputs if keep else None)
    call("scale_forward", count * x.numel(), rows, *tensors, features, ctypes.c_int64(rows), count, width)
    return value, ladj, inputs


def backward(inputs: Tensor, waves: Waves, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Waves]:
    """The chain rule through :func:`forward`: gradients of x and of the waves."""
    count, features, width, _ = waves.frequency.shape
    rows = grad_z.shape[-1]
    grad_z, grad_ladj = grad_z.contiguous(), grad_ladj.contiguous()
    grad_x = torch.empty_like(grad_z)
    sums = grad_z.new_zeros((count, features, 3 * width + 1))
    a, p, q, _ = (t.contiguous() for t in waves)
    tensors = (inputs, a, p, q, grad_z, grad_ladj, grad_x, sums)
    # By one thread, because all rows add to the same sums.
    call("scale_backward", 0, rows, *tensors, features, ctypes.c_int64(rows), count, width)
    of_a, of_p, of_q, of_d = sums.unsqueeze(-1).split([width, width, width, 1], dim=-2)
    return grad_x, Waves(of_a.contiguous(), of_p.contiguous(), of_q.contiguous(), of_d.squeeze(-2))


def inverse(z: Tensor, waves: Waves, max_iterations: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x (D, B); for every row the inverse's log-determinant, the iterations, the residual, and whether it converged."""
    z = z.contiguous()
    count, features, width, _ = waves.frequency.shape
    rows = z.shape[-1]
    x, ladj, residual = torch.empty_like(z), z.new_empty(rows), z.new_empty(rows)
    iterations = torch.empty_like(ladj, dtype=torch.int32)
    converged = torch.empty_like(ladj, dtype=torch.bool)
    numbers = [t.contiguous() for t in waves]
    tensors = (z, *numbers, x, ladj, iterations, residual, converged)
    sizes = (features, ctypes.c_int64(rows), count, width, max_iterations)
    call("scale_inverse", 8 * count * z.numel(), rows, *tensors, *sizes)
    return x, ladj, iterations, residual, converged
