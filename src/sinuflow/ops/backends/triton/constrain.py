"""From unconstrained parameters to waves in one launch, and their gradients in another.

Shapes are (M, K, B), and (M, B) for strengths.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...waves import ALPHA_MAX, FREQUENCY_MIN
from .arithmetic import sigmoid, sin_cos, softmax_parts, softplus, tanh
from .launch import device_guard

_BLOCK = 128


@device_guard
def forward(frequency: Tensor, phase: Tensor, weight: Tensor, strength: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """a, p and q."""
    parameters = [t.contiguous() for t in (frequency, phase, weight, strength)]
    a, p, q = (torch.empty_like(parameters[0]) for _ in range(3))
    if strength.numel():
        _forward[_grid(strength)](*parameters, a, p, q, strength.numel(), **_constants(frequency))
    return a, p, q


@device_guard
def backward(
    frequency: Tensor, phase: Tensor, weight: Tensor, strength: Tensor, grad_a: Tensor, grad_p: Tensor, grad_q: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of the unconstrained parameters."""
    inputs = [t.contiguous() for t in (frequency, phase, weight, strength, grad_a, grad_p, grad_q)]
    grads = [torch.empty_like(t) for t in inputs[:4]]
    if strength.numel():
        _backward[_grid(strength)](*inputs, *grads, strength.numel(), **_constants(frequency))
    return tuple(grads)


def _grid(strength: Tensor) -> tuple[int]:
    return (triton.cdiv(strength.numel(), _BLOCK),)


def _constants(frequency: Tensor) -> dict[str, float]:
    return {
        "rows": frequency.shape[-1],
        "WAVES": frequency.shape[-2],
        "ALPHA_MAX": ALPHA_MAX,
        "FREQUENCY_MIN": FREQUENCY_MIN,
        "BLOCK": _BLOCK,
    }


@triton.jit
def _places(size, rows, WAVES: tl.constexpr, BLOCK: tl.constexpr):
    """Offsets of this program's strengths, and of the first of each one's waves, and the mask."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return place, (place // rows) * rows * WAVES + place % rows, place < size


@triton.jit(do_not_specialize=["size", "rows"])
def _forward(
    frequency_at, phase_at, weight_at, strength_at, a_at, p_at, q_at, size, rows,
    WAVES: tl.constexpr, ALPHA_MAX: tl.constexpr, FREQUENCY_MIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place, first, inside = _places(size, rows, WAVES, BLOCK)
    alpha = ALPHA_MAX * tanh(tl.load(strength_at + place, inside, 0.0))
    largest, total = softmax_parts(weight_at + first, rows, inside, WAVES)
    for k in tl.static_range(WAVES):
        at = first + k * rows
        share = alpha * tl.exp(tl.load(weight_at + at, inside, 0.0) - largest) / total
        sine, cosine = sin_cos(2.0 * tl.load(phase_at + at, inside, 0.0))
        tl.store(a_at + at, softplus(tl.load(frequency_at + at, inside, 0.0)) + FREQUENCY_MIN, inside)
        tl.store(p_at + at, share * cosine, inside)
        tl.store(q_at + at, share * sine, inside)


@triton.jit(do_not_specialize=["size", "rows"])
def _backward(
    frequency_at, phase_at, weight_at, strength_at, grad_a_at, grad_p_at, grad_q_at,
    of_frequency_at, of_phase_at, of_weight_at, of_strength_at, size, rows,
    WAVES: tl.constexpr, ALPHA_MAX: tl.constexpr, FREQUENCY_MIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place, first, inside = _places(size, rows, WAVES, BLOCK)
    strength = tanh(tl.load(strength_at + place, inside, 0.0))
    alpha = ALPHA_MAX * strength
    largest, total = softmax_parts(weight_at + first, rows, inside, WAVES)
    mixed = tl.zeros_like(largest)
    for k in tl.static_range(WAVES):
        at = first + k * rows
        e = tl.exp(tl.load(weight_at + at, inside, 0.0) - largest)
        sine, cosine = sin_cos(2.0 * tl.load(phase_at + at, inside, 0.0))
        mixed += e * (tl.load(grad_p_at + at, inside, 0.0) * cosine + tl.load(grad_q_at + at, inside, 0.0) * sine)
    mixed = mixed / total  # the gradient of α
    tl.store(of_strength_at + place, mixed * ALPHA_MAX * (1.0 - strength * strength), inside)
    for k in tl.static_range(WAVES):
        at = first + k * rows
        share = alpha * tl.exp(tl.load(weight_at + at, inside, 0.0) - largest) / total
        sine, cosine = sin_cos(2.0 * tl.load(phase_at + at, inside, 0.0))
        grad_p = tl.load(grad_p_at + at, inside, 0.0)
        grad_q = tl.load(grad_q_at + at, inside, 0.0)
        grad_a = tl.load(grad_a_at + at, inside, 0.0)
        tl.store(of_frequency_at + at, grad_a * sigmoid(tl.load(frequency_at + at, inside, 0.0)), inside)
        tl.store(of_phase_at + at, 2.0 * share * (grad_q * cosine - grad_p * sine), inside)
        tl.store(of_weight_at + at, share * (grad_p * cosine + grad_q * sine - mixed), inside)
