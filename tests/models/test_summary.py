"""What a user is told about a fitted table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from sinuflow import fit_table
from sinuflow.models.summary import restored_and_constant, usage

QUICK = {"steps": 3, "architecture": {"hidden": (8,), "blocks": 1}, "progress": False, "device": "cpu"}
ROWS = 60
X = np.random.default_rng(0).normal(size=ROWS)
EMPTY = np.full(ROWS, None)
NUMBERS = np.arange(ROWS)
TEXTS = [f"text {i}" for i in range(ROWS)]


@pytest.mark.parametrize(
    ("columns", "start"),
    [
        ({"id": NUMBERS}, "to model it, fit with --map id=auto "),
        ({"id": NUMBERS, "note": TEXTS}, "to model them, fit with --map id=auto --map note=auto "),
        ({"id": NUMBERS, "none": EMPTY}, "to model 'id', fit with --map id=auto "),
        ({"id": NUMBERS, "none": EMPTY, "note": TEXTS}, "to model 'id' and 'note', fit with --map id=auto "),
        (
            {**{f"note {i}": TEXTS for i in range(3)}, "none": EMPTY},
            "to model some of them, fit with --map 'note 0=auto' ",
        ),
    ],
    ids=["one", "two", "one of two", "two of three", "three of four"],
)
def test_the_columns_that_can_be_modelled_after_all_are_named(columns, start):
    model = fit_table(pd.DataFrame({"x": X, "y": X[::-1], **columns}), **QUICK)
    assert [line for line in model.notices if line.startswith(start)]
    assert usage(model) == f"60 rows, 2 columns modelled, {len(columns)} set aside"


def test_relations_of_times_are_shown_without_seconds():
    seconds = pd.Series(np.random.default_rng(0).integers(1e9, 1.1e9, 300))
    times = pd.to_datetime(seconds, unit="s")
    days = times.dt.strftime("%d %b %Y")
    frame = pd.DataFrame({"x": np.resize(X, 300), "time": times.dt.strftime("%Y-%m-%d %H:%M:%S"), "day": days})
    model = fit_table(frame, **QUICK)
    assert restored_and_constant(model) == ["restored from other columns: day is determined by time [day]"]
    restored = {c.name: c.describe() for c in model.preprocessor.restored}
    assert restored == {"day": "restored: day is determined by time [day]"}


def test_one_column_is_in_the_singular():
    assert usage(fit_table(pd.DataFrame({"x": X}), **QUICK)) == "60 rows, 1 column modelled"


def test_a_model_is_shown_with_its_columns():
    frame = pd.DataFrame({f"x{i}": np.roll(X, i) for i in range(7)})
    assert repr(fit_table(frame, **QUICK)) == (
        "<TableModel of the frame with the columns 'x0', 'x1', 'x2', 'x3', 'x4' and 2 more>"
    )
