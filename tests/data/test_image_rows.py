"""Images as training rows: new noise in training, the same for validation, and bytes on the device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import sinuflow
from sinuflow import ArgumentError, DataError, SinusoidalFlow
from sinuflow.bijections.pixels import PixelMap, flip_horizontally
from sinuflow.data.sources import Batches, ResidentRows
from sinuflow.training import ImageRows, RowSource
from sinuflow.training.device_engine import DeviceEngine
from sinuflow.training.guard import Guard
from tests.training.test_device_engine import Synchronizations, settings, train

PIXELS = PixelMap(alpha=0.05)


def images(count: int = 40, shape: tuple[int, int, int] = (1, 7, 7), seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    levels = torch.arange(shape[-1]) * 20 + torch.randint(100, (count, 1, 1, 1), generator=generator)
    return (levels.expand(count, *shape) + torch.randint(9, (count, *shape), generator=generator)).to(torch.uint8)


def bytes_of(x: torch.Tensor, shape: tuple[int, int, int] = (1, 7, 7)) -> torch.Tensor:
    return PIXELS.to_bytes(x).view(-1, *shape)


def small_image_flow(shape: tuple[int, int, int] = (1, 7, 7), context: int = 0) -> SinusoidalFlow:
    torch.manual_seed(0)
    return SinusoidalFlow.image(shape, context, blocks=1, scales=1, waves=2, channels=4, residual_blocks=1)


def test_it_is_a_source_that_can_live_on_a_device():
    source = ImageRows(images(), PIXELS)
    assert isinstance(source, RowSource)
    assert isinstance(source, ResidentRows)
    assert source.rows == 40


def test_every_epoch_has_all_images_and_new_noise():
    data = images()
    source = ImageRows(data, PIXELS, dtype=torch.float64)
    epochs = [torch.cat([batch.x for batch in source.epoch(n, 10, seed=3)]) for n in (0, 1)]
    for x in epochs:
        assert torch.equal(bytes_of(x).flatten(1).unique(dim=0), data.flatten(1).unique(dim=0))
    same = [x[bytes_of(x).flatten(1).long().sum(1).argsort(stable=True)] for x in epochs]
    assert not (same[0] == same[1]).any()


def test_batches_can_be_taken_again_from_any_position():
    source = ImageRows(images(), PIXELS, F.one_hot(torch.arange(40) % 3, 3).float(), flips=True)
    whole = list(source.epoch(2, 8, seed=1))
    rest = list(source.epoch(2, 8, seed=1, skip=3))
    assert len(whole) == 5
    for a, b in zip(whole[3:], rest, strict=True):
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.context, b.context)


def test_labels_stay_with_their_images():
    data = images(shape=(1, 7, 7))
    data[:, 0, 0, 0] = torch.arange(40, dtype=torch.uint8)
    labels = torch.arange(40.0).view(40, 1)
    source = ImageRows(data, PIXELS, labels, dtype=torch.float64)
    for batch in [*source.epoch(0, 8, seed=0), *source.in_order(16), source.head(5)]:
        assert torch.equal(bytes_of(batch.x)[:, 0, 0, 0].double(), batch.context[:, 0])


def test_half_of_the_images_are_flipped_in_training_and_none_elsewhere():
    data = images(1, (3, 7, 7)).expand(400, 3, 7, 7)
    source = ImageRows(data, PIXELS, flips=True, dtype=torch.float64)
    shape = (3, 7, 7)
    taken = bytes_of(next(source.epoch(0, 400, seed=0)).x, shape)
    flipped = (taken == flip_horizontally(data)).all(dim=(1, 2, 3))
    assert 150 < flipped.sum() < 250
    assert torch.equal(taken[~flipped], data[~flipped])
    assert torch.equal(bytes_of(source.head(9).x, shape), data[:9])
    assert torch.equal(torch.cat([bytes_of(batch.x, shape) for batch in source.in_order(100)]), data)


def test_the_head_is_from_all_over_the_images():
    labels = torch.arange(40.0).view(40, 1)
    source = ImageRows(images(), PIXELS, labels)
    assert source.head(4).context.flatten().tolist() == [0, 10, 20, 30]
    assert source.head(99).context.flatten().tolist() == list(range(40))


def test_validation_is_the_same_at_every_call():
    source = ImageRows(images(), PIXELS, flips=True)
    for a, b in zip(source.in_order(16), source.in_order(16), strict=True):
        assert torch.equal(a.x, b.x)
    assert not torch.equal(*[batch.x[:8] for batch in source.in_order(16)][:2])


def test_bits_per_dimension_are_those_of_the_pixel_map():
    source = ImageRows(images(), PIXELS, dtype=torch.float64)
    flow = small_image_flow().double()
    with torch.no_grad():
        parts = [(batch.x, flow().log_prob(batch.x)) for batch in source.in_order(4096)]
    x, log_density = (torch.cat(part) for part in zip(*parts, strict=True))
    want = PIXELS.bits_per_dimension(log_density, x).mean()
    assert source.bits_per_dimension(-float(log_density.mean())) == pytest.approx(float(want), abs=1e-12)


@pytest.mark.parametrize("context", [0, 2])
def test_fit_learns_from_images_and_tells_bits(context):
    labels = F.one_hot(torch.arange(240) % 2, 2).float() if context else None
    parts = images(240).split(200)
    sides = (None, None) if labels is None else labels.split(200)
    train, held_out = (ImageRows(x, PIXELS, c) for x, c in zip(parts, sides, strict=True))
    flow = small_image_flow(context=context)
    result = sinuflow.fit(
        flow, train, held_out, steps=60, batch_size=50, learning_rate=5e-3, progress=False, device="cpu"
    )
    bits = [record["val_bits_per_dimension"] for record in result.history]
    assert bits[-1] < bits[0] - 0.2
    assert min(bits) == pytest.approx(held_out.bits_per_dimension(result.best_nll))


def test_rows_that_are_no_images_have_no_bits():
    flow = SinusoidalFlow(2, blocks=1, hidden=(4,))
    result = sinuflow.fit(flow, torch.randn(64, 2), torch.randn(9, 2), steps=2, progress=False, device="cpu")
    assert "val_bits_per_dimension" not in result.history[-1]


@pytest.mark.parametrize("context", [0, 2])
def test_on_a_device_a_step_makes_its_batch_by_itself(context):
    """Bytes, noise, flips and logits are part of the step, which never asks for a number."""
    labels = F.one_hot(torch.arange(40) % 2, 2).float() if context else None
    source = ImageRows(images(), PIXELS, labels, flips=True)
    options = settings(batch_size=16)
    flow = small_image_flow(context=context)
    batches = Batches(source, options.batch_size, options.seed)
    engine = DeviceEngine(flow, batches, options, Guard(slack=49.0), lambda _: 3e-3, capture=False)
    loss, count = train(engine, 5)
    assert count == 5
    for _ in range(8):
        later, _ = train(engine, 5)
    assert later < loss
    inputs, _ = engine._step_for(16, 0)
    with Synchronizations() as synchronizations:
        engine._make(inputs, 0)
    assert synchronizations.count == 0
    first, second = (engine._resident._take(torch.arange(6)) for _ in range(2))
    assert first.x.shape == (49, 6)
    assert not (first.x == second.x).any()
    if context:
        assert torch.equal(first.context, labels[:6].T)


def test_what_does_not_fit_is_refused():
    with pytest.raises(DataError, match="dtype uint8"):
        ImageRows(torch.zeros(2, 1, 3, 3), PIXELS)
    with pytest.raises(ArgumentError, match="there are no images"):
        ImageRows(torch.zeros(0, 1, 3, 3, dtype=torch.uint8), PIXELS)
    with pytest.raises(ArgumentError, match=r"of shape \(40, context\); got \(40,\)"):
        ImageRows(images(), PIXELS, torch.zeros(40))
    with pytest.raises(ArgumentError, match=r"x must have shape \(\.\.\., 49\); got \(40, 48\)"):
        sinuflow.fit(small_image_flow(), ImageRows(images(shape=(3, 4, 4)), PIXELS), steps=1, device="cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_a_recorded_step_draws_new_noise():
    labels = F.one_hot(torch.arange(240) % 2, 2).float()
    train, held_out = (
        ImageRows(x, PIXELS, c, flips=True) for x, c in zip(images(240).split(200), labels.split(200), strict=True)
    )
    taken = [train.to(torch.device("cuda")).taker()(torch.arange(4, device="cuda")).x for _ in range(2)]
    assert not (taken[0] == taken[1]).any()
    for here, there in zip(held_out.in_order(16), held_out.to(torch.device("cuda")).in_order(16), strict=True):
        torch.testing.assert_close(there.x.cpu(), here.x)
    flow = small_image_flow(context=2)
    result = sinuflow.fit(flow, train, held_out, steps=200, batch_size=50, learning_rate=5e-3, progress=False)
    bits = [record["val_bits_per_dimension"] for record in result.history]
    assert bits[-1] < bits[0] - 0.2
