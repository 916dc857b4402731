"""Reading Parquet files and folders without changing cells."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from sinuflow import DataError
from sinuflow.data import open_table
from tests.data.tables import FRAME, survey_of


def test_a_partitioned_folder_keeps_its_columns(tmp_path):
    FRAME.to_parquet(tmp_path, partition_cols=["city"])
    assert set(open_table(tmp_path).columns) == set(FRAME.columns)
    assert survey_of(tmp_path).total == 40


def test_texts_of_parquet_files_that_are_not_utf8_are_refused(tmp_path):
    texts = pa.array(["x"] * 40)
    broken = pa.Array.from_buffers(pa.string(), 40, [None, texts.buffers()[1], pa.py_buffer(b"x" * 39 + b"\xff")])
    pa.parquet.write_table(pa.table({"text": broken, "x": np.arange(40.0)}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="not UTF-8"):
        survey_of(tmp_path / "t.parquet")


def write_folder(folder, *tables):
    folder.mkdir(exist_ok=True)
    for i, table in enumerate(tables):
        pa.parquet.write_table(pa.table(table), folder / f"{i}.parquet")
    return folder


def cells_of(folder):
    table = open_table(folder)
    return pa.Table.from_batches(list(table.batches(table.stored_columns)))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"id": [5]}, {"id": ["007"]}, "'id' holds int64 in .*0.parquet, but string in .*1.parquet"),
        ({"id": [5]}, {"id": pa.array([5], pa.int32())}, "'id' holds int64"),
        ({"id": pa.array([0.5], pa.float32())}, {"id": [0.1]}, "'id' holds float in"),
        ({"id": [0.5]}, {"id": [12345]}, "'id' holds double in"),
        ({"a": [1]}, {"a": [1], "b": [2]}, "0.parquet has no column 'b', but .*1.parquet has one"),
        ({"a": [1], "b": [2]}, {"a": [1]}, "1.parquet has no column 'b', but .*0.parquet has one"),
    ],
    ids=["text", "width", "precision", "integers", "more columns", "fewer columns"],
)
def test_files_of_a_folder_with_other_columns_are_refused(tmp_path, first, second, message):
    with pytest.raises(DataError, match=f"{message}.*the same columns and types") as caught:
        open_table(write_folder(tmp_path, first, second))
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="the same columns and types"):  # also after a column without values
        open_table(write_folder(tmp_path / "null", dict.fromkeys([*first, *second], pa.nulls(1)), first, second))


def test_files_of_a_folder_may_differ_in_order_and_hold_columns_without_values(tmp_path):
    empty = {"b": pa.nulls(1), "a": pa.nulls(1), "__index_level_0__": [7]}
    found = cells_of(write_folder(tmp_path, empty, {"b": ["007"], "a": [2**60 + 1]}, {"a": [3], "b": ["x"]}))
    assert found.to_pydict() == {
        "b": [None, "007", "x"], "a": [None, 2**60 + 1, 3], "__index_level_0__": [7, None, None]
    }  # fmt: skip
    assert list(map(str, found.schema.types)) == ["string", "int64", "int64"]


def test_partition_keys_keep_their_text_and_are_numbers_to_a_model(tmp_path):
    for key in ("01", "02", "10"):
        write_folder(tmp_path / f"g={key}", {"x": np.arange(5.0)})
    assert cells_of(tmp_path)["g"].to_pylist() == ["01"] * 5 + ["02"] * 5 + ["10"] * 5
    found = survey_of(tmp_path)
    column = found.columns(found.rows)[1]
    assert (column.kind, column.type, column.low, column.high) == ("number", "int64", 1.0, 10.0)


def test_columns_in_the_files_come_before_partition_keys(tmp_path):
    write_folder(tmp_path / "g=1", {"x": [0.5], "g": [7]})
    assert cells_of(tmp_path).to_pydict() == {"x": [0.5], "g": [7]}
