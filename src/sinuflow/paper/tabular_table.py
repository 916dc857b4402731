"""The table of real tables, in Markdown."""

from __future__ import annotations

from typing import Any

from .markdown import WORDS, best_first, row


def table(figures: list[dict[str, Any]]) -> str:
    """All figures, the lowest of a set first."""
    lines = [
        "Test NLL in nats, lower is better: mean ± standard deviation over seeds, and the standard error of the mean.",
        "",
        "| set | model | test NLL | seeds | standard error | paper | training of one | comparable with the paper |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += best_first(figures, _line)
    return "\n".join(lines) + "\n"


def _line(figure: dict[str, Any]) -> str:
    value, spread, seeds = figure["value"], figure["spread"], len(figure["seeds"])
    mean = "not a number" if value is None else _number(value)
    around = "" if spread is None else f" ± {_number(spread)}"
    error = "" if spread is None else _number(spread / seeds**0.5)
    paper = "" if figure["paper"] is None else f"{figure['paper']:.2f}"
    seconds = f"{figure['seconds'] / seeds:,.0f} s, {figure['hardware']}"
    words = WORDS.get(figure["model"], figure["model"])
    cells = [figure["set"], words, mean + around, str(seeds), error, paper, seconds, figure["comparable"]]
    return row(cells)


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1e4 else f"{value:.1e}"
