"""A step of Adam in three launches: the gradient's norm, the decision whether to step, the update."""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from ...adam import BETA1, BETA2, EPSILON, Flat, Rules
from .launch import device_guard

#: Elements of a program: of those that update, and of those that sum squares.
_BLOCK, _PART = 1024, 4096


@device_guard
def step(rules: Rules, control: Tensor, rates: Tensor, losses: Tensor, sign: int, flat: Flat) -> None:
    """As :func:`sinuflow.ops.adam.step`."""
    parameters, gradient, first, second, average = flat
    size = parameters.numel()
    parts = gradient.new_empty(triton.cdiv(size, _PART))
    _squares[(len(parts),)](gradient, parts, size, PART=_PART)
    _decide[(1,)](
        control, rates, losses, parts, losses.numel(), len(parts),
        SIGN=sign, CLIP=math.inf if rules.clip is None else rules.clip, MAX_DEVIATIONS=rules.max_deviations,
        SLACK=rules.slack, WARMUP=rules.warmup, GUARD_DECAY=rules.decay,
        LOG_BETA1=math.log(BETA1), LOG_BETA2=math.log(BETA2), BLOCK=_BLOCK,
    )  # fmt: skip
    _update[(triton.cdiv(size, _BLOCK),)](
        control, parameters, gradient, first, second, parameters if average is None else average, size,
        DECAY=rules.weight_decay, DECOUPLED=rules.decoupled, AVERAGED=average is not None,
        BETA1=BETA1, BETA2=BETA2, EPSILON=EPSILON, BLOCK=_BLOCK,
    )  # fmt: skip


@triton.jit
def _squares(gradient_at, parts_at, size, PART: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * PART + tl.arange(0, PART)
    g = tl.load(gradient_at + place, place < size, 0.0)
    tl.store(parts_at + tl.program_id(0), tl.sum(g * g, 0))


@triton.jit
def _sum(values_at, count, BLOCK: tl.constexpr):
    """The sum of some values, in float64."""
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, count, BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += tl.load(values_at + place, place < count, 0.0).to(tl.float64)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["terms", "count"])
def _decide(
    control_at, rates_at, losses_at, parts_at, terms, count,
    SIGN: tl.constexpr, CLIP: tl.constexpr, MAX_DEVIATIONS: tl.constexpr, SLACK: tl.constexpr, WARMUP: tl.constexpr,
    GUARD_DECAY: tl.constexpr, LOG_BETA1: tl.constexpr, LOG_BETA2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    loss = SIGN * _sum(losses_at, terms, BLOCK) / terms
    norm = tl.sqrt(_sum(parts_at, count, BLOCK))
    row_index = tl.load(control_at + 0)
    applied = tl.load(control_at + 1)
    seen = tl.load(control_at + 2)
    mean = tl.load(control_at + 3)
    deviation = tl.load(control_at + 4)
    finite = (tl.abs(loss) < float("inf")) & (norm < float("inf"))
    good = finite & ((seen < WARMUP) | (loss <= mean + MAX_DEVIATIONS * deviation + SLACK))
    one = tl.where(good, 1.0, 0.0)
    weight = tl.maximum(1.0 / (seen + 1.0), 1.0 - GUARD_DECAY)
    moved = tl.where(seen > 0, deviation + weight * (tl.abs(loss - mean) - deviation), deviation)
    applied += one
    row = rates_at + 2 * row_index.to(tl.int64)
    tl.store(control_at + 0, row_index + 1.0)
    tl.store(control_at + 1, applied)
    tl.store(control_at + 2, seen + one)
    tl.store(control_at + 3, tl.where(good, mean + weight * (loss - mean), mean))
    tl.store(control_at + 4, tl.where(good, moved, deviation))
    tl.store(control_at + 5, tl.where(good, 0.0, tl.load(control_at + 5) + 1.0))
    tl.store(control_at + 6, tl.load(control_at + 6) + 1.0 - one)
    tl.store(control_at + 7, tl.load(control_at + 7) + tl.where(good, loss, 0.0))
    tl.store(control_at + 8, tl.load(control_at + 8) + one)
    tl.store(control_at + 9, loss)
    tl.store(control_at + 10, one)
    tl.store(control_at + 11, tl.minimum(CLIP / (norm + 1e-6), 1.0))
    tl.store(control_at + 12, tl.load(row))
    tl.store(control_at + 13, 1.0 - tl.exp(applied * LOG_BETA1))
    tl.store(control_at + 14, 1.0 - tl.exp(applied * LOG_BETA2))
    tl.store(control_at + 15, tl.load(row + 1))


@triton.jit
def _update(
    control_at, parameters_at, gradient_at, first_at, second_at, average_at, size,
    DECAY: tl.constexpr, DECOUPLED: tl.constexpr, AVERAGED: tl.constexpr,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    if tl.load(control_at + 10) > 0:
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = place < size
        p = tl.load(parameters_at + place, inside, 0.0)
        kind = p.dtype
        rate = tl.load(control_at + 12).to(kind)
        g = tl.load(gradient_at + place, inside, 0.0) * tl.load(control_at + 11).to(kind)
        if DECOUPLED:
            p = p * (1.0 - rate * DECAY)
        else:
            g = g + DECAY * p
        m = tl.load(first_at + place, inside, 0.0)
        m = m + (1.0 - BETA1) * (g - m)
        v = BETA2 * tl.load(second_at + place, inside, 0.0) + (1.0 - BETA2) * g * g
        root = tl.sqrt(tl.load(control_at + 14)).to(kind)
        p = p - rate / tl.load(control_at + 13).to(kind) * m / (tl.sqrt(v) / root + EPSILON)
        tl.store(parameters_at + place, p, inside)
        tl.store(first_at + place, m, inside)
        tl.store(second_at + place, v, inside)
        if AVERAGED:
            old = tl.load(average_at + place, inside, 0.0)
            tl.store(average_at + place, old + tl.load(control_at + 15).to(kind) * (p - old), inside)
