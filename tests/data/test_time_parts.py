"""Times of Arrow arrays as seconds, and times as parts."""

import datetime

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinuflow.checks import InvalidValueError
from sinuflow.data.arrow_times import ArrowTime, is_time
from sinuflow.data.time_axis import STEPS, TimeAxis
from sinuflow.data.time_parts import SELECTIONS, choose_parts, join, split

MONDAY = 4 * 86_400
RANGES = {
    pyarrow.date32(): (-719_000, 2_900_000),
    pyarrow.timestamp("s"): (-60_000_000_000, 250_000_000_000),
    pyarrow.timestamp("ms", "UTC"): (-(10**13), 10**13),
    pyarrow.timestamp("us", "Europe/Berlin"): (10**15, 2 * 10**15),
    pyarrow.timestamp("ns"): (10**18, 10**18 + 2**50),
    pyarrow.time32("s"): (0, 86_399),
    pyarrow.time32("ms"): (0, 86_399_999),
    pyarrow.time64("us"): (0, 86_399_999_999),
    pyarrow.time64("ns"): (0, 86_399_999_999_999),
    pyarrow.duration("s"): (-(10**12), 10**12),
    pyarrow.duration("ns"): (-(2**50), 2**50),
}


@pytest.mark.parametrize("arrow_type", RANGES, ids=str)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_arrow_times_are_exact(arrow_type, data):
    coarse = data.draw(st.sampled_from([1, 1000, 60_000]))
    low = RANGES[arrow_type][0]
    stored = [max(n - n % coarse, low) for n in data.draw(st.lists(st.integers(*RANGES[arrow_type]), min_size=1))]
    narrow = pyarrow.int32() if arrow_type.bit_width == 32 else pyarrow.int64()
    array = pyarrow.array([*stored, None], narrow).cast(arrow_type)
    known = ArrowTime.of(array)
    assert is_time(arrow_type)
    assert known.arrow_type == arrow_type
    numbers = known.parse(array)
    assert np.isnan(numbers).tolist() == [False] * len(stored) + [True]
    assert known.write(numbers).equals(array)
    assert ArrowTime.from_dict(known.as_dict()) == known
    if known.axis.calendar:
        assert (known.axis.origin - MONDAY) % (7 * 86400) == 0
        assert 0 <= np.nanmin(numbers) < 7 * 86400


def test_dates_of_64_bits_and_parts_of_a_column():
    first = pyarrow.array([datetime.date(2020, 1, 1)], pyarrow.date64())
    second = pyarrow.array([datetime.date(1950, 1, 1)], pyarrow.date64())
    known = ArrowTime.of(first).merged(ArrowTime.of(second))
    assert known.axis.step == 86400
    assert known.write(known.parse(second)).equals(second)
    times = [pyarrow.array([n], pyarrow.timestamp("us")) for n in (10**15, 10**15 + 250_000)]
    known = ArrowTime.of(times[0]).merged(ArrowTime.of(times[1]))
    assert known.axis.step == 0.01
    assert known.write(known.parse(times[1])).equals(times[1])
    assert not is_time(pyarrow.string())


@pytest.mark.parametrize("arrow_type", RANGES, ids=str)
def test_any_sample_is_written(arrow_type):
    known = ArrowTime.of(pyarrow.array([0, 1], arrow_type))
    cells = known.write(np.array([-1e30, 1e30, -1.5, 0.0, np.nan, np.inf]))
    assert cells.type == arrow_type
    assert cells.null_count == 2
    empty = ArrowTime.of(pyarrow.array([None], arrow_type))
    assert empty.write(empty.parse(pyarrow.array([None], arrow_type))).null_count == 1


@pytest.mark.parametrize(
    "change",
    [
        {"type": "x"},
        {"unit": "ns"},
        {"zone": 5},
        {"zone": "UTC"},
        {"axis": None},
        {"more": 1},
        {"axis": {"step": 1e-3}},
    ],
)
def test_damaged_types_are_refused(change):
    whole = ArrowTime.of(pyarrow.array([1], pyarrow.date32())).as_dict()
    with pytest.raises(InvalidValueError):
        ArrowTime.from_dict({**whole, **change})


@settings(deadline=None, max_examples=200)
@given(
    parts=st.sampled_from(SELECTIONS),
    step=st.sampled_from(STEPS[:7]),
    origin=st.integers(-100_000, 50_000),
    values=st.lists(st.integers(-(10**9), 10**9)),
)
def test_parts_are_a_bijection(parts, step, origin, values):
    axis = TimeAxis(MONDAY + origin * 7 * 86400, step, calendar=True)
    step = step if "time of day" in parts or parts == ("time",) else 86400.0
    numbers = TimeAxis(0, step).numbers(np.array([n % (10**11 // max(1, int(step))) for n in values], np.float64))
    numbers = np.append(numbers, np.nan)
    if parts == ("month",):
        days = ((numbers[:-1] + axis.origin) / 86400).astype("datetime64[D]")
        numbers[:-1] = days.astype("datetime64[M]").astype("datetime64[D]").astype(float) * 86400 - axis.origin
    columns = split(numbers, parts, axis)
    assert columns.shape == (len(numbers), len(parts))
    np.testing.assert_array_equal(join(columns, parts, axis), numbers)
    if "weekday" in parts:
        days = (numbers[:-1] + axis.origin) // 86400
        expected = [(day + 3) % 7 for day in days]
        assert columns[:-1, parts.index("weekday")].tolist() == expected


def test_sampled_parts_are_drawn_into_their_range():
    axis = TimeAxis(MONDAY, 3600.0, calendar=True)
    assert join(np.array([[0.4, 8.0, 1e6]]), ("week", "weekday", "time of day"), axis).tolist() == [7 * 86400 - 3600]
    leap = join(np.array([[1971.0, 365.0], [1972.0, 365.0]]), ("year", "day of year"), axis) + MONDAY
    assert leap.astype("datetime64[s]").astype(str).tolist() == ["1971-12-31T00:00:00", "1972-12-31T00:00:00"]


def calendar_days(years):
    return np.arange(years * 365) * 86400.0


DAYS = TimeAxis(MONDAY, 86400.0, calendar=True)
HOURS = TimeAxis(MONDAY, 3600.0, calendar=True)


def test_choice_of_parts():
    days = calendar_days(3)
    weekdays = days[(days // 86400) % 7 < 5]
    month = (days + MONDAY).astype("datetime64[s]").astype("datetime64[M]").astype(int) % 12
    summer = days[(month > 4) & (month < 8)]
    hours = (days[:, None] + 3600 * np.arange(24)).reshape(-1)
    assert choose_parts(days, DAYS) == ("time",)
    assert choose_parts(weekdays, DAYS) == ("week", "weekday")
    assert choose_parts(np.append(weekdays, np.nan), DAYS) == ("week", "weekday")
    assert choose_parts(weekdays[:30], DAYS) == ("time",)
    assert choose_parts(summer, DAYS) == ("year", "day of year")
    assert choose_parts(hours, HOURS) == ("day", "time of day")
    assert choose_parts(hours[:200], HOURS) == ("time",)
    assert choose_parts(weekdays + 3600 * (np.arange(len(weekdays)) % 9), HOURS) == ("week", "weekday", "time of day")
    assert choose_parts(summer + 3600 * (np.arange(len(summer)) % 9), HOURS) == ("year", "day of year", "time of day")
    assert choose_parts(hours, TimeAxis()) == ("time",)
    assert choose_parts(weekdays + 5 * 3600, HOURS) == ("week", "weekday", "time of day")
    assert choose_parts(days + 5 * 3600, HOURS) == ("time",)
    months = np.arange("1990-01", "1999-01", dtype="datetime64[M]").astype("datetime64[s]").astype(float) - MONDAY
    assert choose_parts(months, DAYS) == ("month",)
    assert choose_parts(months[::12], DAYS) == ("month",)
    assert choose_parts(months[:1], DAYS) == ("time",)
    assert split(months[:2] + 15.5 * 86400, ("month",), HOURS)[:, 0].tolist() == [240.5, 241 + 15.5 / 28]
    assert choose_parts(np.array([np.nan]), DAYS) == ("time",)


def test_uniform_days_have_no_cycle():
    rng = np.random.default_rng(0)
    days = [choose_parts(rng.integers(0, 2000, 1000) * 86400.0, DAYS) for _ in range(100)]
    assert days.count(("time",)) >= 98
