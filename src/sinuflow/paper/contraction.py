r"""Proposition 1: how strong a contraction trained flows are, and what that costs Algorithm 1.

Each sinusoidal scale is :math:`z + G(z)` with a diagonal G, whose Lipschitz constant is therefore the largest
:math:`|\tau_i'(x) - 1|` of any feature; the proposition says that it is at most :math:`|\alpha| < 1`. An iteration of
Algorithm 1 shrinks the error by about that constant, so it slows down without limit as :math:`|\alpha| \to 1`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import SinusoidalFlow, fit
from ..bijections import LDUBlock, SinusoidalLayer
from ..data.toys import toy
from ..errors import ArgumentError
from ..ops.waves import Waves, transform
from . import pictures
from .items import Options
from .record import Figure

SETS = ("gaussians", "checkerboard", "8gaussians")

#: Places between the smallest and the largest number that reach a scale, at which its slope is computed.
_GRID = 20_001
#: Iterations after which Algorithm 1 is given up, and where an impatient user might cut it off.
_PATIENT, _IMPATIENT = 10_000, 100
#: Ten times the paper's, because there are far fewer steps; with little training, |α| stays small.
_LEARNING_RATE = 1e-2
#: An answer that is further off is wrong.
_WRONG = 1e-6

_NAMES = {"fixed_point": "Algorithm 1", "certified": "the certified solver"}


def run(options: Options) -> list[Figure]:
    """Train flows of a few depths, and measure their constants and both solvers."""
    unknown = [name for name in options.sets if name not in SETS]
    if unknown:
        raise ArgumentError(f"there is no set {unknown[0]!r} here; choose of {', '.join(SETS)}")
    figures: list[Figure] = []
    shown: dict[str, Measured] = {}
    depths = {f"{blocks} LDU blocks": blocks for blocks in options.of(full=(4, 16), quick=(4,), smoke=(2,))}
    for model in options.models or depths:
        if model not in depths:
            raise ArgumentError(f"there is no model {model!r} here; choose of {', '.join(depths)}")
        for name in options.sets or SETS:
            start = time.perf_counter()
            found = {seed: _measured(name, depths[model], seed, options) for seed in options.seeds}
            shown[f"{name}, {model}"] = found[options.seeds[0]]
            seconds = time.perf_counter() - start
            figures += _figures(name, model, found, seconds, options)
    _paint(options, shown)
    return figures


@dataclass(frozen=True)
class BlockConstants:
    """Of one block, over the range of what reaches it.

    Attributes:
        scale: the Lipschitz constant of G, the largest of the block's scales.
        bound: the largest |α|, which is proven to be at least that.
        chain: the constant of all scales together less the identity, for which nothing is proven.
    """

    scale: float
    bound: float
    chain: float


@dataclass(frozen=True)
class Attempt:
    """What a solver did, sample by sample."""

    iterations: Tensor
    error: Tensor
    converged: Tensor


@dataclass(frozen=True)
class Measured:
    """One trained flow."""

    nll: float
    blocks: list[BlockConstants]
    solvers: dict[str, Attempt]
    cut: Attempt


def _measured(name: str, blocks: int, seed: int, options: Options) -> Measured:
    flow, generator = _train(name, blocks, seed, options)
    rows = options.of(full=4000, quick=2000, smoke=300)
    with torch.no_grad():
        fresh = toy(name).sample(rows, generator).double()
        # Samples of the flow; their noise is computed anew, so that the answer is known whatever solver drew them.
        noise = torch.randn(rows, flow.features, generator=generator, dtype=torch.float64)
        x = flow.invert(noise, on_failure="return").x
        z, _ = flow.bijection(x)
        return Measured(
            nll=-float(flow().log_prob(fresh).mean()),
            blocks=constants(flow, fresh),
            solvers={
                "fixed_point": attempt(flow, x, z, "fixed_point", _PATIENT),
                "certified": attempt(flow, x, z, "certified"),
            },
            cut=attempt(flow, x, z, "fixed_point", _IMPATIENT),
        )


def _steps(options: Options) -> int:
    return int(options.of(full=3000, quick=3000, smoke=150))


def _train(name: str, blocks: int, seed: int, options: Options) -> tuple[SinusoidalFlow, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    train = toy(name).sample(options.of(full=50_000, quick=20_000, smoke=2_000), generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        flow = SinusoidalFlow(
            train.shape[-1],
            conditioning="shift",
            blocks=blocks,
            hidden=options.of(full=(100,), quick=(64,), smoke=(16,)),
        )
    fit(
        flow,
        train,
        steps=_steps(options),
        batch_size=256,
        learning_rate=_LEARNING_RATE,
        progress=options.progress,
        device=options.device,
        seed=seed,
    )
    return flow.double(), generator


@torch.no_grad()
def constants(flow: SinusoidalFlow, x: Tensor) -> list[BlockConstants]:
    """The constants of every LDU block, over the range that these rows reach in it.

    Example:
        >>> flow = SinusoidalFlow(features=2, blocks=3, hidden=(8,)).double()
        >>> constants(flow, torch.randn(10, 2, dtype=torch.float64))[0]  # a new flow is the identity
        BlockConstants(scale=0.0, bound=0.0, chain=0.0)
    """
    rows, found = x.mT, []
    for block in flow.bijection:
        for part in block if isinstance(block, LDUBlock) else ():
            if isinstance(part, SinusoidalLayer):
                found.append(_constants(part, rows))
            rows, _ = part.transform(rows, None)
    return found


def _constants(part: SinusoidalLayer, rows: Tensor) -> BlockConstants:
    low, high = rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)
    grid = low + (high - low) * torch.linspace(0, 1, _GRID, dtype=rows.dtype)
    total = torch.zeros_like(grid)
    scale = bound = 0.0
    for waves in _each(part.constrained(None)):
        grid, log_slope = transform(grid, waves)
        total += log_slope
        scale = max(scale, float(log_slope.expm1().abs().max()))
        bound = max(bound, float(torch.hypot(waves.cosine, waves.sine).sum(-2).max()))
    return BlockConstants(scale, bound, float(total.expm1().abs().max()))


def _each(stack: Waves) -> Iterator[Waves]:
    """The transformers of a stack, one by one."""
    return (Waves(*parts) for parts in zip(*stack, strict=True))


def attempt(flow: SinusoidalFlow, x: Tensor, z: Tensor, solver: Any, limit: int | None = None) -> Attempt:
    """Find x again from z, at the tolerance that the solver has by default."""
    found = flow.invert(z, solver=solver, max_iterations=limit, on_failure="return")
    return Attempt(found.iterations, (found.x - x).abs().amax(-1), found.converged)


# ---------------------------------------------------------------- what is reported


def _numbers(found: Measured) -> dict[str, float]:
    wrong = found.cut.error > _WRONG
    numbers = {
        "test NLL, nats": found.nll,
        "Lipschitz constant of G, largest over blocks": max(block.scale for block in found.blocks),
        "proven bound of it, largest over blocks": max(block.bound for block in found.blocks),
        "constant of a block's scales together, largest over blocks": max(block.chain for block in found.blocks),
    }
    for solver, tried in found.solvers.items():
        name, iterations = _NAMES[solver], tried.iterations.double()
        numbers[f"iterations of {name}, mean"] = float(iterations.mean())
        numbers[f"iterations of {name}, largest"] = float(iterations.max())
        numbers[f"error of {name}, largest"] = float(tried.error.max())
        numbers[f"samples that {name} gave up, percent"] = _percent(~tried.converged)
    numbers[f"samples wrong after {_IMPATIENT} iterations of Algorithm 1, percent"] = _percent(wrong)
    numbers["of all samples, wrong and said to have converged, percent"] = _percent(wrong & found.cut.converged)
    return numbers


def _percent(which: Tensor) -> float:
    return 100 * float(which.double().mean())


def _figures(name: str, model: str, found: dict[int, Measured], seconds: float, options: Options) -> Iterator[Figure]:
    numbers = {seed: _numbers(measured) for seed, measured in found.items()}
    first = found[options.seeds[0]]
    for metric in next(iter(numbers.values())):
        yield Figure(
            name,
            metric,
            model,
            {seed: each[metric] for seed, each in numbers.items()},
            rows=len(first.cut.error),
            steps=_steps(options),
            seconds=seconds,
            extra={"learning_rate": _LEARNING_RATE},
        )


def _paint(options: Options, shown: dict[str, Measured]) -> None:
    with pictures.picture(options.out / "contraction.png", 6.25, 0.8 + 1.4 * len(shown)) as figure:
        axes = figure.subplots(len(shown), 2, squeeze=False, width_ratios=(1, 1.25))
        most = max(int(tried.iterations.max()) for found in shown.values() for tried in found.solvers.values())
        for (left, right), (title, found) in zip(axes, shown.items(), strict=True):
            left.set_title(title, loc="left")
            _paint_constants(left, found.blocks)
            _paint_iterations(right, found.solvers, most)
        handles = [handle for each in axes[0] for handle in each.get_legend_handles_labels()[0]]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=8, handlelength=1.2)
        axes[-1, 0].set_xlabel("block")
        axes[-1, 1].set_xlabel("iterations")


def _paint_constants(axes: Any, blocks: list[BlockConstants]) -> None:
    places = range(1, len(blocks) + 1)
    axes.axhline(1, color=pictures.TRUE, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.bar(places, [block.scale for block in blocks], 0.6, color=pictures.OURS, label="Lipschitz constant of $G$")
    starts, ends = [place - 0.3 for place in places], [place + 0.3 for place in places]
    axes.hlines([block.bound for block in blocks], starts, ends, color="black", label=r"its bound $|\alpha|$")
    axes.set_ylim(0, 1.08)
    axes.set_yticks([0, 0.5, 1])
    axes.set_xticks(places if len(blocks) <= 8 else range(1, len(blocks) + 1, 3))


def _paint_iterations(axes: Any, solvers: dict[str, Attempt], most: int) -> None:
    edges = torch.logspace(0, math.log10(2 * most), 60, dtype=torch.float64)
    for solver, colour in (("fixed_point", pictures.OTHER), ("certified", "#7fb2d9")):
        counts, _ = torch.histogram(solvers[solver].iterations.double(), edges)
        # Each to its own peak: one of them has all samples in one place, beside which the other would vanish.
        axes.stairs(counts / counts.max(), edges, fill=True, color=colour, label=_NAMES[solver])
    axes.set_xscale("log")
    axes.set_xlim(1, 2 * most)
    axes.set_ylim(0, 1.08)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(_IMPATIENT, color=pictures.TRUE, linewidth=0.9, linestyle=(0, (4, 3)))
