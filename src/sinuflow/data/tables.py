"""Opening CSV, Parquet, NumPy, pandas, Polars and Arrow tables, and reading their rows for a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from . import formats
from .columns import Column, quoted_list
from .csv_files import csv_dataset, with_missing
from .preprocessing import Preprocessor
from .values import Array, numbers_of

#: Rows read at a time.
_CHUNK = 65_536


class Table:
    """An Arrow dataset that is read in batches, with a name for messages.

    The columns of a text file are read as text; their types are inferred from all rows. ``files`` are its Parquet
    files, if all have the dataset's schema.
    """

    def __init__(self, name: str, dataset: Any, files: list[str] | None = None, text: bool = False) -> None:
        self.name = name
        self.dataset = dataset
        #: All columns, in the order of the file.
        self.stored_columns = list(dataset.schema.names)
        #: The columns without the index that pandas writes to Parquet.
        self.columns = [c for c in self.stored_columns if not formats.INDEX_COLUMN.fullmatch(c)]
        self._files, self._text = files, text
        formats.check_names(name, self.columns)

    def batches(self, columns: list[str]) -> Iterator[Any]:
        """Record batches in the order of the rows, with unchanged cells."""
        with formats.translated(self.name):
            if self._files is None:
                # Reading ahead only takes memory when processing is slower than reading.
                yield from self.dataset.to_batches(
                    columns=columns, batch_size=_CHUNK, use_threads=False, batch_readahead=1, fragment_readahead=1
                )
                return
            from pyarrow import parquet

            for file in self._files:
                with parquet.ParquetFile(file, pre_buffer=False) as reader:
                    for batch in reader.iter_batches(_CHUNK, columns=columns, use_threads=False):
                        yield batch.select(columns)

    def cells(self, batch: Any, column: str) -> Any:
        """A column of a batch of this table, with null for missing values of a text file."""
        array = batch.column(column)
        if self._text:
            return with_missing(array)
        with formats.translated(self.name):
            array.validate(full=True)  # strings in Parquet files may be invalid UTF-8
        return array

    def count(self) -> int:
        with formats.translated(self.name):
            return int(self.dataset.count_rows())


def open_table(data: Any) -> Table:
    """Open a table from a path, a data frame, an Arrow table or dataset, or an array."""
    arrow, datasets = formats.arrow_modules()
    if isinstance(data, (str, os.PathLike)):
        return _open_path(Path(data))
    if isinstance(data, Table):
        return data
    if isinstance(data, datasets.Dataset):
        return Table("the dataset", data)
    if isinstance(data, (arrow.Table, arrow.RecordBatch)):
        return Table("the table", datasets.dataset(data))
    if isinstance(data, np.ndarray):
        return Table("the array", datasets.dataset(formats.array_to_arrow("the array", data)))
    return Table("the frame", datasets.dataset(formats.frame_to_arrow(data)))


def _open_path(path: Path) -> Table:
    try:
        path.stat()
    except (FileNotFoundError, ValueError):  # a path with a null byte is a ValueError
        raise DataError(f"there is no {path}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in (".parquet", ".pq"):
        dataset, files = formats.parquet_dataset(path)
        return Table(str(path), dataset, files)
    if suffix == ".npy":
        array = formats.open_array(path, "write it with numpy.save")
        return Table(str(path), formats.arrow_modules()[1].dataset(formats.array_to_arrow(str(path), array)))
    if suffix in (".csv", ".tsv", ".txt"):
        return Table(str(path), csv_dataset(path), text=True)
    raise DataError(f"cannot read {path}: Sinuflow reads .csv, .tsv, .parquet and .npy files, and folders")


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
