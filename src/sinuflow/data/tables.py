"""Opening tables: CSV, Parquet, NumPy, pandas, Polars and Arrow, all as Arrow datasets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, SinuflowError

#: Rows that are read at a time.
CHUNK = 65_536
#: What stands for a missing value in a CSV file.
_MISSING = ["", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "NULL", "null", "None", "?"]
#: What separates the values of a CSV file, if not what its name says.
_SEPARATORS = (",", ";", "\t", "|")


class Table:
    """A table that is read in pieces: its name, its columns, and an Arrow dataset.

    The columns of a CSV file are read as text: what they hold is found out by looking at all of it.

    Args:
        name: what to call it in messages.
        dataset: the rows.
        files: the Parquet files that it consists of, if it does.
        text: whether it is a text file.
    """

    def __init__(self, name: str, dataset: Any, files: list[str] | None = None, text: bool = False) -> None:
        self.name = name
        self.dataset = dataset
        # pandas writes its index to Parquet as a column, which is none of the table's.
        self.columns = [c for c in dataset.schema.names if not re.fullmatch(r"__index_level_\d+__", c)]
        self._files, self._text = files, text
        _check_names(name, self.columns)

    def type_of(self, column: str) -> str:
        """The Arrow type of a column, as text."""
        return str(self.dataset.schema.field(column).type)

    def batches(self, columns: list[str], known: list[str] | None = None) -> Iterator[Any]:
        """Record batches in the order of the rows.

        In a text file, what stands for a missing value becomes one in the ``known`` columns, by
        default in all; the others are left as they are.
        """
        known = columns if known is None else known
        with translated(self.name):
            for batch in self._pieces(columns):
                yield _with_missing(batch, known) if self._text else batch

    def _pieces(self, columns: list[str]) -> Iterator[Any]:
        if self._files is None:
            # Reading ahead is only memory when what is done with the rows is the slower part.
            yield from self.dataset.to_batches(
                columns=columns, batch_size=CHUNK, use_threads=False, batch_readahead=1, fragment_readahead=1
            )
            return
        from pyarrow import parquet

        for file in self._files:
            with parquet.ParquetFile(file, pre_buffer=False) as reader:
                for batch in reader.iter_batches(CHUNK, columns=columns, use_threads=False):
                    yield batch.select(columns)

    def count(self) -> int:
        """How many rows there are."""
        with translated(self.name):
            return int(self.dataset.count_rows())


def open_table(data: Any) -> Table:
    """A table from a path, a frame, an Arrow table or dataset, or an array."""
    arrow, datasets = _arrow()
    if isinstance(data, (str, os.PathLike)):
        return _open_path(Path(data))
    if isinstance(data, Table):
        return data
    if isinstance(data, datasets.Dataset):
        return Table("the dataset", data)
    if isinstance(data, (arrow.Table, arrow.RecordBatch)):
        return Table("the table", datasets.dataset(data))
    if isinstance(data, np.ndarray):
        return _from_array("the array", data)
    import narwhals

    try:
        frame = narwhals.from_native(data, eager_only=True)
    except TypeError:
        raise DataError(
            f"cannot read a table from {type(data).__name__}: give a path, a pandas or Polars frame, "
            "an Arrow table or a NumPy array"
        ) from None
    names = [str(name) for name in frame.columns]
    _check_names("the frame", names)
    with translated("the frame"):  # pandas' index comes after the columns, and is none of them
        table = frame.to_arrow().select(range(len(names))).rename_columns(names)
        return Table("the frame", datasets.dataset(table))


def _open_path(path: Path) -> Table:
    if not path.exists():
        raise DataError(f"there is no {path}")
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in (".parquet", ".pq"):
        return _open_parquet(path)
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty")
    if suffix == ".npy":
        try:
            return _from_array(str(path), np.load(path, mmap_mode="r", allow_pickle=False))
        except (ValueError, EOFError, OSError) as error:
            raise DataError(f"{path} is not an array of numbers: {_first_line(error)}") from error
    if suffix in (".csv", ".tsv", ".txt"):
        return _open_csv(path)
    raise DataError(f"cannot tell what {path} is: Sinuflow reads .csv, .tsv, .parquet and .npy files, and folders")


def _open_parquet(path: Path) -> Table:
    _, datasets = _arrow()
    if path.is_dir() and not any(path.rglob("*.parquet")):
        raise DataError(f"{path} is a folder without .parquet files")
    with translated(str(path)):
        files = sorted(map(str, path.rglob("*.parquet"))) if path.is_dir() else [str(path)]
        # Buffering ahead would keep all of a file in memory.
        options = datasets.ParquetFragmentScanOptions(pre_buffer=False)
        form = datasets.ParquetFileFormat(default_fragment_scan_options=options)
        root = {"partitioning": "hive", "partition_base_dir": str(path)} if path.is_dir() else {}
        dataset = datasets.dataset(files, format=form, **root)
        alike = all(fragment.physical_schema.equals(dataset.schema) for fragment in dataset.get_fragments())
        return Table(str(path), dataset, files if alike else None)


def _open_csv(path: Path) -> Table:
    arrow, datasets = _arrow()
    from pyarrow import csv

    with translated(str(path)):
        parse = csv.ParseOptions(delimiter=_separator(path), newlines_in_values=True)
        with csv.open_csv(path, parse_options=parse, read_options=csv.ReadOptions(block_size=1 << 20)) as reader:
            names = list(reader.schema.names)
        _check_names(str(path), names)
        if all(_is_number(name) for name in names):
            raise DataError(f"{path} has no header: its first line must name the columns, and holds {names[0]!r}")
        options = csv.ConvertOptions(column_types={name: arrow.string() for name in names}, strings_can_be_null=False)
        form = datasets.CsvFileFormat(parse_options=parse, convert_options=options)
        return Table(str(path), datasets.dataset(str(path), format=form), text=True)


def _separator(path: Path) -> str:
    """What separates the values: whatever the header has most of."""
    with path.open("rb") as file:
        start = file.read(65_536)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path} is not UTF-8 text: save it as UTF-8")
    header = start.splitlines()[0].decode("utf-8", errors="replace")
    return max(_SEPARATORS, key=header.count)


def _with_missing(batch: Any, names: list[str]) -> Any:
    arrow, _ = _arrow()
    from pyarrow import compute

    for name in names:
        i = batch.schema.get_field_index(name)
        array = batch.column(i)
        absent = compute.is_in(array, value_set=arrow.array(_MISSING, array.type))
        if absent.true_count:
            batch = batch.set_column(i, name, compute.if_else(absent, arrow.scalar(None, array.type), array))
    return batch


def _from_array(name: str, array: np.ndarray) -> Table:
    arrow, datasets = _arrow()
    if array.ndim != 2 or not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise DataError(f"{name} must hold numbers in rows and columns; it has shape {array.shape}, type {array.dtype}")
    if np.iscomplexobj(array):
        raise DataError(f"{name} holds complex numbers: split them into real and imaginary parts")
    native = array.dtype.newbyteorder("=")
    columns = [arrow.array(np.ascontiguousarray(array[:, i]).astype(native)) for i in range(array.shape[1])]
    table = arrow.table(columns, names=[f"x{i}" for i in range(array.shape[1])])
    return Table(name, datasets.dataset(table))


def _check_names(name: str, columns: list[str]) -> None:
    if not columns:
        raise DataError(f"{name} has no columns")
    twice = sorted({c for c in columns if columns.count(c) > 1})
    if twice:
        raise DataError(f"{name} has more than one column called {', '.join(map(repr, twice))}: rename them")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Turn what Arrow and the system say into one line about the table."""
    arrow, _ = _arrow()
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text: save it as UTF-8") from error
    except (arrow.ArrowException, OSError) as error:
        if "UTF8" in str(error):
            raise DataError(f"{name} is not UTF-8 text: save it as UTF-8") from error
        text = _first_line(error)
        if "Empty CSV" in text:
            raise DataError(f"{name} is empty") from error
        raise DataError(f"cannot read {name}: {text}") from error


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.split("Invalid: ")[-1].splitlines()[0][:300]  # Arrow says first where it noticed, then what


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.dataset
    except ImportError:
        raise SinuflowError("tables need pyarrow and narwhals: pip install 'sinuflow[cli]'") from None
    return pyarrow, pyarrow.dataset
