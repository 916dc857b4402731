"""Parquet files as one Arrow dataset with unchanged cells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..errors import DataError
from .arrow_errors import arrow_modules, translated
from .names import check_names

#: Columns that pandas adds for its index.
INDEX_COLUMN = re.compile(r"__index_level_\d+__")


def parquet_dataset(path: Path) -> tuple[Any, list[str] | None]:
    """The dataset of a file or folder, and its files if all have its schema.

    Partition keys (``key=value`` folders) are strings: ``01`` is not 1. A column of the files takes precedence.
    """
    arrow, datasets = arrow_modules()
    if path.is_dir() and not any(path.rglob("*.parquet")):
        raise DataError(f"{path} is a folder without .parquet files")
    with translated(str(path)):
        files = sorted(map(str, path.rglob("*.parquet"))) if path.is_dir() else [str(path)]
        # Pre-buffering would hold the whole file in memory.
        options = datasets.ParquetFragmentScanOptions(pre_buffer=False)
        form = datasets.ParquetFileFormat(default_fragment_scan_options=options)
        system = arrow.fs.LocalFileSystem()
        schemas = [form.make_fragment(file, filesystem=system).physical_schema for file in files]
        _check_alike(files, schemas)
        schema = arrow.unify_schemas(schemas)
        keys = [key for key in _partition_keys(path, files) if key not in schema.names] if path.is_dir() else []
        partitions = arrow.schema([(key, arrow.string()) for key in keys])
        for field in partitions:
            schema = schema.append(field)
        root = {"partitioning": datasets.partitioning(partitions, flavor="hive"), "partition_base_dir": str(path)}
        dataset = datasets.dataset(files, schema=schema, format=form, filesystem=system, **(root if keys else {}))
        return dataset, files if all(other.equals(schema) for other in schemas) else None


def _check_alike(files: list[str], schemas: list[Any]) -> None:
    """Refuse files whose columns differ: Arrow would convert cells and omit columns.

    The order of columns may differ, and columns of type null have nothing to convert.
    """
    remedy = "write all files of the folder with the same columns and types"
    columns = {name for name in schemas[0].names if not INDEX_COLUMN.fullmatch(name)}
    types: dict[str, tuple[Any, str]] = {}
    for file, schema in zip(files, schemas, strict=True):
        check_names(file, schema.names)
        present = {name for name in schema.names if not INDEX_COLUMN.fullmatch(name)}
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


def _partition_keys(root: Path, files: list[str]) -> list[str]:
    """The keys of ``key=value`` folders, in the order of the path."""
    folders = (part for file in files for part in Path(file).relative_to(root).parts[:-1])
    return list(dict.fromkeys(unquote(part.partition("=")[0]) for part in folders if "=" in part))
