from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from sinuflow import ArgumentError, SinusoidalFlow
from sinuflow.bijections import Bijection, Chain, ElementwiseAffine
from sinuflow.flows.drawing import anatomy
from sinuflow.flows.drawing.canvas import TIMES, Canvas
from tests.builders import trained_flow

FLOWS = {
    "shift": {"features": 6, "blocks": 12},
    "one feature": {"features": 1, "blocks": 1},
    "many features": {"features": 40, "blocks": 7, "scales": 9, "waves": 1, "hidden": (50,)},
    "shift with context": {"features": 3, "context": 2, "blocks": 2, "residual": True, "dropout": 0.1, "squash": 3.0},
    "full": {"features": 4, "conditioning": "full"},
    "full with context": {"features": 3, "context": 5, "conditioning": "full", "blocks": 1, "hidden": ()},
    "none": {"features": 2, "conditioning": "none", "blocks": 3},
    "none with context": {"features": 2, "context": 1, "conditioning": "none", "scales": 1},
}
_SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{_SVG}text")]


def number(words: str) -> int:
    return int(words.replace(",", ""))


@pytest.mark.parametrize("name", FLOWS)
def test_the_printed_parameters_add_up_to_those_of_the_object(name: str) -> None:
    flow = SinusoidalFlow(**FLOWS[name])  # type: ignore[arg-type]
    words = texts(flow.draw().svg)
    count = sum(parameter.numel() for parameter in flow.parameters())
    (total,) = (line for line in words if "=" in line and line.endswith("parameters"))
    arithmetic, result = total.removesuffix(" parameters").split(" = ")
    assert number(result) == count
    assert re.fullmatch(rf"[\d,+(){TIMES} ]+", arithmetic)
    assert eval(arithmetic.replace(",", "").replace(TIMES, "*")) == count
    cards = [number(line.split()[0]) for line in words if re.fullmatch(r"[\d,]+ parameters?", line)]
    for card in cards:
        assert f"{card:,}" in arithmetic


@pytest.mark.parametrize("name", FLOWS)
def test_it_shows_the_numbers_of_the_object(name: str) -> None:
    flow = SinusoidalFlow(**FLOWS[name])  # type: ignore[arg-type]
    words = texts(flow.draw().svg)
    config = flow.config
    summary = words[1]
    for key, noun in (("features", "feature"), ("scales", "scale"), ("waves", "wave")):
        assert f"{config[key]} {noun}" in summary
    assert re.search(rf"\b{config['blocks']} (LDU block|block|layer)", summary)
    networks = [line for line in words if line.startswith("network ")]
    if config["conditioning"] != "none":
        assert networks
        for line in networks:
            widths = [int(width) for width in re.findall(r"\d+", line)]
            assert widths[0] == config["features"] + config["context"]
            assert set(config["hidden"]) <= set(widths)
    assert any("context y" in line for line in words) == bool(config["context"])


def test_the_parts_are_in_the_order_in_which_they_are_applied() -> None:
    found = anatomy(SinusoidalFlow(3, blocks=2, hidden=(8,)).bijection)
    assert [part.kind for part in found.blocks[1]] == ["upper", "scale", "lower"]
    words = texts(SinusoidalFlow(3, blocks=2, hidden=(8,)).draw().svg)
    assert words.index("upper shift") < words.index("sinusoidal scales") < words.index("lower shift")


@pytest.mark.parametrize(
    ("conditioning", "context"), [("shift", 0), ("shift", 2), ("full", 0), ("full", 1), ("none", 0)]
)
def test_the_patterns_are_those_of_the_jacobians(conditioning: str, context: int) -> None:
    flow = trained_flow(4, context, conditioning, blocks=2, hidden=(32,))
    given = torch.randn(context, dtype=torch.float64) if context else None
    drawn = [part for block in anatomy(flow.bijection).blocks for part in block]
    layers = [part for block in flow.bijection for part in (block if isinstance(block, Chain) else [block])]
    for part, layer in zip(drawn, layers, strict=False):  # the affine map comes after all blocks
        x = torch.randn(64, 4, dtype=torch.float64)
        seen = torch.zeros(4, 4, dtype=torch.bool)
        for row in x:
            seen |= torch.autograd.functional.jacobian(lambda r, layer=layer: layer(r, given)[0], row) != 0
        assert torch.tensor(part.pattern).equal(seen)


def test_the_context_has_an_arrow_into_every_part_that_uses_it() -> None:
    def arrows(**options: object) -> int:
        svg = SinusoidalFlow(features=3, blocks=2, hidden=(8,), **options).draw().svg  # type: ignore[arg-type]
        return len(list(ElementTree.fromstring(svg).iter(f"{_SVG}polygon")))

    assert arrows(context=2) - arrows() == 3
    assert arrows(context=2, conditioning="full") - arrows(conditioning="full") == 2
    assert arrows(context=2, conditioning="none") - arrows(conditioning="none") == 1


@pytest.mark.parametrize("name", FLOWS)
def test_everything_lies_on_the_sheet(name: str) -> None:
    root = ElementTree.fromstring(SinusoidalFlow(**FLOWS[name]).draw().svg)  # type: ignore[arg-type]
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for element in root.iter():
        if "x" in element.attrib:
            assert 0 <= float(element.attrib["x"]) <= width - float(element.attrib.get("width", 0))
            assert 0 <= float(element.attrib["y"]) <= height - float(element.attrib.get("height", 0))


def test_two_drawings_of_a_flow_are_the_same_and_have_no_ids_to_clash() -> None:
    flow = SinusoidalFlow(features=3, blocks=2, hidden=(8,))
    drawing = flow.draw()
    assert drawing.svg == flow.draw().svg == drawing._repr_svg_()
    root = ElementTree.fromstring(drawing.svg)
    assert not any("id" in element.attrib for element in root.iter())
    assert not list(root.iter(f"{_SVG}style"))
    assert not list(root.iter(f"{_SVG}script"))


def test_words_are_escaped() -> None:
    canvas = Canvas(10, 10, "</title><script>")
    canvas.text(1, 2, "<b>&", 12)
    canvas.maths(1, 2, "x_{<i} & <y>", 12)
    root = ElementTree.fromstring(canvas.svg())
    assert root.findtext(f"{_SVG}title") == "</title><script>"
    assert texts(canvas.svg()) == ["<b>&", "x<i & <y>"]


def test_a_drawing_is_saved_as_svg_only(tmp_path: Path) -> None:
    drawing = SinusoidalFlow(features=2, blocks=1, hidden=(8,)).draw()
    drawing.save(tmp_path / "flow.svg")
    assert (tmp_path / "flow.svg").read_text(encoding="utf-8") == drawing.svg
    with pytest.raises(ArgumentError, match=r"saved as \.svg; got 'flow.png'"):
        drawing.save(tmp_path / "flow.png")


def test_what_it_does_not_know_it_does_not_draw() -> None:
    class Other(Bijection):
        pass

    with pytest.raises(ArgumentError, match="no drawing of a Other"):
        anatomy(Chain([Other(2), ElementwiseAffine(2)]))
