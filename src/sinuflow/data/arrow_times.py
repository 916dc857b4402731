"""Dates, times and durations of Arrow arrays as seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..checks import InvalidValueError, anything, fields, one_of, optional, text
from .cell_formats import CellFormat
from .numbers import Array
from .time_axis import DAY, FIRST, LAST, Integers, TimeAxis

#: Stored units per second; dates of 32 bits count days.
_PER_SECOND = {"day": 1, "s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNITS = {
    "date32": ("day",),
    "date64": ("ms",),
    "timestamp": ("s", "ms", "us", "ns"),
    "time32": ("s", "ms"),
    "time64": ("us", "ns"),
    "duration": ("s", "ms", "us", "ns"),
}
#: How the names of types begin that have a calendar.
_CALENDAR = ("date", "timestamp")
#: A float64 that int64 holds.
_LARGEST = 2**63 - 1024


def is_time(arrow_type: Any) -> bool:
    """Whether an Arrow type is a date, a time or a duration."""
    from pyarrow import types

    return bool(types.is_temporal(arrow_type) and not types.is_interval(arrow_type))


@dataclass(frozen=True)
class ArrowTime(CellFormat):
    """An Arrow type of dates, times or durations, as seconds since the origin of an axis.

    Dates are of the years 1 to 9999. Timestamps with a time zone stay in UTC, as an hour occurs twice when clocks are
    set back.

    Example:
        >>> import pyarrow
        >>> days = pyarrow.array([0, 31], pyarrow.date32())
        >>> dates = ArrowTime.of(days)
        >>> dates.axis
        TimeAxis(origin=-259200, step=86400.0, calendar=True)
        >>> dates.parse(days).tolist()
        [259200.0, 2937600.0]
        >>> dates.write(dates.parse(days)).equals(days)
        True
    """

    type: str
    unit: str
    zone: str | None
    axis: TimeAxis

    _check = fields(
        {"type": one_of(*_UNITS), "unit": one_of(*_PER_SECOND), "zone": optional(text(100)), "axis": anything}
    )

    @staticmethod
    def of(array: Any) -> ArrowTime:
        """The type of an array, with an axis for its times; ``merged`` adds those of others."""
        kind, unit = re.findall(r"\w+", str(array.type))[:2]
        seconds, fractions = np.divmod(_ticks(array.drop_null(), unit), _PER_SECOND[unit])
        axis = TimeAxis.of(seconds, fractions, _PER_SECOND[unit], calendar=kind.startswith(_CALENDAR))
        return ArrowTime(kind, unit, getattr(array.type, "tz", None), axis)

    def merged(self, other: ArrowTime) -> ArrowTime:
        """This type with an axis on which also the times of another part of the column lie."""
        return replace(self, axis=self.axis.merged(other.axis))

    @property
    def arrow_type(self) -> Any:
        """The Arrow type."""
        import pyarrow

        if self.type == "timestamp":
            return pyarrow.timestamp(self.unit, self.zone)
        make = getattr(pyarrow, self.type)
        return make() if self.type.startswith("date") else make(self.unit)

    def parse(self, array: Any) -> Array:
        ticks = _ticks(array.cast(self.arrow_type).fill_null(0), self.unit)
        units = _PER_SECOND[self.unit]
        return np.where(array.is_null(), np.nan, (ticks - self.axis.origin * units) / units)

    def write(self, numbers: Array) -> Any:
        import pyarrow

        units = _PER_SECOND[self.unit]
        reach = (2**63 - 1) // units - 1
        low, high = (max(FIRST, -reach), min(LAST, reach)) if self.axis.calendar else (-reach, reach)
        low, high = (0, DAY - 1) if self.type in ("time32", "time64") else (low, high)
        finite = np.isfinite(numbers)
        steps = self.axis.steps(np.where(finite, numbers, 0.0))
        per_step = units // self.axis.per_second * self.axis.seconds  # whole, as the steps come from this unit
        origin, low, high = self.axis.origin * units, low * units, (high + 1) * units - 1
        ticks = np.clip(steps * per_step, low - origin, min(high - origin, _LARGEST)).astype(np.int64) + origin
        ticks = np.clip(ticks, low, high)  # float64 may have rounded the bounds
        narrow = self.type in ("date32", "time32")
        stored = (ticks // DAY if self.unit == "day" else ticks).astype(np.int32 if narrow else np.int64)
        return pyarrow.array(stored, mask=~finite).cast(self.arrow_type)

    def _check_consistency(self, place: str) -> None:
        if self.unit not in _UNITS[self.type]:
            raise InvalidValueError(f"{place}.unit", f"a unit of {self.type}", self.unit)
        if self.axis.per_second > _PER_SECOND[self.unit]:
            raise InvalidValueError(f"{place}.axis.step", f"at least one {self.unit}", self.axis.step)
        if self.axis.calendar != self.type.startswith(_CALENDAR):
            raise InvalidValueError(f"{place}.axis.calendar", "true for dates and timestamps only", self.axis.calendar)
        if self.zone is not None and self.type != "timestamp":
            raise InvalidValueError(f"{place}.zone", "null but for timestamps", self.zone)


def _ticks(array: Any, unit: str) -> Integers:
    """The stored integers of an array without nulls; seconds for days."""
    import pyarrow

    stored = array.cast(pyarrow.int32() if array.type.bit_width == 32 else pyarrow.int64())
    ticks: Integers = stored.to_numpy(zero_copy_only=False).astype(np.int64)
    return ticks * DAY if unit == "day" else ticks
