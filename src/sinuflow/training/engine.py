"""Who makes the steps.

An engine owns the weights, the optimiser and the average of the weights. The plain one makes a step at a
time with PyTorch's own optimiser; :mod:`sinuflow.training.device_engine` keeps everything on a GPU.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..data.batches import Batches
from ..data.sources import Batch
from .guard import Guard
from .settings import Settings
from .stability import Stability, clip_factor, emphasis

Weights = dict[str, Tensor]


class Advance(NamedTuple):
    """What some steps have brought."""

    steps: int
    rows: int
    loss: float  # of the last step
    loss_sum: float  # of the steps that were made
    loss_count: int


class Snapshot(NamedTuple):
    """Weights to come back to."""

    weights: Weights
    optimizer: Weights
    average: Weights | None


class Engine(Protocol):
    """Makes steps."""

    @property
    def average(self) -> Weights | None:
        """The average of the weights, by name, if one is kept."""

    def advance(self, step: int, most: int) -> Advance:
        """Make at least one step and at most so many, of which the first has this number."""

    def snapshot(self) -> Snapshot:
        """Copies of everything."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to copies."""

    def optimizer_state(self) -> Weights:
        """The optimiser's own numbers: for every parameter, by its place, exp_avg, exp_avg_sq and step."""

    def close(self) -> None:
        """Leave the flow as any other."""


class PlainEngine:
    """A step at a time, with PyTorch's optimisers; ``rate`` is the learning rate of a step."""

    def __init__(
        self, flow: nn.Module, batches: Batches, settings: Settings, guard: Guard, rate: Callable[[int], float]
    ) -> None:
        self._flow, self._batches, self._settings, self._guard, self._rate = flow, batches, settings, guard, rate
        self._parameters = list(flow.parameters())
        kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
        self._optimizer = kind(
            self._parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
        )
        self.average = copied(flow.state_dict()) if settings.ema else None
        self._stability = None if settings.stability is None else Stability(flow, settings.stability)

    def advance(self, step: int, most: int) -> Advance:
        batch = self._batches.next()
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(step)
        loss = -self._flow(batch.context, validate_args=False).log_prob(batch.x).mean()
        loss.backward()
        limit = math.inf if self._settings.clip is None else self._settings.clip
        norm = nn.utils.clip_grad_norm_(self._parameters, limit)
        if self._stability is not None:
            norm = self._add_penalty(self._stability, batch, step, clip_factor(norm, self._settings.clip))
        value = float(loss.detach())
        good = self._guard.good(value, float(norm))
        if good:
            self._optimizer.step()
            if self.average is not None:
                self._update_average(step)
        self._optimizer.zero_grad()
        return Advance(1, len(batch.x), value, value if good else 0.0, int(good))

    def _add_penalty(self, stability: Stability, batch: Batch, step: int, factor: Tensor) -> Tensor:
        """Add its gradient to the likelihood's, and give the norm of both together."""
        context = None if batch.context is None else batch.context.mT
        share = emphasis((step + 1) / self._settings.steps)
        (factor * share * stability.penalty(batch.x.mT, context, step % stability.turns)).backward()
        return nn.utils.clip_grad_norm_(self._parameters, math.inf)

    def _update_average(self, step: int) -> None:
        assert self.average is not None
        state = self._flow.state_dict()
        names = [name for name, t in state.items() if t.is_floating_point()]
        weight = average_weight(self._settings.ema, step)
        torch._foreach_lerp_([self.average[n] for n in names], [state[n] for n in names], weight)

    def snapshot(self) -> Snapshot:
        average = None if self.average is None else copied(self.average)
        return Snapshot(copied(self._flow.state_dict()), copied(self.optimizer_state()), average)

    def restore(self, snapshot: Snapshot) -> None:
        self._flow.load_state_dict(snapshot.weights)
        whole = self._optimizer.state_dict()
        whole["state"] = copy.deepcopy(_by_parameter(snapshot.optimizer))
        self._optimizer.load_state_dict(whole)
        self.average = None if snapshot.average is None else copied(snapshot.average)

    def optimizer_state(self) -> Weights:
        state: dict[int, dict[str, Tensor]] = self._optimizer.state_dict()["state"]
        return {f"{index}/{name}": torch.as_tensor(t) for index, part in state.items() for name, t in part.items()}

    def close(self) -> None:
        pass


def average_weight(ema: float | None, step: int) -> float:
    """The weight of the new weights in the average: early on, that is over what there is so far."""
    return 1 - min(ema or 0.0, (1 + step) / (10 + step))


def copied(state: Weights) -> Weights:
    """A copy of every tensor."""
    return {name: t.detach().clone() for name, t in state.items()}


def _by_parameter(tensors: Weights) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for key, t in tensors.items():
        index, _, name = key.partition("/")
        state.setdefault(int(index), {})[name] = t
    return state
