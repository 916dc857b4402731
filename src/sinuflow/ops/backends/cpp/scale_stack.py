"""A stack of sinusoidal transformers, with waves that all rows share or one set per row."""

from __future__ import annotations

import torch
from torch import Tensor

from ...waves import Waves
from .library import call


def forward(x: Tensor, *waves: Tensor, keep: bool = False) -> tuple[Tensor, Tensor]:
    """The value (D, B) and the log-determinant (B,); nothing is kept for the backward pass."""
    x = x.contiguous()
    z, ladj = torch.empty_like(x), x.new_empty(x.shape[-1])
    _call("forward", 1, x, Waves(*waves), z, ladj)
    return z, ladj


def backward(
    x: Tensor, a: Tensor, p: Tensor, q: Tensor, d: Tensor, grad_z: Tensor, grad_ladj: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of x and of the waves."""
    x, waves = x.contiguous(), Waves(a, p, q, d)
    scales, features, width, columns = a.shape
    grad_x, gradients = torch.empty_like(x), x.new_zeros((scales, features, 3 * width + 1, columns))
    # With shared waves on one thread, because all rows are accumulated into the same gradients.
    _call("backward", 0 if columns == 1 else 3, x, waves, grad_z, grad_ladj, grad_x, gradients)
    of_a, of_p, of_q, of_d = gradients.split([width, width, width, 1], dim=-2)
    of_d = of_d.squeeze(-2).sum_to_size(d.shape)
    return grad_x, of_a.contiguous(), of_p.contiguous(), of_q.contiguous(), of_d


def inverse(
    z: Tensor, a: Tensor, p: Tensor, q: Tensor, d: Tensor, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x (D, B); for every row the inverse's log-determinant, the iterations, the residual, and whether it converged."""
    z = z.contiguous()
    x, ladj, residual = torch.empty_like(z), z.new_empty(z.shape[-1]), z.new_empty(z.shape[-1])
    iterations, converged = torch.empty_like(ladj, dtype=torch.int32), torch.empty_like(ladj, dtype=torch.bool)
    _call("inverse", 8, z, Waves(a, p, q, d), x, ladj, iterations, residual, converged, last=(max_iterations,))
    return x, ladj, iterations, residual, converged


def _call(name: str, effort: int, x: Tensor, waves: Waves, *tensors: Tensor, last: tuple[int, ...] = ()) -> None:
    scales, _, width, columns = waves.frequency.shape
    kind = "shared" if columns == 1 else "row"
    shift = waves.shift.expand(*waves.shift.shape[:-1], columns)
    call(f"{kind}_{name}", effort, x, scales, width, x, *waves[:3], shift, *tensors, last=last)
