"""Lookup tables: a column that is determined by one or two others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .numbers import Array


@dataclass(frozen=True)
class Lookup:
    """A column determined by one or two others: a value for each combination of their levels.

    NaN, stored as None, is a level and a value like any other. ``levels`` are increasing, missing last; ``values`` are
    in row-major order of the levels. A number that is not a level (``ordered``) takes the value of the nearest one; an
    unseen code predicts NaN.

    Example:
        >>> years = Lookup("years", ("degree",), (False,), ((0.0, 1.0),), (13.0, 16.0))
        >>> years.describe()
        'years is determined by degree'
        >>> years.predict({"degree": np.array([1.0, 0.0, 7.0])})
        array([16., 13., nan])
    """

    target: str
    sources: tuple[str, ...]
    ordered: tuple[bool, ...]
    levels: tuple[tuple[float | None, ...], ...]
    values: tuple[float | None, ...]

    def predict(self, columns: Mapping[str, Array]) -> Array:
        """The target for each row."""
        return self._predict(columns)[0]

    def holds(self, columns: Mapping[str, Array]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each row obeys the table; sources that are not among its levels contradict nothing."""
        target = np.asarray(columns[self.target], dtype=float)
        predicted, known = self._predict(columns)
        return np.asarray(~known | (predicted == target) | (np.isnan(target) & np.isnan(predicted)))

    def describe(self) -> str:
        """Which columns determine the target."""
        return f"{self.target} is determined by {' and '.join(self.sources)}"

    def as_dict(self) -> dict[str, Any]:
        """All fields as JSON."""
        stored = {name: list(value) for name, value in asdict(self).items() if name != "target"}
        return {"kind": "lookup", "target": self.target, **stored, "levels": [list(levels) for levels in self.levels]}

    def _predict(self, columns: Mapping[str, Array]) -> tuple[Array, np.ndarray[Any, np.dtype[np.bool_]]]:
        """The target, and whether the sources are among the levels."""
        known: Any = True
        at: Any = 0
        usable: Any = True
        for name, ordered, stored in zip(self.sources, self.ordered, self.levels, strict=True):
            source, levels = np.asarray(columns[name], dtype=float), from_json(stored)
            nearest = np.clip(np.searchsorted(levels, source), 0, len(levels) - 1)
            below = np.maximum(nearest - 1, 0)
            closer = np.abs(levels[below] - source) < np.abs(levels[nearest] - source)
            nearest = np.where(closer | (np.isnan(levels[nearest]) & ~np.isnan(source)), below, nearest)
            found = (levels[nearest] == source) | (np.isnan(levels[nearest]) & np.isnan(source))
            known, usable = known & found, usable & (found | (ordered & ~np.isnan(source)))
            at = at * len(levels) + nearest
        return np.where(usable, from_json(self.values)[at], np.nan), known


def from_json(values: Sequence[float | None]) -> Array:
    """Numbers as float64, with NaN for None."""
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def to_json(values: Array) -> tuple[float | None, ...]:
    """The inverse of :func:`from_json`."""
    return tuple(None if np.isnan(value) else float(value) for value in values)
