"""The first look at a table: what its columns hold, and rows to choose their maps from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DataError
from .columns import Column, Role
from .inspect import inspect_codes, inspect_numbers
from .tables import Table
from .values import is_number, is_text, parse_texts, to_floats, to_objects

Array = np.ndarray[Any, np.dtype[np.float64]]

#: Tables up to this many values are held in memory; of larger ones, a sample of rows.
IN_MEMORY = 50_000_000
#: Rows of that sample.
SAMPLE = 200_000
#: The most categories of a column.
_MOST_CATEGORIES = 100
#: The share of numbers from which a column of texts is one of numbers with mistakes in it.
_MOSTLY_NUMBERS = 0.5


@dataclass
class Survey:
    """What was found: all columns, their rows as numbers (or a sample of them), and row numbers."""

    columns: list[Column]
    numbers: Array  # (rows, columns) with codes for categories; NaN nowhere
    rows: np.ndarray[Any, np.dtype[np.int64]]  # which rows of the table these are
    total: int  # rows in the table, those with missing values included
    usable: np.ndarray[Any, np.dtype[np.int64]]  # rows without missing values
    complete: bool  # whether ``numbers`` holds all usable rows


class _Looker:
    """Looks at one column, piece by piece."""

    def __init__(self, name: str, type_name: str, table: str, wish: str | None) -> None:
        self.name, self.type, self.wish, self._table = name, type_name, wish, table
        self.text = is_text(type_name)
        self.missing = 0
        self._parsed = self._bad = 0
        self._first_bad: tuple[int, str] | None = None
        self.categories: dict[Any, int] = {}
        self.taken_for_numbers = False
        if not self.text and not is_number(type_name):
            raise DataError(
                f"column {name!r} of {table} holds {type_name}, which is neither number nor text: "
                f"leave it out with --drop {name}"
            )

    def look(self, array: Any, first_row: int) -> Array:
        """The piece as numbers, as far as can be told yet: codes for texts that are none."""
        if not self.text:
            numbers = to_floats(array)
        elif self.wish == "category":
            numbers = np.full(len(array), np.nan)
            self._bad += len(array)
        else:
            numbers, bad = parse_texts(array)
            self._parsed += int((~np.isnan(numbers)).sum())
            self._bad += int(bad.sum())
            if bad.any() and self._first_bad is None:
                at = int(bad.argmax())
                self._first_bad = (first_row + at + 1, str(array[at].as_py()))
        if np.isinf(numbers).any():
            at = int(np.isinf(numbers).argmax())
            raise DataError(f"{self._table}, row {first_row + at + 1}: column {self.name!r} holds an infinity")
        if (self.text and self._bad) or self.wish == "category":
            numbers = self._codes(array)
        elif self.text:
            self.taken_for_numbers = True
        self.missing += array.null_count if self.text else int(np.isnan(numbers).sum())
        return numbers

    def _codes(self, array: Any) -> Array:
        codes = np.full(len(array), np.nan)
        for i, value in enumerate(to_objects(array)):
            if value is not None:
                codes[i] = self.categories.setdefault(value, len(self.categories))
        if len(self.categories) > _MOST_CATEGORIES:
            self.refuse_mixed()
            raise DataError(
                f"column {self.name!r} of {self._table} holds more than {_MOST_CATEGORIES} different texts: "
                f"leave it out with --drop {self.name}"
            )
        return codes

    @property
    def mixed(self) -> bool:
        """Whether it is a column of numbers with some texts among them."""
        return (
            self.text
            and self.wish != "category"
            and self._bad > 0
            and (self._parsed >= _MOSTLY_NUMBERS * (self._parsed + self._bad))
        )

    def refuse_mixed(self) -> None:
        if self.mixed and self._first_bad is not None:
            row, value = self._first_bad
            raise DataError(
                f"{self._table}, row {row}: column {self.name!r} holds numbers, but here {value!r}"
                + (f", and {self._bad - 1} more texts" if self._bad > 1 else "")
            )

    @property
    def is_category(self) -> bool:
        return bool(self.categories)


def survey(
    table: Table,
    context: list[str],
    drop: list[str],
    missing: str = "refuse",
    wishes: dict[str, str] | None = None,
    seed: int = 0,
) -> Survey:
    """Look at every value of a table, refuse what cannot be used, and choose a map for every column."""
    wishes = wishes or {}
    for name in [*context, *drop, *wishes]:
        if name not in table.columns:
            raise DataError(f"{table.name} has no column {name!r}; it has {', '.join(map(repr, table.columns[:20]))}")
    names = [c for c in table.columns if c not in drop]
    if not [c for c in names if c not in context]:
        raise DataError(f"{table.name} has no columns left to model")
    lookers = [_Looker(name, table.type_of(name), table.name, wishes.get(name)) for name in names]
    gathered = _Gathered(len(names), seed)
    row = 0
    for batch in table.batches(names):
        if len(batch):
            pieces = [looker.look(batch.column(i), row) for i, looker in enumerate(lookers)]
            gathered.add(np.stack(pieces, axis=1), row)
            row += len(batch)
    for looker in lookers:
        looker.refuse_mixed()
    late = [looker.name for looker in lookers if looker.is_category and looker.taken_for_numbers]
    if late:  # texts that began with a long stretch of numbers: now it is known what they are
        return survey(table, context, drop, missing, {**wishes, **dict.fromkeys(late, "category")}, seed)
    _check_rows(table.name, row, lookers, gathered, missing)
    numbers, rows = gathered.numbers(), gathered.rows()
    columns = []
    for i, looker in enumerate(lookers):
        role: Role = "context" if looker.name in context else "feature"
        columns.append(_column(looker, numbers[:, i], role))
    if not any(c.role == "feature" and c.kind != "constant" for c in columns):
        raise DataError(f"every column of {table.name} is constant: there is nothing to model")
    return Survey(columns, numbers, rows, row, gathered.usable(), gathered.complete)


def _column(looker: _Looker, values: Array, role: Role) -> Column:
    if not looker.is_category:
        wish = None if looker.wish == "category" else looker.wish
        return inspect_numbers(looker.name, values, _number_type(looker, values), role, wish)
    # In a stable order, whatever row a value was first seen in.
    order = sorted(looker.categories, key=str)
    place = np.array([order.index(value) for value in looker.categories], dtype=np.float64)
    values[:] = place[values.astype(np.int64)]
    return inspect_codes(looker.name, values, tuple(order), looker.type, role)


def _number_type(looker: _Looker, values: Array) -> str:
    """Numbers in a text file are integers if they all are whole."""
    if not looker.text:
        return looker.type
    return "int64" if bool((values == np.round(values)).all()) and np.abs(values).max() < 2**53 else "double"


def _check_rows(name: str, total: int, lookers: list[_Looker], gathered: _Gathered, missing: str) -> None:
    if total == 0:
        raise DataError(f"{name} has no rows")
    empty = [looker.name for looker in lookers if looker.missing == total]
    if empty:
        raise DataError(f"{name}: column {empty[0]!r} holds no values at all: leave it out with --drop {empty[0]}")
    counts = [f"{looker.missing} in {looker.name!r}" for looker in lookers if looker.missing]
    if counts and missing != "drop":
        raise DataError(
            f"{name} has missing values: {', '.join(counts[:10])}. Fill them in, or leave such rows out with "
            "--missing drop"
        )
    if gathered.count < 10:
        raise DataError(f"{name} has {gathered.count} usable rows: a density needs at least 10, better hundreds")


class _Gathered:
    """Complete rows: all of them while there is room, from then on a random sample."""

    def __init__(self, width: int, seed: int) -> None:
        self._width = width
        self._random = np.random.default_rng(seed)
        self._parts: list[Array] = []
        self._at: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._usable: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._held = 0
        self._share = 1.0
        self.count = 0
        self.complete = True

    def add(self, piece: Array, first_row: int) -> None:
        whole = ~np.isnan(piece).any(axis=1)
        at = first_row + np.flatnonzero(whole)
        piece = piece[whole]
        self._usable.append(at)
        self.count += len(piece)
        if not self.complete:
            chosen = self._random.random(len(piece)) < self._share
            piece, at = piece[chosen], at[chosen]
        self._parts.append(piece)
        self._at.append(at)
        self._held += len(piece)
        limit = IN_MEMORY // self._width if self.complete else 2 * SAMPLE
        if self._held > limit:
            self._thin(SAMPLE)

    def _thin(self, rows: int) -> None:
        numbers, at = self.numbers(), self.rows()
        chosen = np.sort(self._random.choice(len(at), size=min(rows, len(at)), replace=False))
        self._share *= len(chosen) / len(at)
        self.complete = False
        self._parts, self._at, self._held = [numbers[chosen]], [at[chosen]], len(chosen)

    def numbers(self) -> Array:
        return np.concatenate(self._parts) if self._parts else np.empty((0, self._width))

    def rows(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.concatenate(self._at) if self._at else np.empty(0, dtype=np.int64)

    def usable(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.concatenate(self._usable) if self._usable else np.empty(0, dtype=np.int64)
