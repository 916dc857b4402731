"""What the tables of results have in common, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: What models of ours and of others are called.
WORDS = {
    "paper": "Sinusoidal Flow, the paper's recipe",
    "today": "Sinusoidal Flow, the paper's architecture",
    "stable": "Sinusoidal Flow, the paper's architecture, with stability",
    "affine": "Sinusoidal Flow, the paper's architecture, with scales",
    "best": "Sinusoidal Flow, our best recipe",
    "maf": "MAF (zuko)",
    "nsf": "NSF (zuko)",
    "independent pixels": "every pixel for itself",
}


def best_first(figures: list[dict[str, Any]], line: Callable[[dict[str, Any]], str]) -> list[str]:
    """A line for every figure, set by set, the lowest of a set first."""
    lines: list[str] = []
    for name in dict.fromkeys(figure["set"] for figure in figures):
        ours = [figure for figure in figures if figure["set"] == name]
        lines += [line(figure) for figure in sorted(ours, key=lambda f: (f["value"] is None, f["value"]))]
    return lines


def row(cells: Sequence[str]) -> str:
    """A row of a table.

    Example:
        >>> row(["power", "-0.59"])
        '| power | -0.59 |'
    """
    return "| " + " | ".join(cells) + " |"
