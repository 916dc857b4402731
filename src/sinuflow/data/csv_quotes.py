"""Checking the quotes of a CSV file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError

_QUOTE = ord('"')
#: Bytes checked at a time.
_BLOCK = 1 << 20

Array = np.ndarray[Any, Any]


def check_quotes(path: Path, separator: str) -> None:
    """Refuse quotes that Arrow drops silently: text after a closing quote, or a quote that is never closed.

    Quotes inside an unquoted cell are text.
    """
    check = _Check(path, separator)
    with path.open("rb") as file:
        before, block = b"\n", file.read(_BLOCK).removeprefix(b"\xef\xbb\xbf")
        while block:
            following = file.read(_BLOCK)
            check.block(before, block, following[:1] or b"\n")
            before, block = block[-1:], following
    if check.inside:
        raise DataError(f"{path}, line {check.opened}: a quote is never closed: close it, or double it if it is text")


class _Check:
    """The state of the check between blocks."""

    def __init__(self, path: Path, separator: str) -> None:
        self._path = path
        self._ends = np.isin(np.arange(256), [ord(separator), ord("\n"), ord("\r")])
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
        self._lines += _line_ends(block)

    def _all_alternate(self, data: Array, quotes: Array, block: bytes) -> bool:
        """Whether the quotes open and close cells in turn: vectorized, and true of most files."""
        opening, closing = quotes[int(self.inside) :: 2], quotes[int(not self.inside) :: 2]
        # An opening quote right after a closing one is text, and the cell continues.
        doubled = (data[opening - 1] == _QUOTE) & ((opening > 1) | self._closed)
        if not ((self._ends[data[opening - 1]] | doubled).all() and self._may_follow(data[closing + 1]).all()):
            return False
        if len(quotes):
            self.inside ^= len(quotes) % 2 == 1
            self._closed = not self.inside
            if len(opening):
                self.opened = self._line(block, int(opening[-1]))
        return True

    def _follow(self, data: Array, quotes: Array, block: bytes) -> None:
        """Check quote by quote: some are text of unquoted cells, or malformed."""
        closed, opened = 0 if self._closed else -1, 0
        for at in quotes.tolist():
            if self.inside:
                if not self._may_follow(data[at + 1]):
                    raise DataError(
                        f"{self._path}, line {self._line(block, at)}: a cell goes on after its closing quote: "
                        "double the quotes that are text"
                    )
                self.inside, closed = False, at
            elif closed == at - 1 or self._ends[data[at - 1]]:
                self.inside, opened = True, at
        if opened:
            self.opened = self._line(block, opened)
        self._closed = closed == int(quotes[-1])

    def _may_follow(self, data: Any) -> Any:
        return self._ends[data] | (data == _QUOTE)

    def _line(self, block: bytes, at: int) -> int:
        return self._lines + _line_ends(block[: at - 1]) + 1


def _line_ends(data: bytes) -> int:
    return max(data.count(b"\n"), data.count(b"\r"))
