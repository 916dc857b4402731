"""A survey of a table: the contents of its columns, and rows from which their maps are chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import numpy as np

from ..bijections.columns import ColumnMap
from ..errors import DataError
from .category_order import category_orders
from .column_scan import ColumnScan, Feature, Reading, SetAside
from .columns import MAP_NAMES, UNBOUNDED, Bounds, Column, Role, quoted_list
from .find_relations import find_relations
from .inspect import MapChoice
from .numbers import Array
from .refusals import Refusals
from .relations import Relation
from .split import Ids
from .tables import Table

#: The maximum number of values that are held in memory, and the number of sampled rows of larger tables.
IN_MEMORY, SAMPLE = 50_000_000, 200_000


@dataclass
class Survey:
    """The rows of a table as numbers, or a sample of them, and the contents of its columns."""

    numbers: Array  # (rows, columns) with codes for categories, NaN where a value is missing
    rows: Ids  # their row numbers in the table
    total: int  # rows in the table
    usable: Ids  # the row numbers of all rows or, if missing values are not modelled, of complete ones
    complete: bool  # whether ``numbers`` has all usable rows
    features: list[Feature]  # for every column of ``numbers``
    relations: list[Relation]  # by which columns are restored from others, in order
    set_aside: dict[str, SetAside]  # columns that are left out, and why
    unread: dict[str, int]  # the number of cells by column that cannot be parsed, and count as missing
    name: str  # of the table

    def columns(self, train: Ids) -> list[Column]:
        """The columns, with maps chosen by the values of these rows; bounds and categories come from all rows."""
        selected = self.numbers[np.isin(self.rows, train, assume_unique=True)]
        refusals = Refusals(self.name)
        columns = _columns(zip(self.features, selected.T, strict=True), refusals)
        refusals.check()
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
    maps: Mapping[str, MapChoice] | None = None,
    seed: int = 0,
    bounds: Mapping[str, Bounds] | None = None,
) -> Survey:
    """Read every value of a table, and leave out columns that identify rows or cannot be read.

    Raises a :class:`DataError` if there is no column to model, if a chosen map or bound does not fit its column, or if
    a column that ``context`` or ``maps`` names would be left out.
    """
    maps, bounds = maps or {}, bounds or {}
    _check_arguments(table, context, drop, missing, maps, bounds)
    dropped, conditions = set(drop), set(context)
    names = [name for name in table.columns if name not in dropped]
    roles: list[Role] = ["context" if name in conditions else "feature" for name in names]
    readings: dict[str, Reading] = {}
    while True:  # a second time if texts have a format, or are numbers with exceptions
        scans = [
            ColumnScan(table, name, role, maps.get(name), bounds.get(name, UNBOUNDED), readings.get(name))
            for name, role in zip(names, roles, strict=True)
        ]
        sample, total = _read(table, scans, seed)
        second_readings = {scan.name: reading for scan in scans if (reading := scan.reread()) is not None}
        if not second_readings:
            break
        readings |= second_readings
    if total == 0:
        raise DataError(f"{table.name} has no rows")
    for scan in scans:
        scan.finish(total)
    refusals = _unusable_columns(table.name, scans)
    usable_columns = np.array([scan.set_aside is None for scan in scans])
    set_aside = {scan.name: scan.set_aside for scan in scans if scan.set_aside is not None}
    scans = [scan for scan in scans if scan.set_aside is None]
    numbers, rows, usable, complete = sample.result(usable_columns, missing)
    _check_rows(table.name, scans, len(usable), missing)
    for i, scan in enumerate(scans):
        if scan.categories:
            scan.sort_categories(numbers[:, i], complete)
    for i, codes in category_orders(numbers, [len(scan.categories) for scan in scans]).items():
        categories = list(scans[i].categories)
        scans[i].renumber(numbers[:, i], [categories[code] for code in codes])
    pairs = [pair for i, scan in enumerate(scans) for pair in scan.features(numbers[:, i])]
    if refusals.problems:
        _columns(pairs, refusals)
        refusals.check()
    features, numbers = [feature for feature, _ in pairs], np.stack([values for _, values in pairs], axis=1)
    free = [i for i, f in enumerate(features) if f.scan.role == "feature" and f.scan.map_choice in (None, "auto")]
    relations = find_relations(
        numbers[:, free],
        [features[i].name for i in free],
        [features[i].name for i in free if features[i].scan.categories],
    )
    unread = {scan.name: scan.unread.total() for scan in scans if scan.unread}
    return Survey(numbers, rows, total, usable, complete, features, relations, set_aside, unread, table.name)


def _read(table: Table, scans: list[ColumnScan], seed: int) -> tuple[_RowSample, int]:
    """Scan all columns; returns the rows, or a sample of them, and their number."""
    sample, total = _RowSample(len(scans), seed), 0
    for batch in table.batches([scan.name for scan in scans]):
        if len(batch):
            pieces = [scan.add(table.cells(batch, scan.name), total) for scan in scans]
            sample.add(np.stack(pieces, axis=1), total)
            total += len(batch)
    return sample, total


def _check_arguments(
    table: Table,
    context: list[str],
    drop: list[str],
    missing: str,
    maps: Mapping[str, MapChoice],
    bounds: Mapping[str, Bounds],
) -> None:
    if missing not in ("model", "drop", "refuse"):
        raise DataError(f"missing must be 'model', 'drop' or 'refuse'; got {missing!r}")
    present = set(table.columns)
    refusals = Refusals(table.name)
    for name in dict.fromkeys([*context, *drop, *maps, *bounds]):
        if name not in present:
            refusals.add(f"there is no column {name!r}{_hint(name, table.columns)}")
    for name, choice in dict[str, Any](maps).items():
        if isinstance(choice, str) and choice not in MAP_NAMES:
            refusals.add(f"column {name!r} cannot be mapped by {choice!r}: choose {', '.join(MAP_NAMES)}")
        elif not isinstance(choice, (str, ColumnMap)) and not (
            isinstance(choice, type) and issubclass(choice, ColumnMap)
        ):
            refusals.add(f"column {name!r} cannot be mapped by {choice!r}: pass a name, or a ColumnMap or its class")
    for name, limits in bounds.items():
        low, high = (end if limit is None else limit for limit, end in zip(limits, (-np.inf, np.inf), strict=True))
        if not low < high:
            refusals.add(f"the bounds of column {name!r} must increase; got {low:g} and {high:g}")
    refusals.check("mistakes")
    if not present.difference(drop, context):
        raise DataError(f"{table.name} has no columns left to model")


def _hint(name: str, columns: list[str]) -> str:
    """A hint at the columns of a table that a wrong name may mean."""
    close = get_close_matches(name, columns, 1) or [c for c in columns if c.strip().lower() == name.strip().lower()]
    return f": did you mean {close[0]!r}?" if close else f"; there are {quoted_list(columns)}"


def _columns(features: Iterable[tuple[Feature, Array]], refusals: Refusals) -> list[Column]:
    """The columns with maps chosen by these values; problems are added to the refusals."""
    columns = []
    for feature, values in features:
        try:
            columns.append(feature.column(values))
        except DataError as error:
            refusals.add(str(error), keep=None if feature.scan.is_automatic else (feature.scan.name, "auto"))
    return columns


def _unusable_columns(table: str, scans: list[ColumnScan]) -> Refusals:
    """The refusals of columns that the user has named and that are set aside; raised at once if no others are left."""
    none_left = not any(scan.role == "feature" and scan.set_aside is None for scan in scans)
    refusals = Refusals(table)
    for scan in scans:
        if scan.set_aside is not None and (none_left or scan.role == "context" or scan.map_choice is not None):
            reason, keep = scan.set_aside
            problem = f"column {scan.name!r} cannot be used: {reason}"
            if keep and keep != scan.map_choice:
                refusals.add(problem, keep=(scan.name, keep))
            else:
                refusals.add(problem, drop=None if none_left else scan.name)
    if none_left:
        refusals.check("columns cannot be used, and there are no others to model")
    return refusals


def _check_rows(name: str, scans: list[ColumnScan], usable: int, missing: str) -> None:
    counts = [f"{scan.missing} in {scan.name!r}" for scan in scans if scan.missing]
    if counts and missing == "refuse":
        raise DataError(
            f"{name} has missing values: {', '.join(counts[:10])}. Model them with --missing model, or leave such rows "
            "out with --missing drop"
        )
    if usable < 10:
        raise DataError(
            f"{name} has {usable} usable row{'' if usable == 1 else 's'}: a density needs at least 10, better hundreds"
        )


class _RowSample:
    """Rows of a table: all of them up to a limit, from then on a random sample."""

    def __init__(self, width: int, seed: int) -> None:
        self._width = width
        self._random = np.random.default_rng(seed)
        self._parts: list[tuple[Array, Ids]] = []
        self._count = 0
        self._fraction = 1.0
        self._missing: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
        self._complete = True

    def add(self, piece: Array, first_row: int) -> None:
        ids = first_row + np.arange(len(piece))
        self._missing.append(np.packbits(np.isnan(piece), axis=1))
        if not self._complete:
            sampled = self._random.random(len(piece)) < self._fraction
            piece, ids = piece[sampled], ids[sampled]
        self._parts.append((piece, ids))
        self._count += len(piece)
        if self._count > (IN_MEMORY // self._width if self._complete else 2 * SAMPLE):
            numbers, ids = self._rows()
            sampled = np.sort(self._random.choice(len(ids), size=min(SAMPLE, len(ids)), replace=False))
            self._fraction *= len(sampled) / len(ids)
            self._complete = False
            self._parts, self._count = [(numbers[sampled], ids[sampled])], len(sampled)

    def _rows(self) -> tuple[Array, Ids]:
        numbers, ids = zip(*self._parts, strict=True)
        return np.concatenate(numbers), np.concatenate(ids)

    def result(self, columns: np.ndarray, missing: str) -> tuple[Array, Ids, Ids, bool]:
        """The sampled rows, their row numbers, those of all usable rows, and whether the sample has all of them.

        If missing values are modelled, all rows are usable; otherwise those without missing values in these columns.
        """
        numbers, ids = self._rows()
        numbers = numbers[:, columns]
        total = sum(map(len, self._missing))
        if missing == "model":
            return numbers, ids, np.arange(total), self._complete
        mask = np.packbits(columns)
        usable = np.concatenate([~(part & mask).any(axis=1) for part in self._missing])
        selected = usable[ids]
        return numbers[selected], ids[selected], np.flatnonzero(usable), self._complete
