"""Surveying the columns of a table."""

from __future__ import annotations

import decimal
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from sinuflow import DataError
from sinuflow.data import Preprocessor, open_table
from sinuflow.data.inspect import inspect_numbers
from sinuflow.data.tables import read_rows
from tests.data.tables import FRAME, columns_of, survey_of


def test_missing_rows_can_be_left_out():
    frame = FRAME.assign(real=FRAME["real"].where(FRAME.index % 4 != 0))
    found = survey_of(frame, missing="drop")
    assert found.usable.tolist() == [i for i in range(40) if i % 4]
    assert len(found.numbers) == 30


def test_texts_that_begin_with_numbers_are_recognised(tmp_path):
    frame = pd.DataFrame({"code": ["1"] * 20 + ["A", "B"] * 20, "x": np.arange(60.0)})
    for i, part in enumerate((frame[:20], frame[20:])):
        part.to_parquet(tmp_path / f"{i}.parquet")  # a piece of each: the first one holds numbers only
    found = survey_of(tmp_path)
    assert found.columns(found.rows)[0].categories == ("1", "A", "B")
    assert found.numbers[:, 0].tolist() == [0.0] * 20 + [1.0, 2.0] * 20


def test_a_large_table_is_sampled(monkeypatch):
    module = sys.modules["sinuflow.data.survey"]
    monkeypatch.setattr(module, "IN_MEMORY", 1000)
    monkeypatch.setattr(module, "SAMPLE", 200)
    values = np.random.default_rng(0).normal(size=(200_000, 2))
    found = survey_of(pa.table({"a": values[:, 0], "b": values[:, 1]}))
    assert not found.complete
    assert found.total == len(found.usable) == 200_000
    assert 100 <= len(found.numbers) <= 400
    np.testing.assert_array_equal(found.numbers, values[found.rows])
    assert found.rows.max() > 150_000


def test_a_rare_value_is_seen_in_a_large_table(monkeypatch):
    module = sys.modules["sinuflow.data.survey"]
    monkeypatch.setattr(module, "IN_MEMORY", 1000)
    monkeypatch.setattr(module, "SAMPLE", 200)
    rare = np.zeros(200_000)
    rare[123_456] = 1.0
    column = columns_of(pa.table({"a": np.random.default_rng(0).normal(size=200_000), "rare": rare}))[1]
    assert column.kind == "number"
    assert (column.low, column.high) == (0.0, 1.0)


def test_columns_that_cannot_be_used_are_named():
    big = FRAME.assign(id=np.arange(40) + 2**60)
    with pytest.raises(DataError, match=r"'id'.*--map id=category"):
        survey_of(big, context=["id"])
    with pytest.raises(DataError, match="'city' holds categories"):
        columns_of(FRAME, maps={"city": "log"})
    with pytest.raises(DataError, match="choose auto, linear"):
        survey_of(FRAME, maps={"real": "cube"})
    with pytest.raises(DataError, match="'model', 'drop' or 'refuse'"):
        survey_of(FRAME, missing="Drop")
    with pytest.raises(DataError, match="complex"):
        open_table(np.zeros((20, 2), dtype=complex))


def test_categories_of_rows_that_are_left_out_are_forgotten():
    frame = FRAME.assign(city=["Rome"] * 20 + ["Oslo"] * 20, real=[*FRAME["real"][:20], *[None] * 20])
    column = columns_of(frame[["real", "count", "city"]], missing="drop")[2]
    assert column.kind == "constant"
    assert column.categories == ("Rome",)


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (lambda ids: pd.DataFrame({"id": ids}), True),
        (lambda ids: pd.DataFrame({"id": ids.astype(np.uint64)}), True),
        (lambda ids: pl.DataFrame({"id": -ids}), True),
        (lambda ids: pa.table({"id": pa.array(map(decimal.Decimal, ids.tolist()))}), True),
        (lambda ids: ids[:, None], True),
        (lambda ids: pd.DataFrame({"id": ids.astype(str)}), True),
        (lambda ids: pd.DataFrame({"id": ids.astype(float)}), False),
        (lambda ids: pd.DataFrame({"id": [f"{i}.0" for i in ids]}), False),
        (lambda ids: pd.DataFrame({"id": ids - 6}), False),
    ],
    ids=["int64", "uint64", "negative", "decimal", "array", "texts", "floats", "decimal texts", "below 2**53"],
)
def test_integers_beyond_2_to_the_53_are_refused(make, refused):
    data = make(2**53 + 1 - 39 + np.arange(40))  # the last is the first integer that float64 lacks
    if not refused:
        survey_of(data)
        return
    with pytest.raises(DataError, match=r"column '(id|x0)' .*holds the integer -?9007199254740993 in row 40"):
        survey_of(data)
    name = open_table(data).columns[0]
    column = inspect_numbers(name, np.arange(40.0), "int64")
    with pytest.raises(DataError, match=r"row 40: .*9007199254740993"):
        list(read_rows(open_table(data), Preprocessor([column])))


def test_strings_with_underscores_are_not_numbers():
    frame = pd.DataFrame({"code": ["1_0", "2_0"] * 20, "x": np.arange(40.0)})
    assert columns_of(frame)[0].categories == ("1_0", "2_0")


def test_control_characters_of_names_are_quoted():
    with pytest.raises(DataError) as caught:
        survey_of(pd.DataFrame({"\x1b[31m": [f"t{i}" for i in range(120)]}))
    assert str(caught.value).isprintable()
    with pytest.raises(DataError, match="--map 'my id=auto'"):
        survey_of(pd.DataFrame({"my id": [f"t{i}" for i in range(120)]}))
