"""How the values of a column were rounded: to decimals, to significant digits, to float32, or not at all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..checks import fields, flag, integer, optional
from .numbers import Array

#: Values with more significant digits than this count as unrounded.
_MOST_DIGITS = 14
#: The most values whose digits are written out, and the digits that sums of rounded numbers keep.
_WRITTEN, _COMPUTED = 10_000, 13
#: Decimals of values of which only the significant digits count.
_LONGEST = 400


@dataclass(frozen=True)
class Rounding:
    """Rounding to ``decimals``, to ``digits`` significant digits where these are coarser, and to float32 if ``single``.

    Ties are rounded to even, as Python does, or ``up``, away from zero, as spreadsheets do.

    Example:
        >>> Rounding.of(np.array([0.14828264, 96.7120593, 34.5678912, 1270.96154]))
        Rounding(decimals=8, digits=9, single=False, up=False)
        >>> Rounding(decimals=8, digits=9).apply(np.array([66090 / 52.0]))
        array([1270.96154])
    """

    decimals: int | None = None  # None: float64 or float32 in full
    digits: int | None = None
    single: bool = False
    up: bool = False

    @classmethod
    def of(cls, values: Array) -> Rounding:
        """The coarsest rounding that leaves these values as they are."""
        values = values[np.isfinite(values) & (values != 0)]
        if not len(values):
            return cls(decimals=0)
        exponent = np.floor(np.log10(np.abs(values)))
        needed = np.zeros(len(values))
        left = np.arange(len(values))
        with np.errstate(all="ignore"):
            for decimals in range(_MOST_DIGITS + 2):
                left = left[np.round(values[left], decimals) != values[left]]
                if not len(left):
                    break
                needed[left] = decimals + 1
            digits = (needed + exponent + 1).max()
            if needed.max() and (digits > _MOST_DIGITS or len(left)):
                return cls(single=bool((values.astype(np.float32) == values).all()))
        limited = digits < needed.max() + exponent + 1  # one or two such values may end in zeros by chance
        return cls(int(needed.max()), int(digits) if limited.sum() > 2 else None)

    @classmethod
    def as_written(cls, values: Array) -> Rounding:
        """The rounding of values that may have been computed from rounded ones, or stored as float32.

        Example:
            >>> Rounding.as_written(np.array([0.1 + 0.2, 1.5]))
            Rounding(decimals=1, digits=None, single=False, up=False)
            >>> Rounding.as_written(np.array([0.3, 1.5], dtype=np.float32).astype(float))
            Rounding(decimals=1, digits=None, single=True, up=False)
            >>> Rounding.as_written(np.array([0.0123, 4.56e-20])).digits
            3
        """
        values = np.unique(values[np.isfinite(values)])
        values = values[np.linspace(0, len(values) - 1, min(len(values), _WRITTEN)).astype(int)]  # with both ends
        exact = cls.of(values)
        if exact.decimals is not None:
            return exact
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        if bool((np.abs(single - values) <= 5e-15 * np.abs(values)).all()):
            return replace(cls.of(np.array([float(str(value)) for value in single])), single=True)
        written = _to_digits(values, _COMPUTED)
        if np.array_equal(written, _to_digits(values, _COMPUTED - 1)):
            exact = cls.of(written)
            return cls(_LONGEST, _fewest_digits(written)) if exact.decimals is None else exact
        return cls(decimals=_LONGEST, digits=15) if np.array_equal(_to_digits(values, 15), values) else cls()

    def apply(self, values: Array) -> Array:
        """The values, rounded."""
        with np.errstate(over="ignore"):
            rounded = self._decimal(values)
            rounded = rounded.astype(np.float32).astype(float) if self.single else rounded
        return np.where(np.isinf(rounded), values, rounded) + 0.0  # no minus zero

    def _decimal(self, values: Array) -> Array:
        if self.decimals is None:
            return values
        if self.decimals == _LONGEST:
            return _to_digits(values, self.digits or 17)
        if self.digits is None:
            return self._round(values, self.decimals)
        rounded, decimals = values.copy(), self._decimals(values)
        for each in np.unique(decimals):
            rounded[decimals == each] = self._round(values[decimals == each], int(each))
        return rounded

    def _round(self, values: Array, decimals: int) -> Array:
        values = np.round(values, decimals + 6)  # ties in decimal are ties again, whatever float64 made of them
        return np.round(values + 1e-6 * np.sign(values) * 10.0**-decimals if self.up else values, decimals)

    def half_unit(self, values: Array) -> Array:
        """Half a unit of the last digit."""
        return np.zeros_like(values) if self.decimals is None else 0.5 * 10.0 ** -self._decimals(values)

    def tolerance(self, values: Array, magnitude: Array) -> Array:
        """The largest error of a value that was computed from terms of some magnitude, and rounded."""
        relative, cancelled = (1e-6, 3e-7) if self.single else (1e-9, 1e-12)
        # A rounded value is known to half a unit, and not more: relative errors would hide the last digits.
        relative = relative if self.decimals is None else 0.0
        return self.half_unit(values) * (1 + 1e-6) + relative * np.abs(values) + cancelled * magnitude

    def describe(self) -> str:
        """The rounding, as the end of a sentence."""
        if self.decimals is None:
            return ""
        count, unit = (self.digits, "digit") if self.digits else (self.decimals, "decimal")
        return f", rounded to {count} {unit}{'' if count == 1 else 's'}"

    def _decimals(self, values: Array) -> Array:
        decimals = np.full(values.shape, float(self.decimals or 0))
        if self.digits is not None:
            known = np.isfinite(values) & (values != 0)
            exponent = np.floor(np.log10(np.abs(values[known])))
            decimals[known] = np.minimum(decimals[known], self.digits - 1 - exponent)
        return decimals


def _to_digits(values: Array, digits: int) -> Array:
    """The values with so many significant digits, exactly as they are read from text."""
    return np.array([float(f"{value:.{digits}g}") for value in values.tolist()])


def _fewest_digits(values: Array) -> int:
    """The fewest significant digits that leave these values as they are."""
    return next(d for d in range(1, _COMPUTED) if np.array_equal(_to_digits(values, d), values))


#: The schema of a stored rounding.
CHECK_ROUNDING = fields(
    {"decimals": optional(integer(0, 400)), "digits": optional(integer(1, 20)), "single": flag, "up": flag}
)
