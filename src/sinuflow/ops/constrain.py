r"""From free numbers to waves: a > 0 by softplus, w by softmax, :math:`|\alpha| < 1` by tanh."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .second_order import reference_backward
from .select import fused_allowed, use_triton
from .waves import ALPHA_MAX, FREQUENCY_MIN, Waves


def constrain(frequency: Tensor, phase: Tensor, weight: Tensor, strength: Tensor, shift: Tensor) -> Waves:
    r"""The waves :math:`a = \mathrm{softplus}`, :math:`(p, q) = \alpha w (\cos 2b, \sin 2b)`, d.

    ``frequency``, ``phase`` and ``weight`` have shape (..., K, B), ``strength`` and ``shift`` (..., B).
    """
    free = (frequency, phase, weight, strength)
    a, p, q = _Constrain.apply(*free) if fused_allowed() else reference(*free)
    return Waves(a, p, q, shift)


def reference(frequency: Tensor, phase: Tensor, weight: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The definition, in plain PyTorch."""
    share = torch.softmax(weight, dim=-2) * (ALPHA_MAX * torch.tanh(strength)).unsqueeze(-2)
    angle = 2 * phase
    return F.softplus(frequency) + FREQUENCY_MIN, share * torch.cos(angle), share * torch.sin(angle)


def gradients(
    free: tuple[Tensor, Tensor, Tensor, Tensor], grad_a: Tensor, grad_p: Tensor, grad_q: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The chain rule through :func:`reference`, written out."""
    frequency, phase, weight, strength = free
    w, t = torch.softmax(weight, dim=-2), torch.tanh(strength)
    cosine, sine = torch.cos(2 * phase), torch.sin(2 * phase)
    alpha = (ALPHA_MAX * t).unsqueeze(-2)
    grad_share = torch.addcmul(grad_p * cosine, grad_q, sine)
    grad_phase = torch.addcmul(grad_q * cosine, grad_p, sine, value=-1).mul_(w).mul_(2 * alpha)
    mixed = grad_share.mul_(w)
    total = mixed.sum(-2, keepdim=True)
    grad_weight = torch.addcmul(mixed, w, total, value=-1).mul_(alpha)
    grad_strength = total.squeeze(-2) * (ALPHA_MAX * (1 - t * t))
    return torch.sigmoid(frequency) * grad_a, grad_phase, grad_weight, grad_strength


class _Constrain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *free: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(*free)
        if use_triton(free[0]):
            from .backends.triton import constrain as triton_constrain

            return triton_constrain.forward(*free)
        return reference(*free)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return reference_backward(reference, ctx.saved_tensors, grads)
        if use_triton(ctx.saved_tensors[0]):
            from .backends.triton import constrain as triton_constrain

            return triton_constrain.backward(ctx.saved_tensors, *grads)
        return gradients(ctx.saved_tensors, *grads)
