"""scikit-learn's own checks, and what its users do."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import sinuflow
from sinuflow import DataError, SinusoidalDensity, StorageError
from sinuflow.flows.storage import read_model, write_model
from tests.processes import python

X = np.random.default_rng(0).normal(size=(120, 3)) @ np.array([[1, 0.8, 0], [0, 0.5, 0], [0, 0, 2.0]])


def quick(**options):
    return SinusoidalDensity(**{"steps": 30, "hidden": (8, 8), "blocks": 1, "random_state": 0, **options})


@parametrize_with_checks([SinusoidalDensity(steps=3, hidden=(8,), blocks=1, random_state=0)])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_score_is_the_mean_log_density():
    density = quick().fit(X)
    assert density.score(X) == pytest.approx(density.score_samples(X).mean())
    assert density.n_iter_ <= 30
    assert density.n_features_in_ == 3


def test_it_beats_independent_normals_and_samples_look_like_the_data():
    density = quick(steps=150).fit(X)
    independent = -0.5 * (((X - X.mean(0)) / X.std(0)) ** 2 + np.log(2 * np.pi * X.var(0))).sum(1)
    assert density.score(X) > independent.mean() + 0.3
    drawn = density.sample(2000, random_state=0)
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.corrcoef(X.T), atol=0.15)
    np.testing.assert_array_equal(drawn, density.sample(2000, random_state=0))


def test_it_works_in_a_pipeline_and_a_grid_search():
    search = GridSearchCV(quick(), {"blocks": [1, 2]}, cv=2).fit(X)
    assert search.best_params_["blocks"] in (1, 2)
    pipeline = make_pipeline(StandardScaler(), quick())
    assert np.isfinite(cross_val_score(pipeline, X, cv=2)).all()


def test_it_clones_without_what_it_learned():
    density = quick().fit(X)
    with pytest.raises(NotFittedError):
        clone(density).score_samples(X)
    assert clone(density).get_params() == density.get_params()


def test_names_are_kept_and_checked(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    density = quick().fit(frame)
    assert density.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        density.score_samples(frame[["b", "a", "c"]])


def test_it_survives_a_file(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    density = quick().fit(frame)
    density.save(tmp_path / "d.safetensors")
    again = SinusoidalDensity.load(tmp_path / "d.safetensors")
    np.testing.assert_allclose(again.score_samples(frame), density.score_samples(frame), rtol=1e-12)
    assert again.feature_names_in_.tolist() == ["a", "b", "c"]
    assert again.get_params()["hidden"] == [8, 8]
    sinuflow.SinusoidalFlow(2, blocks=1, hidden=(4,)).save(tmp_path / "f.safetensors")
    with pytest.raises(StorageError, match="does not hold an estimator"):
        SinusoidalDensity.load(tmp_path / "f.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": {"colour": 1}}, "whose parameters this version"),
        ({"features": 9}, "does not fit its columns"),
        ({"names": ["a"]}, "does not fit its columns"),
        ({"names": 3}, "names must be a list"),
        ({"features": "3"}, "features must be an integer"),
    ],
)
def test_a_file_that_makes_no_estimator_is_refused(tmp_path, change, message):
    path = tmp_path / "d.safetensors"
    quick().fit(X).save(path)
    model = read_model(path)
    model.config["facts"]["estimator"].update(change)
    write_model(path, model)
    with pytest.raises(StorageError, match=message):
        SinusoidalDensity.load(path)


def test_its_file_is_good_for_the_command_line_and_numpy_numbers_are_numbers(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    density = quick(steps=np.int64(5), blocks=np.int64(1), learning_rate=np.float32(1e-3)).fit(frame)
    density.save(tmp_path / "d.safetensors")
    model = sinuflow.load(tmp_path / "d.safetensors")
    np.testing.assert_allclose(model.log_prob(frame), density.score_samples(frame), atol=1e-4)
    assert SinusoidalDensity.load(tmp_path / "d.safetensors").random_state == 0


def test_constant_columns_are_restored():
    density = quick().fit(np.c_[X, np.full(len(X), 7.0)])
    assert (density.sample(5)[:, 3] == 7).all()


def test_too_few_rows_are_refused():
    with pytest.raises(DataError, match="at least 10"):
        quick().fit(X[:5])


def test_a_missing_extra_is_named():
    code = (
        "import sys; sys.modules['sklearn'] = None; sys.modules['sklearn.base'] = None\n"
        "import sinuflow\n"
        "import inspect; assert inspect.getmembers(sinuflow)\n"
        "try: sinuflow.SinusoidalDensity\n"
        "except sinuflow.SinuflowError as error: print(error)"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert "pip install 'sinuflow[sklearn,cli]'" in result.stdout
    with pytest.raises(AttributeError, match="nonsense"):
        sinuflow.nonsense  # noqa: B018


def test_no_column_is_left_out_and_restored_ones_are_scored():
    random = np.random.default_rng(0)
    counts = random.integers(0, 9, 200)
    X = np.stack([np.arange(200), random.normal(size=200), counts, 2 * counts + 1, np.full(200, 3)], axis=1)
    density = SinusoidalDensity(steps=2, blocks=1, hidden=(8,), random_state=0).fit(X)
    assert density.model_.columns == ["x0", "x1", "x2", "x3", "x4"]
    assert [c.name for c in density.model_.preprocessor.restored] == ["x3"]
    assert density.sample(3).shape == (3, 5)
    wrong = np.add(X[:5], [0, 0, 0, 1, 0])  # contradicts the relation
    assert (density.score_samples(wrong) < density.score_samples(X[:5]) - 3).all()
