"""Recognising how the texts of a column represent numbers, times or durations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..checks import anything, fields, one_of
from .cell_formats import AmbiguousFormat, CellFormat, FormatError, TextFormat
from .duration_formats import DurationFormat, recognize_duration
from .number_formats import NumberFormat, recognize_number
from .numbers import parse_number
from .time_formats import TimeFormat, recognize_time

__all__ = [
    "AmbiguousFormat",
    "DurationFormat",
    "FormatError",
    "NumberFormat",
    "TimeFormat",
    "recognize",
    "text_format_from_dict",
]

_KINDS: dict[str, type[TextFormat]] = {kind.kind: kind for kind in (NumberFormat, TimeFormat, DurationFormat)}


def recognize(texts: Sequence[str], *, day_first: bool | None = None, decimal: str | None = None) -> TextFormat | None:
    """The format of all these texts, the different ones of a column without missing cells; None if there is none.

    Numbers that Python reads, and a single text, have no format.

    Args:
        texts: The different texts of a column.
        day_first: Whether the day comes first in dates such as 03/04/2020, if no text tells.
        decimal: The decimal separator, "." or ",", of numbers such as 1,234, if no text tells.

    Raises:
        AmbiguousFormat: Two formats with different values fit all texts.
        FormatError: The texts are times with different UTC offsets.

    Example:
        >>> import pyarrow
        >>> found = recognize(["$1,234.50", "($0.99)"])
        >>> found.parse(pyarrow.array(["$1,234.50", "($0.99)", None])).tolist()
        [1234.5, -0.99, nan]
        >>> recognize(["31.12.2019", "1.1.2020"]).pattern
        '%-d.%-m.%Y'
        >>> recognize(["red", "green"]) is None
        True
    """
    if len(texts) < 2 or all(parse_number(text) is not None for text in texts):
        return None
    import pyarrow
    import pyarrow.compute

    strings = pyarrow.compute.utf8_trim_whitespace(pyarrow.array(texts, pyarrow.string()))
    number = recognize_number(strings, decimal)
    return number or recognize_time(strings, day_first) or recognize_duration(strings)


def text_format_from_dict(value: Any, place: str = "format") -> CellFormat:
    """The format that ``as_dict`` describes; anything else is refused."""
    fields({"kind": one_of(*_KINDS)}, others=anything)(value, place)
    return _KINDS[value["kind"]].from_dict(value, place)
