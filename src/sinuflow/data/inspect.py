"""Choice of a column's map by its values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..bijections.columns import COLUMN_MAPS, ColumnMap, column_map_mistake, make_column_map
from ..bijections.quantiles import fit_quantiles
from ..checks import LARGEST_INTEGER, instance
from ..errors import ArgumentError, DataError
from .atoms import all_atoms, with_atoms
from .columns import Column, Role, columns_bijection
from .numbers import Array
from .rounding import Rounding

#: A user's choice of a column's map: a name, or a map class or instance.
MapChoice = str | type[ColumnMap] | ColumnMap

#: The fraction of repeated values from which values without a grid have cells, and decimals have a grid.
_REPEATED, _REPEATED_DECIMALS = 0.02, 0.05
#: The maximum fraction of positive values below the width of a cell, in a column without a grid, and the minimum width
#: relative to the largest value, for float64 to tell the ends of a cell apart.
_MAX_BELOW_CELL, _MIN_CELL = 0.01, 1e-9
#: The number of standard deviations beyond which tails are compressed; the second is for values beyond ``_TAIL``.
_TAIL, _HEAVY_TAIL = 8.0, 3.0


def inspect_numbers(
    name: str,
    values: Array,
    type_name: str,
    role: Role = "feature",
    map_choice: MapChoice | None = None,
    bounds: tuple[float, float] | None = None,
) -> Column:
    """The column for these numbers, NaN if missing.

    ``bounds`` are the extremes of all rows, if the values are a sample.
    """
    present = values[~np.isnan(values)]
    low, high = (float(present.min()), float(present.max())) if bounds is None else bounds
    if low == high and len(present) == len(values):
        value = int(low) if "int" in type_name else low
        return Column(name, "constant", type_name, role, categories=(value,))
    missing = 1 - len(present) / len(values)
    column = Column(name, "number", type_name, role, low=low, high=high, rows=len(values), missing=missing)
    if not len(present):  # all present values are outside of the sample
        extremes = np.unique([low, high])
        if role == "feature":
            return all_atoms(column, extremes, np.zeros(len(extremes)), len(values))
        return replace(column, centre=low, scale=high - low or 1.0)
    column = _with_grid(column, present)
    continuous = present
    if role == "feature":
        column = replace(column, rounding=_rounding(column, present))
        column, continuous = with_atoms(column, present)
        if column.discrete:
            return column
    if not column.step and not column.atoms:
        column = _with_cell(column, present)
    column = _with_map(column, continuous, map_choice)
    _check_map(column, continuous)
    column = _standardized(column, continuous)
    return column if role == "context" or map_choice is not None else _with_spline(column, continuous)


def inspect_codes(name: str, codes: Array, categories: tuple[Any, ...], type_name: str, role: Role) -> Column:
    """The column for a category, from the codes 0, 1, ... of its values, NaN if missing."""
    present = codes[~np.isnan(codes)]
    if len(categories) == 1 and len(present) == len(codes):
        return Column(name, "constant", type_name, role, categories=categories)
    high = len(categories) - 1.0
    column = Column(name, "category", type_name, role, step=1.0, rounded=True, high=high, categories=categories)
    counts = np.bincount(present.astype(np.int64), minlength=len(categories))
    values = np.arange(len(categories), dtype=np.float64)
    return all_atoms(replace(column, rows=len(codes)), values, counts.astype(np.float64), len(codes) - len(present))


def _with_spline(column: Column, values: Array) -> Column:
    """The column with a spline through the quantiles of its mapped values, spread over their cells."""
    random = np.random.default_rng(0)
    spread = values + column.cell * (random.random(len(values)) - 0.5)
    mapped = columns_bijection([column])(torch.from_numpy(spread)[:, None])[0][:, 0].numpy()
    knots, scores = fit_quantiles(mapped[np.isfinite(mapped)])
    return column if knots == scores else replace(column, knots=knots, scores=scores)


def _check_map(column: Column, values: Array) -> None:
    """Refuse a user's map that is not increasing or inconsistent with its derivative or inverse, and values outside."""
    if column.map not in ("linear", *COLUMN_MAPS):
        mistake = column_map_mistake(column.map, column.arguments, torch.from_numpy(values))
        if mistake is not None:
            raise DataError(f"column {column.name!r} cannot take the map {column.map!r}: {mistake}")
    outside = values[~np.isfinite(_mapped(column, values))]
    if len(outside):
        raise DataError(f"column {column.name!r} holds {outside[0]:g}, which is outside of the map {column.map!r}")


def _with_grid(column: Column, values: Array) -> Column:
    """The column with the step of integers or decimals."""
    distinct = np.unique(values)
    repeated = 1 - len(distinct) / len(values)
    whole = bool((distinct == np.round(distinct)).all())
    integers = "int" in column.type or (whole and repeated > 0)
    if len(distinct) > 1 and (integers or repeated >= _REPEATED_DECIMALS):
        digits = 0 if integers else _digits(distinct)
        if digits is not None:
            ends = np.append(distinct, [column.low, column.high])
            units = np.round((ends - column.low) * 10.0**digits)
            if units.max() < LARGEST_INTEGER:
                step = float(np.gcd.reduce(units[units > 0].astype(np.int64))) / 10.0**digits
                return replace(column, step=step, cell=step, origin=column.low, rounded=True, digits=digits)
    return column


def _with_cell(column: Column, values: Array) -> Column:
    """The column with cells, if values repeat; their width is the median difference of neighbouring values.

    The differences of positive values with a few significant digits, such as p-values, are of all magnitudes: wide
    cells would merge the small values. If no width suits all values, they have no cells.
    """
    distinct = np.unique(values)
    repeated = 1 - len(distinct) / len(values)
    if len(distinct) > 1 and repeated >= _REPEATED:
        width = float(np.median(np.diff(distinct)))
        if column.low > 0:
            width = min(width, float(np.quantile(values, _MAX_BELOW_CELL)))
            if width < _MIN_CELL * distinct[-1]:
                return column
        return replace(column, step=width, cell=width, origin=float(distinct[0]))
    return column


def _rounding(column: Column, values: Array) -> Rounding | None:
    """How samples are rounded; None for integers, and for values with all digits of float64."""
    if "int" in column.type:
        return None
    rounding = Rounding.as_written(np.append(values, [column.low, column.high]))
    return None if rounding == Rounding() else rounding


def _digits(distinct: Array) -> int | None:
    """The number of digits after the decimal point, or None if there are eight or more."""
    largest = float(np.abs(distinct).max())
    for digits in range(1, 8):
        scaled = distinct * 10.0**digits
        # Values that were once rounded to float32 are not exact decimals.
        slack = max(1e-6, 2e-7 * largest * 10.0**digits)
        if slack > 0.02:
            return None
        rounded = np.round(scaled)
        if bool((np.abs(scaled - rounded) <= slack).all()) and np.ptp(rounded) > 0:
            return digits
    return None


def _with_map(column: Column, values: Array, map_choice: MapChoice | None) -> Column:
    """The column with the map of this name, class or instance, or with the first automatic one that suits."""
    statistics = torch.from_numpy(values), float(values.min()), float(values.max()), column.step
    if map_choice is None:
        map_choice = next((name for name, kind in COLUMN_MAPS.items() if kind.suits(*statistics)), "linear")
    if map_choice == "linear":
        return column
    column_map = COLUMN_MAPS[map_choice] if isinstance(map_choice, str) else map_choice
    try:
        fitted = column_map if isinstance(column_map, ColumnMap) else column_map.fit(*statistics)
        instance("what its fit returns", fitted, ColumnMap)
        spec = fitted.spec()
    except ArgumentError as error:
        name = map_choice if isinstance(map_choice, str) else column_map.__name__
        raise DataError(f"column {column.name!r} cannot take a {name}: {error}") from error
    try:
        arguments = {name: float(np.asarray(value).item()) for name, value in spec.arguments.items()}
    except (TypeError, ValueError) as error:
        raise DataError(f"column {column.name!r} cannot take {spec}: its arguments must be single numbers") from error
    return replace(column, map=spec.name, arguments=arguments)


def _standardized(column: Column, values: Array) -> Column:
    """The column with a centre and a scale, robust ones if it has outliers, and the width of its tails."""
    y = _mapped(column, values)
    centre, scale = float(y.mean()), float(y.std())
    if float(np.abs(y - centre).max()) > _TAIL * scale:
        lower, median, upper = np.quantile(y, [0.25, 0.5, 0.75]).tolist()
        if upper > lower:
            return replace(column, centre=median, scale=(upper - lower) / 1.349, tail=_HEAVY_TAIL)
    # Dequantization adds the variance of a uniform distribution.
    spread = math.hypot(scale, column.step / math.sqrt(12) if column.map == "linear" else 0.0)
    # The scale is 0 if all values of the sample are equal.
    return replace(column, centre=centre, scale=spread or 1.0, tail=_TAIL)


def _mapped(column: Column, values: Array) -> Array:
    """The values under the column's map, before standardization."""
    if column.map == "linear":
        return values
    mapped: Array = make_column_map(column.map, column.arguments).value(torch.from_numpy(values)[None])[0].numpy()
    return mapped
