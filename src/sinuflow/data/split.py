"""The split of a table into training, validation and test rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Ids = np.ndarray[Any, np.dtype[np.int64]]

#: The share of rows for validation, and again for the test.
_SHARE = 0.1
#: Tables with fewer rows hold out more, for estimates that mean something.
_SMALL, _SMALL_SHARE = 1_000, 0.15
#: Row numbers that are compared at a time, to bound memory.
_CHUNK = 1 << 20


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
        free = np.ones(self.rows, dtype=bool)
        for ids in (self.validation, self.test, self.unused):
            free[ids] = False
        return np.flatnonzero(free)

    def __iter__(self) -> Iterator[Ids]:
        return iter((self.train, self.validation, self.test))

    def stored(self) -> dict[str, Ids]:
        """The arrays that define the split."""
        return {"validation": self.validation, "test": self.test, "unused": self.unused}

    def check(self) -> None:
        """Raise a ValueError unless this is a split that :func:`split_rows` could have made."""
        parts = self.stored()
        for name, ids in parts.items():
            if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= self.rows or not bool((ids[1:] > ids[:-1]).all())):
                raise ValueError(f"the {name} rows are not increasing row numbers of a table of {self.rows} rows")
        held = held_out(self.rows - len(self.unused))
        if len(self.validation) != held or len(self.test) not in (0, held):
            raise ValueError(f"the split does not belong to a table of {self.rows} rows")
        for one, other in (("validation", "test"), ("validation", "unused"), ("test", "unused")):
            if _overlap(parts[one], parts[other]):
                raise ValueError(f"some rows are both {one} and {other}")


def split_rows(usable: Ids, rows: int, seed: int, test: bool = True) -> Split:
    """Divide the usable rows of a table at random, reproducibly by seed; without ``test``, there are no test rows.

    Example:
        >>> split = split_rows(np.arange(2000), rows=2000, seed=0)
        >>> len(split.train), len(split.validation), len(split.test)
        (1600, 200, 200)
    """
    order = np.random.default_rng(seed).permutation(len(usable))
    held = held_out(len(usable))
    validation, testing = order[:held], order[held : 2 * held if test else held]
    unused = np.ones(rows, dtype=bool)
    unused[usable] = False
    return Split(rows, np.sort(usable[validation]), np.sort(usable[testing]), np.flatnonzero(unused))


def held_out(rows: int) -> int:
    """The number of validation rows, and of test rows, of a table with so many usable rows."""
    return max(1, round(rows * (_SMALL_SHARE if rows < _SMALL else _SHARE)))


def _overlap(ids: Ids, others: Ids) -> bool:
    """Whether two increasing sequences share an entry."""
    if not len(ids):
        return False
    for start in range(0, len(others), _CHUNK):
        part = others[start : start + _CHUNK]
        places = np.searchsorted(ids, part).clip(max=len(ids) - 1)
        if bool((ids[places] == part).any()):
            return True
    return False
