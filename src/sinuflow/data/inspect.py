"""Choosing a column's map by looking at its values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import DataError
from .columns import Column, Role
from .names import drop_option

Array = np.ndarray[Any, np.dtype[np.float64]]

#: The share of repeated values from which a column without a grid is dequantised.
_REPEATED = 0.02
#: The share of repeated values from which a column of decimals is dequantised.
_REPEATED_DECIMALS = 0.05
#: Digits after the point that are looked for.
_DIGITS = 8
#: Skewness from which a logarithm is considered.
_SKEWED = 1.5
#: Values so many usual widths away from the middle drown all others.
_ABSURD = 1e7
#: Where far values begin to be drawn in, in standard deviations: usually, and for heavy tails.
_TAIL, _HEAVY_TAIL = 8.0, 3.0
#: The largest standardised value of a column whose tails are not heavy.
_FAR = 8.0


def inspect_numbers(
    name: str,
    values: Array,
    type_name: str,
    role: Role = "feature",
    wish: str | None = None,
    seen: tuple[float, float] | None = None,
) -> Column:
    """The column for these numbers, all of which are finite.

    ``seen`` are the smallest and the largest value of all rows, if these are only some of them.
    """
    low, high = (float(values.min()), float(values.max())) if seen is None else seen
    if low == high:
        value = int(low) if "int" in type_name else low
        return Column(name, "constant", type_name, role, categories=(value,))
    column = Column(name, "number", type_name, role, low=low, high=high)
    column = _with_map(_with_grid(column, values), values, wish)
    _refuse_absurd(column, values)
    return _standardised(column, values)


def inspect_codes(name: str, codes: Array, categories: tuple[Any, ...], type_name: str, role: Role) -> Column:
    """The column for a category, given as codes 0, 1, ... of its values."""
    if len(categories) == 1:
        return Column(name, "constant", type_name, role, categories=categories)
    column = Column(
        name,
        "category",
        type_name,
        role,
        step=1.0,
        rounded=True,
        low=0.0,
        high=len(categories) - 1.0,
        categories=categories,
    )
    return _standardised(column, codes)


def _refuse_absurd(column: Column, values: Array) -> None:
    """A value that dwarfs all others would leave them as one point."""
    ends = np.array([column.low, column.high])
    values, given = apply_map(column, np.append(values, ends)), np.append(values, ends)
    quarter, middle, three = (float(q) for q in np.quantile(values, [0.25, 0.5, 0.75]))
    distance = np.abs(values - middle)
    worst = int(distance.argmax())
    # Where most values are equal, the others say what is usual.
    others = distance[distance > 0]
    width = three - quarter if three > quarter else float(np.median(others)) if len(others) else np.inf
    if distance[worst] > _ABSURD * width:
        raise DataError(
            f"column {column.name!r} holds {given[worst]:g}, absurdly far from its other values, which are around "
            f"{float(np.median(given)):g}: remove such rows, or leave the column out with {drop_option(column.name)}"
        )


def _with_grid(column: Column, values: Array) -> Column:
    """Find the step of integers, of decimals, and of other repeated values."""
    distinct = np.unique(values)
    repeated = 1 - len(distinct) / len(values)
    whole = bool((distinct == np.round(distinct)).all())
    integers = "int" in column.type or (whole and repeated > 0)
    if len(distinct) > 1 and (integers or repeated >= _REPEATED_DECIMALS):
        digits = 0 if integers else _digits(distinct)
        if digits is not None:
            ends = np.append(distinct, [column.low, column.high])
            units = np.round((ends - column.low) * 10.0**digits)
            if units.max() < 2**53:
                step = float(np.gcd.reduce(units[units > 0].astype(np.int64))) / 10.0**digits
                return replace(column, step=step, origin=column.low, rounded=True, digits=digits)
    if len(distinct) > 1 and repeated >= _REPEATED:
        gap = float(np.median(np.diff(distinct)))
        return replace(column, step=gap, origin=float(distinct[0]))
    return column


def _digits(distinct: Array) -> int | None:
    """How many digits after the decimal point the values have, or None if that are too many."""
    largest = float(np.abs(distinct).max())
    for digits in range(1, _DIGITS):
        scaled = distinct * 10.0**digits
        # Numbers that were once stored in single precision are a little off.
        slack = max(1e-6, 2e-7 * largest * 10.0**digits)
        if slack > 0.02:
            return None
        if bool((np.abs(scaled - np.round(scaled)) <= slack).all()):
            return digits
    return None


def _with_map(column: Column, values: Array, wish: str | None) -> Column:
    # The logarithm's argument must be positive in all of the lowest cell.
    offset = min(0.0, column.low - column.step) if column.low > 0 else column.low - column.step
    if wish == "log":
        if not column.step and column.low <= 0:
            raise DataError(f"column {column.name!r} cannot take a log: it holds {column.low:g}, not above 0")
        return replace(column, map="log", offset=offset)
    if wish == "logit" or (wish is None and _fills_the_unit_interval(column, values)):
        if column.low > 0 and column.high < 1 and not column.step:
            return replace(column, map="logit")
        margin = column.step or 1e-3 * (column.high - column.low)
        return replace(column, map="logit", lower=column.low - margin, upper=column.high + margin)
    if wish is None and column.low >= 0 and (column.low > 0 or column.step) and len(values) >= 50:
        skew, skew_of_log = _skewness(values), _skewness(np.log(values - offset))
        if skew > _SKEWED and abs(skew_of_log) < skew / 2:
            return replace(column, map="log", offset=offset)
    return column


def _fills_the_unit_interval(column: Column, values: Array) -> bool:
    inside = 0 < column.low < 0.02 and 0.98 < column.high < 1 and not column.step
    edges = float(((values < 0.1) | (values > 0.9)).mean()) if inside else 0.0
    return inside and edges > 0.2


def _skewness(values: Array) -> float:
    centred = values - values.mean()
    spread = centred.std()
    return float((centred**3).mean() / spread**3) if spread > 0 else math.inf


def _standardised(column: Column, values: Array) -> Column:
    y = apply_map(column, values)
    centre, scale = float(y.mean()), float(y.std())
    if float(np.abs(y - centre).max()) > _FAR * scale:
        quarter, middle, three = (float(q) for q in np.quantile(y, [0.25, 0.5, 0.75]))
        if three > quarter:
            centre, scale = middle, (three - quarter) / 1.349
            return replace(column, centre=centre, scale=scale, tail=_HEAVY_TAIL)
    # Dequantisation adds the variance of a uniform distribution.
    spread = math.hypot(scale, column.step / math.sqrt(12) if column.map == "linear" else 0.0)
    return replace(column, centre=centre, scale=spread, tail=_TAIL)


def apply_map(column: Column, values: Array) -> Array:
    """The logarithm or logit of the values, if that is the column's map."""
    if column.map == "log":
        return np.log(values - column.offset)
    if column.map == "logit":
        share = (values - column.lower) / (column.upper - column.lower)
        return np.log(share) - np.log1p(-share)
    return values
