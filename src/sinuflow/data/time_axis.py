"""Times as seconds since an origin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import InvalidValueError, fields, flag, integer, number
from .numbers import Array

Integers = np.ndarray[Any, np.dtype[np.int64]]

DAY = 86_400
WEEK = 7 * DAY
#: 1970-01-05, a Monday.
_MONDAY = 4 * DAY
#: The first and last second of the years 1 to 9999, since 1970.
FIRST, LAST = -62_135_596_800, 253_402_300_799


@dataclass(frozen=True)
class TimeAxis:
    """Seconds since an origin, on a grid.

    Float64 holds every time exactly up to 2**53 seconds or 2**51 shorter steps from the origin (71 years of
    microseconds, 26 days of nanoseconds); beyond, times are rounded.

    Args:
        origin: Seconds since 1970-01-01 00:00; the Monday 00:00 before the first time. 0 if not ``calendar``.
        step: The largest of a day, an hour, a minute, a second, 0.1 s, ... of which all times are multiples.
        calendar: Whether these are instants, of which day of the week and season mean something, and not times of
            day or durations.
    """

    origin: int = 0
    step: float = 1.0
    calendar: bool = False

    @property
    def per_second(self) -> int:
        """Steps per second, or 1 if a step is longer."""
        return max(1, round(1 / self.step))

    @property
    def seconds(self) -> int:
        """Seconds per step, or 1 if a step is shorter."""
        return max(1, round(self.step))

    @property
    def steps_per_day(self) -> int:
        """Steps per day."""
        return DAY // self.seconds * self.per_second

    def steps(self, numbers: Array) -> Array:
        """The nearest whole numbers of steps since the origin."""
        rounded: Array = np.rint(numbers * self.per_second / self.seconds)
        return rounded

    def numbers(self, steps: Array) -> Array:
        """Seconds since the origin of so many steps."""
        return steps * self.seconds / self.per_second

    def merged(self, other: TimeAxis) -> TimeAxis:
        """This axis with a step of which all times of both axes are multiples."""
        return TimeAxis(self.origin, min(self.step, other.step), self.calendar)

    @staticmethod
    def from_dict(value: Any, place: str = "axis") -> TimeAxis:
        """The axis that ``as_dict`` describes; anything else is refused."""
        _CHECK(value, place)
        if value["step"] not in STEPS:
            raise InvalidValueError(
                f"{place}.step", "a day, an hour, a minute, a second or a decimal of it", value["step"]
            )
        if (value["origin"] - _MONDAY) % WEEK if value["calendar"] else value["origin"]:
            raise InvalidValueError(f"{place}.origin", "a Monday 00:00, or 0 without a calendar", value["origin"])
        return TimeAxis(value["origin"], float(value["step"]), value["calendar"])

    @staticmethod
    def of(seconds: Integers, fractions: Integers, per_second: int, calendar: bool) -> TimeAxis:
        """The axis for whole seconds since 1970, midnight or zero, and fractions in so many units per second."""
        low = min(max(int(seconds.min()), FIRST), LAST) if len(seconds) else 0
        return TimeAxis(
            low - (low - _MONDAY) % WEEK if calendar else 0, _step(seconds, fractions, per_second), calendar
        )


#: The steps of an axis, in seconds.
STEPS = (float(DAY), 3600.0, 60.0, 1.0, *(float(f"1e-{digits}") for digits in range(1, 10)))

_CHECK = fields({"origin": integer(FIRST - WEEK, LAST), "step": number(above=0.0), "calendar": flag})


def _step(seconds: Integers, fractions: Integers, per_second: int) -> float:
    if fractions.any():
        common = math.gcd(int(np.gcd.reduce(fractions)), per_second)
        return next(step for step in STEPS[4:] if common * round(1 / step) % per_second == 0)
    common = int(np.gcd.reduce(seconds))
    return next(step for step in STEPS if common % int(step) == 0)


def first_days(periods: Any) -> tuple[Integers, Integers]:
    """The first days of months or years of datetime64, and those of the following ones, counted from 1970-01-01."""
    start, following = (period.astype("datetime64[D]").astype(np.int64) for period in (periods, periods + 1))
    return start, following
