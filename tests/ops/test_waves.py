from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from sinuflow.ops import scale_stack as stack
from sinuflow.ops.constrain import constrain
from sinuflow.ops.waves import ALPHA_MAX, FREQUENCY_MIN, WaveFunction, Waves, transform

DOUBLE = torch.float64


def draw(scales=2, features=3, waves=4, rows=1, strength=0.999, low=1e-3, high=10.0, seed=0, dtype=DOUBLE):
    """Waves, and the paper's own parameters a, b, w, α, d that they stand for."""
    g = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(*shape, generator=g, dtype=DOUBLE)

    shape = (scales, features, waves, rows)
    a = torch.exp(math.log(low) + (math.log(high) - math.log(low)) * rand(*shape))
    b = 6 * rand(*shape) - 3
    w = torch.softmax(torch.randn(*shape, generator=g, dtype=DOUBLE), dim=-2)
    alpha = strength * (2 * rand(scales, features, rows) - 1)
    d = torch.randn(scales, features, rows, generator=g, dtype=DOUBLE)
    share = alpha.unsqueeze(-2) * w
    found = Waves(a, share * torch.cos(2 * b), share * torch.sin(2 * b), d)
    return Waves(*(t.to(dtype) for t in found)), (a, b, w, alpha, d)


def paper(x, a, b, w, alpha, d):
    """Eq. "residual_fun" with α on the constant as well, in extended precision."""
    x, a, b, w, alpha, d = (np.asarray(t, dtype=np.longdouble) for t in (x, a, b, w, alpha, d))
    u = 2 * a * x[..., None, :] + 2 * b
    value = x + alpha * (w / (2 * a) * (np.sin(2 * b) - np.sin(u))).sum(-2) + d
    return value, 1 - alpha * (w * np.cos(u)).sum(-2)


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-3, 1.0, 30.0]))
def test_transform_is_the_papers_formula(seed, scale):
    waves, raw = draw(scales=1, seed=seed)
    x = scale * torch.randn(3, 16, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    value, log_slope = transform(x, Waves(*(t[0] for t in waves)))
    expected, slope = paper(x, *(t[0] for t in raw))
    np.testing.assert_allclose(value, expected.astype(float), rtol=1e-13, atol=1e-14 * scale)
    np.testing.assert_allclose(log_slope.exp(), slope.astype(float), rtol=1e-11)


def test_nothing_cancels_for_slow_waves():
    """The naive difference of sines would be off by eps / 2a: 3e-5 in float32 for a = 1e-3."""
    waves, raw = draw(scales=1, low=1e-3, high=1.1e-3)
    x = torch.linspace(-1, 1, 101, dtype=DOUBLE).expand(3, -1)
    expected, _ = paper(x, *(t[0] for t in raw))
    value, _ = transform(x.float(), Waves(*(t[0].float() for t in waves)))
    assert np.abs(value.numpy() - expected.astype(float)).max() < 1e-6


def test_footnote_example():
    """τ(x) = x − 0.8 [0.5 sin(2x+1) + 0.3 sin(−0.1x) + 0.2 sin(0.7x−3)] of the paper, up to its constant."""
    a = torch.tensor([1.0, 0.05, 0.35], dtype=DOUBLE)
    b = torch.tensor([0.5, math.pi / 2, -1.5], dtype=DOUBLE)  # sin(-y) = sin(y + π)
    amplitude = 0.8 * torch.tensor([0.5, 0.3, 0.2], dtype=DOUBLE) * 2 * a  # α w
    waves = Waves(
        *(t.reshape(1, 3, 1) for t in (a, amplitude * torch.cos(2 * b), amplitude * torch.sin(2 * b))),
        torch.zeros(1, 1, dtype=DOUBLE),
    )
    x = torch.linspace(-10, 10, 201, dtype=DOUBLE).unsqueeze(0)
    value, log_slope = transform(x, waves)

    def tau(t):
        return t - 0.8 * (0.5 * torch.sin(2 * t + 1) + 0.3 * torch.sin(-0.1 * t) + 0.2 * torch.sin(0.7 * t - 3))

    expected = tau(x) - tau(torch.zeros((), dtype=DOUBLE))
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-13)
    (slope,) = torch.autograd.grad(tau(y := x.clone().requires_grad_()).sum(), y)
    torch.testing.assert_close(log_slope.exp(), slope, rtol=1e-12, atol=0)


def test_constrain_keeps_its_promises():
    free = [100 * torch.randn(2, 3, 4, 5) for _ in range(3)]
    waves = constrain(*free, 100 * torch.randn(2, 3, 5), torch.zeros(2, 3, 5))
    assert (waves.frequency >= FREQUENCY_MIN * (1 - 1e-6)).all()
    steepness = torch.hypot(waves.cosine, waves.sine).sum(-2)
    assert steepness.max() <= ALPHA_MAX + 1e-6
    assert steepness.max() > ALPHA_MAX - 1e-3  # tanh saturates in float32: the cap is reached, not exceeded


def test_constrain_is_softplus_softmax_and_tanh():
    frequency, phase, weight = (torch.randn(1, 2, 3, 1, dtype=DOUBLE) for _ in range(3))
    strength = torch.randn(1, 2, 1, dtype=DOUBLE)
    waves = constrain(frequency, phase, weight, strength, strength)
    torch.testing.assert_close(waves.frequency, torch.log1p(frequency.exp()) + FREQUENCY_MIN)
    share = weight.exp() / weight.exp().sum(-2, keepdim=True) * ALPHA_MAX * torch.tanh(strength).unsqueeze(-2)
    torch.testing.assert_close(waves.cosine, share * torch.cos(2 * phase))
    torch.testing.assert_close(waves.sine, share * torch.sin(2 * phase))
    assert waves.shift is strength


@pytest.mark.parametrize(("rows", "batch"), [(1, 1), (1, 6), (1, 3000), (6, 6), (3000, 3000)])
def test_fused_stack_matches_its_reference(rows, batch):
    waves, _ = draw(scales=3, features=20, rows=rows)
    waves = Waves(*(t.requires_grad_() for t in waves))
    x = torch.randn(20, batch, dtype=DOUBLE, requires_grad=True)
    got, want = stack.scale_stack(x, waves), stack.reference(x, *waves)
    weights = [torch.randn_like(t) for t in want]
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-11)
    got_grads = torch.autograd.grad(got, (x, *waves), weights)
    want_grads = torch.autograd.grad(want, (x, *waves), weights)
    for g, w in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-8, atol=1e-9 * float(w.abs().max()))


@pytest.mark.parametrize("rows", [1, 3])
def test_gradients_of_the_stack(rows):
    waves, _ = draw(scales=2, features=2, waves=2, rows=rows, low=0.1)
    x = torch.randn(2, 3, dtype=DOUBLE, requires_grad=True)
    inputs = (x, *(t.requires_grad_() for t in waves))
    assert gradcheck(lambda x, *w: stack.scale_stack(x, Waves(*w)), inputs)
    assert gradgradcheck(lambda x, *w: stack.scale_stack(x, Waves(*w)), inputs)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("rows", [1, 4])
def test_gradients_are_finite_at_the_edges(dtype, rows):
    """a → 0, α → its cap, |x| = 1e6."""
    free = [torch.full((2, 3, 4, rows), -200.0, dtype=dtype) for _ in range(1)]
    free += [torch.randn(2, 3, 4, rows, dtype=dtype) for _ in range(2)]
    free += [torch.full((2, 3, rows), 50.0, dtype=dtype), torch.zeros(2, 3, rows, dtype=dtype)]
    free = [t.requires_grad_() for t in free]
    x = torch.tensor([-1e6, 0.0, 1e-3, 1e6], dtype=dtype).expand(3, 4).clone().requires_grad_()
    z, ladj = stack.scale_stack(x, constrain(*free))
    assert z.isfinite().all()
    assert ladj.isfinite().all()
    for grad in torch.autograd.grad((z.sum() + ladj.sum()), (x, *free)):
        assert grad.isfinite().all()


@given(seed=st.integers(0, 10**6))
def test_wave_function_agrees_with_the_transformer(seed):
    for rows in (1, 7):
        waves, _ = draw(scales=2, rows=rows, seed=seed, low=0.05)
        x = 3 * torch.randn(3, 7, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
        for j, function in enumerate(WaveFunction.stack(waves)):
            wave = Waves(*(t[j] for t in waves))
            value, slope, curvature = function.evaluate(x)
            expected, log_slope = transform(x, wave)
            torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(slope, log_slope.exp(), rtol=1e-9, atol=1e-12)
            step = 1e-6
            difference = (transform(x + step, wave)[1].exp() - transform(x - step, wave)[1].exp()) / (2 * step)
            torch.testing.assert_close(curvature, difference, rtol=1e-5, atol=1e-6)
            assert (slope >= function.lowest_slope * (1 - 1e-9)).all()
            assert (slope <= function.highest_slope * (1 + 1e-9)).all()


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-2, 1.0, 100.0]))
def test_bracket_holds_the_solution(seed, scale):
    waves, _ = draw(scales=1, rows=1, seed=seed)
    x = scale * torch.randn(3, 50, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    target, _ = transform(x, Waves(*(t[0] for t in waves)))
    low, high = WaveFunction.stack(waves)[0].bracket(target)
    assert (low <= x).all()
    assert (x <= high).all()
    amplitude = torch.hypot(waves.cosine, waves.sine)[0]
    assert (high - low <= (amplitude / waves.frequency[0]).sum(-2) * (1 + 1e-6) + 1e-9).all()  # and is no wider


@pytest.mark.parametrize("rows", [1, 5])
def test_selection_keeps_the_chosen_elements(rows):
    waves, _ = draw(scales=1, rows=rows)
    x = torch.randn(3, 5, dtype=DOUBLE)
    function = WaveFunction.stack(waves)[0]
    r, c = torch.tensor([0, 2, 2]), torch.tensor([4, 0, 3])
    some = function.select(r, c)
    for got, want in zip(some.evaluate(x[r, c].unsqueeze(0)), function.evaluate(x), strict=True):
        torch.testing.assert_close(got[0], want[r, c])
    for got, want in zip(some.bracket(x[r, c].unsqueeze(0)), function.bracket(x), strict=True):
        torch.testing.assert_close(got[0], want[r, c])
    torch.testing.assert_close(some.guess(x[r, c].unsqueeze(0))[0], function.guess(x)[r, c])


def test_the_guess_undoes_the_shift_and_slow_waves():
    waves, _ = draw(scales=1, low=1e-3, high=1.1e-3, strength=0.9)
    x = torch.linspace(-2, 2, 9, dtype=DOUBLE).expand(3, -1)
    target, _ = transform(x, Waves(*(t[0] for t in waves)))
    torch.testing.assert_close(WaveFunction.stack(waves)[0].guess(target), x, atol=0.05, rtol=0)
