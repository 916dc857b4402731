"""The device engine on the CPU: the same losses and weights as the eager engine."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sinuflow import SinusoidalFlow
from sinuflow.data.sources import Batch, Batches, MemoryRows
from sinuflow.ops.backends.cuda.program import Program
from sinuflow.ops.flow_program import FlowProgram, layout
from sinuflow.training.device_engine import DeviceEngine, FlatParameters, make_engine
from sinuflow.training.engine import EagerEngine
from sinuflow.training.guard import Guard
from sinuflow.training.schedules import Schedule
from sinuflow.training.settings import Settings
from tests.ops.emulator import EmulatorLauncher
from tests.training.small import banana, small_flow

DOUBLE = torch.float64


def settings(**changes):
    return Settings(**{
        "steps": 200, "batch_size": 64, "learning_rate": 3e-3, "optimizer": "adam", "schedule": "cosine", "warmup": 10,
        "weight_decay": 0.0, "clip": 5.0, "ema": None, "patience": None, "validate_every": 100, "seed": 0, **changes,
    })  # fmt: skip


def build(kind, options, source, dtype=DOUBLE, context=0, unused=False):
    flow = small_flow(context=context)
    if unused:
        flow.unused = nn.Parameter(torch.ones(3))
    flow = flow.to(dtype)
    guard = Guard(slack=2.0)
    schedule = Schedule(options.schedule, options.steps, options.warmup)
    batches = Batches(source, options.batch_size, options.seed)
    more = {"capture": False} if kind is DeviceEngine else {}
    engine = kind(flow, batches, options, guard, lambda s: options.learning_rate * schedule.factor(s), **more)
    return flow, engine, guard, batches


def train(engine, steps, start=0):
    losses, step = [], start
    while step < start + steps:
        advance = engine.advance(step, start + steps - step)
        step += advance.steps
        losses.append((advance.loss_sum, advance.loss_count))
    return sum(s for s, _ in losses), sum(c for _, c in losses)


def nudge(x, context, generator):
    """An encoder, as for tables."""
    return Batch(x + 0.01 * torch.rand(x.shape, generator=generator, dtype=x.dtype), context)


@pytest.mark.parametrize("encode", [None, nudge], ids=["resident", "streamed"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "exponential"},
        {"weight_decay": 0.01, "ema": 0.99, "clip": None},
        {"clip": 0.1, "batch_size": 400},
    ],
)
def test_a_hundred_steps_agree_with_the_eager_engine(changes, encode, monkeypatch):
    if encode is not None:  # then the rows are not resident, and every batch is encoded by itself
        monkeypatch.setattr(MemoryRows, "taker", lambda _: None)
    options = settings(**changes)
    found = {}
    for kind in (EagerEngine, DeviceEngine):
        source = MemoryRows(banana(400).double(), encode=encode)
        flow, engine, guard, batches = build(kind, options, source)
        found[kind] = (train(engine, 100), [p.detach().clone() for p in flow.parameters()], guard, batches, engine)
    (loss, count), weights, guard, batches, engine = found[EagerEngine]
    (other_loss, other_count), other_weights, other_guard, other_batches, other = found[DeviceEngine]
    assert other_count == count == 100
    assert other_loss == pytest.approx(loss, abs=1e-8)
    for a, b in zip(weights, other_weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)
    assert other_guard.state() == pytest.approx(guard.state(), abs=1e-8)
    assert sum(other_batches.position) == sum(batches.position)
    if options.ema:
        for name, t in engine.average.items():
            torch.testing.assert_close(other.average[name], t, rtol=0, atol=1e-8)
    mine, theirs = other.optimizer_state(), engine.optimizer_state()
    assert mine.keys() == theirs.keys()
    for name, t in theirs.items():
        torch.testing.assert_close(mine[name].double(), t.double(), rtol=0, atol=1e-8)


def test_resident_rows_are_encoded_when_an_epoch_starts():
    x = banana(400).double()
    source = MemoryRows(x, banana(400, seed=3), encode=nudge)
    take = source.taker()
    for epoch in (0, 1, 0):
        order = source.start_epoch(epoch, seed=5)
        assert torch.equal(order.sort().values, torch.arange(400))
        batch = take(order[:64])
        noise = batch.x.mT - x[order[:64]]
        assert 0 <= float(noise.min()) < float(noise.max()) < 0.01
        assert torch.equal(batch.context.mT, banana(400, seed=3)[order[:64]])
        if epoch == 0:
            first = take(torch.arange(400)).x.clone()
        else:
            assert not (take(torch.arange(400)).x == first).any()
    assert torch.equal(take(torch.arange(400)).x, first)  # a resumed run sees the same noise


def test_encoded_resident_rows_need_no_synchronization():
    _, engine, _, _ = build(DeviceEngine, settings(), MemoryRows(banana(400).double(), encode=nudge))
    loss, count = train(engine, 50)
    assert count == 50
    assert train(engine, 50, start=50)[0] < loss
    inputs, _ = engine._step_for(64, 0)
    with Synchronizations() as synchronizations:
        engine._make(inputs, 0)
    assert synchronizations.count == 0


def test_in_float32_the_engines_agree_up_to_rounding():
    sums = []
    for kind in (EagerEngine, DeviceEngine):
        _, engine, _, _ = build(kind, settings(), MemoryRows(banana(400)), torch.float32)
        sums.append(train(engine, 100)[0])
    assert sums[0] == pytest.approx(sums[1], rel=1e-4)


@pytest.mark.parametrize("context", [0, 2])
def test_gradients_come_from_the_flow_program(context, monkeypatch):
    given = banana(400, seed=3) if context else None
    sums = []
    for kind in (EagerEngine, DeviceEngine):
        torch.manual_seed(0)
        flow, engine, _, _ = build(kind, settings(), MemoryRows(banana(400), given), torch.float32, context=context)
        if kind is DeviceEngine:
            found = layout(flow.bijection.spec(), flow.bijection.named_parameters())
            kernels = Program(found, torch.device("cpu"), EmulatorLauncher(found.shape))
            program = FlowProgram(flow.bijection, kernels)
            monkeypatch.setattr(flow.bijection, "_program", lambda _, program=program: program)
            monkeypatch.setattr(flow.bijection, "layer_by_layer", None)
            monkeypatch.setattr(program, "_gradients_verified", True)
        sums.append(train(engine, 20)[0])
    assert sums[0] == pytest.approx(sums[1], rel=1e-4)


def test_context():
    context = banana(400, seed=3).double()
    sums = []
    for kind in (EagerEngine, DeviceEngine):
        _, engine, _, _ = build(kind, settings(), MemoryRows(banana(400).double(), context), context=2)
        sums.append(train(engine, 30)[0])
    assert sums[0] == pytest.approx(sums[1], abs=1e-8)


@pytest.mark.parametrize("clip", [5.0, None])
def test_parameters_without_gradients_stay_as_they_are(clip):
    weights = []
    for kind in (EagerEngine, DeviceEngine):
        flow, engine, _, _ = build(kind, settings(clip=clip), MemoryRows(banana(400).double()), unused=True)
        train(engine, 10)
        assert (flow.unused == 1).all()
        weights.append([p.detach().clone() for p in flow.parameters()])
    for a, b in zip(*weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)


def test_a_run_can_change_engines():
    """A checkpoint from a CPU can be resumed on a GPU, and vice versa."""
    options = settings(ema=0.99, weight_decay=0.01)
    _, uninterrupted, _, _ = build(EagerEngine, options, MemoryRows(banana(400).double()))
    train(uninterrupted, 60)
    for first, second in ((EagerEngine, DeviceEngine), (DeviceEngine, EagerEngine)):
        _, engine, guard, batches = build(first, options, MemoryRows(banana(400).double()))
        train(engine, 30)
        flow, other, other_guard, other_batches = build(second, options, MemoryRows(banana(400).double()))
        other.restore(engine.snapshot())
        other_guard.restore(guard.state())
        other_batches.position = batches.position
        train(other, 30, start=30)
        for a, b in zip(flow.state_dict().values(), uninterrupted.snapshot().weights.values(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-8)
        for a, b in zip(other.average.values(), uninterrupted.average.values(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-8)


def test_outlying_batches_are_skipped_and_counted():
    rows = banana(640).double()
    rows[5] = math.nan  # in one batch of every epoch of ten
    flow, engine, guard, _ = build(DeviceEngine, settings(), MemoryRows(rows))
    _, count = train(engine, 100)
    assert guard.skipped == 100 - count
    assert guard.skipped == 10
    assert not guard.diverged
    assert all(p.isfinite().all() for p in flow.parameters())


def test_nan_weights_mean_divergence():
    flow, engine, guard, _ = build(DeviceEngine, settings(), MemoryRows(banana(400).double()))
    good = engine.snapshot()
    with torch.no_grad():
        next(flow.parameters()).fill_(math.nan)
    _, count = train(engine, 20)
    assert count == 0
    assert guard.diverged
    engine.restore(good)
    guard.restart()
    assert train(engine, 20)[1] == 20


def test_closing_gives_every_parameter_its_own_memory():
    flow, engine, _, _ = build(DeviceEngine, settings(), MemoryRows(banana(400).double()))
    train(engine, 5)
    before = [p.detach().clone() for p in flow.parameters()]
    engine.close()
    assert all(p.equal(b) for p, b in zip(flow.parameters(), before, strict=True))
    assert len({p.untyped_storage().data_ptr() for p in flow.parameters()}) == len(before)


def test_flat_parameters_share_memory_with_the_parameters():
    flow = SinusoidalFlow(2, blocks=1, hidden=(4,))
    flat = FlatParameters(flow)
    with torch.no_grad():
        flat.values.fill_(0.5)
    assert all(bool((p == 0.5).all()) for p in flow.parameters())


class Synchronizations(TorchDispatchMode):
    """Counts synchronizations with the host, which a captured step must not have."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("changes", [{}, {"ema": 0.99, "weight_decay": 0.1, "optimizer": "adamw", "clip": None}])
def test_a_step_needs_no_synchronization(changes):
    _, engine, _, _ = build(DeviceEngine, settings(**changes), MemoryRows(banana(400).double()))
    engine.advance(0, 1)
    inputs, _ = engine._step_for(64, 0)
    with Synchronizations() as synchronizations:
        engine._make(inputs, 0)
    assert synchronizations.count == 0


@pytest.fixture
def _capture(monkeypatch):
    """A capture without what needs a GPU."""
    nothing = contextlib.nullcontext
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(wait_stream=lambda _: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(wait_stream=lambda _: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nothing())
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda _, pool: nothing())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None, pool=lambda: (0, 1)))


@pytest.mark.usefixtures("_capture")
def test_warm_up_steps_use_a_single_batch():
    """At the last batch of an epoch."""
    flow, engine, _, batches = build(DeviceEngine, settings(batch_size=512), MemoryRows(banana(400).double()))
    engine.capture = True
    before = [p.detach().clone() for p in flow.parameters()]
    engine.advance(0, 5)
    assert all(p.equal(b) for p, b in zip(flow.parameters(), before, strict=True))
    assert batches.position == (0, 1)


def failing_capture(error):
    @contextlib.contextmanager
    def graph(_, pool):
        yield
        raise error

    return graph


@pytest.mark.usefixtures("_capture")
def test_steps_that_cannot_be_captured_run_without_a_graph(monkeypatch):
    """Such as those of a transformer that indexes with a boolean mask."""
    _, uncaptured, _, _ = build(DeviceEngine, settings(), MemoryRows(banana(400).double()))
    expected = train(uncaptured, 20)
    monkeypatch.setattr(torch.cuda, "graph", failing_capture(RuntimeError("not permitted when stream is capturing")))
    _, engine, _, _ = build(DeviceEngine, settings(), MemoryRows(banana(400).double()))
    engine.capture = True
    with pytest.warns(UserWarning, match="without a CUDA graph, because capture failed: not permitted") as caught:
        assert train(engine, 20) == expected
    assert len(caught) == 1


@pytest.mark.usefixtures("_capture")
def test_memory_that_runs_out_during_capture_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", failing_capture(torch.OutOfMemoryError("out of memory")))
    _, engine, _, _ = build(DeviceEngine, settings(), MemoryRows(banana(400).double()))
    engine.capture = True
    with pytest.raises(torch.OutOfMemoryError):
        engine.advance(0, 1)


def test_graphs_of_all_blocks_share_a_pool_until_the_batch_size_changes(monkeypatch):
    captured: list[tuple[int, int, object]] = []
    _, engine, _, _ = build(DeviceEngine, settings(), MemoryRows(banana(400).double()))
    engine.stability = SimpleNamespace(blocks=3)

    def capture(inputs, block):
        captured.append((inputs.x.shape[-1], block, engine._pool))
        engine._pool = engine._pool or object()
        return lambda: None

    monkeypatch.setattr(engine, "_captured", capture)
    engine.capture = True
    for step in range(7):
        inputs, _ = engine._step_for(64, step)
    assert [block for _, block, _ in captured] == [0, 1, 2]
    assert captured[0][2] is None
    assert captured[1][2] is captured[2][2] is engine._pool
    assert engine._step_for(64, 9)[0] is inputs
    engine._step_for(16, 4)
    assert [(size, block) for size, block, _ in captured[3:]] == [(16, 1)]
    assert captured[3][2] is None


def test_frozen_parameters_need_the_eager_engine():
    flow = small_flow()
    next(flow.parameters()).requires_grad_(False)
    engine = make_engine(flow, Batches(MemoryRows(banana(400)), 64, 0), settings(), Guard(1.0), lambda _: 1e-3)
    assert isinstance(engine, EagerEngine)
