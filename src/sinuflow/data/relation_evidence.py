"""A table as the search for relations sees it: a sample of its rows, and the evidence for a candidate relation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from .formulas import Formula
from .lookups import Lookup, to_json
from .numbers import Array
from .rounding import Rounding

#: Rows of the sample that candidates are searched on, without the extremes of each column.
SAMPLE = 2000
#: Nats of evidence for a lookup table, per source; rows per key; the most keys.
_NATS, _ROWS_PER_KEY, _MOST_KEYS = 60.0, 5, 10_000
#: Rows without the target's most common value, and rows that depend on each source.
_VARYING_ROWS, _SUPPORT = 20, 3
#: The share of rows whose last digit may be rounded the other way, and for which the direction may matter.
_TIES, _MOST_TIES = 0.01, 0.3


class Evidence:
    """Columns of a table, with tests of candidate relations on all rows."""

    def __init__(self, numbers: Array, names: Sequence[str], categories: Collection[str]) -> None:
        self.names = list(names)
        self.columns = {name: np.ascontiguousarray(numbers[:, i], dtype=float) for i, name in enumerate(self.names)}
        usable = [i for i, column in enumerate(self.columns.values()) if _varies(column)]
        rows = np.random.default_rng(0).permutation(len(numbers))[:SAMPLE]
        extremes = [f(self.columns[self.names[i]]) for i in usable for f in (np.nanargmin, np.nanargmax)]
        self.rows = np.union1d(rows, np.array(extremes[: 2 * SAMPLE], dtype=int))
        self.sample = np.stack([column[self.rows] for column in self.columns.values()], axis=1)
        self.missing = np.isnan(self.sample)
        self.is_category = np.array([name in categories for name in self.names], dtype=bool)
        #: Codes of the sample's values, one row per column; the number of values, and of rows with the most common one.
        codes = [np.unique(column, return_inverse=True)[1] for column in self.sample.T]
        self.sample_codes = np.stack(codes).astype(np.int32)
        self.distinct = self.sample_codes.max(axis=1) + 1
        self.most_common = np.array([np.bincount(column).max() for column in codes])
        self.rounding = [Rounding.of(column) for column in self.sample.T]
        #: Usable columns, the simplest first: those are kept, and the last ones restored.
        self.order = sorted(usable, key=self._complexity)
        self.numbers = [i for i in self.order if not self.is_category[i]]
        self.codes = cache(self._codes)
        self.groups = cache(self._groups)

    def _complexity(self, i: int) -> tuple[float, ...]:
        decimals = self.rounding[i].decimals
        largest = float(np.nanmax(np.abs(self.sample[:, i])))
        return self.is_category[i], 99 if decimals is None else decimals, int(np.log2(self.distinct[i])), largest, i

    def column(self, i: int) -> Array:
        """A column in all rows."""
        return self.columns[self.names[i]]

    def _codes(self, i: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Array, Array]:
        """Codes of a column's values in all rows, the values, and each value's frequency."""
        levels, codes, counts = np.unique(self.column(i), return_inverse=True, return_counts=True)
        return codes, levels, counts / len(codes)

    def _groups(self, sources: tuple[int, ...]) -> tuple[Any, Any]:
        """Rows sorted by the sources, and whether each has the same sources as the next one."""
        return _sorted_groups(np.stack([self.codes(i)[0] for i in sources]))

    def determined(self, sources: tuple[int, ...]) -> list[int]:
        """The columns that the sources determine in the sample."""
        order, same = _sorted_groups(self.sample_codes[list(sources)])
        first, second = order[:-1][same], order[1:][same]
        runs = np.diff(np.flatnonzero(np.r_[True, ~same, True]))  # rows with each key
        keys, most = len(runs), runs.max()
        # A function merges groups of rows: it has fewer values, and its most common one is more common.
        likely = np.where(self.distinct < keys, self.most_common >= most, self.most_common == most)
        left = np.array(
            [i for i in self.order if i not in sources and self.distinct[i] <= keys and likely[i]], dtype=int
        )
        for part in (slice(0, 64), slice(64, None)):  # most columns are refuted by a few pairs of rows
            codes = self.sample_codes[left]
            left = left[(codes[:, first[part]] == codes[:, second[part]]).all(axis=1)]
        return [int(i) for i in left]

    def lookup(self, target: int, sources: tuple[int, ...]) -> Lookup | None:
        """The lookup table of a column, if it holds in all rows, and rows repeat often enough to tell."""
        order, same = self.groups(sources)
        codes, values, frequency = self.codes(target)
        first, second = codes[order[:-1]][same], codes[order[1:]][same]
        keys = len(order) - len(first)
        most = min(_MOST_KEYS, len(order) / _ROWS_PER_KEY ** len(sources))
        if keys > most or not (first == second).all():
            return None
        if -np.log(frequency[second]).sum() < _NATS * len(sources) or not _spread(codes):
            return None
        levels = [self.codes(i)[1] for i in sources]
        shape = tuple(map(len, levels))
        if keys < np.prod(shape):  # a sample could combine levels that never occur together
            return None
        table = np.empty(shape, dtype=int)
        table[tuple(self.codes(i)[0] for i in sources)] = codes
        return Lookup(
            target=self.names[target],
            sources=tuple(self.names[i] for i in sources),
            ordered=tuple(not bool(self.is_category[i]) for i in sources),
            levels=tuple(map(to_json, levels)),
            values=to_json(values[table.reshape(-1)]),
        )

    def formula(self, candidate: Formula) -> Formula | None:
        """The formula with the rounding of its target, if it holds in all rows and is no coincidence."""
        target = self.columns[candidate.target]
        candidate = replace(candidate, rounding=Rounding.of(target))
        unexplained = np.isnan(target) & ~np.isnan(candidate.predict(self.columns))
        if unexplained.any():
            gate = self._missing_with(candidate, np.isnan(target), unexplained)
            if gate is None:
                return None
            candidate = replace(candidate, missing_with=gate)
        unrounded = replace(candidate, rounding=Rounding(single=candidate.rounding.single))
        if not candidate.holds(self.columns).all() or not self._is_evident(candidate, unrounded):
            return None
        tolerance = unrounded.tolerance(self.columns)
        directions = [replace(candidate, rounding=replace(candidate.rounding, up=up)) for up in (False, True)]
        # The share of rows whose last digit each direction of rounding does not restore.
        wrong = [float(np.mean(np.abs(each.predict(self.columns) - target) > tolerance)) for each in directions]
        return directions[int(np.argmin(wrong))] if min(wrong) <= _TIES and sum(wrong) < _MOST_TIES else None

    def _missing_with(self, candidate: Formula, missing: Any, unexplained: Any) -> str | None:
        """A column that is missing in the rows without target that the formula does not explain."""
        for i in self.order:
            gate = np.isnan(self.column(i))
            if self.names[i] != candidate.target and gate[unexplained].all() and missing[gate].all():
                return self.names[i]
        return None

    def _is_evident(self, candidate: Formula, unrounded: Formula) -> bool:
        """Whether enough different rows confirm a formula that holds."""
        target = self.names.index(candidate.target)
        sources = [self.names.index(name) for term in candidate.terms for name in term.sources]
        codes, _, frequency = self.codes(target)
        if not _spread(codes) or not all(_spread(self.codes(i)[0], _SUPPORT) for i in sources):
            return False
        column = self.column(target)
        known = ~np.isnan(column)
        values, spread = column[known], np.std(column[known])
        if np.median(candidate.rounding.half_unit(values)) > spread / 20 and not unrounded.holds(self.columns).all():
            return False
        if unrounded.tolerance(self.columns)[known].max() > 1e-3 * spread:
            return False
        parameters = len(candidate.terms) + 1
        order, same = self.groups(tuple(sources))
        nats = -np.log(frequency[codes[order[1:]]])
        if (~same).sum() >= max(10, 4 * parameters) and nats[~same].sum() >= _NATS:
            return True
        return bool(same.mean() >= 1 - 1 / _ROWS_PER_KEY and nats[same].sum() >= _NATS * parameters)


def _spread(codes: Any, least: int = _VARYING_ROWS) -> bool:
    """Whether enough rows differ from the most common value."""
    return bool(len(codes) - np.bincount(codes).max() >= least)


def _varies(column: Array) -> bool:
    known = column[~np.isnan(column)]
    if not len(known) or not np.isfinite(known).all():
        return False
    return bool(known.max() - known.min() > 1e-9 * np.abs(known).max())  # more than float64 noise


def _sorted_groups(codes: Any) -> tuple[Any, Any]:
    order = np.lexsort(codes)
    return order, (codes[:, order[1:]] == codes[:, order[:-1]]).all(axis=0)
