"""The toy densities of Grathwohl et al. (2019): true, learned, and samples of what was learned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.benchmarks import Splits
from ..data.toys import TOYS, Toy, toy
from ..errors import ArgumentError
from .items import Options
from .pictures import picture
from .recipes import Recipe, recipes
from .record import Figure
from .training import chosen_models, folder_of, train

METRIC = "KL from the true density, nats"
_TRAIN = {"full": 1_000_000, "quick": 200_000, "smoke": 5_000}
_VALIDATE = {"full": 20_000, "quick": 10_000, "smoke": 1_000}
_TEST = {"full": 50_000, "quick": 20_000, "smoke": 2_000}
_STEPS = {"full": None, "quick": 2_500, "smoke": 150}
_GRID, _SHOWN = 200, 4_000


@dataclass(frozen=True)
class _Panel:
    """What a column of the picture shows."""

    toy: Toy
    density: Tensor  # on the grid, as learned
    samples: Tensor
    kl: float | None


def run(options: Options) -> Iterator[Figure]:
    """Learn every toy density; where its own log-density is known, how far the learned one is from it."""
    names = options.sets or tuple(name for name, found in TOYS.items() if found.features == 2)
    wrong = [name for name in names if toy(name).features != 2]
    if wrong:
        raise ArgumentError(f"{wrong[0]} has one dimension: see `sinuflow reproduce gaussians`")
    known, panels = recipes("toy"), list[_Panel]()
    models = chosen_models("toy", ("today",), options)
    for model in models:
        for name in names:
            for seed in options.seeds:
                panel, figure = _learn(toy(name), model, known[model], seed, options)
                if model == models[0] and seed == options.seeds[0]:
                    panels.append(panel)
                if figure is not None:
                    yield figure
    _paint(panels, options)


def _learn(of: Toy, model: str, recipe: Recipe, seed: int, options: Options) -> tuple[_Panel, Figure | None]:
    generator = torch.Generator().manual_seed(seed)
    rows = [of.draw(size[options.size], generator) for size in (_TRAIN, _VALIDATE, _TEST)]
    splits = Splits(*(part.float().numpy() for part in rows))
    trained = train(model, recipe, splits, seed, folder_of(options, of.name), _STEPS[options.size])
    flow = trained.flow.cpu()
    with torch.no_grad():
        density = flow().log_prob(_grid(of).float()).exp()
        samples = flow().sample((_SHOWN,), generator=torch.Generator().manual_seed(seed))
    panel = _Panel(of, density, samples, None)
    if of.log_prob is None:
        return panel, None
    kl, error = divergence(of, flow, rows[2])
    figure = Figure(
        set=of.name,
        metric=METRIC,
        model=model,
        values={seed: kl},
        rows=len(rows[2]),
        steps=trained.steps,
        seconds=trained.seconds,
        hardware=trained.hardware,
        comparable="no: the paper shows a picture",
        extra={"standard_error_over_rows": {str(seed): error}, "size": options.size, "recipe": recipe.digest},
    )
    return replace(panel, kl=kl), figure


def divergence(of: Toy, flow: Any, rows: Tensor) -> tuple[float, float]:
    """KL(p | q) as the mean of log p - log q over rows of p, and its standard error.

    The rows are float64: rounded to float32, one could step over an edge of p.
    """
    assert of.log_prob is not None
    with torch.no_grad():
        learned = torch.cat([flow().log_prob(part.float()).double() for part in rows.split(2**14)])
    gap = of.log_prob(rows) - learned
    return float(gap.mean()), float(gap.std()) / len(gap) ** 0.5


def _grid(of: Toy) -> Tensor:
    line = torch.linspace(-of.limit, of.limit, _GRID, dtype=torch.float64)
    up, across = torch.meshgrid(line, line, indexing="ij")
    return torch.stack([across, up], -1).flatten(0, 1)


def _paint(panels: list[_Panel], options: Options) -> None:
    with picture(options.out / "shapes.png", 1.6 * len(panels) + 0.4, 5.2) as figure:
        axes: Any = figure.subplots(3, len(panels), squeeze=False)
        for column, panel in enumerate(panels):
            limit, name = panel.toy.limit, panel.toy.name
            for axis in axes[:, column]:
                axis.set(xlim=(-limit, limit), ylim=(-limit, limit), xticks=[], yticks=[], aspect="equal")
                axis.spines[:].set_visible(False)
                axis.set_facecolor("#0d0887")
            extent, truth = (-limit, limit, -limit, limit), _truth(panel)
            shown = {"extent": extent, "origin": "lower", "cmap": "plasma", "aspect": "equal", "vmin": 0}
            shown["vmax"] = 1.05 * truth.max()  # the same colours for both
            axes[0, column].imshow(truth, **shown)
            axes[1, column].imshow(panel.density.view(_GRID, _GRID).numpy(), **shown)
            axes[2, column].scatter(*panel.samples.T.numpy(), s=0.5, color="#f0f921", linewidths=0, alpha=0.7)
            axes[0, column].set_title(name)
            if panel.kl is not None:
                axes[1, column].set_xlabel(f"KL {panel.kl:.3f}")
        for axis, words in zip(axes[:, 0], ("true", "learned", "samples"), strict=True):
            axis.set_ylabel(words)


def _truth(panel: _Panel) -> np.ndarray[Any, Any]:
    """The true density on the grid, or a histogram where it is not known."""
    if panel.toy.log_prob is not None:
        return panel.toy.log_prob(_grid(panel.toy)).exp().view(_GRID, _GRID).numpy()
    generator = torch.Generator().manual_seed(0)
    many = panel.toy.sample(500_000, generator).numpy()
    edges = np.linspace(-panel.toy.limit, panel.toy.limit, _GRID // 2 + 1)
    density: np.ndarray[Any, Any]
    density, _, _ = np.histogram2d(many[:, 1], many[:, 0], bins=[edges, edges], density=True)
    return density
