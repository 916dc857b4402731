"""The figures of the report: inline SVG that is drawn by matplotlib and takes its colours from the page."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable
from statistics import NormalDist
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .content import ColumnView, Floats
from .scale import Scale
from .wording import power_of_ten, shorten

History = list[dict[str, float | None]]

#: Placeholders for the variables of the page's style sheet.
INK, MUTED, RULE, DATA, MODEL = "#010101", "#010102", "#010103", "#010104", "#010105"
_VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", DATA: "--data", MODEL: "--model"}
#: Images cannot take colours from the page: these are legible on light and dark backgrounds, by their opacity.
_DATA_RGB, _MODEL_RGB, _NEGATIVE_RGB = (np.array(rgb) / 255 for rgb in ((100, 116, 139), (37, 122, 200), (196, 84, 60)))

#: Normal quantiles beyond this are clipped.
REACH = 4.5
_MAX_QUANTILES, _MAX_NAMES, _MAX_STEPS = 160, 16, 300

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text in the font of the page
    "svg.image_inline": True,
    "image.composite_image": False,  # no resampling
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "text.usetex": False,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "text.color": INK,
    "axes.titlecolor": INK,
    "axes.labelcolor": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.edgecolor": "none",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.solid_capstyle": "round",
}

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_COLOUR = re.compile(r"#0101[0-9a-f]{2}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def draw(key: str, label: str, size: tuple[float, float], paint: Callable[[Figure], None]) -> str:
    """Draw a figure, and return it as an ``<svg>`` element.

    Args:
        key: a prefix of ids that is unique on the page.
        label: a description for screen readers.
        size: width and height in inches; the page scales it.
        paint: draws into the empty figure.
    """
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")  # the reader's fonts have more than matplotlib's
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE | {"svg.hashsalt": key})
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _for_page(ElementTree.fromstring(file.getvalue()), key, label)


def _for_page(root: ElementTree.Element, key: str, label: str) -> str:
    """Prefix ids with the key, and replace colours by variables of the style sheet."""
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag in (f"{_SVG}metadata", f"{_SVG}style")]:
            parent.remove(child)

    def attribute(name: str, value: str) -> str:
        if name == "id":
            return f"{key}-{value}"
        if name == f"{_LINK}href" and value.startswith("#"):
            return f"#{key}-{value[1:]}"
        if name in ("style", "fill", "stroke"):
            value = _COLOUR.sub(lambda match: f"var({_VARIABLES[match[0]]})", value)
        return _REFERENCE.sub(lambda match: f"url(#{key}-{match[1]})", value)

    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        element.attrib = {n.removeprefix(_LINK): attribute(n, value) for n, value in element.attrib.items()}
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


def _axes(figure: Figure, **properties: Any) -> Axes:
    """Axes with few ticks."""
    axes: Axes = figure.add_subplot()
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set(**properties)
    return axes


def _label_axis(axis: Any, scale: Scale) -> None:
    """Ticks of an axis that shows a column."""
    if scale.categories:
        axis.set_ticks(range(len(scale.labels)), [shorten(label, 9) for label in scale.labels])
    elif scale.log or scale.whole:
        axis.set_major_locator(MaxNLocator(4, integer=True))
    if scale.log:
        axis.set_major_formatter(FuncFormatter(lambda at, _: power_of_ten(round(at))))


# ---------------------------------------------------------------- columns


def histogram(key: str, column: ColumnView, scale: Scale) -> str:
    """Shares of rows in the same bins: data filled, samples as a line; categories as pairs of bars."""
    data, samples = 100 * scale.heights(column.data), 100 * scale.heights(column.samples)

    def bars(figure: Figure) -> None:
        at = np.arange(len(scale.labels))
        axes = _axes(figure, xlabel="% of rows")
        axes.barh(at - 0.19, data, 0.36, color=DATA, alpha=0.55)
        axes.barh(at + 0.19, samples, 0.36, color=MODEL)
        axes.set_yticks(at, scale.labels)
        axes.set_ylim(max(len(at), 3) - 0.5, -0.5)  # a single bar does not fill the figure
        axes.tick_params(axis="y", length=0)

    def stairs(figure: Figure) -> None:
        axes = _axes(figure, xlim=(scale.edges[0], scale.edges[-1]), ylabel="% of rows")
        axes.stairs(data, scale.edges, fill=True, color=DATA, alpha=0.4, linewidth=0)
        axes.stairs(samples, scale.edges, color=MODEL, linewidth=1.4)
        axes.set_ylim(bottom=0)
        _label_axis(axes.xaxis, scale)

    label = f"Histogram of {shorten(column.name, 60)}: held-out data and the model's samples"
    return draw(key, label, (3.0, 1.95), bars if scale.categories else stairs)


def pair_plot(key: str, columns: tuple[ColumnView, ColumnView], scales: tuple[Scale, Scale]) -> str:
    """Two-dimensional histograms of data and samples, with the same bins and colour scale."""
    edges = [scale.edges for scale in scales]

    def shares(which: str) -> Floats:
        x, y = (s.coordinates(getattr(c, which)) for s, c in zip(scales, columns, strict=True))
        known = np.isfinite(x) & np.isfinite(y)
        counts = np.histogram2d(x[known], y[known], bins=(edges[0], edges[1]))[0]
        return np.asarray(counts.T / max(len(x), 1))

    densities = {"data": shares("data"), "samples": shares("samples")}
    # The square root keeps the tails visible.
    norm = PowerNorm(0.5, 0, max(float(density.max()) for density in densities.values()) or 1.0)
    extent = (edges[0][0], edges[0][-1], edges[1][0], edges[1][-1])

    def paint(figure: Figure) -> None:
        both = figure.subplots(1, 2, sharex=True, sharey=True)
        for axes, (title, density), rgb in zip(both, densities.items(), (_DATA_RGB, _MODEL_RGB), strict=True):
            colours = LinearSegmentedColormap.from_list("", [(*rgb, 0), (*rgb, 1)])
            axes.imshow(density, colours, norm, origin="lower", extent=extent, aspect="auto", interpolation="none")
            axes.set(title=title, xlabel=shorten(columns[0].name, 22))
            if scales[0].categories:
                axes.tick_params(axis="x", rotation=35)
        for axis, scale in zip((both[0].xaxis, both[0].yaxis), scales, strict=True):
            axis.set_major_locator(MaxNLocator(4))
            _label_axis(axis, scale)
        both[0].set_ylabel(shorten(columns[1].name, 22))

    first, second = (shorten(column.name, 60) for column in columns)
    return draw(key, f"{second} against {first}: held-out data beside the model's samples", (4.0, 2.25), paint)


# ---------------------------------------------------------------- noise


def quantile_plot(key: str, name: str, z: Floats) -> str:
    """z₍ᵢ₎ against Φ⁻¹((i − ½)/n), with the pointwise 95 % band of normal samples.

    The standard error of a quantile is √(p(1 − p)/n) / φ(Φ⁻¹(p)).
    """
    ordered = np.sort(z[np.isfinite(z)])
    n, normal = len(ordered), NormalDist()
    # Evenly spaced in normal quantiles, so that the tails keep their points.
    levels = np.array([normal.cdf(x) for x in np.linspace(-REACH, REACH, min(n, _MAX_QUANTILES))])
    at = np.unique(np.round(levels * n - 0.5).clip(0, max(n - 1, 0)).astype(int))
    p = (at + 0.5) / max(n, 1)
    expected = np.array([normal.inv_cdf(level) for level in p])
    error = 1.96 * np.sqrt(p * (1 - p) / max(n, 1)) / np.array([normal.pdf(e) for e in expected])

    def paint(figure: Figure) -> None:
        axes = _axes(figure, xlabel="normal", ylabel="observed")
        axes.fill_between(expected, expected - error, expected + error, color=DATA, alpha=0.25, linewidth=0)
        axes.plot([-REACH, REACH], [-REACH, REACH], color=MUTED, linewidth=0.8)
        axes.plot(expected, ordered[at].clip(-REACH, REACH), "o", color=MODEL, markersize=2, clip_on=False)
        ticks = range(-4, 5, 2)
        axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xticks=ticks, yticks=ticks, box_aspect=1)

    return draw(key, f"Quantiles of the noise of {shorten(name, 60)} against normal quantiles", (2.0, 2.0), paint)


def correlation_map(key: str, names: list[str], r: Floats) -> str:
    """Correlations off the diagonal: opaque where strong, and one colour for each sign."""
    size = len(names)
    shown = np.nan_to_num(r)
    np.fill_diagonal(shown, 0.0)
    limit = max(0.1, float(np.ceil(10 * np.abs(shown).max(initial=0.0)) / 10))
    stops = [(0, (*_NEGATIVE_RGB, 1)), (0.5, (*_NEGATIVE_RGB, 0)), (0.5, (*_MODEL_RGB, 0)), (1, (*_MODEL_RGB, 1))]
    style = {
        "cmap": LinearSegmentedColormap.from_list("", stops),
        "vmin": -limit,
        "vmax": limit,
        "interpolation": "none",
    }

    def paint(figure: Figure) -> None:
        axes, bar = figure.subplots(1, 2, width_ratios=(24, 1))
        axes.imshow(shown, **style)
        if size <= _MAX_NAMES:
            labels = [shorten(name, 12) for name in names]
            axes.set_xticks(range(size), labels, rotation=60, ha="right", rotation_mode="anchor")
            axes.set_yticks(range(size), labels)
        else:
            axes.set_xlabel("dimension, in the order of the columns")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(6, integer=True))
        axes.tick_params(length=0)
        for spine in (*axes.spines.values(), *bar.spines.values()):
            spine.set_visible(True)
        bar.imshow(np.linspace(limit, -limit, 64)[:, None], extent=(0, 1, -limit, limit), aspect="auto", **style)
        bar.yaxis.tick_right()
        bar.yaxis.set_major_locator(MaxNLocator(5))
        bar.yaxis.set_label_position("right")
        bar.set(xticks=[], ylabel="correlation")

    return draw(key, f"Correlations of {size} dimensions of the noise", (4.0, 3.3), paint)


# ---------------------------------------------------------------- training


def training_curve(key: str, history: History, best_step: int) -> str | None:
    """Training and validation NLL over steps; None without any values."""
    train, val = series(history, "train_nll"), series(history, "val_nll")
    if not len(train[0]) and not len(val[0]):
        return None

    def paint(figure: Figure) -> None:
        axes = _axes(figure, xlabel="step", ylabel="NLL, nats per row", ylim=_limits(train, val))
        for (steps, values), colour, name, width in ((train, DATA, "training", 1.0), (val, MODEL, "validation", 1.5)):
            if len(steps):
                marker = "o" if len(steps) < 4 else None
                axes.plot(steps, values, color=colour, linewidth=width, label=name, marker=marker, markersize=3)
        axes.axvline(best_step, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
        best = val[1][val[0] == best_step][-1:]
        axes.plot(
            [best_step] * len(best), best, "o", color=MODEL, markersize=5, markeredgecolor=INK, markeredgewidth=0.8
        )
        axes.grid(axis="y")
        figure.legend(frameon=False, loc="outside upper right", ncols=2)

    return draw(key, f"Training and validation NLL over steps; the best step is {best_step}", (4.0, 2.35), paint)


def learning_rate_curve(key: str, history: History) -> str | None:
    """The learning rate over steps; None if it was not recorded."""
    steps, rates = series(history, "learning_rate")
    if len(steps) < 2:
        return None

    def paint(figure: Figure) -> None:
        axes = _axes(figure, xlabel="step", ylabel="learning rate", ylim=(0, 1.08 * float(rates.max()) or 1.0))
        axes.plot(steps, rates, color=MODEL, linewidth=1.5)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(axis="y")

    return draw(key, "Learning rate over steps", (4.0, 2.35), paint)


def series(history: History, name: str) -> tuple[Floats, Floats]:
    """Steps and finite values; means of groups of them if there are very many."""
    points = [(entry.get("step"), entry.get(name)) for entry in history]
    known = [(s, v) for s, v in points if s is not None and v is not None and math.isfinite(s) and math.isfinite(v)]
    steps, values = np.array(known, dtype=np.float64).reshape(-1, 2).T
    if len(steps) <= _MAX_STEPS:
        return steps, values
    groups = np.array_split(np.arange(len(steps)), _MAX_STEPS)
    return np.array([steps[g].mean() for g in groups]), np.array([values[g].mean() for g in groups])


def is_cut_off(history: History) -> bool:
    """Whether the training curve leaves its axes."""
    curves = [series(history, name) for name in ("train_nll", "val_nll")]
    values = np.concatenate([values for _, values in curves])
    return bool(len(values) and values.max() > _limits(*curves)[1])


def _limits(*curves: tuple[Floats, Floats]) -> tuple[float, float]:
    """Limits that neither the first tenth of the steps nor a rare spike determine."""
    steps, values = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    low, high = float(values.min()), float(values.max())
    later = values[steps > 0.1 * steps.max()]
    if len(later) >= 10:
        high = min(high, low + 1.5 * (float(np.quantile(later, 0.95)) - low))
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin
