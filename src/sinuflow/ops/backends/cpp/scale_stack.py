"""A stack of sinusoidal transformers, with waves that all rows share or one set per row."""

from __future__ import annotations

from torch import Tensor

from . import library


def forward(x: Tensor, *waves: Tensor, keep: bool = False) -> tuple[Tensor, Tensor]:
    """The value (D, B) and the log-determinant (B,); nothing is kept for the backward pass."""
    return library.forward(*_waves(*waves), x)


def backward(
    x: Tensor, a: Tensor, p: Tensor, q: Tensor, d: Tensor, grad_z: Tensor, grad_ladj: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of x and of the waves."""
    scales, features, width, columns = a.shape
    gradients = x.new_zeros((scales, features, 3 * width + 1, columns))
    grad_x, gradients = library.backward(*_waves(a, p, q, d), gradients, x, grad_z, grad_ladj)
    *grads, of_d = gradients.split([width, width, width, 1], dim=-2)
    return grad_x, *grads, of_d.squeeze(-2).sum_to_size(d.shape)


def inverse(
    z: Tensor, a: Tensor, p: Tensor, q: Tensor, d: Tensor, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x (D, B); for every row the inverse's log-determinant, the iterations, the residual, and whether it converged."""
    return library.inverse(*_waves(a, p, q, d), z, max_iterations)


def _waves(a: Tensor, p: Tensor, q: Tensor, d: Tensor) -> tuple[str, tuple[int, int], list[Tensor]]:
    """The kind of kernels, the numbers of transformers and of waves, and the parameters."""
    scales, features, width, columns = a.shape
    return "shared" if columns == 1 else "row", (scales, width), [a, p, q, d.expand(scales, features, columns)]
