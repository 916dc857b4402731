"""Fitting a model to a table: any table, every row scored once by a model that has not seen it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import sinuflow
from sinuflow import fit_table

QUICK = {"steps": 5, "architecture": {"hidden": (8,), "blocks": 1}, "progress": False, "device": "cpu"}
ROWS = 120


def only(values: dict[int, object], dtype: type = float) -> np.ndarray:
    """A column with values in these rows, missing in all others."""
    column = np.full(ROWS, None if dtype is object else np.nan, dtype)
    column[list(values)] = list(values.values())
    return column


#: Columns of which the training rows, or those of a fold, may hold one value or none.
RARE = {
    "one number": only({7: 3.5}),
    "two numbers": only({7: 3.5, 9: 4.0}),
    "one text": only({5: "yes"}, object),
    "half a text": np.where(np.arange(ROWS) % 2 == 0, None, "yes"),
    "half a number": np.where(np.arange(ROWS) % 2 == 0, np.nan, 1.0),
    "two dates": pd.to_datetime(pd.Series(only({5: "2020-01-01", 6: "2020-03-05"}, object))),
    "one other date": pd.to_datetime(pd.Series(["2020-01-01"] * (ROWS - 1) + ["2020-03-01"])),
    "one other number": np.r_[np.zeros(ROWS - 1), 4.0],
    "one missing number": np.r_[np.zeros(ROWS - 1), np.nan],
    "one missing text": np.array(["yes"] * (ROWS - 1) + [None], dtype=object),
}


@pytest.mark.parametrize("role", ["feature", "context"])
@pytest.mark.parametrize("name", RARE)
def test_columns_of_rare_values_are_modelled(name, role, tmp_path):
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=ROWS), "rare": RARE[name]})
    model = fit_table(frame, context=["rare"] if role == "context" else [], **QUICK)
    model.save(tmp_path / "m.safetensors")
    again = sinuflow.load(tmp_path / "m.safetensors")
    scores = again.log_prob(frame)
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(scores, model.log_prob(frame))
    assert again.facts["calibration_rows"] == ROWS
    given = {c.name: c.categories[0] if c.categories else c.low for c in again.preprocessor.context_columns}
    assert again.sample(20, given, seed=0).column_names == ["x", "rare"]


def test_a_single_column_with_a_map_is_modelled():
    frame = pd.DataFrame({"x": np.exp(np.random.default_rng(0).normal(size=60))})
    assert np.isfinite(fit_table(frame, maps={"x": "log"}, **QUICK).log_prob(frame)).all()
