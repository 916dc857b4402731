"""Dates, datetimes and times of day in texts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..checks import InvalidValueError, anything, fields, integer, one_of, text
from .cell_formats import (
    TRAILING,
    AmbiguousFormat,
    FormatError,
    TextFormat,
    decimals_of,
    fits,
    named_groups,
    shortened_decimals,
)
from .numbers import Array
from .time_axis import DAY, FIRST, LAST, Integers, TimeAxis, first_days
from .time_patterns import DATES, DIRECTIVES, LAST_RESORT, NAMES, OF_DATES, patterns, regex, tokens_of

#: The seconds from 1969 to 2068, which two-digit years stand for.
_CENTURY = (-365 * DAY, 36_160 * DAY - 1)
#: Seconds to add to a time to find the nearest month.
_HALF_MONTH = 15 * DAY


@dataclass(frozen=True)
class TimeFormat(TextFormat):
    """Dates, datetimes or times of day, by a pattern of strftime, as seconds since the origin of their axis.

    Written back as they were, but for zeros before a day, month or hour and at the end of decimals that only some texts
    have, days of the week that do not fit the date, and the case of names if it varies. Times are not converted to
    UTC: a UTC offset is the same in all texts, and part of the pattern. Two-digit years are 1969 to 2068. Months
    without days are their first days.

    Example:
        >>> import pyarrow
        >>> dates = TimeFormat("%d/%m/%Y", TimeAxis(origin=4 * 86400, step=86400.0, calendar=True))
        >>> dates.parse(pyarrow.array(["06/01/1970", "31/02/1970"])).tolist()
        [86400.0, nan]
        >>> dates.write(np.array([2 * 86400.0])).to_pylist()
        ['07/01/1970']
    """

    pattern: str
    axis: TimeAxis
    decimals: int = 0
    trailing: str = "fixed"
    case: str = "title"

    kind: ClassVar[str] = "time"
    _check = fields(
        {
            "kind": one_of("time"),
            "pattern": text(60),
            "axis": anything,
            "decimals": integer(high=9),
            "trailing": one_of(*TRAILING),
            "case": one_of("title", "upper", "lower"),
        }
    )

    @cached_property
    def _tokens(self) -> list[str]:
        return tokens_of(self.pattern)

    @cached_property
    def _has(self) -> set[str]:
        return {token.replace("-", "") for token in self._tokens if token[0] == "%"}

    def pieces(self, texts: Any) -> dict[str, Any]:
        """The text of each directive, null where a text does not match."""
        return {f"%{name}": piece for name, piece in named_groups(regex(self._tokens), texts).items()}

    def read(self, texts: Any) -> Array:
        from pyarrow import compute

        pieces = self.pieces(texts)
        valid = compute.is_valid(next(iter(pieces.values()))).to_numpy(zero_copy_only=False)
        number = {directive: _integers(directive, piece) for directive, piece in pieces.items()}
        zero = np.zeros(len(texts), np.int64)
        seconds = zero
        if self.axis.calendar:
            short = number.get("%y", zero)
            year = number["%Y"] if "%Y" in number else short + np.where(short < 69, 2000, 1900)
            month = next(number[d] for d in ("%m", "%b", "%B") if d in number)
            day = number.get("%d", zero + 1)
            start, following = first_days(((year - 1970) * 12 + month - 1).astype("datetime64[M]"))
            valid &= (year > 0) & (month > 0) & (month < 13) & (day > 0) & (day <= following - start)
            seconds = (start + day - 1) * DAY
        hour, minute, second = (number.get(directive, zero) for directive in ("%H", "%M", "%S"))
        if "%I" in number:
            valid &= (number["%I"] > 0) & (number["%I"] < 13)
            hour = number["%I"] % 12 + 12 * number.get("%p", number.get("%P", zero + 1)) - 12
        valid &= (hour < 24) & (minute < 60) & (second < 60)
        seconds = seconds + hour * 3600 + minute * 60 + second - self.axis.origin
        numbers = seconds + number["%f"] / 1e9 if "%f" in number else seconds.astype(np.float64)
        return np.where(valid, numbers, np.nan)

    def texts(self, numbers: Array) -> list[str]:
        import pyarrow
        from pyarrow import compute

        seconds, fraction = self._rounded(numbers)
        times = pyarrow.array(seconds, pyarrow.timestamp("s"))
        calendar = (compute.year, compute.month, compute.day, compute.day_of_week)
        clock = (compute.hour, compute.minute, compute.second)
        year, month, day, weekday, hour, minute, second = (np.asarray(part(times)) for part in (*calendar, *clock))
        value = {
            "%Y": year,
            "%y": year % 100,
            "%m": month,
            "%d": day,
            "%H": hour,
            "%I": (hour + 11) % 12 + 1,
            "%M": minute,
            "%S": second,
            **dict.fromkeys(("%b", "%B"), month - 1),
            **dict.fromkeys(("%a", "%A"), weekday),
            **dict.fromkeys(("%p", "%P"), hour // 12),
        }
        parts: list[Any] = []
        for token in self._tokens:
            directive = token.replace("-", "")
            if directive == "%f":
                mark = parts.pop()
                digits = (shortened_decimals(f".{part:0{self.decimals}d}", self.trailing) for part in fraction.tolist())
                parts.append(pyarrow.array([text.replace(".", mark) for text in digits], pyarrow.string()))
            elif directive in NAMES:
                names = [getattr(name, self.case)() if name.istitle() else name for name in NAMES[directive]]
                parts.append(pyarrow.array(names, pyarrow.string()).take(pyarrow.array(value[directive])))
            elif token[0] == "%":
                width = 4 if token == "%Y" else 1 if "-" in token else 2
                number = pyarrow.array(value[directive]).cast(pyarrow.string())
                parts.append(compute.utf8_lpad(number, width=width, padding="0"))
            else:
                parts.append(token)
        texts: list[str] = compute.binary_join_element_wise(*parts, "").to_pylist()
        return texts

    def _rounded(self, numbers: Array) -> tuple[Integers, Integers]:
        """Seconds since 1970 or midnight within what the pattern can hold, and the digits after the decimal point."""
        low, high = _CENTURY if "%y" in self._has else (FIRST, LAST) if self.axis.calendar else (0, DAY - 1)
        shift = _HALF_MONTH if self.axis.calendar and "%d" not in self._has else 0
        whole, rest = np.divmod(self.axis.steps(numbers), self.axis.per_second)
        seconds = np.clip(whole * self.axis.seconds + self.axis.origin, low, high - shift) + shift
        return seconds.astype(np.int64), rest.astype(np.int64) * 10**self.decimals // self.axis.per_second

    def styled(self, texts: Any) -> TimeFormat | None:
        """The format with the style of these texts, all of which it fits; None if they rather are ranges of years."""
        from pyarrow import compute

        pieces = self.pieces(texts)
        number = {directive: _integers(directive, piece) for directive, piece in pieces.items()}
        if self.pattern in ("%Y-%m", "%Y/%m") and bool(((number["%Y"] + 1) % 100 == number["%m"]).all()):
            return None  # 2008-09, 2009-10
        pattern, decimals, trailing = self.pattern, 0, "fixed"
        for directive in ("%d", "%m", "%H", "%I"):
            if directive in pieces and compute.min(compute.utf8_length(pieces[directive])).as_py() == 1:
                pattern = pattern.replace(directive, f"%-{directive[1]}")
        if "%z" in pieces:
            zones = compute.unique(pieces["%z"]).to_pylist()
            if len(zones) > 1:
                raise FormatError(
                    f"holds times with different UTC offsets, such as {zones[0]!r} and {zones[1]!r}: "
                    "convert them to UTC"
                )
            pattern = pattern.replace("%z", zones[0])
        if "%f" in pieces:
            decimals, trailing = decimals_of(pieces["%f"])
        named = "".join(str(pieces[d][0]) for d in ("%b", "%B", "%a", "%A") if d in pieces)
        case = "lower" if named.islower() else "upper" if named.isupper() else "title"
        fractions = number.get("%f", np.zeros(1, np.int64))
        axis = TimeAxis.of(np.floor(self.read(texts)).astype(np.int64), fractions, 10**9, self.axis.calendar)
        return replace(self, pattern=pattern, axis=axis, decimals=decimals, trailing=trailing, case=case)

    def _check_consistency(self, place: str) -> None:
        has, hours = self._has, len(self._has & {"%H", "%I"})
        valid = (
            "".join(self._tokens) == self.pattern
            and sum(len(token) > 1 for token in self._tokens) == len(has)
            and has < DIRECTIVES.keys() - {"%z"}
            and (not has & OF_DATES or self.axis.calendar)
            and (len(has & {"%Y", "%y"}) == len(has & {"%m", "%b", "%B"}) == 1 if self.axis.calendar else hours == 1)
            and len(has & {"%p", "%P"}) == ("%I" in has)
            and hours <= 1
            and re.search("(?<![.,])%f", self.pattern) is None
            and ("%f" in has) == (self.decimals > 0)
        )
        if not valid:
            raise InvalidValueError(f"{place}.pattern", "a pattern of strftime with its axis", self.pattern)


def _integers(directive: str, texts: Any) -> Integers:
    """The number of each text of a directive, from 1 for names, in 1e-9 for decimals; 0 where it is null."""
    import pyarrow
    from pyarrow import compute

    if directive == "%z":
        return np.zeros(len(texts), np.int64)
    if directive in NAMES:
        names = pyarrow.array([name.lower() for name in NAMES[directive]])
        texts = compute.add(compute.index_in(compute.utf8_lower(texts), value_set=names), 1)
    elif directive == "%f":
        texts = compute.utf8_rpad(texts, width=9, padding="0")
    numbers: Integers = texts.cast(pyarrow.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return numbers


def recognize_time(texts: Any, day_first: bool | None = None) -> TimeFormat | None:
    """The time format of an Arrow array of strings, or None; ``day_first`` settles what 03/04/2020 means."""
    # The text with the most separators, of these the longest: it has decimals if any has, whatever the month.
    example = max(reversed(texts.to_pylist()), key=lambda text: (len(re.findall("[^0-9A-Za-z]", text)), len(text)))
    for dates in (DATES, LAST_RESORT):
        known = [
            TimeFormat(pattern, TimeAxis(calendar=not OF_DATES.isdisjoint(tokens_of(pattern))))
            for pattern in patterns(example, dates)
        ]
        known = [candidate for candidate in known if fits(candidate, texts)]
        orders = [re.sub("[^md]", "", candidate.pattern) for candidate in known]
        if {"dm", "md"} <= set(orders):
            if day_first is None:
                raise AmbiguousFormat(
                    f"holds dates such as {texts[0].as_py()!r}, and none of them tells whether the day or the month "
                    "comes first: write them as 2020-12-31"
                )
            known = [known[orders.index("dm" if day_first else "md")]]
        if known:
            return known[0].styled(texts)
    return None
