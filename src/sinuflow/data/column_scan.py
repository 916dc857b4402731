"""A scan of one column of a table, batch by batch: its type, range, categories and format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from ..checks import LARGEST_INTEGER
from ..errors import DataError
from .arrow_times import ArrowTime, is_time
from .cell_formats import CellFormat, FormatError
from .column_format import ColumnFormat
from .columns import READINGS, UNBOUNDED, Bounds, Column, Role
from .inspect import MapChoice, inspect_codes, inspect_numbers
from .numbers import Array, parse_number
from .tables import Table
from .text_formats import recognize
from .time_parts import choose_parts, split
from .values import INFINITE, distinct_values, first_large_integer, kind_of, recode, to_numbers

#: A column holds numbers (or times) with exceptions if at least this fraction of its cells are numbers, with at most
#: this number of different exceptions. With at most ten different numbers, it holds categories instead.
_MIN_NUMBERS, _MAX_UNREAD, _MAX_NUMBER_CATEGORIES = 0.5, 20, 10
#: The minimum number of cells per category of such a column.
_MIN_REPETITIONS = 3
#: Texts are identifiers or free text if there are more than ``_MAX_CATEGORIES`` different ones, or if there are more
#: than ``_SMALL_CATEGORIES`` and their number exceeds this fraction of the rows.
_MAX_CATEGORIES, _SMALL_CATEGORIES, _MAX_DIFFERENT = 5_000, 30, 0.5
#: The maximum number of different texts from which a format is recognized.
_MAX_TEXTS = 200_000
#: Increasing integers 1, 2, 3, ... are row numbers in at least this number of rows, with at most this fraction of gaps.
_MIN_ROW_NUMBERS, _MAX_GAPS = 30, 0.2
#: The sum of squares of larger numbers may overflow.
_MAX_NUMBER = 1e150
#: A column with fewer values than this is set aside if most are missing.
_MIN_VALUES = 10

#: How a column is read in a second scan: by a format, as categories although it begins with numbers, or as numbers with
#: exceptions.
Reading = CellFormat | Literal["category", "number"]


class SetAside(NamedTuple):
    """Why a column is left out of the model, and the value of ``--map`` that would keep it, if there is one."""

    reason: str
    keep: str = ""


class ColumnScan:
    """The type, range and categories of one column, read batch by batch."""

    def __init__(
        self,
        table: Table,
        name: str,
        role: Role,
        map_choice: MapChoice | None,
        bounds: Bounds,
        reading: Reading | None = None,
    ) -> None:
        self.name, self.role, self.map_choice, self.bounds = name, role, map_choice, bounds
        self.type = str(table.dataset.schema.field(name).type)
        kind = kind_of(self.type)
        self.kind = "category" if "category" in (map_choice, reading) else kind
        self.reader = None if isinstance(reading, str) else reading
        self._must_be_numbers = reading == "number"
        self._arrow_time: ArrowTime | None = None
        self.missing = 0
        self.low, self.high, self.whole = np.inf, -np.inf, True
        self.categories: dict[Any, int] = {}
        self.set_aside: SetAside | None = None
        #: The counts of texts that cannot be parsed in a column of numbers or times; such cells count as missing.
        self.unread: Counter[str] = Counter()
        self._last, self._is_increasing = -np.inf, True  # whether cells are increasing integers
        self._frequencies: Counter[Any] = Counter()  # of the categories
        self._numeric = 0  # number of cells before the first category
        self._distinct: set[float] = set()  # a sample of the numbers before the first category
        #: The lengths of the texts, until there are two, and 0 if some have other characters than digits; and whether
        #: texts begin with a zero.
        self._widths: set[int] = set()
        self._leading_zeros = False
        self._is_time = map_choice != "category" and is_time(table.dataset.schema.field(name).type)
        if kind is None and not self._is_time:
            what = "no values" if self.type == "null" else f"{self.type}, which is neither number nor text"
            self.set_aside = SetAside(f"holds {what}")

    def add(self, array: Any, first_row: int) -> Array:
        """The next batch as numbers, or as codes from the first text on that is not a number."""
        numbers = np.full(len(array), np.nan) if self.set_aside else self._numbers(array, first_row)
        present = numbers[~np.isnan(numbers)]
        self.missing += len(numbers) - len(present)
        if len(present):
            self.low, self.high = min(self.low, present.min()), max(self.high, present.max())
            self.whole = self.whole and bool((present == np.round(present)).all())
            self._is_increasing = (
                self._is_increasing and self.whole and bool((np.diff(numbers, prepend=self._last) >= 1).all())
            )
            self._last = numbers[-1]
        return numbers

    def _numbers(self, array: Any, first_row: int) -> Array:
        if self.reader is not None:
            numbers = self.reader.parse(array)
            self._count_unread(array, np.isnan(numbers) & ~np.asarray(array.is_null()))
            return numbers
        if self._is_time:
            piece = ArrowTime.of(array)
            self._arrow_time = piece if self._arrow_time is None else self._arrow_time.merged(piece)
            return np.where(array.is_null(), np.nan, 0.0)
        if self.kind == "category" or self.categories:
            return self._codes(array)
        numbers, bad = to_numbers(array)
        if bad.any() and not self._must_be_numbers:
            return self._codes(array)
        self._count_unread(array, bad)
        if self.kind == "text":
            self._add_widths(array)
        present = numbers[~np.isnan(numbers)]
        self._numeric += len(present)
        if len(self._distinct) <= _SMALL_CATEGORIES:
            self._distinct.update(np.unique(present)[: _SMALL_CATEGORIES + 1].tolist())
        large = first_large_integer(array, numbers)
        if large is not None:
            row, value = large
            self.set_aside = SetAside(
                f"holds the integer {value} in row {first_row + row + 1}, which float64 would round: an identifier, or "
                "a quantity to convert to floating point",
                "category",
            )
            return np.full(len(array), np.nan)
        infinite = np.isinf(numbers)
        if infinite.any():
            self.unread[INFINITE] += int(infinite.sum())
            numbers = np.where(infinite, np.nan, numbers)
        return numbers

    def _count_unread(self, array: Any, bad: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        if bad.any():
            self.unread.update(str(array[at].as_py()) for at in np.flatnonzero(bad).tolist())
            if len(self.unread) > _MAX_UNREAD:
                self.set_aside = SetAside(f"holds texts such as {next(iter(self.unread))!r} among numbers or times")

    def _add_widths(self, array: Any) -> None:
        from pyarrow import compute

        if len(self._widths) < 2:
            self._widths.update(compute.unique(compute.utf8_length(array)).drop_null().to_pylist())
        if len(self._widths) == 1:
            self._widths |= {0} if compute.match_substring_regex(array, "^[0-9]+$").false_count else set()
            self._leading_zeros |= compute.starts_with(array, "0").true_count > 0

    def _codes(self, array: Any) -> Array:
        values, codes = distinct_values(array)
        counts = np.bincount(codes[~np.isnan(codes)].astype(np.int64), minlength=len(values))
        self._frequencies.update({value: int(n) for value, n in zip(values, counts, strict=True) if value is not None})
        categories = [np.nan if v is None else self.categories.setdefault(v, len(self.categories)) for v in values]
        if len(self.categories) > _MAX_TEXTS:
            self.set_aside = SetAside(f"identifiers or free text, more than {_MAX_TEXTS:,} different ones")
        return recode(codes, categories)

    @property
    def zeros(self) -> int:
        """The number of digits if all texts have as many, some of them with zeros at the start; otherwise 0."""
        width = max(self._widths, default=0)
        return width if width > 1 and self._widths == {width} and self._leading_zeros and not self.unread else 0

    @property
    def is_automatic(self) -> bool:
        """Whether the kind of the column is chosen by its values."""
        return self.map_choice is None or (isinstance(self.map_choice, str) and self.map_choice in ("auto", *READINGS))

    def reread(self) -> Reading | None:
        """How to read the column in a second scan, after the last batch; None if no second scan is needed."""
        if self.reader is not None or self._arrow_time is not None:
            return self._arrow_time if self.reader is None else None
        if self.kind != "text" or not self.categories:
            return None
        texts = [value for value in self.categories if isinstance(value, str)]
        try:
            reader = self._recognize(
                texts, READINGS.get(self.map_choice, {}) if isinstance(self.map_choice, str) else {}
            )
        except FormatError as error:
            self.set_aside = SetAside(str(error), self._settling_choice(texts))
            return None
        if reader is not None:
            return reader
        if self._are_numbers(texts):
            return "number"
        return "category" if self._numeric else None

    def _recognize(self, texts: list[str], hints: dict[str, Any]) -> CellFormat | None:
        """The format of all these texts, or of all but a few without digits, such as "unknown" or 0000-00-00."""
        reader = recognize(texts, **hints)
        with_digits = [text for text in texts if any(c in "123456789" for c in text)]
        if (
            reader is None
            and 0 < len(texts) - len(with_digits) <= _MAX_UNREAD
            and self._fraction(with_digits) >= _MIN_NUMBERS
        ):
            reader = recognize(with_digits, **hints)
        return reader

    def _settling_choice(self, texts: list[str]) -> str:
        """The first value of ``--map`` that settles an ambiguous format."""
        for name, hints in READINGS.items():
            with suppress(FormatError):
                if self._recognize(texts, hints) is not None:
                    return name
        return ""

    def _are_numbers(self, texts: list[str]) -> bool:
        """Whether these texts are numbers but for a few exceptions, which do not look like further categories."""
        numbers = {text: number for text in texts if (number := parse_number(text)) is not None}
        exceptions, different = len(texts) - len(numbers), len(self._distinct.union(numbers.values()))
        fraction = self._fraction(numbers)
        if exceptions > _MAX_UNREAD or fraction < _MIN_NUMBERS:
            return False
        as_frequent = (1 - fraction) / max(1, exceptions) >= fraction / different  # as the numbers
        kinds = different + exceptions
        repeated = self._numeric + sum(self._frequencies.values()) >= _MIN_REPETITIONS * kinds
        categories = different <= _MAX_NUMBER_CATEGORIES or (as_frequent and repeated and kinds <= _SMALL_CATEGORIES)
        return not (categories and self.is_automatic)

    def _fraction(self, texts: Iterable[str]) -> float:
        """The fraction of cells with these texts, or with numbers before the first text."""
        total = self._numeric + sum(self._frequencies.values())
        return (self._numeric + sum(self._frequencies[text] for text in texts)) / total

    def finish(self, total: int) -> None:
        """After the last scan, set the column aside if it identifies rows or holds hardly any values."""
        present, kinds = total - self.missing, len(self.categories)
        if self.set_aside or self.map_choice is not None:
            return
        if not present:
            self.set_aside = SetAside("holds no values")
        elif max(-self.low, self.high) > _MAX_NUMBER:
            self.set_aside = SetAside(f"holds numbers beyond {_MAX_NUMBER:g}, whose variance float64 cannot hold")
        elif present < _MIN_VALUES and present < self.missing:
            self.set_aside = SetAside(f"holds only {present} value{'s'[: present - 1]} in {total:,} rows", "auto")
        elif kinds > _MAX_CATEGORIES or (kinds > _SMALL_CATEGORIES and kinds > _MAX_DIFFERENT * present):
            self.set_aside = SetAside(f"identifiers or free text, {kinds:,} different ones in {present:,} rows", "auto")
        elif (
            not self.categories
            and self._is_increasing
            and present >= _MIN_ROW_NUMBERS
            and self.low in (0, 1)
            and self.high - self.low + 1 <= present * (1 + _MAX_GAPS)
        ):
            self.set_aside = SetAside("row numbers", "auto")

    def sort_categories(self, values: Array, complete: bool) -> None:
        """Sort the categories, without those that occur only in rows that are left out."""
        present = set(np.unique(values[~np.isnan(values)])) if complete else set(self.categories.values())
        order = sorted((value for value, code in self.categories.items() if code in present), key=str)
        self.renumber(values, order)

    def renumber(self, values: Array, order: list[Any]) -> None:
        """Give the categories the codes 0, 1, ... in this order."""
        codes = np.full(len(self.categories), np.nan)
        codes[[self.categories[value] for value in order]] = np.arange(len(order))
        values[:] = recode(values, codes.tolist())
        self.categories = {value: i for i, value in enumerate(order)}

    def features(self, values: Array) -> list[tuple[Feature, Array]]:
        """The features of the column, and their values."""
        column_format = None if self.reader is None else ColumnFormat(self.reader)
        axis = None if column_format is None else column_format.axis
        if column_format is None or axis is None:
            return [(Feature(self, column_format, 0, (float(self.low), float(self.high))), values)]
        parts = ("time",) if self.role == "context" else choose_parts(values, axis)
        column_format = replace(column_format, parts=parts)
        columns = split(values, parts, axis).T
        return [(Feature(self, column_format, k, _extremes(column)), column) for k, column in enumerate(columns)]


@dataclass(frozen=True)
class Feature:
    """A column of a table, or a part of it that is a feature of its own."""

    scan: ColumnScan
    format: ColumnFormat | None
    part: int
    extremes: tuple[float, float]  # the smallest and the largest value in the table

    @property
    def name(self) -> str:
        """The name of the column, and of the part if there are several."""
        if self.format is None or len(self.format.parts) == 1:
            return self.scan.name
        return f"{self.scan.name} [{self.format.parts[self.part]}]"

    def column(self, values: Array) -> Column:
        """The column, with a map chosen by these values; a :class:`DataError` if the user's choice does not fit."""
        scan = self.scan
        self._check_bounds()
        if scan.categories:
            if scan.map_choice not in (None, "auto", "category"):
                shown = repr(scan.map_choice) if isinstance(scan.map_choice, str) else scan.map_choice
                raise DataError(f"column {scan.name!r} holds categories, and cannot take the map {shown}")
            column = inspect_codes(scan.name, values, tuple(scan.categories), scan.type, scan.role)
            return self._with_missing(column, len(values))
        if self.format is None and isinstance(scan.map_choice, str) and scan.map_choice in READINGS:
            raise DataError(f"column {scan.name!r} holds plain numbers, and cannot be read by {scan.map_choice!r}")
        present = values[~np.isnan(values)]
        whole = bool((present == np.round(present)).all()) if self.is_time else scan.whole
        text = self.format is not None or scan.kind == "text"
        whole = whole and max(map(abs, self.extremes)) < LARGEST_INTEGER
        kind = ("int64" if whole else "double") if text else scan.type
        map_choice = None if scan.is_automatic else scan.map_choice
        column = inspect_numbers(scan.name, values, kind, scan.role, map_choice, self.extremes)
        zeros = scan.zeros if self.format is None and "int" in kind else 0
        column = replace(column, bounds=scan.bounds, unread=tuple(sorted(scan.unread)), zeros=zeros)
        column = self._with_missing(column, len(values))
        if self.format is None:
            return column
        return replace(column, name=self.name, source=scan.name, part=self.part, format=self.format)

    def _with_missing(self, column: Column, rows: int) -> Column:
        """The column; a context column has a probability of missing values also if only unsampled rows have them."""
        if column.role == "feature" or column.kind == "constant" or column.missing or not self.scan.missing:
            return column
        missing = 0.5 / (rows + 0.5)
        return replace(column, missing=missing, masses=tuple(mass * (1 - missing) for mass in column.masses))

    @property
    def is_time(self) -> bool:
        """Whether the feature is a time or a part of it."""
        return self.format is not None and self.format.axis is not None

    def _check_bounds(self) -> None:
        """Refuse bounds of a column without numbers, and values outside of them."""
        scan = self.scan
        if scan.bounds == UNBOUNDED:
            return
        if scan.categories or self.is_time or scan.role == "context":
            what = "is a context column" if scan.role == "context" else "does not hold numbers"
            raise DataError(f"column {scan.name!r} {what}, and cannot have bounds")
        for bound, value, beyond in zip(scan.bounds, (scan.low, scan.high), ("below", "above"), strict=True):
            if bound is not None and (value < bound if beyond == "below" else value > bound):
                raise DataError(f"column {scan.name!r} holds {value:g}, which is {beyond} its bound {bound:g}")


def _extremes(values: Array) -> tuple[float, float]:
    present = values[~np.isnan(values)]
    return (float(present.min()), float(present.max())) if len(present) else (0.0, 0.0)
