"""The runtimes, in Markdown: beside every time the error that it bought."""

from __future__ import annotations

from typing import Any


def table(figures: list[dict[str, Any]]) -> str:
    """For every set and task, iterations down and tolerances across."""
    parts = []
    for name in dict.fromkeys(figure["set"] for figure in figures):
        for task in dict.fromkeys(figure["task"] for figure in figures):
            ours = [figure for figure in figures if (figure["set"], figure["task"]) == (name, task)]
            if ours:
                parts.append(_one(name, task, ours))
    return "\n\n".join(parts) + "\n"


def _one(name: str, task: str, figures: list[dict[str, Any]]) -> str:
    algorithm_1 = {(f["iterations"], f["tolerance"]): f for f in figures if f["iterations"] is not None}
    tolerances = sorted({tolerance for _, tolerance in algorithm_1}, reverse=True)
    first = figures[0]
    lines = [
        f"Seconds to {task} {first['rows']} images of {name} ({first['hardware']}), and in brackets the largest error, "
        f"in logits. The flow: {first['trained']}.",
        "",
        "| iterations at most | " + " | ".join(f"Algorithm 1, tolerance {short(t)}" for t in tolerances) + " |",
        "|---|" + "---|" * len(tolerances),
    ]
    for limit in sorted({limit for limit, _ in algorithm_1}):
        lines.append(f"| {limit} | " + " | ".join(_cell(algorithm_1.get((limit, t))) for t in tolerances) + " |")
    certified = [_cell(figure) for figure in figures if figure["iterations"] is None]
    return "\n".join([*lines, "", *(f"Certified: {cell}." for cell in certified)])


def _cell(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return ""
    error = "not finite" if figure["largest_error"] is None else short(figure["largest_error"])
    return f"{figure['value']:.2g} ({error})"


def short(number: float) -> str:
    """One digit, and the power of ten of what is small or large.

    Example:
        >>> short(0.0001), short(0.23), short(2300.0)
        ('1e-4', '0.2', '2e3')
    """
    if 0.1 <= number < 10:
        return f"{number:.1g}"
    digit, power = f"{number:.0e}".split("e")
    return f"{digit}e{int(power)}"
