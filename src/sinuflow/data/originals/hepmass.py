"""HEPMASS: simulated particle collisions that produce a particle of mass 1000."""

from __future__ import annotations

from pathlib import Path

from ...errors import DataError
from ..datasets import Splits
from .common import Array, find_file, last_tenth, read_table, repeats_smallest, standardize

#: The published dataset uses the first tenth of each file.
_TRAIN_ROWS, _TEST_ROWS = 700_000, 350_000
#: The label and 26 of 27 features: the header of the training file lacks the last name, and the dataset the column.
_COLUMNS = range(27)


def prepare_hepmass(original: Path) -> Splits:
    """From a folder with ``1000_train.csv.gz`` and ``1000_test.csv.gz``, compressed or not."""
    if original.is_file():
        original = original.parent
    train, test = (
        signal(read_table(path, str(path), delimiter=",", skiprows=1, usecols=_COLUMNS, max_rows=rows))
        for name, rows in (("1000_train.csv", _TRAIN_ROWS), ("1000_test.csv", _TEST_ROWS))
        for path in [find_file(original, f"{name}.gz", name)]
    )
    return split_hepmass(train, test)


def signal(table: Array) -> Array:
    """The features of the rows with label 1, which is the first column.

    Example:
        >>> import numpy as np
        >>> signal(np.array([[1.0, 5.0], [0.0, 6.0], [1.0, 7.0]])).tolist()
        [[5.0], [7.0]]
    """
    rows: Array = table[table[:, 0] == 1, 1:]
    if not len(rows):
        raise DataError("no row has the label 1: the file is not the published one, download it again")
    return rows


def split_hepmass(train: Array, test: Array) -> Splits:
    """Drop columns that repeat their smallest value; the last tenth of ``train``, which standardizes, is val.

    Example:
        >>> import numpy as np
        >>> random = np.random.default_rng(0)
        >>> train, test = random.normal(size=(50, 2)), random.normal(size=(20, 2))
        >>> train[:, 1] = np.arange(50) % 4  # a number of jets
        >>> [part.shape for part in split_hepmass(train, test)]
        [(45, 1), (5, 1), (20, 1)]
    """
    columns = ~repeats_smallest(train)
    train, test = train[:, columns], test[:, columns]
    return standardize((*last_tenth(train), test), by=train, ddof=1)
