"""Training engines: parameters, optimizer state and the moving average, and the steps that update them.

:class:`EagerEngine` takes one step at a time. :mod:`sinuflow.training.device_engine` keeps everything on a GPU.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..data.sources import Batches
from ..flows.flow import Flow
from ..ops.adam import BETA1, BETA2, EPSILON
from .guard import Guard
from .settings import Settings
from .stability import Stability, clip_factor

Weights = dict[str, Tensor]


class Advance(NamedTuple):
    """Result of :meth:`Engine.advance`."""

    steps: int
    rows: int
    loss: float  # of the last step
    loss_sum: float  # over the steps that were not skipped
    loss_count: int


class Snapshot(NamedTuple):
    """Copies of everything that a step updates."""

    weights: Weights
    optimizer: Weights
    average: Weights | None


def no_limit() -> float:
    """The elapsed fraction of the time limit in a run without one."""
    return 0.0


@dataclass(eq=False)
class Engine(ABC):
    """Takes optimization steps on a flow."""

    flow: Flow
    batches: Batches
    settings: Settings
    guard: Guard
    rate: Callable[[int], float]  # the learning rate of a step
    elapsed: Callable[[], float] = field(default=no_limit, kw_only=True)  # the elapsed fraction of the time limit

    def __post_init__(self) -> None:
        weight, clip = self.settings.stability, self.settings.clip
        self.stability = None if weight is None else Stability(self.flow, weight)
        self._clip = math.inf if clip is None else clip

    def _penalty_schedule(self, step: int) -> float:
        """The factor of the stability penalty's weight in a step; it grows quadratically to 1 at the last step.

        Only the final flow must be stable, and training is more effective with a smaller penalty: in short runs on
        MNIST, a weight that grew to 200 cost less likelihood than a constant one of 100 for equally small errors.
        """
        return max((step + 1) / self.settings.steps, self.elapsed()) ** 2

    @property
    @abstractmethod
    def average(self) -> Weights | None:
        """The exponential moving average of the weights, if there is one."""

    @abstractmethod
    def advance(self, step: int, limit: int) -> Advance:
        """Take between 1 and ``limit`` steps, the first of which has the number ``step``."""

    @abstractmethod
    def optimizer_state(self) -> Weights:
        """``exp_avg``, ``exp_avg_sq`` and ``step`` of every parameter, by its index: ``"0/exp_avg"``."""

    @abstractmethod
    def restore(self, snapshot: Snapshot) -> None:
        """Return to a snapshot."""

    def snapshot(self) -> Snapshot:
        average = None if self.average is None else copy_weights(self.average)
        return Snapshot(copy_weights(self.flow.state_dict()), copy_weights(self.optimizer_state()), average)

    def close(self) -> None:  # noqa: B027
        """Release graphs and buffers."""


class EagerEngine(Engine):
    """One step at a time in eager PyTorch."""

    average: Weights | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parameters, settings = list(self.flow.parameters()), self.settings
        self._optimizer = Adam(self._parameters, settings.weight_decay, decoupled=settings.optimizer == "adamw")
        if settings.ema:
            self.average = copy_weights(self.flow.state_dict())

    def advance(self, step: int, limit: int) -> Advance:
        batch = self.batches.next()
        loss = -self.flow(batch.context, validate_args=False).log_prob(batch.x).mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._parameters, self._clip)
        if self.stability is not None:
            penalty = self.stability.penalty(*batch.map(lambda t: t.mT), step % self.stability.blocks)
            (clip_factor(norm, self._clip) * self._penalty_schedule(step) * penalty).backward()
            norm = nn.utils.clip_grad_norm_(self._parameters, math.inf)  # of the sum
        value = float(loss.detach())
        accepted = self.guard.accept(value, float(norm))
        if accepted:
            self._optimizer.step(self.rate(step))
            self._update_average(step)
        for parameter in self._parameters:
            parameter.grad = None
        return Advance(1, len(batch.x), value, value if accepted else 0.0, int(accepted))

    def _update_average(self, step: int) -> None:
        if self.average is not None:
            state = self.flow.state_dict()
            names = [name for name, t in state.items() if t.is_floating_point()]
            weight = average_weight(self.settings.ema, step)
            torch._foreach_lerp_([self.average[n] for n in names], [state[n] for n in names], weight)

    def optimizer_state(self) -> Weights:
        return self._optimizer.state

    def restore(self, snapshot: Snapshot) -> None:
        self.flow.load_state_dict(snapshot.weights)
        optimizer, average, current = snapshot.optimizer.items(), snapshot.average, self.flow.state_dict()
        devices = [p.device for p in self._parameters]
        self._optimizer.state = {k: t.to(devices[int(k.partition("/")[0])], copy=True) for k, t in optimizer}
        self.average = None if average is None else {k: t.to(current[k].device, copy=True) for k, t in average.items()}


class Adam:
    """Adam or, with ``decoupled`` weight decay, AdamW, by the kernels of ``torch.optim.Adam(fused=True)``.

    ``torch.optim`` itself would import ``torch._dynamo``, which takes most of a second at every start.

    Example:
        >>> w = nn.Parameter(torch.ones(2))
        >>> w.square().sum().backward()
        >>> Adam([w]).step(learning_rate=0.1)
        >>> w.data
        tensor([0.9000, 0.9000])
    """

    def __init__(self, parameters: list[nn.Parameter], weight_decay: float = 0.0, decoupled: bool = False) -> None:
        self._parameters, self._weight_decay = parameters, weight_decay
        self._update = torch._fused_adamw_ if decoupled else torch._fused_adam_
        #: As :meth:`Engine.optimizer_state`; without entries for parameters that never had a gradient.
        self.state: Weights = {}

    def step(self, learning_rate: float) -> None:
        groups: dict[tuple[torch.device, torch.dtype], list[list[Tensor]]] = {}
        for i, p in enumerate(self._parameters):
            if p.grad is None:
                continue
            if f"{i}/step" not in self.state:
                self.state[f"{i}/exp_avg"], self.state[f"{i}/exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                self.state[f"{i}/step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            moments = (self.state[f"{i}/{name}"] for name in ("exp_avg", "exp_avg_sq", "step"))
            columns = groups.setdefault((p.device, p.dtype), [[], [], [], [], []])
            for column, tensor in zip(columns, (p.detach(), p.grad, *moments), strict=True):
                column.append(tensor)
        for parameters, gradients, first, second, steps in groups.values():
            torch._foreach_add_(steps, 1)
            self._update(
                parameters, gradients, first, second, [], steps, lr=learning_rate, beta1=BETA1, beta2=BETA2,
                weight_decay=self._weight_decay, eps=EPSILON, amsgrad=False, maximize=False,
            )  # fmt: skip


def average_weight(ema: float | None, step: int) -> float:
    """The weight of the current weights in the moving average, which starts as the mean over all steps so far."""
    return 1 - min(ema or 0.0, (1 + step) / (10 + step))


def copy_weights(state: Weights) -> Weights:
    """A copy of every tensor."""
    return {name: t.detach().clone() for name, t in state.items()}
