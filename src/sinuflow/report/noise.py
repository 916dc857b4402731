"""The section on noise: whether its dimensions are normal and uncorrelated."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .content import Floats, ReportContent
from .statistics import correlations, kolmogorov_smirnov
from .svg import DATA, MODEL, MODEL_RGB, MUTED, NEGATIVE_RGB, Gallery, Picture, axes_of, draw
from .wording import number, plural, shorten, small

MAX_QUANTILE_PLOTS = 12
MAX_CORRELATED = 64
#: Normal quantiles beyond this are clipped.
REACH = 4.5
_MAX_QUANTILES, _MAX_NAMES = 160, 16


def normality(content: ReportContent) -> tuple[Gallery, str]:
    """Quantile plots, the least normal dimension first, and what they mean."""
    z = np.asarray(content.z, dtype=np.float64)
    tests = [kolmogorov_smirnov(column) for column in z.T]
    order = sorted(range(len(tests)), key=lambda i: (-tests[i][0], i))
    pictures = []
    for i in order[:MAX_QUANTILE_PLOTS]:
        (statistic, p), name = tests[i], shorten(content.noise_names[i], 60)
        beyond = int((~(np.abs(z[:, i]) <= REACH)).sum())
        note = f"KS {number(statistic)}, p {f'= {small(p)}' if p > 1e-12 else f'< {small(1e-12)}'}"
        note += f"; {beyond} beyond \N{PLUS-MINUS SIGN}{REACH:g}" if beyond else ""
        pictures.append(Picture(_quantile_plot(f"quantiles{i}", name, z[:, i]), name, note))
    rest = len(order) - len(pictures)
    left_out = f"Not drawn: {plural(rest, 'dimension')}, all closer to normal than these." if rest else ""
    rejected = sum(p < 0.05 / len(tests) for _, p in tests)
    return Gallery(pictures, left_out), (
        f"Of {plural(len(tests), 'dimension')}, {rejected} differ{'s' * (rejected == 1)} significantly from normal "
        f"(5 % level, Bonferroni correction). The largest Kolmogorov-Smirnov distance is "
        f"{number(tests[order[0]][0])}; by chance alone it reaches about {number(1.358 / math.sqrt(len(z)))} in "
        f"{plural(len(z), 'row')}. With many rows even tiny distances are significant, so judge by their size: below "
        "0.02 is good, above 0.1 is poor."
    )


def _quantile_plot(key: str, name: str, z: Floats) -> str:
    """z₍ᵢ₎ against Φ⁻¹((i − ½)/n), with the pointwise 95 % band ±1.96·√(p(1 − p)/n) / φ(Φ⁻¹(p)) of normal samples."""
    ordered = np.sort(z[np.isfinite(z)])
    n, normal = len(ordered), NormalDist()
    # Evenly spaced in normal quantiles, so that the tails keep their points.
    levels = np.array([normal.cdf(x) for x in np.linspace(-REACH, REACH, min(n, _MAX_QUANTILES))])
    at = np.unique(np.round(levels * n - 0.5).clip(0, max(n - 1, 0)).astype(int))
    p = (at + 0.5) / max(n, 1)
    expected = np.array([normal.inv_cdf(level) for level in p])
    error = 1.96 * np.sqrt(p * (1 - p) / max(n, 1)) / np.array([normal.pdf(e) for e in expected])

    def paint(figure: Figure) -> None:
        axes = axes_of(figure, xlabel="normal", ylabel="observed")
        axes.fill_between(expected, expected - error, expected + error, color=DATA, alpha=0.25, linewidth=0)
        axes.plot([-REACH, REACH], [-REACH, REACH], color=MUTED, linewidth=0.8)
        axes.plot(expected, ordered[at].clip(-REACH, REACH), "o", color=MODEL, markersize=2, clip_on=False)
        ticks = range(-4, 5, 2)
        axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xticks=ticks, yticks=ticks, box_aspect=1)

    return draw(key, f"Quantiles of the noise of {name} against normal quantiles", (2.0, 2.0), paint)


def correlation(content: ReportContent) -> Picture | None:
    """Correlations off the diagonal: opaque where strong, and one colour for each sign."""
    names = content.noise_names
    if len(names) < 2:
        return None
    r = np.nan_to_num(correlations(content.z))
    np.fill_diagonal(r, 0.0)
    first, second = sorted(map(int, np.unravel_index(np.argmax(np.abs(r)), r.shape)))
    note = f"Strongest: {shorten(names[first])} with {shorten(names[second])}, {number(float(r[first, second]), 2)}."
    if len(names) > MAX_CORRELATED:
        chosen = np.sort(np.argsort(-np.abs(r).max(axis=1), kind="stable")[:MAX_CORRELATED])
        note += f" Drawn are the {MAX_CORRELATED} of {len(names)} dimensions with the strongest correlations."
        names, r = [names[i] for i in chosen], r[np.ix_(chosen, chosen)]
    size, limit = len(names), max(0.1, float(np.ceil(10 * np.abs(r).max()) / 10))
    stops = [(0, (*NEGATIVE_RGB, 1)), (0.5, (*NEGATIVE_RGB, 0)), (0.5, (*MODEL_RGB, 0)), (1, (*MODEL_RGB, 1))]
    colours = LinearSegmentedColormap.from_list("", stops)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        image = axes.imshow(r, colours, vmin=-limit, vmax=limit, interpolation="none")
        if size <= _MAX_NAMES:
            labels = [shorten(name, 12) for name in names]
            axes.set_xticks(range(size), labels, rotation=60, ha="right", rotation_mode="anchor")
            axes.set_yticks(range(size), labels)
        else:
            axes.set_xlabel("dimension, in the order of the columns")
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(6, integer=True))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(True)
        bar = figure.colorbar(image, label="correlation", ticks=MaxNLocator(5))
        for mesh in bar.ax.collections:
            mesh.set_rasterized(True)  # one image, and labels in the page's colours

    svg = draw("correlation", f"Correlations of {size} dimensions of the noise", (4.0, 3.3), paint)
    return Picture(svg, "Correlations", note)
