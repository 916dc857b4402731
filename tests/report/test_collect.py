"""The content of a report on a fitted model."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from looks_trained import look_trained
from sinuflow import DataError, SinusoidalFlow, fit_table
from sinuflow.data import Preprocessor
from sinuflow.data.sources import seeded
from sinuflow.models.loading import load
from sinuflow.report.baselines import gaussian_log_density
from sinuflow.report.collect import collect
from sinuflow.report.page import render


def make_frame(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    a = random.normal(size=rows)
    return pd.DataFrame({"a": a, "b": np.exp(a) + 0.01 * random.normal(size=rows) ** 2, "k": random.poisson(3, rows)})


@pytest.fixture(scope="module")
def model():
    return fit_table(make_frame(), steps=60, progress=False, device="cpu")


def test_only_test_rows_count_in_the_training_table(model):
    content = collect(model, make_frame())
    assert len(content.z) == len(model.split.test)
    assert content.facts["rows in this report"] == "60 test rows"
    rows = {anomaly.row - 1 for anomaly in content.anomalies}
    assert rows <= set(model.split.test.tolist())
    assert content.anomalies[0].percentile == max(a.percentile for a in content.anomalies)
    assert content.round_trip < 1e-3


def test_the_scores_are_those_of_the_test_rows_and_the_lead_is_paired(model):
    frame = make_frame()
    content = collect(model, frame)
    test, train = (torch.from_numpy(frame.to_numpy(float)[ids]) for ids in (model.split.test, model.split.train))
    ours = model.score_numbers(test, None).numpy()
    assert content.model.nll == pytest.approx(-ours.mean())
    axes = Preprocessor(model.preprocessor.columns, levels="none")
    axes.initialize(train, seeded(0, 2))
    points = axes.draw(train, seeded(0, 2))[0].numpy()
    draws = [axes.draw(test, seeded(0, 3, i)) for i in range(4)]
    terms = [np.exp(gaussian_log_density(points, y.numpy()) + offset.numpy()) for y, offset in draws]
    gaussian = np.log(np.mean(terms, axis=0))
    baseline = content.baselines[0]
    assert baseline.nll == pytest.approx(-gaussian.mean())
    lead, error = baseline.lead_of(content.model)
    assert lead == pytest.approx((ours - gaussian).mean())
    assert error == pytest.approx((ours - gaussian).std(ddof=1) / np.sqrt(len(ours)))


def test_another_table_is_recognized_by_its_rows(model):
    content = collect(model, make_frame(seed=1))
    assert len(content.z) == 400
    assert content.baselines == []
    assert any("not from the table" in note for note in content.notes)


def test_rows_without_a_density_are_counted_and_left_out():
    fitted = load(Path(__file__).parents[1] / "data" / "0.1.0" / "table.safetensors")
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"size": random.uniform(1, 5, 50), "count": random.integers(0, 20, 50)})
    frame["kind"], frame["unit"] = "red", "cm"
    frame.loc[[3, 9], "count"] = -2  # log(-2 + 1)
    frame.loc[5, "size"] = np.nan
    content = collect(fitted, frame)
    assert len(content.z) == 47
    assert np.isfinite(content.model.nll)
    assert any(note.startswith("2 rows are outside") for note in content.notes)
    with pytest.raises(DataError, match="within the range"):
        collect(fitted, frame.loc[[3, 9]])


def test_missing_values_categories_and_restored_columns_are_shown():
    frame = make_frame()
    frame["twice"] = 2 * frame["k"]
    frame["s"] = np.where(np.arange(400) % 3 == 0, None, np.where(frame["a"] > 0, "up", "down"))
    frame.loc[::7, "a"] = np.nan
    fitted = fit_table(frame, steps=20, progress=False, device="cpu")
    content = collect(fitted, frame)
    views = {view.name: view for view in content.columns}
    assert len({"k", "twice"} & set(views)) == 1
    assert any("restored from others" in note for note in content.notes)
    assert set(views["s"].data) <= {"up", "down", "missing"}
    assert np.isnan(views["a"].data).mean() == pytest.approx(1 / 7, abs=0.1)
    assert np.isfinite(content.model.nll)
    page = render(content)
    assert "missing" in page
    assert "nan" not in page.replace("finance", "")


def test_a_category_that_was_never_seen_is_named_so():
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=200), "s": ["left", "right"] * 100})
    fitted = fit_table(frame, steps=5, progress=False, device="cpu")
    content = collect(fitted, frame.replace({"s": {"left": "middle"}}))
    assert set(content.columns[1].data) == {"right", "(never seen)"}


def test_dates_are_shown_in_years():
    days = pd.Timestamp("2000-01-01") + pd.to_timedelta(np.random.default_rng(0).integers(0, 50, 200), unit="D")
    frame = pd.DataFrame({"x": np.arange(200.0) ** 0.5, "day": days})
    content = collect(fit_table(frame, steps=5, progress=False, device="cpu"), frame)
    view = content.columns[1]
    assert view.name == "day (year)"
    assert view.data.min() >= 2000 - 1e-3
    assert view.data.max() < 2000.2


def test_a_conditional_model_is_reported_without_baselines():
    fitted = fit_table(make_frame(), context=["k"], steps=20, progress=False, device="cpu")
    content = collect(fitted, make_frame())
    assert content.baselines == []
    assert [c.name for c in content.columns] == ["a", "b"]


def test_the_errors_of_an_ill_conditioned_flow_are_reported(model):
    steep = copy.deepcopy(model)
    steep.flow = SinusoidalFlow(len(steep.preprocessor.axis_features), blocks=4, hidden=(16, 16)).eval()
    look_trained(steep.flow, gain=5.0)
    content = collect(steep, make_frame())
    assert content.round_trip > 1e-2
    assert not content.accuracy.good


@pytest.mark.parametrize("row", [0, 7])
def test_a_nan_round_trip_error_counts_as_infinite(model, monkeypatch, row):
    def failing(z, context, on_failure):
        inverse = invert(z, context, on_failure=on_failure)
        inverse.x[row], inverse.residual[row] = torch.nan, torch.nan
        return inverse

    invert = model.flow.invert
    monkeypatch.setattr(model.flow, "invert", failing)
    content = collect(model, make_frame())
    assert content.round_trip == content.residual == np.inf
    assert content.accuracy.label == "Not verified."
