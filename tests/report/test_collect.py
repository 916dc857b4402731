"""The content of a report on a fitted model."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch

from looks_trained import look_trained
from sinuflow import DataError, SinusoidalFlow, fit_table
from sinuflow.data.sources import seeded
from sinuflow.report.baselines import gaussian_log_density
from sinuflow.report.collect import collect


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
    assert content.anomalies[0].log_density == min(a.log_density for a in content.anomalies)
    assert content.round_trip < 1e-3


def test_the_scores_are_those_of_the_test_rows_and_the_lead_is_paired(model):
    frame = make_frame()
    content = collect(model, frame)
    rows = model.preprocessor
    test, train = (np.asarray(frame)[ids].astype(float) for ids in (model.split.test, model.split.train))
    x = rows.dequantize(torch.from_numpy(test), seeded(0, 1))
    ours = model.score_numbers(x, None).numpy()
    assert content.model.nll == pytest.approx(-ours.mean())
    prepared_train, _ = rows.maps(rows.dequantize(torch.from_numpy(train), seeded(0, 2)))
    prepared, ladj = rows.maps(x)
    gaussian = gaussian_log_density(prepared_train.numpy(), prepared.numpy()) + ladj.numpy()
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
    positive = make_frame()[["b"]]
    fitted = fit_table(positive, steps=20, maps={"b": "log"}, progress=False, device="cpu")
    other = pd.DataFrame({"b": [*positive["b"][:50], -1.0, -2.0]})
    content = collect(fitted, other)
    assert len(content.z) == 50
    assert np.isfinite(content.model.nll)
    assert any(note.startswith("2 rows are outside") for note in content.notes)
    with pytest.raises(DataError, match="within the range"):
        collect(fitted, pd.DataFrame({"b": [-1.0] * 20}))


def test_a_conditional_model_is_reported_without_baselines():
    fitted = fit_table(make_frame(), context=["k"], steps=20, progress=False, device="cpu")
    content = collect(fitted, make_frame())
    assert content.baselines == []
    assert [c.name for c in content.columns] == ["a", "b"]


def test_the_errors_of_an_ill_conditioned_flow_are_reported(model):
    steep = copy.deepcopy(model)
    steep.flow = SinusoidalFlow(3, blocks=4, hidden=(16, 16)).eval()
    look_trained(steep.flow, gain=3.0)
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
