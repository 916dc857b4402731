"""Numbers and names as text."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context
from typing import Any

NOTHING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, decimals: int = 3) -> str:
    """Fixed decimals for numbers of usual size, scientific notation for others, and a dash for NaN."""
    if math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    text = f"{value:,.{decimals}f}" if abs(value) < 1e7 else f"{value:.{decimals}e}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def compact(value: float, spread: float) -> str:
    """As many digits as resolve a hundredth of the spread, in fixed notation for numbers of usual size."""
    if 1e-4 < spread < 1e7 and abs(value) < 1e7:
        return number(value, min(max(0, 2 - math.floor(math.log10(spread))), 6))
    digits = math.floor(math.log10(abs(value) / spread)) + 3 if spread > 0 and value != 0 else 4
    return f"{value:.{min(max(1, digits), 15)}g}".replace("-", MINUS)


def power_of_ten(exponent: int) -> str:
    """10ⁿ, in full where that is short."""
    return f"{10.0**exponent:,g}" if -3 <= exponent <= 4 else f"10{str(exponent).translate(_SUPERSCRIPT)}"


def small(value: float) -> str:
    """An error or a probability with two digits."""
    if not math.isfinite(value):
        return number(value)
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:.2g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}·10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def bound(error: float) -> str:
    """An upper bound of an error, with two digits."""
    return small(at_most(error, 2))


def at_most(value: float, digits: int = 1) -> float:
    """The value rounded up to a few digits, so that it is a bound."""
    return float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(value)))


def share(value: float) -> str:
    """A fraction in percent."""
    if math.isnan(value):
        return NOTHING
    return "under 0.1 %" if 0 < value < 0.001 else f"{100 * value:.1f} %"


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def training(facts: dict[str, Any]) -> str:
    """The length of a model's training."""
    return f"{facts['steps']:,} steps in {facts['seconds']:.0f} s, best at step {facts['best_step']:,}"


def shorten(name: str, most: int = 24) -> str:
    """A name as one line of printable characters, without its middle if it is long."""
    text = "".join(c if c.isprintable() else " " for c in name).strip() or "(no name)"
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head].rstrip()}…{text[len(text) - (most - 1 - head) :].lstrip()}"
