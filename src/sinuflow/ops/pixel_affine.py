r"""The map that a PixelCNN's outputs define: :math:`z = x + c(x)`, or :math:`z = e^{s(x)} (x + c(x))`.

For feature-major images (D, B), the *outputs* are :math:`y = x + c(x)` of shape (D, B); or, of a network with two
outputs per pixel, of shape (2D, B): y, and below it r, which bounds the log-scale :math:`s = 2 \tanh(r/2)`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .autograd import fused
from .conditional_waves import LOG_SCALE_MAX
from .select import use_triton

#: Outputs per pixel: a shift, and a log-scale.
MOST_OUTPUTS = 2


class Scaled(NamedTuple):
    """z (D, B), and the log-determinant (B,)."""

    z: Tensor
    ladj: Tensor


def log_scale(r: Tensor) -> Tensor:
    """The log-scale, between -2 and 2."""
    return LOG_SCALE_MAX * torch.tanh(r / LOG_SCALE_MAX)


def scaled(outputs: Tensor, features: int) -> Scaled:
    """z and the log-determinant for a network's outputs.

    Example:
        >>> z, ladj = scaled(torch.tensor([[1.0], [3.0], [0.0], [9.0]]), features=2)
        >>> z.flatten(), ladj
        (tensor([ 1.0000, 22.1562]), tensor([1.9995]))
    """
    if len(outputs) == features or not use_triton(outputs) or outputs.dtype not in (torch.float32, torch.float64):
        return reference(outputs, features)
    from .backends.triton import pixel_affine as kernels

    return Scaled(*fused(lambda o: reference(o, features), kernels.forward, kernels.backward, outputs))


def reference(outputs: Tensor, features: int) -> Scaled:
    """The definition in PyTorch."""
    return _times_scale(outputs[:features], outputs[features:], 1)


def unscaled(z: Tensor, outputs: Tensor) -> Scaled:
    """y for z, given the outputs at x; and the log-determinant of the inverse.

    Example:
        >>> outputs = torch.tensor([[1.0], [0.5]])
        >>> y, _ = unscaled(scaled(outputs, 1).z, outputs)
        >>> y
        tensor([[1.]])
    """
    return _times_scale(z, outputs[len(z) :], -1)


def _times_scale(y: Tensor, r: Tensor, sign: int) -> Scaled:
    if not len(r):
        return Scaled(y, y.new_zeros(y.shape[-1]))
    s = sign * log_scale(r)
    return Scaled(y * torch.exp(s), s.sum(0))
