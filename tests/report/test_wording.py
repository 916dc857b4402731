from __future__ import annotations

import math

import pytest

from sinuflow.report.wording import at_most, compact, number, plural, power_of_ten, share, shorten, small

MINUS, NOTHING = "\N{MINUS SIGN}", "\N{EN DASH}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234.5, "1,234.500"),
        (-0.5, f"{MINUS}0.500"),
        (-1e-9, "0.000"),
        (1e9, "1.000e+09"),
        (math.inf, "∞"),
        (-math.inf, f"{MINUS}∞"),
        (math.nan, NOTHING),
    ],
)
def test_number(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "spread", "text"),
    [
        (19.9123, 16.0, "19.9"),
        (0.004, 3.8, "0.00"),
        (60475.3, 60000.0, "60,475"),
        (1e9 + 0.125, 3e-3, "1000000000.125"),
        (1.07e-8, 3e-6, f"1e{MINUS}08"),
        (3.0, 0.0, "3"),
        (0.0, 0.0, "0"),
    ],
)
def test_compact(value, spread, text):
    assert compact(value, spread) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.0123, "0.012"), (4.81e-7, "4.8·10⁻⁷"), (1.0, "1"), (math.inf, "∞")]
)
def test_small(value, text):
    assert small(value) == text


@pytest.mark.parametrize(("exponent", "text"), [(0, "1"), (-3, "0.001"), (4, "10,000"), (6, "10⁶"), (-12, "10⁻¹²")])
def test_power_of_ten(exponent, text):
    assert power_of_ten(exponent) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.0 %"), (1e-5, "under 0.1 %"), (0.5, "50.0 %"), (math.nan, NOTHING)]
)
def test_share(value, text):
    assert share(value) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (2.1e-6, 1, "3e-06"),
        (2e-6, 1, "2e-06"),
        (9.9e-4, 1, "0.001"),
        (3.14159, 2, "3.2"),
        (0.0, 1, "0"),
        (math.inf, 1, "inf"),
    ],
)
def test_a_bound_is_rounded_up(value, digits, text):
    assert f"{at_most(value, digits):.{digits}g}" == text


def test_plural():
    assert [plural(n, "row") for n in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]


def test_shorten():
    assert shorten("short") == "short"
    assert shorten("\x00\n") == "(no name)"
    assert shorten("a\tb") == "a b"
    assert shorten("abcdefghijklmnopqrstuvwxyz", 10) == "abcdef…xyz"
    assert len(shorten("x" * 500, 24)) == 24
