"""Which rows are trained on, which are watched, and which are kept for the end."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Ids = np.ndarray[Any, np.dtype[np.int64]]

#: The share of rows for validation, and again for the test.
_SHARE = 0.1
#: Small tables need more of them to tell anything.
_SMALL, _SMALL_SHARE = 1_000, 0.15


class Split(NamedTuple):
    """Row numbers, each in increasing order."""

    train: Ids
    validation: Ids
    test: Ids

    def stored(self, rows: int) -> dict[str, Ids]:
        """What tells the split of a table of so many rows: all but the training rows, which are the rest."""
        used = np.concatenate(self)
        unused = np.setdiff1d(np.arange(rows), used, assume_unique=True)
        return {"validation": self.validation, "test": self.test, "unused": unused}

    @classmethod
    def restored(cls, rows: int, validation: Ids, test: Ids, unused: Ids) -> Split:
        """The split that :meth:`stored` told."""
        rest = np.concatenate([validation, test, unused])
        return cls(np.setdiff1d(np.arange(rows), rest, assume_unique=True), validation, test)


def split_rows(usable: Ids, seed: int, test: bool = True) -> Split:
    """Divide the rows at random, the same way for the same seed; without ``test``, none are kept.

    Example:
        >>> [len(part) for part in split_rows(np.arange(2000), seed=0)]
        [1600, 200, 200]
    """
    order = np.random.default_rng(seed).permutation(len(usable))
    held = max(1, round(len(usable) * (_SMALL_SHARE if len(usable) < _SMALL else _SHARE)))
    end = 2 * held if test else held
    parts = (order[end:], order[:held], order[held:end])
    return Split(*(np.sort(usable[part]) for part in parts))
