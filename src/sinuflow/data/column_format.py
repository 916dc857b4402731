"""How the cells of a column represent numbers or times, and the parts of times that are modelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import InvalidValueError, anything, fields, items, optional, text
from .arrow_times import ArrowTime
from .numbers import Array
from .text_formats import DurationFormat, NumberFormat, TimeFormat, text_format_from_dict
from .time_parts import SELECTIONS, join, split

_CHECK = fields({"text": optional(anything), "arrow": optional(anything), "parts": items(text())})


@dataclass(frozen=True)
class ColumnFormat:
    """The format of texts or of an Arrow type, and the parts of its times: each is a feature of its own."""

    reader: NumberFormat | TimeFormat | DurationFormat | ArrowTime
    parts: tuple[str, ...] = ("number",)

    def read(self, array: Any) -> Array:
        """The numbers of an Arrow array, (n, parts); NaN where a cell is missing."""
        numbers = self.reader.parse(array)
        return (
            numbers[:, None] if isinstance(self.reader, NumberFormat) else split(numbers, self.parts, self.reader.axis)
        )

    def write(self, numbers: Array) -> Any:
        """The inverse of :meth:`read`."""
        if isinstance(self.reader, NumberFormat):
            return self.reader.write(numbers[:, 0])
        return self.reader.write(join(numbers, self.parts, self.reader.axis))

    def as_dict(self) -> dict[str, Any]:
        """The format as JSON can hold it."""
        kind = "arrow" if isinstance(self.reader, ArrowTime) else "text"
        return {"text": None, "arrow": None, "parts": list(self.parts), kind: self.reader.as_dict()}

    @staticmethod
    def from_dict(value: Any, place: str) -> ColumnFormat:
        """The format that :meth:`as_dict` described; anything else is refused."""
        _CHECK(value, place)
        if (value["text"] is None) == (value["arrow"] is None):
            raise InvalidValueError(place, "a format of texts or an Arrow type", value)
        reader = (
            ArrowTime.from_dict(value["arrow"], place)
            if value["text"] is None
            else text_format_from_dict(value["text"], place)
        )
        parts = tuple(value["parts"])
        if parts not in ([("number",)] if isinstance(reader, NumberFormat) else SELECTIONS):
            raise InvalidValueError(f"{place}.parts", "the parts of a number or a time", value["parts"])
        return ColumnFormat(reader, parts)


def unreadable(array: Any, numbers: Array) -> int | None:
    """The first cell that is not missing, but has no number."""
    bad = np.isnan(numbers) & ~np.asarray(array.is_null())
    return int(bad.argmax()) if bad.any() else None
