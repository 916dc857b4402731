"""Transformers: what an autoregressive layer does to a feature, given that feature's parameters."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..kernels import constrain as constraint
from ..kernels import scale_stack as stack
from ..kernels.waves import Waves
from ..solvers import Root, SolverOptions
from .scalar_inverse import invert_stack

#: The largest scale factor of a conditional layer is the exponential of this.
LOG_SCALE_MAX = 2.0


class Transformer(Protocol):
    """A monotone map of each feature, whose parameters have shape (D, P, B)."""

    parameters: int

    def forward(self, x: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """z of shape (D, B) and the log-determinant of shape (B,)."""

    def inverse(self, z: Tensor, parameters: Tensor, options: SolverOptions) -> Root:
        """x with its certificate; the slope is that of ``forward``."""

    def gradients(self, x: Tensor, parameters: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
        """The chain rule through ``forward``, without automatic differentiation: for x, the parameters."""


class Shift:
    """The map x + c."""

    parameters = 1

    def forward(self, x: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        return x + parameters.squeeze(-2), x.new_zeros(x.shape[-1])

    def inverse(self, z: Tensor, parameters: Tensor, options: SolverOptions) -> Root:
        x = z - parameters.squeeze(-2)
        return Root(x, torch.ones_like(x), torch.ones_like(x, dtype=torch.int32), torch.zeros_like(x), x.isfinite())

    def gradients(self, x: Tensor, parameters: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
        return grad_z, grad_z.unsqueeze(-2)


class ConditionalWaves:
    r"""The map :math:`\tau_n \circ \dots \circ \tau_1 (e^s x + d)` with every parameter given.

    The parameters of a feature are d, s, then for all scales and waves the frequencies, the phases
    and the weights, then the strengths; all free numbers. At s = d = 0 and strengths of 0 it is the
    identity.
    """

    def __init__(self, scales: int, waves: int) -> None:
        self.scales, self.waves = scales, waves
        self.parameters = 2 + scales * (3 * waves + 1)

    def _free(self, parameters: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Shift (D, B), free log-scale (D, B), and the waves' free numbers, led by an axis of scales."""
        count = self.scales * self.waves
        affine, *waves, strength = parameters.split([2, count, count, count, self.scales], dim=-2)
        frequency, phase, weight = (torch.stack(t.split(self.waves, dim=-2)) for t in waves)
        shift, log_scale = affine.unbind(-2)
        return shift, log_scale, (frequency, phase, weight, torch.stack(strength.unbind(-2)))

    def _constrained(self, parameters: Tensor) -> tuple[Tensor, Tensor, Waves]:
        shift, log_scale, free = self._free(parameters)
        waves = constraint.constrain(*free, shift.new_zeros(1).expand(self.scales, *shift.shape))
        return shift, LOG_SCALE_MAX * torch.tanh(log_scale / LOG_SCALE_MAX), waves

    def forward(self, x: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        shift, log_scale, waves = self._constrained(parameters)
        z, ladj = stack.scale_stack(torch.addcmul(shift, x, torch.exp(log_scale)), waves)
        return z, ladj + log_scale.sum(0)

    def inverse(self, z: Tensor, parameters: Tensor, options: SolverOptions) -> Root:
        shift, log_scale, waves = self._constrained(parameters)
        root = invert_stack(z, waves, options)
        scale = torch.exp(log_scale)
        return root._replace(x=(root.x - shift) / scale, slope=root.slope * scale)

    def gradients(self, x: Tensor, parameters: Tensor, grad_z: Tensor, grad_ladj: Tensor) -> tuple[Tensor, Tensor]:
        shift, log_scale, waves = self._constrained(parameters)
        scale = torch.exp(log_scale)
        trace = stack.run(torch.addcmul(shift, x, scale), waves)
        grad, grad_waves = stack.gradients(trace, waves, grad_z, grad_ladj)
        free = self._free(parameters)[2]
        of_waves = constraint.gradients(free, grad_waves.frequency, grad_waves.cosine, grad_waves.sine)
        of_log_scale = (grad * x * scale + grad_ladj) * (1 - (log_scale / LOG_SCALE_MAX) ** 2)
        parts = [grad.unsqueeze(1), of_log_scale.unsqueeze(1)]
        *of_table, of_strength = (t.movedim(0, 1) for t in of_waves)
        parts += [*(t.flatten(1, 2) for t in of_table), of_strength]
        return grad * scale, torch.cat(parts, dim=1)
