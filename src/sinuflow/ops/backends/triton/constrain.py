"""From unconstrained parameters to waves in one launch, and their gradients in another.

Shapes are (M, K, B), and (M, B) for strengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .arithmetic import tanh
from .launch import device_guard
from .waves import ALPHA_MAX, softmax, wave

_BLOCK = 128


@device_guard
def forward(frequency: Tensor, phase: Tensor, weight: Tensor, strength: Tensor) -> tuple[Tensor, ...]:
    """a, p and q."""
    return _launch(_forward, (frequency, phase, weight, strength), 3)


@device_guard
def backward(
    frequency: Tensor, phase: Tensor, weight: Tensor, strength: Tensor, grad_a: Tensor, grad_p: Tensor, grad_q: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of the unconstrained parameters."""
    return _launch(_backward, (frequency, phase, weight, strength, grad_a, grad_p, grad_q), 4)


def _launch(kernel: Any, inputs: Sequence[Tensor], results: int) -> tuple[Tensor, ...]:
    """The results, of the same shapes as the first inputs."""
    inputs = [t.contiguous() for t in inputs]
    outputs = tuple(torch.empty_like(t) for t in inputs[:results])
    size, (waves, rows) = inputs[3].numel(), inputs[0].shape[-2:]
    if size:
        kernel[(triton.cdiv(size, _BLOCK),)](*inputs, *outputs, size, rows, WAVES=waves, BLOCK=_BLOCK)
    return outputs


@triton.jit
def _places(weight_at, strength_at, size, rows, WAVES: tl.constexpr, BLOCK: tl.constexpr):
    """Offsets of this program's strengths and of the first of each one's waves, the mask, tanh, and the softmax."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    first = (place // rows) * rows * WAVES + place % rows
    inside = place < size
    largest, share = softmax(weight_at + first, rows, inside, WAVES)
    return place, first, inside, tanh(tl.load(strength_at + place, inside, 0.0)), largest, share


@triton.jit(do_not_specialize=["size", "rows"])
def _forward(
    frequency_at, phase_at, weight_at, strength_at, a_at, p_at, q_at, size, rows,
    WAVES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _, first, inside, strength, largest, share = _places(weight_at, strength_at, size, rows, WAVES, BLOCK)
    for k in tl.static_range(WAVES):
        at = first + k * rows
        factor = strength * ALPHA_MAX * share
        a, p, q, _ = wave(strength, frequency_at, phase_at, weight_at, at, inside, largest, factor, True)
        tl.store(a_at + at, a, inside)
        tl.store(p_at + at, p, inside)
        tl.store(q_at + at, q, inside)


@triton.jit(do_not_specialize=["size", "rows"])
def _backward(
    frequency_at, phase_at, weight_at, strength_at, grad_a_at, grad_p_at, grad_q_at,
    of_frequency_at, of_phase_at, of_weight_at, of_strength_at, size, rows,
    WAVES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place, first, inside, strength, largest, share = _places(weight_at, strength_at, size, rows, WAVES, BLOCK)
    alpha = strength * ALPHA_MAX
    of_alpha = tl.zeros_like(largest)
    for k in tl.static_range(WAVES):
        at = first + k * rows
        _, p, q, _ = wave(strength, frequency_at, phase_at, weight_at, at, inside, largest, share, True)
        of_alpha += tl.load(grad_p_at + at, inside, 0.0) * p + tl.load(grad_q_at + at, inside, 0.0) * q
    tl.store(of_strength_at + place, of_alpha * (1.0 - strength * strength) * ALPHA_MAX, inside)
    for k in tl.static_range(WAVES):
        at = first + k * rows
        _, p, q, w = wave(strength, frequency_at, phase_at, weight_at, at, inside, largest, share, True)
        grad_p = tl.load(grad_p_at + at, inside, 0.0)
        grad_q = tl.load(grad_q_at + at, inside, 0.0)
        grad_a = tl.load(grad_a_at + at, inside, 0.0)
        tl.store(of_frequency_at + at, grad_a * tl.sigmoid(tl.load(frequency_at + at, inside, 0.0)), inside)
        tl.store(of_phase_at + at, 2.0 * alpha * (grad_q * p - grad_p * q), inside)
        tl.store(of_weight_at + at, alpha * (grad_p * p + grad_q * q - w * of_alpha), inside)
