"""A card for each part of a block: what it computes, what depends on what, and how large it is."""

from __future__ import annotations

from itertools import groupby

from .anatomy import MOST, Kind, Part
from .canvas import INK, MUTED, PAPER, TIMES, Canvas

#: Strong and pale, for what a part is.
COLOURS: dict[Kind, tuple[str, str]] = {
    "upper": ("#1b6ca8", "#dcebf6"),
    "scale": ("#c8553d", "#f8e2dc"),
    "lower": ("#2f7d5b", "#dcefe6"),
    "waves": ("#1b6ca8", "#dcebf6"),
    "affine": ("#6a7078", "#ebedef"),
}
#: Conditional waves in reverse order look different from those in order.
BACKWARDS = ("#2f7d5b", "#dcefe6")

#: Where there is nothing.
FAINT = "#f2f3f5"

#: Each by its letter in the paper.
LETTERS: dict[Kind, str] = {"upper": "U", "scale": "D", "lower": "L", "waves": "T", "affine": "affine"}

_WIDTHS: dict[Kind, int] = {"upper": 236, "scale": 340, "lower": 236, "waves": 330, "affine": 236}
#: Of every card.
HEIGHT = 352

_HEADER, _MATRIX, _ROOM = 36, 108, 128
_MOST_SCALES = 4


def width(part: Part) -> int:
    """Of its card."""
    return _WIDTHS[part.kind]


def colours(part: Part) -> tuple[str, str]:
    """Strong and pale."""
    return BACKWARDS if part.kind == "waves" and part.reverse else COLOURS[part.kind]


def draw_card(canvas: Canvas, part: Part, features: int, x: float, y: float) -> None:
    """Draw it with its upper left corner at (x, y)."""
    strong, pale = colours(part)
    wide = width(part)
    centre = x + wide / 2
    canvas.box(x, y, wide, HEIGHT, PAPER, strong, 8, 1.4)
    canvas.box(x + 0.7, y + 0.7, wide - 1.4, _HEADER, pale, round=7.3)
    canvas.box(x + 0.7, y + 0.7 + _HEADER / 2, wide - 1.4, _HEADER / 2, pale)
    canvas.maths(x + 14, y + 25, f"{LETTERS[part.kind]}^{{-1}}", 18, strong, "start")
    canvas.text(x + wide - 14, y + 24, _title(part), 13, INK, "end", bold=True)
    for i, formula in enumerate(formulas(part)):
        canvas.maths(centre, y + 60 + 21 * i, formula, 14)
    _matrix(canvas, part, features, centre, y + _MATRIX)
    row = y + _MATRIX + _ROOM + 32
    if part.kind == "scale":
        _chain(canvas, part, centre, row - 4)
        row += 26
        canvas.text(centre, row, _plural(part.waves, "wave") + " in each, for every feature", 12, MUTED)
        row += 17
    if part.network:
        canvas.text(centre, row, _network(part), 12, MUTED)
        row += 18
    if part.kind == "waves":
        words = f"{_plural(part.scales, 'scale')} of {_plural(part.waves, 'wave')} for every feature"
        canvas.text(centre, row, words, 12, MUTED)
        row += 18
    if part.traits:
        canvas.text(centre, row, ", ".join(part.traits), 12, MUTED)
    canvas.text(centre, y + HEIGHT - 14, _plural(part.parameters, "parameter"), 13, strong, bold=True)


def formulas(part: Part) -> list[str]:
    """What it computes, in one or two lines."""
    given = ", y" if part.context else ""
    order = ">" if part.reverse else "<"
    if part.kind == "scale":
        return [
            f"z_i = {_composed(part.scales)}(x_i)",
            r"\tau(x) = x + \alpha \sum_k w_k [sin 2b_k - sin(2a_kx + 2b_k)] / 2a_k + d",
        ]
    if part.kind == "waves":
        return [
            f"z_i = {_composed(part.scales)}(exp(s_i) x_i + d_i)",
            rf"[s_i, d_i, a_i, b_i, w_i, \alpha_i] = c_i(x_{{{order}i}}{given})",
        ]
    return [f"z_i = x_i + c_i(x_{{{order}i}}{given})"]


def _title(part: Part) -> str:
    return {
        "upper": "upper shift",
        "scale": "sinusoidal scales" if part.scales > 1 else "sinusoidal scale",
        "lower": "lower shift",
        "waves": "conditional waves, " + ("last to first" if part.reverse else "first to last"),
        "affine": "elementwise affine",
    }[part.kind]


def _composed(scales: int) -> str:
    if scales <= 2:
        return r" \circ ".join(rf"\tau_{i}" for i in range(scales, 0, -1))
    return rf"\tau_{{{scales}}} \circ \dots \circ \tau_1"


def _matrix(canvas: Canvas, part: Part, features: int, centre: float, y: float) -> None:
    """The dependencies: rows are outputs, columns are inputs."""
    strong, _ = colours(part)
    count = len(part.pattern)
    cell = min(24.0, _ROOM / count)
    left, top = centre - count * cell / 2, y + (_ROOM - count * cell) / 2 + 4
    for i, row in enumerate(part.pattern):
        canvas.maths(left - 6, top + (i + 0.5) * cell + 3, f"z_{i + 1}", 10, MUTED, "end")
        canvas.maths(left + (i + 0.5) * cell, top - 5, f"x_{i + 1}", 10, MUTED)
        for j, depends in enumerate(row):
            fill = (strong if i == j else middle(strong)) if depends else FAINT
            canvas.box(left + j * cell + 0.75, top + i * cell + 0.75, cell - 1.5, cell - 1.5, fill, round=2)
    if features > MOST:
        canvas.text(left + count * cell + 8, top + count * cell - 4, f"… {features}", 10, MUTED, "start")


def middle(colour: str) -> str:
    """Half way to white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(0.45 * part + 0.55 * 255):02x}" for part in parts)


def _chain(canvas: Canvas, part: Part, centre: float, y: float) -> None:
    """The transformers one after the other."""
    shown = [rf"\tau_{i}" for i in range(1, part.scales + 1)]
    if part.scales > _MOST_SCALES:
        shown = [*shown[:2], r"\dots", rf"\tau_{{{part.scales}}}"]
    wide, gap = 36, 18
    x = centre - (len(shown) * wide + (len(shown) - 1) * gap) / 2
    strong, pale = colours(part)
    for i, name in enumerate(shown):
        if i:
            canvas.arrow((x - gap + 1, y), (x - 1, y))
        if name != r"\dots":
            canvas.box(x, y - 12, wide, 24, pale, strong, 4)
        canvas.maths(x + wide / 2, y + 4, name, 13)
        x += wide + gap


def _network(part: Part) -> str:
    if part.kind == "scale":
        return f"from the context by a network {_arrows(part.network)}"
    return "network " + _arrows(part.network)


def _arrows(widths: tuple[int, ...]) -> str:
    """The widths of a network; many of the same, one after the other, are counted."""
    runs = [(size, len(list(same))) for size, same in groupby(widths[1:-1])]
    middle = [f"{size} {TIMES} {count}" if count > 2 else " → ".join([str(size)] * count) for size, count in runs]
    return " → ".join([str(widths[0]), *middle, str(widths[-1])])


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")
