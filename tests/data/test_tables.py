"""Opening tables, and what a first look at them finds."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from sinuflow import DataError
from sinuflow.data import open_table, survey

FRAME = pd.DataFrame(
    {
        "real": np.random.default_rng(0).normal(size=40),
        "count": np.arange(40) % 7,
        "city": ["Rome", "Oslo", "Lima", "Oslo"] * 10,
        "yes": [True, False] * 20,
        "same": [5] * 40,
    }
)


def looked_at(data, **options):
    return survey(open_table(data), options.pop("context", []), options.pop("drop", []), **options)


def columns_of(data, **options):
    found = looked_at(data, **options)
    return found.columns(found.rows)


def write_csv(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.fixture(params=["csv", "tsv", "parquet", "folder", "pandas", "polars", "arrow"])
def table(request, tmp_path):
    if request.param == "csv":
        FRAME.to_csv(tmp_path / "t.csv", index=False)
        return tmp_path / "t.csv"
    if request.param == "tsv":
        FRAME.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
        return tmp_path / "t.tsv"
    if request.param == "parquet":
        FRAME.to_parquet(tmp_path / "t.parquet")
        return str(tmp_path / "t.parquet")
    if request.param == "folder":
        FRAME[:15].to_parquet(tmp_path / "1.parquet")
        FRAME[15:].to_parquet(tmp_path / "2.parquet")
        return tmp_path
    return {"pandas": FRAME, "polars": pl.from_pandas(FRAME), "arrow": pa.Table.from_pandas(FRAME)}[request.param]


def test_every_form_of_a_table_gives_the_same_columns(table):
    found = looked_at(table)
    columns = {c.name: c for c in found.columns(found.rows)}
    assert columns["real"].kind == columns["count"].kind == "number"
    assert columns["city"].kind == columns["yes"].kind == "category"
    assert columns["same"].kind == "constant"
    assert columns["city"].categories == ("Lima", "Oslo", "Rome")
    assert [str(c) for c in columns["yes"].categories] == ["False", "True"]
    assert found.total == 40
    np.testing.assert_allclose(found.numbers[:, 0], FRAME["real"])
    assert found.numbers[:, 2].tolist() == [2, 1, 0, 1] * 10


def test_arrays_have_numbered_columns(tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32))
    assert open_table(tmp_path / "a.npy").columns == ["x0", "x1", "x2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n", "1 usable rows"),
        ("a,a\n" + "1,2\n" * 20, "more than one column called 'a'"),
        ("a,b\n" + "1,2\n" * 20 + "1,2,3\n", "Expected 2 columns, got 3"),
        ("1,2\n3,4\n", "no header"),
        (b"a,b\n" + b"caf\xe9,2\n" * 20, "UTF-8"),
        ("a,b\n" + "".join(f"{i},{i}\n" for i in range(20)) + "x,1\n", "row 21: column 'a' .* but here 'x'"),
        ("a,b\n" + "".join(f"{i},\n" for i in range(20)), "'b' holds no values"),
        ("a,b\n" + "".join(f"{i},{i}\n" for i in range(20)) + ",1\n", "1 in 'a'.*--missing drop"),
        ("a,b\n" + "".join(f"{i},{i}\n" for i in range(20)) + "1,inf\n", "row 21: column 'b' holds an infinity"),
        ("a,b\n" + "".join(f"{i},{i % 3}\n" for i in range(20)) + "1e30,1\n", "'a' holds 1e\\+30"),
        ("a,b\n" + "".join(f"t{i},{i}\n" for i in range(200)), "more than 100 different texts.*--drop a"),
        ("a,b\n" + "1,2\n" * 20, "every column is constant"),
    ],
    ids=[
        "empty", "header only", "one row", "duplicate names", "ragged", "no header", "not UTF-8", "text among numbers",
        "all missing", "missing", "infinity", "absurd", "too many texts", "all constant",
    ],
)  # fmt: skip
def test_bad_csv_files_are_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        columns_of(write_csv(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.parquet", b"not parquet", "cannot read"),
        ("x.npy", b"not numpy", "not an array of numbers"),
        ("x.docx", b"word", "cannot tell what"),
    ],
)
def test_files_that_are_not_what_they_say_are_refused(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        open_table(write_csv(tmp_path, content, name))


def test_other_refusals(tmp_path):
    with pytest.raises(DataError, match="there is no"):
        open_table(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match="without"):
        open_table(tmp_path)
    with pytest.raises(DataError, match="cannot read a table from int"):
        open_table(3)
    np.save(tmp_path / "p.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(DataError, match="not an array of numbers"):
        open_table(tmp_path / "p.npy")
    with pytest.raises(DataError, match="rows and columns"):
        open_table(np.zeros(5))
    with pytest.raises(DataError, match="no column 'z'"):
        looked_at(FRAME, drop=["z"])
    with pytest.raises(DataError, match="no columns left"):
        looked_at(FRAME[["real"]], drop=["real"])
    with pytest.raises(DataError, match="neither number nor text"):
        looked_at(FRAME.assign(day=pd.Timestamp("2020-01-01")))


def test_missing_rows_can_be_left_out():
    frame = FRAME.assign(real=FRAME["real"].where(FRAME.index % 4 != 0))
    found = looked_at(frame, missing="drop")
    assert found.usable.tolist() == [i for i in range(40) if i % 4]
    assert len(found.numbers) == 30


def test_texts_that_begin_with_numbers_are_recognised(tmp_path):
    frame = pd.DataFrame({"code": ["1"] * 20 + ["A", "B"] * 20, "x": np.arange(60.0)})
    for i, part in enumerate((frame[:20], frame[20:])):
        part.to_parquet(tmp_path / f"{i}.parquet")  # a piece of each: the first one holds numbers only
    found = looked_at(tmp_path)
    assert found.columns(found.rows)[0].categories == ("1", "A", "B")
    assert found.numbers[:, 0].tolist() == [0.0] * 20 + [1.0, 2.0] * 20


def test_a_large_table_is_sampled(monkeypatch):
    module = sys.modules["sinuflow.data.survey"]
    monkeypatch.setattr(module, "IN_MEMORY", 1000)
    monkeypatch.setattr(module, "SAMPLE", 200)
    values = np.random.default_rng(0).normal(size=(200_000, 2))
    found = looked_at(pa.table({"a": values[:, 0], "b": values[:, 1]}))
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


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_recognised(tmp_path, separator):
    FRAME.to_csv(tmp_path / "t.csv", index=False, sep=separator)
    assert open_table(tmp_path / "t.csv").columns == list(FRAME.columns)


def test_odd_but_valid_csv_files_are_read(tmp_path):
    rows = "".join(f'{i},"two\nlines"\r\n{i}.5,one\r\n' for i in range(10))
    found = looked_at(write_csv(tmp_path, "\ufeffa,b\r\n" + rows))
    assert [c.name for c in found.columns(found.rows)] == ["a", "b"]
    assert found.total == 20


@pytest.mark.parametrize("word", ["NaN", "nan", "NAN", "NA", "?", "null"])
def test_every_word_for_a_missing_value_is_counted(tmp_path, word):
    text = "a,b\n" + "".join(f"{i},{i % 3}\n" for i in range(20)) + f"{word},1\n"
    with pytest.raises(DataError, match="1 in 'a'"):
        looked_at(write_csv(tmp_path, text))
    frame = pd.DataFrame({"a": [*map(str, range(20)), word], "b": np.arange(21.0)})
    if word.lower() == "nan":  # as a text in Parquet, too
        with pytest.raises(DataError, match="1 in 'a'"):
            looked_at(frame)


def test_a_partitioned_folder_keeps_its_columns(tmp_path):
    FRAME.to_parquet(tmp_path, partition_cols=["city"])
    assert set(open_table(tmp_path).columns) == set(FRAME.columns)
    assert looked_at(tmp_path).total == 40


def test_columns_that_cannot_be_used_are_named():
    big = pd.DataFrame({"id": np.arange(40) + 2**60, "x": np.arange(40.0)})
    with pytest.raises(DataError, match=r"'id'.*--drop id"):
        looked_at(big)
    with pytest.raises(DataError, match="'city' holds categories"):
        columns_of(FRAME, wishes={"city": "log"})
    with pytest.raises(DataError, match="choose linear"):
        looked_at(FRAME, wishes={"real": "cube"})
    with pytest.raises(DataError, match="'refuse' or 'drop'"):
        looked_at(FRAME, missing="Drop")
    with pytest.raises(DataError, match="complex"):
        open_table(np.zeros((20, 2), dtype=complex))


def test_categories_of_rows_that_are_left_out_are_forgotten():
    frame = FRAME.assign(city=["Rome"] * 20 + ["Oslo"] * 20, real=[*FRAME["real"][:20], *[None] * 20])
    column = columns_of(frame[["real", "count", "city"]], missing="drop")[2]
    assert column.kind == "constant"
    assert column.categories == ("Rome",)
