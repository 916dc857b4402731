r"""A column of a table, and its bijection from cells to standardized values.

.. math:: x \;\to\; x + h (u - \tfrac12) \;\to\; m(\cdot) \;\to\; \frac{\cdot - c}{s}
          \;\to\; t \operatorname{asinh}(\cdot / t)

with a step h for columns of integers or of repeated values, uniform dequantization noise u, a column map m (the
identity, a logarithm, a logit or a user's), a centre c and scale s, and a width t beyond which tails are compressed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from ..bijections import Chain
from ..bijections.columns import COLUMN_MAPS, ColumnMap, CompressTails, SelectedColumns, Standardize, make_column_map
from ..checks import LARGEST_INTEGER, InvalidValueError, fields, flag, integer, is_unicode, items, number, one_of, text

Kind = Literal["number", "category", "constant"]
Role = Literal["feature", "context"]

#: The most characters of a column's name in a file.
LONGEST_NAME = 100_000
#: The column maps of file format 1, and the fields of a stored column that are their arguments, with defaults.
_FORMAT_1: dict[str, dict[str, float]] = {"linear": {}, "log": {"offset": 0.0}, "logit": {"lower": 0.0, "upper": 1.0}}
#: What users may ask for a column by name.
MAP_NAMES = ("linear", *sorted(COLUMN_MAPS), "category")


@dataclass(frozen=True)
class Column:
    """A column: what it holds, and how it is mapped.

    ``categories`` are the values of a category in the order of their codes; for a constant column, its only value.
    ``type`` is the Arrow type of the values; samples are integers, real numbers, booleans or strings accordingly.
    """

    name: str
    kind: Kind
    type: str
    role: Role = "feature"
    map: str = "linear"  # the identity, or the registered name of a ColumnMap
    arguments: dict[str, float] = field(default_factory=dict)  # of the map
    step: float = 0.0  # 0: not dequantized
    origin: float = 0.0  # values are origin + k step
    rounded: bool = False  # whether samples are rounded to the grid
    digits: int = 0  # after the decimal point, of values on the grid
    low: float = 0.0  # the smallest value
    high: float = 1.0  # the largest value
    centre: float = 0.0
    scale: float = 1.0
    tail: float = 0.0  # 0: tails are not compressed
    categories: tuple[Any, ...] = ()

    @property
    def width(self) -> int:
        """The size of the column as context."""
        return len(self.categories) if self.kind == "category" else int(self.kind == "number")

    def describe(self) -> str:
        """How the column is encoded, in a few words."""
        if self.kind == "constant":
            return "constant, left out"
        words = [f"{len(self.categories)} categories"] if self.kind == "category" else []
        if self.role == "context":
            words = ["context", *words]
        elif self.step and self.kind == "number":
            words = [f"dequantised, step {self.step:g}"]
        words += [self.map] if self.map != "linear" else []
        return ", ".join([*words, "one-hot" if self.role == "context" and self.kind == "category" else "standardised"])

    def as_dict(self) -> dict[str, Any]:
        """All fields as JSON."""
        stored = {**asdict(self), "categories": list(self.categories)}
        for defaults in _FORMAT_1.values():
            stored |= defaults
        if self.map in _FORMAT_1:
            stored |= stored.pop("arguments")
        return stored

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Column:
        """The column that :meth:`as_dict` described, or an ``InvalidValueError`` if it is not one."""
        _STORED(stored, "column")
        own = {name: value for name, value in stored.items() if name in cls.__dataclass_fields__}
        if stored["map"] in _FORMAT_1:
            own["arguments"] = {name: stored[name] for name in _FORMAT_1[stored["map"]]}
        column = cls(**{**own, "categories": tuple(stored["categories"])})
        column._check_consistency()
        return column

    def _check_consistency(self) -> None:
        """Refuse fields that are valid one by one, but inconsistent."""
        place = f"column {self.name[:60]!r}"
        if self.kind == "number" and self.categories:
            raise InvalidValueError(f"the categories of {place}", "an empty list", self.categories)
        least = {"number": 0, "constant": 1, "category": 2}[self.kind]
        if len(set(map(repr, self.categories))) < max(least, len(self.categories)):
            expected = f"{least} or more different values"
            raise InvalidValueError(f"the categories of {place}", expected, "repeated or too few")
        if len({type(value) for value in self.categories}) > 1:
            raise InvalidValueError(f"the categories of {place}", "of one type", "mixed types")
        if self.kind == "category" and (self.step, self.origin, self.high) != (1.0, 0.0, len(self.categories) - 1.0):
            raise InvalidValueError(f"the cells of {place}", "one for each category", self.high)
        if self.rounded and not self.step > 0:
            raise InvalidValueError(f"the step of {place}", "above 0, because its values are on a grid", self.step)
        if self.rounded and not 0 <= (self.high - self.origin) / self.step <= LARGEST_INTEGER:
            raise InvalidValueError(f"the grid of {place}", "one that float64 can count", self.step)
        if not self.low <= self.high:
            raise InvalidValueError(f"the bounds of {place}", "in increasing order", self.low)


def drop_option(column: str) -> str:
    """The option that drops a column, quoted for a shell, without control characters."""
    return f"--drop {shlex.quote(column) if column.isprintable() else repr(column)}"


def quoted_list(names: Sequence[object], most: int = 20) -> str:
    """The first names or values, quoted and separated by commas, and the number of further ones."""
    shown = ", ".join(map(repr, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def columns_bijection(columns: Sequence[Column]) -> Chain:
    """The bijection of columns, in float64: their maps, standardization and compressed tails.

    Columns with the same map share one module, with one number for each column in its buffers.
    """
    groups: dict[Any, list[int]] = {}
    for i, c in enumerate(columns):
        if c.map != "linear":  # a map without arguments cannot tell how many columns it has
            groups.setdefault((c.map, *sorted(c.arguments)) if c.arguments else i, []).append(i)
    parts: list[tuple[list[int], ColumnMap]] = []
    for group in groups.values():
        first = columns[group[0]]
        arguments = {name: [columns[i].arguments[name] for i in group] for name in first.arguments}
        parts.append((group, make_column_map(first.map, arguments)))
    size = len(columns)
    standardize = Standardize(centre=[c.centre for c in columns], scale=[c.scale for c in columns])
    parts.append((list(range(size)), standardize))
    tails = [i for i, c in enumerate(columns) if c.tail]
    if tails:
        parts.append((tails, CompressTails(width=[columns[i].tail for i in tails])))
    return Chain([layer if len(part) == size else SelectedColumns(size, part, layer) for part, layer in parts])


def _scalar(value: Any, place: str) -> None:
    fits = not isinstance(value, int) or -(2**63) <= value < 2**64  # the range of Arrow's integers
    fits = fits and (not isinstance(value, str) or is_unicode(value))
    if not isinstance(value, (str, bool, int, float)) or value != value or not fits:
        raise InvalidValueError(place, "a string, a number, true or false", value)


#: The schema of :meth:`Column.as_dict`.
_STORED = fields(
    {
        "name": text(LONGEST_NAME),
        "kind": one_of(*get_args(Kind)),
        "type": text(200),
        "role": one_of(*get_args(Role)),
        "map": text(),
        "rounded": flag,
        "digits": integer(0, 400),
        "scale": number(above=0),
        **dict.fromkeys(("step", "tail"), number(low=0)),
        **dict.fromkeys(("origin", "low", "high", "lower", "upper", "offset", "centre"), number()),
        "categories": items(_scalar),
    },
    {"arguments": fields({}, others=number())},
)
