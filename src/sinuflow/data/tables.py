"""Opening files, frames, arrays and query results as tables, and reading their rows for a model."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from . import formats
from .columns import Column, quoted_list
from .csv_files import MISSING, csv_dataset
from .json_lines import json_lines
from .numbers import Array
from .preprocessing import Preprocessor
from .refusals import Refusals
from .values import differs, numbers_of, without_texts

#: Rows read at a time.
_CHUNK = 65_536
#: How to read files of other formats.
_REMEDIES = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), "save it as CSV, or pass the frame of pandas.read_excel"),
    ".dta": "pass the frame of pandas.read_stata",
    **dict.fromkeys((".sas7bdat", ".xpt"), "pass the frame of pandas.read_sas"),
    ".sav": "pass the frame of pandas.read_spss",
    ".json": "write one object per line (.jsonl), or pass the frame of pandas.read_json",
    **dict.fromkeys((".h5", ".hdf5"), "pass the frame of pandas.read_hdf"),
    ".orc": "pass the table of pyarrow.orc.read_table",
    ".avro": "pass the frame of polars.read_avro",
    ".arff": "pass a frame of the array that scipy.io.arff.loadarff returns",
    ".mat": "pass an array of scipy.io.loadmat",
    **dict.fromkeys((".rds", ".rdata"), "write the table as CSV or Parquet from R"),
    **dict.fromkeys((".pkl", ".pickle"), "pickles can run code; write the table as Parquet"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3", ".duckdb"), "choose rows by `--sql 'SELECT * FROM table'`"),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".xz", *formats.COMPRESSIONS), "unpack it first"),
}


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
            return without_texts(array, MISSING)
        with formats.translated(self.name):
            array.validate(full=True)  # strings in Parquet files may be invalid UTF-8
        return array

    def count(self) -> int:
        with formats.translated(self.name):
            return int(self.dataset.count_rows())


def open_table(data: Any, name: str | None = None) -> Table:
    """Open a table from a path, a frame, an Arrow table or dataset, the result of a query, or an array.

    ``name`` is what messages call it, by default the path.
    """
    arrow = formats.import_arrow()
    if isinstance(data, (str, os.PathLike)):
        return _open_path(Path(data), name or str(data))
    if isinstance(data, Table):
        return data
    if isinstance(data, arrow.dataset.Dataset):
        return Table(name or "the dataset", data)
    if isinstance(data, (arrow.Table, arrow.RecordBatch)):
        return Table(name or "the table", arrow.dataset.dataset(data))
    if isinstance(data, np.ndarray):
        return Table("the array", arrow.dataset.dataset(formats.array_to_arrow("the array", data)))
    return Table("the frame", arrow.dataset.dataset(formats.frame_to_arrow(data)))


def _open_path(path: Path, name: str) -> Table:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, ValueError):  # a path with a null byte is a ValueError
        raise DataError(f"there is no {path}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    datasets = formats.import_arrow().dataset
    suffix = path.suffix.lower()
    if stat.S_ISDIR(mode) or suffix in (".parquet", ".pq"):
        dataset, files = formats.parquet_dataset(path)
        return Table(name, dataset, files)
    if not stat.S_ISREG(mode):
        raise DataError(f"cannot read {path}: it is not a regular file, and tables are read more than once")
    text = Path(path.stem).suffix.lower() if suffix in formats.COMPRESSIONS else suffix
    if text in (".csv", ".tsv", ".txt"):
        return Table(name, csv_dataset(path, name), text=True)
    if text in (".jsonl", ".ndjson"):
        return Table(name, datasets.dataset(json_lines(path, name)), text=True)
    if suffix in (".feather", ".arrow"):
        return Table(name, formats.ipc_dataset(path))
    if suffix in (".npy", ".npz"):
        array = formats.open_array(path, "write it with numpy.save") if suffix == ".npy" else formats.open_npz(path)
        return Table(name, datasets.dataset(formats.array_to_arrow(name, array)))
    remedy = _REMEDIES.get(suffix, "save the table in a format that Sinuflow reads")
    raise DataError(
        f"cannot read {path}: {remedy} (Sinuflow reads .csv, .tsv, .jsonl, .parquet, .feather, .npy and .npz)"
    )


class Rows(NamedTuple):
    """Some rows of a table as numbers."""

    batch: Any  # the Arrow record batch with the cells as they are stored
    x: Tensor  # (n, features), NaN where a value is missing
    context: Tensor | None  # (n, context columns)
    complete: np.ndarray[Any, np.dtype[np.bool_]]  # rows without missing values
    first: int  # number of the first row
    restored: Tensor  # (n, restored columns)
    log_relations: Array  # the log-density of the columns that are restored from others, and of constant ones

    def select(self, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> Rows:
        """Those of the rows for which ``chosen`` is true, with the batch and the first number of all."""
        rows = torch.from_numpy(chosen)
        context = None if self.context is None else self.context[rows]
        complete, relations = self.complete[chosen], self.log_relations[chosen]
        return Rows(self.batch, self.x[rows], context, complete, self.first, self.restored[rows], relations)


def columns_to_numbers(columns: list[Column], batch: Any, first_row: int, table: Table) -> Array:
    """The columns of a record batch of this table, found by name, as numbers; problems of all of them are one error."""
    numbers, problems = [], dict[str, DataError]()
    for c in columns:
        try:
            numbers.append(numbers_of(c, table.cells(batch, c.table_column), first_row, table.name))
        except DataError as error:
            problems.setdefault(c.table_column, error)
    if len(problems) == 1:
        raise next(iter(problems.values()))
    refusals = Refusals(table.name, list(map(str, problems.values())))
    refusals.check("columns are not as in the training table")
    return np.stack(numbers, axis=1)


def read_rows(table: Table, preprocessor: Preprocessor, all_columns: bool = False) -> Iterator[Rows]:
    """The rows of a table, piece by piece, in order; with ``all_columns`` also those that the model does not need.

    Constant columns may be absent.
    """
    wanted = [*preprocessor.features, *preprocessor.context_columns, *preprocessor.restored]
    present = set(table.columns)
    needed = dict.fromkeys(c.table_column for c in preprocessor.columns if c.kind != "constant")
    absent = [name for name in needed if name not in present]
    if absent:
        raise DataError(
            f"{table.name} lacks {'columns' if len(absent) > 1 else 'the column'} {quoted_list(absent)}, "
            "which the model was trained on"
        )
    constants = [c for c in preprocessor.constants if c.table_column in present]
    needed |= dict.fromkeys(c.table_column for c in constants)
    split = len(preprocessor.features)
    first, end = 0, split + len(preprocessor.context_columns)
    for batch in table.batches(table.stored_columns if all_columns else list(needed)):
        if not len(batch):
            continue
        values = columns_to_numbers(wanted, batch, first, table)
        relations = preprocessor.log_relations({c.name: values[:, i] for i, c in enumerate(wanted)})
        numbers = torch.from_numpy(values)
        context = numbers[:, split:end] if preprocessor.context_columns else None
        for c in constants:
            relations += preprocessor.log_unseen * differs(c, table.cells(batch, c.table_column))
        complete = np.asarray(~np.isnan(values).any(1))
        yield Rows(batch, numbers[:, :split], context, complete, first, numbers[:, end:], relations)
        first += len(batch)
