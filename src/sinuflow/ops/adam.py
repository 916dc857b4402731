r"""A step of Adam with gradient clipping and a loss guard, without synchronizing with the GPU.

Parameters, gradients and moments are flat tensors. The state of a step is a small float64 tensor, the *control*, so
that a CUDA graph can capture the step, and skip it if its loss is an outlier.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from .select import use_triton

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Slot(IntEnum):
    """Entries of the control."""

    ROW = 0  # of the table of rates
    APPLIED = 1  # number of steps that were not skipped
    SEEN = 2  # to SKIPPED: the state of sinuflow.training.guard
    MEAN = 3
    DEVIATION = 4
    BAD_IN_A_ROW = 5
    SKIPPED = 6
    LOSS_SUM = 7
    LOSS_COUNT = 8
    LOSS = 9  # of the last step
    ACCEPTED = 10  # whether the last step was not skipped
    CLIP = 11  # factor of the last gradient
    RATE = 12
    CORRECTION1 = 13  # 1 - β₁^t
    CORRECTION2 = 14
    AVERAGE = 15  # weight of the new parameters in the average


class Rules(NamedTuple):
    """Constants of a run: of the optimizer, and of :mod:`sinuflow.training.guard`."""

    weight_decay: float
    decoupled: bool  # as in AdamW
    clip: float | None  # largest norm of the gradient
    warmup: int  # steps before the guard detects outliers
    decay: float  # of its running mean
    max_deviations: float  # of accepted losses from the running mean
    slack: float


class Flat(NamedTuple):
    """Flattened parameters, gradients and moments, in the same order."""

    parameters: Tensor
    gradient: Tensor
    first: Tensor  # moment
    second: Tensor
    average: Tensor | None  # of the parameters


def step(rules: Rules, control: Tensor, rates: Tensor, losses: Tensor, sign: int, flat: Flat) -> None:
    """Take a step in place, or skip it if the loss or the gradient is an outlier or not finite.

    ``control`` has the entries of :class:`Slot`. A row of ``rates`` has a step's learning rate, and the weight of the
    new parameters in the average. The loss is the mean of ``losses`` times ``sign``, which is -1 for log-densities.
    """
    if use_triton(flat.parameters):
        from .backends.triton.adam import step as fused_step

        fused_step(rules, control, rates, losses, sign, flat)
    else:
        reference_step(rules, control, rates, losses, sign, flat)


def reference_step(rules: Rules, control: Tensor, rates: Tensor, losses: Tensor, sign: int, flat: Flat) -> None:
    """The reference implementation of :func:`step`."""
    parameters, gradient, first, second, average = flat
    _decide(rules, control, rates, sign * losses.double().mean(), torch.linalg.vector_norm(gradient).double())
    accepted = control[Slot.ACCEPTED] > 0
    rate, correction1, correction2, weight = (
        control[slot].to(parameters.dtype) for slot in (Slot.RATE, Slot.CORRECTION1, Slot.CORRECTION2, Slot.AVERAGE)
    )
    # NaN times zero would be NaN.
    g = torch.where(accepted, gradient, 0.0) * control[Slot.CLIP].to(parameters.dtype)
    new = parameters * (1 - rate * rules.weight_decay) if rules.decoupled else parameters
    if not rules.decoupled and rules.weight_decay:
        g = g + rules.weight_decay * parameters
    new_first = torch.lerp(first, g, 1 - BETA1)
    new_second = BETA2 * second + (1 - BETA2) * g * g
    new = new - rate / correction1 * new_first / (new_second.sqrt() / correction2.sqrt() + EPSILON)
    for old, value in ((parameters, new), (first, new_first), (second, new_second)):
        old.copy_(torch.where(accepted, value, old))
    if average is not None:
        average.copy_(torch.where(accepted, torch.lerp(average, parameters, weight), average))


def _decide(rules: Rules, control: Tensor, rates: Tensor, loss: Tensor, norm: Tensor) -> None:
    """Update the control, given the loss and the norm of the gradient."""
    row, applied, seen, mean, deviation, bad_in_a_row, skipped, loss_sum, loss_count = control[: Slot.LOSS].unbind()
    rate, average = rates.index_select(0, row.long().view(1)).unbind(1)  # indexing by a tensor would synchronize
    inlier = (seen < rules.warmup) | (loss <= mean + rules.max_deviations * deviation + rules.slack)
    accepted = loss.isfinite() & norm.isfinite() & inlier
    one = accepted.double()
    weight = torch.clamp(1 / (seen + 1), min=1 - rules.decay)
    new_deviation = torch.where(seen > 0, deviation + weight * ((loss - mean).abs() - deviation), deviation)
    applied = applied + one
    values = (  # in the order of Slot
        row + 1, applied, seen + one, torch.where(accepted, mean + weight * (loss - mean), mean),
        torch.where(accepted, new_deviation, deviation), torch.where(accepted, 0.0, bad_in_a_row + 1),
        skipped + 1 - one, loss_sum + torch.where(accepted, loss, 0.0), loss_count + one, loss, one,
        torch.clamp((math.inf if rules.clip is None else rules.clip) / (norm + 1e-6), max=1.0),
        rate.squeeze(0), 1 - BETA1**applied, 1 - BETA2**applied, average.squeeze(0),
    )  # fmt: skip
    control.copy_(torch.stack(values))
