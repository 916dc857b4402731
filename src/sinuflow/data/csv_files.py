"""CSV files, also compressed, as datasets of unparsed strings, after a check of their quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .formats import arrow_modules, check_names, open_stream, translated
from .numbers import parse_number

#: Cells that are missing values.
_MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "NULL", "null", "None"]
#: Possible separators of the cells: the most frequent one in the header, outside quotes, is taken.
_SEPARATORS = (",", ";", "\t", "|")
#: Bytes per block, and at least so many per column, so that blocks of wide tables have many rows.
_BLOCK, _BLOCK_PER_COLUMN = 1 << 20, 2048
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUOTE = ord('"')


class CsvRows:
    """The methods of an Arrow dataset that Sinuflow uses, for one CSV file: Arrow's own knows fewer compressions.

    Every cell is a string: its text without quotes. An empty cell is null, a quoted empty cell the empty string.
    """

    def __init__(self, path: Path, names: list[str], parse: Any, read: Any) -> None:
        arrow, _ = arrow_modules()
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


def with_missing(array: Any) -> Any:
    """The cells of a column, with null for strings that are missing values."""
    arrow, _ = arrow_modules()
    from pyarrow import compute

    missing = compute.is_in(array, value_set=arrow.array(_MISSING, array.type))
    return compute.if_else(missing, arrow.scalar(None, array.type), array) if missing.true_count else array


def check_quotes(path: Path, separator: str, name: str) -> None:
    """Refuse quotes that Arrow drops silently: text after a closing quote, or a quote that is never closed.

    Quotes inside an unquoted cell are text.
    """
    check = _Check(name, separator)
    with open_stream(path) as file:
        before, block = b"\n", file.read(_BLOCK).removeprefix(_BYTE_ORDER_MARK)
        while block:
            following = file.read(_BLOCK)
            check.block(before, block, following[:1] or b"\n")
            before, block = block[-1:], following
    if check.inside:
        raise DataError(f"{name}, line {check.opened}: a quote is never closed: close it, or double it if it is text")


class _Check:
    """The state of the check between blocks."""

    def __init__(self, name: str, separator: str) -> None:
        self._name = name
        #: By byte: whether it ends a cell, and whether it may come after a quote in a quoted cell.
        self._ends = np.isin(np.arange(256), [ord(separator), ord("\n"), ord("\r")])
        self._may_follow = self._ends | (np.arange(256) == _QUOTE)
        self._lines = 0
        #: Whether a quoted cell is open, and the line where it begins.
        self.inside, self.opened = False, 0
        #: Whether the last byte of the previous block is a closing quote; a second one would make it text.
        self._closed = False

    def block(self, before: bytes, block: bytes, after: bytes) -> None:
        """Check a block, given the bytes before and after it."""
        data = np.frombuffer(before + block + after, dtype=np.uint8)
        quotes = np.flatnonzero(data[1:-1] == _QUOTE) + 1
        if not self._all_alternate(data, quotes, block):
            self._follow(data, quotes, block)
        self._closed = block[-1] == _QUOTE and self._closed
        self._lines = self._line(block, len(block) + 1) - 1

    def _all_alternate(self, data: np.ndarray, quotes: np.ndarray, block: bytes) -> bool:
        """Whether the quotes open and close cells in turn: vectorized, and true of most files."""
        opening, closing = quotes[int(self.inside) :: 2], quotes[int(not self.inside) :: 2]
        # An opening quote right after a closing one is text, and the cell continues.
        doubled = (data[opening - 1] == _QUOTE) & ((opening > 1) | self._closed)
        if not ((self._ends[data[opening - 1]] | doubled).all() and self._may_follow[data[closing + 1]].all()):
            return False
        if len(quotes):
            self.inside ^= len(quotes) % 2 == 1
            self._closed = not self.inside
            if len(opening):
                self.opened = self._line(block, int(opening[-1]))
        return True

    def _follow(self, data: np.ndarray, quotes: np.ndarray, block: bytes) -> None:
        """Check quote by quote: some are text of unquoted cells, or malformed."""
        closed, opened = 0 if self._closed else -1, 0
        for at in quotes.tolist():
            if self.inside:
                if not self._may_follow[data[at + 1]]:
                    raise DataError(
                        f"{self._name}, line {self._line(block, at)}: a cell goes on after its closing quote: "
                        "double the quotes that are text"
                    )
                self.inside, closed = False, at
            elif closed == at - 1 or self._ends[data[at - 1]]:
                self.inside, opened = True, at
        if opened:
            self.opened = self._line(block, opened)
        self._closed = closed == int(quotes[-1])

    def _line(self, block: bytes, at: int) -> int:
        """The line of a byte of the block, counted from 1."""
        before = block[: at - 1]
        return self._lines + max(before.count(b"\n"), before.count(b"\r")) + 1
