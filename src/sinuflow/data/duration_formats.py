"""Durations in texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..checks import InvalidValueError, anything, fields, flag, integer, one_of
from .cell_formats import TRAILING, TextFormat, decimals_of, fits, lengths, named_groups, shortened_decimals
from .numbers import Array
from .time_axis import TimeAxis

_SECONDS = {"W": 7 * 86_400, "D": 86_400, "H": 3600, "M": 60, "S": 1}
#: All selections of units.
_UNITS = ["".join(u for i, u in enumerate(_SECONDS) if bits >> i & 1) for bits in range(1, 32)]
_CLOCK = r"(?P<H>[0-9]{1,9}):(?P<M>[0-5][0-9])(?::(?P<S>[0-5][0-9])(?:\.(?P<f>[0-9]{1,9}))?)?"
#: ISO 8601 also has years and months, which have no fixed length.
_ISO = "".join(
    [
        r"(?P<sign>-?)P(?:(?P<W>[0-9]{1,7})W)?(?:(?P<D>[0-9]{1,8})D)?",
        r"(?:T(?:(?P<H>[0-9]{1,9})H)?(?:(?P<M>[0-9]{1,11})M)?(?:(?P<S>[0-9]{1,12})(?:\.(?P<f>[0-9]{1,9}))?S)?)?",
    ]
)
#: The styles 36:00:00, 1 days 12:00:00 (pandas), 1 day, 12:00:00 (Python) and P1DT12H (ISO 8601).
_STYLES = {
    "clock": rf"(?P<sign>-?){_CLOCK}",
    "pandas": rf"(?P<sign>)(?P<D>-?[0-9]{{1,8}}) days \+?{_CLOCK}",
    "python": rf"(?P<sign>)(?:(?P<D>-?[0-9]{{1,8}}) days?, )?{_CLOCK}",
    "iso": _ISO,
}


@dataclass(frozen=True)
class DurationFormat(TextFormat):
    """Durations in seconds.

    Written back as they were, but for units of ISO 8601 that are zero or overflow (PT90M beside PT2H is written as
    PT1H30M), zeros before hours and at the end of decimals that only some texts have, and minus zero.

    Example:
        >>> import pyarrow
        >>> durations = DurationFormat("clock", "HMS", TimeAxis())
        >>> durations.parse(pyarrow.array(["36:00:30", "1:60:00"])).tolist()
        [129630.0, nan]
        >>> durations.write(np.array([-90.0])).to_pylist()
        ['-00:01:30']
    """

    style: str
    units: str  # those that occur, of W, D, H, M and S
    axis: TimeAxis
    decimals: int = 0
    trailing: str = "fixed"
    digits: int = 2  # the least digits of hours
    full: bool = False  # whether units that are zero are written, in ISO 8601

    kind: ClassVar[str] = "duration"
    _check = fields(
        {
            "kind": one_of("duration"),
            "style": one_of(*_STYLES),
            "units": one_of(*_UNITS),
            "axis": anything,
            "decimals": integer(high=9),
            "trailing": one_of(*TRAILING),
            "digits": integer(1, 9),
            "full": flag,
        }
    )

    def read(self, texts: Any) -> Array:
        seconds, fractions = _amounts(named_groups(_STYLES[self.style], texts))
        return seconds + fractions / 1e9

    def texts(self, numbers: Array) -> list[str]:
        return [self._text(number) for number in self.axis.steps(numbers).tolist()]

    def _text(self, steps: float) -> str:
        signed = self.style in ("clock", "iso")
        ticks = int(steps) * self.axis.seconds * 10**self.decimals // self.axis.per_second
        sign, ticks = ("-", -ticks) if ticks < 0 and signed else ("", ticks)
        rest, fraction = divmod(ticks, 10**self.decimals)
        amounts = {}
        for unit in self.units:
            amounts[unit], rest = divmod(rest, _SECONDS[unit])
        decimals = shortened_decimals(f".{fraction:0{self.decimals}d}", self.trailing) if self.decimals else ""
        if self.style == "iso":
            return sign + self._iso(amounts, decimals)
        widths = {"H": self.digits, "M": 2, "S": 2}
        clock = ":".join(f"{amounts[unit]:0{widths[unit]}d}" for unit in self.units if unit in widths) + decimals
        days = amounts.get("D", 0)
        if self.style == "pandas":
            return f"{days} days {'+' if days < 0 else ''}{clock}"
        return f"{days} day{'' if abs(days) == 1 else 's'}, {clock}" if days else sign + clock

    def _iso(self, amounts: dict[str, int], decimals: str) -> str:
        parts = {
            unit: f"{amount}{decimals if unit == 'S' else ''}{unit}"
            for unit, amount in amounts.items()
            if amount or self.full or (unit == "S" and decimals.strip(".0"))
        }
        parts = parts or {self.units[-1]: f"0{self.units[-1]}"}
        date, time = ("".join(text for unit, text in parts.items() if unit in units) for units in ("WD", "HMS"))
        return f"P{date}{'T' if time else ''}{time}"

    def styled(self, texts: Any) -> DurationFormat:
        """The format with the style of these texts, all of which it fits."""
        pieces = named_groups(_STYLES[self.style], texts)
        sizes = {unit: lengths(pieces[unit]) for unit in _SECONDS if unit in pieces}
        present = {unit: size > 0 for unit, size in sizes.items() if size.any()}
        decimals, trailing = decimals_of(pieces["f"])
        seconds, fractions = _amounts(pieces)
        return replace(
            self,
            units="".join(present),
            axis=TimeAxis.of(seconds.astype(np.int64), np.abs(fractions).astype(np.int64), 10**9, False),
            decimals=decimals,
            trailing=trailing,
            digits=int(sizes["H"].min()) if self.style != "iso" else 1,
            full=all(bool(entry.all()) for entry in present.values()),
        )

    def _check_consistency(self, place: str) -> None:
        if self.axis.calendar or self.axis.origin:
            raise InvalidValueError(f"{place}.axis", "without origin", vars(self.axis))
        allowed = {"clock": ("HM", "HMS"), "pandas": ("DHM", "DHMS"), "python": ("HM", "HMS", "DHM", "DHMS")}
        if self.units not in allowed.get(self.style, (self.units,)):
            raise InvalidValueError(f"{place}.units", f"units of the style {self.style}", self.units)


def _amounts(pieces: dict[str, Any]) -> tuple[Array, Array]:
    """Seconds and 1e-9 seconds, both with the duration's sign; NaN where a text does not fit."""
    import pyarrow
    from pyarrow import compute

    def numbers(texts: Any) -> Array:
        digits = compute.replace_substring_regex(texts, "^$", "0")
        amounts: Array = digits.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
        return amounts

    units = {unit: seconds for unit, seconds in _SECONDS.items() if unit in pieces}
    some = sum(lengths(pieces[unit]) for unit in units) > 0
    total = sum(numbers(pieces[unit]) * seconds for unit, seconds in units.items())
    sign = 1 - 2 * lengths(pieces["sign"])
    fractions = numbers(compute.utf8_rpad(pieces["f"], width=9, padding="0"))
    return np.where(some, sign * total, np.nan), sign * fractions


def recognize_duration(texts: Any) -> DurationFormat | None:
    """The duration format of an Arrow array of strings, or None."""
    known = (DurationFormat(style, "HMS", TimeAxis()) for style in _STYLES)
    found = next((candidate for candidate in known if fits(candidate, texts)), None)
    return found.styled(texts) if found is not None else None
