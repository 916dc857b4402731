"""Samples of trained image flows, beside test images."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from ..data.image_sets import IMAGE_SETS
from .images import trained_flows
from .items import Options
from .plotting import figure_path, saved_figure, show_images
from .record import Result, percent


def run(options: Options) -> Iterator[Result]:
    """Sample from each flow at temperature 1 by the certified solver, and report how exact the inverse is."""
    runs = trained_flows(IMAGE_SETS, options)
    columns = options.of(full=8, quick=6, smoke=4)  # of a grid, and as many rows
    grids = []
    for flow in runs:
        noise = torch.Generator().manual_seed(flow.seed)
        z = torch.randn(columns**2, flow.flow.features, generator=noise)
        start = time.perf_counter()
        with flow.on_device() as model, torch.no_grad():
            inverse = model.invert(z.to(options.device), on_failure="return")
            x, residual, converged = inverse.x.cpu(), inverse.residual.cpu(), inverse.converged.cpu()
        seconds = time.perf_counter() - start
        grids.append((flow, flow.test_images()[: columns**2], flow.images(x)))
        u = flow.pixels.to_unit(x).value
        metrics = {
            "largest residual of the inverse": float(residual.max()),
            "samples that are certified, percent": percent(converged),
            "pixels beyond black and white, percent": percent((u < 0) | (u > 1)),
        }
        comparable = "no: the paper shows no samples"
        yield from flow.measured(metrics, comparable, rows=columns**2, seconds=seconds)
    path = figure_path("samples", [flow.model for flow in runs], options.out)
    with saved_figure(path, 6.4, 3.4 * len(grids)) as figure:
        axes: Any = figure.subplots(len(grids), 2, squeeze=False, gridspec_kw={"wspace": 0.06})
        for (left, right), (flow, test_images, sampled) in zip(axes, grids, strict=True):
            show_images(left, test_images, columns, f"{flow.dataset}: test images")
            show_images(right, sampled, columns, f"{flow.dataset}, {flow.model}: samples")
