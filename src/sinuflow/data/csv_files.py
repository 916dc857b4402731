"""CSV files, also compressed, as datasets of unparsed strings, after a check of their quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import DataError
from .formats import check_names, import_arrow, open_stream, translated
from .numbers import parse_number

#: Cells that are missing values.
MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "NULL", "null", "None"]
#: Possible separators of the cells: the most frequent one in the header, outside quotes, is taken.
_SEPARATORS = (",", ";", "\t", "|")
#: Bytes per block, and at least so many per column, so that blocks of wide tables have many rows.
_BLOCK, _BLOCK_PER_COLUMN = 1 << 20, 2048
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CsvRows:
    """The methods of an Arrow dataset that Sinuflow uses, for one CSV file: Arrow's own knows fewer compressions.

    Every cell is a string: its text without quotes. An empty cell is null, a quoted empty cell the empty string.
    """

    def __init__(self, path: Path, names: list[str], parse: Any, read: Any) -> None:
        arrow = import_arrow()
        self._path, self._parse, self._read = path, parse, read
        self.schema = arrow.schema([(name, arrow.string()) for name in names])

    def to_batches(self, columns: list[str], **_: Any) -> Iterator[Any]:
        """The rows in blocks; a scanner's other options do not matter to one file."""
        from pyarrow import csv

        convert = csv.ConvertOptions(
            include_columns=columns,
            column_types=self.schema,
            strings_can_be_null=True,
            null_values=[""],
            quoted_strings_can_be_null=False,
        )
        with open_stream(self._path) as stream, csv.open_csv(stream, self._read, self._parse, convert) as reader:
            yield from reader

    def count_rows(self) -> int:
        return sum(map(len, self.to_batches(self.schema.names[:1])))

    def get_fragments(self) -> list[CsvRows]:
        return [self]


def csv_dataset(path: Path, name: str) -> CsvRows:
    """The rows of a file, which messages call ``name``.

    A blank line is an empty cell if there is one column, and skipped otherwise.
    """
    from pyarrow import csv

    with translated(name):
        with open_stream(path) as file:
            start = file.read(65_536).removeprefix(_BYTE_ORDER_MARK)
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(f"{name} is not UTF-8 text: save it as UTF-8")
        header = re.sub(rb'"[^"]*"', b"", start).lstrip(b"\r\n").partition(b"\n")[0].partition(b"\r")[0]
        separator = max(_SEPARATORS, key=header.decode("utf-8", errors="replace").count)
        check_quotes(path, separator, name)
        parse = csv.ParseOptions(delimiter=separator, newlines_in_values=True)
        read = csv.ReadOptions(block_size=_BLOCK, use_threads=False)
        with open_stream(path) as stream, csv.open_csv(stream, read, parse) as reader:
            names = list(reader.schema.names)
        check_names(name, names)
        if all(parse_number(column) is not None for column in names):
            raise DataError(f"{name} has no header: its first line must name the columns, and holds {names[0]!r}")
        read.block_size = max(_BLOCK, _BLOCK_PER_COLUMN * len(names))
        if len(names) == 1:  # a blank line is a missing value, unless it precedes the header
            parse.ignore_empty_lines = False
            read.skip_rows = len(start[: len(start) - len(start.lstrip(b"\r\n"))].splitlines())
        return CsvRows(path, names, parse, read)


def check_quotes(path: Path, separator: str, name: str) -> None:
    """Refuse quotes that Arrow drops silently: text after a closing quote, or a quote that is never closed.

    Quotes inside an unquoted cell are text.
    """
    ends, quoted = rf"{separator}\r\n", r'"(?:[^"]*"")*[^"]*"'
    complete = re.compile(rf'(?:[^"]*[{ends}]|{quoted}[{ends}]|[^"{ends}][^{ends}]*[{ends}])*'.encode())
    closed = re.compile(rf'{quoted}(?!")'.encode())
    # The lines before a block; the cell that it continues, reduced to its quotes, and the line where that begins.
    lines, rest, opened = 0, b"", 1

    def line(before: bytes) -> int:
        return lines + max(before.count(b"\n"), before.count(b"\r")) + 1

    with open_stream(path) as file:
        block = file.read(_BLOCK).removeprefix(_BYTE_ORDER_MARK)
        while block:
            data = rest + block
            last = complete.sub(b"", data, count=1)
            start = len(data) - len(last)
            opened = line(data[:start]) if start or not rest else opened
            cell = closed.match(last)
            if cell is not None and cell.end() < len(last):
                raise DataError(
                    f"{name}, line {line(data[: start + cell.end()])}: a cell goes on after its closing quote: "
                    "double the quotes that are text"
                )
            rest, lines = b'""' if cell is not None else last[:1], line(data) - 1
            block = file.read(_BLOCK)
    if rest == b'"':
        raise DataError(f"{name}, line {opened}: a quote is never closed: close it, or double it if it is text")
