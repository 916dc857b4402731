"""Times as cyclic parts and a trend: a bijection between an instant and its week, weekday, time of day or season."""

from __future__ import annotations

import numpy as np

from .numbers import Array
from .time_axis import DAY, Integers, TimeAxis, first_days

Parts = tuple[str, ...]

#: The selections of parts; each is a mixed-radix representation of an instant.
SELECTIONS: tuple[Parts, ...] = (
    ("time",),
    ("month",),
    ("week", "weekday"),
    ("year", "day of year"),
    ("day", "time of day"),
    ("week", "weekday", "time of day"),
    ("year", "day of year", "time of day"),
)
#: The fewest different days with a part for the time of day, with one for the weekday, and with one for the season.
_DAYS, _WEEKS, _YEARS = 10, 8 * 7, 2 * 365
#: The 99.9 % quantiles of the chi-square distribution with 6 and with 11 degrees of freedom.
_UNEVEN_WEEK, _UNEVEN_YEAR = 22.46, 31.26
#: The most days over which weekdays and months are counted.
_LONGEST = 10_000 * 366
#: The first and last month of the years 1 to 9999, since 1970.
_MONTHS = (-1969 * 12, 8030 * 12 - 1)


def choose_parts(numbers: Array, axis: TimeAxis) -> Parts:
    """The parts that repeat in these seconds since the origin of an axis.

    - ("month",) if all times are the beginnings of different months;
    - "time of day" if the times of day differ, and the times are on at least ten different days, or if a weekday or
      season part follows and not all times are midnight;
    - "weekday", with "week", if they span eight weeks or more and the weekdays are unevenly frequent (chi-square test
      against the number of each in the span, at 0.1 %);
    - "day of year", with "year", if they span two years or more and the months are unevenly frequent (likewise). If
      both are uneven, the part that is more so, by the statistic per degree of freedom;
    - otherwise ("time",), or ("day", "time of day").

    Times of day and durations stay whole, NaN is ignored.

    Example:
        >>> fridays = np.arange(100) * 7 * 86400.0 + 4 * 86400
        >>> choose_parts(fridays, TimeAxis(origin=4 * 86400, step=86400.0, calendar=True))
        ('week', 'weekday')
    """
    days, time = _days(numbers[~np.isnan(numbers)], axis)
    if not axis.calendar or not len(days):
        return ("time",)
    of_day = ("time of day",) if time.any() else ()
    if not of_day and days.max() > days.min() and (_in_months(days) % 1 == 0).all():
        return ("month",)
    span = days.min() + np.arange(min(int(days.max() - days.min()) + 1, _LONGEST))
    week = _unevenness(_weekday(days), _weekday(span), 7) if len(span) >= _WEEKS else 0.0
    year = _unevenness(_month(days), _month(span), 12) if len(span) >= _YEARS else 0.0
    uneven_week, uneven_year = week > _UNEVEN_WEEK, year > _UNEVEN_YEAR
    if uneven_week and (not uneven_year or week / 6 >= year / 11):
        return ("week", "weekday", *of_day)
    if uneven_year:
        return ("year", "day of year", *of_day)
    repeats = len(np.unique(time)) > 1 and len(np.unique(days)) >= _DAYS
    return ("day", "time of day") if repeats else ("time",)


def split(numbers: Array, parts: Parts, axis: TimeAxis) -> Array:
    """The parts of seconds since the origin of an axis: an array (n, parts), NaN where a number is NaN.

    Days and weeks count from the origin, a Monday; weekdays from 0 (Monday), days of the year from 0 (1 January);
    "time of day" and "time" are seconds. "month" counts from January 1970, with the part of the month that is over.

    Example:
        >>> axis = TimeAxis(origin=4 * 86400, step=60.0, calendar=True)
        >>> split(np.array([9 * 86400 + 600.0]), ("week", "weekday", "time of day"), axis).tolist()
        [[1.0, 2.0, 600.0]]
    """
    if parts == ("time",):
        return numbers[:, None]
    missing = np.isnan(numbers)
    days, time = _days(np.where(missing, 0.0, numbers), axis)
    since = days - axis.origin // DAY
    week, weekday = np.divmod(since, 7)
    year = (days.astype("datetime64[D]")).astype("datetime64[Y]")
    values = {
        "time of day": time,
        "day": since,
        "week": week,
        "month": _in_months(days + time / DAY),
        "weekday": weekday,
        "year": year.astype(np.int64) + 1970,
        "day of year": days - year.astype("datetime64[D]").astype(np.int64),
    }
    columns = np.stack([values[part].astype(np.float64) for part in parts], axis=1)
    columns[missing] = np.nan
    return columns


def join(values: Array, parts: Parts, axis: TimeAxis) -> Array:
    """The seconds since the origin of these parts, the inverse of ``split``.

    Sampled parts are rounded, and drawn into their range: the 366th day of a year that has 365 is the last. "month"
    becomes the beginning of the nearest month.

    Example:
        >>> axis = TimeAxis(origin=4 * 86400, step=60.0, calendar=True)
        >>> join(np.array([[1.0, 7.3, 599.0]]), ("week", "weekday", "time of day"), axis).tolist()
        [1123800.0]
    """
    if parts == ("time",):
        return values[:, 0]
    missing = np.asarray(np.isnan(values).any(axis=1))
    part = dict(zip(parts, np.where(missing[:, None], 0.0, values).T, strict=True))
    if "year" in part:
        year = (np.clip(np.rint(part["year"]), 1, 9999).astype(np.int64) - 1970).astype("datetime64[Y]")
        start, following = first_days(year)
        day = np.clip(np.rint(part["day of year"]), 0, following - start - 1)
        days = start + day - axis.origin // DAY
    elif "month" in part:
        month = np.clip(np.rint(part["month"]), *_MONTHS).astype(np.int64).astype("datetime64[M]")
        days = month.astype("datetime64[D]").astype(np.int64) - axis.origin // DAY
    elif "week" in part:
        days = np.rint(part["week"]) * 7 + np.clip(np.rint(part["weekday"]), 0, 6)
    else:
        days = np.rint(part["day"])
    time = axis.steps(part["time of day"]) if "time of day" in part else np.zeros(len(values))
    steps = days * axis.steps_per_day + np.clip(time, 0, axis.steps_per_day - 1)
    return np.where(missing, np.nan, axis.numbers(steps))


def _days(numbers: Array, axis: TimeAxis) -> tuple[Integers, Array]:
    """Days since 1970 and seconds within the day, of numbers without NaN."""
    days, within = np.divmod(axis.steps(numbers).astype(np.int64), axis.steps_per_day)
    return days + axis.origin // DAY, axis.numbers(within.astype(np.float64))


def _in_months(days: Array | Integers) -> Array:
    """Months since 1970, with fractions."""
    whole = np.floor(days).astype(np.int64).astype("datetime64[D]").astype("datetime64[M]")
    start, following = first_days(whole)
    return np.asarray(whole.astype(np.int64) + (days - start) / (following - start), np.float64)


def _weekday(days: Integers) -> Integers:
    return (days + 3) % 7


def _month(days: Integers) -> Integers:
    return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12


def _unevenness(values: Integers, span: Integers, count: int) -> float:
    """The chi-square statistic of values in 0, ..., count - 1 against their frequencies in a span of days."""
    expected = np.bincount(span, minlength=count) * (len(values) / len(span))
    return float(((np.bincount(values, minlength=count) - expected) ** 2 / expected).sum())
