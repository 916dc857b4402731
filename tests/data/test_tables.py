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
    kinds = {c.name: c.kind for c in found.columns}
    assert kinds["real"] == kinds["count"] == "number"
    assert kinds["city"] == "category"
    assert kinds["same"] == "constant"
    city = next(c for c in found.columns if c.name == "city")
    assert city.categories == ("Lima", "Oslo", "Rome")
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
        ("a,b\n" + "1,2\n" * 20, "every column .* is constant"),
    ],
    ids=[
        "empty", "header only", "one row", "duplicate names", "ragged", "no header", "not UTF-8", "text among numbers",
        "all missing", "missing", "infinity", "absurd", "too many texts", "all constant",
    ],
)  # fmt: skip
def test_bad_csv_files_are_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        looked_at(write_csv(tmp_path, text))
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
    assert found.columns[0].categories == ("1", "A", "B")
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
