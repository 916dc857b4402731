from __future__ import annotations

import numpy as np
import pytest

from sinuflow.report.scale import scale_of

from .fake import column


def normals(n=2000, seed=0):
    return np.random.default_rng(seed).standard_normal(n)


def test_an_outlier_does_not_determine_the_axis():
    data = normals()
    data[0] = 1e6
    scale = scale_of(column("x", "number", data, normals(seed=1)))
    assert scale.edges[-1] < 8
    assert scale.outside(scale.data) == pytest.approx(1 / 2000)


def test_far_samples_do_not_determine_the_axis():
    samples = 100 * normals(seed=1)
    scale = scale_of(column("x", "number", normals(), samples))
    assert scale.edges[-1] - scale.edges[0] < 20
    assert scale.outside(scale.samples) > 0.5


def test_bounded_data_are_not_cut_off():
    data = np.random.default_rng(0).uniform(size=500)
    scale = scale_of(column("x", "number", data, data))
    assert scale.outside(scale.data) == 0
    assert scale.heights(scale.data).sum() == pytest.approx(1)


@pytest.mark.parametrize("step", [1.0, 0.1, 5.0])
def test_bins_follow_the_step_of_the_values(step):
    data = step * np.random.default_rng(0).poisson(8, 3000)
    scale = scale_of(column("x", "integer", data, data, step=step))
    width = (scale.edges[1] - scale.edges[0]) / step
    assert width == pytest.approx(round(width))
    assert (scale.edges[0] / step) % 1 == pytest.approx(0.5)
    assert scale.heights(scale.data).sum() == pytest.approx(1, abs=0.01)


def test_decades_get_a_logarithmic_axis():
    data = np.exp(3 * normals())
    samples = np.append(np.exp(3 * normals(seed=1)), [-1.0, 0.0])
    scale = scale_of(column("x", "number", data, samples))
    assert scale.log
    assert scale.outside(scale.samples) > 1.9 / 2002
    assert not scale_of(column("x", "number", data - 5, samples)).log


def test_many_categories_share_the_last_bin():
    data = np.array([f"c{i % 30}" for i in range(1000)] + ["c7"])
    scale = scale_of(column("x", "category", data, ["c7", "new"]))
    assert len(scale.labels) == 9
    assert scale.labels[0] == "c7"
    assert scale.labels[-1] == "23 more"
    assert scale.heights(scale.data).sum() == pytest.approx(1)


@pytest.mark.parametrize(
    "data",
    [
        [np.nan, np.inf],
        [3.0],
        [3.0] * 50,
        [0.0] * 999 + [5.0],
        [1e308, -1e308, 1e299, -1e299, 0.0],
        [1e-310, 2e-310, 3e-310],
        [1e9, 1e9 + 1e-3, 1e9 + 2e-3] * 10,
    ],
)
def test_odd_columns_have_an_axis(data):
    data = np.array(data, dtype=float)
    scale = scale_of(column("x", "number", data, data))
    assert len(scale.edges) < 10_000
    assert np.isfinite(scale.edges).all()
    assert (np.diff(scale.edges) > 0).all()
    assert np.isfinite(scale.heights(scale.data)).all()


def test_two_values_have_a_bin_each():
    data = np.random.default_rng(0).integers(0, 2, 500)
    scale = scale_of(column("x", "integer", data, data, step=1.0))
    np.testing.assert_allclose(scale.edges, [-0.5, 0.5, 1.5])


def test_two_distant_peaks_have_enough_bins():
    data = np.concatenate([normals(250) - 4, normals(250, seed=1) + 4])
    assert len(scale_of(column("x", "number", data, data)).edges) > 18
