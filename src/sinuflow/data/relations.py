"""Exact relations between columns of a table: formulas and lookup tables that restore one column from others."""

from __future__ import annotations

import math
from typing import Any, Union, get_args

import numpy as np

from ..checks import LONGEST_NAME, InvalidValueError, fields, flag, items, number, one_of, optional, text
from .formulas import READINGS, Formula, Reading, Term
from .lookups import Lookup, from_json
from .rounding import CHECK_ROUNDING, Rounding

#: A relation restores its target from its sources.
Relation = Union[Formula, Lookup]  # noqa: UP007


def relation_from_dict(stored: dict[str, Any]) -> Relation:
    """The relation that ``as_dict`` described, or an ``InvalidValueError`` if it is not one."""
    fields({"kind": one_of("formula", "lookup")}, others=lambda value, place: None)(stored, "relation")
    place = stored["kind"]
    own = {name: value for name, value in stored.items() if name != "kind"}
    (_FORMULA if place == "formula" else _LOOKUP)(own, place)
    relation: Relation
    if place == "formula":
        terms = tuple(Term(**{**term, "sources": tuple(term["sources"])}) for term in own["terms"])
        relation = Formula(**{**own, "terms": terms, "rounding": Rounding(**own["rounding"])})
        for term in terms:
            if len(term.sources) != READINGS[term.reading][0]:
                raise InvalidValueError(
                    f"{place}.terms", f"{term.reading} of the right number of columns", own["terms"]
                )
    else:
        levels = tuple(map(tuple, own["levels"]))
        sources, ordered, values = (tuple(own[name]) for name in ("sources", "ordered", "values"))
        relation = Lookup(own["target"], sources, ordered, levels, values)
        sizes = [len(levels) for levels in relation.levels]
        if not 1 <= len(sizes) <= 2 or {len(relation.sources), len(relation.ordered)} != {len(sizes)}:
            raise InvalidValueError(f"{place}.sources", "one or two columns with their levels", own["sources"])
        if len(relation.values) != math.prod(sizes):
            raise InvalidValueError(f"{place}.values", f"a list of {math.prod(sizes)} entries", own["values"])
        if any(None in levels[:-1] or (np.diff(from_json(levels)) <= 0).any() for levels in relation.levels):
            raise InvalidValueError(f"{place}.levels", "in increasing order", own["levels"])
    if relation.target in relation.sources:
        raise InvalidValueError(f"{place}.target", "different from the sources", relation.target)
    return relation


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
