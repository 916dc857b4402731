"""Tables from files, standard input, pipes and SQL queries."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ..data import Table, open_table
from ..data.sql import database_path, open_query
from ..signals import shielded

Sql = Annotated[
    str | None,
    typer.Option("--sql", metavar="QUERY", help="A query; DATA is a SQLite or DuckDB file, or a database's URI."),
]

_STDIN = Path("/dev/stdin")
#: The formats of pipes by their first bytes; others are CSV.
_FORMATS = {b"\x1f\x8b": ".csv.gz", b"\x28\xb5\x2f\xfd": ".csv.zst", b"PAR1": ".parquet", b"{": ".jsonl"}


def input_path(data: str, sql: str | None) -> Path | None:
    """The file, folder or device that a command reads, which no output may replace."""
    if sql is not None:
        return database_path(data)
    return _STDIN if data == "-" else Path(data)


def open_input(ctx: typer.Context, data: str, sql: str | None) -> Path | Table:
    """The table of a query or pipe, or else the path ``data``, which may also hold images."""
    if sql is not None:
        return open_query(data, sql)
    path = _STDIN if data == "-" else Path(data)
    return _open_pipe(ctx, data, path == _STDIN) if path == _STDIN or path.is_fifo() else path


def _open_pipe(ctx: typer.Context, data: str, is_stdin: bool) -> Table:
    """Copy a pipe to a temporary file, because tables are read more than once; it is removed when the command ends."""
    with shielded():
        folder = Path(ctx.with_resource(tempfile.TemporaryDirectory(prefix="sinuflow-")))
    with open(0 if is_stdin else data, "rb", closefd=not is_stdin) as pipe:
        start = pipe.read(8)
        suffix = next((suffix for magic, suffix in _FORMATS.items() if start.startswith(magic)), ".csv")
        copy = folder / f"table{suffix}"
        with copy.open("wb") as file:
            file.write(start)
            shutil.copyfileobj(pipe, file, 2**20)
    return open_table(copy, "standard input" if is_stdin else data)
