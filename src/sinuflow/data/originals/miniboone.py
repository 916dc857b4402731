"""MINIBOONE: electron neutrinos in a detector."""

from __future__ import annotations

from pathlib import Path

from ...errors import DataError
from ..datasets import Splits
from .common import Array, find_file, read_table, repeats_smallest, split_tenths, standardize

#: Rows without a measurement have a first column far below this.
_MEASURED = -100.0


def prepare_miniboone(original: Path) -> Splits:
    """From ``MiniBooNE_PID.txt``."""
    return split_miniboone(read_signal(find_file(original, "MiniBooNE_PID.txt")))


def read_signal(path: Path) -> Array:
    """The rows of signal, which come before those of background; the first line holds both numbers of rows."""
    with path.open(encoding="utf-8", errors="replace") as file:
        counts = file.readline().split()
    if len(counts) != 2 or not all(count.isdigit() for count in counts):
        raise DataError(f"the first line of {path} must hold two numbers of rows: download MiniBooNE_PID.txt again")
    table = read_table(path, str(path), skiprows=1, max_rows=int(counts[0]))
    if len(table) < int(counts[0]):
        raise DataError(f"{path} ends after {len(table)} of {counts[0]} rows of signal: download it again")
    return table


def split_miniboone(table: Array) -> Splits:
    """Drop rows without a measurement and columns that repeat their smallest value; standardize by train and val.

    The rows are split into tenths in the order of the file, because no other order is recorded.

    Example:
        >>> import numpy as np
        >>> table = np.random.default_rng(0).normal(size=(101, 3))
        >>> table[7] = -999.0
        >>> [part.shape for part in split_miniboone(table)]
        [(81, 3), (9, 3), (10, 3)]
    """
    table = table[table[:, 0] >= _MEASURED]
    if not len(table):
        raise DataError("no row holds a measurement: the file is not the published one, download it again")
    table = table[:, ~repeats_smallest(table)]
    train, val, test = split_tenths(table)
    return standardize((train, val, test), by=table[: -len(test)])
