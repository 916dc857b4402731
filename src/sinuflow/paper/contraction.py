r"""Proposition 1: the contraction constants of trained flows, and what they cost Algorithm 1.

Each sinusoidal layer is :math:`z + G(z)` with a diagonal G, whose Lipschitz constant is therefore the largest
:math:`|\tau_i'(x) - 1|` of any feature; the proposition says that it is at most :math:`|\alpha| < 1`. An iteration of
Algorithm 1 shrinks the error by about that constant, so it slows down without limit as :math:`|\alpha| \to 1`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import SinusoidalFlow, fit
from ..bijections import LDUBlock, SinusoidalLayer
from ..data.datasets import find
from ..data.toys import toy
from ..ops.waves import Waves, transform
from ..solvers.result import Inversion
from .items import Options
from .plotting import DASHED, OTHER, OURS, TRUE, saved_figure
from .record import Result, percent, results

DATASETS = ("gaussians", "checkerboard", "8gaussians")

#: Grid points over the range of a layer's inputs, at which its slope is computed.
_GRID = 20_001
#: Limits on the iterations of Algorithm 1: one that it hardly reaches, and one that users might choose.
_MAX_ITERATIONS, _FEW_ITERATIONS = 10_000, 100
#: Ten times the paper's, because there are far fewer steps; with little training, |α| stays small.
_LEARNING_RATE = 1e-2
#: A solution with a larger error is wrong.
_TOLERANCE = 1e-6


class BlockConstants(NamedTuple):
    """Constants of one block over the range of its inputs."""

    layer: float  # the largest Lipschitz constant of G of any of the block's layers
    bound: float  # the largest |α|, which bounds it
    block: float  # the Lipschitz constant of all layers together minus the identity, which nothing bounds


#: The result of a solver, and its error for every sample.
Attempt = tuple[Inversion, Tensor]


def run(options: Options) -> Iterator[Result]:
    """Train flows of a few depths; measure their constants, and both solvers."""
    depths = {f"{blocks} LDU blocks": blocks for blocks in options.of(full=(4, 16), quick=(4,), smoke=(2,))}
    models, datasets = options.models or tuple(depths), options.datasets or DATASETS
    for model, name in itertools.product(models, datasets):  # refuses unknown ones before anything is trained
        find(depths, model, "model")
        find(dict.fromkeys(DATASETS), name, "dataset")
    shown: dict[str, tuple[list[BlockConstants], dict[str, Attempt]]] = {}
    steps, rows = options.of(full=3000, quick=3000, smoke=150), options.of(full=4000, quick=2000, smoke=300)
    for model, name, seed in itertools.product(models, datasets, options.seeds):
        start = time.perf_counter()
        flow, test, noise = _train(name, depths[model], seed, steps, rows, options)
        blocks, solvers, metrics = _measure(flow, test, noise)
        shown.setdefault(f"{name}, {model}", (blocks, solvers))
        seconds = time.perf_counter() - start
        extra = {"learning_rate": _LEARNING_RATE}
        yield from results(metrics, name, model, seed, rows=rows, steps=steps, seconds=seconds, extra=extra)
    _plot(options, shown)


def _train(
    name: str, blocks: int, seed: int, steps: int, rows: int, options: Options
) -> tuple[SinusoidalFlow, Tensor, Tensor]:
    """A trained flow in float64, with test rows and noise."""
    generator = torch.Generator().manual_seed(seed)
    train = toy(name).sample(options.of(full=50_000, quick=20_000, smoke=2_000), generator)
    hidden = options.of(full=(100,), quick=(64,), smoke=(16,))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        flow = SinusoidalFlow(train.shape[-1], conditioning="shift", blocks=blocks, hidden=hidden)
    common: dict[str, Any] = {"seed": seed, "progress": options.progress, "device": options.device}
    fit(flow, train, steps=steps, batch_size=256, learning_rate=_LEARNING_RATE, **common)
    test = toy(name).sample(rows, generator).double()
    return flow.double(), test, torch.randn(rows, flow.features, generator=generator, dtype=torch.float64)


@torch.no_grad()
def _measure(
    flow: SinusoidalFlow, test: Tensor, noise: Tensor
) -> tuple[list[BlockConstants], dict[str, Attempt], dict[str, float]]:
    # The noise is recomputed from the samples, so that the solution is known independently of the solver.
    x = flow.invert(noise, on_failure="return").x
    z, _ = flow.bijection(x)
    blocks = constants(flow, test)
    solvers = {
        "Algorithm 1": attempt(flow, x, z, "fixed_point", _MAX_ITERATIONS),
        "the certified solver": attempt(flow, x, z, "certified"),
    }
    few, error = attempt(flow, x, z, "fixed_point", _FEW_ITERATIONS)
    wrong = error > _TOLERANCE
    metrics = {
        "test NLL, nats": -float(flow().log_prob(test).mean()),
        "Lipschitz constant of G, largest over blocks": max(block.layer for block in blocks),
        "proven bound of it, largest over blocks": max(block.bound for block in blocks),
        "constant of a block's scales together, largest over blocks": max(block.block for block in blocks),
    }
    for name, (inverse, error) in solvers.items():
        metrics[f"iterations of {name}, mean"] = float(inverse.iterations.double().mean())
        metrics[f"iterations of {name}, largest"] = float(inverse.iterations.max())
        metrics[f"error of {name}, largest"] = float(error.max())
        metrics[f"samples that {name} gave up, percent"] = percent(~inverse.converged)
    metrics[f"samples wrong after {_FEW_ITERATIONS} iterations of Algorithm 1, percent"] = percent(wrong)
    metrics["of all samples, wrong and said to have converged, percent"] = percent(wrong & few.converged)
    return blocks, solvers, metrics


@torch.no_grad()
def constants(flow: SinusoidalFlow, x: Tensor) -> list[BlockConstants]:
    """The constants of every LDU block over the range of its inputs for these rows."""
    rows, blocks = x.mT, []
    for block in flow.bijection:
        for part in block if isinstance(block, LDUBlock) else ():
            if isinstance(part, SinusoidalLayer):
                blocks.append(_constants(part, *rows.aminmax(dim=-1, keepdim=True)))
            rows, _ = part.transform(rows, None)
    return blocks


def _constants(part: SinusoidalLayer, low: Tensor, high: Tensor) -> BlockConstants:
    grid = low + (high - low) * torch.linspace(0, 1, _GRID, dtype=low.dtype)
    total = torch.zeros_like(grid)
    layer = bound = 0.0
    for waves in itertools.starmap(Waves, zip(*part.constrained(None), strict=True)):  # transformer by transformer
        grid, log_slope = transform(grid, waves)
        total += log_slope
        layer = max(layer, float(log_slope.expm1().abs().max()))
        bound = max(bound, float(torch.hypot(waves.cosine, waves.sine).sum(-2).max()))
    return BlockConstants(layer, bound, float(total.expm1().abs().max()))


def attempt(flow: SinusoidalFlow, x: Tensor, z: Tensor, solver: Any, limit: int | None = None) -> Attempt:
    """Solve for x, given z, with the solver's default tolerances."""
    inverse = flow.invert(z, solver=solver, max_iterations=limit, on_failure="return")
    return inverse, (inverse.x - x).abs().amax(-1)


def _plot(options: Options, shown: dict[str, tuple[list[BlockConstants], dict[str, Attempt]]]) -> None:
    with saved_figure(options.out / "contraction.png", 6.25, 0.8 + 1.4 * len(shown)) as figure:
        axes = figure.subplots(len(shown), 2, squeeze=False, width_ratios=(1, 1.25))
        most = max(int(inverse.iterations.max()) for _, solvers in shown.values() for inverse, _ in solvers.values())
        for (left, right), (title, (blocks, solvers)) in zip(axes, shown.items(), strict=True):
            left.set_title(title, loc="left")
            _plot_constants(left, blocks)
            _plot_iterations(right, solvers, most)
        handles = [handle for each in axes[0] for handle in each.get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=8, handlelength=1.2)
        axes[-1, 0].set_xlabel("block")
        axes[-1, 1].set_xlabel("iterations")


def _plot_constants(axes: Any, blocks: list[BlockConstants]) -> None:
    places = range(1, len(blocks) + 1)
    axes.axhline(1, color=TRUE, **DASHED)
    axes.bar(places, [block.layer for block in blocks], 0.6, color=OURS, label="Lipschitz constant of $G$")
    starts, ends = [place - 0.3 for place in places], [place + 0.3 for place in places]
    axes.hlines([block.bound for block in blocks], starts, ends, color="black", label=r"its bound $|\alpha|$")
    axes.set(ylim=(0, 1.08), yticks=[0, 0.5, 1], xticks=places if len(blocks) <= 8 else places[::3])


def _plot_iterations(axes: Any, solvers: dict[str, Attempt], most: int) -> None:
    edges = torch.logspace(0, math.log10(2 * most), 60, dtype=torch.float64)
    for (name, (inverse, _)), colour in zip(solvers.items(), (OTHER, "#7fb2d9"), strict=True):
        counts, _ = torch.histogram(inverse.iterations.double(), edges)
        # Each scaled to its own peak, or a solver with one common number of iterations would hide the other.
        axes.stairs(counts / counts.max(), edges, fill=True, color=colour, label=name)
    axes.set(xscale="log", xlim=(1, 2 * most), ylim=(0, 1.08), yticks=[])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(_FEW_ITERATIONS, color=TRUE, **DASHED)
