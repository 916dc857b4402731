"""A flow as an SVG drawing: its layers in a row, a card for every kind of layer, and the sum of the parameters.

Only presentation attributes are used, no style sheet and no ids: they would clash with other drawings in a notebook.
"""

from __future__ import annotations

import copy
import os
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import torch

from ..bijections import Bijection, Chain
from ..errors import ArgumentError
from ..files import write_atomically
from .flow import Flow

_INK, _MUTED, _PAPER, _PANEL, _FAINT = "#1f2328", "#6a7078", "#ffffff", "#f6f7f8", "#eceef0"
_FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
#: A strong and a pale colour for each form of the Jacobian.
_COLOURS = {
    "upper": ("#1b6ca8", "#dcebf6"),
    "diagonal": ("#c8553d", "#f8e2dc"),
    "lower": ("#2f7d5b", "#dcefe6"),
    "": ("#6f5a9c", "#e9e4f3"),
}
_MARGIN, _CARD, _HEIGHT, _GAP, _STRIP, _PICTURE = 32, 250, 290, 20, 96, 120
_CARDS_PER_ROW, _MOST_CARDS, _MOST_BLOCKS, _MOST_CELLS, _MOST_CURVES = 4, 12, 6, 8, 4

#: By class: symbol, title, formula, form of the Jacobian.
_KINDS = {
    "UpperShift": ("U", "upper shift", "z_i = x_i + c_i(x_{>i})", "upper"),
    "LowerShift": ("L", "lower shift", "z_i = x_i + c_i(x_{<i})", "lower"),
    "SinusoidalLayer": ("D", "sinusoidal layer", "z_i = τ_n ∘ … ∘ τ_1(x_i)", "diagonal"),
    "AutoregressiveWaves": ("T", "conditional waves", "z_i = τ_n ∘ … ∘ τ_1(exp(s_i) x_i + d_i)", "lower"),
    "Autoregressive": ("T", "autoregressive", "z_i = τ(x_i; c_i(x_{<i}))", "lower"),
    "ImageShift": ("L", "image shift", "z_i = x_i + c_i(x_{<i})", "lower"),
    "ImageAffine": ("L", "image affine", "z_i = exp(s_i(x_{<i})) (x_i + c_i(x_{<i}))", "lower"),
    "ElementwiseAffine": ("A", "elementwise affine", "z_i = (x_i \u2212 μ_i) exp(\u2212s_i)", "diagonal"),
}


@dataclass(frozen=True)
class Drawing:
    """A drawing that notebooks show and :meth:`save` writes.

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


class _Layer(NamedTuple):
    bijection: Bijection
    symbol: str
    title: str
    formula: str
    form: str
    arguments: str
    parameters: int


def draw(flow: Flow) -> Drawing:
    """The drawing of a flow, data on the left and noise on the right."""
    top = list(flow.bijection) if isinstance(flow.bijection, Chain) else [flow.bijection]
    blocks = [[_layer(part) for part in (block if isinstance(block, Chain) else [block])] for block in top]
    kinds = list({layer[1:]: layer for block in blocks for layer in block}.values())
    cards, columns = kinds[:_MOST_CARDS], max(3, min(_CARDS_PER_ROW, len(kinds)))
    width = 2 * _MARGIN + columns * (_CARD + _GAP) + _GAP
    panel, depth = _STRIP + 72, -(-len(cards) // columns) * (_HEIGHT + _GAP) + _GAP
    name, base = (re.sub("(?<=[a-z])(?=[A-Z])", " ", type(m).__name__) for m in (flow, flow.base))
    context = f" · context of {flow.context}" if flow.context else ""
    summary = f"{_count(flow.features, 'feature')}{context} · base: {base}"
    canvas = _Canvas(width, panel + depth + 56, f"{name}: {summary}")
    canvas.text(_MARGIN, 36, name, 20, text_anchor="start", font_weight="bold")
    canvas.text(_MARGIN, 58, summary, 13, _MUTED, text_anchor="start")
    canvas.text(width - _MARGIN, 36, "density: data to noise  ⟶", 13, _MUTED, text_anchor="end")
    canvas.text(width - _MARGIN, 58, "sampling: noise to data  ⟵", 13, _MUTED, text_anchor="end")
    _strip(canvas, blocks)
    canvas.box(_MARGIN, panel, width - 2 * _MARGIN, depth, _PANEL, radius=10)
    for i, layer in enumerate(cards):
        row, column = divmod(i, columns)
        left = (width - min(columns, len(cards) - row * columns) * (_CARD + _GAP) + _GAP) / 2
        _card(canvas, layer, left + column * (_CARD + _GAP), panel + _GAP + row * (_HEIGHT + _GAP))
    more = f"; {len(kinds) - len(cards)} further layers not shown" if len(kinds) > len(cards) else ""
    canvas.text(width / 2, panel + depth + 34, _parameter_sum(flow, blocks) + more, 15, font_weight="bold")
    return Drawing(canvas.svg())


def _layer(bijection: Bijection) -> _Layer:
    spec, name = bijection.spec(), type(bijection).__name__
    doc = re.sub("[`_^]|:math:", "", (type(bijection).__doc__ or "").strip().partition("\n")[0])
    symbol, title, formula, form = _KINDS.get(spec.name, (name[:1], name, doc, ""))
    if spec.name in _KINDS and (spec.arguments.get("reverse") or spec.arguments.get("order") == "reverse"):
        symbol, title = symbol.replace("L", "U"), f"{title}, reversed"
        formula, form = formula.replace("<", ">"), "upper"
    unused = ["hidden"] if form == "diagonal" and not bijection.context else []
    arguments = {k: v for k, v in spec.arguments.items() if v and k not in ("features", "context", "reverse", *unused)}
    shown = ", ".join(f"{k} {_argument(v)}" for k, v in arguments.items()).replace("_", " ")
    return _Layer(bijection, symbol, title, formula, form, shown, sum(p.numel() for p in bijection.parameters()))


def _argument(value: Any) -> str:
    shown = f"({', '.join(map(str, value))})" if isinstance(value, list) else str(value)
    return textwrap.shorten(shown, 60, placeholder=" …")


def _parameter_sum(flow: Flow, blocks: Sequence[Sequence[_Layer]]) -> str:
    """The numbers of parameters as a sum, such as ``3 × 112 + 4 = 340 parameters``."""
    terms = []
    for sizes, same in groupby([layer.parameters for layer in block] for block in blocks):
        count, inner = len(list(same)), " + ".join(f"{size:,}" for size in sizes)
        inner = f"({inner})" if len(sizes) > 1 else inner
        terms.append(f"{count} \u00d7 {inner}" if count > 1 else inner)
    base = sum(p.numel() for p in flow.base.parameters())
    terms += [f"{base:,}"] if base else []
    return f"{' + '.join(terms)} = {_count(sum(p.numel() for p in flow.parameters()), 'parameter')}"


def _strip(canvas: _Canvas, blocks: list[list[_Layer]]) -> None:
    """All blocks in a row, from x to z; the middle of a long chain is left out."""
    shown = [(str(i), block) for i, block in enumerate(blocks, 1)]
    if len(shown) > _MOST_BLOCKS:
        shown[_MOST_BLOCKS - 3 : -2] = [("…", [])]
    cells = [("x", []), *shown, ("z", [])]
    sizes, gap, height = [max(28 * len(block), 34) for _, block in cells], 24, 46
    x = (canvas.width - sum(sizes) - gap * (len(cells) - 1)) / 2
    for i, ((label, block), size) in enumerate(zip(cells, sizes, strict=True)):
        if i:
            canvas.text(x - gap / 2, _STRIP + height / 2 + 6, "→", 18, _MUTED)
        for j, layer in enumerate(block):
            (strong, pale), each = _COLOURS[layer.form], size / len(block)
            canvas.box(x + j * each, _STRIP, each, height, pale, strong, 3)
            canvas.text(x + (j + 0.5) * each, _STRIP + height / 2 + 6, layer.symbol, 17, strong)
        canvas.text(x + size / 2, *((_STRIP - 8, label, 11, _MUTED) if block else (_STRIP + 30, label, 22)))
        x += size + gap


def _card(canvas: _Canvas, layer: _Layer, x: float, y: float) -> None:
    """A layer: its formula, its curves or the form of its Jacobian, its arguments and its size."""
    (strong, pale), left, top = _COLOURS[layer.form], x + (_CARD - _PICTURE) / 2, y + 70
    canvas.box(x, y, _CARD, _HEIGHT, _PAPER, strong, 8)
    canvas.box(x + 1, y + 1, _CARD - 2, 32, pale, radius=7)
    canvas.text(x + 12, y + 23, layer.symbol, 17, strong, text_anchor="start", font_weight="bold")
    canvas.text(x + _CARD - 12, y + 22, textwrap.shorten(layer.title, 28), 13, text_anchor="end", font_weight="bold")
    canvas.text(x + _CARD / 2, y + 56, textwrap.shorten(layer.formula, 44, placeholder=" …"))
    if layer.form == "diagonal":
        canvas.curves(left, top, _curves(layer.bijection), strong)
    elif layer.form:
        count = min(layer.bijection.features, _MOST_CELLS)
        cell = min(24.0, _PICTURE / count)
        left, top = left + (_PICTURE - count * cell) / 2, top + (_PICTURE - count * cell) / 2
        for i, j in product(range(count), repeat=2):  # rows are outputs, columns are inputs
            fill = strong if i == j else pale if (j < i) == (layer.form == "lower") else _FAINT
            canvas.box(left + j * cell + 1, top + i * cell + 1, cell - 2, cell - 2, fill, radius=2)
    lines = textwrap.wrap(layer.arguments, 38)[:3] + ["with context"] * bool(layer.bijection.context)
    for i, line in enumerate(lines):
        canvas.text(x + _CARD / 2, y + 210 + 16 * i, line, 12, _MUTED)
    canvas.text(x + _CARD / 2, y + _HEIGHT - 12, _count(layer.parameters, "parameter"), 13, strong, font_weight="bold")


def _curves(layer: Bijection) -> list[list[float]]:
    """z_i at equally spaced x_i from -4 to 4, of the first features of an elementwise layer; the context is 0."""
    like = next(layer.parameters()).detach().double()
    x = torch.linspace(-4, 4, 81, device=like.device).to(like).unsqueeze(-1).expand(-1, layer.features)
    exact = copy.deepcopy(layer).double()
    with torch.no_grad():
        z, _ = exact(x, like.new_zeros(layer.context) if layer.context else None)
    return [list(map(float, curve)) for curve in z[:, :_MOST_CURVES].T.nan_to_num()]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


@dataclass
class _Canvas:
    """SVG elements; x goes right and y goes down, in pixels."""

    width: float
    height: float
    title: str
    elements: list[str] = field(default_factory=list)

    def svg(self) -> str:
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{_FONT}" text-anchor="middle">'
        page = f'<rect x="0" y="0" width="{self.width:g}" height="{self.height:g}" fill="{_PAPER}"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", page, *self.elements, "</svg>"]) + "\n"

    def box(self, x: float, y: float, wide: float, high: float, fill: str, line: str = "none", radius: int = 0) -> None:
        self._add("rect", x=x, y=y, width=wide, height=high, rx=radius, fill=fill, stroke=line)

    def curves(self, x: float, y: float, curves: list[list[float]], colour: str) -> None:
        """Functions of a common variable in a square."""
        self.box(x, y, _PICTURE, _PICTURE, _FAINT, radius=4)
        low, high, size = min(map(min, curves)), max(map(max, curves)), _PICTURE - 8
        for curve in curves:
            steps = ((i / (len(curve) - 1), (v - low) / ((high - low) or 1)) for i, v in enumerate(curve))
            points = " ".join(f"{x + 4 + size * s:.1f},{y + _PICTURE - 4 - size * v:.1f}" for s, v in steps)
            self._add("polyline", points=points, fill="none", stroke=colour)

    def text(self, x: float, y: float, words: str, size: float = 12, fill: str = _INK, **attributes: str) -> None:
        """Text whose baseline is at y; ``_i`` and ``_{<i}`` are subscripts."""
        down, small = 0.25 * size, 0.72 * size
        subscript = rf'<tspan dy="{down:g}" font-size="{small:g}">\1\2</tspan><tspan dy="{-down:g}">'
        content, count = re.subn(r"_(?:\{([^}]*)\}|(\w))", subscript, escape(words))
        self._add("text", content + "</tspan>" * count, x=x, y=y, font_size=size, fill=fill, **attributes)

    def _add(self, tag: str, content: str = "", /, **attributes: object) -> None:
        listed = " ".join(f"{name.replace('_', '-')}={quoteattr(str(value))}" for name, value in attributes.items())
        self.elements.append(f"<{tag} {listed}>{content}</{tag}>" if content else f"<{tag} {listed}/>")
