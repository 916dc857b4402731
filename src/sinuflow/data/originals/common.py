"""Steps that recipes share: finding and reading files, splitting, standardizing."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataError
from ..datasets import Splits

Array = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def find_file(original: Path, *names: str) -> Path:
    """The file itself, or the first of these names that exists in the folder.

    Example:
        >>> find_file(Path("nowhere"), "data.txt")
        Traceback (most recent call last):
        sinuflow.errors.DataError: there is no nowhere: give the published file data.txt, or its folder
    """
    if original.is_dir():
        for name in names:
            if (original / name).is_file():
                return original / name
        raise DataError(f"there is no {' or '.join(names)} in {original}: give the folder of the unpacked files")
    if not original.is_file():
        raise DataError(f"there is no {original}: give the published file {names[0]}, or its folder")
    return original


def read_table(text: Path | Iterable[str], name: str, **options: Any) -> Array:
    """The numbers of a text file, compressed by gzip or not, or of its lines.

    Args:
        text: the file or its lines.
        name: for messages.
        options: of :func:`numpy.loadtxt`.

    Example:
        >>> read_table(["1 2", " 3  4 "], "two lines")
        array([[1., 2.],
               [3., 4.]])
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an empty table is an error below, not a warning
            table = np.loadtxt(text, ndmin=2, encoding="utf-8", **options)
    except (ValueError, IndexError, EOFError, OSError, zlib.error) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].split(";")[0]
        raise DataError(f"{name} is not the published file: {reason}") from error
    if not table.size:
        raise DataError(f"{name} has no rows of numbers: download it again")
    return table


def split_tenths(table: Array) -> tuple[Array, Array, Array]:
    """Train, val and test: the last tenth is the test split, the last tenth of the rest the validation split.

    Example:
        >>> [len(part) for part in split_tenths(np.zeros((200, 1)))]
        [162, 18, 20]
    """
    rest, test = last_tenth(table)
    return *last_tenth(rest), test


def last_tenth(table: Array) -> tuple[Array, Array]:
    """All but the last tenth of the rows, and the last tenth."""
    at = len(table) - len(table) // 10
    if at == len(table):
        raise DataError(f"{len(table)} rows cannot be split into tenths: the file is incomplete, download it again")
    return table[:at], table[at:]


def standardize(parts: Iterable[Array], by: Array, ddof: int = 0) -> Splits:
    """Subtract the column means of ``by`` and divide by its standard deviations; float32.

    Example:
        >>> table = np.array([[1.0], [3.0]])
        >>> standardize([table, table, table + 2], by=table).test.tolist()
        [[1.0], [3.0]]
    """
    with np.errstate(invalid="ignore"):  # infinities are refused as well
        mean, std = by.mean(0), by.std(0, ddof=ddof)
    if not (std > 0).all():
        raise DataError("a column is constant, or not finite: the file is not the published one")
    return Splits(*(((part - mean) / std).astype(np.float32) for part in parts))


def repeats_smallest(table: Array, limit: int = 5) -> Mask:
    """Columns in which the smallest value occurs more than ``limit`` times.

    The published preparation removes columns with "too many reoccurring values", but it counts the smallest value only:
    counts and censored values are removed, values that recur in the middle stay.

    Example:
        >>> table = np.stack([np.arange(8.0), np.arange(8.0) // 6, np.minimum(np.arange(8.0), 1)], 1)
        >>> repeats_smallest(table).tolist()
        [False, True, False]
    """
    repeats: Mask = (table == table.min(0)).sum(0) > limit
    return repeats
