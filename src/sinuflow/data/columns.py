r"""A column of a table, and its bijection from values to normal scores.

.. math::
    x \;\to\; m(x) \;\to\; \frac{\cdot - c}{s} \;\to\; t \operatorname{asinh}(\cdot / t) \;\to\; \text{spline}(\cdot)

with a column map m (the identity, a logarithm, a logit or a user's), a centre c and scale s, a width t beyond which
tails are compressed, and a monotone spline. Values of a grid, repeated values, categories and missing values are
represented by intervals of the axis of normal scores (:mod:`sinuflow.data.cells`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

from ..bijections import Chain
from ..bijections.columns import (
    COLUMN_MAPS,
    CompressTails,
    ElementwiseDataBijection,
    SelectedColumns,
    Standardize,
    make_column_map,
)
from ..bijections.quantiles import QuantileSpline
from ..checks import (
    LARGEST_INTEGER,
    LONGEST_NAME,
    InvalidValueError,
    anything,
    fields,
    flag,
    integer,
    is_unicode,
    items,
    number,
    one_of,
    optional,
    text,
)
from ..errors import DataError
from .column_format import ColumnFormat
from .relations import Relation, relation_from_dict
from .rounding import CHECK_ROUNDING, Rounding

Kind = Literal["number", "category", "constant"]
Role = Literal["feature", "context"]

#: The column maps of file format 1, and the fields of a stored column that are their arguments, with defaults.
_FORMAT_1: dict[str, dict[str, float]] = {"linear": {}, "log": {"offset": 0.0}, "logit": {"lower": 0.0, "upper": 1.0}}
#: The fields that models of format 1 do not have.
_FORMAT_2_FIELDS = {"knots", "scores", "rows", "cell", "atoms", "masses", "missing", "discrete"}
#: The fields that are stored only if they differ from their defaults.
_OPTIONAL_FIELDS = {"source", "part", "format", "relation", "rounding", "bounds", "unread", "zeros"}
#: The values of ``--map`` that settle how ambiguous texts such as 03/04/2020 and 1,234 are read, and their hints.
READINGS: dict[str, dict[str, Any]] = {
    "day-first": {"day_first": True},
    "month-first": {"day_first": False},
    "decimal-point": {"decimal": "."},
    "decimal-comma": {"decimal": ","},
}
#: The names of maps that users may choose for a column.
MAP_NAMES = ("auto", "linear", *sorted(COLUMN_MAPS), "category", *READINGS)

#: The smallest and the largest value that a column may have; None if it is not declared.
Bounds = tuple[float | None, float | None]
UNBOUNDED: Bounds = (None, None)


@dataclass(frozen=True)
class Column:
    """A column: its values, and its map to normal scores.

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
    rounding: Rounding | None = None  # of samples, which overrides ``digits``
    low: float = 0.0  # the smallest value
    high: float = 1.0  # the largest value
    centre: float = 0.0
    scale: float = 1.0
    tail: float = 0.0  # 0: tails are not compressed
    categories: tuple[Any, ...] = ()
    knots: tuple[float, ...] = ()  # of the spline after standardization
    scores: tuple[float, ...] = ()  # of the knots
    rows: int = 0  # number of training rows; 0 in format 1, which has no cells
    cell: float = 0.0  # the width of a value's cell; 0: a point
    atoms: tuple[float, ...] = ()  # values or codes with probabilities of their own
    masses: tuple[float, ...] = ()  # those probabilities
    missing: float = 0.0  # the probability of a missing value
    discrete: bool = False  # whether there is no continuous part
    source: str = ""  # the name of the table's column, if this is a part of that column
    part: int = 0  # the index among the parts
    format: ColumnFormat | None = None  # of the cells, if they are not plain numbers or categories
    relation: Relation | None = None  # by which the column is restored from others
    bounds: Bounds = UNBOUNDED  # as declared
    zeros: int = 0  # the digits of codes with zeros at the start, such as 01751
    unread: tuple[str, ...] = ()  # texts that cannot be parsed as numbers or times, and count as missing

    @property
    def log_range(self) -> float:
        """The log-range of a column with a continuous part, over which the probability of unseen values is spread."""
        return 0.0 if self.discrete or not self.low < self.high else math.log(self.high - self.low)

    @property
    def table_column(self) -> str:
        """The name of the column of the table."""
        return self.source or self.name

    @property
    def width(self) -> int:
        """The number of inputs of a context column."""
        return len(self.categories) if self.kind == "category" else int(self.kind == "number") + (self.missing > 0)

    @property
    def floor(self) -> float:
        """The lower limit of samples: as declared, or the smallest value of a column without negative values."""
        if self.bounds[0] is not None:
            return self.bounds[0]
        return self.low if self.rows and self.low >= 0 else -math.inf

    @property
    def ceiling(self) -> float:
        """The upper limit of samples: as declared, or the largest value of a column within [0, 100] or without positive
        values."""
        if self.bounds[1] is not None:
            return self.bounds[1]
        return self.high if self.rows and (self.high <= 0 or (self.low >= 0 and self.high <= 100)) else math.inf

    def describe(self) -> str:
        """How the column is encoded, in a few words."""
        if self.kind == "constant":
            return "constant, left out"
        if self.relation is not None:
            return f"restored: {self.describe_relation()}"
        words = [f"{len(self.categories)} categories"] if self.kind == "category" else []
        if self.role == "context":
            words = ["context", *words]
        elif self.rows:
            words += self._describe_cells()
        elif self.step and self.kind == "number":
            words = [f"dequantised, step {self.step:g}"]
        words += [self.map] if self.map != "linear" else []
        if self.rows and self.discrete:
            return ", ".join(words)
        return ", ".join([*words, "one-hot" if self.role == "context" and self.kind == "category" else "standardised"])

    def describe_relation(self) -> str:
        """The relation that restores the column; of a time without its numbers, which are seconds since an origin."""
        assert self.relation is not None
        if self.format is not None and self.format.axis is not None:
            return f"{self.name} is determined by {' and '.join(self.relation.sources)}"
        return self.relation.describe()

    def _describe_cells(self) -> list[str]:
        words = [f"step {self.step:g}"] if self.rounded and self.kind == "number" else []
        if self.kind == "number" and self.atoms:
            words += [f"{len(self.atoms)} values" if self.discrete else f"{len(self.atoms)} atoms"]
        words += [f"{self.missing:.1%} missing"] if self.missing else []
        low, high = self.bounds
        words += [] if low is None else [f"at least {low:g}"]
        words += [] if high is None else [f"at most {high:g}"]
        return words + ([f"{len(self.knots)} quantiles"] if self.knots else [])

    def as_dict(self) -> dict[str, Any]:
        """All fields as JSON."""
        left_out = {name for name in _OPTIONAL_FIELDS if getattr(self, name) == getattr(Column, name)}
        left_out |= set() if self.rows else _FORMAT_2_FIELDS
        stored = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self).items()
            if name not in left_out
        }
        if self.rounding is not None:
            stored["rounding"] = asdict(self.rounding)
        if self.format is not None:
            stored["format"] = self.format.as_dict()
        if self.relation is not None:
            stored["relation"] = self.relation.as_dict()
        for defaults in _FORMAT_1.values():
            stored |= defaults
        if self.map in _FORMAT_1:
            stored |= stored.pop("arguments")
        return stored

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Column:
        """The column that :meth:`as_dict` described, or an ``InvalidValueError`` if it is not one."""
        _STORED(stored, "column")
        kwargs: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in stored.items()
            if name in cls.__dataclass_fields__
        }
        if stored["map"] in _FORMAT_1:
            kwargs["arguments"] = {name: stored[name] for name in _FORMAT_1[stored["map"]]}
        if "format" in kwargs:
            kwargs["format"] = ColumnFormat.from_dict(kwargs["format"], "the format of a column")
        if "rounding" in kwargs:
            CHECK_ROUNDING(kwargs["rounding"], "the rounding of a column")
            kwargs["rounding"] = Rounding(**kwargs["rounding"])
        if "relation" in kwargs:
            kwargs["relation"] = relation_from_dict(kwargs["relation"])
            if kwargs["relation"].target != kwargs["name"]:
                raise InvalidValueError("the relation of a column", "one for it", kwargs["relation"].target)
        column = cls(**kwargs)
        column._check_consistency()
        return column

    def _check_consistency(self) -> None:
        """Refuse fields that are valid one by one, but inconsistent with each other."""
        what = f"column {self.name[:60]!r}"
        if self.kind == "number" and self.categories:
            raise InvalidValueError(f"the categories of {what}", "an empty list", self.categories)
        # With cells, a missing value may be the only other one.
        least = {"number": 0, "constant": 1, "category": 1 if self.rows else 2}[self.kind]
        if len(set(map(repr, self.categories))) < max(least, len(self.categories)):
            expected = f"{least} or more different values"
            raise InvalidValueError(f"the categories of {what}", expected, "repeated or too few")
        if len({type(value) for value in self.categories}) > 1:
            raise InvalidValueError(f"the categories of {what}", "of one type", "mixed types")
        if self.kind == "category" and (self.step, self.origin, self.high) != (1.0, 0.0, len(self.categories) - 1.0):
            raise InvalidValueError(f"the cells of {what}", "one for each category", self.high)
        if self.part and (self.format is None or self.part >= len(self.format.parts)):
            raise InvalidValueError(f"the part of {what}", "one of its format", self.part)
        if self.rounded and not self.step > 0:
            raise InvalidValueError(f"the step of {what}", "above 0, because its values are on a grid", self.step)
        if self.rounded and not 0 <= (self.high - self.origin) / self.step <= LARGEST_INTEGER:
            raise InvalidValueError(f"the grid of {what}", "one that float64 can count", self.step)
        if not self.low <= self.high:
            raise InvalidValueError(f"the bounds of {what}", "in increasing order", self.low)
        if self.rows:
            self._check_cells(what)

    def _check_cells(self, what: str) -> None:
        """Refuse cells that overlap, or whose probabilities do not sum to 1."""
        total = math.fsum((self.missing, *self.masses))
        if len(self.atoms) != len(self.masses) or any(a >= b for a, b in pairwise(self.atoms)):
            raise InvalidValueError(f"the atoms of {what}", "increasing, with one mass each", len(self.atoms))
        if total > 1 + 1e-9 or (self.discrete and not (self.atoms and total > 1 - 1e-9)):
            raise InvalidValueError(f"the masses of {what}", "probabilities", total)
        if self.kind == "category" and not (self.discrete and self.atoms == tuple(range(len(self.categories)))):
            raise InvalidValueError(f"the atoms of {what}", "one for each category", len(self.atoms))
        if self.role == "feature" and not self.discrete and not self.low < self.high:
            raise InvalidValueError(f"the bounds of {what}", "different", self.low)
        steps = (b - a for values in (self.knots, self.scores) for a, b in pairwise(values))
        if len(self.knots) != len(self.scores) or len(self.knots) == 1 or any(step < 1e-9 for step in steps):
            raise InvalidValueError(f"the knots of {what}", "increasing, with one score each", len(self.knots))


def declared_bounds(column: str, limits: Any) -> Bounds:
    """The bounds that a user declares for a column: two numbers, or None for no bound."""
    try:
        low, high = (None if limit is None else float(limit) for limit in limits)
    except (TypeError, ValueError):
        expected = "the least and the largest value, such as (0, 1) or (0, None)"
        raise DataError(f"the bounds of column {column!r} must be {expected}; got {limits!r}") from None
    return None if low == -math.inf else low, None if high == math.inf else high


def quoted_list(names: Sequence[object], limit: int = 20) -> str:
    """The first names or values, quoted and separated by commas, and the number of further ones."""
    shown = ", ".join(map(repr, names[:limit]))
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


def columns_bijection(columns: Sequence[Column]) -> Chain:
    """The bijection of columns, in float64: their maps, standardization and compressed tails.

    Columns with the same map share one module, with one number for each column in its buffers.
    """
    groups: dict[Any, list[int]] = {}
    for i, c in enumerate(columns):
        if (
            c.map != "linear"
        ):  # maps without arguments are not shared: they have no buffers that show the number of columns
            groups.setdefault((c.map, *sorted(c.arguments)) if c.arguments else i, []).append(i)
    parts: list[tuple[list[int], ElementwiseDataBijection]] = []
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
    splines = [i for i, c in enumerate(columns) if c.knots]
    if splines:
        knots = QuantileSpline([columns[i].knots for i in splines], [columns[i].scores for i in splines])
        parts.append((splines, knots))
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
    {
        "arguments": fields({}, others=number()),
        **dict.fromkeys(("knots", "scores", "atoms"), items(number())),
        "masses": items(number(above=0)),
        "rows": integer(1),
        **dict.fromkeys(("cell", "missing"), number(low=0)),
        "discrete": flag,
        "source": text(LONGEST_NAME),
        "part": integer(0, 2),
        "format": anything,  # checked by ColumnFormat
        "rounding": anything,  # checked by CHECK_ROUNDING
        "relation": fields({}, others=anything),  # checked by relation_from_dict
        "bounds": items(optional(number()), length=2),
        "unread": items(text()),
        "zeros": integer(0, 400),
    },
)
