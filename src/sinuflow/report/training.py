"""The section on training: curves over the steps."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from .content import Floats, ReportContent
from .svg import DATA, INK, MODEL, MUTED, Gallery, Picture, axes_of, draw

_MAX_STEPS = 300


def curves(content: ReportContent) -> Gallery:
    """The NLL of training and validation, and the learning rate, as far as they were recorded."""
    train, val, rate = (_series(content.history, name) for name in ("train_nll", "val_nll", "learning_rate"))
    pictures = []
    if len(train[0]) or len(val[0]):
        pictures.append(_likelihood(train, val, content.best_step))
    if len(rate[0]) > 1:
        pictures.append(_learning_rate(*rate))
    return Gallery(pictures)


def _likelihood(train: tuple[Floats, Floats], val: tuple[Floats, Floats], best_step: int) -> Picture:
    limits = _limits(train, val)

    def paint(figure: Figure) -> None:
        axes = axes_of(figure, xlabel="step", ylabel="NLL, nats per row", ylim=limits)
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

    label = f"Training and validation NLL over steps; the best step is {best_step}"
    note = (
        f"The dashed line marks step {best_step:,}, whose weights were selected. The curves are in the units of the "
        "prepared columns, the scores above in those of the table."
    )
    if max(values.max(initial=-math.inf) for _, values in (train, val)) > limits[1]:
        note += " High values, as in the first steps, are cut off."
    return Picture(draw("training", label, (4.0, 2.35), paint), "Negative log-likelihood", note)


def _learning_rate(steps: Floats, rates: Floats) -> Picture:
    def paint(figure: Figure) -> None:
        axes = axes_of(figure, xlabel="step", ylabel="learning rate", ylim=(0, 1.08 * float(rates.max()) or 1.0))
        axes.plot(steps, rates, color=MODEL, linewidth=1.5)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(axis="y")

    return Picture(draw("rate", "Learning rate over steps", (4.0, 2.35), paint), "Learning rate")


def _series(history: list[dict[str, float | None]], name: str) -> tuple[Floats, Floats]:
    """Steps and finite values; means of groups of them if there are very many."""
    points = [(entry.get("step"), entry.get(name)) for entry in history]
    known = [(s, v) for s, v in points if s is not None and v is not None and math.isfinite(s) and math.isfinite(v)]
    groups = np.array_split(np.array(known), min(len(known), _MAX_STEPS)) if known else []
    steps, values = np.array([group.mean(axis=0) for group in groups]).reshape(-1, 2).T
    return steps, values


def _limits(*curves: tuple[Floats, Floats]) -> tuple[float, float]:
    """Limits that neither the first tenth of the steps nor a rare spike determine."""
    steps, values = (np.concatenate(parts) for parts in zip(*curves, strict=True))
    low, high, later = values.min(), values.max(), values[steps > 0.1 * steps.max()]
    if len(later) >= 10:
        high = min(high, low + 1.5 * (np.quantile(later, 0.95) - low))
    margin = 0.06 * (high - low) or 0.5
    return float(low - margin), float(high + margin)
