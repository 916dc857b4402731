"""Loading models, and writing outputs without losing existing files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import DataError, StorageError
from ..files import lock_beside, locked, replacing, require_regular, require_writable
from ..flows.flow import Flow
from ..models.image import ImageModel
from ..models.loading import load
from ..models.table import TableModel
from ..signals import shielded
from ..training.fit import find_device

#: Formats of rows.
ROW_FORMATS = (".csv", ".parquet")
#: Parameters of several commands.
ModelFile = Annotated[Path, typer.Argument(help="A model file, from `sinuflow fit`.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]


def load_fitted(path: Path) -> TableModel | ImageModel:
    """A fitted model of a table or of images, the latter on a GPU if there is one."""
    model = load(path)
    if isinstance(model, Flow):
        raise StorageError(f"{path} holds a bare flow, without columns: create models with `sinuflow fit`")
    return model.to(find_device("auto")) if isinstance(model, ImageModel) else model


def claim_output(
    ctx: typer.Context, path: Path, force: bool, inputs: Iterable[Path | None], formats: tuple[str, ...] | None = None
) -> None:
    """Check an output, also against the inputs, before any work is done, and lock it until the command ends."""
    if formats is not None and path.suffix.lower() not in formats:
        raise DataError(f"cannot write {path}: the name must end in {' or '.join(formats)}")
    require_regular(path)
    for source in inputs:
        if source is not None and _is_same(path, source):
            raise StorageError(f"cannot write {path}: it is also {source}, and these must be different files")
    if path.exists() and not force:
        raise StorageError(f"{path} exists already: replace it with --force, or choose another name")
    folder = path.parent
    if not folder.is_dir():
        raise StorageError(f"cannot write {path}: there is no folder {folder}")
    require_writable(path)
    with shielded():
        ctx.with_resource(locked(lock_beside(path), path))


def _is_same(output: Path, source: Path) -> bool:
    """Whether replacing ``output`` would change ``source``, or a file in it if that is a folder, through links too."""
    if os.path.realpath(output) == os.path.realpath(source):
        return True
    if not output.exists():
        return False
    visited, paths = set[str](), [str(source)]
    while paths:
        path = paths.pop()
        with suppress(OSError):
            if os.path.samefile(path, output):
                return True
            if os.path.isdir(path) and (real := os.path.realpath(path)) not in visited:
                visited.add(real)
                paths += [entry.path for entry in os.scandir(path)]
    return False


def write_rows(path: Path, batches: Iterable[Any], spreadsheet_safe: bool = False) -> int:
    """Write record batches to a CSV or Parquet file, completely or not at all, and return the number of rows."""
    from pyarrow import ArrowException, parquet

    from .csv_writer import CsvWriter

    rows, batches = 0, iter(batches)
    try:
        first = next(batches, None)
        if first is None:
            raise DataError("there are no rows, so nothing is written")
        with replacing(path) as temporary:
            is_parquet, schema = path.suffix.lower() == ".parquet", first.schema
            writer: Any = parquet.ParquetWriter if is_parquet else partial(CsvWriter, spreadsheet_safe=spreadsheet_safe)
            with closing(writer(temporary, schema)) as writer:
                for batch in chain([first], batches):
                    writer.write_batch(batch if batch.schema == schema else batch.cast(schema))
                    rows += len(batch)
    except ArrowException as error:
        raise DataError(f"cannot write {path}: {str(error).splitlines()[0]}") from error
    return rows
