"""Opening tables, and what a first look at them finds."""

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
from sinuflow.data import Preprocessor, open_table, survey
from sinuflow.data.image_files import holds_pictures
from sinuflow.data.inspect import inspect_numbers
from sinuflow.data.reader import read_rows

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
        ("x.docx", b"word", "reads .csv, .tsv"),
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


@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n", "\ufeff\n", "\ufeff\n\n"], ids=repr)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=repr)
def test_blank_lines_of_one_column_are_missing_values(tmp_path, start, end):
    for text, expected in (
        ("a\n1\n\n3\n", ["1", None, "3"]),
        ("a\n1\n\n3", ["1", None, "3"]),
        ("a\n\n1\n", [None, "1"]),
        ("a\n1\n\n", ["1", None]),
        ('a\n""\n\n 7\n', ["", None, " 7"]),
    ):
        table = open_table(write_csv(tmp_path, (start + text).replace("\n", end)))
        assert [cell for batch in table.batches(["a"]) for cell in batch["a"].to_pylist()] == expected
    with pytest.raises(DataError, match="2 in 'a'"):
        looked_at(write_csv(tmp_path, start + "a" + "\n1\n2" * 10 + "\n\n3\n\n4\n"))
    two = open_table(write_csv(tmp_path, start + "a,b\n1,2\n\n3,4\n\n"))
    assert two.count() == 2


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
        columns_of(FRAME, maps={"city": "log"})
    with pytest.raises(DataError, match="choose linear"):
        looked_at(FRAME, maps={"real": "cube"})
    with pytest.raises(DataError, match="'refuse' or 'drop'"):
        looked_at(FRAME, missing="Drop")
    with pytest.raises(DataError, match="complex"):
        open_table(np.zeros((20, 2), dtype=complex))


def test_categories_of_rows_that_are_left_out_are_forgotten():
    frame = FRAME.assign(city=["Rome"] * 20 + ["Oslo"] * 20, real=[*FRAME["real"][:20], *[None] * 20])
    column = columns_of(frame[["real", "count", "city"]], missing="drop")[2]
    assert column.kind == "constant"
    assert column.categories == ("Rome",)


# ---------------------------------------------------------------- integers that float64 would round


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
        looked_at(data)
        return
    with pytest.raises(DataError, match=r"row 40: column '(id|x0)' holds the integer -?9007199254740993.*--drop"):
        looked_at(data)
    name = open_table(data).columns[0]
    column = inspect_numbers(name, np.arange(40.0), "int64")
    with pytest.raises(DataError, match=r"row 40: .*9007199254740993"):
        list(read_rows(open_table(data), Preprocessor([column])))


def test_strings_with_underscores_are_not_numbers():
    frame = pd.DataFrame({"code": ["1_0", "2_0"] * 20, "x": np.arange(40.0)})
    assert columns_of(frame)[0].categories == ("1_0", "2_0")


# ---------------------------------------------------------------- data that other libraries stumble over


def test_dtypes_that_arrow_lacks_are_converted(tmp_path):
    values = FRAME["real"].to_numpy()
    sparse = pd.DataFrame({"a": pd.arrays.SparseArray(values), "b": pd.arrays.SparseArray(FRAME["count"])})
    np.save(tmp_path / "long.npy", values[:, None].astype(np.longdouble))
    for data in (sparse, pd.DataFrame({"a": values.astype(np.longdouble)}), tmp_path / "long.npy"):
        np.testing.assert_array_equal(looked_at(data).numbers[:, 0], values)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "more than one column called 'a'"),
        (pd.DataFrame({"x": [1.0], "id": [2**70]}), "column 'id' of the frame cannot be read .*convert it"),
        (pd.DataFrame({"x": [1.0, 2.0], "m": [1, "one"]}), "column 'm' of the frame cannot be read .*convert it"),
    ],
    ids=["duplicate names", "beyond 64 bits", "mixed"],
)
def test_frames_that_arrow_cannot_take_are_refused(data, message):
    with pytest.raises(DataError, match=message) as caught:
        open_table(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", ["(10000000000000000000000, 2)", "(-5, 2)", "(4, 4000000000000)", "((" * 900])
def test_headers_of_arrays_are_not_trusted(tmp_path, shape):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    path = write_csv(tmp_path, b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header, "x.npy")
    assert not holds_pictures(path)
    with pytest.raises(DataError, match="not an array of numbers"):
        open_table(path)


def test_invalid_paths_are_refused(tmp_path):
    np.savez(tmp_path / "archive.npz", a=np.zeros((3, 3)))
    (tmp_path / "archive.npz").rename(tmp_path / "archive.npy")
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    for name, message in (
        ("archive.npy", "not an array of numbers"),
        ("loop.csv", "symbolic links"),
        ("x" * 300 + ".csv", "too long"),
        ("a\0b.csv", "there is no"),
    ):
        assert not holds_pictures(tmp_path / name)
        with pytest.raises(DataError, match=message):
            open_table(tmp_path / name)


def test_control_characters_of_names_are_quoted():
    with pytest.raises(DataError) as caught:
        looked_at(pd.DataFrame({"\x1b[31m": [f"t{i}" for i in range(120)]}))
    assert str(caught.value).isprintable()


def test_texts_of_parquet_files_that_are_not_utf8_are_refused(tmp_path):
    texts = pa.array(["x"] * 40)
    broken = pa.Array.from_buffers(pa.string(), 40, [None, texts.buffers()[1], pa.py_buffer(b"x" * 39 + b"\xff")])
    pa.parquet.write_table(pa.table({"text": broken, "x": np.arange(40.0)}), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="not UTF-8"):
        looked_at(tmp_path / "t.parquet")


def test_separators_inside_of_quotes_do_not_count(tmp_path):
    text = '"a;b;c",x\n' + "".join(f"{i},{i % 3}\n" for i in range(20))
    assert open_table(write_csv(tmp_path, text)).columns == ["a;b;c", "x"]


def test_a_row_that_is_too_long_is_explained(tmp_path):
    text = "a,b\n" + "1,2\n" * 20 + '"' + "x" * 3_000_000 + '",1\n'
    with pytest.raises(DataError, match="never closed"):
        looked_at(write_csv(tmp_path, text))


def test_wide_csv_files_come_in_blocks_of_many_rows(tmp_path):
    header, row = (",".join(f"{letter}{i:011d}" for i in range(4000)) for letter in "c1")
    path = write_csv(tmp_path, "\n".join([header, *[row] * 100]))
    table = open_table(path)
    assert [len(batch) for batch in table.batches(table.columns[:1])] == [100]


# ---------------------------------------------------------------- folders of Parquet files


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
    found = looked_at(tmp_path)
    column = found.columns(found.rows)[1]
    assert (column.kind, column.type, column.low, column.high) == ("number", "int64", 1.0, 10.0)


def test_columns_in_the_files_come_before_partition_keys(tmp_path):
    write_folder(tmp_path / "g=1", {"x": [0.5], "g": [7]})
    assert cells_of(tmp_path).to_pydict() == {"x": [0.5], "g": [7]}
