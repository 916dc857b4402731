"""The appendix's analysis: images to noise and back, by Algorithm 1 with few iterations and by the certified solver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.image_sets import IMAGE_SETS
from .images import ImageRun, trained_flows
from .items import Options
from .plotting import DASHED, OTHER, OURS, figure_path, saved_figure, show_images
from .record import Result, percent

_COLUMNS = 12
_BATCH = 500

_COLOURS = {"mnist": OURS, "cifar10": OTHER}


class Reconstruction(NamedTuple):
    """The reconstruction errors of a flow."""

    curve: dict[int, float]  # mean l2 error by iterations of Algorithm 1, of pixels between 0 and 1
    certified: float  # that of the certified solver
    metrics: dict[str, float]
    images: dict[str, Tensor]  # some images, original and reconstructed


def run(options: Options) -> Iterator[Result]:
    """Reconstruct test images, report the errors, and plot errors and images."""
    runs = trained_flows(IMAGE_SETS, options)
    shown = {}
    for flow in runs:
        shown[flow.dataset] = result = reconstruct(flow, options)
        yield from flow.measured(result.metrics, "no: the paper shows a picture")
    _plot(shown, figure_path("reconstruction", [flow.model for flow in runs], options.out))


def reconstruct(flow: ImageRun, options: Options) -> Reconstruction:
    """Some test images by Algorithm 1, and all of them by the certified solver."""
    # Images for Algorithm 1, for the certified solver in float32, and for it in float64.
    few, many, exact = options.of(full=(128, 10_000, 1_000), quick=(32, 64, 32), smoke=(16, 32, 16))
    # Iterations that every layer may take, and those whose images are shown; of the paper's figure only 70 is known.
    limits = options.of(full=(1, 2, 5, *range(10, 101, 10)), quick=(1, 2, 5, 10, 20, 40, 70), smoke=(1, 3, 10, 70))
    pictured = options.of(full=(5, 20, 70), quick=(2, 10, 70), smoke=(1, 3, 70))
    images = flow.test_images()[:many]
    x = flow.logits(images)
    shown, curve, same = {"original": images[:_COLUMNS]}, dict[int, float](), dict[int, float]()
    algorithm_1 = {"solver": "fixed_point", "rtol": 0, "atol": 0}
    for limit in limits:
        solution, _ = round_trip(flow, x[:few], **algorithm_1, max_iterations=limit)
        curve[limit] = _l2(flow, solution, x[:few])
        same[limit] = _indistinguishable(flow.images(solution), images[:few])
        if limit in pictured:
            shown["1 iteration" if limit == 1 else f"{limit} iterations"] = flow.images(solution[:_COLUMNS])
    single, converged = round_trip(flow, x)
    double, _ = round_trip(flow, x[:exact].double())
    shown["certified"] = flow.images(single[:_COLUMNS])
    certified = _l2(flow, single, x)
    last = max(limit for limit in curve if limit <= 70)
    largest = "largest error of the certified solver in"
    metrics = {f"l2 error, iterations of Algorithm 1: {limit}": error for limit, error in curve.items()} | {
        "l2 error of the certified solver": certified,
        f"images that look the same, iterations of Algorithm 1: {last}, percent": same[last],
        "images that look the same by the certified solver, percent": _indistinguishable(flow.images(single), images),
        "images that the certified solver certifies, percent": percent(converged),
        f"{largest} float32, {len(x):,} images": float((single - x).abs().max()),
        f"{largest} float32, {len(x):,} images, pixels": float(_pixel_error(flow, single, x).abs().max()),
        f"{largest} float64, {len(double):,} images": float((double - x[:exact].double()).abs().max()),
    }
    return Reconstruction(curve, certified, metrics, shown)


@torch.no_grad()
def round_trip(flow: ImageRun, x: Tensor, **solver: Any) -> tuple[Tensor, Tensor]:
    """The solution of a solver for the noise of ``x``, in the precision of ``x``, and whether it converged."""
    solutions, converged = [], []
    with flow.on_device(x.dtype) as model:
        for part in x.split(_BATCH):
            inverse = model.invert(model.bijection(part.to(flow.options.device))[0], **solver, on_failure="return")
            solutions.append(inverse.x.cpu())
            converged.append(inverse.converged.cpu())
    return torch.cat(solutions), torch.cat(converged)


def _l2(flow: ImageRun, solution: Tensor, x: Tensor) -> float:
    """The mean over images of the l2 norm of their pixels' errors."""
    return float(torch.linalg.vector_norm(_pixel_error(flow, solution, x), dim=1).mean())


def _pixel_error(flow: ImageRun, solution: Tensor, x: Tensor) -> Tensor:
    """The error of pixels between 0 and 1; NaN counts as black."""
    values, true = (flow.pixels.to_unit(part.nan_to_num(nan=-torch.inf)).value for part in (solution, x))
    return values - true


def _indistinguishable(images: Tensor, originals: Tensor) -> float:
    """Percent of the images without a byte that is off by more than one; noise often lies at the edge of a cell."""
    return percent(((images.int() - originals.int()).abs() <= 1).flatten(1).all(1))


def _plot(shown: dict[str, Reconstruction], path: Path) -> None:
    with saved_figure(path, 9.4, 2.4 * len(shown)) as figure:
        halves: Any = figure.subfigures(1, 2, width_ratios=(1, 2))
        left, right = halves
        curves = left.subplots()
        grids: Any = right.subplots(len(shown), 1, squeeze=False)[:, 0]
        for axes, (name, result) in zip(grids, shown.items(), strict=True):
            curves.plot(*zip(*result.curve.items(), strict=True), "o-", color=_COLOURS[name], markersize=3, label=name)
            curves.axhline(result.certified, color=_COLOURS[name], **DASHED | {"linewidth": 1})
            height = show_images(axes, torch.cat(list(result.images.values())), len(result.images["original"]), name)
            rows = len(result.images)
            axes.set_yticks([height * (row + 0.5) / rows for row in range(rows)], result.images)
            axes.tick_params(length=0, labelsize=8)
        curves.plot([], [], color="black", label="certified", **DASHED | {"linewidth": 1})
        curves.set(xlabel="iterations of Algorithm 1 in each layer", ylabel=r"mean $\ell_2$ error", yscale="log")
        curves.legend(fontsize=8)
