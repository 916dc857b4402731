"""Figure "7gaussians": D-scales alone learn a mixture of well-separated Gaussians, which an affine flow cannot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.datasets import Splits
from ..data.toys import MEANS, Toy, toy
from .items import Options
from .plotting import OTHER, OURS, TRUE, saved_figure
from .record import Result
from .training import PEERS, chosen_models, train

#: The maps to noise are compared where |z| is at most this.
_INSIDE = 3.0
_GRID = 100_001
_TITLES = {"scales": "D-scales alone", "maf": "MAF"}


class Learned(NamedTuple):
    """A learned density and map to noise on a grid, and their distances from the true ones."""

    log_density: Tensor
    z: Tensor
    kl: float
    rmse: float


def run(options: Options) -> Iterator[Result]:
    """Train each model on the mixture; report the KL divergence, and the RMSE of the map to noise."""
    target = toy("gaussians")
    rows = options.of(full=200_000, quick=100_000, smoke=20_000)
    steps = options.of(full=None, quick=8_000, smoke=1_500)
    models = chosen_models("gaussians", None, options)
    shown: dict[str, Learned] = {}
    for (model, recipe), seed in itertools.product(models.items(), options.seeds):
        generator = torch.Generator().manual_seed(seed)
        parts = [target.sample(size, generator) for size in (rows, 20_000, 1)]
        mean, std = float(parts[0].mean()), float(parts[0].std())
        splits = Splits(*(((part - mean) / std).numpy() for part in parts))
        trained = train(model, recipe, splits, seed, options, "gaussians", steps)
        learned = compare(target, trained.flow.double(), mean, std)
        shown.setdefault(model, learned)
        metrics = {
            "KL from the true density, nats": learned.kl,
            f"RMSE of the transformation to noise, inside +-{_INSIDE:g}": learned.rmse,
        }
        yield from trained.results(metrics)
    _plot(target, shown, options)


def compare(target: Toy, flow: Any, mean: float, std: float) -> Learned:
    """KL(p | q) by the trapezoidal rule, and the map to noise of a flow of (x - mean) / std beside the true one."""
    x, truth, true_z = on_grid(target)
    with torch.no_grad():
        standardized = ((x - mean) / std).unsqueeze(-1)
        log_q = flow().log_prob(standardized) - math.log(std)
        z = flow().transform(standardized) if flow.bijection is None else flow.bijection(standardized)[0]
        z = z.squeeze(-1)
    z = z if z[-1] > z[0] else -z  # the base distribution is symmetric
    p, inside = truth.exp(), true_z.abs() <= _INSIDE
    kl = float(torch.trapezoid(torch.where(p > 0, p * (truth - log_q), 0.0), x))
    rmse = float((z - true_z)[inside].square().mean().sqrt())
    return Learned(log_q, z, kl, rmse)


def on_grid(target: Toy) -> tuple[Tensor, Tensor, Tensor]:
    """A grid, the log-density on it, and the increasing map to noise, Φ⁻¹ of the distribution function."""
    x = torch.linspace(-target.limit, target.limit, _GRID, dtype=torch.float64)
    assert target.log_prob is not None
    # From the smaller tail, to avoid cancellation.
    below, above = (torch.special.ndtr(sign * (x.unsqueeze(-1) - MEANS)).mean(-1) for sign in (1, -1))
    z = torch.where(below < 0.5, torch.special.ndtri(below), -torch.special.ndtri(above))
    return x, target.log_prob(x.unsqueeze(-1)), z


def _plot(target: Toy, shown: dict[str, Learned], options: Options) -> None:
    x, truth, true_z = on_grid(target)
    with saved_figure(options.out / "gaussians.png", 4.2 * len(shown), 5.0) as figure:
        axes: Any = figure.subplots(2, len(shown), sharex=True, squeeze=False)
        for (model, learned), (above, below) in zip(shown.items(), axes.T, strict=True):
            colour = OTHER if model in PEERS else OURS
            above.fill_between(x, truth.exp(), color=TRUE, alpha=0.25, linewidth=0, label="true")
            above.plot(x, learned.log_density.exp(), color=colour, linewidth=1.2, label="learned")
            top = 1.3 * float(truth.exp().max())  # leaves room for the legend
            above.set(title=f"{_TITLES[model]}: KL {learned.kl:.3g}", ylabel="density", yticks=[], ylim=(0, top))
            below.axhspan(-_INSIDE, _INSIDE, color=TRUE, alpha=0.08, linewidth=0)
            below.plot(x, true_z, color=TRUE, linewidth=3, alpha=0.4, label="true")
            below.plot(x, learned.z, color=colour, linewidth=1.2, label="learned")
            below.set(xlabel="x", ylabel="z", ylim=(-5, 5), title=f"RMSE inside ±{_INSIDE:g}: {learned.rmse:.2g}")
            above.legend(loc="upper right", ncols=2)
            below.legend(loc="upper left")
