"""The first look at a table: what its columns hold, and rows to choose their maps from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DataError
from .columns import WISHES, Column
from .exact_integers import refuse_inexact
from .inspect import inspect_codes, inspect_numbers
from .names import drop_option, quoted_list
from .tables import Table
from .values import distinct_values, is_category, is_number, is_text, parse_number, parse_texts, to_floats

Array = np.ndarray[Any, np.dtype[np.float64]]
Ids = np.ndarray[Any, np.dtype[np.int64]]

#: Tables up to this many values are held in memory; of larger ones, a sample of rows.
IN_MEMORY = 50_000_000
#: Rows of that sample.
SAMPLE = 200_000
#: The most categories of a column.
_MOST_CATEGORIES = 100
#: The share of numbers from which a column of texts is one of numbers with mistakes in it.
_MOSTLY_NUMBERS = 0.5


class Looker:
    """Looks at one column, piece by piece."""

    def __init__(self, name: str, type_name: str, table: str, wish: str | None) -> None:
        self.name, self.type, self.wish, self._table = name, type_name, wish, table
        self.text = is_text(type_name)
        self.missing = 0
        self.low, self.high = np.inf, -np.inf
        self.categories: dict[Any, int] = {}
        self.taken_for_numbers = False
        self._parsed = self._bad = 0
        self._first_bad: tuple[int, str] | None = None
        if not (self.text or is_number(type_name) or is_category(type_name)):
            raise DataError(
                f"column {name!r} of {table} holds {type_name}, which is neither number nor text: "
                f"leave it out with {drop_option(name)}"
            )

    def look(self, array: Any, first_row: int) -> Array:
        """The piece as numbers, as far as can be told yet: codes for texts that are none."""
        numbers = self._numbers(array, first_row)
        self.missing += int(np.isnan(numbers).sum())
        if len(numbers) and not np.isnan(numbers).all():
            self.low, self.high = min(self.low, np.nanmin(numbers)), max(self.high, np.nanmax(numbers))
        return numbers

    def _numbers(self, array: Any, first_row: int) -> Array:
        if self.wish == "category" or is_category(self.type) or self._bad:
            return self._codes(array)
        if not self.text:
            numbers = self._floats(array)
        else:
            numbers, bad = parse_texts(array)
            if bad.any():
                at = int(bad.argmax())
                self._first_bad = (first_row + at + 1, str(array[at].as_py()))
                return self._codes(array)
            self._parsed += int((~np.isnan(numbers)).sum())
            self.taken_for_numbers = True
        refuse_inexact(array, numbers, self.name, first_row, self._table)
        if np.isinf(numbers).any():
            at = int(np.isinf(numbers).argmax())
            raise DataError(f"{self._table}, row {first_row + at + 1}: column {self.name!r} holds an infinity")
        return numbers

    def _floats(self, array: Any) -> Array:
        try:
            return to_floats(array)
        except Exception as error:  # Arrow has many, and says what it could not convert, but not where
            reason = str(error).splitlines()[0][:120]
            raise DataError(
                f"column {self.name!r} of {self._table} cannot be used as numbers ({reason}): leave it out with "
                f"{drop_option(self.name)}"
            ) from error

    def _codes(self, array: Any) -> Array:
        values, codes = distinct_values(array)
        if self.text and self.wish != "category":
            counts = np.bincount(codes[~np.isnan(codes)].astype(np.int64), minlength=len(values))
            numeric = np.array([parse_number(value) is not None for value in values], dtype=bool)
            self._parsed, self._bad = self._parsed + counts[numeric].sum(), self._bad + counts[~numeric].sum()
        places = [np.nan if v is None else self.categories.setdefault(v, len(self.categories)) for v in values]
        if len(self.categories) > _MOST_CATEGORIES:
            self.refuse_mixed()
            raise DataError(
                f"column {self.name!r} of {self._table} holds more than {_MOST_CATEGORIES} different texts: "
                f"leave it out with {drop_option(self.name)}"
            )
        found: Array = np.array([*places, np.nan])[np.where(np.isnan(codes), len(values), codes).astype(np.int64)]
        return found

    def refuse_mixed(self) -> None:
        """Refuse a column of numbers that has some texts in it."""
        if self._first_bad is not None and self._parsed >= _MOSTLY_NUMBERS * (self._parsed + self._bad):
            row, value = self._first_bad
            raise DataError(f"{self._table}, row {row}: column {self.name!r} holds numbers, but here {value!r}")


@dataclass
class Survey:
    """What was found: rows as numbers, or a sample of them, and where they stand in the table."""

    numbers: Array  # (rows, columns) with codes for categories; NaN nowhere
    rows: Ids  # which rows of the table these are
    total: int  # rows in the table, those with missing values included
    usable: Ids  # rows without missing values
    complete: bool  # whether ``numbers`` holds all usable rows
    lookers: list[Looker]
    context: list[str]
    codes: dict[str, tuple[Any, ...]]  # the categories of columns that are some

    def columns(self, train: Ids) -> list[Column]:
        """A map for every column, chosen by the values of these rows.

        Only the smallest and the largest value, and which categories there are, come from all rows.
        """
        chosen = self.numbers[np.isin(self.rows, train, assume_unique=True)]
        columns = [self._column(looker, chosen[:, i]) for i, looker in enumerate(self.lookers)]
        if not any(c.role == "feature" and c.kind != "constant" for c in columns):
            raise DataError("every column is constant: there is nothing to model")
        return columns

    def _column(self, looker: Looker, values: Array) -> Column:
        role: Any = "context" if looker.name in self.context else "feature"
        if looker.name in self.codes:
            if looker.wish not in (None, "category"):
                raise DataError(f"column {looker.name!r} holds categories, and cannot take the map {looker.wish!r}")
            return inspect_codes(looker.name, values, self.codes[looker.name], looker.type, role)
        # Numbers in a text file are integers if they all are whole.
        whole = bool((values == np.round(values)).all()) and max(-looker.low, looker.high) < 2**53
        kind = ("int64" if whole else "double") if looker.text else looker.type
        return inspect_numbers(looker.name, values, kind, role, looker.wish, (float(looker.low), float(looker.high)))


def survey(
    table: Table,
    context: list[str],
    drop: list[str],
    missing: str = "refuse",
    wishes: dict[str, str] | None = None,
    seed: int = 0,
) -> Survey:
    """Look at every value of a table, and refuse what cannot be used."""
    wishes = wishes or {}
    _check_arguments(table, context, drop, missing, wishes)
    left_out = set(drop)
    names = [c for c in table.columns if c not in left_out]
    lookers = [Looker(name, table.type_of(name), table.name, wishes.get(name)) for name in names]
    gathered = _Gathered(len(names), seed)
    row = 0
    for batch in table.batches(names):
        if len(batch):
            pieces = [looker.look(table.cells(batch, looker.name), row) for looker in lookers]
            gathered.add(np.stack(pieces, axis=1), row)
            row += len(batch)
    for looker in lookers:
        looker.refuse_mixed()
    late = [looker.name for looker in lookers if looker.categories and looker.taken_for_numbers]
    if late:  # texts that began with a long stretch of numbers: now it is known what they are
        return survey(table, context, drop, missing, {**wishes, **dict.fromkeys(late, "category")}, seed)
    _check_rows(table.name, row, lookers, gathered, missing)
    numbers = gathered.numbers()
    codes = {
        looker.name: _sort_codes(looker, numbers[:, i], gathered.complete)
        for i, looker in enumerate(lookers)
        if looker.categories
    }
    return Survey(numbers, gathered.rows(), row, gathered.usable(), gathered.complete, lookers, context, codes)


def _check_arguments(table: Table, context: list[str], drop: list[str], missing: str, wishes: dict[str, str]) -> None:
    if missing not in ("refuse", "drop"):
        raise DataError(f"missing must be 'refuse' or 'drop'; got {missing!r}")
    present = set(table.columns)
    for name in [*context, *drop, *wishes]:
        if name not in present:
            raise DataError(f"{table.name} has no column {name!r}; it has {quoted_list(table.columns)}")
    for name, wish in wishes.items():
        if wish not in WISHES:
            raise DataError(f"column {name!r} cannot be mapped by {wish!r}: choose {', '.join(WISHES)}")
    if not present.difference(drop, context):
        raise DataError(f"{table.name} has no columns left to model")


def _sort_codes(looker: Looker, values: Array, complete: bool) -> tuple[Any, ...]:
    """Number the categories in a stable order, whatever row one was first seen in; only those that are left."""
    found = list(looker.categories)
    present = {int(code) for code in np.unique(values)} if complete else set(range(len(found)))
    order = sorted((value for i, value in enumerate(found) if i in present), key=str)
    place = {looker.categories[value]: i for i, value in enumerate(order)}
    values[:] = [place[int(code)] for code in values]
    return tuple(order)


def _check_rows(name: str, total: int, lookers: list[Looker], gathered: _Gathered, missing: str) -> None:
    if total == 0:
        raise DataError(f"{name} has no rows")
    empty = [looker.name for looker in lookers if looker.missing == total]
    if empty:
        raise DataError(
            f"{name}: column {empty[0]!r} holds no values at all: leave it out with {drop_option(empty[0])}"
        )
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
        self._at: list[Ids] = []
        self._usable: list[Ids] = []
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

    def rows(self) -> Ids:
        return np.concatenate(self._at) if self._at else np.empty(0, dtype=np.int64)

    def usable(self) -> Ids:
        return np.concatenate(self._usable) if self._usable else np.empty(0, dtype=np.int64)
