"""SVG, written by hand.

Only presentation attributes are used, no style sheet and no ids: they would meet those of other drawings in a notebook.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

TIMES = "\u00d7"

INK, MUTED, RULE, PAPER = "#1f2328", "#6a7078", "#b9bec5", "#ffffff"

_SANS = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
_SERIF = "STIX Two Text, Cambria, Times New Roman, Liberation Serif, serif"

#: Letters are variables and slanted; the names of functions are words and upright.
_UPRIGHT = {"sin", "exp"}
_SIGNS = {"\\alpha": "\u03b1", "\\tau": "τ", "\\sum": "Σ", "\\circ": "∘", "\\dots": "⋯", "-": "\u2212"}
_LETTERS = "A-Za-z\u03b1-\u03c9"
_PIECE = re.compile(rf"([_^])\{{([^}}]*)\}}|([_^])(.)|([{_LETTERS}]+)|([^_^{_LETTERS}]+)")

Anchor = Literal["start", "middle", "end"]


@dataclass
class Canvas:
    """A sheet to draw on; x goes right and y goes down, in pixels.

    Example:
        >>> canvas = Canvas(100, 50, "nothing but a name")
        >>> canvas.text(50, 25, "a < b")
        >>> "a &lt; b" in canvas.svg()
        True
    """

    width: float
    height: float
    title: str
    elements: list[str] = field(default_factory=list)

    def svg(self) -> str:
        """The whole sheet."""
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{_SANS}">'
        name = f"<title>{escape(self.title)}</title>"
        return "\n".join([head, name, *self.elements, "</svg>"]) + "\n"

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str = PAPER,
        line: str = "none",
        round: float = 0,
        thick: float = 1,
    ) -> None:
        """A rectangle, with round corners if wanted."""
        self._add("rect", x=x, y=y, width=width, height=height, rx=round, fill=fill, stroke=line, stroke_width=thick)

    def line(self, *points: tuple[float, float], colour: str = RULE, thick: float = 1.2, dashed: bool = False) -> None:
        """From point to point."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        extra = {"stroke_dasharray": "4 4"} if dashed else {}
        self._add("polyline", points=path, fill="none", stroke=colour, stroke_width=thick, **extra)

    def arrow(self, *points: tuple[float, float], colour: str = MUTED) -> None:
        """A line with a head; its last stretch goes along one of the axes."""
        (x, y), (before_x, before_y) = points[-1], points[-2]
        right, down = _sign(x - before_x), _sign(y - before_y)
        self.line(*points[:-1], (x - 4 * right, y - 4 * down), colour=colour)
        back, side = 8, 4
        corners = [
            (x, y),
            (x - back * right - side * down, y - back * down - side * right),
            (x - back * right + side * down, y - back * down + side * right),
        ]
        self._add("polygon", points=" ".join(f"{a:g},{b:g}" for a, b in corners), fill=colour)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 12,
        colour: str = INK,
        anchor: Anchor = "middle",
        bold: bool = False,
    ) -> None:
        """Words, whose baseline is at y."""
        weight = {"font_weight": "bold"} if bold else {}
        self._add("text", escape(words), x=x, y=y, font_size=size, fill=colour, text_anchor=anchor, **weight)

    def maths(
        self, x: float, y: float, formula: str, size: float = 14, colour: str = INK, anchor: Anchor = "middle"
    ) -> None:
        """A formula in one line, much as in TeX: ``z_i = \\tau(x_i) + c_i(x_{<i})``."""
        self._add(
            "text",
            _spans(formula, size),
            x=x,
            y=y,
            font_size=size,
            fill=colour,
            text_anchor=anchor,
            font_family=_SERIF,
        )

    def _add(self, tag: str, content: str = "", /, **attributes: object) -> None:
        listed = " ".join(
            f"{name.replace('_', '-')}={quoteattr(f'{value:g}' if isinstance(value, float) else str(value))}"
            for name, value in attributes.items()
        )
        self.elements.append(f"<{tag} {listed}>{content}</{tag}>" if content else f"<{tag} {listed}/>")


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _spans(formula: str, size: float) -> str:
    for name, sign in _SIGNS.items():
        formula = formula.replace(name, sign)
    spans, height = [], 0.0  # where the baseline is, relative to the line's
    for match in _PIECE.finditer(formula):
        mark = match[1] or match[3]
        letters = match[5]
        content = match[2] or match[4] or letters or match[6]
        wanted = {"_": 0.25 * size, "^": -0.38 * size, None: 0.0}[mark]
        slanted = letters is not None and letters not in _UPRIGHT
        slanted |= mark is not None and content.strip("<>").isalpha()
        attributes = f' dy="{wanted - height:.3g}"' if wanted != height else ""
        attributes += f' font-size="{0.72 * size:.3g}"' if mark else ""
        attributes += ' font-style="italic"' if slanted else ""
        spans.append(f"<tspan{attributes}>{escape(content)}</tspan>")
        height = wanted
    return "".join(spans)
