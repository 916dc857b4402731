"""JSON lines as an Arrow table of strings, so that their cells count as those of a CSV file."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from ..errors import DataError
from .formats import import_arrow, open_stream, translated

#: Lines that are converted at a time.
_CHUNK = 65_536
#: Objects become tuples of pairs, so that a repeated name is seen; numbers keep their text.
_decode = json.JSONDecoder(object_pairs_hook=tuple, parse_int=str, parse_float=str, parse_constant=str).decode
_WORDS = {True: "true", False: "false", None: None}


def json_lines(path: Path, name: str) -> Any:
    """The table of a file with one object per line, which messages call ``name``.

    Numbers keep their text. A column that a line lacks is null there; blank lines are skipped.
    """
    arrow = import_arrow()
    rows: list[dict[str, str | None]] = []
    columns: dict[str, None] = {}
    batches = []

    def flush() -> None:
        batches.append(arrow.Table.from_pylist(rows, arrow.schema([(name, arrow.string()) for name in columns])))
        rows.clear()

    with translated(name), open_stream(path) as stream:
        for number, line in enumerate(io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n"), 1):
            if line.isspace():
                continue
            rows.append(_row(line, f"{name}, line {number}"))
            columns |= dict.fromkeys(rows[-1])
            if len(rows) == _CHUNK:
                flush()
        if rows or not batches:
            flush()
        if not columns:
            raise DataError(f"{name} is empty")
        return arrow.concat_tables(batches, promote_options="default")


def _row(line: str, place: str) -> dict[str, str | None]:
    """The cells of a line."""
    try:
        pairs = _decode(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not JSON ({error}): write one object per line") from error
    if not isinstance(pairs, tuple):
        raise DataError(f"{place} is not an object with named values: write one object per line")
    row = dict(pairs)
    if len(row) < len(pairs):
        raise DataError(f"{place} names a column twice: rename or remove one of the two")
    for column, cell in pairs:
        if not isinstance(cell, str):
            if isinstance(cell, (tuple, list)):
                kind = "a list" if isinstance(cell, list) else "an object"
                raise DataError(
                    f"{place}: column {column!r} holds {kind}: write its values as columns of their own "
                    "(pandas.json_normalize), or remove it"
                )
            row[column] = _WORDS[cell]
    return row
