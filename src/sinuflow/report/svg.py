"""Figures as inline SVG, which matplotlib draws and which takes its colours from the page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

#: Placeholders for the variables of the page's style sheet.
INK, MUTED, RULE, DATA, MODEL = "#010101", "#010102", "#010103", "#010104", "#010105"
_VARIABLES = {INK: "--ink", MUTED: "--muted", RULE: "--rule", DATA: "--data", MODEL: "--model"}
#: Images cannot take colours from the page: these are legible on light and dark backgrounds, by their opacity.
DATA_RGB, MODEL_RGB, NEGATIVE_RGB = (np.array(rgb) / 255 for rgb in ((100, 116, 139), (37, 122, 200), (196, 84, 60)))

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text in the font of the page
    "image.composite_image": False,  # no resampling
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 7.5),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 3),
    "text.color": INK,
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), MUTED),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), RULE),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.edgecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    "axes.linewidth": 0.8,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.solid_capstyle": "round",
}

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_COLOUR = re.compile(r"#0101[0-9a-f]{2}")


class Picture(NamedTuple):
    """A figure with its heading and caption; the SVG is markup, the rest is text."""

    svg: str
    title: str
    note: str = ""


class Gallery(NamedTuple):
    """The figures of one section, and a sentence on those that are left out."""

    pictures: list[Picture]
    left_out: str = ""


def draw(key: str, label: str, size: tuple[float, float], paint: Callable[[Figure], None]) -> str:
    """The ``<svg>`` element of a figure, which ``paint`` draws, of a size in inches that the page scales.

    The label is for screen readers; the key, which salts the ids, is unique on the page.
    """
    with style.context(_STYLE | {"svg.hashsalt": key}, after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")  # the reader's fonts have more than matplotlib's
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        file = io.BytesIO()
        figure.savefig(file, format="svg")
    return _for_page(ElementTree.fromstring(file.getvalue()), label)


def _for_page(root: ElementTree.Element, label: str) -> str:
    """Keep only ids that are referenced, which the salt makes unique, and take colours from the style sheet."""
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag in (f"{_SVG}metadata", f"{_SVG}style")]:
            parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        if element.tag == "g":
            element.attrib.pop("id", None)
        element.attrib = {
            name.removeprefix(_LINK): _COLOUR.sub(lambda match: f"var({_VARIABLES[match[0]]})", value)
            for name, value in element.attrib.items()
        }
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode")


def axes_of(figure: Figure, **properties: Any) -> Axes:
    """The only axes of a figure, with few ticks."""
    axes: Axes = figure.add_subplot()
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set(**properties)
    return axes
