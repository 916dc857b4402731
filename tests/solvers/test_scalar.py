from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinuflow import ArgumentError
from sinuflow.ops.waves import WaveFunction, Waves, transform
from sinuflow.solvers import SolverOptions, fixed_point, newton
from sinuflow.solvers.scalar import _safeguarded, working_precision
from tests.ops.test_waves import draw


def problem(seed, scale, dtype=torch.float64, rows=1, count=200, **ranges):
    waves, _ = draw(scales=1, rows=rows, seed=seed, dtype=dtype, **ranges)
    generator = torch.Generator().manual_seed(seed)
    columns = rows if rows > 1 else count
    x = (scale * torch.randn(3, columns, dtype=torch.float64, generator=generator)).to(dtype)
    target, log_slope = transform(x, Waves(*(t[0] for t in waves)))
    return WaveFunction.stack(waves)[0], x, target, log_slope


@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-6, 1.0, 1e3, 1e6]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    rows=st.sampled_from([1, 40]),
)
def test_newton_always_arrives(seed, scale, dtype, rows):
    scale = min(scale, 1e4) if dtype == torch.float32 else scale
    function, x, target, _ = problem(seed, scale, dtype, rows)
    root = newton(function, target)
    assert root.converged.all()
    assert (root.residual <= working_precision(root.x, target)).all()
    value, slope, _ = function.evaluate(root.x)
    assert ((value - target).abs() <= 1.5 * working_precision(root.x, target)).all()
    torch.testing.assert_close(root.slope, slope, rtol=1e-3, atol=1e-3)
    assert ((root.x - x).abs() <= 3 * working_precision(x, target) / function.lowest_slope).all()
    assert (root.iterations >= 1).all()
    assert (root.iterations <= 60).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_has_arrived_takes_a_last_step(seed):
    function, _, target, _ = problem(seed, 1.0, torch.float32)
    exactly, _, _, _ = problem(seed, 1.0)
    root = _safeguarded(function, target, function.guess(target), 0, 300)
    left = (exactly.evaluate(root.x.double())[0] - target).abs() / working_precision(root.x, target)
    assert left.max() < 0.7  # where residuals are at most 1


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-3, 1.0, 1e5]))
def test_the_safeguard_alone_arrives_from_anywhere(seed, scale):
    function, x, target, _ = problem(seed, scale)
    start = x + 1e3 * torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))
    root = _safeguarded(function, target, start, 0, 300)
    assert root.converged.all()
    assert ((root.x - x).abs() <= 3 * working_precision(x, target) / function.lowest_slope).all()


def test_the_safeguard_is_fast_where_it_is_not_needed():
    function, _, target, _ = problem(0, 1.0, strength=0.5)
    root = _safeguarded(function, target, function.guess(target), 0, 300)
    assert root.converged.all()
    assert root.iterations.max() <= 5


def test_a_large_problem_with_stragglers():
    """More elements than are worth keeping together: the fast ones stop early, the slow ones go on."""
    function, x, target, _ = problem(7, 10.0, count=8000, strength=0.999, low=0.01, high=4.0)
    root = newton(function, target)
    assert root.converged.all()
    assert root.iterations.unique().numel() > 1
    assert root.iterations.max() <= 10  # also alone they go by parabolas, not by halves
    torch.testing.assert_close(root.x, x, rtol=1e-9, atol=1e-9)
    few = newton(function, target, max_iterations=4)
    assert not few.converged.all()
    assert few.iterations.max() == 4
    late = few.iterations == 4
    assert (root.iterations[~few.converged] > 4).all()
    assert late[~few.converged].all()


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_newton_respects_its_limit_and_tells_the_truth(limit, monkeypatch):
    function, _, target, _ = problem(0, 3.0)
    calls = 0
    original = WaveFunction.evaluate

    def counted(self, x):
        nonlocal calls
        calls += 1
        return original(self, x)

    monkeypatch.setattr(WaveFunction, "evaluate", counted)
    root = newton(function, target, max_iterations=limit)
    assert calls <= limit
    value, _, _ = original(function, root.x)
    torch.testing.assert_close(root.residual, (value - target).abs())
    torch.testing.assert_close(root.converged, root.residual <= working_precision(root.x, target))


def test_not_a_number_stays_alone():
    function, x, target, _ = problem(0, 1.0)
    target = target.clone()
    target[1, 7] = torch.nan
    target[2, 9] = torch.inf
    root = newton(function, target)
    bad = ~target.isfinite()
    assert not root.converged[bad].any()
    assert root.converged[~bad].all()
    torch.testing.assert_close(root.x[~bad], x[~bad])


def test_working_precision_is_relative():
    one = torch.ones(1, dtype=torch.float64)
    assert working_precision(one, 0 * one).item() == 8 * 2.0**-52
    assert working_precision(0 * one, -1e6 * one).item() == pytest.approx(8e6 * 2.0**-52)


@given(seed=st.integers(0, 10**6), strength=st.sampled_from([0.3, 0.9]))
def test_fixed_point_converges_at_the_rate_of_a_contraction(seed, strength):
    function, x, target, _ = problem(seed, 3.0, strength=strength, low=0.05)
    root = fixed_point(function, target, rtol=0, atol=1e-10, max_iterations=2000)
    assert root.converged.all()
    assert (root.residual <= 1e-10).all()
    assert ((root.x - x).abs() <= 1e-10 / (1 - strength) + 1e-12).all()
    torch.testing.assert_close(root.x, newton(function, target).x, rtol=0, atol=1e-10 / (1 - strength) + 1e-12)
    steepness = 1 - function.lowest_slope
    start = (function.evaluate(target)[0] - target).abs()
    bound = torch.log(1e-10 / start.clamp(min=1e-10)) / torch.log(steepness) + 2
    assert (root.iterations <= bound.clamp(min=2) + 1).all()


def test_fixed_point_is_algorithm_1():
    """Step by step, from x₀ = z."""
    function, _, target, _ = problem(1, 2.0, strength=0.9)
    x = target
    for n in range(1, 6):
        root = fixed_point(function, target, rtol=0, atol=0, max_iterations=n)
        torch.testing.assert_close(root.x, x)
        assert root.iterations.max() == n
        value, slope, _ = function.evaluate(x)
        torch.testing.assert_close(root.slope, slope)
        x = target - (value - x)


def test_fixed_point_cut_off_says_so():
    function, _, target, _ = problem(0, 3.0, strength=0.999)
    root = fixed_point(function, target, rtol=1e-12, atol=1e-12, max_iterations=3)
    assert not root.converged.all()
    assert (root.residual[~root.converged] > 1e-12).all()


def test_fixed_point_tolerance_is_relative_too():
    function, _, target, _ = problem(0, 1e4, strength=0.9)
    loose = fixed_point(function, target, rtol=1e-3, atol=0, max_iterations=500)
    assert loose.converged.all()
    assert (loose.residual <= 1e-3 * loose.x.abs()).all()
    tight = fixed_point(function, target, rtol=1e-9, atol=0, max_iterations=500)
    assert tight.iterations.max() > loose.iterations.max()


def test_an_element_that_has_converged_stays_where_it_is():
    function, _, target, _ = problem(0, 3.0, strength=0.95)
    root = fixed_point(function, target, rtol=0, atol=1e-6, max_iterations=500)
    counts = root.iterations.unique()
    assert counts.numel() > 3
    early = int(counts[1])
    earlier = fixed_point(function, target, rtol=0, atol=1e-6, max_iterations=early)
    done = earlier.converged
    assert done.any()
    assert (earlier.x[done] == root.x[done]).all()
    assert (earlier.iterations[done] == root.iterations[done]).all()


def test_options_are_checked():
    with pytest.raises(ArgumentError, match="solver must be one of certified, fixed_point; got 'magic'"):
        SolverOptions("magic")
    with pytest.raises(ArgumentError, match="rtol must be a number of at least 0; got -1"):
        SolverOptions(rtol=-1)
    with pytest.raises(ArgumentError, match="atol must be"):
        SolverOptions(atol=float("nan"))
    with pytest.raises(ArgumentError, match="max_iterations must be at least 1; got 0"):
        SolverOptions(max_iterations=0)


def test_default_options_suit_the_precision():
    assert SolverOptions().tolerances(torch.float64) == (1e-12, 1e-12)
    assert SolverOptions().tolerances(torch.float32) == (1e-4, 1e-4)
    assert SolverOptions("fixed_point").tolerances(torch.float32) == (1e-6, 1e-6)
    assert SolverOptions("fixed_point").tolerances(torch.float64) == (1e-12, 1e-12)
    assert SolverOptions(rtol=0.1).tolerances(torch.float64) == (0.1, 1e-12)
    assert SolverOptions(atol=0.1).tolerances(torch.float64) == (1e-12, 0.1)
    assert (SolverOptions().limit, SolverOptions("fixed_point").limit) == (200, 1000)
    assert SolverOptions(max_iterations=7).limit == 7


def test_fixed_point_counts_evaluations():
    """f(x) = 1.5 x: the residual halves with every iteration, from 0.5 at x = z = 1."""

    class Line:
        def evaluate(self, x):
            return 1.5 * x, torch.full_like(x, 1.5), torch.zeros_like(x)

    target = torch.ones(1, 1, dtype=torch.float64)
    root = fixed_point(Line(), target, rtol=0, atol=1e-2, max_iterations=50)
    assert root.iterations.item() == 7  # 0.5, 0.25, ..., 0.0078
    assert root.residual.item() == 2.0**-7
    exactly = fixed_point(Line(), target, rtol=0, atol=2.0**-7, max_iterations=50)
    assert exactly.iterations.item() == 7
    already = fixed_point(Line(), 0 * target, rtol=0, atol=1e-2, max_iterations=50)
    assert already.iterations.item() == 1
    assert already.x.data_ptr() != target.data_ptr()
