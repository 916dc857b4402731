"""Exact relations between columns of a table: formulas and lookup tables that restore one column from others."""

from __future__ import annotations

import math
from typing import Any, Union, get_args

import numpy as np

from ..checks import LONGEST_NAME, InvalidValueError, anything, fields, flag, items, number, one_of, optional, text
from .formulas import READINGS, Formula, Reading, Term
from .lookups import Lookup, from_json
from .rounding import CHECK_ROUNDING, Rounding

#: A relation restores its target from its sources.
Relation = Union[Formula, Lookup]  # noqa: UP007


def relation_from_dict(stored: dict[str, Any]) -> Relation:
    """The relation that ``as_dict`` described, or an ``InvalidValueError`` if it is not one."""
    fields({"kind": one_of("formula", "lookup")}, others=anything)(stored, "relation")
    own = {name: value for name, value in stored.items() if name != "kind"}
    relation = _formula(own) if stored["kind"] == "formula" else _lookup(own)
    if relation.target in relation.sources:
        raise InvalidValueError(f"{stored['kind']}.target", "different from the sources", relation.target)
    return relation


def _formula(stored: dict[str, Any]) -> Formula:
    _FORMULA(stored, "formula")
    terms = tuple(Term(**{**term, "sources": tuple(term["sources"])}) for term in stored["terms"])
    for term in terms:
        if len(term.sources) != READINGS[term.reading][0]:
            raise InvalidValueError("formula.terms", f"{term.reading} of the right number of columns", stored["terms"])
    return Formula(**{**stored, "terms": terms, "rounding": Rounding(**stored["rounding"])})


def _lookup(stored: dict[str, Any]) -> Lookup:
    _LOOKUP(stored, "lookup")
    sources, ordered, values = (tuple(stored[name]) for name in ("sources", "ordered", "values"))
    levels = tuple(map(tuple, stored["levels"]))
    size = math.prod(map(len, levels))
    if not 1 <= len(levels) <= 2 or not len(sources) == len(ordered) == len(levels):
        raise InvalidValueError("lookup.sources", "one or two columns with their levels", stored["sources"])
    if len(values) != size:
        raise InvalidValueError("lookup.values", f"a list of {size} entries", stored["values"])
    if any(None in column[:-1] or (np.diff(from_json(column)) <= 0).any() for column in levels):
        raise InvalidValueError("lookup.levels", "in increasing order", stored["levels"])
    return Lookup(stored["target"], sources, ordered, levels, values)


_NAME = text(LONGEST_NAME)
_LEVELS = items(optional(number()), least=1)
_LOOKUP = fields(
    {"target": _NAME, "sources": items(_NAME), "ordered": items(flag), "levels": items(_LEVELS), "values": _LEVELS}
)
_FORMULA = fields(
    {
        "target": _NAME,
        "terms": items(
            fields({"coefficient": number(), "sources": items(_NAME), "reading": one_of(*get_args(Reading))}), least=1
        ),
        **dict.fromkeys(("constant", "low"), number()),
        "period": number(low=0),
        "rounding": CHECK_ROUNDING,
        "missing_with": optional(_NAME),
    }
)
