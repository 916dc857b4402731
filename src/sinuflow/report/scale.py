"""The axis and the bins of one column."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .content import ColumnView, Floats
from .statistics import HUGE, finite
from .wording import shorten

MAX_CATEGORIES = 8
MAX_BINS = 48


@dataclass(frozen=True, eq=False)
class Scale:
    """A column on an axis, by coordinates: x, log₁₀ x if ``log``, or the index of a category; NaN for other values."""

    edges: Floats  # of bins of equal width
    data: Floats
    samples: Floats
    log: bool = False
    labels: tuple[str, ...] = ()  # of the bins of categories

    def outside(self, at: Floats) -> float:
        """The share of coordinates beyond the axis."""
        return float(1 - ((at >= self.edges[0]) & (at <= self.edges[-1])).mean())

    def heights(self, at: Floats) -> Floats:
        """The share of coordinates in each bin."""
        return np.histogram(at[np.isfinite(at)], self.edges)[0] / len(at)


def scale_of(column: ColumnView) -> Scale:
    """An axis for the bulk of the data, and for the samples as far as they are near it.

    It spans the data's central 99 % and two fifths of that span on each side, up to a whole span where the samples need
    it, but not beyond the values. Of many categories, the rarest share the last bin.
    """
    if column.kind == "category":
        counts = Counter(column.data.tolist())
        counts.update(dict.fromkeys(column.samples.tolist(), 0))
        names = sorted(counts, key=lambda name: (-counts[name], name))
        shown = names if len(names) <= MAX_CATEGORIES + 1 else names[:MAX_CATEGORIES]
        labels = [shorten(name, 16) for name in shown]
        labels += [f"{len(names) - len(shown)} more"] * (len(names) > len(shown))
        position = {name: float(min(i, len(shown))) for i, name in enumerate(names)}
        data, samples = (np.array([position[name] for name in part.tolist()]) for part in (column.data, column.samples))
        return Scale(np.arange(len(labels) + 1) - 0.5, data, samples, labels=tuple(labels))
    data, samples = finite(column.data), finite(column.samples)
    if not len(data):
        data = np.zeros(1)
    low, middle, high = np.quantile(data, [0.005, 0.5, 0.995])
    # Logarithmic if a linear axis would squeeze half of the data into about a tenth of it.
    log = bool(low > 0 and high > 100 * low and middle - low < 0.15 * (high - low))
    if log:
        data, samples = (np.log10(x[x > 0]) for x in (data, samples))
    edges = _edges(data, *_limits(data, samples), step=0.0 if log else column.step)
    return Scale(edges, _coordinates(column.data, log), _coordinates(column.samples, log), log)


def _coordinates(values: NDArray[Any], log: bool) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    known = (x < HUGE) & (x > (0 if log else -HUGE))
    return np.where(known, np.log10(np.where(known, x, 1.0)) if log else x, np.nan)


def _limits(data: Floats, samples: Floats) -> tuple[float, float]:
    bulk = [0.005, 0.995]
    low, high = np.quantile(data, bulk)
    if high == low:
        low, high = data.min(), data.max()
    span, everything = high - low, np.concatenate([data, samples])
    first, last = np.quantile(samples, bulk) if len(samples) else (low, high)
    left = float(max(low - span, min(low - 0.4 * span, first), everything.min()))
    right = float(min(high + span, max(high + 0.4 * span, last), everything.max()))
    return (left, right) if right > left else (left - 0.5, left + 0.5)


def _edges(data: Floats, low: float, high: float, step: float) -> Floats:
    """Bins of Freedman and Diaconis's width 2·IQR·n^(−1/3), of whole steps where the values have a step."""
    quarter, three_quarters = np.quantile(data, [0.25, 0.75])
    width = 2 * float(three_quarters - quarter) / len(data) ** (1 / 3)
    fewest = min(max(12, round(2.5 * len(data) ** (1 / 3))), 36)  # two peaks far apart have a large IQR
    bins = min(max(math.ceil((high - low) / width), fewest), MAX_BINS) if width > 0 else 30
    if step < (high - low) / 10_000:
        return np.linspace(low, high, bins + 1)
    width = step * max(1, round((high - low) / bins / step))
    start = low - step / 2
    return start + width * np.arange(math.ceil((high + step / 2 - start) / width - 1e-9) + 1)
