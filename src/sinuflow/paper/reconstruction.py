"""The appendix's analysis: images to noise and back, by a few iterations of Algorithm 1 and by the certified solver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.image_sets import IMAGE_SETS
from .image_data import check_present, images_to_test
from .image_flows import ImageFlow, trained_flows
from .items import Options
from .pictures import OTHER, OURS, picture, picture_path
from .record import Figure, hardware
from .tiles import show, tiles

#: Iterations that every layer is allowed; of the paper's figure only 70 is known.
_ITERATIONS = {"full": (1, 2, 5, *range(10, 101, 10)), "quick": (1, 2, 5, 10, 20, 40, 70), "smoke": (1, 3, 10, 70)}
#: Whose images are shown.
_SHOWN = {"full": (5, 20, 70), "quick": (2, 10, 70), "smoke": (1, 3, 70)}
#: Images for Algorithm 1, for the certified solver, for the same in float64, and how many are shown.
_COUNTS = {"full": (128, 10_000, 1_000), "quick": (32, 64, 32), "smoke": (16, 32, 16)}
_COLUMNS = 12
_AT_ONCE = 500

_COLOURS = {"mnist": OURS, "cifar10": OTHER}


class Found(NamedTuple):
    """How images were found again.

    Attributes:
        curve: mean l2 error by iterations of Algorithm 1, in pixels between 0 and 1.
        certified: the same of the certified solver.
        numbers: all figures.
        rows: images by what made them.
    """

    curve: dict[int, float]
    certified: float
    numbers: dict[str, float]
    rows: dict[str, Tensor]


def run(options: Options) -> Iterator[Figure]:
    """Reconstruct test images: the error against iterations, and pictures of it."""
    flows = trained_flows(IMAGE_SETS, options)
    for flow in flows:
        check_present(flow.set, options)
    shown = {}
    for flow in flows:
        found = reconstruct(flow, options)
        shown[flow.set] = found
        for metric, value in found.numbers.items():
            yield Figure(
                set=flow.set,
                metric=metric,
                model=flow.model,
                values={flow.seed: value},
                steps=flow.trained.steps,
                hardware=hardware(options.device),
                comparable="no: the paper shows a picture",
                extra={"size": options.size, "recipe": flow.recipe},
            )
    _paint(shown, picture_path("reconstruction", [flow.model for flow in flows], options.out))


@torch.no_grad()
def reconstruct(flow: ImageFlow, options: Options) -> Found:
    """Some test images by Algorithm 1, and all of them by the certified solver."""
    some, many, exact = _COUNTS[options.size]
    images = images_to_test(flow.set, flow.shape, options)[:many]
    x = flow.logits(images)
    rows, curve, right = {"original": images[:_COLUMNS]}, dict[int, float](), dict[int, float]()
    for limit in _ITERATIONS[options.size]:
        back = round_trip(flow, x[:some], options.device, solver="fixed_point", rtol=0, atol=0, max_iterations=limit)
        curve[limit] = float(_l2(flow, back.x, x[:some]).mean())
        right[limit] = _indiscernible(flow.images(back.x), images[:some])
        if limit in _SHOWN[options.size]:
            rows["1 iteration" if limit == 1 else f"{limit} iterations"] = flow.images(back.x[:_COLUMNS])
    single = round_trip(flow, x, options.device)
    double = round_trip(flow, x[:exact].double(), options.device)
    rows["certified"] = flow.images(single.x[:_COLUMNS])
    certified = float(_l2(flow, single.x, x).mean())
    numbers = {f"l2 error, iterations of Algorithm 1: {limit}": error for limit, error in curve.items()}
    last = max(limit for limit in curve if limit <= 70)
    numbers |= {
        "l2 error of the certified solver": certified,
        f"images that look the same, iterations of Algorithm 1: {last}, percent": right[last],
        "images that look the same by the certified solver, percent": _indiscernible(flow.images(single.x), images),
        "images that the certified solver vouches for, percent": _percent(single.converged),
        f"largest error of the certified solver in float32, {len(x):,} images": float((single.x - x).abs().max()),
        f"largest error of the certified solver in float32, {len(x):,} images, pixels": float(
            _off(flow, single.x, x).abs().max()
        ),
        f"largest error of the certified solver in float64, {len(double.x):,} images": float(
            (double.x - x[:exact].double()).abs().max()
        ),
    }
    return Found(curve, certified, numbers, rows)


class RoundTrip(NamedTuple):
    """Images to noise and back."""

    x: Tensor
    converged: Tensor


@torch.no_grad()
def round_trip(flow: ImageFlow, x: Tensor, device: str, **solver: Any) -> RoundTrip:
    """What a solver makes of the noise of some images, in their precision."""
    parts = []
    with flow.on(device, x.dtype) as model:
        for part in x.split(_AT_ONCE):
            z, _ = model.bijection(part.to(device))
            back = model.invert(z, **solver, on_failure="return")
            parts.append(RoundTrip(back.x.cpu(), back.converged.cpu()))
    return RoundTrip(*(torch.cat(each) for each in zip(*parts, strict=True)))


def _l2(flow: ImageFlow, back: Tensor, x: Tensor) -> Tensor:
    """The distance of each image from itself."""
    distance: Tensor = torch.linalg.vector_norm(_off(flow, back, x), dim=1)
    return distance


def _off(flow: ImageFlow, back: Tensor, x: Tensor) -> Tensor:
    """By how much pixels between 0 and 1 are off; what is no number counts as black."""
    found, true = (flow.pixels.to_unit(part.nan_to_num(nan=-torch.inf)).value for part in (back, x))
    return found - true


def _indiscernible(found: Tensor, images: Tensor) -> float:
    """Percent of the images in which no byte is off by more than one; noise is often at the edge of a byte's cell."""
    return _percent(((found.int() - images.int()).abs() <= 1).flatten(1).all(1))


def _percent(which: Tensor) -> float:
    return 100 * float(which.double().mean())


def _paint(shown: dict[str, Found], path: Path) -> None:
    with picture(path, 9.4, 2.4 * len(shown)) as figure:
        halves: Any = figure.subfigures(1, 2, width_ratios=(1, 2))
        left, right = halves
        _paint_curves(left.subplots(), shown)
        grids: Any = right.subplots(len(shown), 1, squeeze=False)
        for axes, (name, found) in zip(grids[:, 0], shown.items(), strict=True):
            grid = tiles(torch.cat(list(found.rows.values())), len(found.rows["original"]))
            show(axes, grid, name)
            axes.set_yticks([len(grid) * (row + 0.5) / len(found.rows) for row in range(len(found.rows))], found.rows)
            axes.tick_params(length=0, labelsize=8)


def _paint_curves(axes: Any, shown: dict[str, Found]) -> None:
    for name, found in shown.items():
        axes.plot(list(found.curve), list(found.curve.values()), "o-", color=_COLOURS[name], markersize=3, label=name)
        axes.axhline(found.certified, color=_COLOURS[name], linewidth=1, linestyle=(0, (4, 3)))
    axes.plot([], [], color="black", linewidth=1, linestyle=(0, (4, 3)), label="certified")
    axes.set(xlabel="iterations of Algorithm 1 in each layer", ylabel=r"mean $\ell_2$ error", yscale="log")
    axes.legend(fontsize=8)
