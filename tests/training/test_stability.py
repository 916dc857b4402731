"""The stability penalty: its value in closed form, its gradient, and its sum over blocks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from sinuflow import SinusoidalFlow
from sinuflow.bijections.image import ImageShift
from sinuflow.training import stability as module
from sinuflow.training.stability import Stability, growth_penalty, patch_noise
from tests.training.test_device_engine import Synchronizations

WIDTH = 6
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def chain_shift(gain: float, reverse: bool = False) -> ImageShift:
    """A shift of one row of pixels, z_t = x_t - g x_{t-1}: its inverse multiplies an error by g from pixel to pixel."""
    shift = ImageShift((1, 1, WIDTH), reverse=reverse, channels=1, residual_blocks=0).double()
    network = shift.conditioner
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        network.first.weight[:, 0, -1, 2] = torch.tensor([1.0, -1.0])  # the pixel to the left, and its negative
        network.head.weight[0, :, 0, 0] = torch.tensor([-gain, gain], dtype=torch.float64)  # x = relu(x) - relu(-x)
    return shift


def penalty_of(shift: ImageShift, x: torch.Tensor, error: torch.Tensor, context=None) -> torch.Tensor:
    with torch.no_grad():
        z, _ = shift.transform(x, context)
    return growth_penalty(shift, x, z, context, error)


def quotients(gain: float, error: torch.Tensor) -> torch.Tensor:
    """q by its formula, of the linear shift, whose u_t is the sum of g^k δ_{t-k}."""
    u = torch.zeros_like(error)
    for t in range(WIDTH):
        u[t] = error[t] + (gain * u[t - 1] if t else 0)
    return (u**3 * error).sum(0) / (u**4).sum(0)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("gain", [0.0, 0.5, 1.3, 3.0])
def test_the_value_in_closed_form(gain, reverse):
    generator = torch.Generator().manual_seed(0)
    x, error = (torch.randn((WIDTH, 50), generator=generator, dtype=torch.float64) for _ in range(2))
    error = 1e-2 * error
    want = (0.8 - quotients(gain, error.flip(0) if reverse else error)).clamp(min=0).mean()
    found = penalty_of(chain_shift(gain, reverse), x, error)
    assert float(found.detach()) == pytest.approx(float(want), abs=1e-9)
    assert (float(want) > 0) == (gain > 0)


def test_the_gradient_is_that_of_the_quotient_for_constant_u():
    generator = torch.Generator().manual_seed(1)
    x, error = (torch.randn((WIDTH, 9), generator=generator, dtype=torch.float64) for _ in range(2))
    error, gain = 1e-2 * error, 0.6
    shift = chain_shift(gain)
    penalty_of(shift, x, error).backward()
    up, down = shift.conditioner.head.weight.grad.flatten()
    with torch.no_grad():
        u = shift.inverse((shift.transform(x, None)[0] + error).mT)[0].mT - x
    before = F.pad(u, (0, 0, 1, 0))[:-1]  # [s(x + u) - s(x)]_t = u_t - g u_{t-1}
    slope = -(u**3 * before).sum(0) / (u**4).sum(0)
    counted = quotients(gain, error) < 0.8
    assert 0 < counted.sum() < 9  # both kinds take part
    want = -torch.where(counted, slope, 0).mean()  # of the penalty, with respect to g
    # The two weights of the head are -g for positive and g for negative pixels: together they are all of g.
    assert float(down - up) == pytest.approx(float(want), abs=1e-9)
    assert float(want) > 0  # so that a step makes the gain smaller


@pytest.mark.parametrize("gain", [1e4, 1e50, 1e80, 1e200])
def test_unbounded_errors_have_the_full_penalty(gain):
    """Also those that overflow, because of the pixels before them."""
    x = torch.zeros((WIDTH, 4), dtype=torch.float64)
    shift = chain_shift(gain)
    found = penalty_of(shift, x, torch.full_like(x, 1e-2))
    found.backward()
    assert float(found.detach()) == pytest.approx(0.8, abs=1e-3)
    up, down = shift.conditioner.head.weight.grad.flatten()
    assert float(down - up) > 0
    assert all(p.grad.isfinite().all() for p in shift.parameters())


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7), (2, 1, 3)])
def test_noise_is_constant_over_patches(shape):
    torch.manual_seed(0)
    images = patch_noise(torch.empty(math.prod(shape), 9), shape).mT.reshape(9, *shape)
    for image, size in zip(images, [1, 2, 4, 8, 1, 2, 4, 8, 1], strict=True):
        if size == 1:
            assert image.unique().numel() == image.numel()
            continue
        assert (image == image[:1]).all()
        assert image.unique().numel() == math.ceil(shape[1] / size) * math.ceil(shape[2] / size)
        for i, j in itertools.product(range(shape[1]), range(shape[2])):
            assert image[0, i, j] == image[0, i // size * size, j // size * size]
    many = patch_noise(torch.empty(math.prod(shape), 4000), shape)
    assert (many.mean(1).abs() < 0.1).all()
    assert ((many.std(1) - 1).abs() < 0.1).all()


def test_each_estimate_is_of_one_block(monkeypatch):
    flow = SinusoidalFlow.image((1, 5, 5), context=2, blocks=3, scales=1, channels=4, residual_blocks=1).double()
    torch.manual_seed(0)
    for parameter in flow.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    stability = Stability(flow, weight=7.0)
    x, context = (torch.randn((n, 8), dtype=torch.float64) for n in (25, 2))
    seen: list[tuple[ImageShift, torch.Tensor, torch.Tensor]] = []

    def remembered(shift, x, z, context, error):
        seen.append((shift, x, z))
        assert context is not None
        return growth_penalty(shift, x, z, context, error)

    monkeypatch.setattr(module, "growth_penalty", remembered)
    inputs, h = [], x
    with torch.no_grad():
        for layer in (layer for block in list(flow.bijection)[:3] for layer in block):
            inputs += [h] if isinstance(layer, ImageShift) else []
            h, _ = layer.transform(h, context if layer.context else None)
    for block in range(stability.blocks):
        for p in flow.parameters():
            p.grad = None
        torch.manual_seed(block)
        total = stability.penalty(x, context, block)
        total.backward()
        mine = set(list(flow.bijection)[block].parameters())
        assert all(p.grad is None for p in flow.parameters() if p not in mine)
        assert sum(p.grad is not None for p in mine) > 0
        torch.manual_seed(block)
        parts = [growth_penalty(s, x, z, context, 0.05 * patch_noise(z, (1, 5, 5))) for s, x, z in seen[-2:]]
        assert float(total.detach()) == pytest.approx(7.0 * 3 * float(sum(parts).detach()))
    assert [shift.reverse for shift, _, _ in seen] == [True, False] * 3
    for (_, found, _), want in zip(seen, inputs, strict=True):
        torch.testing.assert_close(found, want)


def steep_flow(dtype: torch.dtype, context: int = 0) -> SinusoidalFlow:
    """A flow whose inverse amplifies errors."""
    torch.manual_seed(0)
    flow = SinusoidalFlow.image((1, 7, 7), context, blocks=3, scales=1, channels=4, residual_blocks=1).to(dtype)
    for parameter in flow.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, dtype=dtype)
    return flow


def test_the_penalty_does_not_synchronize_with_the_device():
    """So that it can be captured in a CUDA graph."""
    flow = steep_flow(torch.float32)
    with Synchronizations() as synchronizations:
        Stability(flow, 100.0).penalty(torch.randn(49, 6), None, 1).backward()
    assert synchronizations.count == 0


def test_evaluation_covers_all_blocks_with_fixed_noise():
    flow, x = steep_flow(torch.float64), torch.randn(49, 6, dtype=torch.float64)
    before = torch.get_rng_state()
    penalty = Stability(flow, 10.0).evaluate(x, None)
    assert torch.get_rng_state().equal(before)
    assert penalty == Stability(flow, 10.0).evaluate(x, None)
    assert penalty == pytest.approx(10 * Stability(flow, 1.0).evaluate(x, None))
    # The estimates of the blocks have this mean.
    stability = Stability(flow, 10.0)
    with torch.no_grad():
        estimates = [float(stability.penalty(x, None, block)) for block in range(stability.blocks) for _ in range(40)]
    assert penalty == pytest.approx(sum(estimates) / len(estimates), rel=0.2)


@pytest.mark.gpu
@gpu
def test_the_penalty_on_a_gpu():
    torch.manual_seed(0)
    shift = ImageShift((1, 28, 28), channels=16, residual_blocks=2)
    for parameter in shift.parameters():
        parameter.data += 0.15 * torch.randn_like(parameter)
    x, error = torch.randn(784, 16), 0.05 * torch.randn(784, 16)
    found = {}
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        shift.to(device, dtype).zero_grad()
        penalty = penalty_of(shift, x.to(device, dtype), error.to(device, dtype))
        penalty.backward()
        gradient = torch.cat([p.grad.flatten() for p in shift.parameters()])
        found[device] = float(penalty.detach()), gradient.double().cpu()
    (want, wanted), (value, gradient) = found.values()
    assert want > 0.05
    assert value == pytest.approx(want, abs=5e-3)
    assert float((gradient - wanted).norm() / wanted.norm()) < 0.1
