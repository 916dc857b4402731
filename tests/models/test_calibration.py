"""Percentiles among calibration rows: of fresh rows of the same kind, 1 % or fewer are above 99."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sinuflow.models.calibration import calibration_quantiles, percentile

SCORES = st.lists(st.integers(-5, 5).map(float) | st.floats(-1e6, 1e6) | st.just(-np.inf), min_size=1, max_size=60)


def percentiles_of(fresh, calibration):
    quantiles = calibration_quantiles(torch.from_numpy(np.asarray(calibration)))
    return percentile(np.asarray(fresh), quantiles.numpy(), len(calibration))


@given(SCORES, SCORES)
def test_it_is_the_share_of_calibration_rows_with_a_higher_score(calibration, fresh):
    found = percentiles_of(fresh, calibration)
    rows = len(calibration)
    for score, each in zip(fresh, found, strict=True):
        higher = sum(other > score for other in calibration)
        assert each == pytest.approx(100 * higher / (rows + 1))
    assert ((found >= 0) & (found < 100)).all()
    order = np.argsort(fresh)
    assert (np.diff(found[order]) <= 0).all()


@pytest.mark.parametrize("rows", [99, 199, 1000, 20_000])
@pytest.mark.parametrize("percent", [90, 99])
def test_fresh_rows_are_as_often_above_a_percentile_as_it_says(rows, percent):
    """A row is above if it is below the k-th lowest of n scores; the probability of that is Beta(k, n + 1 - k)."""
    random = np.random.default_rng([rows, percent])
    fresh = 2000
    k = math.ceil((1 - percent / 100) * (rows + 1) - 1e-9) - 1
    counts = []
    for _ in range(100):
        calibration, other = random.standard_t(3, rows), random.standard_t(3, fresh)
        counts.append((percentiles_of(other, calibration) > percent).sum())
    if k == 0:  # 99 rows do not resolve percentile 99
        assert sum(counts) == 0
        return
    exact = stats.betabinom(fresh, k, rows + 1 - k)
    low, high = exact.interval(1 - 1e-4)
    assert low <= min(counts)
    assert max(counts) <= high
    error = exact.std() / len(counts) ** 0.5
    assert np.mean(counts) == pytest.approx(exact.mean(), abs=4 * error)
    assert 0.45 * fresh <= exact.mean() / (1 - percent / 100) <= 1.001 * fresh


@pytest.mark.parametrize("share", [0.002, 0.03, 0.5])
def test_equal_scores_are_no_false_alarms(share):
    """Of tables with few different rows, the least likely kind may be more frequent than 1 %."""
    random = np.random.default_rng(0)
    draw = lambda rows: np.where(random.random(rows) < share, -9.0, -1.0)  # noqa: E731
    above = [(percentiles_of(draw(1000), draw(500)) > 99).mean() for _ in range(100)]
    assert np.mean(above) <= 0.01
    assert np.mean(above) > 0 or share > 0.01


def test_many_scores_are_stored_as_quantiles():
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=50_000))
    quantiles = calibration_quantiles(scores)
    assert len(quantiles) == 10_000
    assert bool((quantiles.diff() >= 0).all())
    fresh = np.linspace(-5, 5, 201)
    exact = 100 * (scores.numpy()[:, None] > fresh).sum(0) / 50_001
    np.testing.assert_allclose(percentile(fresh, quantiles.numpy(), 50_000), exact, atol=0.02)
    assert percentile(np.array([-9.0, 9.0]), quantiles.numpy(), 50_000).tolist() == pytest.approx(
        [100 * 50_000 / 50_001, 0]
    )
    few = scores[:10_000]
    assert torch.equal(calibration_quantiles(few), few.sort().values)


def test_a_missing_score_has_no_percentile():
    found = percentiles_of([np.nan, 0.5, -np.inf], [0.0, 1.0])
    assert np.isnan(found[0])
    assert found[1:].tolist() == pytest.approx([100 / 3, 200 / 3])
