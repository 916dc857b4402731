from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sinuflow.report.agreement import chance, gap, noticeable

from .fake import column


def test_numbers_are_compared_by_kolmogorov_smirnov():
    rng = np.random.default_rng(0)
    data, samples = rng.standard_normal(300), rng.standard_normal(200) + 0.3
    expected = stats.ks_2samp(data, samples).statistic
    assert gap(column("x", "number", data, samples)) == pytest.approx(expected)
    counts = rng.poisson(3, 300), rng.poisson(4, 200)
    assert gap(column("x", "integer", *counts)) == pytest.approx(stats.ks_2samp(*counts).statistic)


def test_categories_are_compared_by_total_variation():
    assert gap(column("x", "category", ["a", "a", "b", "b"], ["a", "c"])) == pytest.approx(0.5)
    assert gap(column("x", "constant", [1, 1], [1, 1])) == 0


def test_nothing_has_no_gap():
    assert math.isnan(gap(column("x", "number", [np.nan], [1.0])))
    assert math.isnan(gap(column("x", "category", [], ["a"])))
    assert math.isnan(chance(0, 5))


def test_many_categories_differ_by_chance():
    rng = np.random.default_rng(0)
    names = np.array([f"c{i}" for i in range(50)])
    data, samples = rng.choice(names, 500), rng.choice(names, 500)
    same = column("x", "category", data, samples)
    assert 2 * chance(500, 500) < gap(same) * 1.2
    assert gap(same) < noticeable(same)
    other = column("x", "category", data, rng.choice(names[:30], 500))
    assert gap(other) > noticeable(other)
    assert noticeable(column("x", "number", data, samples)) == 2 * chance(500, 500)


def test_chance_is_exceeded_one_time_in_twenty():
    rng = np.random.default_rng(0)
    gaps = [gap(column("x", "number", rng.standard_normal(400), rng.standard_normal(300))) for _ in range(400)]
    assert np.mean(np.array(gaps) > chance(400, 300)) == pytest.approx(0.05, abs=0.03)
