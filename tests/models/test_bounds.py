"""Declared bounds of a table's columns."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import sinuflow
from sinuflow import DataError, fit_table

QUICK = {"steps": 5, "architecture": {"hidden": (8,), "blocks": 1}, "progress": False, "device": "cpu"}
RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "share": RANDOM.uniform(0.2, 0.9, 300),
        "change": RANDOM.normal(0.2, 1, 300),
        "rate": [f"{value:.1f}%" for value in RANDOM.uniform(5, 95, 300)],
        "kind": RANDOM.choice(["a", "b"], 300),
    }
)
BOUNDS = {"share": (0, 1), "change": (-9, math.inf), "rate": (None, 100)}


@pytest.fixture(scope="module")
def model():
    return fit_table(FRAME, bounds=BOUNDS, **QUICK)


def test_samples_respect_them(model):
    model.preprocessor.whitening.factor.mul_(20)  # so that the flow alone would not
    rows = model.sample(400, seed=0).to_pandas()
    model.preprocessor.whitening.factor.div_(20)
    assert rows["share"].min() == 0
    assert rows["share"].max() == 1
    assert rows["change"].min() == -9
    assert rows["change"].max() > 9
    assert rows["rate"].str.rstrip("%").astype(float).max() <= 100


def test_values_outside_of_them_score_as_values_that_the_column_cannot_have(model):
    usual, odd = FRAME[:3], FRAME[:3].copy()
    odd.loc[0, "share"], odd.loc[1, "rate"], odd.loc[2, "change"] = 1.01, "101.0%", -50.0
    scores = model.log_prob(odd)
    assert np.isfinite(scores).all()
    assert (scores < model.log_prob(usual) - 3).all()
    further = odd.assign(share=[3000.0, *odd["share"][1:]])
    assert model.log_prob(further)[0] == scores[0]  # however far outside


def test_they_are_stored_and_continued(model, tmp_path):
    model.save(tmp_path / "m.safetensors")
    again = sinuflow.load(tmp_path / "m.safetensors")
    assert [c.bounds for c in again.preprocessor.columns] == [(0, 1), (-9, None), (None, 100), (None, None)]
    odd = FRAME[:1].assign(share=2.0)
    assert again.log_prob(odd) == model.log_prob(odd)
    assert "at least 0, at most 1" in again.preprocessor.columns[0].describe()
    further = fit_table(FRAME, start=again, steps=1, progress=False)
    assert further.preprocessor.columns[0].bounds == (0, 1)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"share": (0.5, None)}, "'share' holds 0.2.*, which is below its bound 0.5"),
        ({"share": (None, 0.5)}, "'share' holds 0.8.*, which is above its bound 0.5"),
        ({"share": (1, 0)}, "bounds of column 'share' must increase; got 1 and 0"),
        ({"share": 1}, "such as .0, 1. or .0, None.; got 1"),
        ({"share": (math.nan, 1)}, "must increase"),
        ({"kind": (0, 1)}, "'kind' does not hold numbers, and cannot have bounds"),
        ({"town": (0, 1)}, "there is no column 'town'"),
    ],
)
def test_wrong_ones_are_refused(bounds, message):
    with pytest.raises(DataError, match=message) as caught:
        fit_table(FRAME, bounds=bounds, **QUICK)
    assert "\n" not in str(caught.value)


def test_restored_columns_respect_them():
    parts = FRAME.assign(a=RANDOM.integers(0, 50, 300), b=RANDOM.integers(0, 50, 300))
    table = parts.assign(total=parts["a"] + parts["b"])
    model = fit_table(table, bounds={"total": (0, 99)}, **QUICK)
    assert [c.name for c in model.preprocessor.restored] == ["total"]
    assert model.sample(300, seed=0).to_pandas()["total"].max() <= 99
