r"""What a PixelCNN's outputs do to an image x: :math:`z = x + c(x)`, or :math:`z = e^{s(x)} (x + c(x))`.

What is *told* of feature-major images (D, B) is :math:`y = x + c(x)` of shape (D, B); or, by a network with two
outputs, of shape (2D, B): y, and below it free numbers r for the scale, whose logarithm is bounded,
:math:`s = 2 \tanh(r/2)`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .conditional_waves import LOG_SCALE_MAX
from .second_order import reference_backward
from .select import use_triton

#: What a network may say of every pixel: its shift, and its scale.
MOST_OUTPUTS = 2


class Scaled(NamedTuple):
    """z (D, B), and the log-determinant (B,)."""

    z: Tensor
    ladj: Tensor


def log_scale(free: Tensor) -> Tensor:
    """The logarithm of the scale, between -2 and 2."""
    return LOG_SCALE_MAX * torch.tanh(free / LOG_SCALE_MAX)


def gain(y: Tensor, free: Tensor) -> Tensor:
    r"""The derivative of :math:`e^s y` with respect to r, without the scale: :math:`y (1 - (s/2)^2)`.

    Example:
        >>> gain(torch.tensor([3.0]), torch.tensor([0.0]))
        tensor([3.])
    """
    return y * (1 - (log_scale(free) / LOG_SCALE_MAX) ** 2)


def scaled(told: Tensor, features: int) -> Scaled:
    """z and the log-determinant, given what is told.

    Example:
        >>> z, ladj = scaled(torch.tensor([[1.0], [3.0], [0.0], [9.0]]), features=2)
        >>> z.flatten(), ladj
        (tensor([ 1.0000, 22.1562]), tensor([1.9995]))
    """
    if len(told) > features and use_triton(told) and told.dtype in (torch.float32, torch.float64):
        return Scaled(*_Fused.apply(torch.is_grad_enabled(), told))
    return reference(told, features)


def reference(told: Tensor, features: int) -> Scaled:
    """The definition, in plain PyTorch."""
    y, free = told[:features], told[features:]
    if not len(free):
        return Scaled(y, y.new_zeros(y.shape[-1]))
    s = log_scale(free)
    return Scaled(y * torch.exp(s), s.sum(0))


def unscaled(z: Tensor, told: Tensor) -> Scaled:
    """What y must be for z, given what is told of x; and the log-determinant of the way back.

    Example:
        >>> told = torch.tensor([[1.0], [0.5]])
        >>> y, _ = unscaled(scaled(told, 1).z, told)
        >>> y
        tensor([[1.]])
    """
    free = told[len(z) :]
    if not len(free):
        return Scaled(z, z.new_zeros(z.shape[-1]))
    s = log_scale(free)
    return Scaled(z * torch.exp(-s), -s.sum(0))


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad_enabled: bool, told: Tensor) -> tuple[Tensor, Tensor]:
        from .backends.triton import pixel_affine

        if grad_enabled and ctx.needs_input_grad[1]:
            ctx.save_for_backward(told)
        return pixel_affine.forward(told)

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor | None, ...]:
        from .backends.triton import pixel_affine

        (told,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *reference_backward(lambda t: reference(t, len(t) // 2), (told,), (grad_z, grad_ladj))
        return None, pixel_affine.backward(told, grad_z, grad_ladj)
