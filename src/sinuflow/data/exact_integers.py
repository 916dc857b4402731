"""Integers that float64 cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DataError
from .names import drop_option
from .values import Array, is_text

#: Up to this magnitude every integer is a float64.
LARGEST = 2**53
#: Strings that are integers, and not real numbers such as 1e20.
_INTEGER = r"^\s*[+-]?[0-9]+\s*$"


def refuse_inexact(array: Any, numbers: Array, column: str, first_row: int, table: str) -> None:
    """Refuse integers that float64 would round: they are identifiers, and rounding merges different ones.

    Args:
        array: the Arrow array.
        numbers: its values as float64.
        column: the column's name.
        first_row: number of the first row, from 0.
        table: the table's name.
    """
    rows = np.flatnonzero(np.abs(numbers) >= LARGEST)
    if not len(rows):
        return
    for row, value in zip(rows, _integers(array.take(rows)), strict=True):
        if value is not None and abs(value) > LARGEST:
            raise DataError(
                f"{table}, row {first_row + int(row) + 1}: column {column!r} holds the integer {value}, which float64 "
                f"would round, as it is beyond 2**53: leave the column out of the model with {drop_option(column)} if "
                "it is an identifier, or convert it to floating point if it is a quantity"
            )


def _integers(array: Any) -> list[int | None]:
    """The integers of an array, None where a value is not an integer."""
    import pyarrow
    from pyarrow import compute

    kind = array.type
    if is_text(str(kind)):
        array = array.cast(pyarrow.string())
        whole = compute.match_substring_regex(array, _INTEGER).to_pylist()
        # Longer strings are infinite as float64, which another check refuses.
        return [int(t) if w and len(t) < 400 else None for t, w in zip(array.to_pylist(), whole, strict=True)]
    if pyarrow.types.is_integer(kind) or (pyarrow.types.is_decimal(kind) and kind.scale <= 0):
        return [int(value) for value in array.to_pylist()]
    return [None] * len(array)
