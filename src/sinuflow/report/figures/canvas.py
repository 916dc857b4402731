"""From a matplotlib figure to SVG that lives inside a page: themed by CSS, with ids of its own, and repeatable."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# matplotlib knows fixed colours only, so each of these stands for a variable of the page's style sheet.
INK, MUTED, RULE, DATA, MODEL = "#010101", "#010102", "#010103", "#010104", "#010105"
_VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", DATA: "--data", MODEL: "--model"}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's font
    "svg.image_inline": True,
    "image.composite_image": False,  # an image keeps its own few pixels
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "text.usetex": False,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "text.color": INK,
    "axes.titlecolor": INK,
    "axes.labelcolor": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.edgecolor": "none",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.solid_capstyle": "round",
}

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile(r"#0101[0-9a-f]{2}")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def draw(key: str, label: str, size: tuple[float, float], paint: Callable[[Figure], None]) -> str:
    """Paint a figure and return it as an ``<svg>`` element.

    Args:
        key: a word that no other figure of the page has; ids begin with it.
        label: what the figure shows, for those who do not see it.
        size: width and height in inches; the page scales it.
        paint: fills the empty figure.
    """
    with matplotlib.rc_context(), warnings.catch_warnings():
        # The reader's fonts have glyphs that the one for measuring lacks, and no user setting may leak in.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE | {"svg.hashsalt": key})
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _for_page(file.getvalue(), key, label)


def plain_axes(figure: Figure, *, x_ticks: int = 5, y_ticks: int = 4) -> Axes:
    """One pair of axes with few ticks."""
    axes: Axes = figure.add_subplot()
    axes.xaxis.set_major_locator(MaxNLocator(x_ticks))
    axes.yaxis.set_major_locator(MaxNLocator(y_ticks))
    return axes


def _for_page(svg: bytes, key: str, label: str) -> str:
    root = ElementTree.fromstring(svg)
    _drop(root, {f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"})
    used = {name for element in root.iter() for value in element.attrib.values() for name in _REFERENCE.findall(value)}
    used |= {element.attrib[_LINK][1:] for element in root.iter() if element.attrib.get(_LINK, "").startswith("#")}
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
        element.attrib = {
            name.removeprefix("{http://www.w3.org/1999/xlink}"): _value(name, value, key)
            for name, value in element.attrib.items()
            if name != "id" or value in used
        }
    view = root.attrib["viewBox"]
    root.attrib = {"viewBox": view, "role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


def _value(name: str, value: str, key: str) -> str:
    if name == "id":
        return f"{key}-{value}"
    if name == _LINK and value.startswith("#"):
        return f"#{key}-{value[1:]}"
    if name in ("style", "fill", "stroke"):
        value = _COLOUR.sub(lambda found: f"var({_VARIABLES[found[0]]})", value)
    return _REFERENCE.sub(lambda found: f"url(#{key}-{found[1]})", value)


def _drop(parent: ElementTree.Element, tags: set[str]) -> None:
    for child in list(parent):
        if child.tag in tags:
            parent.remove(child)
        else:
            _drop(child, tags)
