"""Matplotlib figures in one style, independent of the user's settings and without a window."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..data.image_files import grid_of
from ..errors import ArgumentError
from ..files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colours of the truth, of a Sinusoidal Flow, and of what it is compared with.
TRUE, OURS, OTHER = "#4d4d4d", "#1b6ca8", "#c8553d"
DASHED: dict[str, Any] = {"linewidth": 0.9, "linestyle": (0, (4, 3))}

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "legend.frameon": False,
    "figure.facecolor": "white",
}


@contextlib.contextmanager
def saved_figure(path: Path, width: float, height: float) -> Iterator[Figure]:
    """An empty figure, its size in inches, that is saved as PNG when the block ends."""
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ArgumentError("figures need matplotlib: pip install 'sinuflow[cli]'") from error
    with style.context(_STYLE, after_reset=True):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", dpi=160, metadata={"Software": None})


def figure_path(name: str, models: Iterable[str], out: Path) -> Path:
    """The file of a figure of trained flows: named after the model if all are of one, and not of ``today``.

    Example:
        >>> [figure_path("samples", models, Path()).name for models in (["today"], ["best"], ["today", "best"])]
        ['samples.png', 'samples-best.png', 'samples.png']
    """
    shown = set(models) - {"today"} if len(set(models)) == 1 else set()
    return out / ("-".join([name, *shown]) + ".png")


def show_images(axes: Any, images: Tensor, columns: int, title: str) -> int:
    """Show byte images (N, C, H, W) in a grid, and return the height of the grid in pixels."""
    grid = grid_of(images, columns).expand(3, -1, -1).permute(1, 2, 0).numpy()
    axes.imshow(grid, interpolation="nearest")
    axes.set(title=title, xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return len(grid)
