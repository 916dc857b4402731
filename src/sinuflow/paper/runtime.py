"""The paper's runtime figures: generating and reconstructing images by Algorithm 1 and the certified solver."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .images import ImageRun, trained_flows
from .items import Options
from .plotting import OURS, TRUE, saved_figure
from .record import Result, hardware, percent
from .tables import short

_SHADES = ("#f4c7a1", "#ea9a6b", "#c8553d", "#7a2415")


def run(options: Options) -> Iterator[Result]:
    """Time both solvers on the same trained flow, with the error that each of them reaches."""
    for flow in trained_flows(("cifar10",), options):
        timings = list(measure(flow, options))
        yield from timings
        _plot(flow.dataset, timings, options)


@torch.no_grad()
def measure(flow: ImageRun, options: Options) -> Iterator[Result]:
    """All timings of a flow."""
    # Tolerances (both rtol and atol) and iteration limits of Algorithm 1.
    tolerances = options.of(full=(1e-2, 1e-3, 1e-4, 1e-5), quick=(1e-2, 1e-4, 1e-6), smoke=(1e-2, 1e-5))
    limits = options.of(full=(10, 20, 50, 70, 100, 200), quick=(5, 20, 70), smoke=(2, 50))
    images = flow.logits(flow.test_images()[: options.of(full=128, quick=8, smoke=4)])
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(flow.seed))
    with flow.on_device(torch.float64) as model:
        # The reference for generated images is the certified solution in float64.
        generated = model.invert(noise.to(options.device, torch.float64), rtol=1e-9, atol=1e-9).x
    with flow.on_device() as model:
        images, noise = images.to(options.device), noise.to(options.device)
        tasks = {"generate": (noise, generated), "reconstruct": (model.bijection(images)[0], images.double())}
        for solver in ("certified", "fixed_point"):  # warm-up
            model.invert(noise, solver=solver, max_iterations=50, on_failure="return")
        for task, (z, x) in tasks.items():
            yield _time(flow, task, z, x, None, None)
            for tolerance, limit in itertools.product(tolerances, limits):
                yield _time(flow, task, z, x, tolerance, limit)


def _time(flow: ImageRun, task: str, z: Tensor, x: Tensor, tolerance: float | None, limit: int | None) -> Result:
    """The time of Algorithm 1 or, without a limit, the median time of the certified solver."""
    options = flow.options
    metric, model, solver = f"seconds to {task} {len(z)} images", "certified", {}
    repeats = options.of(full=3, quick=3, smoke=1)
    if limit is not None:
        metric += f", tolerance {tolerance:g}, at most {limit} iterations"
        model, repeats = "Algorithm 1", 1
        solver = {"solver": "fixed_point", "rtol": tolerance, "atol": tolerance, "max_iterations": limit}
    synchronize = torch.cuda.synchronize if z.is_cuda else lambda: None
    times = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        inverse = flow.flow.invert(z, **solver, on_failure="return")
        synchronize()
        times.append(time.perf_counter() - start)
    extra = {
        "task": task,
        "tolerance": tolerance,
        "iterations": limit,
        "largest_error": float((inverse.x.double() - x).abs().max()),
        "converged_percent": percent(inverse.converged),
        "trained": f"{flow.model}, seed {flow.seed}, {flow.outcome['steps']} steps",
        "size": options.size,
        "recipe": flow.recipe.digest,
    }
    comparable, place = "no: the paper shows a picture, and no hardware", hardware(options.device)
    values: dict[int | None, float] = {None: statistics.median(times)}
    return Result(flow.dataset, metric, model, values, rows=len(z), hardware=place, comparable=comparable, extra=extra)


def _plot(dataset: str, timings: list[Result], options: Options) -> None:
    """Seconds above, and the largest error below."""
    name = "runtime.png" if dataset == "cifar10" else f"runtime-{dataset}.png"
    with saved_figure(options.out / name, 7.4, 5.4) as figure:
        axes: Any = figure.subplots(2, 2, sharex=True, sharey="row")
        for column, task in zip(axes.T, ("generate", "reconstruct"), strict=True):
            shown = [timing.extra | {"seconds": timing.value} for timing in timings if timing.extra["task"] == task]
            _plot_quantity(column[0], shown, "seconds")
            _plot_quantity(column[1], shown, "largest_error")
            column[0].set_title(f"{task} {timings[0].rows} images, {dataset}")
            column[1].set_xlabel("iterations that each layer may take")
        for axis in axes[0]:
            axis.set_yscale("log", subs=(2, 5))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter("{x:g}")
            axis.tick_params(axis="y", which="minor", labelsize=7)
        axes[0, 0].set_ylabel("seconds")
        axes[1, 0].set_ylabel("largest error")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, handlelength=1.5)


def _plot_quantity(axes: Any, timings: list[dict[str, Any]], quantity: str) -> None:
    """A line for each tolerance of Algorithm 1, and a level for the certified solver."""
    lines: dict[Any, list[tuple[int, float]]] = {}
    for timing in timings:
        lines.setdefault(timing["tolerance"], []).append((timing["iterations"], timing[quantity]))
    ((_, certified),) = lines.pop(None)
    for (tolerance, line), shade in zip(lines.items(), _SHADES[-len(lines) :], strict=True):
        label = f"Algorithm 1, tolerance {short(tolerance)}"
        axes.plot(*zip(*line, strict=True), "o-", color=shade, markersize=3, label=label)
    axes.axhline(certified, color=OURS, linewidth=2, label="certified")
    axes.set_yscale("log")
    axes.grid(axis="y", color=TRUE, alpha=0.15, linewidth=0.6)
