"""Reading a table for a model that knows its columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .columns import Column
from .names import quoted_list
from .preprocessing import Preprocessor
from .tables import Table
from .values import Array, numbers_of


class Rows(NamedTuple):
    """Some rows of a table as numbers."""

    batch: Any  # the Arrow record batch with the cells as they are stored
    x: Tensor  # (n, features), NaN where a value is missing
    context: Tensor | None  # (n, context columns)
    complete: np.ndarray[Any, np.dtype[np.bool_]]  # rows without missing values
    first: int  # number of the first row


def columns_to_numbers(columns: list[Column], batch: Any, first_row: int, table: Table) -> Array:
    """The columns of a record batch of this table, found by name, as numbers."""
    return np.stack([numbers_of(c, table.cells(batch, c.name), first_row, table.name) for c in columns], axis=1)


def read_rows(table: Table, preprocessor: Preprocessor, all_columns: bool = False) -> Iterator[Rows]:
    """The rows of a table, piece by piece, in order; with ``all_columns`` also those that the model does not need."""
    wanted = [*preprocessor.features, *preprocessor.context_columns]
    present = set(table.columns)
    absent = [c.name for c in preprocessor.columns if c.kind != "constant" and c.name not in present]
    if absent:
        raise DataError(
            f"{table.name} lacks {'columns' if len(absent) > 1 else 'the column'} {quoted_list(absent)}, "
            "which the model was trained on"
        )
    first, split = 0, len(preprocessor.features)
    for batch in table.batches(table.stored_columns if all_columns else [c.name for c in wanted]):
        if not len(batch):
            continue
        numbers = torch.from_numpy(columns_to_numbers(wanted, batch, first, table))
        context = numbers[:, split:] if preprocessor.context_columns else None
        yield Rows(batch, numbers[:, :split], context, ~torch.isnan(numbers).any(1).numpy(), first)
        first += len(batch)
