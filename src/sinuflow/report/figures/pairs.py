"""Two columns at once: the held-out rows beside the model's samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..content import ColumnView, Floats
from ..wording import shorten
from .canvas import draw
from .columns import label_axis
from .scale import Scale

# Colours of images are fixed: middle tones, readable on light and dark alike.
_DATA_RGB = (100, 116, 139)
_MODEL_RGB = (37, 122, 200)


def pair_plot(key: str, columns: tuple[ColumnView, ColumnView], scales: tuple[Scale, Scale]) -> str:
    """Two maps of density on the same bins and the same strength of colour."""
    densities = [_shares(scales, columns[0].data, columns[1].data)]
    densities.append(_shares(scales, columns[0].samples, columns[1].samples))
    highest = max(float(density.max()) for density in densities) or 1.0
    extent = (scales[0].edges[0], scales[0].edges[-1], scales[1].edges[0], scales[1].edges[-1])

    def paint(figure: Figure) -> None:
        left = figure.add_subplot(1, 2, 1)
        right = figure.add_subplot(1, 2, 2, sharex=left, sharey=left)
        for axes, title, density, rgb in zip(
            (left, right), ("data", "samples"), densities, (_DATA_RGB, _MODEL_RGB), strict=True
        ):
            axes.imshow(
                _tint(density / highest, rgb), origin="lower", extent=extent, aspect="auto", interpolation="none"
            )
            axes.set_title(title)
            axes.set_xlabel(shorten(columns[0].name, 22))
        for which, scale in zip("xy", scales, strict=True):
            axis = left.xaxis if which == "x" else left.yaxis
            axis.set_major_locator(MaxNLocator(4))
            label_axis(left, which, scale)
        if scales[0].categories:
            for axes in (left, right):
                axes.tick_params(axis="x", rotation=35)
        left.set_ylabel(shorten(columns[1].name, 22))
        right.tick_params(labelleft=False)

    first, second = (shorten(column.name, 60) for column in columns)
    return draw(key, f"{second} against {first}: held-out data beside the model's samples", (4.0, 2.25), paint)


def _shares(scales: tuple[Scale, Scale], first: NDArray[Any], second: NDArray[Any]) -> Floats:
    x, y = scales[0].place(first), scales[1].place(second)
    known = np.isfinite(x) & np.isfinite(y)
    counts, _, _ = np.histogram2d(x[known], y[known], bins=(scales[0].edges, scales[1].edges))
    return counts.T / max(len(x), 1)


def _tint(strength: Floats, rgb: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Colour with opacity √strength: the root keeps the tails visible."""
    image = np.empty((*strength.shape, 4), dtype=np.uint8)
    image[..., :3] = rgb
    image[..., 3] = np.round(255 * np.sqrt(strength))
    return image
