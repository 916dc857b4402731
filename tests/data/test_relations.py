"""Formulas and lookup tables: prediction, checks of rows, text, and JSON."""

import datetime
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinuflow.checks import InvalidValueError
from sinuflow.data.formulas import Formula, Term
from sinuflow.data.lookups import Lookup
from sinuflow.data.relations import Relation, relation_from_dict
from sinuflow.data.rounding import Rounding

NAN = float("nan")
SUM = Formula("c", (Term(1.0, ("a",)), Term(-2.0, ("b",))), 3.0)
DELAY = Formula(
    "delay",
    (Term(1.0, ("actual",), "minutes"), Term(-1.0, ("planned",), "minutes")),
    period=1440,
    low=-60,
    missing_with="air",
)
LOOKUP = Lookup("t", ("a", "b"), (True, False), ((1.0, 4.0, None), (0.0, 1.0)), (10.0, 11.0, None, 13.0, 14.0, 15.0))


def columns(**values: list[float]) -> dict[str, np.ndarray]:
    return {name: np.array(column, dtype=float) for name, column in values.items()}


def test_linear_formula_predicts_checks_and_describes() -> None:
    table = columns(a=[1, 2, NAN, 4], b=[1, 0, 1, NAN], c=[2, 6, NAN, 5])
    np.testing.assert_array_equal(SUM.predict(table), [2, 5, NAN, NAN])
    assert SUM.holds(table).tolist() == [True, False, True, False]
    assert SUM.describe() == "c = a + 3 - 2 * b"
    assert SUM.sources == ("a", "b")
    assert SUM.kind == "linear"


def test_clock_difference_wraps_at_midnight_and_is_missing_with_another_column() -> None:
    table = columns(actual=[10, 2350, 1200], planned=[2355, 5, 1130], air=[1, 1, NAN], delay=[15, -15, NAN])
    np.testing.assert_array_equal(DELAY.predict(table), table["delay"])
    assert DELAY.holds(table).all()
    assert DELAY.kind == "minutes"
    assert DELAY.sources == ("actual", "planned", "air")


def test_ratio_by_zero_is_missing() -> None:
    ratio = Formula("c", (Term(100.0, ("a", "b"), "ratio"),), rounding=Rounding(1))
    np.testing.assert_array_equal(ratio.predict(columns(a=[1, 0, 1], b=[3, 0, 0])), [33.3, NAN, NAN])


@given(st.dates())
def test_days_agree_with_the_calendar(date: datetime.date) -> None:
    days = Formula("d", (Term(1.0, ("y", "m", "d"), "days"),))
    table = columns(y=[date.year], m=[date.month], d=[date.day])
    assert days.predict(table)[0] == (date - datetime.date(1970, 1, 1)).days


def test_lookup_by_two_columns_with_missing_values() -> None:
    table = columns(a=[1, 1, 4, 4, NAN, NAN], b=[0, 1, 0, 1, 0, 1], t=[10, 11, NAN, 13, 14, 15])
    np.testing.assert_array_equal(LOOKUP.predict(table), table["t"])
    assert LOOKUP.holds(table).all()
    assert not LOOKUP.holds({**table, "t": table["t"] + 1})[[0, 1, 3, 4, 5]].any()
    assert LOOKUP.describe() == "t is determined by a and b"


def test_lookup_takes_the_nearest_number_and_no_unseen_code() -> None:
    unseen = columns(a=[-9, 2, 3, 99, 1], b=[0, 0, 1, 1, 7], t=[0, 0, 0, 0, 0])
    np.testing.assert_array_equal(LOOKUP.predict(unseen), [10, 10, 13, 13, NAN])
    assert LOOKUP.holds(unseen).all(), "unseen sources contradict nothing"


@pytest.mark.parametrize("relation", [SUM, DELAY, LOOKUP])
def test_relations_survive_json(relation: Relation) -> None:
    assert relation_from_dict(json.loads(json.dumps(relation.as_dict()))) == relation


@pytest.mark.parametrize(
    ("relation", "change", "message"),
    [
        (SUM, {"kind": "oracle"}, "kind must be one of formula, lookup"),
        (SUM, {"terms": []}, "terms must be a list of at least 1"),
        (SUM, {"terms": [{"coefficient": 1.0, "sources": ["a"], "reading": "ratio"}]}, "right number of columns"),
        (SUM, {"constant": NAN}, "constant must be a finite number"),
        (SUM, {"extra": 1}, "unknown field 'extra'"),
        (SUM, {"target": "a"}, "different from the sources"),
        (LOOKUP, {"values": [1.0]}, "values must be a list of 6 entries"),
        (LOOKUP, {"levels": [[4.0, 1.0, None], [0.0, 1.0]]}, "increasing order"),
        (LOOKUP, {"levels": [[None, 1.0, 4.0], [0.0, 1.0]]}, "increasing order"),
        (LOOKUP, {"sources": ["a"]}, "one or two columns"),
        (LOOKUP, {"ordered": [1, 0]}, "true or false"),
    ],
)
def test_invalid_stored_relations_are_refused(relation: Relation, change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        relation_from_dict({**relation.as_dict(), **change})


@pytest.mark.parametrize("decimals", [0, 1, 4])
@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_rounding_keeps_the_values_that_it_was_found_on(decimals: int, values: list[float]) -> None:
    rounded = np.round(np.array(values), decimals)
    rounding = Rounding.of(rounded)
    assert rounding.decimals is not None
    assert rounding.decimals <= decimals
    np.testing.assert_array_equal(rounding.apply(rounded), rounded)
    assert (np.abs(rounding.apply(np.array(values)) - values) <= rounding.half_unit(np.array(values)) * 1.0001).all()


def test_rounding_of_float32_float64_and_a_fixed_number_of_characters() -> None:
    noise = np.random.default_rng(0).normal(size=100)
    assert Rounding.of(noise) == Rounding()
    assert Rounding.of(noise.astype(np.float32).astype(float)) == Rounding(single=True)
    assert Rounding.of(np.array([0.1234, 12.34, 56.78, 1234.0])) == Rounding(decimals=4, digits=4)
    assert Rounding.of(np.array([NAN, 0.0])) == Rounding(decimals=0)
