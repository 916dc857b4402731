r"""From unconstrained parameters to waves: a > 0 by softplus, w by softmax, :math:`|\alpha| < 1` by tanh."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .autograd import fused
from .select import use_triton
from .waves import ALPHA_MAX, FREQUENCY_MIN, Waves


def constrain(frequency: Tensor, phase: Tensor, weight: Tensor, strength: Tensor, shift: Tensor) -> Waves:
    r"""The waves :math:`a = \mathrm{softplus}`, :math:`(p, q) = \alpha w (\cos 2b, \sin 2b)`, d.

    ``frequency``, ``phase`` and ``weight`` have shape (..., K, B), ``strength`` and ``shift`` (..., B).
    """
    parameters = (frequency, phase, weight, strength)
    if not use_triton(frequency):
        return Waves(*reference(*parameters), shift)
    from .backends.triton import constrain as kernels

    a, p, q = fused(reference, kernels.forward, kernels.backward, *parameters, outputs=3)
    return Waves(a, p, q, shift)


def reference(frequency: Tensor, phase: Tensor, weight: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The definition in PyTorch."""
    amplitude = torch.softmax(weight, dim=-2) * (ALPHA_MAX * torch.tanh(strength)).unsqueeze(-2)
    angle = 2 * phase
    # F.softplus is the identity from the threshold on; e^-40 is below the precision of float64.
    a = F.softplus(frequency, threshold=40.0) + FREQUENCY_MIN
    return a, amplitude * torch.cos(angle), amplitude * torch.sin(angle)
