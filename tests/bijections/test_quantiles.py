"""The spline of quantiles: an increasing C¹ bijection, linear beyond its knots; and the choice of its knots."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sinuflow import ArgumentError, registry
from sinuflow.bijections.columns import SelectedColumns
from sinuflow.bijections.quantiles import QuantileSpline, fit_quantiles

STEPS = st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=8)
IDENTITY = (0.0, 1.0), (0.0, 1.0)


def knots_of(start, steps):
    """Knots and scores from their differences."""
    x, z = (np.cumsum([first, *widths]).tolist() for first, widths in zip(start, zip(*steps, strict=True), strict=True))
    return x, z


@st.composite
def splines(draw):
    """A spline of one to three columns with different numbers of knots, and those knots."""
    starts = st.tuples(st.floats(-20, 20), st.floats(-20, 20))
    knots = [knots_of(draw(starts), draw(STEPS)) for _ in range(draw(st.integers(1, 3)))]
    x, z = zip(*knots, strict=True)
    return QuantileSpline(x, z), x, z


def around(knots, count=60):
    """Points of every column: its knots, points between them, and some on both sides."""
    columns = []
    for x in knots:
        low, high = x[0] - 3, x[-1] + 3
        columns.append(np.sort(np.r_[x, np.linspace(low, high, count - len(x)), x[0] - 1e4, x[-1] + 1e4]))
    return torch.from_numpy(np.stack(columns))


@given(splines())
@settings(max_examples=80)
def test_it_is_an_increasing_bijection_with_the_derivative_of_autograd(case):
    spline, knots, _ = case
    x = around(knots).requires_grad_()
    y, ladj = spline(x.mT)
    y = y.mT
    assert bool((y.diff(dim=1) > 0)[x.diff(dim=1) > 1e-9].all())
    (slope,) = torch.autograd.grad(y.sum(), x)
    log_slope = spline.log_derivative(x, y)
    torch.testing.assert_close(log_slope, slope.log(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ladj, log_slope.sum(0))
    back = spline.inverse_value(y.detach())
    # Where the spline is flat, the rounding of y is an error of x.
    tolerance = 1e-11 * (1 + x.abs() + (y.abs() + 20) / slope).detach()
    assert bool(((back - x).abs() <= tolerance).all())
    again, back_ladj = spline.inverse(y.detach().mT)
    torch.testing.assert_close(again.mT, back)
    torch.testing.assert_close(back_ladj, -ladj, rtol=1e-6, atol=1e-6)


@given(splines())
@settings(max_examples=60)
def test_knots_have_their_scores_and_the_derivative_is_continuous_there(case):
    spline, knots, scores = case
    for i, (x, z) in enumerate(zip(knots, scores, strict=True)):
        column = QuantileSpline([x], [z])
        at = torch.tensor([x], dtype=torch.float64)
        torch.testing.assert_close(column.value(at), torch.tensor([z], dtype=torch.float64), rtol=1e-12, atol=1e-12)
        width = 1e-9 * min(np.diff(x))
        left, here, right = (column.log_derivative(at + side * width, at) for side in (-1, 0, 1))
        torch.testing.assert_close(left, here, rtol=0, atol=1e-4)
        torch.testing.assert_close(right, here, rtol=0, atol=1e-4)
        # Columns with fewer knots than others are as if they were alone, beyond their last knot too.
        rows = around([x])
        among = torch.zeros(len(knots), rows.shape[1], dtype=torch.float64)
        among[i] = rows[0]
        torch.testing.assert_close(spline.value(among)[i], column.value(rows)[0], rtol=1e-12, atol=1e-11)
        slopes = spline.log_derivative(among, among)[i]
        torch.testing.assert_close(slopes, column.log_derivative(rows, rows)[0], rtol=1e-9, atol=1e-9)


@given(splines(), st.floats(0, 1e6))
@settings(max_examples=60)
def test_it_is_linear_beyond_its_knots(case, distance):
    spline, knots, scores = case
    for end, sign in ((0, -1), (-1, 1)):
        x, z = (torch.tensor([[each[end]] for each in values], dtype=torch.float64) for values in (knots, scores))
        slope = torch.tensor(
            [[(s[1] - s[0]) / (k[1] - k[0]) if end == 0 else (s[-1] - s[-2]) / (k[-1] - k[-2])]
             for k, s in zip(knots, scores, strict=True)], dtype=torch.float64,
        )  # fmt: skip
        beyond = x + sign * distance
        torch.testing.assert_close(spline.value(beyond), z + slope * (beyond - x), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(spline.log_derivative(beyond, beyond), slope.log(), rtol=1e-9, atol=1e-9)


def test_in_a_bin_it_is_the_rational_quadratic_of_gregory_and_delbourgo():
    # Bins of slope 1 and 3 and of width 1: the slope between them is their harmonic mean, 1.5.
    spline = QuantileSpline([[0.0, 1.0, 2.0]], [[0.0, 1.0, 4.0]])
    xi, s, d0, d1 = 0.25, 3.0, 1.5, 3.0
    expected = 1 + 3 * (s * xi**2 + d0 * xi * (1 - xi)) / (s + (d0 + d1 - 2 * s) * xi * (1 - xi))
    assert spline.value(torch.tensor([[1.25]], dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-14)


def test_equal_slopes_are_the_identity_and_a_nan_stays_one():
    spline = QuantileSpline([[-1.0, 0.5, 3.0]], [[-1.0, 0.5, 3.0]])
    x = torch.linspace(-9, 9, 100, dtype=torch.float64)[None]
    torch.testing.assert_close(spline.value(x), x, rtol=1e-14, atol=1e-14)
    odd = torch.tensor([[torch.nan, -torch.inf, torch.inf]], dtype=torch.float64)
    torch.testing.assert_close(spline.value(odd), odd, equal_nan=True)
    torch.testing.assert_close(spline.inverse_value(odd), odd, equal_nan=True)


def test_it_describes_itself_and_its_buffers_stay_float64():
    spline = SelectedColumns(2, [1], QuantileSpline([[0.0, 1.0, 4.0]], [[-1.0, 0.0, 1.0]]))
    again = registry.build(registry.Spec.from_json(spline.spec().to_json()))
    x = 9 * torch.rand(20, 2, dtype=torch.float64) - 2
    assert torch.equal(again(x)[0], spline(x)[0])
    moved = spline.float()
    assert {t.dtype for t in moved.bijection.buffers()} == {torch.float64}
    assert torch.equal(moved(x)[0], again(x)[0])


@pytest.mark.parametrize(
    ("x", "z"),
    [
        ([0.0], [0.0]),
        ([0.0, 1.0], [0.0]),
        ([0.0, 1.0, 1.0], [0.0, 1.0, 2.0]),
        ([0.0, 1.0, 2.0], [0.0, 2.0, 1.0]),
        ([0.0, np.inf], [0.0, 1.0]),
        ([0.0, 1.0], [0.0, np.nan]),
    ],
)
def test_other_knots_are_refused(x, z):
    with pytest.raises(ArgumentError, match="knots"):
        QuantileSpline([x], [z])


# ---------------------------------------------------------------- the choice of knots


SKEWED = {
    "exponential": lambda random, rows: random.exponential(size=rows) - 1,
    "lognormal": lambda random, rows: (np.exp(random.normal(size=rows)) - 1.65) / 2.16,
    "uniform": lambda random, rows: random.uniform(-1.7, 1.7, rows),
    "Student": lambda random, rows: random.standard_t(2, rows) / 2,
}


def scores_of(values, knots):
    return QuantileSpline(*([part] for part in knots)).value(torch.from_numpy(values)[None])[0].numpy()


@pytest.mark.parametrize("name", SKEWED)
def test_fresh_values_of_the_same_kind_have_normal_scores(name):
    values, fresh = (SKEWED[name](np.random.default_rng(seed), rows) for seed, rows in ((0, 3000), (1, 20_000)))
    before, after = (stats.kstest(v, "norm").statistic for v in (fresh, scores_of(fresh, fit_quantiles(values))))
    # An empirical distribution function of 3,000 values is off by 0.016 on average (Kolmogorov).
    assert after < 0.035
    assert after < before / 2


@pytest.mark.parametrize("rows", [10, 50, 300, 3000])
def test_normal_values_stay_as_they_are(rows):
    chosen = []
    for seed in range(20):
        values = np.random.default_rng(seed).normal(size=rows)
        chosen.append(fit_quantiles((values - values.mean()) / values.std()) == IDENTITY)
    assert np.mean(chosen) >= 0.9


def test_more_values_resolve_more():
    sizes = [len(fit_quantiles(SKEWED["exponential"](np.random.default_rng(0), rows))[0]) for rows in (60, 600, 30_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 9 < sizes[-1]


@given(
    st.lists(st.integers(-(10**8), 10**8).map(lambda i: i / 1e6) | st.sampled_from([0.0, 1.0, 5.0]), min_size=1),
    st.sampled_from([1, 3, 20]),
)
@settings(max_examples=150)
def test_the_knots_of_any_values_increase_and_no_score_is_absurd(values, times):
    values = np.repeat(values, times)
    x, z = fit_quantiles(values)
    assert np.diff(x).min() > 0
    assert np.diff(z).min() > 0
    usual = stats.norm.ppf(1 - 0.5 / len(values))
    extremes = scores_of(np.array([values.min(), values.max()]), (x, z))
    assert np.abs(extremes).max() <= max(1.3 * usual + 0.5, 2.5) + 1e-9


def test_a_far_value_has_the_score_of_a_largest_one_and_the_bulk_stays():
    values = np.append(np.random.default_rng(0).normal(size=999), 60.0)
    for sign in (-1, 1):
        knots = fit_quantiles(sign * values)
        assert scores_of(np.array([sign * 60.0]), knots)[0] == pytest.approx(sign * stats.norm.ppf(1 - 0.5 / 1000))
        bulk = values[np.abs(values) < 2]
        np.testing.assert_allclose(scores_of(bulk, knots), bulk, atol=1e-12)


def test_heaps_do_not_make_knots_coincide():
    values = np.r_[np.zeros(600), np.random.default_rng(0).normal(size=400)]
    x, z = fit_quantiles(values)
    assert len(x) > 2
    assert np.diff(x).min() > 1e-7
    assert scores_of(np.array([0.0]), (x, z))[0] == pytest.approx(0, abs=1)
