"""How the cells of a column represent numbers or times, and the parts of times that are modelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..checks import InvalidValueError, anything, fields, items, optional, text
from .arrow_times import ArrowTime
from .cell_formats import CellFormat
from .numbers import Array
from .text_formats import text_format_from_dict
from .time_axis import TimeAxis
from .time_parts import SELECTIONS, join, split

_CHECK = fields({"text": optional(anything), "arrow": optional(anything), "parts": items(text())})


@dataclass(frozen=True)
class ColumnFormat:
    """The format of texts or of an Arrow type, and the parts of its times: each is a feature of its own."""

    reader: CellFormat
    parts: tuple[str, ...] = ("number",)

    @property
    def axis(self) -> TimeAxis | None:
        """The axis of times, None for numbers."""
        return getattr(self.reader, "axis", None)

    def read(self, array: Any) -> Array:
        """The numbers of an Arrow array, (n, parts); NaN where a cell is missing."""
        numbers = self.reader.parse(array)
        return numbers[:, None] if self.axis is None else split(numbers, self.parts, self.axis)

    def write(self, numbers: Array) -> Any:
        """The inverse of :meth:`read`."""
        return self.reader.write(numbers[:, 0] if self.axis is None else join(numbers, self.parts, self.axis))

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
        read = ArrowTime.from_dict if value["text"] is None else text_format_from_dict
        reader = read(value["arrow"] if value["text"] is None else value["text"], place)
        known = ColumnFormat(reader, tuple(value["parts"]))
        if known.parts not in ([("number",)] if known.axis is None else SELECTIONS):
            raise InvalidValueError(f"{place}.parts", "the parts of a number or a time", value["parts"])
        return known
