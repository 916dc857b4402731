"""The activations of conditioners."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[[Tensor], Tensor]

#: By name, the function, an in-place version where PyTorch has one, and the derivative.
ACTIVATIONS: dict[str, tuple[Function, Function, Function]] = {
    "elu": (F.elu, F.elu_, lambda x: torch.where(x > 0, 1.0, torch.exp(x))),
    "gelu": (F.gelu, F.gelu, lambda x: torch.ops.aten.gelu_backward(torch.ones_like(x), x)),
    "leaky_relu": (F.leaky_relu, F.leaky_relu_, lambda x: torch.where(x > 0, torch.ones_like(x), 0.01)),
    "relu": (torch.relu, torch.relu_, lambda x: (x > 0).to(x.dtype)),
    "silu": (F.silu, partial(F.silu, inplace=True), lambda x: torch.ops.aten.silu_backward(torch.ones_like(x), x)),
    "tanh": (torch.tanh, torch.tanh_, lambda x: 1 - torch.tanh(x) ** 2),
}


def activate(name: str, x: Tensor, inplace: bool = False) -> Tensor:
    """The activation of that name, applied to ``x``.

    Example:
        >>> activate("relu", torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    return ACTIVATIONS[name][inplace](x)


def activation_slope(name: str, x: Tensor) -> Tensor:
    """The derivative of the activation at ``x``."""
    return ACTIVATIONS[name][2](x)


def squash(x: Tensor, width: float | None) -> Tensor:
    r""":math:`x / \sqrt{1 + (x/s)^2}`, between ±s; the identity without a width.

    It bounds a network's inputs, so that outliers do not extrapolate to extreme parameters.
    """
    if width is None:
        return x
    ratio = (x / width).clamp(-1e6, 1e6)  # beyond, the result is ±s, and squares would overflow
    return width * ratio * torch.rsqrt(1 + ratio * ratio)


def squash_slope(x: Tensor, width: float) -> Tensor:
    r"""The derivative of :func:`squash`, :math:`(1 + (x/s)^2)^{-3/2}`."""
    ratio = x / width
    return torch.where(ratio.abs() > 1e6, 0.0, (1 + ratio.clamp(-1e6, 1e6) ** 2) ** -1.5)
