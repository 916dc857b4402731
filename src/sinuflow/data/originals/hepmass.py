"""HEPMASS: simulated collisions in which a new particle of mass 1000 was made."""

from __future__ import annotations

from pathlib import Path

from ...errors import DataError
from ..benchmarks import Splits
from .common import Array, find_file, last_tenth, read_numbers, repeats_smallest, standardised

#: The published set is made of the first tenth of each file.
_TRAIN_ROWS, _TEST_ROWS = 700_000, 350_000
#: The label and 26 features. Rows have 27, but the header of the file to train on names one less, and so the last
#: one is not in the published set.
_COLUMNS = range(27)


def prepare_hepmass(original: Path) -> Splits:
    """From a folder with ``1000_train.csv.gz`` and ``1000_test.csv.gz``, unpacked or not."""
    if original.is_file():
        original = original.parent
    train, test = (
        signal(read_numbers(path, str(path), delimiter=",", skiprows=1, usecols=_COLUMNS, max_rows=rows))
        for name, rows in (("1000_train.csv", _TRAIN_ROWS), ("1000_test.csv", _TEST_ROWS))
        for path in [find_file(original, f"{name}.gz", name)]
    )
    return split_hepmass(train, test)


def signal(table: Array) -> Array:
    """The rows whose label, in the first column, is 1; without the label.

    Example:
        >>> import numpy as np
        >>> signal(np.array([[1.0, 5.0], [0.0, 6.0], [1.0, 7.0]])).tolist()
        [[5.0], [7.0]]
    """
    found: Array = table[table[:, 0] == 1, 1:]
    if not len(found):
        raise DataError("no row has the label 1: the file is not the published one, download it again")
    return found


def split_hepmass(train: Array, test: Array) -> Splits:
    """Columns of few values left out; the last tenth validates; standardised by train and val.

    Example:
        >>> import numpy as np
        >>> random = np.random.default_rng(0)
        >>> train, test = random.normal(size=(50, 2)), random.normal(size=(20, 2))
        >>> train[:, 1] = np.arange(50) % 4  # a number of jets
        >>> [part.shape for part in split_hepmass(train, test)]
        [(45, 1), (5, 1), (20, 1)]
    """
    kept = ~repeats_smallest(train)
    train, test = train[:, kept], test[:, kept]
    return standardised((*last_tenth(train), test), by=train, ddof=1)
