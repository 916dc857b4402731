"""The split of a table into training, validation and test rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

Ids = np.ndarray[Any, np.dtype[np.int64]]

#: The share of rows for validation, and again for the test; small tables hold out more, for useful estimates.
_SHARE, _SMALL_SHARE, _SMALL = 0.1, 0.15, 1_000


@dataclass(frozen=True)
class Split:
    """Row numbers of a table with ``rows`` rows, in increasing order; all other rows are for training."""

    rows: int
    validation: Ids
    test: Ids
    unused: Ids

    @cached_property
    def train(self) -> Ids:
        """The training rows, computed on first access: they may be many."""
        return _others(self.rows, *self.stored().values())

    @property
    def held_out(self) -> Ids:
        """The validation and test rows."""
        return np.sort(np.concatenate([self.validation, self.test]))

    def stored(self) -> dict[str, Ids]:
        """The arrays that define the split."""
        return {"validation": self.validation, "test": self.test, "unused": self.unused}

    def check(self) -> None:
        """Raise a ValueError unless this is a split that :func:`split_rows` could have made."""
        parts = self.stored()
        for name, ids in parts.items():
            if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= self.rows or not bool((ids[1:] > ids[:-1]).all())):
                raise ValueError(f"the {name} rows are not increasing row numbers of a table of {self.rows} rows")
        held = _held_out(self.rows - len(self.unused))
        if len(self.validation) != held or len(self.test) not in (0, held):
            raise ValueError(f"the split does not belong to a table of {self.rows} rows")
        for one, other in combinations(parts, 2):
            if len(np.intersect1d(parts[one], parts[other], assume_unique=True)):
                raise ValueError(f"some rows are both {one} and {other}")


def split_rows(usable: Ids, rows: int, seed: int, test: bool = True) -> Split:
    """Divide the usable rows of a table at random, reproducibly by seed; without ``test``, there are no test rows."""
    order = np.random.default_rng(seed).permutation(len(usable))
    held = _held_out(len(usable))
    validation, testing = order[:held], order[held : 2 * held if test else held]
    return Split(rows, np.sort(usable[validation]), np.sort(usable[testing]), _others(rows, usable))


def folds(usable: Ids, rows: int, seed: int, count: int) -> list[Split]:
    """Splits whose validation rows are the parts of a random partition of the usable rows."""
    parts, unused = np.array_split(np.random.default_rng([seed, 2]).permutation(usable), count), _others(rows, usable)
    return [Split(rows, np.sort(part), part[:0], unused) for part in parts]


def _others(rows: int, *parts: Ids) -> Ids:
    """The row numbers that are in none of the parts."""
    free = np.ones(rows, dtype=bool)
    for ids in parts:
        free[ids] = False
    return np.flatnonzero(free)


def _held_out(rows: int) -> int:
    return max(1, round(rows * (_SMALL_SHARE if rows < _SMALL else _SHARE)))
