"""Inputs that must be there, and outputs that must not be lost."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import DataError, StorageError
from ..flow import SinusoidalFlow
from ..images import ImageModel
from ..loading import load
from ..storage import replacing
from ..tables import TableModel
from ..training.fit import find_device
from .csv_writer import CsvWriter

#: What rows can be written as.
_FORMATS = (".csv", ".parquet")


def load_fitted(path: Path) -> TableModel | ImageModel:
    """A fitted table or fitted images, the latter on a GPU if there is one."""
    model = load(path)
    if isinstance(model, SinusoidalFlow):
        raise StorageError(f"{path} holds a bare flow, without a table's columns: make models with `sinuflow fit`")
    return model.to(find_device("auto")) if isinstance(model, ImageModel) else model


def load_table_model(path: Path) -> TableModel:
    """A fitted table, and nothing else."""
    model = load_fitted(path)
    if isinstance(model, ImageModel):
        raise StorageError(f"{path} holds a model of images, and this is about tables")
    return model


def check_output(path: Path, force: bool, formats: tuple[str, ...] | None = None) -> None:
    """Refuse an output before any work is done for it."""
    if formats is not None and path.suffix.lower() not in formats:
        raise DataError(f"cannot write {path}: the name must end in {' or '.join(formats)}")
    if path.is_dir():
        raise StorageError(f"cannot write {path}: it is a folder")
    if path.exists() and not force:
        raise StorageError(f"{path} exists already: replace it with --force, or choose another name")
    folder = path.parent
    if not folder.is_dir():
        raise StorageError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise StorageError(f"cannot write {path}: no permission to write in {folder}")


def check_rows_output(path: Path, force: bool) -> None:
    """The same for rows, which are written as CSV or Parquet."""
    check_output(path, force, _FORMATS)


def write_rows(path: Path, batches: Iterable[Any], spreadsheet_safe: bool = False) -> int:
    """Write record batches to a CSV or Parquet file, all of them or nothing; how many rows there were.

    ``spreadsheet_safe`` changes the texts of a CSV file, as :class:`CsvWriter` describes.
    """
    from pyarrow import ArrowException

    rows = 0
    with replacing(path) as temporary:
        writer = schema = None
        try:
            for batch in batches:
                if writer is None:
                    writer = _writer(path, temporary, batch.schema, spreadsheet_safe)
                writer.write_batch(batch.cast(schema) if schema and batch.schema != schema else batch)
                schema = schema or batch.schema
                rows += len(batch)
            if writer is None:
                raise DataError("there are no rows, so nothing is written")
        except ArrowException as error:
            raise DataError(f"cannot write {path}: {str(error).splitlines()[0]}") from error
        finally:
            if writer is not None:
                writer.close()
    return rows


def _writer(path: Path, temporary: str, schema: Any, spreadsheet_safe: bool) -> Any:
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet

        return parquet.ParquetWriter(temporary, schema)
    return CsvWriter(temporary, schema, spreadsheet_safe)
