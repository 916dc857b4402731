"""Samples of trained flows of images, beside images that they have never seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.image_sets import IMAGE_SETS
from .image_data import check_present, images_to_test
from .image_flows import ImageFlow, trained_flows
from .items import Options
from .pictures import picture, picture_path
from .record import Figure, hardware
from .tiles import show, tiles

#: Rows and columns of a grid.
_GRID = {"full": (8, 8), "quick": (6, 6), "smoke": (4, 4)}


class Drawn(NamedTuple):
    """What a flow made of noise: images of bytes, and figures about them."""

    shown: Tensor
    tested: Tensor
    numbers: dict[str, float]
    seconds: float


def run(options: Options) -> Iterator[Figure]:
    """Draw from each flow, and say how exactly noise became images."""
    flows = trained_flows(IMAGE_SETS, options)
    for flow in flows:
        check_present(flow.set, options)
    drawn = {f"{flow.set}, {flow.model}": (flow, draw(flow, options)) for flow in flows}
    for flow, found in drawn.values():
        for metric, value in found.numbers.items():
            yield Figure(
                set=flow.set,
                metric=metric,
                model=flow.model,
                values={flow.seed: value},
                rows=len(found.shown),
                steps=flow.trained.steps,
                seconds=found.seconds,
                hardware=hardware(options.device),
                comparable="no: the paper shows no samples",
                extra={"size": options.size, "recipe": flow.recipe},
            )
    path = picture_path("samples", [flow.model for flow in flows], options.out)
    _paint({title: found for title, (_, found) in drawn.items()}, path, options)


@torch.no_grad()
def draw(flow: ImageFlow, options: Options) -> Drawn:
    """Samples at temperature 1, by the certified solver, as many as the grid has places."""
    rows, columns = _GRID[options.size]
    count = rows * columns
    noise = torch.randn(count, flow.trained.flow.features, generator=torch.Generator().manual_seed(flow.seed))
    start = time.perf_counter()
    with flow.on(options.device) as model:
        inverse = model.invert(noise.to(options.device), on_failure="return")
        x, residual, converged = (part.cpu() for part in (inverse.x, inverse.residual, inverse.converged))
    seconds = time.perf_counter() - start
    tested = images_to_test(flow.set, flow.shape, options)[:count]
    u = flow.pixels.to_unit(x).value
    numbers = {
        "largest residual of the inverse": float(residual.max()),
        "samples that are certified, percent": 100 * float(converged.double().mean()),
        "pixels beyond black and white, percent": 100 * float(((u < 0) | (u > 1)).double().mean()),
    }
    return Drawn(flow.images(x), tested, numbers, seconds)


def _paint(drawn: dict[str, Drawn], path: Path, options: Options) -> None:
    rows, columns = _GRID[options.size]
    with picture(path, 6.4, 3.4 * len(drawn) * rows / columns) as figure:
        axes = figure.subplots(len(drawn), 2, squeeze=False, gridspec_kw={"wspace": 0.06})
        for (left, right), (title, found) in zip(axes, drawn.items(), strict=True):
            show(left, tiles(found.tested, columns), f"{title.split(',')[0]}: test images")
            show(right, tiles(found.shown, columns), f"{title}: samples")
