"""A scan of a table: what its columns hold, and rows to choose their maps from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bijections.columns import ColumnMap
from ..checks import LARGEST_INTEGER
from ..errors import DataError
from . import values as cells
from .columns import MAP_NAMES, Column, Role, drop_option, quoted_list
from .inspect import Wish, inspect_codes, inspect_numbers
from .split import Ids
from .tables import Table
from .values import Array

#: Tables up to this many values are held in memory; of larger ones, a sample of so many rows.
IN_MEMORY, SAMPLE = 50_000_000, 200_000
#: The most categories of a column, and the share of numbers from which strings count as numbers with mistakes.
_MOST_CATEGORIES, _MOSTLY_NUMBERS = 100, 0.5


class ColumnScan:
    """The type, range and categories of one column, read piece by piece."""

    def __init__(self, table: Table, name: str, role: Role, wish: Wish | None) -> None:
        self.name, self.role, self.wish, self._table = name, role, wish, table.name
        self.type = str(table.dataset.schema.field(name).type)
        kind = cells.kind_of(self.type)
        self.kind = "category" if wish == "category" else kind
        self.missing = 0
        self.low, self.high = np.inf, -np.inf
        self.categories: dict[Any, int] = {}
        self.began_as_numbers = False
        self._parsed = self._bad = 0
        self._first_bad: tuple[int, str] | None = None
        if kind is None:
            raise DataError(
                f"column {name!r} of {table.name} holds {self.type}, which is neither number nor text: "
                f"leave it out with {drop_option(name)}"
            )

    def add(self, array: Any, first_row: int) -> Array:
        """The piece as numbers, or as codes once a string is not a number."""
        numbers = self._numbers(array, first_row)
        self.missing += int(np.isnan(numbers).sum())
        if len(numbers) and not np.isnan(numbers).all():
            self.low, self.high = min(self.low, np.nanmin(numbers)), max(self.high, np.nanmax(numbers))
        return numbers

    def _numbers(self, array: Any, first_row: int) -> Array:
        if self.kind == "category" or self._bad:
            return self._codes(array)
        numbers, bad = cells.to_numbers(array)
        if bad.any():
            at = int(bad.argmax())
            self._first_bad = (first_row + at + 1, str(array[at].as_py()))
            return self._codes(array)
        self._parsed += int((~np.isnan(numbers)).sum())
        self.began_as_numbers = True
        cells.refuse_unusable(array, numbers, self.name, first_row, self._table)
        return numbers

    def _codes(self, array: Any) -> Array:
        values, codes = cells.distinct_values(array)
        if self.kind == "text":
            counts = np.bincount(codes[~np.isnan(codes)].astype(np.int64), minlength=len(values))
            numeric = np.array([cells.parse_number(value) is not None for value in values], dtype=bool)
            self._parsed, self._bad = self._parsed + counts[numeric].sum(), self._bad + counts[~numeric].sum()
        known = [np.nan if v is None else self.categories.setdefault(v, len(self.categories)) for v in values]
        if len(self.categories) > _MOST_CATEGORIES:
            self.refuse_mixed()
            raise DataError(
                f"column {self.name!r} of {self._table} holds more than {_MOST_CATEGORIES} different texts: "
                f"leave it out with {drop_option(self.name)}"
            )
        return cells.recode(codes, known)

    def refuse_mixed(self) -> None:
        """Refuse a column of numbers in which some strings are not numbers."""
        if self._first_bad is not None and self._parsed >= _MOSTLY_NUMBERS * (self._parsed + self._bad):
            row, value = self._first_bad
            raise DataError(f"{self._table}, row {row}: column {self.name!r} holds numbers, but here {value!r}")

    def sort_categories(self, values: Array, complete: bool) -> None:
        """Renumber the categories in a stable order, without those that occur only in rows that are left out."""
        present = set(np.unique(values)) if complete else set(self.categories.values())
        order = sorted((value for value, code in self.categories.items() if code in present), key=str)
        code = {self.categories[value]: i for i, value in enumerate(order)}
        values[:] = [code[int(value)] for value in values]
        self.categories = {value: i for i, value in enumerate(order)}

    def column(self, values: Array) -> Column:
        """The column, with a map chosen by these values."""
        if self.categories:
            if self.wish not in (None, "category"):
                raise DataError(f"column {self.name!r} holds categories, and cannot take the map {self.wish!r}")
            return inspect_codes(self.name, values, tuple(self.categories), self.type, self.role)
        # Numbers in a text file are integers if all of them are.
        whole = bool((values == np.round(values)).all()) and max(-self.low, self.high) < LARGEST_INTEGER
        kind = ("int64" if whole else "double") if self.kind == "text" else self.type
        return inspect_numbers(self.name, values, kind, self.role, self.wish, (float(self.low), float(self.high)))


@dataclass
class Survey:
    """The rows of a table as numbers, or a sample of them, and what its columns hold."""

    numbers: Array  # (rows, columns) with codes for categories, without NaN
    rows: Ids  # their row numbers in the table
    total: int  # rows in the table, including those with missing values
    usable: Ids  # row numbers without missing values
    complete: bool  # whether ``numbers`` holds all usable rows
    scans: list[ColumnScan]

    def columns(self, train: Ids) -> list[Column]:
        """The columns, with maps chosen by the values of these rows; bounds and categories come from all rows."""
        chosen = self.numbers[np.isin(self.rows, train, assume_unique=True)]
        columns = [scan.column(chosen[:, i]) for i, scan in enumerate(self.scans)]
        if not any(c.role == "feature" and c.kind != "constant" for c in columns):
            raise DataError("every column is constant: there is nothing to model")
        return columns


def survey(
    table: Table,
    context: list[str],
    drop: list[str],
    missing: str = "refuse",
    maps: Mapping[str, Wish] | None = None,
    seed: int = 0,
) -> Survey:
    """Read every value of a table, and refuse what cannot be used."""
    maps = maps or {}
    _check_arguments(table, context, drop, missing, maps)
    left_out, side = set(drop), set(context)
    names = [name for name in table.columns if name not in left_out]
    scans = [ColumnScan(table, name, "context" if name in side else "feature", maps.get(name)) for name in names]
    sample = _Sample(len(names), seed)
    total = 0
    for batch in table.batches(names):
        if len(batch):
            pieces = [scan.add(table.cells(batch, scan.name), total) for scan in scans]
            sample.add(np.stack(pieces, axis=1), total)
            total += len(batch)
    for scan in scans:
        scan.refuse_mixed()
    late = [scan.name for scan in scans if scan.categories and scan.began_as_numbers]
    if late:  # strings that began with many numbers: scan again, as categories from the start
        return survey(table, context, drop, missing, {**maps, **dict.fromkeys(late, "category")}, seed)
    _check_rows(table.name, total, scans, sum(map(len, sample.usable)), missing)
    numbers, rows = sample.rows()
    for i, scan in enumerate(scans):
        if scan.categories:
            scan.sort_categories(numbers[:, i], sample.complete)
    return Survey(numbers, rows, total, np.concatenate(sample.usable), sample.complete, scans)


def _check_arguments(table: Table, context: list[str], drop: list[str], missing: str, maps: Mapping[str, Wish]) -> None:
    if missing not in ("refuse", "drop"):
        raise DataError(f"missing must be 'refuse' or 'drop'; got {missing!r}")
    present = set(table.columns)
    for name in [*context, *drop, *maps]:
        if name not in present:
            raise DataError(f"{table.name} has no column {name!r}; it has {quoted_list(table.columns)}")
    for name, wish in maps.items():
        if isinstance(wish, str) and wish not in MAP_NAMES:
            raise DataError(f"column {name!r} cannot be mapped by {wish!r}: choose {', '.join(MAP_NAMES)}")
        if not isinstance(wish, (str, ColumnMap)) and not (isinstance(wish, type) and issubclass(wish, ColumnMap)):
            raise DataError(f"column {name!r} cannot be mapped by {wish!r}: pass a name, or a ColumnMap or its class")
    if not present.difference(drop, context):
        raise DataError(f"{table.name} has no columns left to model")


def _check_rows(name: str, total: int, scans: list[ColumnScan], usable: int, missing: str) -> None:
    if total == 0:
        raise DataError(f"{name} has no rows")
    empty = [scan.name for scan in scans if scan.missing == total]
    if empty:
        raise DataError(f"{name}: column {empty[0]!r} holds no values: leave it out with {drop_option(empty[0])}")
    counts = [f"{scan.missing} in {scan.name!r}" for scan in scans if scan.missing]
    if counts and missing != "drop":
        raise DataError(
            f"{name} has missing values: {', '.join(counts[:10])}. Fill them in, or leave such rows out with "
            "--missing drop"
        )
    if usable < 10:
        raise DataError(f"{name} has {usable} usable rows: a density needs at least 10, better hundreds")


class _Sample:
    """Rows without missing values: all of them up to a limit, from then on a random sample."""

    def __init__(self, width: int, seed: int) -> None:
        self._width = width
        self._random = np.random.default_rng(seed)
        self._parts: list[tuple[Array, Ids]] = []
        self._held = 0
        self._share = 1.0
        self.usable: list[Ids] = []
        self.complete = True

    def add(self, piece: Array, first_row: int) -> None:
        whole = ~np.isnan(piece).any(axis=1)
        ids = first_row + np.flatnonzero(whole)
        piece = piece[whole]
        self.usable.append(ids)
        if not self.complete:
            chosen = self._random.random(len(piece)) < self._share
            piece, ids = piece[chosen], ids[chosen]
        self._parts.append((piece, ids))
        self._held += len(piece)
        if self._held > (IN_MEMORY // self._width if self.complete else 2 * SAMPLE):
            numbers, ids = self.rows()
            kept = np.sort(self._random.choice(len(ids), size=min(SAMPLE, len(ids)), replace=False))
            self._share *= len(kept) / len(ids)
            self.complete = False
            self._parts, self._held = [(numbers[kept], ids[kept])], len(kept)

    def rows(self) -> tuple[Array, Ids]:
        """The rows and their row numbers."""
        numbers, ids = zip(*self._parts, strict=True)
        return np.concatenate(numbers), np.concatenate(ids)
