"""The table of images, in Markdown, with what others published."""

from __future__ import annotations

from typing import Any

from .markdown import WORDS, best_first, row

#: Table "mnist_cifar10" of the paper: what it cites of others.
PUBLISHED: dict[str, tuple[float | None, float | None]] = {
    "FFJORD": (0.99, 3.40),
    "i-ResNet": (1.06, 3.45),
    "RealNVP": (1.06, 3.49),
    "Glow": (1.05, 3.35),
    "RQ-NSF(C)": (None, 3.38),
    "MAF": (1.89, 4.31),
    "TAN": (1.19, 3.98),
    "SOS": (1.81, None),
    "UMNN-MAF": (1.13, None),
}


def table(figures: list[dict[str, Any]]) -> str:
    """All figures, the lowest of a set first, and then what the paper cites."""
    lines = [
        "Test bits per dimension, lower is better: mean ± standard deviation over seeds. The error is that of float32,",
        "the largest of some images beside float64.",
        "",
        "| set | model | bits per dimension | seeds | error | paper | training of one | comparable with the paper |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += best_first(figures, _line)
    return "\n".join([*lines, "", *_cited()]) + "\n"


def _line(figure: dict[str, Any]) -> str:
    value, spread, seeds = figure["value"], figure["spread"], len(figure["seeds"])
    mean = "not a number" if value is None else f"{value:.3f}"
    around = "" if spread is None else f" ± {spread:.3f}"
    errors = [error for error in figure.get("float32_error_max", {}).values() if error is not None]
    error = f"{max(errors):.0e}" if errors else ""
    paper = "" if figure["paper"] is None else f"{figure['paper']:.2f}"
    training = f"{figure['seconds'] / seeds:,.0f} s, {figure['hardware']}" if seeds else ""
    words = WORDS.get(figure["model"], figure["model"])
    cells = [figure["set"], words, mean + around, str(seeds or ""), error, paper, training, figure["comparable"]]
    return row(cells)


def _cited() -> list[str]:
    lines = ["What the paper cites of others:", "", "| | MNIST | CIFAR-10 |", "|---|---|---|"]
    for name, bits in PUBLISHED.items():
        mnist, cifar10 = ("" if value is None else f"{value:.2f}" for value in bits)
        lines.append(f"| {name} | {mnist} | {cifar10} |")
    return lines
