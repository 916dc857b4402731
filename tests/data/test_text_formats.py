"""Texts that represent numbers, times and durations: recognised, parsed and written back."""

import datetime
import time

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinuflow.checks import InvalidValueError
from sinuflow.data.text_formats import (
    AmbiguousFormat,
    DurationFormat,
    FormatError,
    NumberFormat,
    TimeFormat,
    recognize,
    text_format_from_dict,
)
from sinuflow.data.time_axis import TimeAxis
from sinuflow.errors import DataError

MONDAY = 4 * 86_400


def check_round_trip(texts, **hints):
    """The recognised format of these texts, which it must write back."""
    known = recognize(texts, **hints)
    assert known is not None, texts
    numbers = known.parse(pyarrow.array([*texts, None]))
    assert np.isnan(numbers[-1])
    assert not np.isnan(numbers[:-1]).any()
    assert known.write(numbers).to_pylist() == [*texts, None]
    assert text_format_from_dict(known.as_dict()) == known
    return known, numbers[:-1]


NUMBERS = {
    ("$1,234", "$5", "-$7"): [1234, 5, -7],
    ("$-1.50", "$2.25"): [-1.5, 2.25],
    ("1 234,5", "12,25", "-3"): [1234.5, 12.25, -3],
    ("1.234,56", "0,10", "-99,00"): [1234.56, 0.1, -99],
    ("12.3%", "4%"): [12.3, 4],
    ("€5", "€7"): [5, 7],
    ("(123)", "5"): [-123, 5],
    ("($1,234.00)", "$0.50"): [-1234, 0.5],
    ("1,5", "2,25"): [1.5, 2.25],
    ("1,234,567", "1,000"): [1234567, 1000],
    ("5 km/h", "7 km/h"): [5, 7],
    ("USD 5.00", "USD 1,000.00"): [5, 1000],
    ("+5%", "-3%", "0%"): [5, -3, 0],
    ("1\u2019234.50", "9.00"): [1234.5, 9],
    ("1234 €", "12 345 €"): [1234, 12345],
    ("\u22121,5 °C", "2,0 °C"): [-1.5, 2],
    ("12\u202f345,67\u00a0€", "1,00\u00a0€"): [12345.67, 1],
    ("1.234 %", "2.345 %"): [1.234, 2.345],
    ("£1,234", "£2,345"): [1234, 2345],
}


@pytest.mark.parametrize("texts", NUMBERS)
def test_numbers(texts):
    assert check_round_trip(texts)[1].tolist() == NUMBERS[texts]


TIMES = {
    ("2020-01-05", "0999-12-31"): ["2020-01-05", "0999-12-31"],
    ("2020-01-05T10:00:00Z", "2020-01-05T10:00:01Z"): ["2020-01-05T10:00:00", "2020-01-05T10:00:01"],
    ("2020-01-05 10:00:00.250", "1960-01-05 10:00:01.500"): ["2020-01-05T10:00:00.250", "1960-01-05T10:00:01.500"],
    ("2020-01-05 10:00+01:00", "2020-01-06 11:59+01:00"): ["2020-01-05T10:00", "2020-01-06T11:59"],
    ("2020-01-05T10:00:00", "2020-01-05T10:00:00.5"): ["2020-01-05T10:00", "2020-01-05T10:00:00.5"],
    ("2020/01/05", "2020/12/31"): ["2020-01-05", "2020-12-31"],
    ("11/11/07", "11/16/07"): ["2007-11-11", "2007-11-16"],
    ("16/11/69", "1/2/68"): ["1969-11-16", "2068-02-01"],
    ("99-12-31", "98-01-01"): ["1999-12-31", "1998-01-01"],
    ("31.12.2019", "1.1.2020"): ["2019-12-31", "2020-01-01"],
    ("12 Jan 2020", "1 May 2021"): ["2020-01-12", "2021-05-01"],
    ("Jan 12, 2020", "May 1, 2020"): ["2020-01-12", "2020-05-01"],
    ("Sunday, January 12, 2020", "Friday, May 1, 2020"): ["2020-01-12", "2020-05-01"],
    ("January 2020", "May 2020"): ["2020-01-01", "2020-05-01"],
    ("01JAN2020", "15FEB2020"): ["2020-01-01", "2020-02-15"],
    ("Dec-11", "Jan-12"): ["2011-12-01", "2012-01-01"],
    ("2020-01", "2020-07"): ["2020-01-01", "2020-07-01"],
    ("01/31/2020 03:45:00 PM", "02/01/2020 12:00:00 AM"): ["2020-01-31T15:45", "2020-02-01T00:00"],
    ("10:00 AM, January 12, 2020", "3:30 PM, May 1, 2021"): ["2020-01-12T10:00", "2021-05-01T15:30"],
    ("9:15", "10:30"): ["1970-01-01T09:15", "1970-01-01T10:30"],
    ("12:30am", "1:05pm"): ["1970-01-01T00:30", "1970-01-01T13:05"],
}


@pytest.mark.parametrize("texts", TIMES)
def test_times(texts):
    known, numbers = check_round_trip(texts)
    expected = np.array(TIMES[texts], "datetime64[us]").astype(np.int64) / 1e6
    assert (numbers + known.axis.origin).tolist() == expected.tolist()


DURATIONS = {
    ("36:00:00", "01:00:00", "-00:30:00"): [129600, 3600, -1800],
    ("100:30", "9:15"): [361800, 33300],
    ("25:00:00.50", "00:00:01.25"): [90000.5, 1.25],
    ("P1DT2H", "PT30M", "-PT2H"): [93600, 1800, -7200],
    ("PT5M30S", "PT6M0S"): [330, 360],
    ("PT0.5S", "PT1.25S"): [0.5, 1.25],
    ("P2W", "P3W"): [1209600, 1814400],
    ("1 days 02:00:00", "-1 days +23:00:00", "0 days 00:00:05"): [93600, -3600, 5],
    ("1 day, 2:00:00", "0:30:00", "-2 days, 23:59:00"): [93600, 1800, -86460],
}


@pytest.mark.parametrize("texts", DURATIONS)
def test_durations(texts):
    known, numbers = check_round_trip(texts)
    assert isinstance(known, DurationFormat)
    assert numbers.tolist() == DURATIONS[texts]


@pytest.mark.parametrize(
    "texts",
    [
        *(["red", "green"], ["1.5", "2e3"], ["1_000", "2_000"], ["$5"], [], ["2008-09", "2009-10", "2010-11"]),
        *(["Q1", "Q2"], ["PAL0708", "PAL0809"], ["N1A1", "N1A2"], ["4th", "5th"], ["5+", "6+"], ["<5", "<6"]),
        *(["5%", "0"], ["5 km", "5 m"], ["007%", "008%"], ["10-20", "20-30"], ["10:30-11:30", "11:00-12:00"]),
        *(["2020-02-30", "2020-01-01"], ["1.2.3", "1.2.4"], ["2020-01-01", "soon"], ["(5", "6)"], ["-(5%)", "6%"]),
        *(["1,23,45", "1,2"], ["", "x"], ["Feb", "Mar"], ["25:61", "10:00"], ["$1234567890123456.25", "$1.00"]),
        *(["P1Y", "P2M"], ["P", "PT1S"], ["..", "$"], ["12 Angry Men", "8 Mile"]),
    ],
)
def test_other_texts_have_no_format(texts):
    assert recognize(texts) is None


@pytest.mark.parametrize(
    ("texts", "hint", "expected"),
    [
        (["1,234", "5,678"], {"decimal": ","}, 1.234),
        (["1,234", "5,678"], {"decimal": "."}, 1234),
        (["€1.234", "€12"], {"decimal": ","}, 1234),
        (["1,234", "1.234"], {"decimal": "."}, 1234),
        (["03/04/1970", "05/06/1970"], {"day_first": True}, 92 * 86400),
        (["03/04/1970", "05/06/1970"], {"day_first": False}, 62 * 86400),
    ],
)
def test_ambiguous_texts(texts, hint, expected):
    with pytest.raises(AmbiguousFormat, match=r"holds .*: write") as error:
        recognize(texts)
    assert isinstance(error.value, DataError)
    assert "\n" not in str(error.value)
    known, numbers = check_round_trip(texts, **hint)
    assert numbers[0] + getattr(known, "axis", TimeAxis()).origin == expected


def test_other_values_decide_what_a_comma_means():
    thousands = [f"{n:,}" for n in range(7, 60_000, 997)]
    assert recognize(thousands).parse(pyarrow.array(["12,345"])).tolist() == [12345]
    thousands_only = [text for text in thousands if "," in text]
    with pytest.raises(AmbiguousFormat):
        recognize(thousands_only)
    assert recognize([*thousands_only, "1,000,000"]).group == ","
    assert recognize([*thousands_only, "1,5"]).decimal == ","


def test_different_utc_offsets_are_refused():
    with pytest.raises(FormatError, match=r"'\+01:00' and '\+02:00': convert them to UTC"):
        recognize(["2020-01-05T10:00:00+01:00", "2020-07-05T10:00:00+02:00"])


def test_cells_of_another_format_are_nan():
    dollars = recognize(["$1,234", "$5"])
    cells = pyarrow.array([" $7 ", "7", "$1,2", None, "", "$", "$(7)", "$1,234,567.8"])
    np.testing.assert_equal(dollars.parse(cells), [7, np.nan, np.nan, np.nan, np.nan, np.nan, np.nan, 1234567.8])
    for variant in (cells.dictionary_encode(), cells.cast(pyarrow.large_string()), pyarrow.chunked_array([cells])):
        np.testing.assert_equal(dollars.parse(variant), dollars.parse(cells))
    assert dollars.parse(pyarrow.array([], pyarrow.string())).tolist() == []
    assert dollars.parse(pyarrow.array([None], pyarrow.null())).size == 1


def test_sampled_numbers_are_written_within_what_a_format_can_hold():
    months = recognize(["2020-01", "2020-07"])
    assert months.write(np.array([40 * 86400.0, 1e18, -1e18, np.nan])).to_pylist() == [
        *("2020-02", "9999-12", "0001-01", None)
    ]
    clock = recognize(["09:15:30", "10:30:00"])
    assert clock.write(np.array([-5.0, 86399.7, 59.6, np.inf])).to_pylist() == [
        "00:00:00",
        "23:59:59",
        "00:01:00",
        None,
    ]
    short = recognize(["31/12/99", "01/01/00"])
    assert short.write(np.array([-1e12, 1e12])).to_pylist() == ["01/01/69", "31/12/68"]
    percent = recognize(["1.50%", "-2.25%"])
    assert percent.write(np.array([-0.001, 1e6 + 0.125])).to_pylist() == ["0.00%", "1000000.12%"]
    tenths = recognize(["10:00:00.1", "10:00:00.9"])
    assert tenths.write(np.array([59.96, 86399.99])).to_pylist()[0] == "00:01:00.0"


@settings(deadline=None, max_examples=200)
@given(
    affixes=st.sampled_from([("", ""), ("$", ""), ("", "%"), ("", " €"), ("EUR ", ""), ("R$ ", ""), ("", " km")]),
    marks=st.sampled_from([",.", ".,", " ,", " .", "'.", "\u00a0,", "."]),
    decimals=st.integers(0, 4),
    trailing=st.sampled_from(["fixed", "whole", "shortest"]),
    negative=st.sampled_from(["before", "inside", "parentheses"]),
    group_from=st.sampled_from([4, 5]),
    plus=st.booleans(),
    values=st.lists(st.integers(-(10**10), 10**10) | st.integers(-9999, 9999), min_size=2, max_size=30),
)
def test_numbers_of_any_format(affixes, marks, decimals, trailing, negative, group_from, plus, values):
    style = NumberFormat(*affixes, marks[:-1], marks[-1], decimals, trailing, negative, "-", plus, group_from)
    assert text_format_from_dict(style.as_dict()) == style
    texts = list(dict.fromkeys(style.write(np.array(values) / 10**decimals).to_pylist()))
    cells = pyarrow.array(texts)
    assert style.write(style.parse(cells)).to_pylist() == texts
    try:
        known = recognize(texts)
    except AmbiguousFormat:
        known = recognize(texts, decimal=style.decimal)
        np.testing.assert_array_equal(known.parse(cells), style.parse(cells))
    if known is not None:
        assert known.write(known.parse(cells)).to_pylist() == texts


DATE_PATTERNS = ["%Y-%m-%d", "%d.%m.%Y", "%-m/%-d/%Y", "%d/%m/%y", "%-d %b %Y", "%B %d, %Y", "%d%b%y", "%A, %d %B %Y"]
CLOCK_PATTERNS = ["%H:%M", "%-H:%M:%S", "%I:%M %p", "%H:%M:%S.%f", "%-I:%M:%S%P"]


@settings(deadline=None, max_examples=200)
@given(
    date=st.sampled_from(DATE_PATTERNS),
    clock=st.sampled_from([None, *CLOCK_PATTERNS]),
    joint=st.sampled_from([" ", ", "]),
    zone=st.sampled_from(["", "Z", " UTC", "-05:00"]),
    decimals=st.integers(1, 6),
    trailing=st.sampled_from(["fixed", "whole", "shortest"]),
    values=st.lists(st.integers(-10 * 10**6, 2 * 10**9), min_size=2, max_size=20, unique=True),
)
def test_times_of_any_format(date, clock, joint, zone, decimals, trailing, values):
    pattern = date if clock is None else f"{date}{joint}{clock}{zone}"
    decimals = decimals if "%f" in pattern else 0
    axis = TimeAxis(MONDAY, 10.0**-decimals, calendar=True)
    style = TimeFormat(pattern, axis, decimals, trailing)
    assert text_format_from_dict(style.as_dict()) == style
    texts = list(dict.fromkeys(style.write(np.array(values) + np.arange(len(values)) / 8).to_pylist()))
    cells = pyarrow.array(texts)
    assert style.write(style.parse(cells)).to_pylist() == texts
    if len(texts) > 1:
        known = recognize(texts, day_first="m" not in pattern or pattern.index("d") < pattern.index("m"))
        assert known.write(known.parse(cells)).to_pylist() == texts
        difference = known.parse(cells) + known.axis.origin - style.parse(cells) - axis.origin
        assert np.abs(difference).max() < 1e-6


@settings(deadline=None)
@given(
    style=st.sampled_from([("clock", "HM"), ("clock", "HMS"), ("pandas", "DHMS"), ("python", "DHMS"), ("iso", "DHMS")]),
    decimals=st.integers(0, 3),
    values=st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=20, unique=True),
)
def test_durations_of_any_format(style, decimals, values):
    decimals = decimals if "S" in style[1] else 0
    known = DurationFormat(*style, TimeAxis(step=10.0**-decimals if "S" in style[1] else 60.0), decimals)
    assert text_format_from_dict(known.as_dict()) == known
    texts = list(dict.fromkeys(known.write(np.array(values) / 10**decimals).to_pylist()))
    cells = pyarrow.array(texts)
    assert known.write(known.parse(cells)).to_pylist() == texts
    if len(texts) > 1:
        recognized = recognize(texts)
        assert recognized.write(recognized.parse(cells)).to_pylist() == texts
        np.testing.assert_allclose(recognized.parse(cells), known.parse(cells), rtol=1e-15)


@given(texts=st.lists(st.text(alphabet="0123456789 .,:-/()%$€+PTDHMSdaysJanAM'\n\u2212", max_size=12), max_size=5))
def test_any_texts_are_recognised_or_not(texts):
    try:
        known = recognize(list(dict.fromkeys(texts)))
    except FormatError:
        return
    if known is not None:
        numbers = known.parse(pyarrow.array(texts))
        assert np.isfinite(numbers).all()
        np.testing.assert_array_equal(known.parse(known.write(numbers)), numbers)


@pytest.mark.parametrize("texts", [["$1,234", "$5"], ["2020-01-05", "2021-12-31"], ["36:00:00", "01:00:00"]])
def test_damaged_descriptions_are_refused(texts):
    whole = recognize(texts).as_dict()
    hostile = ["", "x", "%", "%Y%Y", "%Y-%m-%z", "%f", None, -1, 1e9, True, [], {}, {"origin": 1}, "(?P<a>", 2**60, 1.5]
    for name in whole:
        with pytest.raises(InvalidValueError):
            text_format_from_dict({k: v for k, v in whole.items() if k != name})
        refused = 0
        for value in hostile:
            try:
                known = text_format_from_dict({**whole, name: value})
                known.write(known.parse(pyarrow.array(texts)))
            except InvalidValueError:
                refused += 1
        assert refused >= len(hostile) // 2
    for value in (None, [], {"kind": "other"}, {**whole, "more": 1}):
        with pytest.raises(InvalidValueError):
            text_format_from_dict(value)


@pytest.mark.parametrize(
    "axis", [{"origin": 5}, {"step": 7.0}, {"step": 0}, {"calendar": False}, {"origin": MONDAY + 1}]
)
def test_damaged_axes_are_refused(axis):
    whole = recognize(["2020-01-05", "2021-12-31"]).as_dict()
    with pytest.raises(InvalidValueError):
        text_format_from_dict({**whole, "axis": {**whole["axis"], **axis}})


def test_decimals_are_seen_in_a_text_that_is_not_the_longest():
    check_round_trip(["September 01, 1970 00:00:00", "May 01, 1976 00:00:00.1"])


def test_many_texts_take_seconds():
    start = datetime.datetime(2000, 1, 1)
    times = [(start + datetime.timedelta(seconds=997 * n)).isoformat() for n in range(100_000)]
    amounts = [f"${n * 7:,}.{n % 100:02d}" for n in range(100_000)]
    for texts in (times, amounts):
        began = time.process_time()
        check_round_trip(texts)
        assert time.process_time() - began < 5
