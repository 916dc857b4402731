"""Search a table for columns that are exact functions of others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from .formula_search import FormulaSearch
from .formulas import Formula, Term
from .numbers import Array
from .relation_evidence import Evidence
from .relations import Relation

#: The most pairs of columns that are tried as sources of a lookup table.
_MOST_PAIRS = 1000
#: The most sources of a formula that comes before lookup tables of one source.
_SHORT = 2


def find_relations(numbers: Array, names: Sequence[str], categories: Collection[str] = ()) -> list[Relation]:
    """Relations that hold in every row, in the order of restoring their targets, without cycles.

    Every target is restored from columns that are no targets, or from targets before it. Of columns that determine
    each other, the one with the most digits or the largest values is the target, and a category rather than a number;
    of a part, its whole and its share, it is the part if no other relation needs it.

    Args:
        numbers: rows × columns, with codes for categories and NaN for missing.
        names: of the columns.
        categories: names of the columns that hold codes.

    Example:
        >>> a, b = np.random.default_rng(0).integers(1, 100, size=(2, 500))
        >>> table = np.stack([a, a + b, b, 100 * b / (a + b)], axis=1)
        >>> for relation in find_relations(table, ["a", "total", "b", "percent"]):
        ...     print(relation.describe())
        total = a + b
        percent = 100 * b / total
    """
    if not numbers.size:
        return []
    evidence = Evidence(numbers, names, categories)
    formulas = FormulaSearch(evidence)
    lookups = _lookup_sources(evidence)
    found: dict[str, Relation] = {}
    for target in reversed(evidence.order):
        for relation in _candidates(evidence, formulas, lookups.get(target, []), target):
            if relation.target not in _sources_first(found, relation.sources):
                found[relation.target] = relation
                break
    for name in list(found):
        part = _part_of_whole(evidence, found, name)
        if part is not None:
            del found[name]
            found[part.target] = part
    return [found[name] for name in dict.fromkeys(_sources_first(found, found)) if name in found]


def _part_of_whole(evidence: Evidence, found: Mapping[str, Relation], target: str) -> Formula | None:
    """The formula part = k · share · whole, instead of share = part / (k · whole), where the share is at most 1 / k.

    Parts close to their wholes would have to be sampled very precisely, or else exceed them; shares of wholes cannot.
    """
    relation = found[target]
    if not isinstance(relation, Formula) or relation.kind != "ratio" or len(relation.sources) != 2:
        return None
    (term,), (part, whole) = relation.terms, relation.sources
    used = [name for other in found.values() if other is not relation for name in (other.target, *other.sources)]
    shares = evidence.columns[target]
    if relation.constant or part in used or target in used or not 0 <= np.nanmin(shares) <= np.nanmax(shares):
        return None
    if np.nanmax(shares) > term.coefficient:
        return None
    return evidence.formula(Formula(part, (Term(1 / term.coefficient, (target, whole), "product"),)))


def _candidates(
    evidence: Evidence, formulas: FormulaSearch, lookups: list[tuple[int, ...]], target: int
) -> Iterator[Relation]:
    """Relations of a target that hold in all rows: short formulas first, as these extend to unseen values.

    A column that determines all sources of its formula is better kept: the number of a group restores its indicators,
    but sampled indicators need not add up.
    """
    long = []
    for candidate in formulas.candidates(target):
        formula = evidence.formula(candidate)
        if formula is None or _determines(evidence, target, formula.sources):
            continue
        if len(formula.sources) > _SHORT:
            long.append(formula)
        else:
            yield formula
    yield from filter(None, (evidence.lookup(target, sources) for sources in lookups if len(sources) == 1))
    yield from long
    yield from filter(None, (evidence.lookup(target, sources) for sources in lookups if len(sources) > 1))


def _determines(evidence: Evidence, target: int, sources: Sequence[str]) -> bool:
    """Whether a column determines several others."""
    indices = [evidence.names.index(name) for name in sources]
    return len(indices) > 1 and all(evidence.lookup(i, (target,)) is not None for i in indices)


def _lookup_sources(evidence: Evidence) -> dict[int, list[tuple[int, ...]]]:
    """The columns, and pairs of columns, that determine a column in the sample: those with the fewest keys first."""
    found: dict[int, list[tuple[int, ...]]] = {}
    few = [i for i in evidence.order if evidence.distinct[i] <= max(len(evidence.rows) // 2, 2)]
    pairs = list(combinations(few, 2))
    keys = evidence.distinct
    for sources in [*((i,) for i in few), *(pairs if len(pairs) <= _MOST_PAIRS else [])]:
        if np.prod(keys[list(sources)]) <= len(evidence.rows):
            for target in evidence.determined(sources):
                found.setdefault(target, []).append(sources)
    for all_sources in found.values():
        all_sources.sort(key=lambda sources: (len(sources), np.prod(keys[list(sources)])))
    return found


def _sources_first(found: Mapping[str, Relation], names: Iterable[str]) -> Iterator[str]:
    """The columns, each after those that it is restored from, which may be repeated."""
    for name in names:
        if name in found:
            yield from _sources_first(found, found[name].sources)
        yield name
