"""Descriptions of columns: chosen for any values, stored as JSON, and refused where they are inconsistent."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinuflow.checks import InvalidValueError
from sinuflow.data.columns import Column
from sinuflow.data.inspect import inspect_codes, inspect_numbers
from tests.data.tables import any_column


@given(any_column())
@settings(max_examples=150)
def test_any_column_survives_json(case):
    column, _ = case
    assert Column.from_dict(json.loads(json.dumps(column.as_dict()))) == column
    assert column.describe()


@given(any_column())
@settings(max_examples=100)
def test_probabilities_of_any_column_add_up(case):
    column, values = case
    total = math.fsum((column.missing, *column.masses))
    if column.discrete:
        assert total == pytest.approx(1, abs=1e-12)
    else:
        assert total < 1
        assert column.missing == pytest.approx(np.isnan(values).mean(), abs=1e-12)
    assert all(mass > 0 for mass in column.masses)
    assert (column.missing > 0) == bool(np.isnan(values).any())


@pytest.mark.parametrize("role", ["feature", "context"])
def test_columns_that_differ_only_by_missing_values_survive_json(role):
    values = np.where(np.arange(40) % 4 == 0, np.nan, 0.0)
    for column in (
        inspect_codes("c", values, ("yes",), "string", role),
        inspect_numbers("c", values + 7, "double", role),
        inspect_numbers("c", np.full(40, np.nan), "double", role, bounds=(7.0, 7.0)),  # known in other rows
        inspect_numbers("c", np.full(40, np.nan), "double", role, bounds=(7.0, 9.0)),
    ):
        assert column.kind != "constant"
        assert column.missing > 0.2
        if role == "context":  # one-hot, or a number and a flag
            assert column.width == (1 if column.kind == "category" else 2)
        assert Column.from_dict(column.as_dict()) == column


def test_values_that_the_training_rows_lack_have_half_a_row():
    column = inspect_numbers("c", np.full(40, np.nan), "double", bounds=(7.0, 9.0))
    assert column.atoms == (7.0, 9.0)
    assert column.masses == pytest.approx((0.5 / 41.5, 0.5 / 41.5))
    assert column.missing == pytest.approx(40.5 / 41.5)


ATOMS = Column("c", "number", "double", high=9.0, rows=50, atoms=(0.0, 2.0), masses=(0.2, 0.3), missing=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"atoms": (2.0, 0.0)}, "the atoms of column 'c' must be increasing"),
        ({"atoms": (2.0, 2.0)}, "the atoms of column 'c' must be increasing"),
        ({"atoms": (0.0,)}, "increasing, with one mass each"),
        ({"masses": (0.2, 0.8)}, "the masses of column 'c' must be probabilities"),
        ({"missing": 0.6}, "the masses of column 'c' must be probabilities"),
        ({"discrete": True}, "the masses of column 'c' must be probabilities"),
        ({"low": 9.0}, "the bounds of column 'c' must be different"),
        ({"knots": (0.0, 1.0), "scores": (0.0,)}, "the knots of column 'c' must be increasing"),
        ({"knots": (0.0,), "scores": (0.0,)}, "the knots of column 'c' must be increasing"),
        ({"knots": (0.0, 0.0), "scores": (0.0, 1.0)}, "the knots of column 'c' must be increasing"),
        ({"knots": (0.0, 1.0), "scores": (1.0, 0.0)}, "the knots of column 'c' must be increasing"),
        ({"kind": "category", "step": 1.0, "high": 1.0, "categories": ("a", "b")}, "the atoms of column 'c'"),
    ],
)
def test_cells_that_contradict_each_other_are_refused(changes, message):
    assert Column.from_dict(ATOMS.as_dict()) == ATOMS
    with pytest.raises(InvalidValueError, match=message):
        Column.from_dict(replace(ATOMS, **changes).as_dict())


@pytest.mark.parametrize(("name", "value"), [("masses", [0.2, 0.0]), ("cell", -1.0), ("missing", -0.1), ("rows", 0)])
def test_fields_of_cells_are_checked(name, value):
    with pytest.raises(InvalidValueError, match=name):
        Column.from_dict({**ATOMS.as_dict(), name: value})


@given(st.floats(-100, 100), st.floats(0.1, 100))
def test_samples_stay_within_natural_bounds(low, width):
    high = low + width
    column = replace(ATOMS, low=low, high=high)
    assert column.floor == (low if low >= 0 else -math.inf)
    assert column.ceiling == (high if high <= 0 or 0 <= low <= high <= 100 else math.inf)
    assert replace(column, rows=0).floor == -math.inf  # format 1
    assert replace(column, rows=0).ceiling == math.inf
