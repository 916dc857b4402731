from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sinuflow import ArgumentError, DataError, SinuflowError
from sinuflow.bijections.pixels import PixelMap, dequantize, flip_horizontally

DOUBLE = torch.float64
ALPHAS = [1e-6, 0.05]
every_alpha = pytest.mark.parametrize("alpha", ALPHAS)


def all_bytes() -> torch.Tensor:
    return torch.arange(256, dtype=torch.uint8).view(2, 2, 8, 8)


@every_alpha
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_bytes_come_back(alpha, dtype):
    pixels = PixelMap(alpha)
    images = all_bytes().expand(50, 2, 2, 8, 8).reshape(100, 2, 8, 8)
    u = dequantize(images, dtype=dtype)
    assert u.dtype == dtype
    assert torch.equal((256 * u).floor().to(torch.uint8), images)
    x, _ = pixels.to_logits(u)
    assert x.isfinite().all()
    back, _ = pixels.to_unit(x)
    torch.testing.assert_close(back, u, rtol=1e-6, atol=1e-7)
    if dtype == DOUBLE:
        assert torch.equal(pixels.to_bytes(x), images)
    else:  # a value at the very edge of its cell may be rounded over it
        assert (pixels.to_bytes(x).int() - images.int()).abs().max() <= 1
        assert (pixels.to_bytes(x) == images).double().mean() > 0.999


@every_alpha
def test_the_largest_noise_stays_in_its_cell(alpha, monkeypatch):
    below_one = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    monkeypatch.setattr(torch, "rand", lambda shape, **_: below_one.expand(shape).clone())
    u = dequantize(all_bytes())
    assert (u < 1).all()
    assert torch.equal((256 * u).floor().to(torch.uint8), all_bytes())


def test_noise_is_uniform_and_repeatable():
    images = torch.full((200, 1, 8, 8), 7, dtype=torch.uint8)
    u = dequantize(images, torch.Generator().manual_seed(0))
    assert torch.equal(u, dequantize(images, torch.Generator().manual_seed(0)))
    noise = 256 * u - 7
    assert abs(noise.mean() - 0.5) < 0.01
    assert abs(noise.var() - 1 / 12) < 0.002


@every_alpha
def test_log_determinants_are_those_of_automatic_differentiation(alpha):
    pixels = PixelMap(alpha)
    u = torch.rand(1, 6, dtype=DOUBLE) * 0.98 + 0.01
    u[0, 0], u[0, 1] = 1e-5, 1 - 1e-5
    x, ladj = pixels.to_logits(u)
    forward = torch.autograd.functional.jacobian(lambda t: pixels.to_logits(t).value, u).view(6, 6)
    torch.testing.assert_close(ladj[0], torch.linalg.slogdet(forward)[1])
    back, ladj_back = pixels.to_unit(x)
    inverse = torch.autograd.functional.jacobian(lambda t: pixels.to_unit(t).value, x).view(6, 6)
    torch.testing.assert_close(ladj_back[0], torch.linalg.slogdet(inverse)[1])
    torch.testing.assert_close(back, u)
    torch.testing.assert_close(x, torch.logit(alpha + (1 - 2 * alpha) * u))


def test_nothing_is_lost_at_the_ends_in_single_precision():
    pixels = PixelMap(1e-6)
    u = torch.tensor([[0.0, 1.0]])
    x, ladj = pixels.to_logits(u)
    want_x, want_ladj = pixels.to_logits(u.double())
    torch.testing.assert_close(x.double(), want_x, rtol=1e-6, atol=0)
    torch.testing.assert_close(ladj.double(), want_ladj, rtol=1e-6, atol=0)
    torch.testing.assert_close(x, torch.tensor([[-1.0, 1.0]]) * math.log((1 - 1e-6) / 1e-6))


@every_alpha
@pytest.mark.parametrize("shape", [(7,), (3, 4, 5)])
def test_the_uniform_density_takes_8_bits(alpha, shape):
    pixels = PixelMap(alpha)
    x, ladj = pixels.to_logits(torch.rand(11, *shape, dtype=DOUBLE))
    bits = pixels.bits_per_dimension(-ladj, x)  # p(x) = p(u) |du/dx|, and p(u) = 1
    torch.testing.assert_close(bits, torch.full((11,), 8.0, dtype=DOUBLE))


def test_independent_logistics_are_uniform_pixels():
    """Without alpha, the logit of a uniform number has the logistic distribution."""
    pixels = PixelMap(0.0)
    x = 3 * torch.randn(9, 20, dtype=DOUBLE)
    log_density = (-x - 2 * torch.nn.functional.softplus(-x)).sum(1)
    torch.testing.assert_close(pixels.bits_per_dimension(log_density, x), torch.full((9,), 8.0, dtype=DOUBLE))


@every_alpha
def test_a_density_that_is_known_in_the_space_of_pixels(alpha):
    """u has a beta density: bits per dimension are -log2 of what it gives to the pixel, in cells of size 1."""
    pixels = PixelMap(alpha)
    beta = torch.distributions.Beta(torch.tensor(2.0, dtype=DOUBLE), torch.tensor(5.0, dtype=DOUBLE))
    u = beta.sample((13, 4))
    x, ladj = pixels.to_logits(u)
    log_density = beta.log_prob(u).sum(1) - ladj
    in_pixels = (beta.log_prob(u) - math.log(256)).mean(1)
    torch.testing.assert_close(pixels.bits_per_dimension(log_density, x), -in_pixels / math.log(2))


def test_the_density_of_a_half_takes_one_bit_less():
    pixels = PixelMap(0.05)
    x, ladj = pixels.to_logits(torch.rand(3, 6, dtype=DOUBLE) / 2)
    bits = pixels.bits_per_dimension(6 * math.log(2) - ladj, x)
    torch.testing.assert_close(bits, torch.full((3,), 7.0, dtype=DOUBLE))


def test_samples_beyond_the_range_are_clamped():
    pixels = PixelMap(0.05)
    x = torch.tensor([[-100.0, 100.0, 0.0]])
    assert pixels.to_bytes(x).tolist() == [[0, 255, 128]]
    u, _ = pixels.to_unit(x)
    assert -0.06 < u[0, 0] < 0
    assert 1 < u[0, 1] < 1.06


def test_flips():
    images = torch.randint(256, (2, 3, 4, 5), dtype=torch.uint8)
    flipped = flip_horizontally(images)
    assert torch.equal(flipped[..., 0], images[..., 4])
    assert torch.equal(flip_horizontally(flipped), images)


def test_what_is_no_image_is_refused():
    cases = [
        (torch.zeros(2, 1, 3, 3), r"dtype uint8, with values from 0 to 255; got torch.float32: multiply"),
        (torch.zeros(2, 1, 3, 3, dtype=torch.int64), "dtype uint8"),
        (torch.zeros(2, 3, 3, dtype=torch.uint8), r"must have shape \(N, C, H, W\); got \(2, 3, 3\)"),
        (torch.zeros(2, 1, 0, 3, dtype=torch.uint8), r"must have shape \(N, C, H, W\)"),
        (np.zeros((2, 1, 3, 3), dtype=np.uint8), "must be a tensor .* got ndarray"),
    ]
    for wrong, message in cases:
        with pytest.raises(DataError, match=message) as caught:
            dequantize(wrong)
        assert isinstance(caught.value, SinuflowError)
    assert dequantize(torch.zeros(0, 1, 3, 3, dtype=torch.uint8)).shape == (0, 1, 3, 3)


def test_wrong_arguments():
    for alpha in (-0.1, 0.5, math.nan):
        with pytest.raises(ArgumentError, match="alpha must be at least 0 and below"):
            PixelMap(alpha)
    pixels = PixelMap()
    with pytest.raises(ArgumentError, match="values between 0 and 1: dequantize"):
        pixels.to_logits(torch.tensor([[1.5]]))
    with pytest.raises(ArgumentError, match="values between 0 and 1"):
        pixels.to_logits(torch.tensor([[torch.nan]]))
    with pytest.raises(ArgumentError, match=r"numbers between 0 and 1.* got dtype torch.uint8"):
        pixels.to_logits(all_bytes())
    with pytest.raises(ArgumentError, match=r"one number for each of the 2 images of x; got shape \(3,\)"):
        pixels.bits_per_dimension(torch.zeros(3), torch.zeros(2, 4))
