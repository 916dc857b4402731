"""The sections on columns and on pairs of columns: histograms of data and samples."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .content import ColumnView, Floats
from .scale import Scale, scale_of
from .statistics import correlations, distance
from .svg import DATA, DATA_RGB, MODEL, MODEL_RGB, Gallery, Picture, axes_of, draw
from .wording import power_of_ten, share, shorten

MAX_HISTOGRAMS = 30
MAX_PAIRED = 5


def histograms(columns: list[ColumnView]) -> Gallery:
    """A histogram of each column; of very many, those where samples and data differ most."""
    drawn, left_out = columns, ""
    if len(columns) > MAX_HISTOGRAMS:
        gaps = np.nan_to_num([distance(column) for column in columns], nan=np.inf)
        left_out = f"Not drawn: the {len(columns) - MAX_HISTOGRAMS} columns where samples and data agree best."
        drawn = [columns[i] for i in np.sort(np.argsort(-gaps, kind="stable")[:MAX_HISTOGRAMS])]
    return Gallery([_histogram(f"column{i}", column) for i, column in enumerate(drawn)], left_out)


def _histogram(key: str, column: ColumnView) -> Picture:
    """Shares of rows in the same bins: data filled, samples as a line; categories as pairs of bars."""
    scale, name = scale_of(column), shorten(column.name, 60)
    data, samples = 100 * scale.heights(scale.data), 100 * scale.heights(scale.samples)

    def bars(figure: Figure) -> None:
        at = np.arange(len(scale.labels))
        axes = axes_of(figure, xlabel="% of rows")
        axes.barh(at - 0.19, data, 0.36, color=DATA, alpha=0.55)
        axes.barh(at + 0.19, samples, 0.36, color=MODEL)
        axes.set_yticks(at, scale.labels)
        axes.set_ylim(max(len(at), 3) - 0.5, -0.5)  # a single bar does not fill the figure
        axes.tick_params(axis="y", length=0)

    def stairs(figure: Figure) -> None:
        axes = axes_of(figure, xlim=(scale.edges[0], scale.edges[-1]), ylabel="% of rows")
        axes.stairs(data, scale.edges, fill=True, color=DATA, alpha=0.4, linewidth=0)
        axes.stairs(samples, scale.edges, color=MODEL, linewidth=1.4)
        axes.set_ylim(bottom=0)
        _label_axis(axes.xaxis, scale)

    label = f"Histogram of {name}: held-out data and the model's samples"
    svg = draw(key, label, (3.0, 1.95), bars if scale.labels else stairs)
    beyond = {"data": scale.outside(scale.data), "samples": scale.outside(scale.samples)}
    cut_off = " and ".join(f"{share(size)} of the {of}" for of, size in beyond.items() if size > 0)
    notes = ["Logarithmic axis."] * scale.log + [f"Cut off: {cut_off}."] * bool(cut_off)
    return Picture(svg, name, " ".join(notes))


def _label_axis(axis: Any, scale: Scale) -> None:
    """Ticks of an axis that shows a column."""
    if scale.labels:
        axis.set_ticks(range(len(scale.labels)), [shorten(label, 9) for label in scale.labels])
    elif scale.log or (np.mod(scale.edges, 1) == 0.5).all():  # the centres are integers, or runs of integers
        axis.set_major_locator(MaxNLocator(4, integer=True))
    if scale.log:
        axis.set_major_formatter(FuncFormatter(lambda at, _: power_of_ten(round(at))))


def pairs(columns: list[ColumnView]) -> Gallery:
    """Every pair of up to five columns, those with the strongest rank correlations."""
    chosen = _most_correlated(columns)
    note = f"Drawn are pairs of the {len(chosen)} of {len(columns)} columns with the strongest rank correlations."
    scaled = [(i, column, scale_of(column)) for i, column in enumerate(chosen)]
    pictures = [_pair(*pair) for pair in itertools.combinations(scaled, 2)]
    return Gallery(pictures, note if len(columns) > len(chosen) else "")


def _most_correlated(columns: list[ColumnView]) -> list[ColumnView]:
    if len(columns) <= MAX_PAIRED:
        return columns
    # Categories have no order, and count as uncorrelated.
    ranks = [np.unique(c.data, return_inverse=True)[1] * (c.kind != "category") for c in columns]
    r = np.abs(np.nan_to_num(correlations(np.stack(ranks, axis=1))))
    np.fill_diagonal(r, 0.0)
    strongest = np.argsort(-np.triu(r), axis=None, kind="stable")
    paired = np.stack(np.unravel_index(strongest, r.shape), axis=1)
    chosen = list(dict.fromkeys(paired.ravel().tolist()))[:MAX_PAIRED]
    return [columns[i] for i in sorted(chosen)]


def _pair(x: tuple[int, ColumnView, Scale], y: tuple[int, ColumnView, Scale]) -> Picture:
    """Two-dimensional histograms of data and samples, with the same bins and colour scale."""
    (i, x_column, x_scale), (j, y_column, y_scale) = x, y

    def shares(at_x: Floats, at_y: Floats) -> Floats:
        known = np.isfinite(at_x) & np.isfinite(at_y)
        counts = np.histogram2d(at_x[known], at_y[known], bins=(x_scale.edges, y_scale.edges))[0]
        return np.asarray(counts.T / len(at_x))

    densities = {"data": shares(x_scale.data, y_scale.data), "samples": shares(x_scale.samples, y_scale.samples)}
    # The square root keeps the tails visible.
    norm = PowerNorm(0.5, 0, max(float(density.max()) for density in densities.values()) or 1.0)
    extent = (*x_scale.edges[[0, -1]], *y_scale.edges[[0, -1]])

    def paint(figure: Figure) -> None:
        both = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, (title, density), rgb in zip(both, densities.items(), (DATA_RGB, MODEL_RGB), strict=True):
            colours = LinearSegmentedColormap.from_list("", [(*rgb, 0), (*rgb, 1)])
            axes.imshow(density, colours, norm, origin="lower", extent=extent, aspect="auto", interpolation="none")
            axes.set(title=title, xlabel=shorten(x_column.name, 22))
            if x_scale.labels:
                axes.tick_params(axis="x", rotation=35)
        for axis, scale in ((both[0].xaxis, x_scale), (both[0].yaxis, y_scale)):
            axis.set_major_locator(MaxNLocator(4))
            _label_axis(axis, scale)
        both[0].set_ylabel(shorten(y_column.name, 22))

    title = f"{shorten(y_column.name, 60)} against {shorten(x_column.name, 60)}"
    label = f"{title}: held-out data beside the model's samples"
    return Picture(draw(f"pair{i}and{j}", label, (4.0, 2.25), paint), title)
