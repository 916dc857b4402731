"""Results of SQL queries as tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from sinuflow import DataError, SinuflowError
from sinuflow.data import open_table, sql
from sinuflow.data.sql import open_query
from tests.data.tables import FRAME, columns_of, survey_of, write_csv

COLUMNS = {"real": "double", "count": "int64", "city": "string"}


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "a shop?.db"
    with closing(sqlite3.connect(path)) as connection:
        FRAME[list(COLUMNS)].to_sql("frame", connection, index=False)
        connection.execute("create table mixed (id integer, size, big, word)")
        rows = [(i, i if i < 30 else i + 0.5, 2**60 + i, i if i < 39 else "many") for i in range(40)]
        connection.executemany("insert into mixed values (?, ?, ?, ?)", [*rows, (40, None, 1, None)])
        connection.commit()
    return path


def test_queries_keep_order_names_and_types(database, monkeypatch):
    for chunk in (65_536, 7):
        monkeypatch.setattr(sql, "_CHUNK", chunk)
        table = open_query(str(database), "select * from frame order by real desc")
        assert {field.name: str(field.type) for field in table.dataset.schema} == COLUMNS
        assert survey_of(table).numbers[:, 0].tolist() == sorted(FRAME["real"], reverse=True)


def test_columns_of_mixed_types_are_those_of_all_rows(database, monkeypatch):
    for chunk in (65_536, 7):
        monkeypatch.setattr(sql, "_CHUNK", chunk)
        (size,) = columns_of(open_query(str(database), "select size from mixed"), missing="drop")
        assert (size.type, size.low, size.high) == ("double", 0, 39.5)
        found = survey_of(open_query(str(database), "select * from mixed"))
        assert found.unread == {"word": 1}
        assert "1152921504606846976 in row 1" in found.set_aside["big"].reason


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from nowhere", "the query failed: no such table: nowhere"),
        ("drop table frame", "the query failed: .*readonly"),
        ("select 1; select 2", "the query failed: You can only execute one statement"),
        ("begin", "no result"),
        ("select real, real from frame", "the query has more than one column called 'real'"),
        ("select real from frame where 0", "the query has no rows"),
    ],
)
def test_queries_without_a_table_are_refused_in_one_line(database, query, message):
    with pytest.raises(DataError, match=message) as caught:
        survey_of(open_query(str(database), query))
    assert "\n" not in str(caught.value)


def test_databases_are_files_or_uris(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    query = "select real from frame"
    for name in (database.name, f"sqlite:///{database.name}", f"sqlite:///{database}"):
        assert open_query(name, query).count() == 40
    with pytest.raises(DataError, match=r"cannot read nowhere.db: No such file"):
        open_query("sqlite:///nowhere.db", query)
    with pytest.raises(DataError, match="neither a SQLite nor a DuckDB database"):
        open_query(str(write_csv(tmp_path, "a,b\n1,2\n")), query)


def test_other_databases_name_the_extra_that_they_need(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "connectorx", None)
    with pytest.raises(SinuflowError, match=r"need connectorx: pip install 'sinuflow\[sql\]'"):
        open_query("postgresql://user:secret@nowhere/shop", "select 1")


def test_duckdb_files_are_read(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "t.db")) as connection:
        connection.execute("create table t as select range as a, range / 2 as b from range(20)")
    assert survey_of(open_query(str(tmp_path / "t.db"), "select a, b from t order by a")).numbers[3].tolist() == [
        3,
        1.5,
    ]
    for query, message in (
        ("select * from x", "the query failed: .*does not exist"),
        ("drop table t", "the query failed: .*read-only"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            open_query(f"duckdb:///{tmp_path / 't.db'}", query)
        assert "\n" not in str(caught.value)


def test_connectorx_reads_the_databases_of_servers(database):
    pytest.importorskip("connectorx")
    table = open_table(sql._on_server(f"sqlite://{str(database).replace('?', '%3F')}", "select * from frame"))
    assert survey_of(table).numbers[:, 0].tolist() == FRAME["real"].tolist()
    with pytest.raises(DataError, match=r"the query failed: .*not supported"):
        open_query("nonsense://nowhere/shop", "select 1")
