"""Training that stays on the GPU: batches, optimizer, guard and schedule, in steps captured as CUDA graphs."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..data.sources import Batch, Batches, ResidentRows, Taker
from ..flows.flow import Flow
from ..ops import adam as flat_adam
from ..ops.adam import Flat, Rules, Slot
from . import guard as guarding
from .engine import Advance, EagerEngine, Engine, Snapshot, Weights, average_weight, no_limit
from .guard import Guard
from .settings import Settings
from .stability import clip_factor

#: Steps between two synchronizations with the host, at most, and about how many seconds they may take.
_MOST_STEPS, _MOST_SECONDS = 256, 0.5
#: Warm-up steps before CUDA-graph capture.
_WARMUP_STEPS = 3


def make_engine(
    flow: Flow,
    batches: Batches,
    settings: Settings,
    guard: Guard,
    rate: Callable[[int], float],
    elapsed: Callable[[], float] = no_limit,
) -> Engine:
    """The engine for the flow's device."""
    parameters = list(flow.parameters())
    requested = os.environ.get("SINUFLOW_ENGINE", "").lower() != "plain"
    uniform = len({p.dtype for p in parameters}) == 1 and all(p.requires_grad for p in parameters)
    if parameters[0].is_cuda and requested and uniform:
        return DeviceEngine(flow, batches, settings, guard, rate, capture=True, elapsed=elapsed)
    return EagerEngine(flow, batches, settings, guard, rate, elapsed=elapsed)


@dataclass(eq=False)
class DeviceEngine(Engine):
    """Makes many steps in a row without synchronizing with the device.

    If the rows are on the device, batches are formed there. The guard is updated after every run of steps.
    """

    capture: bool  # whether to capture a step as a CUDA graph

    def __post_init__(self) -> None:
        super().__post_init__()
        settings, source = self.settings, self.batches.source
        self._flat = FlatParameters(self.flow)
        values = self._flat.values
        self._gradient, self._first, self._second = (torch.zeros_like(values) for _ in range(3))
        self._mean = values.clone() if settings.ema else None
        averages = [] if self._mean is None else zip(self._flat.names, self._flat.views(self._mean), strict=True)
        self._averages: Weights = dict(averages)
        self._moments: Weights = {}
        for name, flat in (("exp_avg", self._first), ("exp_avg_sq", self._second)):
            self._moments |= {f"{i}/{name}": view for i, view in enumerate(self._flat.views(flat))}
        self._control = torch.zeros(len(Slot), dtype=torch.float64, device=values.device)
        self._rates = torch.zeros((_MOST_STEPS, 2), dtype=torch.float64, device=values.device)
        self._applied = 0
        self._at_once = 8
        self._inputs: Batch | None = None  # of a step, feature-major, always in the same memory
        self._runs: dict[int, Callable[[], None]] = {}  # by the block of the stability penalty
        self._pool: Any = None
        self._penalty_factor = values.new_ones(())  # in the next step
        self._resident: _Resident | None = None
        if isinstance(source, ResidentRows) and (take := source.taker()) is not None:
            self._resident = _Resident(source, take, self.batches, values.device)
        self._rules = Rules(
            weight_decay=settings.weight_decay,
            decoupled=settings.optimizer == "adamw",
            clip=settings.clip if settings.stability is None else None,  # with a penalty, _make clips
            warmup=guarding.WARMUP,
            decay=guarding.DECAY,
            max_deviations=guarding.MAX_DEVIATIONS,
            slack=self.guard.slack,
        )

    def advance(self, step: int, limit: int) -> Advance:
        started, resident = time.monotonic(), self._resident
        count = min(limit, self._at_once)
        if resident is not None:
            count = resident.start(count)
        # Copy the schedule of the next steps and the guard's state to the device.
        rates = [[self.rate(i), average_weight(self.settings.ema, i)] for i in range(step, step + count)]
        self._rates[:count] = torch.tensor(rates, dtype=torch.float64)
        state = {"applied": self._applied, **self.guard.state()}
        self._control.copy_(torch.tensor([state.get(slot.name.lower(), 0) for slot in Slot], dtype=torch.float64))
        rows = 0
        for i in range(step, step + count):
            if resident is not None:
                inputs, run = self._step_for(resident.size, i)
            else:
                batch = self.batches.next()
                inputs, run = self._step_for(len(batch.x), i)
                for buffer, new in zip(inputs, batch, strict=True):
                    if buffer is not None and new is not None:
                        buffer.copy_(new.mT, non_blocking=True)
            run()
            rows += inputs.x.shape[-1]
        control = dict(zip(Slot, self._control.tolist(), strict=True))
        self._applied = int(control[Slot.APPLIED])
        self.guard.restore({name: control[Slot[name.upper()]] for name in self.guard.state()})
        # Interrupts wait for the end of the run.
        possible = _MOST_SECONDS * count / max(1e-9, time.monotonic() - started)
        self._at_once = max(1, min(_MOST_STEPS, 2 * self._at_once, int(possible)))
        return Advance(count, rows, control[Slot.LOSS], control[Slot.LOSS_SUM], int(control[Slot.LOSS_COUNT]))

    def _step_for(self, size: int, step: int) -> tuple[Batch, Callable[[], None]]:
        """A step for batches of a size, captured at first use."""
        if self._inputs is None or size != self._inputs.x.shape[-1]:
            features, context = self.flow.features, self.flow.context
            zeros = self._flat.values.new_zeros
            self._inputs = Batch(zeros((features, size)), zeros((context, size)) if context else None)
            self._runs, self._pool = {}, None  # graphs of another size, and their memory
        inputs, block = self._inputs, 0
        if self.stability is not None:
            block = step % self.stability.blocks
            self._penalty_factor.fill_(self._penalty_schedule(step))
        if block not in self._runs:
            self._runs[block] = self._captured(inputs, block) if self.capture else lambda: self._make(inputs, block)
        return inputs, self._runs[block]

    def _captured(self, inputs: Batch, block: int) -> Callable[[], None]:
        cursor = None if self._resident is None else self._resident.cursor
        changed = (self._flat.values, self._first, self._second, self._control, self._mean, cursor)
        state = [t for t in changed if t is not None]
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
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # some transformers and flows of other libraries synchronize
            torch.cuda.set_stream(current)  # a failed capture may leave another one
            self.capture = False
            warnings.warn(f"training steps run without a CUDA graph, because capture failed: {error}", stacklevel=2)
            run = lambda: self._make(inputs, block)  # noqa: E731
        for tensor, value in zip(state, saved, strict=True):
            tensor.copy_(value)
        return run

    def _make(self, inputs: Batch, block: int) -> None:
        """One step, with the stability penalty of one block."""
        if self._resident is not None:
            inputs = self._resident.gather()
        losses, sign = self._gradients(inputs)
        if self.stability is not None:
            factor = clip_factor(torch.linalg.vector_norm(self._gradient), self._clip)
            self._gradient.mul_(factor)
            penalty = factor * self._penalty_factor * self.stability.penalty(*inputs, block)
            grads = torch.autograd.grad(penalty, self._flat.parameters, allow_unused=True)  # those of the block
            pairs = [(v, g) for v, g in zip(self._flat.views(self._gradient), grads, strict=True) if g is not None]
            torch._foreach_add_([view for view, _ in pairs], [gradient.contiguous() for _, gradient in pairs])
        flat = Flat(self._flat.values, self._gradient, self._first, self._second, self._mean)
        flat_adam.step(self._rules, self._control, self._rates, losses, sign, flat)

    def _gradients(self, inputs: Batch) -> tuple[Tensor, int]:
        """Write the gradient; return terms whose mean, times the sign, is the loss."""
        chain = getattr(self.flow, "normal_chain", None)  # flows of other libraries have none
        if chain is not None:
            log_density = chain.nll_gradient(inputs.x, inputs.context, self._gradient)
            if log_density is not None:
                return log_density, -1
        context = None if inputs.context is None else inputs.context.mT
        loss = -self.flow(context, validate_args=False).log_prob(inputs.x.mT).mean()
        grads = torch.autograd.grad(loss, self._flat.parameters, allow_unused=True, materialize_grads=True)
        torch._foreach_copy_(self._flat.views(self._gradient), [g.contiguous() for g in grads])
        return loss.detach().view(1), 1

    @property
    def average(self) -> Weights | None:
        """The average of the weights by name, with the buffers of the flow."""
        return None if self._mean is None else self.flow.state_dict() | self._averages

    def restore(self, snapshot: Snapshot) -> None:
        self.flow.load_state_dict(snapshot.weights)
        state, average = snapshot.optimizer, snapshot.average
        for name, view in self._moments.items():
            view.copy_(state[name]) if name in state else view.zero_()
        self._applied = max((int(t) for name, t in state.items() if name.endswith("/step")), default=0)
        if average is not None:
            for name, view in self._averages.items():
                view.copy_(average[name])

    def optimizer_state(self) -> Weights:
        steps = {f"{i}/step": torch.tensor(float(self._applied)) for i in range(len(self._flat.parameters))}
        return self._moments | steps if self._applied else {}

    def close(self) -> None:
        self._runs.clear()
        self._flat.release()


class FlatParameters:
    """The parameters of a module as views of one flat tensor, until :meth:`release`; the module works as usual."""

    def __init__(self, module: nn.Module) -> None:
        self.names, self.parameters = map(list, zip(*module.named_parameters(), strict=True))
        self._shapes = [parameter.shape for parameter in self.parameters]
        self.values = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        for parameter, view in zip(self.parameters, self.views(self.values), strict=True):
            parameter.data = view

    def views(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat tensor in the shapes of the parameters."""
        pieces = flat.split([shape.numel() for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def release(self) -> None:
        """Give every parameter its own memory."""
        for parameter in self.parameters:
            parameter.data = parameter.data.clone()


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

    def start(self, most: int) -> int:
        """Advance by at most ``most`` batches of the epoch, and return their number; a new epoch is shuffled."""
        epoch, taken = self._batches.position
        if taken >= self._per_epoch:
            epoch, taken = epoch + 1, 0
        if epoch != self._epoch:
            order = self._source.start_epoch(epoch, self._batches.seed)[: self._order.numel()]
            self._order.copy_(order.view(self._order.shape))
            self._epoch = epoch
        self.cursor.fill_(taken)
        count = min(most, self._per_epoch - taken)
        self._batches.position = (epoch, taken + count)
        return count

    def gather(self) -> Batch:
        """The next batch."""
        rows = self._order.index_select(0, self.cursor).view(-1)
        self.cursor.add_(1)
        return self._take(rows)
