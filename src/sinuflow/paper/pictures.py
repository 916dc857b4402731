"""Pictures in one style, without a window and without touching the user's settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: For what is true, for what was learned, and for what stands beside it.
TRUE, OURS, OTHER = "#4d4d4d", "#1b6ca8", "#c8553d"

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
def picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure to be painted, of so many inches; it is saved in the end."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ArgumentError("pictures need matplotlib: pip install 'sinuflow[cli]'") from error
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", dpi=160, metadata={"Software": None})


def picture_path(name: str, models: Iterable[str], out: Path) -> Path:
    """Where the picture of trained flows goes: if all are of one model, and not of ``today``, the model is in its name.

    Example:
        >>> [picture_path("samples", models, Path()).name for models in (["today"], ["best"], ["today", "best"])]
        ['samples.png', 'samples-best.png', 'samples.png']
    """
    shown = set(models) - {"today"} if len(set(models)) == 1 else set()
    return out / ("-".join([name, *shown]) + ".png")
