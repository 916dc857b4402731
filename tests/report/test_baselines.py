from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from sinuflow.errors import ArgumentError
from sinuflow.report import baselines
from sinuflow.report.baselines import gaussian_log_density, kde_log_density


def table(rows, features, seed=0):
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((features, features)) + 2 * np.eye(features)
    return rng.standard_normal((rows, features)) @ mix * 10.0 ** np.arange(features) + 3


@pytest.mark.parametrize("features", [1, 2, 5])
def test_the_gaussian_is_scipys(features):
    train, test = table(400, features), table(50, features, seed=1)
    expected = stats.multivariate_normal(train.mean(0), np.cov(train.T, bias=True)).logpdf(test)
    np.testing.assert_allclose(gaussian_log_density(train, test), expected, rtol=1e-9)


@pytest.mark.parametrize("features", [1, 2, 5])
@pytest.mark.parametrize("bandwidth", [0.1, 0.5])
def test_the_kernel_estimate_is_scipys(features, bandwidth, monkeypatch):
    train, test = table(400, features), table(50, features, seed=1)
    unbiased = bandwidth * np.sqrt(399 / 400)  # scipy divides the covariance by n - 1
    expected = stats.gaussian_kde(train.T, bw_method=unbiased).logpdf(test.T)
    monkeypatch.setattr(baselines, "_best_bandwidth", lambda kernels: bandwidth)
    np.testing.assert_allclose(kde_log_density(train, test), expected, rtol=1e-8)


@pytest.mark.parametrize("density", [gaussian_log_density, kde_log_density])
def test_densities_integrate_to_one(density):
    train = np.concatenate([table(200, 1), table(100, 1, seed=2) + 20])
    x = np.linspace(train.min() - 60, train.max() + 60, 20_001)
    assert integrate.trapezoid(np.exp(density(train, x[:, None])), x) == pytest.approx(1, abs=1e-6)


def test_the_chosen_bandwidth_has_the_best_leave_one_out_likelihood():
    train = np.concatenate([table(60, 1), table(60, 1, seed=2) + 40])

    def left_out(multiple):
        h = multiple * 119 ** (-1 / 5)
        total = 0.0
        for i in range(len(train)):
            rest = np.delete(train, i, axis=0)
            kernel = stats.norm(rest[:, 0], h * train.std())
            total += np.log(kernel.pdf(train[i, 0]).mean())
        return total

    whitened = (train - train.mean()) / train.std()
    chosen = baselines._best_bandwidth(whitened) * 120 ** (1 / 5)
    best = max(baselines.MULTIPLES, key=left_out)
    assert abs(np.log2(chosen / best)) < 0.2  # 119 rows or 120: a grid step at most


def test_two_clusters_get_a_narrower_kernel_than_scotts(monkeypatch):
    train = np.concatenate([table(300, 1), table(300, 1, seed=2) + 400])
    chosen = kde_log_density(train, train)
    monkeypatch.setattr(baselines, "_best_bandwidth", lambda kernels: 600 ** (-1 / 5))
    assert chosen.mean() > kde_log_density(train, train).mean() + 0.5


def test_blocks_and_subsamples_give_the_same_density(monkeypatch):
    train, test = table(300, 2), table(70, 2, seed=1)
    whole = kde_log_density(train, test)
    monkeypatch.setattr(baselines, "_BLOCK", 1000)
    np.testing.assert_allclose(kde_log_density(train, test), whole, rtol=1e-12)
    monkeypatch.setattr(baselines, "BANDWIDTH_ROWS", 100)
    fewer = kde_log_density(train, test)
    assert np.array_equal(fewer, kde_log_density(train, test))
    assert abs(fewer.mean() - whole.mean()) < 0.2


@pytest.mark.parametrize("density", [gaussian_log_density, kde_log_density])
def test_degenerate_tables_have_a_finite_density(density):
    train = table(100, 2)
    doubled = np.column_stack([train, train[:, 0], np.full(100, 7.0)])
    assert np.isfinite(density(doubled, doubled[:20])).all()
    assert np.isfinite(density(np.ones((5, 2)), np.ones((3, 2)))).all()
    assert np.isfinite(density(train[:3], train)).all()
    assert density(train, train[:0]).shape == (0,)


def test_jitter_only_where_it_is_needed():
    train = np.random.default_rng(0).standard_normal((500, 2)) @ np.array([[1, 1], [0, 1e-4]])
    expected = stats.multivariate_normal(train.mean(0), np.cov(train.T, bias=True)).logpdf(train)
    np.testing.assert_allclose(gaussian_log_density(train, train), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (np.ones(3), np.ones((3, 1))),
        (np.ones((3, 2)), np.ones((3, 1))),
        (np.ones((1, 2)), np.ones((3, 2))),
        (np.full((3, 2), np.nan), np.ones((3, 2))),
    ],
)
def test_wrong_tables_are_refused(train, test):
    with pytest.raises(ArgumentError, match="a baseline needs"):
        gaussian_log_density(train, test)
