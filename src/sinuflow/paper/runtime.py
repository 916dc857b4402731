"""The paper's runtime figures: generating and reconstructing images by Algorithm 1 and the certified solver."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..files import write_atomically
from ..flows.sinusoidal import SinusoidalFlow
from .image_runs import TrainedImages, trained_flows
from .items import Options
from .plotting import OURS, TRUE, saved_figure
from .record import Result, hardware, percent, read_record
from .tables import runtime_table, short

#: Number of images, tolerances (both rtol and atol) and iteration limits of Algorithm 1, and timings of the certified
#: solver, of which the median is taken.
_COUNTS = {"full": 128, "quick": 8, "smoke": 4}
_TOLERANCES = {"full": (1e-2, 1e-3, 1e-4, 1e-5), "quick": (1e-2, 1e-4, 1e-6), "smoke": (1e-2, 1e-5)}
_ITERATIONS = {"full": (10, 20, 50, 70, 100, 200), "quick": (5, 20, 70), "smoke": (2, 50)}
_REPEATS = {"full": 3, "quick": 3, "smoke": 1}

_TASKS = ("generate", "reconstruct")
_SHADES = ("#f4c7a1", "#ea9a6b", "#c8553d", "#7a2415")


class Timing(NamedTuple):
    """The time of a solver, with its largest error and the percentage of images that converged.

    For the certified solver, ``tolerance`` and ``limit`` are None.
    """

    task: str
    tolerance: float | None
    limit: int | None
    seconds: float
    error: float
    converged: float


def run(options: Options) -> Iterator[Result]:
    """Time both solvers on the same trained flow, with the error that each of them reaches."""
    for flow in trained_flows(("cifar10",), options):
        timings = list(measure(flow, options))
        yield from (_result(flow, timing, options) for timing in timings)
        _plot(flow.dataset, timings, options)
    write_atomically(options.out / "runtime.md", runtime_table(read_record(options.out / "runtime.json")).encode())


@torch.no_grad()
def measure(flow: TrainedImages, options: Options) -> Iterator[Timing]:
    """All timings of a flow."""
    images = flow.logits(flow.test_images(options)[: _COUNTS[options.size]])
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(flow.seed))
    with flow.on(options.device, torch.float64) as model:
        # The reference for generated images is the certified solution in float64.
        generated = model.invert(noise.to(options.device, torch.float64), rtol=1e-9, atol=1e-9).x
    with flow.on(options.device) as model:
        images, noise = images.to(options.device), noise.to(options.device)
        tasks = {"generate": (noise, generated), "reconstruct": (model.bijection(images)[0], images.double())}
        for solver in ("certified", "fixed_point"):  # warm-up
            model.invert(noise, solver=solver, max_iterations=50, on_failure="return")
        for task, (z, x) in tasks.items():
            yield _time(model, task, z, x, None, None, options)
            for tolerance, limit in itertools.product(_TOLERANCES[options.size], _ITERATIONS[options.size]):
                yield _time(model, task, z, x, tolerance, limit, options)


def _time(
    model: SinusoidalFlow, task: str, z: Tensor, x: Tensor, tolerance: float | None, limit: int | None, options: Options
) -> Timing:
    solver: dict[str, Any] = {}
    if limit is not None:
        solver = {"solver": "fixed_point", "rtol": tolerance, "atol": tolerance, "max_iterations": limit}
    times = []
    for _ in range(_REPEATS[options.size] if limit is None else 1):
        _synchronize(options.device)
        start = time.perf_counter()
        inverse = model.invert(z, **solver, on_failure="return")
        _synchronize(options.device)
        times.append(time.perf_counter() - start)
    error = float((inverse.x.double() - x).abs().max())
    return Timing(task, tolerance, limit, statistics.median(times), error, percent(inverse.converged))


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _result(flow: TrainedImages, timing: Timing, options: Options) -> Result:
    metric = f"seconds to {timing.task} {_COUNTS[options.size]} images"
    if timing.limit is not None:
        metric += f", tolerance {timing.tolerance:g}, at most {timing.limit} iterations"
    return Result(
        flow.dataset,
        metric,
        "certified" if timing.limit is None else "Algorithm 1",
        {None: timing.seconds},
        rows=_COUNTS[options.size],
        hardware=hardware(options.device),
        comparable="no: the paper shows a picture, and no hardware",
        extra={
            "task": timing.task,
            "tolerance": timing.tolerance,
            "iterations": timing.limit,
            "largest_error": timing.error,
            "converged_percent": timing.converged,
            "trained": f"{flow.model}, seed {flow.seed}, {flow.trained.steps} steps",
            "size": options.size,
            "recipe": flow.recipe.digest,
        },
    )


def _plot(dataset: str, timings: list[Timing], options: Options) -> None:
    """Seconds above, and the largest error below."""
    name = "runtime.png" if dataset == "cifar10" else f"runtime-{dataset}.png"
    with saved_figure(options.out / name, 7.4, 5.4) as figure:
        axes: Any = figure.subplots(2, 2, sharex=True, sharey="row")
        for column, task in zip(axes.T, _TASKS, strict=True):
            for axis, quantity in zip(column, ("seconds", "error"), strict=True):
                _plot_quantity(axis, [timing for timing in timings if timing.task == task], quantity)
            column[0].set_title(f"{task} {_COUNTS[options.size]} images, {dataset}")
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


def _plot_quantity(axes: Any, timings: list[Timing], quantity: str) -> None:
    tolerances = sorted({timing.tolerance for timing in timings if timing.tolerance is not None}, reverse=True)
    for tolerance, shade in zip(tolerances, _SHADES[len(_SHADES) - len(tolerances) :], strict=True):
        line = [(timing.limit, getattr(timing, quantity)) for timing in timings if timing.tolerance == tolerance]
        label = f"Algorithm 1, tolerance {short(tolerance)}"
        axes.plot(*zip(*line, strict=True), "o-", color=shade, markersize=3, label=label)
    for timing in timings:
        if timing.limit is None:
            axes.axhline(getattr(timing, quantity), color=OURS, linewidth=2, label="certified")
    axes.set_yscale("log")
    axes.grid(axis="y", color=TRUE, alpha=0.15, linewidth=0.6)
