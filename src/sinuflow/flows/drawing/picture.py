"""The whole picture: the flow in a row, one of its blocks enlarged, and the sum of its parameters."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...errors import ArgumentError
from ...files import write_atomically
from .anatomy import Anatomy, Part
from .canvas import INK, MUTED, PAPER, RULE, TIMES, Canvas
from .cards import HEIGHT, LETTERS, colours, draw_card, middle, width

_MARGIN, _SIDE, _GAP = 32, 70, 40
_LEAST = 880
_STRIP, _TALL = 112, 46
#: Room for the context below the cards.
_CONTEXT = 46


@dataclass(frozen=True)
class Drawing:
    """A picture that notebooks show and :meth:`save` writes.

    Example:
        >>> from sinuflow import SinusoidalFlow
        >>> drawing = SinusoidalFlow(features=2, blocks=3).draw()
        >>> drawing.svg[:4]
        '<svg'
    """

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, whose name ends in ``.svg``."""
        place = Path(path)
        if place.suffix.lower() != ".svg":
            raise ArgumentError(f"a drawing is saved as .svg; got {place.name!r}")
        write_atomically(place, self.svg.encode())


def svg_of(flow: Anatomy) -> str:
    """The picture as SVG text, data on the left and noise on the right.

    Example:
        >>> from sinuflow import SinusoidalFlow
        >>> from sinuflow.flows.drawing import anatomy
        >>> flow = SinusoidalFlow(features=2, conditioning="full", blocks=3, hidden=(16,))
        >>> "conditional waves" in svg_of(anatomy(flow.bijection))
        True
    """
    cards = _enlarged(flow)
    inside = sum(map(width, cards)) + _GAP * (len(cards) - 1)
    wide = max(_LEAST, inside + 2 * (_SIDE + _MARGIN))
    panel = _STRIP + _TALL + 52
    deep = 50 + HEIGHT + 46 + (_CONTEXT if flow.context else 0)
    canvas = Canvas(wide, panel + deep + 56, _title(flow))
    canvas.box(0, 0, wide, panel + deep + 56)
    canvas.text(_MARGIN, 36, "Sinusoidal Flow", 20, INK, "start", bold=True)
    canvas.text(_MARGIN, 58, _summary(flow), 13, MUTED, "start")
    canvas.text(wide - _MARGIN, 36, "density: data to noise  ⟶", 13, MUTED, "end")
    canvas.text(wide - _MARGIN, 58, "sampling: noise to data  ⟵", 13, MUTED, "end")
    first, last = _Strip(canvas, flow).draw()
    canvas.box(_MARGIN, panel, wide - 2 * _MARGIN, deep, "#f6f7f8", round=10)
    for (x, y), corner in (((first, _STRIP + _TALL), _MARGIN + 4), ((last, _STRIP + _TALL), wide - _MARGIN - 4)):
        canvas.line((x, y + 3), (corner, panel), dashed=True)
    _Panel(canvas, flow, cards).draw((wide - inside) / 2, panel)
    canvas.text(wide / 2, panel + deep + 34, parameter_sum(flow), 15, INK, bold=True)
    return canvas.svg()


def parameter_sum(flow: Anatomy) -> str:
    """How the parameters add up, in words of arithmetic.

    Example:
        >>> from sinuflow import SinusoidalFlow
        >>> from sinuflow.flows.drawing import anatomy
        >>> parameter_sum(anatomy(SinusoidalFlow(features=2, conditioning="none", blocks=3).bijection))
        '3 × 112 + 4 = 340 parameters'
    """
    sizes = [[part.parameters for part in block] for block in flow.blocks]
    inner = " + ".join(f"{size:,}" for size in sizes[0])
    # All blocks of a flow have the same parts; only their order of the features may differ.
    terms = [f"{len(sizes)} {TIMES} ({inner})" if len(sizes[0]) > 1 else f"{len(sizes)} {TIMES} {inner}"]
    terms += [f"{flow.tail.parameters:,}"] if flow.tail else []
    return f"{' + '.join(terms)} = {flow.parameters:,} parameters"


def _enlarged(flow: Anatomy) -> list[Part]:
    """What is shown closely: one block, or two if they alternate."""
    first, *others = flow.blocks
    return [*first, *others[0]] if others and others[0] != first else list(first)


def _alternates(flow: Anatomy) -> bool:
    return len(_enlarged(flow)) > len(flow.blocks[0])


def _noun(flow: Anatomy) -> str:
    return {"upper": "LDU block", "scale": "block", "waves": "layer"}.get(flow.blocks[0][0].kind, "block")


def _summary(flow: Anatomy) -> str:
    parts = [_count(flow.features, "feature"), _count(len(flow.blocks), _noun(flow))]
    waved = next((part for part in flow.blocks[0] if part.scales), None)
    if waved:
        parts.append(f"{_count(waved.scales, 'scale')} of {_count(waved.waves, 'wave')} in each")
    if flow.context:
        parts.append(f"context of {flow.context}")
    return " · ".join(parts)


def _title(flow: Anatomy) -> str:
    return f"Sinusoidal Flow: {_summary(flow)}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


@dataclass
class _Strip:
    """The flow in a row."""

    canvas: Canvas
    flow: Anatomy

    def draw(self) -> tuple[float, float]:
        """Draw it; from where to where the enlarged blocks reach."""
        cells = self._cells()
        gap = 26
        total = sum(size for size, _, _ in cells) + gap * (len(cells) - 1)
        x = (self.canvas.width - total) / 2
        middle = _STRIP + _TALL / 2
        edges = []
        for i, (size, label, parts) in enumerate(cells):
            if i:
                self.canvas.arrow((x - gap + 3, middle), (x - 3, middle))
            if parts:
                self._block(x, size, label, parts)
                edges.append((x, x + size))
            else:
                self.canvas.maths(x + size / 2, middle + 7, label, 24)
            x += size + gap
        return edges[0][0], edges[1 if _alternates(self.flow) else 0][1]

    def _cells(self) -> list[tuple[int, str, tuple[Part, ...]]]:
        """Width, label and parts of everything in the row."""
        blocks = self.flow.blocks
        each = [(30 * len(block) if len(block) > 1 else 52, str(i), block) for i, block in enumerate(blocks, 1)]
        if len(each) > 6:
            each = [*each[:3], (28, r"\dots", ()), each[-1]]
        tail = [(64, "", (self.flow.tail,))] if self.flow.tail else []
        return [(24, "x", ()), *each, *tail, (24, "z", ())]

    def _block(self, x: float, size: int, label: str, parts: tuple[Part, ...]) -> None:
        each = size / len(parts)
        for i, part in enumerate(parts):
            strong, pale = colours(part)
            self.canvas.box(x + i * each, _STRIP, each, _TALL, pale, strong, 3)
            place = x + (i + 0.5) * each, _STRIP + _TALL / 2
            if part.kind == "affine":
                self.canvas.text(place[0], place[1] + 4, "affine", 12, strong)
            elif part.kind == "waves":
                self.canvas.text(place[0], place[1] + 6, "←" if part.reverse else "→", 18, strong)
            else:
                self.canvas.maths(place[0], place[1] + 6, LETTERS[part.kind], 17, strong)
        self.canvas.text(x + size / 2, _STRIP - 8, label, 11, MUTED)


@dataclass
class _Panel:
    """The enlarged blocks."""

    canvas: Canvas
    flow: Anatomy
    cards: list[Part]

    def draw(self, x: float, y: float) -> None:
        """Draw them, the first card's left edge at x."""
        canvas = self.canvas
        canvas.text(canvas.width / 2, y + 30, self._heading(), 15, INK, bold=True)
        top, level = y + 50, y + 50 + HEIGHT / 2
        canvas.maths(x - 46, level + 5, "z^{l}^{-1}", 17)
        canvas.arrow((x - 28, level), (x - 3, level))
        for part in self.cards:
            draw_card(canvas, part, self.flow.features, x, top)
            if part.context:
                self._given(x + width(part) / 2, top + HEIGHT)
            x += width(part)
            canvas.arrow((x + 3, level), (x + (37 if part is not self.cards[-1] else 28), level))
            x += _GAP
        canvas.maths(x + 8, level + 5, "z^{l}^{+1}" if _alternates(self.flow) else "z^l", 17)
        if self.flow.context:
            label = f"context y, {_count(self.flow.context, 'number')}"
            canvas.box(canvas.width / 2 - 80, top + HEIGHT + 26, 160, 26, PAPER, RULE, 13)
            canvas.text(canvas.width / 2, top + HEIGHT + 43, label, 12, INK)
            top += _CONTEXT
        self._legend(top + HEIGHT + 28)

    def _given(self, x: float, y: float) -> None:
        """The context's way to the bottom of a card."""
        self.canvas.arrow((self.canvas.width / 2, y + 39), (x, y + 39), (x, y + 3))

    def _legend(self, y: float) -> None:
        centre = self.canvas.width / 2
        networks = any(part.traits for part in self.cards)
        entries = [("", "rows: outputs, columns: inputs"), (MUTED, "the feature itself")]
        entries += [(middle(MUTED), "through the network")] if networks else []
        places = (-245, -35, 115) if networks else (-180, 40)
        for place, (fill, word) in zip(places, entries, strict=True):
            if fill:
                self.canvas.box(centre + place, y - 10, 12, 12, fill, round=2)
            self.canvas.text(centre + place + (18 if fill else 0), y, word, 12, MUTED, "start")

    def _heading(self) -> str:
        if _alternates(self.flow):
            return "Two layers in turn"
        if len(self.flow.blocks) == 1:
            return f"The {_noun(self.flow)}"
        return f"One of {len(self.flow.blocks)} {_noun(self.flow)}s"
