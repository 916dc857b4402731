"""Simple numbers near a measured one: short decimals and fractions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

#: The denominators of coefficients.
_DENOMINATORS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 24, 60, 100, 1000, 3600)


def simple_numbers(low: float, high: float) -> Iterator[float]:
    """Numbers in an interval: the shortest decimal, the simplest fraction, and the middle."""
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        return
    if low <= 0 <= high:
        yield 0.0
        return
    magnitude = math.floor(math.log10(max(abs(low), abs(high))))
    for exponent in range(magnitude, magnitude - 17, -1):
        shortest = float(f"{math.ceil(Fraction(low) / Fraction(10) ** exponent)}e{exponent}")
        if low <= shortest <= high:
            yield shortest
            break
    middle = (low + high) / 2
    for denominator in (10, 100, 1000):
        fraction = float(Fraction(middle).limit_denominator(denominator))
        if low <= fraction <= high:
            yield fraction
            break
    yield middle


def rational(value: float, error: float) -> float | None:
    """The fraction with a usual denominator that is near a coefficient."""
    for denominator in _DENOMINATORS:
        fraction = round(value * denominator) / denominator
        if fraction and abs(value - fraction) <= error * max(1, abs(value)) / denominator:
            return fraction
    return None
