"""Figure "shapes": the toy densities of Grathwohl et al. (2019), the learned densities, and samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.datasets import Splits
from ..data.toys import TOYS, Toy, toy
from ..errors import ArgumentError
from .items import Options
from .plotting import saved_figure
from .record import Result
from .training import chosen_models, train

METRIC = "KL from the true density, nats"
_GRID, _SHOWN = 200, 4_000


def run(options: Options) -> Iterator[Result]:
    """Train on every toy density; report the KL divergence where the true log-density is known."""
    names = options.datasets or tuple(name for name, density in TOYS.items() if density.features == 2)
    wrong = [name for name in names if toy(name).features != 2]
    if wrong:
        raise ArgumentError(f"{wrong[0]} has one dimension: see `sinuflow reproduce gaussians`")
    panels: dict[str, tuple[Tensor, Tensor, float | None]] = {}  # learned density on the grid, samples, divergence
    models, steps = chosen_models("toy", ("today",), options), options.of(full=None, quick=2_500, smoke=150)
    sizes = options.of(  # of the training, validation and test splits
        full=(1_000_000, 20_000, 50_000), quick=(200_000, 10_000, 20_000), smoke=(5_000, 1_000, 2_000)
    )
    for (model, recipe), name, seed in itertools.product(models.items(), names, options.seeds):
        target, generator = toy(name), torch.Generator().manual_seed(seed)
        rows = [target.draw(size, generator) for size in sizes]
        splits = Splits(*(part.float().numpy() for part in rows))
        trained = train(model, recipe, splits, seed, options, name, steps)
        flow = trained.flow.cpu()
        kl = None
        if target.log_prob is not None:
            kl, error = divergence(target, flow, rows[2])
            extra = {"standard_error_over_rows": {str(seed): error}}
            yield from trained.results({METRIC: kl}, extra=extra, rows=len(rows[2]))
        if name not in panels:
            with torch.no_grad():
                density = flow().log_prob(_grid(target).float()).exp()
                samples = flow().sample((_SHOWN,), generator=torch.Generator().manual_seed(seed))
            panels[name] = density, samples, kl
    _plot(panels, options)


def divergence(target: Toy, flow: Any, rows: Tensor) -> tuple[float, float]:
    """KL(p | q) as the mean of log p - log q over rows of p, and its standard error."""
    assert target.log_prob is not None
    with torch.no_grad():
        learned = torch.cat([flow().log_prob(part.float()).double() for part in rows.split(2**14)])
    gap = target.log_prob(rows) - learned  # in float64: rounded to float32, a row may leave the support of p
    return float(gap.mean()), float(gap.std()) / len(gap) ** 0.5


def _grid(target: Toy) -> Tensor:
    """All points of the grid, row by row."""
    line = torch.linspace(-target.limit, target.limit, _GRID, dtype=torch.float64)
    return torch.cartesian_prod(line, line).flip(-1)


def _plot(panels: dict[str, tuple[Tensor, Tensor, float | None]], options: Options) -> None:
    with saved_figure(options.out / "shapes.png", 1.6 * len(panels) + 0.4, 5.2) as figure:
        axes: Any = figure.subplots(3, len(panels), squeeze=False)
        for column, (name, (density, samples, kl)) in zip(axes.T, panels.items(), strict=True):
            limit, true = toy(name).limit, _true_density(toy(name))
            for axis in column:
                axis.set(xlim=(-limit, limit), ylim=(-limit, limit), xticks=[], yticks=[], aspect="equal")
                axis.spines[:].set_visible(False)
                axis.set_facecolor("#0d0887")
            for axis, values in zip(column, (true, density.view(_GRID, _GRID).numpy()), strict=False):
                extent, top = (-limit, limit, -limit, limit), 1.05 * true.max()  # both on the same colour scale
                axis.imshow(values, extent=extent, origin="lower", cmap="plasma", aspect="equal", vmin=0, vmax=top)
            column[2].scatter(*samples.T.numpy(), s=0.5, color="#f0f921", linewidths=0, alpha=0.7)
            column[0].set_title(name)
            if kl is not None:
                column[1].set_xlabel(f"KL {kl:.3f}")
        for axis, label in zip(axes[:, 0], ("true", "learned", "samples"), strict=True):
            axis.set_ylabel(label)


def _true_density(target: Toy) -> np.ndarray[Any, Any]:
    """The density on the grid, or a histogram of samples where it is not known."""
    if target.log_prob is not None:
        return target.log_prob(_grid(target)).exp().view(_GRID, _GRID).numpy()
    samples = target.sample(500_000, torch.Generator().manual_seed(0)).numpy()
    edges = np.linspace(-target.limit, target.limit, _GRID // 2 + 1)
    density: np.ndarray[Any, Any]
    density, _, _ = np.histogram2d(samples[:, 1], samples[:, 0], bins=[edges, edges], density=True)
    return density
