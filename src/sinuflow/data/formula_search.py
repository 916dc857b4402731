"""Candidate formulas of a column: linear, ratios, products, clock times and dates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np

from .formulas import Formula, Reading, Term
from .numbers import Array
from .relation_evidence import Evidence
from .simple_numbers import rational, simple_numbers

#: Rows that candidates are tried on first; the most candidates of a kind that pass this test for a column.
_PROBES, _MOST_CANDIDATES = 12, 200
#: The most terms of a linear formula.
_MOST_TERMS = 12
#: The most calendars and clock columns, and the most groups of columns with the same missing rows.
_MOST_CALENDARS, _MOST_CLOCKS, _MOST_GROUPS = 4, 12, 100


class FormulaSearch:
    """Candidate formulas that hold on the sample, simplest first."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._sample = dict(zip(evidence.names, evidence.sample.T, strict=True))
        self._calendars = self._find_calendars()
        self._clocks = [i for i in evidence.numbers if self._is_clock(i)][:_MOST_CLOCKS]
        self._sums = self._find_sums()

    def candidates(self, target: int) -> Iterator[Formula]:
        """Formulas that may hold in all rows."""
        if target in self._evidence.numbers:
            yield from self._affine(target)
            yield from self._sums.get(target, [])
            yield from self._clock_differences(target)
            yield from self._weekdays(target)
            yield from self._ratios(target)

    def _column(self, i: int) -> Array:
        return self._evidence.sample[:, i]

    def _known(self, target: int) -> Any:
        return np.flatnonzero(~self._evidence.missing[:, target])

    def _affine(self, target: int) -> Iterator[Formula]:
        """target = k a + constant."""
        values, rows = self._column(target), self._known(target)
        low, high = rows[values[rows].argmin()], rows[values[rows].argmax()]
        error = 2 * self._evidence.rounding[target].tolerance(values, np.abs(values))
        if max(error[low], error[high]) > (values[high] - values[low]) / 20:
            return  # few values: a lookup table says as much
        sources = np.array([i for i in self._evidence.numbers if i != target], dtype=int)
        probes = rows[:: max(1, len(rows) // _PROBES)]
        x = self._evidence.sample[np.ix_([low, high, *probes], sources)]
        with np.errstate(all="ignore"):
            slope = (values[high] - values[low]) / (x[1] - x[0])
            off = np.abs(values[low] + slope * (x - x[0]) - values[[low, high, *probes], None])
            allowed = 2 * (error[[low, high, *probes], None] + error[low] + error[high]) + 1e-9 * np.abs(slope * x)
            near = (x[1] != x[0]) & (off <= allowed).all(axis=0)
        for source in sources[near][:_MOST_CANDIDATES]:
            x = self._column(source)
            width = (error[low] + error[high]) / abs(x[high] - x[low])
            middle = (values[high] - values[low]) / (x[high] - x[low])
            for k in simple_numbers(middle - width, middle + width):
                rest = values[rows] - k * x[rows]
                constant = self._fit(target, rows, rest, np.ones(len(rows)))
                if constant is not None:
                    yield self._formula(target, [(k, (source,), "value")], constant)
                    break

    def _fit(self, target: int, rows: Any, values: Array, factor: Array) -> float | None:
        """The simplest k for which the values are k times the factor, to the rounding of the target."""
        column = self._column(target)[rows]
        error = self._evidence.rounding[target].tolerance(column, np.abs(column)) + 1e-12 * np.abs(values)
        used = factor != 0
        if not used.any() or (np.abs(values[~used]) > error[~used]).any():
            return None
        a, b = (values - error)[used] / factor[used], (values + error)[used] / factor[used]
        low, high = np.minimum(a, b).max(), np.maximum(a, b).min()
        return next(simple_numbers(low, high), None)

    def _ratios(self, target: int) -> Iterator[Formula]:
        """target = k a / b and k a b, by comparing the logarithms of ratios between rows."""
        values, rows = self._column(target), self._known(target)
        rows = rows[np.argsort(-np.abs(values[rows]), kind="stable")]
        rows = rows[values[rows] != 0]
        if len(np.unique(values[rows])) < _PROBES:
            return
        # Large values have the smallest relative errors; the smallest of them are far from the reference.
        probes = rows[np.linspace(0, (len(rows) - 1) * 3 // 4, _PROBES).astype(int)]
        sources = np.array([i for i in self._evidence.numbers if i != target], dtype=int)
        x = self._evidence.sample[np.ix_(probes, sources)]
        usable = ((x != 0) & ~np.isnan(x)).all(axis=0) & (self._evidence.distinct[sources] > 2)
        sources, x = sources[usable], np.log(np.abs(x[:, usable]))
        x, y = x[1:] - x[0], np.log(np.abs(values[probes]))
        relative = self._evidence.rounding[target].tolerance(values[probes], np.abs(values[probes]))
        relative = 1.1 * relative / np.abs(values[probes]) + 1e-11
        y, error = y[1:] - y[0], relative[1:] + relative[0]
        # The most telling row: where the target differs most, for its error.
        probe = int(np.argmin(error / (np.abs(y) + 1e-300)))
        order = np.argsort(x[probe])
        for sign in (-1, 1):  # ratios, products
            wanted = sign * (y[probe] - x[probe])  # of b, for each a
            first = np.searchsorted(x[probe], wanted - error[probe], sorter=order)
            last = np.searchsorted(x[probe], wanted + error[probe], side="right", sorter=order)
            a = np.repeat(np.arange(len(sources)), last - first)
            if len(a) > 1_000_000 or not len(a):
                continue
            b = order[np.concatenate([np.arange(i, j) for i, j in zip(first, last, strict=True)])]
            chosen = (a < b) if sign > 0 else (a != b)
            a, b = a[chosen], b[chosen]
            near = (np.abs(x[:, a] + sign * x[:, b] - y[:, None]) <= error[:, None]).all(axis=0)
            for i, j in sorted(zip(a[near], b[near], strict=True), key=sum)[:_MOST_CANDIDATES]:
                term: tuple[tuple[int, ...], Reading] = (sources[i], sources[j]), "ratio" if sign < 0 else "product"
                factor = self._evaluate((1.0, *term))
                known = np.flatnonzero(~np.isnan(factor) & ~np.isnan(values))
                k = self._fit(target, known, values[known], factor[known])
                if k is not None:
                    yield self._formula(target, [(k, *term)], 0.0)

    def _find_sums(self) -> dict[int, list[Formula]]:
        """Linear formulas with simple coefficients, for each target, from the null space of the columns."""
        evidence = self._evidence
        found: dict[int, list[Formula]] = {}
        groups = Counter(evidence.missing[:, i].tobytes() for i in evidence.numbers)
        for missing, _ in groups.most_common(_MOST_GROUPS):
            mask = np.frombuffer(missing, dtype=bool)
            usable = [i for i in evidence.numbers if not evidence.missing[~mask, i].any()]
            most = max(int((~mask).sum()) // 3, 1)
            for start in range(0, len(usable), most):
                part = set(sorted(usable)[start : start + most])
                for target, formula in self._dependent([i for i in usable if i in part], ~mask):
                    if np.array_equal(evidence.missing[:, target], mask):
                        found.setdefault(target, []).append(formula)
        return found

    def _dependent(self, columns: list[int], rows: Any) -> Iterator[tuple[int, Formula]]:
        """Columns that are linear in simpler ones."""
        evidence = self._evidence
        terms: list[tuple[tuple[int, ...], Reading]] = [(c, "days") for c in self._calendars if set(c) <= set(columns)]
        terms += [((i,), "value") for i in columns]
        x = np.stack([self._evaluate((1.0, *term))[rows] for term in terms], axis=1)
        scale = np.maximum(x.std(axis=0), 1e-300)
        mean = x.mean(axis=0)
        standard = (x - mean) / scale / math.sqrt(len(x))
        diagonal = np.abs(np.diag(np.asarray(np.linalg.qr(standard, mode="r"))))
        diagonal = np.pad(diagonal, (0, len(terms) - len(diagonal)), constant_values=1.0)
        rounding = [evidence.rounding[source[0]] for source, _ in terms]
        unit = np.array([2 * np.median(r.half_unit(x[:, j])) for j, r in enumerate(rounding)]) / scale
        strict = np.array([1e-5 if r.single else 1e-8 for r in rounding])
        # Rounding leaves an error of unit / sqrt(12), which says something if the unit is small.
        rounded = (unit < 0.05) & (diagonal < 0.35 * unit)
        dependent = diagonal < strict
        kept = np.flatnonzero(~dependent)
        r = np.asarray(np.linalg.qr(standard[:, np.argsort(dependent, kind="stable")], mode="r"))
        for j in np.flatnonzero(dependent | rounded):
            if terms[j][1] != "value":
                continue
            before = int(np.searchsorted(kept, j))
            column = len(kept) + int(dependent[:j].sum()) if dependent[j] else before
            solution = np.linalg.solve(r[:before, :before], r[:before, column]) * scale[j] / scale[kept[:before]]
            noise = 1e-6 if dependent[j] and not rounding[j].single else 1e-3
            used = np.flatnonzero(np.abs(solution) * scale[kept[:before]] / scale[j] > noise)
            weights = [rational(float(value), noise) for value in solution[used[: _MOST_TERMS + 1]]]
            if not 0 < len(used) <= _MOST_TERMS or None in weights:
                continue
            parts = [(float(w or 0), *terms[kept[i]]) for i, w in zip(used, weights, strict=True)]
            target = terms[j][0][0]
            rest = x[:, j] - x[:, kept[used]] @ np.array([part[0] for part in parts])
            constant = self._fit(target, np.flatnonzero(rows), rest, np.ones(len(rest)))
            if constant is not None:
                yield target, self._formula(target, parts, constant)

    def _clock_differences(self, target: int) -> Iterator[Formula]:
        """Minutes between two clock times hhmm, or since midnight."""
        column = self._evidence.column(target)
        low, high = np.nanmin(column), np.nanmax(column)
        sources = [i for i in self._clocks if i != target]
        if high - low < 1440 and self._evidence.rounding[target].decimals == 0:
            for pair in [*((i,) for i in sources), *permutations(sources, 2)]:
                parts = [(1.0 - 2.0 * k, (i,), "minutes") for k, i in enumerate(pair)]
                yield from self._cyclic(target, parts, 1440, low - (1439 - high + low) // 2)

    def _weekdays(self, target: int) -> Iterator[Formula]:
        """The day of the week of a date."""
        column = self._evidence.column(target)
        if self._evidence.rounding[target].decimals == 0 and np.nanmax(column) - np.nanmin(column) == 6:
            for calendar in self._calendars:
                yield from self._cyclic(target, [(1.0, calendar, "days")], 7, np.nanmin(column))

    def _cyclic(self, target: int, parts: list[Any], period: int, low: float) -> Iterator[Formula]:
        rest = np.mod(self._column(target) - sum(map(self._evaluate, parts)), period)
        rest = rest[~np.isnan(rest)]
        if len(rest) and (rest == rest[0]).all():
            yield self._formula(target, parts, float(rest[0]), float(period), float(low))

    def _is_clock(self, i: int) -> bool:
        values = self._column(i)[self._known(i)]
        whole = self._evidence.rounding[i].decimals == 0 and values.min() >= 0 and 1000 < values.max() <= 2400
        return bool(whole and self._evidence.distinct[i] >= 20 and (values % 100 < 60).all())

    def _find_calendars(self) -> list[tuple[int, int, int]]:
        """Columns of years, months and days of the month, in this order."""
        evidence = self._evidence
        parts: list[list[int]] = [[], [], []]
        for i in range(len(evidence.names)):
            known = self._column(i)[self._known(i)]
            if not evidence.is_category[i] and len(known) and (known == np.round(known)).all():
                for part, (least, most), (low, high) in zip(
                    parts, ((1, 300), (2, 12), (28, 31)), ((1600, 2500), (1, 12), (1, 31)), strict=True
                ):
                    if least <= evidence.distinct[i] <= most and known.min() >= low and known.max() <= high:
                        part.append(i)
        years, months, days = parts
        return [(y, m, d) for y in years for m in months for d in days if m != d][:_MOST_CALENDARS]

    def _term(self, part: tuple[float, tuple[int, ...], Reading]) -> Term:
        return Term(float(part[0]), tuple(self._evidence.names[i] for i in part[1]), part[2])

    def _evaluate(self, part: tuple[float, tuple[int, ...], Reading]) -> Array:
        """A term in the rows of the sample."""
        return self._term(part).evaluate(self._sample)

    def _formula(
        self, target: int, parts: list[Any], constant: float, period: float = 0.0, low: float = 0.0
    ) -> Formula:
        return Formula(self._evidence.names[target], tuple(map(self._term, parts)), constant, period, low)
