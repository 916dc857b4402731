"""CSV files as Arrow datasets of unparsed strings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ..errors import DataError
from .arrow_errors import arrow_modules, translated
from .csv_quotes import check_quotes
from .names import check_names
from .values import parse_number

#: Cells that are missing values.
_MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "NULL", "null", "None", "?"]
#: Possible separators of the cells.
_SEPARATORS = (",", ";", "\t", "|")
#: Bytes per block, and at least so many per column, so that blocks of wide tables have many rows.
_BLOCK, _BLOCK_PER_COLUMN = 1 << 20, 2048


def csv_dataset(path: Path) -> Any:
    """A dataset of strings: the text of every cell, without quotes.

    An empty cell is null, a quoted empty cell the empty string. A blank line is an empty cell if there is one column,
    and skipped otherwise.
    """
    arrow, datasets = arrow_modules()
    from pyarrow import csv

    with translated(str(path)):
        separator = _separator(path)
        check_quotes(path, separator)
        parse = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
        with csv.open_csv(path, parse_options=parse, read_options=csv.ReadOptions(block_size=_BLOCK)) as reader:
            names = list(reader.schema.names)
        check_names(str(path), names)
        if all(parse_number(name) is not None for name in names):
            raise DataError(f"{path} has no header: its first line must name the columns, and holds {names[0]!r}")
        convert = csv.ConvertOptions(
            column_types={name: arrow.string() for name in names},
            strings_can_be_null=True,
            null_values=[""],
            quoted_strings_can_be_null=False,
        )
        block = csv.ReadOptions(block_size=max(_BLOCK, _BLOCK_PER_COLUMN * len(names)))
        if len(names) == 1:  # a blank line is a missing value, unless it precedes the header
            parse.ignore_empty_lines = False
            block.skip_rows = _blank_lines(path)
        form = datasets.CsvFileFormat(parse_options=parse, convert_options=convert, read_options=block)
        return datasets.dataset(str(path), format=form)


def with_missing(array: Any) -> Any:
    """The cells of a column, with null for strings that are missing values."""
    arrow, _ = arrow_modules()
    from pyarrow import compute

    missing = compute.is_in(array, value_set=arrow.array(_MISSING, array.type))
    return compute.if_else(missing, arrow.scalar(None, array.type), array) if missing.true_count else array


def _blank_lines(path: Path) -> int:
    """The number of blank lines before the header."""
    with path.open("rb") as file:
        start = file.read(65_536).removeprefix(b"\xef\xbb\xbf")
    blank = start[: len(start) - len(start.lstrip(b"\r\n"))]
    return len(blank.splitlines())


def _separator(path: Path) -> str:
    """The most frequent separator in the header, outside quotes."""
    with path.open("rb") as file:
        start = file.read(65_536)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path} is not UTF-8 text: save it as UTF-8")
    header = re.sub(rb'"[^"]*"', b"", start).lstrip(b"\r\n").partition(b"\n")[0].partition(b"\r")[0]
    return max(_SEPARATORS, key=header.decode("utf-8", errors="replace").count)
