"""The noise of held-out rows: is each dimension normal, and is each independent of the others?"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..content import Floats
from ..wording import shorten
from .canvas import DATA, MODEL, MUTED, draw, plain_axes

MOST_POINTS = 160
MOST_NAMES = 16
REACH = 4.5
_NEGATIVE_RGB = (196, 84, 60)
_POSITIVE_RGB = (37, 122, 200)


def quantile_plot(key: str, name: str, z: Floats) -> str:
    """z₍ᵢ₎ against Φ⁻¹((i − ½)/n), with the band in which 95 % of normal samples' points lie, one by one.

    A quantile's standard error is √(p(1 − p)/n) / φ(Φ⁻¹(p)).
    """
    ordered = np.sort(z[np.isfinite(z)])
    n = len(ordered)
    at = np.unique(np.round(_even_in_normal(min(n, MOST_POINTS)) * n - 0.5).clip(0, max(n - 1, 0)).astype(int))
    normal = NormalDist()
    expected = np.array([normal.inv_cdf((i + 0.5) / n) for i in at])
    p = (at + 0.5) / max(n, 1)
    error = 1.96 * np.sqrt(p * (1 - p) / max(n, 1)) / np.array([normal.pdf(e) for e in expected])

    def paint(figure: Figure) -> None:
        axes = plain_axes(figure)
        axes.fill_between(expected, expected - error, expected + error, color=DATA, alpha=0.25, linewidth=0)
        axes.plot([-REACH, REACH], [-REACH, REACH], color=MUTED, linewidth=0.8)
        axes.plot(expected, ordered[at].clip(-REACH, REACH), "o", color=MODEL, markersize=2, clip_on=False)
        axes.set_xlim(-REACH, REACH)
        axes.set_ylim(-REACH, REACH)
        axes.set_xticks(range(-4, 5, 2))
        axes.set_yticks(range(-4, 5, 2))
        axes.set_box_aspect(1)
        axes.set_xlabel("normal")
        axes.set_ylabel("observed")

    return draw(key, f"Quantiles of the noise of {shorten(name, 60)} against normal quantiles", (2.0, 2.0), paint)


def correlation_map(key: str, names: list[str], r: Floats) -> str:
    """Off-diagonal correlations: opaque where strong, one colour per sign, and the scale beside it."""
    size = len(names)
    limit = max(0.1, float(np.ceil(10 * np.nanmax(np.abs(_off_diagonal(r)), initial=0.0)) / 10))
    shown = np.nan_to_num(r / limit)
    np.fill_diagonal(shown, 0.0)

    def paint(figure: Figure) -> None:
        axes, bar = figure.subplots(1, 2, width_ratios=(24, 1))
        axes.imshow(_tint(shown), extent=(-0.5, size - 0.5, size - 0.5, -0.5), interpolation="none")
        if size <= MOST_NAMES:
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
        ramp = np.linspace(1, -1, 64)[:, None]
        bar.imshow(_tint(ramp), extent=(0, 1, -limit, limit), aspect="auto", interpolation="none")
        bar.set_xticks([])
        bar.yaxis.tick_right()
        bar.yaxis.set_major_locator(MaxNLocator(5))
        bar.set_ylabel("correlation")
        bar.yaxis.set_label_position("right")

    return draw(key, f"Correlations of {size} dimensions of the noise", (4.0, 3.3), paint)


def _off_diagonal(r: Floats) -> Floats:
    return r[~np.eye(len(r), dtype=bool)]


def _even_in_normal(points: int) -> Floats:
    """Probabilities whose normal quantiles are about evenly spaced, so that the tails keep their points."""
    normal = NormalDist()
    return np.array([normal.cdf(x) for x in np.linspace(-REACH, REACH, points)])


def _tint(signed: Floats) -> NDArray[np.uint8]:
    image = np.empty((*signed.shape, 4), dtype=np.uint8)
    image[..., :3] = np.where(signed[..., None] < 0, _NEGATIVE_RGB, _POSITIVE_RGB)
    image[..., 3] = np.round(255 * np.abs(signed).clip(0, 1))
    return image
