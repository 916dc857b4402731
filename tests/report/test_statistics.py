from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from sinuflow.report.statistics import chance, correlations, distance, kolmogorov_smirnov, kolmogorov_tail, noticeable

from .fake import column


def test_numbers_are_compared_by_kolmogorov_smirnov():
    rng = np.random.default_rng(0)
    data, samples = rng.standard_normal(300), rng.standard_normal(200) + 0.3
    expected = stats.ks_2samp(data, samples).statistic
    assert distance(column("x", "number", data, samples)) == pytest.approx(expected)
    counts = rng.poisson(3, 300), rng.poisson(4, 200)
    assert distance(column("x", "integer", *counts)) == pytest.approx(stats.ks_2samp(*counts).statistic)


def test_categories_are_compared_by_total_variation():
    assert distance(column("x", "category", ["a", "a", "b", "b"], ["a", "c"])) == pytest.approx(0.5)
    assert distance(column("x", "category", [1, 1], [1, 1])) == 0


def test_nothing_has_no_distance():
    assert math.isnan(distance(column("x", "number", [np.nan], [1.0])))


def test_many_categories_differ_by_chance():
    rng = np.random.default_rng(0)
    names = np.array([f"c{i}" for i in range(50)])
    data, samples = rng.choice(names, 500), rng.choice(names, 500)
    same = column("x", "category", data, samples)
    assert 2 * chance(same) < distance(same) * 1.2
    assert distance(same) < noticeable(same)
    other = column("x", "category", data, rng.choice(names[:30], 500))
    assert distance(other) > noticeable(other)
    assert noticeable(column("x", "number", data, samples)) == 2 * chance(same)


def test_chance_is_exceeded_one_time_in_twenty():
    rng = np.random.default_rng(0)
    columns = [column("x", "number", rng.standard_normal(400), rng.standard_normal(300)) for _ in range(400)]
    assert np.mean([distance(c) > chance(c) for c in columns]) == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize("scale", [1.0, 1.1, 3.0])
@pytest.mark.parametrize("rows", [1, 7, 500])
def test_kolmogorov_smirnov_is_scipys(rows, scale):
    z = scale * np.random.default_rng(rows).standard_normal(rows)
    ours, theirs = kolmogorov_smirnov(z), stats.kstest(z, "norm", method="asymp")
    assert ours == (pytest.approx(theirs.statistic, abs=1e-14), pytest.approx(theirs.pvalue, rel=1e-10, abs=1e-300))


@pytest.mark.parametrize("x", [0.0, 0.03, 0.05, 0.2, 0.7, 0.999, 1.0, 1.5, 3.0, 10.0])
def test_the_tail_is_kolmogorovs(x):
    assert kolmogorov_tail(x) == pytest.approx(special.kolmogorov(x), rel=1e-12, abs=1e-300)


def test_nan_counts_as_infinite():
    assert kolmogorov_smirnov(np.full(50, np.nan))[0] == 1.0


def test_correlations_are_numpys():
    z = np.random.default_rng(0).standard_normal((300, 4))
    z[:, 1] += z[:, 0]
    np.testing.assert_allclose(correlations(z), np.corrcoef(z.T), atol=1e-14)


def test_correlations_skip_broken_rows_and_constant_columns():
    z = np.random.default_rng(0).standard_normal((300, 3))
    expected = np.corrcoef(z[1:, :2].T)
    z[0, 0], z[:, 2] = np.inf, 0.1
    r = correlations(z)
    np.testing.assert_allclose(r[:2, :2], expected, atol=1e-14)
    assert np.isnan(r[2]).all()
    assert np.isnan(correlations(z[:1])).all()
