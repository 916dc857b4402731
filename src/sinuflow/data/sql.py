"""Results of SQL queries as tables."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from ..errors import DataError, SinuflowError
from .formats import first_line, import_arrow
from .tables import Table, open_table

#: Rows that are converted at a time.
_CHUNK = 65_536


def database_path(database: str) -> Path | None:
    """The file of a database, given its path or a URI such as ``sqlite:///shop.db``; None if it is on a server.

    Example:
        >>> print(database_path("sqlite:///shop.db"), database_path("postgresql://host/shop"))
        shop.db None
    """
    scheme, is_uri, rest = database.partition("://")
    if not is_uri:
        return Path(database)
    return Path(rest.removeprefix("/")) if scheme in ("sqlite", "duckdb") else None


def open_query(database: str, query: str) -> Table:
    """Run a query and hold its result in memory.

    ``database`` is a SQLite or DuckDB file, which is opened read-only, or a URI that connectorx accepts.
    """
    import_arrow()
    path = database_path(database)
    try:
        result = _on_server(database, query) if path is None else _from_file(path, query)
    except SinuflowError:
        raise
    except ImportError as error:
        raise SinuflowError(f"queries to this database need {error.name}: pip install 'sinuflow[sql]'") from None
    except Exception as error:  # of SQLite, DuckDB, connectorx or Arrow, which share no base class
        raise DataError(f"the query failed: {first_line(error)}") from error
    if not result.num_rows:
        raise DataError("the query has no rows")
    return open_table(result, "the query")


def _from_file(path: Path, query: str) -> Any:
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if start == b"SQLite format 3\0":
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return _fetch(connection.execute(query))
    if start[8:12] == b"DUCK":
        import duckdb

        with duckdb.connect(str(path), read_only=True) as connection:
            return import_arrow().table(connection.sql(query))
    raise DataError(f"{path} is neither a SQLite nor a DuckDB database, which --sql reads")


def _fetch(cursor: sqlite3.Cursor) -> Any:
    """The result of a query to SQLite, whose columns can mix types; of such results, all columns become text."""
    arrow = import_arrow()
    if cursor.description is None:
        raise DataError("the query has no result: --sql takes one SELECT")
    names = [column[0] for column in cursor.description]
    tables = [arrow.Table.from_arrays([arrow.nulls(0)] * len(names), names)]
    while rows := cursor.fetchmany(_CHUNK):
        tables.append(arrow.Table.from_arrays([_array(cells) for cells in zip(*rows, strict=True)], names))
    try:
        return arrow.concat_tables(tables, promote_options="permissive")
    except arrow.ArrowException:
        text = arrow.schema([(name, arrow.string()) for name in names])
        return arrow.concat_tables([table.cast(text) for table in tables])


def _array(cells: tuple[Any, ...]) -> Any:
    arrow = import_arrow()
    try:
        return arrow.array(cells)
    except arrow.ArrowException:
        return arrow.array([None if cell is None else str(cell) for cell in cells])


def _on_server(uri: str, query: str) -> Any:
    os.environ.setdefault("RUST_LOG", "off")  # it logs every attempt to connect
    import connectorx

    return connectorx.read_sql(uri, query, return_type="arrow")
