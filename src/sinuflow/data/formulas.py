"""Formulas: a column that is linear in readings of others, such as ratios, clock times and dates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from .numbers import Array
from .rounding import Rounding

Reading = Literal["value", "product", "ratio", "minutes", "days"]
Columns = Mapping[str, Array]


def _days(year: Array, month: Array, day: Array) -> Array:
    """Days since 1970-01-01 in the proleptic Gregorian calendar."""
    shifted = (month + 9) % 12  # months since March
    years = year - shifted // 10
    leap_days = years // 4 - years // 100 + years // 400
    return 365 * years + leap_days + (shifted * 306 + 5) // 10 + day - 719469


#: How a term reads its sources: the number of sources, the function, and its text.
READINGS: dict[str, tuple[int, Callable[..., Array], str]] = {
    "value": (1, lambda a: a, "{}"),
    "product": (2, np.multiply, "{} * {}"),
    "ratio": (2, lambda a, b: a / np.where(b == 0, np.nan, b), "{} / {}"),
    "minutes": (1, lambda a: 60 * (a // 100) + a % 100, "minutes({})"),
    "days": (3, _days, "days({}, {}, {})"),
}


@dataclass(frozen=True)
class Term:
    """A coefficient times a reading of columns: ``minutes`` of a clock time hhmm, ``days`` of year, month and day."""

    coefficient: float
    sources: tuple[str, ...]
    reading: Reading = "value"

    def evaluate(self, columns: Columns) -> Array:
        """The term for each row; NaN where a source is missing."""
        with np.errstate(all="ignore"):
            values = READINGS[self.reading][1](*(np.asarray(columns[name], dtype=float) for name in self.sources))
            return self.coefficient * values

    def describe(self) -> str:
        """The term without its sign."""
        shown = READINGS[self.reading][2].format(*self.sources)
        return shown if abs(self.coefficient) == 1 else f"{abs(self.coefficient):.10g} * {shown}"


@dataclass(frozen=True)
class Formula:
    """target = constant + Σ terms, wrapped to [low, low + period) if there is a period, and rounded.

    The target is missing where a source is, or the column ``missing_with``.

    Example:
        >>> percent = Formula("percent", (Term(100.0, ("part", "total"), "ratio"),), rounding=Rounding(decimals=1))
        >>> percent.describe()
        'percent = 100 * part / total, rounded to 1 decimal'
        >>> percent.predict({"part": np.array([1.0, 5.0]), "total": np.array([3.0, np.nan])})
        array([33.3,  nan])
    """

    target: str
    terms: tuple[Term, ...]
    constant: float = 0.0
    period: float = 0.0
    low: float = 0.0
    rounding: Rounding = field(default_factory=Rounding)
    missing_with: str | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns that the target is restored from."""
        names = [name for term in self.terms for name in term.sources]
        return tuple(dict.fromkeys([*names, self.missing_with] if self.missing_with is not None else names))

    @property
    def kind(self) -> str:
        """``linear``, or the reading that the formula uses: ``ratio``, ``product``, ``minutes`` or ``days``."""
        return next((term.reading for term in self.terms if term.reading != "value"), "linear")

    def predict(self, columns: Columns) -> Array:
        """The target for each row, rounded; NaN where it is missing."""
        return self.rounding.apply(self._evaluate(columns)[0])

    def holds(self, columns: Columns) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each row obeys the formula, to the rounding of the target."""
        target = np.asarray(columns[self.target], dtype=float)
        predicted = self._evaluate(columns)[0]
        with np.errstate(invalid="ignore"):
            near = np.abs(predicted - target) <= self.tolerance(columns)
        return np.asarray(near | (np.isnan(target) & np.isnan(predicted)))

    def tolerance(self, columns: Columns) -> Array:
        """The largest difference between the target and the formula, before rounding, that :meth:`holds` allows."""
        return self.rounding.tolerance(np.asarray(columns[self.target], dtype=float), self._evaluate(columns)[1])

    def describe(self) -> str:
        """The formula as text."""
        parts = [(term.coefficient, term.describe()) for term in self.terms]
        parts += [(self.constant, f"{abs(self.constant):.10g}")] if self.constant else []
        parts.sort(key=lambda part: part[0] < 0)
        shown = "".join(f" {'-' if value < 0 else '+'} {each}" for value, each in parts)
        shown = shown[3:] if parts[0][0] >= 0 else f"-{shown[3:]}"
        shown = f"({shown}) mod {self.period:g}" if self.period else shown
        whole = all(float(value).is_integer() for value, _ in parts) and self.kind != "ratio"
        return f"{self.target} = {shown}{'' if whole else self.rounding.describe()}"

    def as_dict(self) -> dict[str, Any]:
        """All fields as JSON."""
        terms = [{**asdict(term), "sources": list(term.sources)} for term in self.terms]
        return {"kind": "formula", **asdict(self), "terms": terms}

    def _evaluate(self, columns: Columns) -> tuple[Array, Array]:
        """The target before rounding, and the sum of the magnitudes of the terms."""
        parts = [term.evaluate(columns) for term in self.terms]
        total = self.constant + np.sum(parts, axis=0)
        magnitude = abs(self.constant) + np.sum(np.abs(parts), axis=0)
        if self.period:
            total = self.low + np.mod(total - self.low, self.period)
        if self.missing_with is not None:
            total = np.where(np.isnan(np.asarray(columns[self.missing_with], dtype=float)), np.nan, total)
        return total, magnitude
