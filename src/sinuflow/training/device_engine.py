"""Training that stays on the GPU: batches, optimizer, guard and schedule, in steps captured as CUDA graphs."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.sources import Batch, Batches, ResidentRows, Taker
from ..flows.flow import Flow
from ..ops import adam as flat_adam
from ..ops.adam import SLOTS, Flat, Rules, Slot
from . import guard as guarding
from .engine import Advance, EagerEngine, Engine, Snapshot, Weights, average_weight
from .flat import FlatParameters
from .guard import Guard
from .settings import Settings
from .stability import Stability, clip_factor, penalty_weight

#: Steps between two synchronizations with the host, at most, and about how many seconds they may take.
_MOST_STEPS, _MOST_SECONDS = 256, 0.5
#: Warm-up steps before CUDA-graph capture.
_WARMUP_STEPS = 3

Rate = Callable[[int], float]


def make_engine(flow: Flow, batches: Batches, settings: Settings, guard: Guard, rate: Rate) -> Engine:
    """The engine for the flow's device."""
    parameters = list(flow.parameters())
    requested = os.environ.get("SINUFLOW_ENGINE", "").lower() != "plain"
    uniform = len({p.dtype for p in parameters}) == 1 and all(p.requires_grad for p in parameters)
    if parameters[0].is_cuda and requested and uniform:
        return DeviceEngine(flow, batches, settings, guard, rate, capture=True)
    return EagerEngine(flow, batches, settings, guard, rate)


class _Inputs(NamedTuple):
    """The batch of a step, feature-major, always in the same memory."""

    x: Tensor
    context: Tensor | None


class DeviceEngine(Engine):
    """Makes many steps in a row without synchronizing with the device.

    Args:
        flow: the flow to train.
        batches: of rows; if these are on the device, batches are formed there.
        settings: of the run.
        guard: updated from the device after every run of steps.
        rate: the learning rate of a step.
        capture: whether to capture a step as a CUDA graph.
    """

    def __init__(
        self, flow: Flow, batches: Batches, settings: Settings, guard: Guard, rate: Rate, capture: bool
    ) -> None:
        self._flow, self._batches, self._settings, self._guard, self._rate = flow, batches, settings, guard, rate
        self._capture = capture
        self._flat = FlatParameters(flow)
        values = self._flat.values
        self._gradient, self._first, self._second = (torch.zeros_like(values) for _ in range(3))
        self._mean = values.clone() if settings.ema else None
        self._control = torch.zeros(SLOTS, dtype=torch.float64, device=values.device)
        self._rates = torch.zeros((_MOST_STEPS, 2), dtype=torch.float64, device=values.device)
        self._made = 0
        self._at_once = 8
        self._inputs: _Inputs | None = None
        self._runs: dict[int, Callable[[], None]] = {}  # by the block of the stability penalty
        self._pool: Any = None
        self._stability = None if settings.stability is None else Stability(flow, settings.stability)
        self._emphasis = values.new_ones(())  # of the penalty in the next step
        self._resident = _resident(batches, values.device)
        self._rules = Rules(
            weight_decay=settings.weight_decay,
            decoupled=settings.optimizer == "adamw",
            clip=settings.clip if settings.stability is None else None,  # with a penalty, _make clips
            learning=guarding.LEARNING,
            memory=guarding.MEMORY,
            far=guarding.FAR,
            slack=guard.slack,
        )

    # ---------------------------------------------------------------- steps

    def advance(self, step: int, most: int) -> Advance:
        started = time.monotonic()
        most = min(most, self._at_once)
        count = most if self._resident is None else self._resident.prepare(most)
        self._begin(step, count)
        rows = 0
        for i in range(step, step + count):
            rows += self._resident_step(i) if self._resident is not None else self._host_step(i, self._batches.next())
        if self._resident is not None:
            self._resident.taken(count)
        advance = self._end(count, rows)
        # Interrupts wait for the end of the run.
        possible = _MOST_SECONDS * count / max(1e-9, time.monotonic() - started)
        self._at_once = max(1, min(_MOST_STEPS, 2 * self._at_once, int(possible)))
        return advance

    def _resident_step(self, step: int) -> int:
        assert self._resident is not None
        _, run = self._step_for(self._resident.size, step)
        run()
        return self._resident.size

    def _host_step(self, step: int, batch: Batch) -> int:
        inputs, run = self._step_for(len(batch.x), step)
        inputs.x.copy_(batch.x.mT, non_blocking=True)
        if inputs.context is not None and batch.context is not None:
            inputs.context.copy_(batch.context.mT, non_blocking=True)
        run()
        return len(batch.x)

    def _begin(self, step: int, count: int) -> None:
        """Copy the schedule of the next steps and the guard's state to the device."""
        ema, guard = self._settings.ema, self._guard
        rates = [[self._rate(step + i), average_weight(ema, step + i)] for i in range(count)]
        self._rates[:count] = torch.tensor(rates, dtype=torch.float64)
        state = {
            Slot.MADE: self._made,
            Slot.SEEN: guard.seen,
            Slot.MEAN: guard.mean,
            Slot.DEVIATION: guard.deviation,
            Slot.BAD_IN_A_ROW: guard.bad_in_a_row,
            Slot.SKIPPED: guard.skipped,
        }
        self._control.copy_(torch.tensor([float(state.get(slot, 0)) for slot in Slot], dtype=torch.float64))

    def _end(self, count: int, rows: int) -> Advance:
        """Copy the state back."""
        control, guard = self._control.tolist(), self._guard
        self._made, guard.seen = int(control[Slot.MADE]), int(control[Slot.SEEN])
        guard.mean, guard.deviation = control[Slot.MEAN], control[Slot.DEVIATION]
        guard.bad_in_a_row, guard.skipped = int(control[Slot.BAD_IN_A_ROW]), int(control[Slot.SKIPPED])
        return Advance(count, rows, control[Slot.LOSS], control[Slot.LOSS_SUM], int(control[Slot.LOSS_COUNT]))

    def _step_for(self, size: int, step: int) -> tuple[_Inputs, Callable[[], None]]:
        """A step for batches of a size, captured at first use."""
        if self._inputs is None or size != self._inputs.x.shape[-1]:
            features, context = self._flow.features, self._flow.context
            zeros = self._flat.values.new_zeros
            self._inputs = _Inputs(zeros((features, size)), zeros((context, size)) if context else None)
            self._runs, self._pool = {}, None  # graphs of another size, and their memory
        block = 0 if self._stability is None else step % self._stability.blocks
        if block not in self._runs:
            inputs = self._inputs
            self._runs[block] = self._captured(inputs, block) if self._capture else lambda: self._make(inputs, block)
        if self._stability is not None:
            self._emphasis.fill_(penalty_weight((step + 1) / self._settings.steps))
        return self._inputs, self._runs[block]

    def _captured(self, inputs: _Inputs, block: int) -> Callable[[], None]:
        state = self._state()
        saved = [t.clone() for t in state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARMUP_STEPS):
                self._make(inputs, block)
                for tensor, value in zip(state, saved, strict=True):
                    tensor.copy_(value)  # there may be no further batch or learning rate
        torch.cuda.current_stream().wait_stream(stream)
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        run = graph.replay
        try:
            with torch.cuda.graph(graph, pool=self._pool):  # one graph runs at a time: they share memory
                self._make(inputs, block)
            self._pool = graph.pool()
        except RuntimeError as error:  # some flows of other libraries synchronize
            ours = getattr(self._flow, "bijection", None) is not None
            if ours or isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            torch.cuda.set_stream(current)  # a failed capture may leave another one
            warnings.warn(f"training steps run without a CUDA graph, because capture failed: {error}", stacklevel=2)
            run = lambda: self._make(inputs, block)  # noqa: E731
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
        return run

    def _state(self) -> list[Tensor]:
        """All tensors that a step changes."""
        tensors = [self._flat.values, self._first, self._second, self._control]
        tensors += [] if self._mean is None else [self._mean]
        return tensors + ([] if self._resident is None else [self._resident.cursor])

    def _make(self, inputs: _Inputs, block: int) -> None:
        """One step, with the stability penalty of one block."""
        if self._resident is not None:
            inputs = self._resident.gather()
        losses, sign = self._gradients(inputs)
        if self._stability is not None:
            factor = clip_factor(torch.linalg.vector_norm(self._gradient), self._settings.clip)
            self._gradient.mul_(factor)
            self._add_gradient(factor * self._emphasis * self._stability.penalty(inputs.x, inputs.context, block))
        flat = Flat(self._flat.values, self._gradient, self._first, self._second, self._mean)
        flat_adam.step(self._rules, self._control, self._rates, losses, sign, flat)

    def _gradients(self, inputs: _Inputs) -> tuple[Tensor, int]:
        """Write the gradient; return terms whose mean, times the sign, is the loss."""
        chain = getattr(self._flow, "normal_chain", None)  # flows of other libraries have none
        if chain is not None:
            log_density = chain.nll_gradient(inputs.x, inputs.context, self._gradient)
            if log_density is not None:
                return log_density, -1
        context = None if inputs.context is None else inputs.context.mT
        loss = -self._flow(context, validate_args=False).log_prob(inputs.x.mT).mean()
        grads = torch.autograd.grad(loss, self._flat.parameters)
        torch._foreach_copy_(self._flat.views(self._gradient), [g.contiguous() for g in grads])
        return loss.detach().view(1), 1

    def _add_gradient(self, penalty: Tensor) -> None:
        """Add the gradient of a penalty that depends on some of the parameters."""
        grads = torch.autograd.grad(penalty, self._flat.parameters, allow_unused=True)
        pairs = [(v, g) for v, g in zip(self._flat.views(self._gradient), grads, strict=True) if g is not None]
        torch._foreach_add_([view for view, _ in pairs], [gradient.contiguous() for _, gradient in pairs])

    # ---------------------------------------------------------------- state

    @property
    def average(self) -> Weights | None:
        """The average of the weights by name, with the buffers of the flow."""
        if self._mean is None:
            return None
        return self._flow.state_dict() | dict(zip(self._flat.names, self._flat.views(self._mean), strict=True))

    def restore(self, snapshot: Snapshot) -> None:
        self._flow.load_state_dict(snapshot.weights)
        state = snapshot.optimizer
        for name, flat in (("exp_avg", self._first), ("exp_avg_sq", self._second)):
            for i, view in enumerate(self._flat.views(flat)):
                view.copy_(state[key]) if (key := f"{i}/{name}") in state else view.zero_()
        self._made = max((int(t) for name, t in state.items() if name.endswith("/step")), default=0)
        if self._mean is not None and snapshot.average is not None:
            for name, view in zip(self._flat.names, self._flat.views(self._mean), strict=True):
                view.copy_(snapshot.average[name])

    def optimizer_state(self) -> Weights:
        if not self._made:
            return {}
        state, step = Weights(), torch.tensor(float(self._made))
        moments = zip(self._flat.views(self._first), self._flat.views(self._second), strict=True)
        for i, (first, second) in enumerate(moments):
            state |= {f"{i}/exp_avg": first, f"{i}/exp_avg_sq": second, f"{i}/step": step.clone()}
        return state

    def close(self) -> None:
        self._runs.clear()
        self._flat.release()


def _resident(batches: Batches, device: torch.device) -> _Resident | None:
    """The rows on the device, if their source can form batches there."""
    source = batches.source
    if not isinstance(source, ResidentRows):
        return None
    take = source.taker()
    return None if take is None else _Resident(source, take, batches, device)


class _Resident:
    """Rows on the device, and their order in an epoch."""

    def __init__(self, source: ResidentRows, take: Taker, batches: Batches, device: torch.device) -> None:
        self._source, self._take, self._batches = source, take, batches
        self.size = min(batches.size, source.rows)
        self._per_epoch = source.rows // self.size
        self._order = torch.zeros((self._per_epoch, self.size), dtype=torch.int64, device=device)
        self._epoch = -1
        #: The index of the next batch, on the device.
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)

    def prepare(self, most: int) -> int:
        """Shuffle at the start of an epoch; the number of batches left in it, up to ``most``."""
        epoch, taken = self._batches.position
        if taken >= self._per_epoch:
            epoch, taken = epoch + 1, 0
            self._batches.position = (epoch, taken)
        if epoch != self._epoch:
            order = self._source.start_epoch(epoch, self._batches.seed)[: self._order.numel()]
            self._order.copy_(order.view(self._order.shape))
            self._epoch = epoch
        self.cursor.fill_(taken)
        return min(most, self._per_epoch - taken)

    def taken(self, count: int) -> None:
        """Advance by so many batches."""
        epoch, taken = self._batches.position
        self._batches.position = (epoch, taken + count)

    def gather(self) -> _Inputs:
        """The next batch."""
        rows = self._order.index_select(0, self.cursor).view(-1)
        self.cursor.add_(1)
        return _Inputs(*self._take(rows))
