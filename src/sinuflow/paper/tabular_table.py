"""The table of real tables, in Markdown."""

from __future__ import annotations

from typing import Any

_WORDS = {
    "paper": "Sinusoidal Flow, the paper's recipe",
    "today": "Sinusoidal Flow, the paper's architecture",
    "best": "Sinusoidal Flow, our best recipe",
    "maf": "MAF (zuko)",
    "nsf": "NSF (zuko)",
}


def table(figures: list[dict[str, Any]]) -> str:
    """All figures, the lowest of a set first."""
    lines = [
        "Test NLL in nats, lower is better: mean ± standard deviation over seeds.",
        "",
        "| set | model | test NLL | seeds | paper | training | comparable with the paper |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(figure["set"] for figure in figures):
        ours = [figure for figure in figures if figure["set"] == name]
        lines += [_line(figure) for figure in sorted(ours, key=lambda f: (f["value"] is None, f["value"]))]
    return "\n".join(lines) + "\n"


def _line(figure: dict[str, Any]) -> str:
    value = "not a number" if figure["value"] is None else f"{figure['value']:.3f}"
    spread = "" if figure["spread"] is None else f" ± {figure['spread']:.3f}"
    paper = "" if figure["paper"] is None else f"{figure['paper']:.2f}"
    seconds = f"{figure['seconds'] / len(figure['seeds']):,.0f} s, {figure['hardware']}"
    words = _WORDS.get(figure["model"], figure["model"])
    cells = [figure["set"], words, value + spread, str(len(figure["seeds"])), paper, seconds, figure["comparable"]]
    return "| " + " | ".join(cells) + " |"
