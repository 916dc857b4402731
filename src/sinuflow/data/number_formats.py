"""Numbers in texts, with separators, units and signs that Python's float does not read."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..checks import InvalidValueError, fields, flag, integer, one_of, text
from .cell_formats import (
    TRAILING,
    AmbiguousFormat,
    TextFormat,
    decimals_of,
    fits,
    lengths,
    named_groups,
    shortened_decimals,
)
from .numbers import Array

#: Separators of thousands; the last are the no-break, narrow no-break and thin spaces.
_GROUPS = (",", ".", " ", "'", "\u2019", "\u00a0", "\u202f", "\u2009")
_MINUS = "\u2212"
_SIGN = f"[+{_MINUS}-]"
#: The groups of a pattern for an opening parenthesis, and for a sign before or after the prefix.
_SIGNS = ("open", "before", "inside")
#: Words before a number; other prefixes must hold a currency symbol, as Q1 and PAL2 are names.
_CODES = "USD EUR GBP CHF JPY CNY INR AUD CAD NZD SEK NOK DKK PLN CZK HUF BRL MXN ZAR KRW SGD HKD Rs kr"
#: Currencies of countries with a decimal point.
_ENGLISH = "$£¥₹"
_AFFIXES = re.compile(
    rf"\(?{_SIGN}?(?P<prefix>[^\W\d_]{{0,3}}[^\w\s().,+\u2212-]?\.?\s?){_SIGN}?"
    r"\.?[0-9](?:[0-9.,'\u2019\s]*[0-9])?(?P<suffix>\s?[^\d\s().,<>+:;-](?:[^\d,<>()+:;-]{0,11}[^\d\s,<>()+:;-])?|)\)?"
)
#: Float64 holds all decimal numbers of so many digits.
_MOST_DIGITS = 15
#: Texts without zeros at the end, from which exactly three digits after every comma are no chance: 0.9**50 < 0.01.
_ENOUGH = 50


@dataclass(frozen=True)
class NumberFormat(TextFormat):
    """Numbers with a unit, separators of thousands, a decimal comma or parentheses.

    Written back as they were, but for these: outer blanks, leading zeros (.5 as 0.5), zeros at the end and plus signs
    that only some texts have, and thousands that only some texts separate.

    Example:
        >>> import pyarrow
        >>> euros = NumberFormat(suffix=" €", group=".", decimal=",", decimals=2)
        >>> euros.parse(pyarrow.array(["1.234,50 €", None])).tolist()
        [1234.5, nan]
        >>> euros.write(np.array([-99.9])).to_pylist()
        ['-99,90 €']
    """

    prefix: str = ""
    suffix: str = ""
    group: str = ""
    decimal: str = "."
    decimals: int = 0
    trailing: str = "fixed"
    negative: str = "before"  # -$5, or "inside": $-5, or "parentheses": ($5)
    minus: str = "-"
    plus: bool = False
    group_from: int = 4  # digits from which thousands are separated

    kind: ClassVar[str] = "number"
    _check = fields(
        {
            "kind": one_of("number"),
            "prefix": text(20),
            "suffix": text(20),
            "group": one_of("", *_GROUPS),
            "decimal": one_of(".", ","),
            "decimals": integer(high=_MOST_DIGITS),
            "trailing": one_of(*TRAILING),
            "negative": one_of("before", "inside", "parentheses"),
            "minus": one_of("-", _MINUS),
            "plus": flag,
            "group_from": integer(4, 5),
        }
    )

    @cached_property
    def _pattern(self) -> str:
        group, decimal = re.escape(self.group), re.escape(self.decimal)
        grouped = f"[1-9][0-9]{{0,2}}(?:{group}[0-9]{{3}})+|" if group else ""
        return (
            rf"(?P<open>\(?)(?P<before>{_SIGN}?){re.escape(self.prefix)}(?P<inside>{_SIGN}?)"
            rf"(?P<whole>{grouped}0|[1-9][0-9]*|)(?:{decimal}(?P<fraction>[0-9]+))?"
            rf"{re.escape(self.suffix)}(?P<close>\)?)"
        )

    def _pieces(self, texts: Any) -> dict[str, Any]:
        """The named groups of the pattern, and as "sign" a parenthesis or sign; null where a text does not match."""
        from pyarrow import compute

        pieces = named_groups(self._pattern, texts)
        return {**pieces, "sign": compute.binary_join_element_wise(*(pieces[name] for name in _SIGNS), "")}

    def read(self, texts: Any) -> Array:
        import pyarrow
        from pyarrow import compute

        pieces = self._pieces(texts)
        whole = compute.replace_substring(pieces["whole"], self.group, "") if self.group else pieces["whole"]
        digits = compute.binary_join_element_wise("0", whole, ".", pieces["fraction"], "0", "")
        numbers = digits.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
        size = {name: lengths(piece) for name, piece in pieces.items()}
        valid = (size["open"] == size["close"]) & (size["sign"] <= 1) & (size["whole"] + size["fraction"] > 0)
        negative = np.asarray(compute.is_in(pieces["sign"], value_set=pyarrow.array(["(", "-", _MINUS])))
        return np.where(valid, np.where(negative, -numbers, numbers), np.nan)

    def texts(self, numbers: Array) -> list[str]:
        marks = str.maketrans({",": self.group, ".": self.decimal})
        return [self._text(number, marks) for number in numbers.tolist()]

    def _text(self, number: float, marks: dict[int, str]) -> str:
        text = shortened_decimals(f"{abs(number):,.{self.decimals}f}", self.trailing)
        sign = self.minus if number < 0 else "+" if self.plus and number > 0 else ""
        if not text.strip("0,."):
            sign = ""  # no minus zero
        if self.group_from == 5 and len(text.partition(".")[0]) == 5:
            text = text.replace(",", "")
        text = text.translate(marks)
        if sign == self.minus and self.negative == "parentheses":
            return f"({self.prefix}{text}{self.suffix})"
        outer, inner = ("", sign) if self.negative == "inside" else (sign, "")
        return f"{outer}{self.prefix}{inner}{text}{self.suffix}"

    def styled(self, texts: Any) -> NumberFormat | None:
        """The format with the style of these texts, all of which it fits; None if they have too many digits."""
        from pyarrow import compute

        pieces = self._pieces(texts)
        decimals, trailing = decimals_of(pieces["fraction"])
        separators = compute.count_substring(pieces["whole"], self.group).to_numpy() if self.group else np.zeros(1)
        whole = lengths(pieces["whole"]) - separators
        if whole.max() + decimals > _MOST_DIGITS:
            return None
        signs = set(pieces["sign"].to_pylist())
        plus = compute.equal(pieces["sign"], "+").to_numpy(zero_copy_only=False)[self.read(texts) > 0]
        return replace(
            self,
            decimals=decimals,
            trailing=trailing,
            negative="parentheses" if "(" in signs else "inside" if lengths(pieces["inside"]).any() else "before",
            minus=_MINUS if _MINUS in signs else "-",
            plus=bool(len(plus)) and bool(plus.all()),
            group_from=5 if self.group and not separators[whole == 4].any() and (whole == 4).any() else 4,
        )

    def _check_consistency(self, place: str) -> None:
        if self.decimal == self.group:
            raise InvalidValueError(f"{place}.group", "different from the decimal separator", self.group)


def recognize_number(texts: Any, decimal: str | None = None) -> NumberFormat | None:
    """The number format of an Arrow array of strings, or None; ``decimal`` settles which separator is the decimal one.

    Exactly three digits after each comma or point may be thousands or decimals. Before that is ambiguous, the other
    texts decide, then the currency ($, £, ¥ and ₹ come with a decimal point), then that a point without a currency is
    decimal, and that of fifty decimals without zeros at the end, some have fewer than three digits.
    """
    from pyarrow import compute

    affixes = _AFFIXES.fullmatch(max(texts.to_pylist(), key=len))
    if affixes is None or not _is_unit(affixes["prefix"], affixes["suffix"]):
        return None
    affix = NumberFormat(affixes["prefix"], affixes["suffix"])
    groups = [mark for mark in _GROUPS if compute.any(compute.match_substring(texts, mark)).as_py()]
    readings: list[tuple[NumberFormat, Array]] = []
    for point in (".", ",") if {",", "."} & {*groups} else (".",):
        candidates = (replace(affix, decimal=point, group=group) for group in ["", *groups] if group != point)
        known = next((candidate for candidate in candidates if fits(candidate, texts)), None)
        if known is not None:
            readings.append((known, known.read(texts)))
    if not readings:
        return None
    (first, numbers), (second, others) = readings[0], readings[-1]
    if np.array_equal(numbers, others):
        return first.styled(texts)
    if decimal is not None:
        return (second if decimal == second.decimal else first).styled(texts)
    # Both fit: either the point with commas between thousands, or the comma with points.
    unit, commas = affixes["prefix"] + affixes["suffix"], second.group == "" or first.group == ","
    if any(symbol in unit for symbol in _ENGLISH) or (not commas and not _is_currency(unit)):
        return first.styled(texts)
    with_comma = compute.match_substring(texts, ",").true_count
    if first.group == "," and second.group == "" and _ENOUGH <= with_comma < len(texts):
        return first.styled(texts)
    at = int((numbers != others).argmax())
    values = " or ".join(sorted(f"{reading[at]:.15g}" for reading in (numbers, others)))
    raise AmbiguousFormat(
        f"holds {texts[at].as_py()!r}, which may be {values}: write its numbers with a decimal point and without "
        "separators of thousands"
    )


def _is_currency(unit: str) -> bool:
    return any(unicodedata.category(c) == "Sc" for c in unit) or unit.strip(" .") in _CODES.split()


def _is_unit(prefix: str, suffix: str) -> bool:
    return (not prefix.strip() or _is_currency(prefix)) and suffix not in ("st", "nd", "rd", "th")
