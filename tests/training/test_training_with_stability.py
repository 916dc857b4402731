"""Training with the stability penalty, in both engines."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import sinuflow
from sinuflow import ArgumentError, SinusoidalFlow
from sinuflow.data.sources import Batches
from sinuflow.training import ImageRows
from sinuflow.training.device_engine import DeviceEngine
from sinuflow.training.engine import EagerEngine
from sinuflow.training.guard import Guard
from sinuflow.training.settings import Settings
from sinuflow.training.stability import Stability
from sinuflow.training.trainer import Trainer
from tests.data.test_image_rows import PIXELS, images, small_image_flow
from tests.training.test_device_engine import settings
from tests.training.test_stability import gpu, steep_flow


def sketches(count: int, seed: int = 0) -> torch.Tensor:
    """Bright strokes on black, in which neighbouring pixels are strongly dependent."""
    generator = torch.Generator().manual_seed(seed)
    level = torch.randint(60, 250, (count, 1, 1, 1), generator=generator)
    rows = torch.arange(10).view(1, 1, -1, 1)
    columns = torch.arange(10).view(1, 1, 1, -1)
    centre = torch.randint(2, 8, (count, 1, 1, 1), generator=generator)
    ink = ((columns - centre).abs() <= 1) & (rows > 0)
    noise = torch.randint(0, 5, (count, 1, 10, 10), generator=generator)
    return torch.where(ink, level - noise, noise).to(torch.uint8)


def test_the_penalty_reduces_error_growth_at_a_small_cost_in_bits():
    data = sketches(600)
    held = ImageRows(data[500:], sinuflow.bijections.pixels.PixelMap(1e-6))
    bits, growth = {}, {}
    for weight in (None, 20.0):
        torch.manual_seed(0)
        flow = SinusoidalFlow.image((1, 10, 10), blocks=2, scales=2, channels=8, residual_blocks=1)
        rows = ImageRows(data[:500], sinuflow.bijections.pixels.PixelMap(1e-6))
        result = sinuflow.fit(
            flow, rows, held, steps=200, batch_size=50, learning_rate=1e-2, stability=weight, progress=False,
            device="cpu",
        )  # fmt: skip
        bits[weight] = held.bits_per_dimension(result.best_nll)
        flow.double()
        x = torch.cat([batch.x for batch in held.in_order(100)]).double()
        with torch.no_grad():
            z, _ = flow.bijection(x)
            back, _ = flow.bijection.inverse(z + 1e-7)
        growth[weight] = float((back - x).abs().amax(1).max()) / 1e-7
    assert growth[20.0] < growth[None] / 3
    assert bits[20.0] < bits[None] + 0.15  # of 3.5


def same_noise(monkeypatch) -> None:
    """Replace random noise, which the engines draw at different times."""
    monkeypatch.setattr(
        torch, "randn_like", lambda t: torch.linspace(-1, 1, t.numel(), dtype=t.dtype, device=t.device).view(t.shape)
    )


def engine_of(kind, flow: SinusoidalFlow, options: Settings, monkeypatch, labels=None):
    """An engine on the same batches, and its guard."""
    monkeypatch.setattr(ImageRows, "taker", lambda _: None)
    source = ImageRows(images(), PIXELS, labels, dtype=next(flow.parameters()).dtype)
    more, guard = {"capture": False} if kind is DeviceEngine else {}, Guard(slack=49.0)
    batches = Batches(source, options.batch_size, options.seed)
    return kind(flow, batches, options, guard, lambda _: 1e-3, **more), guard


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("context", [0, 2])
def test_both_engines_have_the_same_gradient(context, clip, monkeypatch):
    """In steps on each of the blocks, for the same noise."""
    same_noise(monkeypatch)
    labels = F.one_hot(torch.arange(40) % 2, 2).double() if context else None
    options = settings(batch_size=16, stability=300.0, clip=clip, steps=5)
    found = {}
    for kind in (EagerEngine, DeviceEngine):
        flow = steep_flow(torch.float64, context)
        engine, _ = engine_of(kind, flow, options, monkeypatch, labels)
        for step in range(5):
            engine.advance(step, 1)
        found[kind] = [p.detach().clone() for p in flow.parameters()]
    for a, b in zip(*found.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def gradient_of(kind, options: Settings, step: int, monkeypatch) -> torch.Tensor:
    """The gradient of a step; Adam's first moment is a tenth of it."""
    engine, _ = engine_of(kind, steep_flow(torch.float64), options, monkeypatch)
    engine.advance(step, 1)
    state = engine.optimizer_state()
    return 10 * torch.cat([t.flatten() for name, t in sorted(state.items()) if name.endswith("/exp_avg")])


@pytest.mark.parametrize("kind", [EagerEngine, DeviceEngine])
def test_the_penalty_grows_with_the_square_of_the_steps(kind, monkeypatch):
    """For two steps on the same block."""
    same_noise(monkeypatch)
    likelihood = gradient_of(kind, settings(batch_size=16, steps=6, clip=None), 5, monkeypatch)
    early, late = (
        gradient_of(kind, settings(batch_size=16, stability=100.0, steps=6, clip=None), step, monkeypatch) - likelihood
        for step in (2, 5)
    )
    assert late.norm() > 0
    torch.testing.assert_close(4 * early, late, rtol=1e-6, atol=1e-9 * float(late.norm()))


@pytest.mark.parametrize("kind", [EagerEngine, DeviceEngine])
def test_clipping_does_not_change_the_weight_of_the_penalty(kind, monkeypatch):
    """The clipped gradient has the same direction, although the penalty dominates it."""
    same_noise(monkeypatch)

    def gradient(clip: float | None, weight: float | None) -> torch.Tensor:
        return gradient_of(kind, settings(batch_size=16, stability=weight, clip=clip, steps=1), 0, monkeypatch)

    alone, both = gradient(None, None), gradient(None, 1e4)
    assert both.norm() > 10 * alone.norm()
    torch.testing.assert_close(gradient(0.5, 1e4), both * (0.5 / alone.norm()), rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(gradient(2 * float(alone.norm()), 1e4), both, rtol=1e-9, atol=1e-12)
    assert float(gradient(0.5, None).norm()) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("kind", [EagerEngine, DeviceEngine])
@pytest.mark.parametrize("factor", [math.inf, math.nan, 1e30])
@pytest.mark.parametrize("whose", ["likelihood", "penalty"])
def test_a_non_finite_gradient_skips_the_step(whose, factor, kind, monkeypatch):
    """Whether it is the likelihood's or the penalty's, and also if only its norm overflows."""
    flow = steep_flow(torch.float32)
    mine, other = (next(block.parameters()) for block in list(flow.bijection)[:2])  # the penalty is that of the first
    seen = []

    def enlarged(gradient: torch.Tensor) -> torch.Tensor:
        seen.append(gradient)
        return gradient * factor

    if whose == "likelihood":
        other.register_hook(enlarged)
    else:
        monkeypatch.setattr(Stability, "penalty", lambda *_: factor * mine.sum())
    before = [p.detach().clone() for p in flow.parameters()]
    engine, guard = engine_of(kind, flow, settings(batch_size=16, stability=10.0, clip=5.0), monkeypatch)
    engine.advance(0, 1)
    assert len(seen) == (whose == "likelihood")
    assert guard.skipped == 1
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, flow.parameters(), strict=True))


def test_an_interrupted_run_resumes_bit_for_bit(tmp_path, monkeypatch):
    found: list[float] = []

    def run(folder) -> list[torch.Tensor]:
        flow = steep_flow(torch.float32)
        sinuflow.fit(
            flow, ImageRows(images(), PIXELS), steps=12, batch_size=16, stability=100.0, progress=False, device="cpu",
            checkpoint=folder, checkpoint_steps=4, resume=True, schedule="constant", warmup=0,
        )  # fmt: skip
        return [p.detach() for p in flow.parameters()]

    penalty = Stability.penalty

    def remembered(self, *arguments, **named):
        if len(found) == 12 + 6:
            found.append(0.0)
            raise InterruptedError
        value = penalty(self, *arguments, **named)
        found.append(float(value.detach()))
        return value

    monkeypatch.setattr(Stability, "penalty", remembered)
    whole = run(tmp_path / "whole")
    assert min(found) > 0  # there is something to be resumed
    with pytest.raises(InterruptedError):
        run(tmp_path / "parts")
    again = run(tmp_path / "parts")
    assert found[-8:] == found[4:12]  # the last checkpoint was that of step 4
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))


def test_the_best_weights_minimize_likelihood_loss_plus_penalty(monkeypatch):
    """Of four validations the second has the best likelihood, the last the best sum; patience is ignored."""
    nlls, penalties = iter([40.0, 10.0, 11.0, 12.0]), iter([0.0, 9.0, 12.0, 2.0])
    source = ImageRows(images(), PIXELS)
    seen = []
    monkeypatch.setattr(Stability, "evaluate", lambda self, x, _: seen.append(x.shape) or next(penalties))
    scores = Trainer._validation_scores
    monkeypatch.setattr(Trainer, "_validation_scores", lambda self, rows: ([next(nlls)], scores(self, rows)[1]))
    flow = small_image_flow()
    result = sinuflow.fit(
        flow, source, source, steps=6, batch_size=16, validate_every=2, patience=1, stability=1.0, progress=False,
        device="cpu",
    )  # fmt: skip
    assert (result.steps, result.best_step, result.best_nll) == (6, 6, 12.0)
    assert [record["val_penalty"] for record in result.history] == [0.0, 9.0, 12.0, 2.0]
    assert set(seen) == {(49, 40)}


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), "much", True])
def test_an_invalid_weight_is_refused(weight):
    with pytest.raises(ArgumentError, match="stability must be above 0, or None"):
        sinuflow.fit(small_image_flow(), ImageRows(images(), PIXELS), stability=weight, steps=1, progress=False)


def test_flows_without_shifts_of_images_are_refused_unchanged(tmp_path):
    flow = SinusoidalFlow(2, blocks=1, hidden=(4,))
    before = {name: t.clone() for name, t in flow.state_dict().items()}
    with pytest.raises(ArgumentError, match="stability is for image flows"):
        sinuflow.fit(flow, 5 + torch.randn(64, 2), steps=2, stability=1.0, progress=False, checkpoint=tmp_path / "run")
    assert all(t.equal(before[name]) for name, t in flow.state_dict().items())
    assert not (tmp_path / "run").exists()


def test_affine_layers_are_refused():
    flow = SinusoidalFlow.image((1, 4, 4), blocks=1, conditioning="affine")
    rows = ImageRows(torch.zeros(20, 1, 4, 4, dtype=torch.uint8), PIXELS)
    with pytest.raises(ArgumentError, match="stability is for shifts alone"):
        sinuflow.fit(flow, rows, steps=1, stability=1.0, progress=False)


@pytest.mark.gpu
@gpu
def test_captured_steps_on_a_gpu_cover_all_blocks(monkeypatch):
    """The graphs share their memory, and give the same weights as steps without capture."""
    same_noise(monkeypatch)
    data, found = images(64, (1, 28, 28)).cuda(), {}
    options = settings(batch_size=32, stability=100.0, steps=8)
    for record in (False, True):
        torch.manual_seed(0)
        flow = SinusoidalFlow.image((1, 28, 28), blocks=3, scales=1, channels=16, residual_blocks=2)
        for parameter in flow.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        source = ImageRows(data, PIXELS)
        monkeypatch.setattr(ImageRows, "taker", lambda _: None)  # the same batches for both
        batches = Batches(source, options.batch_size, options.seed)
        engine = DeviceEngine(flow.cuda(), batches, options, Guard(slack=784.0), lambda _: 1e-3, capture=record)
        for step in range(8):
            engine.advance(step, 1)
        assert len(engine._runs) == 3
        found[record] = torch.cat([p.detach().flatten() for p in flow.parameters()])
        engine.close()
    torch.testing.assert_close(found[True], found[False], rtol=0, atol=1e-4)
