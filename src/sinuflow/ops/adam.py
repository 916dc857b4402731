r"""One step of Adam on all parameters at once, without ever asking the GPU for a number.

Parameters, gradients and moments are single flat tensors. What else decides about a step is kept in one small
tensor of doubles, the *control*: the guard's memory, the learning rate, whether the step is made at all. So a
step can be recorded in a CUDA graph, and a bad one is skipped inside it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from .select import use_triton

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
#: Numbers whose squares one program adds up.
PART = 4096


class Slot(IntEnum):
    """Where things are in the control."""

    TICK = 0  # steps since the table of rates was written
    MADE = 1  # steps that Adam has made
    SEEN = 2  # the guard's memory, as in sinuflow.training.guard
    MEAN = 3
    DEVIATION = 4
    BAD_IN_A_ROW = 5
    SKIPPED = 6
    LOSS_SUM = 7
    LOSS_COUNT = 8
    LOSS = 9  # of the last step
    GOOD = 10  # whether the last step was made
    CLIP = 11  # the factor of its gradient
    RATE = 12
    CORRECTION1 = 13  # 1 - β₁^t
    CORRECTION2 = 14
    AVERAGE = 15  # the weight of the new parameters in the average


SLOTS = len(Slot)


class Rules(NamedTuple):
    """What does not change during a run."""

    weight_decay: float
    decoupled: bool  # as in AdamW
    clip: float | None  # the largest norm of a gradient
    learning: int  # steps before the guard knows what is usual
    memory: float
    far: float
    slack: float


class Flat(NamedTuple):
    """Everything that has one number for each parameter, flat and in the same order."""

    parameters: Tensor
    gradient: Tensor
    first: Tensor  # the moments
    second: Tensor
    average: Tensor | None  # of the parameters, if one is kept


def step(rules: Rules, control: Tensor, rates: Tensor, losses: Tensor, sign: int, flat: Flat) -> None:
    """Make a step, in place, unless the loss says otherwise.

    Args:
        rules: of the optimiser and the guard.
        control: see :class:`Slot`.
        rates: (steps, 2): for every tick the learning rate, and the weight of the new parameters in the average.
        losses: the loss is the mean of these, times ``sign``.
        sign: -1 for log-densities.
        flat: what is changed.
    """
    if use_triton(flat.parameters):
        from .backends.triton import adam as on_gpu

        on_gpu.step(rules, control, rates, losses, sign, flat)
    else:
        plain_step(rules, control, rates, losses, sign, flat)


def plain_step(rules: Rules, control: Tensor, rates: Tensor, losses: Tensor, sign: int, flat: Flat) -> None:
    """The same in plain PyTorch."""
    parameters, gradient, first, second, average = flat
    decide(rules, control, rates, sign * losses.double().mean(), torch.linalg.vector_norm(gradient).double())
    good = control[Slot.GOOD] > 0
    rate, correction1, correction2, weight = (
        control[slot].to(parameters.dtype) for slot in (Slot.RATE, Slot.CORRECTION1, Slot.CORRECTION2, Slot.AVERAGE)
    )
    # What is not a number must not survive being multiplied by zero.
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
    """Write to the control what becomes of a step with this loss and this norm of the gradient."""
    slots = {slot: control[slot].clone() for slot in Slot}
    row = rates.index_select(0, slots[Slot.TICK].long().view(1)).view(2)  # indexing by a tensor would ask for its value
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
