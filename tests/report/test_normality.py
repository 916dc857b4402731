from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from sinuflow.report.normality import correlations, kolmogorov_smirnov, kolmogorov_tail


@pytest.mark.parametrize("scale", [1.0, 1.1, 3.0])
@pytest.mark.parametrize("rows", [1, 7, 500])
def test_kolmogorov_smirnov_is_scipys(rows, scale):
    z = scale * np.random.default_rng(rows).standard_normal(rows)
    ours, theirs = kolmogorov_smirnov(z), stats.kstest(z, "norm", method="asymp")
    assert ours.statistic == pytest.approx(theirs.statistic, abs=1e-14)
    assert ours.p_value == pytest.approx(theirs.pvalue, rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("x", [0.0, 0.03, 0.05, 0.2, 0.7, 0.999, 1.0, 1.5, 3.0, 10.0])
def test_the_tail_is_kolmogorovs(x):
    assert kolmogorov_tail(x) == pytest.approx(special.kolmogorov(x), rel=1e-12, abs=1e-300)


def test_an_empty_sample_has_no_statistic():
    assert all(math.isnan(value) for value in kolmogorov_smirnov(np.empty(0)))


def test_what_is_no_number_counts_as_far_out():
    assert kolmogorov_smirnov(np.full(50, np.nan)).statistic == 1.0


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
