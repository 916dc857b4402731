"""Reading a table for a model that knows its columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .columns import Column
from .exact_integers import refuse_inexact
from .names import quoted_list
from .preprocessing import Preprocessor
from .tables import Table
from .values import codes_of, is_number, is_text, parse_texts, to_floats

Array = np.ndarray[Any, np.dtype[np.float64]]


class Rows(NamedTuple):
    """Some rows of a table as numbers."""

    batch: Any  # the Arrow record batch they come from, with the cells as they are stored
    x: Tensor  # (n, features), NaN where a value is missing
    given: Tensor | None  # (n, context columns)
    whole: np.ndarray[Any, np.dtype[np.bool_]]  # rows without missing values
    first: int  # number of the first row


def columns_to_numbers(columns: list[Column], batch: Any, first_row: int, table: Table) -> Array:
    """The columns of a record batch of this table as numbers, found by name."""
    parts = [_numbers(column, table.cells(batch, column.name), first_row, table.name) for column in columns]
    return np.stack(parts, axis=1) if parts else np.empty((len(batch), 0))


def check_columns(table: Table, preprocessor: Preprocessor) -> None:
    """Refuse a table that lacks a column which the model needs; their order does not matter."""
    needed = [c.name for c in preprocessor.columns if c.kind != "constant"]
    present = set(table.columns)
    absent = [name for name in needed if name not in present]
    if absent:
        raise DataError(
            f"{table.name} lacks {'columns' if len(absent) > 1 else 'the column'} {quoted_list(absent)}, "
            "which the model was trained on"
        )


def read_rows(table: Table, preprocessor: Preprocessor, all_columns: bool = False) -> Iterator[Rows]:
    """The rows of a table, piece by piece, in order; with ``all_columns`` also those that the model does not need."""
    check_columns(table, preprocessor)
    wanted = [*preprocessor.features, *preprocessor.given]
    needed = [c.name for c in wanted]
    first, split = 0, len(preprocessor.features)
    for batch in table.batches(table.stored_columns if all_columns else needed):
        if not len(batch):
            continue
        numbers = torch.from_numpy(columns_to_numbers(wanted, batch, first, table))
        given = numbers[:, split:] if preprocessor.given else None
        yield Rows(batch, numbers[:, :split], given, ~torch.isnan(numbers).any(1).numpy(), first)
        first += len(batch)


def _numbers(column: Column, array: Any, first_row: int, table: str) -> Array:
    if column.kind == "category":
        return codes_of(column, array, first_row, table)
    kind = str(array.type)
    if is_text(kind):
        numbers, bad = parse_texts(array)
        if bad.any():
            at = int(bad.argmax())
            raise DataError(
                f"{table}, row {first_row + at + 1}: column {column.name!r} must be a number; "
                f"it holds {array[at].as_py()!r}"
            )
    elif is_number(kind):
        numbers = to_floats(array)
    else:
        raise DataError(f"column {column.name!r} of {table} must hold numbers; it holds {kind}")
    refuse_inexact(array, numbers, column.name, first_row, table)
    if np.isinf(numbers).any():
        at = int(np.isinf(numbers).argmax())
        raise DataError(f"{table}, row {first_row + at + 1}: column {column.name!r} holds an infinity")
    return numbers
