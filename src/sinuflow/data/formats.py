"""Opening NumPy arrays, frames, Arrow and Parquet files, with errors in one line."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from ..errors import DataError, SinuflowError
from .columns import quoted_list

#: Arrow's names of compressions, by suffix.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
#: How Arrow describes a compressed stream that it cannot read.
_DAMAGED = re.compile("compressed stream|inflate failed|decompress failed")
#: The array of a .npz file that is a table, if it holds several.
_ROWS = ("X", "x", "data")
#: Columns that pandas adds to Parquet files for its index.
INDEX_COLUMN = re.compile(r"__index_level_\d+__")


def import_arrow() -> Any:
    """``pyarrow`` with its datasets and file systems, imported on first use."""
    try:
        import pyarrow
        import pyarrow.dataset
        import pyarrow.fs
    except ImportError:
        raise SinuflowError("tables need pyarrow and narwhals: pip install 'sinuflow[cli]'") from None
    return pyarrow


@contextmanager
def translated(name: str) -> Iterator[None]:
    """Translate errors of Arrow and the operating system into a DataError about the table ``name``."""
    arrow = import_arrow()
    try:
        yield
    except (UnicodeError, arrow.ArrowException, OSError, OverflowError) as error:
        if isinstance(error, UnicodeError) or "UTF8" in str(error):
            raise DataError(f"{name} is not UTF-8 text: save it as UTF-8") from error
        text = first_line(error)
        if "Empty CSV" in text:
            raise DataError(f"{name} is empty") from error
        if "straddling" in text:
            raise DataError(f"{name} has a row that is longer than 1 MiB, or a quote that is never closed") from error
        if _DAMAGED.search(text):
            raise DataError(f"{name} is cut off, damaged, or not compressed as its name says ({text})") from error
        raise DataError(f"cannot read {name}: {text}") from error


def open_stream(path: Path) -> Any:
    """The bytes of a file as a stream, decompressed if its suffix is one of ``COMPRESSIONS``."""
    arrow = import_arrow()
    return arrow.input_stream(os.path.abspath(path), compression=COMPRESSIONS.get(path.suffix.lower()))


def first_line(error: Exception) -> str:
    """The problem that an error of Arrow, a database or the operating system describes."""
    text = " ".join(map(str, error.args)) if not isinstance(error, OSError) else str(error)
    text = text.strip() or type(error).__name__
    return text.split("Invalid: ")[-1].splitlines()[0][:300]  # Arrow puts the place before the problem


def check_names(table: str, columns: list[str]) -> None:
    """Refuse a table without columns, or with two of the same name."""
    if not columns:
        raise DataError(f"{table} has no columns")
    duplicates = sorted(name for name, count in Counter(columns).items() if count > 1)
    if duplicates:
        raise DataError(f"{table} has more than one column called {quoted_list(duplicates)}: rename them")


def open_array(path: Path, remedy: str) -> np.ndarray[Any, Any]:
    """Memory-map a ``.npy`` file; ``remedy`` is for the message if it is missing or damaged."""
    if not os.path.isfile(path):  # Path.is_file raises for names that are too long
        raise DataError(f"there is no {path}: {remedy}")
    try:
        # Memory-mapping loads no pickles and trusts no size beyond the file.
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy parses the header with Python's parser, which raises many types
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} is not an array of numbers ({reason}): {remedy}") from error


def open_npz(path: Path) -> np.ndarray[Any, Any]:
    """The array of a ``.npz`` file that holds rows: the only one, or the one called X, x or data."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            names = arrays.files if len(arrays.files) == 1 else [name for name in _ROWS if name in arrays.files]
            if len(names) != 1:
                raise DataError(
                    f"{path} holds the arrays {quoted_list(arrays.files)}: call the one with the rows 'X', or save it "
                    "alone, with numpy.save"
                )
            return np.asarray(arrays[names[0]])
    except DataError:
        raise
    except Exception as error:  # of NumPy, zipfile or zlib
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} is not an archive of arrays ({reason}): write it with numpy.savez") from error


def ipc_dataset(path: Path) -> Any:
    """The dataset of an Arrow or Feather file, or of a stream of Arrow messages, which is held in memory."""
    arrow = import_arrow()
    with translated(str(path)), arrow.memory_map(os.path.abspath(path)) as file:
        if file.read(6) != b"ARROW1":
            file.seek(0)
            with arrow.ipc.open_stream(file) as reader:
                table = reader.read_all()
            table.validate(full=True)
            return arrow.dataset.dataset(table)
        with arrow.ipc.open_file(file) as reader:
            for i in range(reader.num_record_batches):
                reader.get_batch(i).validate(full=True)  # offsets of a damaged file may point anywhere
        return arrow.dataset.dataset(os.path.abspath(path), format="ipc")


def array_to_arrow(name: str, array: np.ndarray) -> Any:
    """A two-dimensional array as an Arrow table with the columns x0, x1, ..."""
    arrow = import_arrow()
    if array.ndim != 2 or not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise DataError(f"{name} must hold numbers in rows and columns; it has shape {array.shape}, type {array.dtype}")
    if np.iscomplexobj(array):
        raise DataError(f"{name} holds complex numbers: split them into real and imaginary parts")
    native = np.dtype(np.float64) if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # overflows become infinite, which is refused later
        columns = [arrow.array(np.ascontiguousarray(array[:, i]).astype(native)) for i in range(array.shape[1])]
    return arrow.table(columns, names=[f"x{i}" for i in range(array.shape[1])])


def frame_to_arrow(data: Any) -> Any:
    """A frame, without pandas' index, or the result of a query as an Arrow table."""
    arrow = import_arrow()
    import narwhals

    if narwhals.dependencies.is_into_series(data):
        raise DataError(f"cannot read a table from {type(data).__name__}: give a frame, such as that of its to_frame()")
    if narwhals.dependencies.is_pandas_dataframe(data):
        check_names("the frame", [str(name) for name in data.columns])
        # Arrow lacks sparse dtypes and long double.
        dense = {name: dtype.subtype for name, dtype in data.dtypes.items() if type(dtype).__name__ == "SparseDtype"}
        double = {name: np.dtype(np.float64) for name, dtype in data.dtypes.items() if dtype == np.longdouble}
        data = data.astype(dense | double) if dense or double else data
    try:
        if narwhals.dependencies.is_polars_lazyframe(data):
            data = data.collect()
        if not narwhals.dependencies.is_into_dataframe(data) and hasattr(data, "__arrow_c_stream__"):
            return arrow.table(data)
    except Exception as error:  # of the library that runs the query
        raise DataError(f"cannot read the {type(data).__name__}: {first_line(error)}") from error
    try:
        frame = narwhals.from_native(data, eager_only=True)
    except TypeError:
        raise DataError(
            f"cannot read a table from {type(data).__name__}: give a path, a pandas or Polars frame, "
            "an Arrow table, a DuckDB relation or a NumPy array"
        ) from None
    names = [str(name) for name in frame.columns]
    try:
        return frame.to_arrow().select(range(len(names))).rename_columns(names)  # the index follows the columns
    except Exception as error:  # of the frame's library or Arrow, which share no base class
        raise DataError(
            f"{_unreadable(frame, names)} cannot be read ({first_line(error)}): convert it to numbers or to strings, "
            "or remove it from the frame"
        ) from error


def _unreadable(frame: Any, names: list[str]) -> str:
    """The first column that Arrow cannot convert."""
    for i, name in enumerate(names):
        try:
            frame[:, [i]].to_arrow()
        except Exception:  # as above
            return f"column {name!r} of the frame"
    return "the frame"


def parquet_dataset(path: Path) -> tuple[Any, list[str] | None]:
    """The dataset of a file or folder, and its files if all have its schema.

    Partition keys (``key=value`` folders) are strings: ``01`` is not 1. A column of the files takes precedence.
    """
    arrow = import_arrow()
    if path.is_dir() and not any(path.rglob("*.parquet")):
        raise DataError(f"{path} is a folder without .parquet files")
    with translated(str(path)):
        files = sorted(map(str, path.rglob("*.parquet"))) if path.is_dir() else [str(path)]
        # Pre-buffering would hold the whole file in memory.
        options = arrow.dataset.ParquetFragmentScanOptions(pre_buffer=False)
        form = arrow.dataset.ParquetFileFormat(default_fragment_scan_options=options)
        system = arrow.fs.LocalFileSystem()
        schemas = [form.make_fragment(file, filesystem=system).physical_schema for file in files]
        _check_alike(files, schemas)
        schema = arrow.unify_schemas(schemas)
        folders = [part for file in files for part in Path(file).relative_to(path).parts[:-1] if "=" in part]
        keys = dict.fromkeys(unquote(folder.partition("=")[0]) for folder in folders)  # in the order of the path
        partitions = arrow.schema([(key, arrow.string()) for key in keys if key not in schema.names])
        schema = arrow.schema([*schema, *partitions], schema.metadata)
        root = {"partitioning": arrow.dataset.partitioning(partitions, flavor="hive"), "partition_base_dir": str(path)}
        place = root if len(partitions) else {}
        dataset = arrow.dataset.dataset(files, schema=schema, format=form, filesystem=system, **place)
        return dataset, files if all(other.equals(schema) for other in schemas) else None


def _check_alike(files: list[str], schemas: list[Any]) -> None:
    """Refuse files whose columns differ: Arrow would convert cells and omit columns.

    The order of columns may differ, and columns of type null have nothing to convert.
    """
    remedy = "write all files of the folder with the same columns and types"
    types: dict[str, tuple[Any, str]] = {}
    for file, schema in zip(files, schemas, strict=True):
        check_names(file, schema.names)
        columns, present = ({n for n in s.names if not INDEX_COLUMN.fullmatch(n)} for s in (schemas[0], schema))
        for absent, one, other in ((columns - present, file, files[0]), (present - columns, files[0], file)):
            if absent:
                raise DataError(f"{one} has no column {min(absent)!r}, but {other} has one: {remedy}")
        for field in schema:
            if str(field.type) == "null":
                continue
            expected, first = types.setdefault(field.name, (field.type, file))
            if field.type != expected:
                raise DataError(
                    f"column {field.name!r} holds {expected} in {first}, but {field.type} in {file}: {remedy}"
                )
