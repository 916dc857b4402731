"""The course of training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..content import Floats
from .canvas import DATA, INK, MODEL, MUTED, draw, plain_axes

History = list[dict[str, float | None]]

MOST_POINTS = 300


def training_curve(key: str, history: History, best_step: int) -> str | None:
    """Train and validation NLL over steps, the best step marked; None where there is nothing to draw."""
    train, val = series(history, "train_nll"), series(history, "val_nll")
    if not len(train[0]) and not len(val[0]):
        return None

    def paint(figure: Figure) -> None:
        axes = plain_axes(figure)
        for (steps, values), colour, name, width in ((train, DATA, "training", 1.0), (val, MODEL, "validation", 1.5)):
            if len(steps):
                marker: dict[str, Any] = {"marker": "o", "markersize": 3} if len(steps) < 4 else {}
                axes.plot(steps, values, color=colour, linewidth=width, label=name, **marker)
        axes.set_ylim(*_limits(train, val))
        axes.axvline(best_step, color=MUTED, linewidth=0.8, linestyle=(0, (3, 3)))
        at_best = val[1][val[0] == best_step]
        if len(at_best):
            axes.plot(
                [best_step], at_best[-1:], "o", color=MODEL, markersize=5, markeredgecolor=INK, markeredgewidth=0.8
            )
        axes.set_xlabel("step")
        axes.set_ylabel("NLL, nats per row")
        axes.grid(axis="y")
        figure.legend(frameon=False, loc="outside upper right", ncols=2)

    return draw(key, f"Training and validation NLL over steps; the best step is {best_step}", (4.0, 2.35), paint)


def learning_rate_curve(key: str, history: History) -> str | None:
    """The learning rate over steps; None where it was not recorded."""
    steps, rates = series(history, "learning_rate")
    if len(steps) < 2:
        return None

    def paint(figure: Figure) -> None:
        axes = plain_axes(figure)
        axes.plot(steps, rates, color=MODEL, linewidth=1.5)
        axes.set_ylim(0, 1.08 * float(rates.max()) or 1.0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
        axes.set_xlabel("step")
        axes.set_ylabel("learning rate")
        axes.grid(axis="y")

    return draw(key, "Learning rate over steps", (4.0, 2.35), paint)


def series(history: History, name: str) -> tuple[Floats, Floats]:
    """The steps and values where there is a finite value, thinned to groups' means when there are very many."""
    points = [(entry.get("step"), entry.get(name)) for entry in history]
    known = [(s, v) for s, v in points if s is not None and v is not None and math.isfinite(s) and math.isfinite(v)]
    if not known:
        return np.empty(0), np.empty(0)
    steps, values = (np.array(column, dtype=np.float64) for column in zip(*known, strict=True))
    if len(steps) <= MOST_POINTS:
        return steps, values
    groups = np.array_split(np.arange(len(steps)), MOST_POINTS)
    return np.array([steps[g].mean() for g in groups]), np.array([values[g].mean() for g in groups])


def cut_off(history: History) -> bool:
    """Whether the curve leaves its frame."""
    curves = [series(history, name) for name in ("train_nll", "val_nll")]
    values = np.concatenate([values for _, values in curves])
    return bool(len(values) and values.max() > _limits(*curves)[1])


def _limits(*curves: tuple[Floats, Floats]) -> tuple[float, float]:
    """From the lowest value up; neither the first tenth of the steps nor a rare spike may flatten the rest."""
    steps, values = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    low, high = float(values.min()), float(values.max())
    later = values[steps > 0.1 * steps.max()]
    if len(later) >= 10:
        high = min(high, low + 1.5 * (float(np.quantile(later, 0.95)) - low))
    margin = 0.06 * (high - low) or 0.5
    return low - margin, high + margin
