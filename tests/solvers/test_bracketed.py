"""Root finding for functions of which only value and slope are known."""

from __future__ import annotations

import pytest
import torch

from sinuflow.solvers import bracketed_newton

DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_evaluation_noise_does_not_prevent_convergence(dtype):
    """Near 0, rounding in x + h - h is far above a few ulps of x."""

    def evaluate(x, h):
        return (x + h[:, 0]) - h[:, 0], torch.ones_like(x)

    target = torch.logspace(-6, 0, 200, dtype=dtype).reshape(2, 100)
    root = bracketed_newton(evaluate, target, torch.full((2, 1, 100), 5.0, dtype=dtype))
    assert root.converged.all()
    assert root.iterations.max() < 120
    assert (root.x - target).abs().max() <= 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
def test_targets_out_of_reach_do_not_converge(dtype):
    def evaluate(x, h):
        return x.tanh(), 1 - x.tanh() ** 2

    target = torch.tensor([[-2.0, 0.5, 2.0, torch.nan, torch.inf]], dtype=dtype)
    root = bracketed_newton(evaluate, target, torch.zeros(1, 0, 5, dtype=dtype))
    assert root.converged.tolist() == [[False, True, False, False, False]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0.0, 1.0, -30.0])
def test_targets_inside_a_jump_do_not_converge(dtype, place):
    def evaluate(x, h):
        return x + 0.01 * (x > place), torch.ones_like(x)

    target = place + torch.tensor([[-1.0, 0.001, 0.005, 0.009, 1.0]], dtype=dtype)
    root = bracketed_newton(evaluate, target, torch.zeros(1, 0, 5, dtype=dtype))
    assert root.converged.tolist() == [[True, False, False, False, True]]
    assert root.residual[root.converged].max() < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0.0, 1.0, -30.0])
@pytest.mark.parametrize("steepness", [1e2, 1e4, 1e8])
def test_steep_functions_converge(dtype, place, steepness):
    """At a kink, where the slope is known on one side only, and where a function rises by 1 between few numbers."""
    targets = place + torch.tensor([[-1.0, 1e-6, 0.3, 0.9999, 1.0, 20.0]], dtype=dtype)

    def kink(x, h):
        return x + steepness * (x - place).relu(), 1 + steepness * (x > place)

    def wall(x, h):
        y = steepness * (x - place)
        return x + y.tanh(), 1 + steepness * (1 - y.tanh() ** 2)

    for evaluate in (kink, wall) if steepness * torch.finfo(dtype).eps < 1e-2 else (kink,):
        root = bracketed_newton(evaluate, targets, torch.zeros(1, 0, 6, dtype=dtype))
        assert root.converged.all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("broken", [torch.inf, -torch.inf, torch.nan])
def test_elements_that_are_not_finite_cost_no_evaluations(dtype, broken):
    counts = []

    def evaluate(x, h):
        counts[-1] += 1
        return x + h[:, 0] + 0.5 * x.sin(), 1 + 0.5 * x.cos()

    target, h = torch.linspace(-20, 20, 9, dtype=dtype).unsqueeze(0), torch.zeros(1, 1, 9, dtype=dtype)
    broken_target, broken_h = target.clone(), h.clone()
    broken_target[0, 0], broken_h[0, 0, 1] = broken, torch.nan
    for z, p in ((target, h), (broken_target, broken_h)):
        counts.append(0)
        root = bracketed_newton(evaluate, z, p)
    assert root.converged.tolist() == [[False] * 2 + [True] * 7]
    assert counts[1] <= counts[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_element_has_its_own_parameters(dtype):
    def evaluate(x, h):
        return h[:, 0] * x + h[:, 1] * x**3, h[:, 0] + 3 * h[:, 1] * x**2

    torch.manual_seed(0)
    h = torch.rand(3, 2, 50, dtype=dtype) + 0.1
    x = 10 * torch.randn(3, 50, dtype=dtype)
    target = h[:, 0] * x + h[:, 1] * x**3
    root = bracketed_newton(evaluate, target, h)
    assert root.converged.all()
    torch.testing.assert_close(root.x, x)
    torch.testing.assert_close(root.slope, h[:, 0] + 3 * h[:, 1] * x**2)


def test_an_empty_batch():
    root = bracketed_newton(lambda x, h: (x, torch.ones_like(x)), torch.zeros(2, 0), torch.zeros(2, 1, 0))
    assert root.x.shape == (2, 0)
