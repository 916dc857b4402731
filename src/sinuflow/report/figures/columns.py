"""One column: the held-out values against the model's samples."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ..content import ColumnView
from ..wording import power_of_ten, shorten
from .canvas import DATA, MODEL, draw, plain_axes
from .scale import Scale


def histogram(key: str, column: ColumnView, scale: Scale) -> str:
    """Shares of rows in the same bins: data filled, samples as a line; categories as pairs of bars."""
    data, samples = scale.heights(column.data), scale.heights(column.samples)

    def bars(figure: Figure) -> None:
        axes = plain_axes(figure)
        at = np.arange(len(scale.labels))
        axes.barh(at - 0.19, 100 * data, 0.36, color=DATA, alpha=0.55)
        axes.barh(at + 0.19, 100 * samples, 0.36, color=MODEL)
        axes.set_yticks(at, scale.labels)
        axes.set_ylim(max(len(at), 3) - 0.5, -0.5)  # one bar alone is no wall
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("% of rows")

    def stairs(figure: Figure) -> None:
        axes = plain_axes(figure)
        axes.stairs(100 * data, scale.edges, fill=True, color=DATA, alpha=0.4, linewidth=0)
        axes.stairs(100 * samples, scale.edges, color=MODEL, linewidth=1.4)
        axes.set_xlim(scale.edges[0], scale.edges[-1])
        axes.set_ylim(bottom=0)
        axes.set_ylabel("% of rows")
        label_axis(axes, "x", scale)

    label = f"Histogram of {shorten(column.name, 60)}: held-out data and the model's samples"
    return draw(key, label, (3.0, 1.95), bars if scale.categories else stairs)


def label_axis(axes: Axes, which: str, scale: Scale) -> None:
    """Name the ticks of an axis that shows a column."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if scale.categories:
        axis.set_ticks(range(len(scale.labels)), [shorten(label, 9) for label in scale.labels])
    elif scale.log:
        axis.set_major_locator(MaxNLocator(4, integer=True))
        axis.set_major_formatter(FuncFormatter(lambda at, _: power_of_ten(round(at))))
    elif scale.whole:
        axis.set_major_locator(MaxNLocator(4, integer=True))
