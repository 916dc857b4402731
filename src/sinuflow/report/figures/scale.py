"""One column's axis: where its values lie, which of them are shown, and in what bins."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..agreement import HUGE, numbers
from ..content import ColumnView, Floats
from ..wording import shorten

MOST_CATEGORIES = 8
MOST_BINS = 48


@dataclass(frozen=True, eq=False)
class Scale:
    """Where values go on an axis: x for numbers, log₁₀ x where ``log``, a counter for categories.

    Args:
        edges: of bins of equal width.
        log: powers of ten instead of equal steps.
        categories: the values that have a bin of their own, for a column of categories.
        others: how many more categories share the last bin.
    """

    edges: Floats
    log: bool = False
    categories: tuple[str, ...] = ()
    others: int = 0

    @property
    def labels(self) -> list[str]:
        """The categories' names in a figure."""
        names = [shorten(name, 16) for name in self.categories]
        return names + [f"{self.others} more"] * bool(self.others)

    @property
    def whole(self) -> bool:
        """Whether the bins' middles are whole numbers, or runs of them."""
        return not self.log and bool((np.mod(self.edges, 1) == 0.5).all())

    def place(self, values: NDArray[Any]) -> Floats:
        """Coordinates, as many as values; NaN for what has none."""
        if self.categories:
            position = {name: float(i) for i, name in enumerate(self.categories)}
            return np.array([position.get(str(v), float(len(self.categories))) for v in values.tolist()])
        return _coordinates(np.asarray(values, dtype=np.float64).ravel(), self.log)

    def outside(self, values: NDArray[Any]) -> float:
        """The share of values beyond the axis."""
        at = self.place(values)
        inside = (at >= self.edges[0]) & (at <= self.edges[-1])
        return float(1 - inside.mean()) if len(at) else 0.0

    def heights(self, values: NDArray[Any]) -> Floats:
        """The share of values in each bin."""
        at = self.place(values)
        counts, _ = np.histogram(at[np.isfinite(at)], self.edges)
        return counts / max(len(at), 1)


def scale_of(column: ColumnView) -> Scale:
    """The axis that shows the bulk of the data, and of the samples as far as they are near it.

    It spans the data's central 99 % and two fifths of that span more on each side, up to a whole span more where
    the samples need it, and never more than there is.
    """
    if column.kind in ("category", "constant"):
        return _categories(column)
    data, samples = numbers(column.data), numbers(column.samples)
    if not len(data):
        data = samples if len(samples) else np.zeros(1)
    log = _spans_decades(data)
    here, there = (x[np.isfinite(x)] for x in (_coordinates(data, log), _coordinates(samples, log)))
    low, high = _limits(here, there)
    return Scale(_edges(here, there, low, high, grid=not log), log)


def _categories(column: ColumnView) -> Scale:
    counts = Counter(map(str, column.data.tolist()))
    for name in map(str, column.samples.tolist()):
        counts.setdefault(name, 0)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    shown = names if len(names) <= MOST_CATEGORIES + 1 else names[:MOST_CATEGORIES]
    others = len(names) - len(shown)
    return Scale(np.arange(len(shown) + (others > 0) + 1) - 0.5, False, tuple(shown), others)


def _coordinates(values: Floats, log: bool) -> Floats:
    if not log:
        return np.where(np.abs(values) < HUGE, values, np.nan)
    positive = (values < HUGE) & (values > 0)
    return np.where(positive, np.log10(np.where(positive, values, 1.0)), np.nan)


def _spans_decades(data: Floats) -> bool:
    """Whether equal steps would press most of the data into the axis's first tenth or so."""
    low, middle, high = np.quantile(data, [0.005, 0.5, 0.995])
    return bool(low > 0 and high > 100 * low and middle - low < 0.15 * (high - low))


def _limits(data: Floats, samples: Floats) -> tuple[float, float]:
    low, high = (float(q) for q in np.quantile(data, [0.005, 0.995]))
    if high == low:
        low, high = float(data.min()), float(data.max())
    span = high - low
    first, last = (float(q) for q in np.quantile(samples, [0.005, 0.995])) if len(samples) else (low, high)
    everything = np.concatenate([data, samples])
    left = max(low - span, min(low - 0.4 * span, first), float(everything.min()))
    right = min(high + span, max(high + 0.4 * span, last), float(everything.max()))
    if right > left:
        return left, right
    return left - 0.5, left + 0.5


def _edges(data: Floats, samples: Floats, low: float, high: float, *, grid: bool) -> Floats:
    """Bins of Freedman and Diaconis's width 2·IQR·n^(−1/3), of whole steps where the values have a step.

    At least 2.5·n^(1/3) of them: two peaks far apart have a large IQR.
    """
    quarter, three_quarters = np.quantile(data, [0.25, 0.75])
    width = 2 * float(three_quarters - quarter) / len(data) ** (1 / 3)
    fewest = min(max(12, round(2.5 * len(data) ** (1 / 3))), 36)
    bins = min(max(math.ceil((high - low) / width), fewest), MOST_BINS) if width > 0 else 30
    step = _step(np.concatenate([data, samples])) if grid else None
    if step is None or step < (high - low) / 10_000:
        return np.linspace(low, high, bins + 1)
    width = step * max(1, round((high - low) / bins / step))
    start = low - step / 2
    return start + width * np.arange(math.ceil((high + step / 2 - start) / width - 1e-9) + 1)


def _step(values: Floats) -> float | None:
    """The distance of which all distances are multiples, if values repeat and there is one."""
    unique = np.unique(values)
    if len(unique) < 2 or len(unique) > len(values) / 2:
        return None
    distances = np.diff(unique)
    size = float(np.abs(unique).max())
    distances = distances[distances > 1e-9 * size]  # one value, written with two roundings
    if not len(distances):
        return None
    step = float(distances.min())
    multiples = distances / step
    return step if np.abs(multiples - np.round(multiples)).max() < 1e-3 * multiples.max() else None
