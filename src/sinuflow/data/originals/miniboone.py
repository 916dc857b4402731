"""MINIBOONE: what a detector saw of electron neutrinos."""

from __future__ import annotations

from pathlib import Path

from ...errors import DataError
from ..benchmarks import Splits
from .common import Array, find_file, read_numbers, repeats_smallest, standardised, tenths

#: Where the first column is less, nothing was measured: the file marks such rows by a number far below all others.
_MEASURED = -100.0


def prepare_miniboone(original: Path) -> Splits:
    """From ``MiniBooNE_PID.txt``."""
    return split_miniboone(read_signal(find_file(original, "MiniBooNE_PID.txt")))


def read_signal(path: Path) -> Array:
    """The signal, which comes before the background: the first line says how many rows there are of each."""
    with path.open(encoding="utf-8", errors="replace") as file:
        counts = file.readline().split()
    if len(counts) != 2 or not all(count.isdigit() for count in counts):
        raise DataError(f"the first line of {path} must hold two numbers of rows: download MiniBooNE_PID.txt again")
    table = read_numbers(path, str(path), skiprows=1, max_rows=int(counts[0]))
    if len(table) < int(counts[0]):
        raise DataError(f"{path} ends after {len(table)} of {counts[0]} rows of signal: download it again")
    return table


def split_miniboone(table: Array) -> Splits:
    """Rows without a measurement and columns that repeat a value left out; tenths; standardised by train and val.

    The rows stay in the order of the file. Whether the authors kept it is not recorded; the numbers of rows and
    columns are theirs.

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
    train, val, test = tenths(table)
    return standardised((train, val, test), by=table[: len(table) - len(test)])
