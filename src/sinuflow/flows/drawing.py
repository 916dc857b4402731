"""A flow as an SVG drawing: its layers in a line, a row for every kind of layer, and the sum of the parameters.

Only presentation attributes are used, no style sheet and no ids: they would clash with other drawings in a notebook.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

import torch

from ..bijections import Bijection, Chain
from ..errors import ArgumentError, StorageError
from ..files import write_atomically
from ..registry import Spec
from .flow import Flow

_INK, _MUTED, _FAINT = "#1f2328", "#6a7078", "#eceef0"
_FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
#: A strong and a pale colour for each form of the Jacobian.
_COLOURS = {
    "upper": ("#1b6ca8", "#dcebf6"),
    "diagonal": ("#c8553d", "#f8e2dc"),
    "lower": ("#2f7d5b", "#dcefe6"),
    "": ("#6f5a9c", "#e9e4f3"),
}
_WIDTH, _MARGIN, _ROWS, _ROW, _PICTURE = 760, 32, 134, 136, 120
_MOST_ROWS, _MOST_BLOCKS, _MOST_CELLS, _MOST_CURVES = 12, 6, 8, 4

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
    rows = kinds[:_MOST_ROWS]
    bottom = _ROWS + _ROW * len(rows)
    name, base = (re.sub("(?<=[a-z])(?=[A-Z])", " ", type(m).__name__) for m in (flow, flow.base))
    context = f" · context of {flow.context}" if flow.context else ""
    summary = f"{_count(flow.features, 'feature')}{context} · base: {base}"
    symbols = ["".join(layer.symbol for layer in block) for block in blocks]
    if len(symbols) > _MOST_BLOCKS:
        symbols[_MOST_BLOCKS - 3 : -2] = ["…"]
    more = f"; {len(kinds) - len(rows)} further layers not shown" if len(kinds) > len(rows) else ""
    size = f'width="{_WIDTH}" height="{bottom + 46}" viewBox="0 0 {_WIDTH} {bottom + 46}"'
    elements = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{_FONT}">',
        f"<title>{escape(f'{name}: {summary}')}</title>",
        _box(0, 0, _WIDTH, bottom + 46, "#ffffff"),
        _text(_MARGIN, 36, name, 20, font_weight="bold"),
        _text(_MARGIN, 58, summary, 13, _MUTED),
        _text(_WIDTH - _MARGIN, 36, "density: data to noise  ⟶", 13, _MUTED, text_anchor="end"),
        _text(_WIDTH - _MARGIN, 58, "sampling: noise to data  ⟵", 13, _MUTED, text_anchor="end"),
        _text(_MARGIN, 104, _fitted("  →  ".join(["x", *symbols, "z"]), 60), 20),
        *(element for i, layer in enumerate(rows) for element in _row(layer, _ROWS + i * _ROW)),
        _text(_MARGIN, bottom + 26, _parameter_sum(flow, blocks) + more, 15, font_weight="bold"),
        "</svg>\n",
    ]
    return Drawing("\n".join(elements))


def _layer(bijection: Bijection) -> _Layer:
    name = type(bijection).__name__
    try:
        spec = bijection.spec()
    except StorageError:  # its arguments are not known
        spec = Spec(name)
    doc = re.sub("[`_^]|:math:", "", (type(bijection).__doc__ or "").strip().partition("\n")[0])
    symbol, title, formula, form = _KINDS.get(spec.name, (name[:1], name, doc, ""))
    if spec.name in _KINDS and (spec.arguments.get("reverse") or spec.arguments.get("order") == "reverse"):
        symbol, title = symbol.replace("L", "U"), f"{title}, reversed"
        formula, form = formula.replace("<", ">"), "upper"
    hidden = ["features", "context", "reverse", *(["hidden"] if form == "diagonal" and not bijection.context else [])]
    shown = [f"{k.replace('_', ' ')} {v}" for k, v in spec.arguments.items() if v and k not in hidden]
    arguments = re.sub(r"\[([^\[\]]*)\]", r"(\1)", ", ".join(shown))
    return _Layer(bijection, symbol, title, formula, form, arguments, sum(p.numel() for p in bijection.parameters()))


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


def _row(layer: _Layer, y: float) -> Iterator[str]:
    """A layer's formula, arguments and size, with its curves or the form of its Jacobian."""
    (strong, pale), left, right = _COLOURS[layer.form], _MARGIN + 52, _WIDTH - _MARGIN - _PICTURE
    yield _box(_MARGIN, y, 36, _PICTURE, pale, strong, 3)
    yield _text(_MARGIN + 18, y + 66, layer.symbol, 17, strong, text_anchor="middle", font_weight="bold")
    yield _text(left, y + 18, _fitted(layer.title, 60), 15, font_weight="bold")
    yield _text(left, y + 42, _fitted(layer.formula, 80), 13)
    yield _text(left, y + 66, _fitted(layer.arguments, 80), 12, _MUTED)
    if layer.bijection.context:
        yield _text(left, y + 88, "with context", 12, _MUTED)
    yield _text(left, y + 112, _count(layer.parameters, "parameter"), 13, strong, font_weight="bold")
    if layer.form == "diagonal":
        yield from _curves(layer.bijection, right, y, strong)
    elif layer.form:
        count = min(layer.bijection.features, _MOST_CELLS)
        cell = _PICTURE / count
        for i, j in product(range(count), repeat=2):  # rows are outputs, columns are inputs
            fill = strong if i == j else pale if (j < i) == (layer.form == "lower") else _FAINT
            yield _box(right + j * cell + 1, y + i * cell + 1, cell - 2, cell - 2, fill, radius=2)


def _fitted(words: str, most: int) -> str:
    return words if len(words) <= most else f"{words[: most - 2]} …"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _box(x: float, y: float, wide: float, high: float, fill: str, line: str = "none", radius: int = 0) -> str:
    return _element("rect", x=x, y=y, width=wide, height=high, rx=radius, fill=fill, stroke=line)


def _curves(layer: Bijection, x: float, y: float, colour: str) -> Iterator[str]:
    """z_i at equally spaced x_i from -4 to 4, of the first features of an elementwise layer; the context is 0."""
    yield _box(x, y, _PICTURE, _PICTURE, _FAINT, radius=4)
    exact = copy.deepcopy(layer).cpu().double()
    inputs = torch.linspace(-4, 4, 81, dtype=torch.float64)
    with torch.no_grad():
        context = inputs.new_zeros(layer.context) if layer.context else None
        z, _ = exact(inputs.unsqueeze(-1).expand(-1, layer.features), context)
    z = z[:, :_MOST_CURVES].nan_to_num()
    across, up = ((_PICTURE - 8) * (t - t.min()) / (t.max() - t.min()).clamp(min=1e-300) for t in (inputs, z))
    for curve in up.T:
        points = " ".join(f"{x + 4 + i:.1f},{y + _PICTURE - 4 - j:.1f}" for i, j in zip(across, curve, strict=True))
        yield _element("polyline", points=points, fill="none", stroke=colour)


def _text(x: float, y: float, words: str, size: float = 12, fill: str = _INK, **attributes: str) -> str:
    """Text whose baseline is at y; ``_i`` and ``_{<i}`` are subscripts."""
    down, small = 0.25 * size, 0.72 * size
    subscript = rf'<tspan dy="{down:g}" font-size="{small:g}">\1\2</tspan><tspan dy="{-down:g}">'
    content, count = re.subn(r"_(?:\{([^}]*)\}|(\w))", subscript, escape(words))
    return _element("text", content + "</tspan>" * count, x=x, y=y, font_size=size, fill=fill, **attributes)


def _element(tag: str, content: str = "", /, **attributes: object) -> str:
    listed = " ".join(f"{name.replace('_', '-')}={quoteattr(str(value))}" for name, value in attributes.items())
    return f"<{tag} {listed}>{content}</{tag}>"
