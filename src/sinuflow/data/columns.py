r"""One column of a table, and the reversible map from its values to what the flow sees.

.. math:: x \;\to\; x + h (u - \tfrac12) \;\to\; m(\cdot) \;\to\; \frac{\cdot - c}{s}
          \;\to\; t \operatorname{asinh}(\cdot / t)

with a step h for columns of integers or of repeated values, uniform noise u, a map m that is the
identity, a logarithm or a logit, a centre c and scale s, and a width t beyond which far values are
drawn in, so that one odd row does not ruin a mean.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ..checks import InvalidValueError, fields, flag, integer, is_unicode, items, number, one_of, text

MapName = Literal["linear", "log", "logit"]
Kind = Literal["number", "category", "constant"]
Role = Literal["feature", "context"]

#: The most characters of a column's name in a file.
LONGEST_NAME = 100_000
#: What users may ask for a column.
WISHES = (*get_args(MapName), "category")


@dataclass(frozen=True)
class Column:
    """A column: what it holds, and how it is mapped.

    ``categories`` are the values of a category in the order of their codes; for a constant column
    its only value. ``type`` is the Arrow type that values had; samples are whole numbers, real
    numbers, booleans or texts accordingly.
    """

    name: str
    kind: Kind
    type: str
    role: Role = "feature"
    map: MapName = "linear"
    step: float = 0.0  # 0: not dequantised
    origin: float = 0.0  # values are origin + k step
    rounded: bool = False  # whether samples are put back on the grid
    digits: int = 0  # after the decimal point, of values on the grid
    low: float = 0.0  # the smallest value seen
    high: float = 1.0  # the largest
    lower: float = 0.0  # the bounds of a logit
    upper: float = 1.0
    offset: float = 0.0  # log(x - offset)
    centre: float = 0.0
    scale: float = 1.0
    tail: float = 0.0  # 0: far values stay where they are
    categories: tuple[Any, ...] = ()

    @property
    def width(self) -> int:
        """How many numbers the column is as a context."""
        return len(self.categories) if self.kind == "category" else int(self.kind == "number")

    def describe(self) -> str:
        """How the column is prepared, in a few words."""
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
        """Everything as JSON."""
        return {**asdict(self), "categories": list(self.categories)}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Column:
        """The column that :meth:`as_dict` described, or an ``InvalidValueError`` if it describes none."""
        _STORED(stored, "column")
        column = cls(**{**stored, "categories": tuple(stored["categories"])})
        column._check_consistency()
        return column

    def _check_consistency(self) -> None:
        """Refuse fields that are valid one by one, but inconsistent."""
        place = f"column {self.name[:60]!r}"
        if self.kind == "number" and self.categories:
            raise InvalidValueError(f"the categories of {place}", "an empty list", self.categories)
        if self.kind != "number":
            least = 2 if self.kind == "category" else 1
            if len(set(map(repr, self.categories))) != len(self.categories) or len(self.categories) < least:
                raise InvalidValueError(
                    f"the categories of {place}", f"{least} or more different values", "repeated or too few"
                )
        if len({type(value) for value in self.categories}) > 1:
            raise InvalidValueError(f"the categories of {place}", "of one type", "mixed types")
        if self.kind == "category" and (self.step, self.origin, self.high) != (1.0, 0.0, len(self.categories) - 1.0):
            raise InvalidValueError(f"the cells of {place}", "one for each category", self.high)
        if self.rounded and not self.step > 0:
            raise InvalidValueError(f"the step of {place}", "above 0, because its values are on a grid", self.step)
        if self.rounded and not 0 <= (self.high - self.origin) / self.step <= 2**53:
            raise InvalidValueError(f"the grid of {place}", "one that float64 can count", self.step)
        if not self.low <= self.high or (self.map == "logit" and not self.lower < self.upper):
            raise InvalidValueError(f"the bounds of {place}", "in increasing order", self.low)


def _scalar(value: Any, place: str) -> None:
    fits = not isinstance(value, int) or -(2**63) <= value < 2**64  # what Arrow's integers hold
    fits = fits and (not isinstance(value, str) or is_unicode(value))
    if not isinstance(value, (str, bool, int, float)) or value != value or not fits:
        raise InvalidValueError(place, "a string, a number, true or false", value)


#: What :meth:`Column.as_dict` gives.
_STORED = fields(
    {
        "name": text(LONGEST_NAME),
        "kind": one_of(*get_args(Kind)),
        "type": text(200),
        "role": one_of(*get_args(Role)),
        "map": one_of(*get_args(MapName)),
        "step": number(low=0),
        "origin": number(),
        "rounded": flag,
        "digits": integer(0, 400),
        "low": number(),
        "high": number(),
        "lower": number(),
        "upper": number(),
        "offset": number(),
        "centre": number(),
        "scale": number(above=0),
        "tail": number(low=0),
        "categories": items(_scalar),
    }
)
