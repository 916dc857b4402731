"""The paper's figures of runtimes: generating and reconstructing images, by Algorithm 1 and the certified solver."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..files import write_atomically
from ..flows.sinusoidal import SinusoidalFlow
from ..solvers import Inversion
from .image_data import check_present, images_to_test
from .image_flows import ImageFlow, trained_flows
from .items import Options
from .pictures import OURS, TRUE, picture
from .record import Figure, hardware, read_record
from .runtime_table import short, table

#: Images at once, tolerances (both rtol and atol), iterations that each layer is allowed, and times that the certified
#: solver, which is fast, is timed.
_COUNTS = {"full": 128, "quick": 8, "smoke": 4}
_TOLERANCES = {"full": (1e-2, 1e-3, 1e-4, 1e-5), "quick": (1e-2, 1e-4, 1e-6), "smoke": (1e-2, 1e-5)}
_ITERATIONS = {"full": (10, 20, 50, 70, 100, 200), "quick": (5, 20, 70), "smoke": (2, 50)}
_REPEATS = {"full": 3, "quick": 3, "smoke": 1}

_TASKS = ("generate", "reconstruct")
_SHADES = ("#f4c7a1", "#ea9a6b", "#c8553d", "#7a2415")


class Timed(NamedTuple):
    """One way to invert: how long it took, how far off the worst number is, and how many images have converged."""

    task: str
    tolerance: float | None
    limit: int | None
    seconds: float
    error: float
    converged: float


def run(options: Options) -> Iterator[Figure]:
    """Time both solvers on the same trained flow, with the error that each of them reached."""
    flows = trained_flows(("cifar10",), options)
    for flow in flows:
        check_present(flow.set, options)
    for flow in flows:
        timed = list(time_all(flow, options))
        yield from (_figure(flow, each, options) for each in timed)
        _paint(flow, timed, options)
    write_atomically(options.out / "runtime.md", table(read_record(options.out / "runtime.json")).encode())


@torch.no_grad()
def time_all(flow: ImageFlow, options: Options) -> Iterator[Timed]:
    """Everything that is shown about a flow."""
    count = _COUNTS[options.size]
    images = flow.logits(images_to_test(flow.set, flow.shape, options)[:count])
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(flow.seed))
    with flow.on(options.device, torch.float64) as model:
        # What is generated from noise is not known beforehand: it is the certified answer in float64.
        drawn = model.invert(noise.to(options.device, torch.float64), rtol=1e-9, atol=1e-9).x
    with flow.on(options.device) as model:
        images, noise = images.to(options.device), noise.to(options.device)
        tasks = {"generate": (noise, drawn), "reconstruct": (model.bijection(images)[0], images.double())}
        for solver in ("certified", "fixed_point"):  # the first time of each does not count
            model.invert(noise, solver=solver, max_iterations=50, on_failure="return")
        for task, (z, x) in tasks.items():
            yield _timed(model, task, z, x, options)
            for tolerance in _TOLERANCES[options.size]:
                for limit in _ITERATIONS[options.size]:
                    yield _timed(model, task, z, x, options, tolerance, limit)


def _timed(
    model: SinusoidalFlow,
    task: str,
    z: Tensor,
    x: Tensor,
    options: Options,
    tolerance: float | None = None,
    limit: int | None = None,
) -> Timed:
    given: dict[str, Any] = {}
    if limit is not None:
        given = {"solver": "fixed_point", "rtol": tolerance, "atol": tolerance, "max_iterations": limit}
    repeats = _REPEATS[options.size] if limit is None else 1
    found, seconds = stopwatch(lambda: model.invert(z, **given, on_failure="return"), options, repeats)
    error = float((found.x.double() - x).abs().max())
    return Timed(task, tolerance, limit, seconds, error, 100 * float(found.converged.double().mean()))


def stopwatch(work: Callable[[], Inversion], options: Options, repeats: int) -> tuple[Inversion, float]:
    """What comes of some work, and the median of its seconds."""
    wait = torch.cuda.synchronize if options.device.startswith("cuda") else lambda: None
    times = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        found = work()
        wait()
        times.append(time.perf_counter() - start)
    return found, statistics.median(times)


def _figure(flow: ImageFlow, timed: Timed, options: Options) -> Figure:
    words = f"seconds to {timed.task} {_COUNTS[options.size]} images"
    if timed.limit is not None:
        words += f", tolerance {timed.tolerance:g}, at most {timed.limit} iterations"
    return Figure(
        set=flow.set,
        metric=words,
        model="certified" if timed.limit is None else "Algorithm 1",
        values={None: timed.seconds},
        rows=_COUNTS[options.size],
        hardware=hardware(options.device),
        comparable="no: the paper shows a picture, and no hardware",
        extra={
            "task": timed.task,
            "tolerance": timed.tolerance,
            "iterations": timed.limit,
            "largest_error": timed.error,
            "converged_percent": timed.converged,
            "trained": f"{flow.model}, seed {flow.seed}, {flow.trained.steps} steps",
            "size": options.size,
            "recipe": flow.recipe,
        },
    )


# ---------------------------------------------------------------- the picture


def _paint(flow: ImageFlow, timed: list[Timed], options: Options) -> None:
    name = "runtime.png" if flow.set == "cifar10" else f"runtime-{flow.set}.png"
    with picture(options.out / name, 7.4, 5.4) as figure:
        axes: Any = figure.subplots(2, 2, sharex=True, sharey="row")
        for column, task in enumerate(_TASKS):
            ours = [each for each in timed if each.task == task]
            _paint_task(axes[:, column], ours)
            axes[0, column].set_title(f"{task} {_COUNTS[options.size]} images, {flow.set}")
            axes[1, column].set_xlabel("iterations that each layer may take")
        for place in axes[0]:
            place.set_yscale("log", subs=(2, 5))
            place.yaxis.set_major_formatter("{x:g}")
            place.yaxis.set_minor_formatter("{x:g}")
            place.tick_params(axis="y", which="minor", labelsize=7)
        axes[0, 0].set_ylabel("seconds")
        axes[1, 0].set_ylabel("largest error")
        handles, words = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, words, loc="outside lower center", ncols=3, fontsize=8, handlelength=1.5)


def _paint_task(axes: Any, timed: list[Timed]) -> None:
    """Seconds above, and the error that they bought below."""
    tolerances = sorted({each.tolerance for each in timed if each.tolerance is not None}, reverse=True)
    shades = _SHADES[len(_SHADES) - len(tolerances) :]
    for place, quantity in zip(axes, ("seconds", "error"), strict=True):
        for tolerance, shade in zip(tolerances, shades, strict=True):
            line = [each for each in timed if each.tolerance == tolerance]
            limits, values = [each.limit for each in line], [getattr(each, quantity) for each in line]
            words = f"Algorithm 1, tolerance {short(tolerance)}"
            place.plot(limits, values, "o-", color=shade, markersize=3, label=words)
        for each in timed:
            if each.limit is None:
                place.axhline(getattr(each, quantity), color=OURS, linewidth=2, label="certified")
        place.set_yscale("log")
        place.grid(axis="y", color=TRUE, alpha=0.15, linewidth=0.6)
