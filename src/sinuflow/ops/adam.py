r"""A step of Adam with gradient clipping and a loss guard, without synchronizing with the GPU.

Parameters, gradients and moments are flat tensors. The state of a step is a small float64 tensor, the *control*, so
that a CUDA graph can capture the step, and skip it if its loss is an outlier.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from .select import use_triton

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
#: Elements whose squares one Triton program sums.
PART = 4096


class Slot(IntEnum):
    """Entries of the control."""

    TICK = 0  # row of the table of rates
    MADE = 1  # steps that were not skipped
    SEEN = 2  # with the following: the state of sinuflow.training.guard
    MEAN = 3
    DEVIATION = 4
    BAD_IN_A_ROW = 5
    SKIPPED = 6
    LOSS_SUM = 7
    LOSS_COUNT = 8
    LOSS = 9  # of the last step
    GOOD = 10  # whether the last step was not skipped
    CLIP = 11  # factor of its gradient
    RATE = 12
    CORRECTION1 = 13  # 1 - β₁^t
    CORRECTION2 = 14
    AVERAGE = 15  # weight of the new parameters in the average


SLOTS = len(Slot)


class Rules(NamedTuple):
    """Constants of a run: of the optimizer, and of the guard."""

    weight_decay: float
    decoupled: bool  # as in AdamW
    clip: float | None  # largest norm of the gradient
    learning: int  # warm-up steps of the guard
    memory: float
    far: float
    slack: float


class Flat(NamedTuple):
    """Flat tensors with one element per parameter, in the same order."""

    parameters: Tensor
    gradient: Tensor
    first: Tensor  # moment
    second: Tensor
    average: Tensor | None  # of the parameters


def step(rules: Rules, control: Tensor, rates: Tensor, losses: Tensor, sign: int, flat: Flat) -> None:
    """Make a step in place, or skip it if the loss or the gradient is an outlier or not finite.

    Args:
        rules: constants of the optimizer and the guard.
        control: see :class:`Slot`.
        rates: (steps, 2), the learning rate and the weight of the new parameters in the average.
        losses: the loss is the mean of these, times ``sign``.
        sign: -1 for log-densities.
        flat: the tensors to update.
    """
    if use_triton(flat.parameters):
        from .backends.triton import adam as triton_adam

        triton_adam.step(rules, control, rates, losses, sign, flat)
    else:
        reference_step(rules, control, rates, losses, sign, flat)


def reference_step(rules: Rules, control: Tensor, rates: Tensor, losses: Tensor, sign: int, flat: Flat) -> None:
    """The reference implementation of :func:`step`."""
    parameters, gradient, first, second, average = flat
    decide(rules, control, rates, sign * losses.double().mean(), torch.linalg.vector_norm(gradient).double())
    good = control[Slot.GOOD] > 0
    rate, correction1, correction2, weight = (
        control[slot].to(parameters.dtype) for slot in (Slot.RATE, Slot.CORRECTION1, Slot.CORRECTION2, Slot.AVERAGE)
    )
    # NaN times zero would be NaN.
    g = torch.where(good, gradient, 0.0) * control[Slot.CLIP].to(parameters.dtype)
    new = parameters * (1 - rate * rules.weight_decay) if rules.decoupled else parameters
    if not rules.decoupled and rules.weight_decay:
        g = g + rules.weight_decay * parameters
    new_first = torch.lerp(first, g, 1 - BETA1)
    new_second = BETA2 * second + (1 - BETA2) * g * g
    new = new - rate / correction1 * new_first / (new_second.sqrt() / correction2.sqrt() + EPSILON)
    for old, value in ((parameters, new), (first, new_first), (second, new_second)):
        old.copy_(torch.where(good, value, old))
    if average is not None:
        average.copy_(torch.where(good, torch.lerp(average, parameters, weight), average))


def decide(rules: Rules, control: Tensor, rates: Tensor, loss: Tensor, norm: Tensor) -> None:
    """Update the control, given the loss and the norm of the gradient."""
    slots = {slot: control[slot].clone() for slot in Slot}
    row = rates.index_select(0, slots[Slot.TICK].long().view(1)).view(2)  # indexing by a tensor would synchronize
    seen, mean, deviation = slots[Slot.SEEN], slots[Slot.MEAN], slots[Slot.DEVIATION]
    usual = (seen < rules.learning) | (loss <= mean + rules.far * deviation + rules.slack)
    good = loss.isfinite() & norm.isfinite() & usual
    weight = torch.clamp(1 / (seen + 1), min=1 - rules.memory)
    new_deviation = torch.where(seen > 0, deviation + weight * ((loss - mean).abs() - deviation), deviation)
    made = slots[Slot.MADE] + good.double()
    changes = {
        Slot.TICK: slots[Slot.TICK] + 1,
        Slot.MADE: made,
        Slot.SEEN: seen + good.double(),
        Slot.MEAN: torch.where(good, mean + weight * (loss - mean), mean),
        Slot.DEVIATION: torch.where(good, new_deviation, deviation),
        Slot.BAD_IN_A_ROW: torch.where(good, 0.0, slots[Slot.BAD_IN_A_ROW] + 1),
        Slot.SKIPPED: slots[Slot.SKIPPED] + (~good).double(),
        Slot.LOSS_SUM: slots[Slot.LOSS_SUM] + torch.where(good, loss, 0.0),
        Slot.LOSS_COUNT: slots[Slot.LOSS_COUNT] + good.double(),
        Slot.LOSS: loss,
        Slot.GOOD: good.double(),
        Slot.CLIP: torch.ones_like(norm) if rules.clip is None else torch.clamp(rules.clip / (norm + 1e-6), max=1.0),
        Slot.RATE: row[0],
        Slot.CORRECTION1: 1 - BETA1**made,
        Slot.CORRECTION2: 1 - BETA2**made,
        Slot.AVERAGE: row[1],
    }
    control.copy_(torch.stack([changes[slot] for slot in Slot]))
