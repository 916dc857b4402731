"""A scan of a table: what its columns hold, and rows to choose their maps from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..bijections.columns import ColumnMap
from ..checks import LARGEST_INTEGER
from ..errors import DataError
from . import values as cells
from .arrow_times import ArrowTime, is_time
from .category_order import category_orders
from .column_format import ColumnFormat, unreadable
from .columns import MAP_NAMES, Column, Role, drop_option, quoted_list
from .find_relations import find_relations
from .inspect import Wish, inspect_codes, inspect_numbers
from .numbers import Array, parse_number
from .relations import Relation
from .split import Ids
from .tables import Table
from .text_formats import DurationFormat, FormatError, NumberFormat, TimeFormat, recognize
from .time_parts import choose_parts, split

#: Tables up to this many values are held in memory; of larger ones, a sample of so many rows.
IN_MEMORY, SAMPLE = 50_000_000, 200_000
#: The share of numbers from which strings count as numbers with mistakes.
_MOSTLY_NUMBERS = 0.5
#: Texts are identifiers or free text if there are more different ones than this, or, from a few on, if more than this
#: share of the rows have one of their own.
_MOST_CATEGORIES, _SOME_CATEGORIES, _MOSTLY_DIFFERENT = 5_000, 30, 0.5
#: The most different texts from which a format is recognized.
_MOST_TEXTS = 200_000
#: The fewest rows in which 1, 2, 3, ... are row numbers, and the share of numbers that may be absent.
_COUNTED, _GAPS = 30, 0.2


Reader = NumberFormat | TimeFormat | DurationFormat | ArrowTime


@dataclass(frozen=True)
class Known:
    """What an earlier reading of a table has found out."""

    texts: frozenset[str] = frozenset()  # columns of categories, although their first values are numbers
    readers: dict[str, Reader] = field(default_factory=dict)  # the formats of columns


class ColumnScan:
    """The type, range and categories of one column, read piece by piece."""

    def __init__(self, table: Table, name: str, role: Role, wish: Wish | None, known: Known | None = None) -> None:
        self.name, self.role, self.wish, self._table = name, role, wish, table.name
        self.type = str(table.dataset.schema.field(name).type)
        kind = cells.kind_of(self.type)
        self.kind = "category" if wish == "category" or (known is not None and name in known.texts) else kind
        self.reader = None if known is None else known.readers.get(name)
        self._arrow_time: ArrowTime | None = None
        self.missing = 0
        self.low, self.high = np.inf, -np.inf
        self.categories: dict[Any, int] = {}
        self.began_as_numbers = False
        #: Why the column is left out of the model, if it is.
        self.set_aside = ""
        self._last, self._counts = -np.inf, True
        self._parsed = self._bad = 0
        self._first_bad: tuple[int, str] | None = None
        self._is_time = wish != "category" and is_time(table.dataset.schema.field(name).type)
        if kind is None and not self._is_time:
            self.set_aside = f"holds {self.type}, which is neither number nor text"

    def add(self, array: Any, first_row: int) -> Array:
        """The piece as numbers, or as codes once a string is not a number."""
        numbers = np.full(len(array), np.nan) if self.set_aside else self._numbers(array, first_row)
        self.missing += int(np.isnan(numbers).sum())
        if len(numbers) and not np.isnan(numbers).all():
            self.low, self.high = min(self.low, np.nanmin(numbers)), max(self.high, np.nanmax(numbers))
            if self._counts:
                steps = np.diff(numbers, prepend=self._last)
                self._counts, self._last = (
                    bool((steps >= 1).all() and (numbers == np.round(numbers)).all()),
                    numbers[-1],
                )
        return numbers

    def finish(self, total: int) -> None:
        """After the last piece: whether the column is to be left out, because it identifies rows or holds nothing."""
        known, kinds = total - self.missing, len(self.categories)
        if self.set_aside or self.wish is not None:
            return
        if not known:
            self.set_aside = "holds no values"
        elif kinds > _MOST_CATEGORIES or (kinds > _SOME_CATEGORIES and kinds > _MOSTLY_DIFFERENT * known):
            self.set_aside = f"identifiers or free text, {kinds:,} different ones in {known:,} rows"
        elif (
            not self.categories
            and self._counts
            and known >= _COUNTED
            and self.low in (0, 1)
            and self.high - self.low + 1 <= known * (1 + _GAPS)
        ):
            self.set_aside = "row numbers"

    def _numbers(self, array: Any, first_row: int) -> Array:
        if self.reader is not None:
            return self._read(self.reader, array, first_row)
        if self._is_time:
            piece = ArrowTime.of(array)
            self._arrow_time = piece if self._arrow_time is None else self._arrow_time.merged(piece)
            return np.where(array.is_null(), np.nan, 0.0)
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

    def _read(self, reader: Reader, array: Any, first_row: int) -> Array:
        numbers = reader.parse(array)
        at = unreadable(array, numbers)
        if at is not None:
            raise DataError(
                f"{self._table}, row {first_row + at + 1}: column {self.name!r} holds {array[at].as_py()!r}, unlike "
                f"the cells before it: correct it, or leave the column out with {drop_option(self.name)}"
            )
        return numbers

    def recognize(self) -> Reader | None:
        """The format of the cells that :meth:`add` has seen, if they are times, or texts that represent numbers."""
        if self._arrow_time is not None or self.kind != "text" or self.wish == "category" or not self.categories:
            return self._arrow_time
        try:
            return recognize([value for value in self.categories if isinstance(value, str)])
        except FormatError as error:
            raise DataError(
                f"column {self.name!r} of {self._table} {error}, or treat them as categories with "
                f"--map {shlex.quote(f'{self.name}=category')}"
            ) from error

    def _codes(self, array: Any) -> Array:
        values, codes = cells.distinct_values(array)
        if self.kind == "text":
            counts = np.bincount(codes[~np.isnan(codes)].astype(np.int64), minlength=len(values))
            numeric = np.array([parse_number(value) is not None for value in values], dtype=np.bool_)
            self._parsed, self._bad = self._parsed + counts[numeric].sum(), self._bad + counts[~numeric].sum()
        known = [np.nan if v is None else self.categories.setdefault(v, len(self.categories)) for v in values]
        if len(self.categories) > _MOST_TEXTS:
            self.set_aside = f"identifiers or free text, more than {_MOST_TEXTS:,} different ones"
        return cells.recode(codes, known)

    def refuse_mixed(self) -> None:
        """Refuse a column of numbers in which some strings are not numbers."""
        if self._first_bad is not None and self._parsed >= _MOSTLY_NUMBERS * (self._parsed + self._bad):
            row, value = self._first_bad
            raise DataError(f"{self._table}, row {row}: column {self.name!r} holds numbers, but here {value!r}")

    def sort_categories(self, values: Array, complete: bool) -> None:
        """Renumber the categories in a stable order, without those that occur only in rows that are left out."""
        present = set(np.unique(values[~np.isnan(values)])) if complete else set(self.categories.values())
        order = sorted((value for value, code in self.categories.items() if code in present), key=str)
        self.renumber(values, order)

    def renumber(self, values: Array, order: list[Any]) -> None:
        """Give the categories the codes 0, 1, ... in this order."""
        codes = np.full(len(self.categories), np.nan)
        codes[[self.categories[value] for value in order]] = np.arange(len(order))
        values[:] = cells.recode(values, codes.tolist())
        self.categories = {value: i for i, value in enumerate(order)}

    def formats(self, values: Array) -> list[tuple[ColumnFormat | None, Array]]:
        """The format of each part of the column, and its values."""
        if self.reader is None:
            return [(None, values)]
        if isinstance(self.reader, NumberFormat):
            return [(ColumnFormat(self.reader), values)]
        parts = ("time",) if self.role == "context" else choose_parts(values, self.reader.axis)
        chosen = ColumnFormat(self.reader, parts)
        return [(chosen, part) for part in split(values, parts, self.reader.axis).T]

    def column(self, values: Array) -> Column:
        """The column, with a map chosen by these values."""
        if self.categories:
            if self.wish not in (None, "auto", "category"):
                raise DataError(f"column {self.name!r} holds categories, and cannot take the map {self.wish!r}")
            return inspect_codes(self.name, values, tuple(self.categories), self.type, self.role)
        # Numbers in a text file are integers if all of them are.
        known = values[~np.isnan(values)]
        whole = bool((known == np.round(known)).all()) and max(-self.low, self.high) < LARGEST_INTEGER
        kind = ("int64" if whole else "double") if self.kind == "text" or self._is_time else self.type
        wish = None if self.wish == "auto" else self.wish
        bounds = (float(self.low), float(self.high))
        return inspect_numbers(self.name, values, kind, self.role, wish, bounds)


@dataclass(frozen=True)
class Feature:
    """A column of a table, or a part of it that is a feature of its own."""

    scan: ColumnScan
    format: ColumnFormat | None
    part: int
    bounds: tuple[float, float]  # of its values in all rows that are held

    @property
    def name(self) -> str:
        """The name of the column, and of the part if there are several."""
        if self.format is None or len(self.format.parts) == 1:
            return self.scan.name
        return f"{self.scan.name} [{self.format.parts[self.part]}]"

    def column(self, values: Array) -> Column:
        """The column, with a map chosen by these values."""
        if self.format is None:
            return self.scan.column(values)
        name = self.scan.name
        known = values[~np.isnan(values)]
        wish = None if self.scan.wish == "auto" else self.scan.wish
        whole = bool((known == np.round(known)).all())
        column = inspect_numbers(name, values, "int64" if whole else "double", self.scan.role, wish, self.bounds)
        return replace(column, name=self.name, source=name, part=self.part, format=self.format)


@dataclass
class Survey:
    """The rows of a table as numbers, or a sample of them, and what its columns hold."""

    numbers: Array  # (rows, columns) with codes for categories, NaN where a value is missing
    rows: Ids  # their row numbers in the table
    total: int  # rows in the table
    usable: Ids  # row numbers, of rows without missing values if those are not modelled
    complete: bool  # whether ``numbers`` holds all usable rows
    features: list[Feature]  # for every column of ``numbers``
    relations: list[Relation]  # by which columns are restored from others, in order
    set_aside: dict[str, str]  # columns that are left out, and why

    def columns(self, train: Ids) -> list[Column]:
        """The columns, with maps chosen by the values of these rows; bounds and categories come from all rows."""
        chosen = self.numbers[np.isin(self.rows, train, assume_unique=True)]
        columns = [feature.column(chosen[:, i]) for i, feature in enumerate(self.features)]
        targets = {relation.target: relation for relation in self.relations}
        columns = [replace(c, relation=targets.get(c.name)) for c in columns]
        if not any(c.role == "feature" and c.kind != "constant" for c in columns):
            raise DataError("every column is constant: there is nothing to model")
        return columns


def survey(
    table: Table,
    context: list[str],
    drop: list[str],
    missing: str = "model",
    maps: Mapping[str, Wish] | None = None,
    seed: int = 0,
    known: Known | None = None,
) -> Survey:
    """Read every value of a table; refuse what cannot be used, and leave out columns that identify rows.

    ``known`` is what an earlier reading has found out.
    """
    known = Known() if known is None else known
    maps = maps or {}
    _check_arguments(table, context, drop, missing, maps)
    left_out, side = set(drop), set(context)
    names = [name for name in table.columns if name not in left_out]
    roles: list[Role] = ["context" if name in side else "feature" for name in names]
    scans = [ColumnScan(table, name, role, maps.get(name), known) for name, role in zip(names, roles, strict=True)]
    sample = _Sample(len(names), seed)
    total = 0
    for batch in table.batches(names):
        if len(batch):
            pieces = [scan.add(table.cells(batch, scan.name), total) for scan in scans]
            sample.add(np.stack(pieces, axis=1), total)
            total += len(batch)
    recognized = {scan.name: scan.recognize() for scan in scans if scan.reader is None}
    readers = {name: reader for name, reader in recognized.items() if reader is not None}
    late = [scan.name for scan in scans if scan.categories and scan.began_as_numbers]
    if late or readers:  # read again, as texts from the start or by their format
        known = Known(known.texts.union(late).difference(readers), {**known.readers, **readers})
        return survey(table, context, drop, missing, maps, seed, known)
    for scan in scans:
        scan.refuse_mixed()
        scan.finish(total)
    if total == 0:
        raise DataError(f"{table.name} has no rows")
    kept = np.array([not scan.set_aside for scan in scans])
    aside = {scan.name: scan.set_aside for scan in scans if scan.set_aside}
    scans = [scan for scan in scans if not scan.set_aside]
    if not any(scan.role == "feature" for scan in scans):
        reasons = "; ".join(f"{name!r}: {reason}" for name, reason in aside.items())
        raise DataError(f"{table.name} has no column to model ({reasons}): keep one with --map COLUMN=auto")
    numbers, rows, usable, complete = sample.result(kept, missing)
    _check_rows(table.name, scans, len(usable), missing)
    for i, scan in enumerate(scans):
        if scan.categories:
            scan.sort_categories(numbers[:, i], complete)
    for i, codes in category_orders(numbers, [len(scan.categories) for scan in scans]).items():
        names = list(scans[i].categories)
        scans[i].renumber(numbers[:, i], [names[code] for code in codes])
    parts = [scan.formats(numbers[:, i]) for i, scan in enumerate(scans)]
    features = [
        Feature(scan, form, k, _bounds(values))
        for scan, own in zip(scans, parts, strict=True)
        for k, (form, values) in enumerate(own)
    ]
    numbers = np.stack([values for own in parts for _, values in own], axis=1)
    own = [i for i, f in enumerate(features) if f.scan.role == "feature" and f.scan.wish is None]
    relations = find_relations(
        numbers[:, own], [features[i].name for i in own], [features[i].name for i in own if features[i].scan.categories]
    )
    return Survey(numbers, rows, total, usable, complete, features, relations, aside)


def _bounds(values: Array) -> tuple[float, float]:
    known = values[~np.isnan(values)]
    return (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)


def _check_arguments(table: Table, context: list[str], drop: list[str], missing: str, maps: Mapping[str, Wish]) -> None:
    if missing not in ("model", "drop", "refuse"):
        raise DataError(f"missing must be 'model', 'drop' or 'refuse'; got {missing!r}")
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


def _check_rows(name: str, scans: list[ColumnScan], usable: int, missing: str) -> None:
    counts = [f"{scan.missing} in {scan.name!r}" for scan in scans if scan.missing]
    if counts and missing == "refuse":
        raise DataError(
            f"{name} has missing values: {', '.join(counts[:10])}. Model them with --missing model, or leave such rows "
            "out with --missing drop"
        )
    if usable < 10:
        raise DataError(f"{name} has {usable} usable rows: a density needs at least 10, better hundreds")


class _Sample:
    """Rows of a table: all of them up to a limit, from then on a random sample."""

    def __init__(self, width: int, seed: int) -> None:
        self._width = width
        self._random = np.random.default_rng(seed)
        self._parts: list[tuple[Array, Ids]] = []
        self._held = 0
        self._share = 1.0
        self._missing: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        self._complete = True

    def add(self, piece: Array, first_row: int) -> None:
        ids = first_row + np.arange(len(piece))
        self._missing.append(np.packbits(np.isnan(piece), axis=1))
        if not self._complete:
            chosen = self._random.random(len(piece)) < self._share
            piece, ids = piece[chosen], ids[chosen]
        self._parts.append((piece, ids))
        self._held += len(piece)
        if self._held > (IN_MEMORY // self._width if self._complete else 2 * SAMPLE):
            numbers, ids = self._rows()
            kept = np.sort(self._random.choice(len(ids), size=min(SAMPLE, len(ids)), replace=False))
            self._share *= len(kept) / len(ids)
            self._complete = False
            self._parts, self._held = [(numbers[kept], ids[kept])], len(kept)

    def _rows(self) -> tuple[Array, Ids]:
        numbers, ids = zip(*self._parts, strict=True)
        return np.concatenate(numbers), np.concatenate(ids)

    def result(self, columns: np.ndarray, missing: str) -> tuple[Array, Ids, Ids, bool]:
        """The rows, their row numbers, the row numbers of all usable ones, and whether the rows are all of those.

        Usable are rows without missing values in some columns, or all rows if missing values are modelled.
        """
        numbers, ids = self._rows()
        numbers = numbers[:, columns]
        total = sum(map(len, self._missing))
        if missing == "model":
            return numbers, ids, np.arange(total), self._complete
        wanted = np.packbits(columns)
        whole = np.concatenate([~(part & wanted).any(axis=1) for part in self._missing])
        chosen = whole[ids]
        return numbers[chosen], ids[chosen], np.flatnonzero(whole), self._complete
