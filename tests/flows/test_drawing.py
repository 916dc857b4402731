from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sinuflow import ArgumentError, Chain, Flow, ImageFlow, SinusoidalFlow
from sinuflow.bijections import Bijection, ElementwiseAffine, LDUBlock
from sinuflow.flows.bases import StudentT
from tests.builders import trained_flow


class Reversal(Bijection):
    """The features in <reverse> order & more."""

    def transform(self, x, context):
        return x.flip(0), x.new_zeros(x.shape[-1])


FLOWS = {
    "shift": lambda: SinusoidalFlow(6),
    "one feature": lambda: SinusoidalFlow(1, blocks=1),
    "many features": lambda: SinusoidalFlow(40, blocks=7, scales=9, waves=1, hidden=(50,)),
    "shift with context": lambda: SinusoidalFlow(3, 2, blocks=2, residual=True, dropout=0.1, squash=3.0),
    "full": lambda: SinusoidalFlow(4, conditioning="full"),
    "full with context": lambda: SinusoidalFlow(3, 5, "full", blocks=1, hidden=()),
    "none": lambda: SinusoidalFlow(2, conditioning="none", blocks=3),
    "none with context": lambda: SinusoidalFlow(2, 1, "none", scales=1),
    "image": lambda: ImageFlow((1, 4, 4), context=2, blocks=2),
    "composed": lambda: Flow(Chain([LDUBlock(3, hidden=(8,)), Reversal(3), ElementwiseAffine(3)]), StudentT(3)),
    "one bijection": lambda: Flow(Reversal(3)),
    "many kinds": lambda: Flow(Chain([LDUBlock(3, hidden=(i,)) for i in range(3, 20)])),
}
every_flow = pytest.mark.parametrize("name", FLOWS)
_SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{_SVG}text")]


@every_flow
def test_the_sum_of_the_parameters_is_that_of_the_flow(name):
    flow = FLOWS[name]()
    (total,) = (line for line in texts(flow.draw().svg) if "=" in line and "parameter" in line)
    arithmetic, result = total.partition(";")[0].removesuffix("s").removesuffix(" parameter").split(" = ")
    count = sum(p.numel() for p in flow.parameters())
    assert int(result.replace(",", "")) == count
    assert re.fullmatch(r"[\d,+()\u00d7 ]+", arithmetic)
    assert eval(arithmetic.replace(",", "").replace("\u00d7", "*")) == count


@every_flow
def test_every_element_lies_on_the_sheet(name):
    root = ElementTree.fromstring(FLOWS[name]().draw().svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for element in root.iter():
        if "x" in element.attrib:
            assert 0 <= float(element.attrib["x"]) <= width - float(element.attrib.get("width", 0))
            assert 0 <= float(element.attrib["y"]) <= height - float(element.attrib.get("height", 0))


def test_layers_and_their_arguments_are_shown():
    words = texts(SinusoidalFlow(3, 2, blocks=2, hidden=(16,)).draw().svg)
    assert words[1] == "3 features · context of 2 · base: Standard Normal"
    assert words.index("upper shift") < words.index("sinusoidal layer") < words.index("lower shift")
    assert sum("hidden (16)" in line for line in words) == 2
    assert sum(line == "with context" for line in words) == 3
    words = texts(FLOWS["composed"]().draw().svg)
    assert {"Reversal", "The features in <reverse> order & more."} <= set(words)
    assert "base: Student T" in words[1]
    assert texts(SinusoidalFlow(2, conditioning="full").draw().svg).count("conditional waves, reversed") == 1
    assert re.search(r"; \d+ further layers not shown", texts(FLOWS["many kinds"]().draw().svg)[-1])


def test_curves_are_those_of_the_layer():
    svg = trained_flow(2, conditioning="none").draw().svg
    curves = [e.attrib["points"].split() for e in ElementTree.fromstring(svg).iter(f"{_SVG}polyline")]
    curves = [[float(point.split(",")[1]) for point in curve] for curve in curves if len(curve) == 81]
    assert len(curves) == 2 * 2  # two features of the first sinusoidal layer and of the affine layer
    for curve in curves:
        assert all(after < before + 0.05 for before, after in itertools.pairwise(curve))  # increasing


def test_two_drawings_of_a_flow_are_the_same_and_have_no_ids_to_clash():
    flow = SinusoidalFlow(features=3, blocks=2, hidden=(8,))
    drawing = flow.draw()
    assert drawing.svg == flow.draw().svg == drawing._repr_svg_()
    root = ElementTree.fromstring(drawing.svg)
    assert not any("id" in element.attrib for element in root.iter())
    assert not list(root.iter(f"{_SVG}style"))
    assert not list(root.iter(f"{_SVG}script"))


def test_a_drawing_is_saved_as_svg_only(tmp_path: Path):
    drawing = SinusoidalFlow(features=2, blocks=1, hidden=(8,)).draw()
    drawing.save(tmp_path / "flow.svg")
    assert (tmp_path / "flow.svg").read_text(encoding="utf-8") == drawing.svg
    with pytest.raises(ArgumentError, match=r"saved as \.svg; got 'flow.png'"):
        drawing.save(tmp_path / "flow.png")
