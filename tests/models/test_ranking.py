"""How rows are ranked as anomalies."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import sinuflow
from sinuflow import fit_table
from sinuflow.models.ranking import RankedRows, Ranking


def make_frame(rows: int = 300) -> pd.DataFrame:
    random = np.random.default_rng(0)
    x = random.normal(size=rows)
    frame = pd.DataFrame(
        {"x": x, "y": np.exp(x + 0.1 * random.normal(size=rows)), "k": random.choice(list("ab"), rows)}
    )
    frame.loc[::9, "x"] = np.nan
    return frame


@pytest.fixture(scope="module", params=[[], ["k"]])
def model(request):
    return fit_table(make_frame(), context=request.param, steps=30, progress=False, device="cpu")


def test_the_score_has_two_terms_of_equal_spread(model):
    terms = model.ranking.terms(rows_of(model), torch.from_numpy(model.log_prob(make_frame())))
    spreads = model.ranking.tensors()["spreads"]
    np.testing.assert_allclose(model.anomaly_score(make_frame()), -(terms / spreads[:, None]).sum(0))
    ends = torch.quantile(-terms, torch.tensor([0.5, 0.84], dtype=torch.float64), dim=1)
    np.testing.assert_allclose(ends[1] - ends[0], spreads, rtol=0.35)  # of all rows, not of training rows alone


def test_the_score_is_that_of_a_loaded_model_and_does_not_depend_on_other_rows(model, tmp_path):
    model.save(tmp_path / "model.safetensors")
    again = sinuflow.load(tmp_path / "model.safetensors")
    scores = model.anomaly_score(make_frame())
    np.testing.assert_array_equal(scores, again.anomaly_score(make_frame()))
    np.testing.assert_allclose(scores[:7], model.anomaly_score(make_frame()[:7]), rtol=1e-6)
    assert model.anomaly_score(make_frame()[:0]).shape == (0,)


def test_units_do_not_change_the_order(model):
    if model.preprocessor.context_columns:
        pytest.skip("one model is enough")
    frame = make_frame()
    scaled = frame.assign(x=1000 * frame["x"] + 3)
    other = fit_table(scaled, steps=30, progress=False, device="cpu")
    np.testing.assert_allclose(model.anomaly_score(frame), other.anomaly_score(scaled), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spreads", [[1.0], [1.0, 0.0], [1.0, float("nan")]])
def test_wrong_spreads_are_refused(model, spreads):
    tensors = model.ranking.tensors() | {"spreads": torch.tensor(spreads, dtype=torch.float64)}
    with pytest.raises(ValueError, match="spreads"):
        Ranking.from_tensors(model.preprocessor, tensors)


def rows_of(model):
    """The rows of numbers of the frame."""
    from sinuflow.data import open_table
    from sinuflow.data.tables import read_rows

    (rows,) = read_rows(open_table(make_frame()), model.preprocessor)
    return RankedRows(rows.x, rows.restored, rows.context)


def test_restored_and_constant_columns_count():
    random = np.random.default_rng(0)
    a, b = random.integers(1, 50, size=(2, 400))
    frame = pd.DataFrame({"a": a, "b": b, "sum": a + b, "unit": "cm", "year": 2020})
    model = fit_table(frame, steps=30, progress=False, device="cpu")
    assert [c.name for c in model.preprocessor.restored] == ["sum"]
    assert [c.name for c in model.preprocessor.constants] == ["unit", "year"]
    usual = frame[:1]
    wrong = [usual.assign(unit="mm"), usual.assign(year=2021), usual.assign(sum=99), usual.assign(unit=None)]
    scores = [model.anomaly_score(rows)[0] for rows in wrong]
    assert min(scores) > model.anomaly_score(usual)[0] + 1
    densities = [model.log_prob(rows)[0] for rows in wrong]
    assert densities[0] == pytest.approx(model.log_prob(usual)[0] - np.log(280 + 2))  # 70 % of the rows are trained on
    assert densities[0] == densities[1] == densities[3]
    absent = usual.drop(columns=["unit", "year"])  # they may be left out
    assert model.anomaly_score(absent)[0] == model.anomaly_score(usual)[0]
    assert model.anomaly_score(wrong[2])[0] > model.anomaly_score(usual)[0] + 1
