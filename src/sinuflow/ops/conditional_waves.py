r"""Conditional waves: the map :math:`\tau_n \circ \dots \circ \tau_1 (e^s x + d)` with every parameter given.

The parameters, (D, P, B), are free numbers. Those of a feature are d, s', then for all scales and waves
the frequencies, the phases and the weights, then the strengths; :math:`s = 2 \tanh(s'/2)`. At s = d = 0
and strengths of 0 it is the identity.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import constrain as constraint
from . import scale_stack as stack
from .second_order import reference_backward
from .select import wave_kernels
from .waves import Waves

#: The largest scale factor of a conditional layer is the exponential of this.
LOG_SCALE_MAX = 2.0

Free = tuple[Tensor, Tensor, Tensor, Tensor]


class Shape(NamedTuple):
    """How many transformers there are, and of how many waves each."""

    scales: int
    waves: int

    @property
    def parameters(self) -> int:
        """How many numbers every feature needs."""
        return 2 + self.scales * (3 * self.waves + 1)


def conditional_waves(x: Tensor, parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """z of shape (D, B) and the log-determinant of shape (B,)."""
    kernels = wave_kernels(shape.waves, x, parameters)
    if kernels is None:
        return plain(x, parameters, shape)
    z, ladj = _Compiled.apply(kernels.conditional_waves, shape, x, parameters)
    return z, ladj


def plain(x: Tensor, parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """The same, put together from simpler parts."""
    shift, log_scale, waves = constrained(parameters, shape)
    z, ladj = stack.scale_stack(torch.addcmul(shift, x, torch.exp(log_scale)), waves)
    return z, ladj + log_scale.sum(0)


def gradients(x: Tensor, parameters: Tensor, shape: Shape, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
    """The chain rule through the map, without automatic differentiation: for x, the parameters."""
    kernels = wave_kernels(shape.waves, x, parameters)
    if kernels is not None:
        grad_x, grad_parameters = kernels.conditional_waves.backward(x, parameters, *shape, grad_z, grad_ladj)
        return grad_x, grad_parameters
    shift, log_scale, waves = constrained(parameters, shape)
    scale = torch.exp(log_scale)
    trace = stack.run(torch.addcmul(shift, x, scale), waves)
    grad, grad_waves = stack.gradients(trace, waves, grad_z, grad_ladj)
    free = _free(parameters, shape)[2]
    of_waves = constraint.gradients(free, grad_waves.frequency, grad_waves.cosine, grad_waves.sine)
    of_log_scale = (grad * x * scale + grad_ladj) * (1 - (log_scale / LOG_SCALE_MAX) ** 2)
    parts = [grad.unsqueeze(1), of_log_scale.unsqueeze(1)]
    *of_table, of_strength = (t.movedim(0, 1) for t in of_waves)
    parts += [*(t.flatten(1, 2) for t in of_table), of_strength]
    return grad * scale, torch.cat(parts, dim=1)


def constrained(parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Waves]:
    """The shift d and the log-scale s, (D, B), and the waves, led by an axis of scales."""
    shift, log_scale, free = _free(parameters, shape)
    waves = constraint.constrain(*free, shift.new_zeros(1).expand(shape.scales, *shift.shape))
    return shift, LOG_SCALE_MAX * torch.tanh(log_scale / LOG_SCALE_MAX), waves


def _free(parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Free]:
    count = shape.scales * shape.waves
    affine, *waves, strength = parameters.split([2, count, count, count, shape.scales], dim=-2)
    frequency, phase, weight = (torch.stack(t.split(shape.waves, dim=-2)) for t in waves)
    shift, log_scale = affine.unbind(-2)
    return shift, log_scale, (frequency, phase, weight, torch.stack(strength.unbind(-2)))


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, shape: Shape, x: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        ctx.kernels, ctx.shape = kernels, shape
        ctx.save_for_backward(x, parameters)
        z, ladj = kernels.forward(x, parameters, *shape)
        return z, ladj

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor | None, ...]:
        x, parameters = ctx.saved_tensors
        if torch.is_grad_enabled():
            grads = reference_backward(partial(plain, shape=ctx.shape), (x, parameters), (grad_z, grad_ladj))
        else:
            grads = ctx.kernels.backward(x, parameters, *ctx.shape, grad_z, grad_ladj)
        return None, None, *grads
