r"""Conditional waves: the map :math:`\tau_n \circ \dots \circ \tau_1 (e^s x + d)`, with parameters for every row.

The parameters (D, P, B) are unconstrained. Those of a feature are d, s', then for all scales and waves the frequencies,
the phases and the weights, then the strengths; :math:`s = 2 \tanh(s'/2)`. With s = d = 0 and strengths of 0 it is the
identity.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..solvers import Root, SolverOptions
from . import scale_stack as stack
from .autograd import fused, reference_gradients
from .constrain import constrain
from .select import wave_kernels
from .waves import Waves

#: The largest scale factor of a conditional layer is the exponential of this.
LOG_SCALE_MAX = 2.0


class Shape(NamedTuple):
    """The number of transformers, and of waves in each."""

    scales: int
    waves: int

    @property
    def parameters(self) -> int:
        """Per feature."""
        return 2 + self.scales * (3 * self.waves + 1)


def conditional_waves(x: Tensor, parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """z of shape (D, B) and the log-determinant of shape (B,)."""
    kernels = wave_kernels(x, parameters)
    if kernels is None:
        return reference(x, parameters, shape)
    op = kernels.conditional_waves
    forward, backward = partial(op.forward, shape=shape), partial(op.backward, shape=shape)
    z, ladj = fused(partial(reference, shape=shape), forward, backward, x, parameters)
    return z, ladj


def reference(x: Tensor, parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """The definition in PyTorch."""
    shift, log_scale, waves = constrained(parameters, shape)
    z, ladj = stack.reference(torch.addcmul(shift, x, torch.exp(log_scale)), *waves)
    return z, ladj + log_scale.sum(0)


def backward(x: Tensor, parameters: Tensor, shape: Shape, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the parameters."""
    if kernels := wave_kernels(x, parameters):
        grad_x, grads = kernels.conditional_waves.backward(x, parameters, grad_z, grad_ladj, shape)
    else:
        run = partial(reference, shape=shape)
        grad_x, grads = reference_gradients(run, (x, parameters), (grad_z, grad_ladj))
    return grad_x, grads


def inverse(z: Tensor, parameters: Tensor, shape: Shape, options: SolverOptions) -> Root:
    """x with its certificate, elementwise; the slope is that of the forward map. It has no gradients."""
    kernels = wave_kernels(z, parameters) if options.method == "certified" else None
    if kernels is not None:
        return Root(*kernels.conditional_waves.inverse(z, parameters, shape, options.limit))
    shift, log_scale, waves = constrained(parameters, shape)
    root = stack.invert_stack(z, waves, options)
    scale = torch.exp(log_scale)
    x = (root.x - shift) / scale
    finite = x.isfinite()  # the division may overflow
    residual = torch.where(finite, root.residual, torch.inf)
    return Root(x, root.slope * scale, root.iterations, residual, root.converged & finite)


def constrained(parameters: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Waves]:
    """The shift d and the log-scale s, (D, B), and the waves, stacked along a leading axis of scales."""
    count = shape.scales * shape.waves
    affine, *parts, strength = parameters.split([2, count, count, count, shape.scales], dim=-2)
    frequency, phase, weight = (torch.stack(t.split(shape.waves, dim=-2)) for t in parts)
    shift, log_scale = affine.unbind(-2)
    no_shift = shift.new_zeros(1).expand(shape.scales, *shift.shape)
    waves = constrain(frequency, phase, weight, torch.stack(strength.unbind(-2)), no_shift)
    return shift, LOG_SCALE_MAX * torch.tanh(log_scale / LOG_SCALE_MAX), waves
