"""Seven well-separated Gaussians: sinusoidal scales alone learn the staircase that an affine flow cannot."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.benchmarks import Splits
from ..data.toys import COUNT, REACH, Toy, toy
from .items import Options
from .pictures import OTHER, OURS, TRUE, picture
from .recipes import Recipe, recipes
from .record import Figure
from .training import PEERS, chosen_models, folder_of, train

_ROWS = {"full": 200_000, "quick": 100_000, "smoke": 20_000}
_STEPS = {"full": None, "quick": 8_000, "smoke": 1_500}
#: Where the transformation is compared: as far as nearly all of the noise goes.
_INSIDE = 3.0
_GRID = 100_001
_TITLES = {"scales": "D-scales alone", "maf": "MAF"}


class Compared(NamedTuple):
    """A learned density and transformation on a grid, and how far they are from the true ones."""

    log_density: Tensor
    z: Tensor
    kl: float
    rmse: float


def run(options: Options) -> Iterator[Figure]:
    """Learn the mixture with each model: KL from the true density, and RMSE of the transformation."""
    of, shown = toy("gaussians"), dict[str, Compared]()
    known = recipes("gaussians")
    for model in chosen_models("gaussians", known, options):
        for seed in options.seeds:
            compared, figures = _learned(of, model, known[model], seed, options)
            shown.setdefault(model, compared)
            yield from figures
    _paint(of, shown, options)


def _learned(of: Toy, model: str, recipe: Recipe, seed: int, options: Options) -> tuple[Compared, list[Figure]]:
    generator = torch.Generator().manual_seed(seed)
    rows = [of.sample(size, generator) for size in (_ROWS[options.size], 20_000, 1)]
    # Standardised, as any data should be.
    mean, scale = float(rows[0].mean()), float(rows[0].std())
    splits = Splits(*(((part - mean) / scale).numpy() for part in rows))
    trained = train(model, recipe, splits, seed, folder_of(options, "gaussians"), _STEPS[options.size])
    compared = compare(of, trained.flow.double(), mean, scale)
    figures = [
        Figure(
            set="gaussians",
            metric=metric,
            model=model,
            values={seed: value},
            steps=trained.steps,
            seconds=trained.seconds,
            hardware=trained.hardware,
            comparable="no: the paper shows a picture",
            extra={"size": options.size, "recipe": recipe.digest},
        )
        for metric, value in (
            ("KL from the true density, nats", compared.kl),
            (f"RMSE of the transformation to noise, inside +-{_INSIDE:g}", compared.rmse),
        )
    ]
    return compared, figures


def compare(of: Toy, flow: Any, mean: float, scale: float) -> Compared:
    """KL(p | q) by the trapezoid rule, and T of the flow beside the true one, Phi^-1 of the distribution function.

    The flow has learned (x - mean) / scale.
    """
    x, truth, true_z = on_grid(of)
    with torch.no_grad():
        standard = ((x - mean) / scale).unsqueeze(-1)
        log_q = flow().log_prob(standard) - math.log(scale)
        z = _to_noise(flow, standard)
    p = truth.exp()
    kl = float(torch.trapezoid(torch.where(p > 0, p * (truth - log_q), 0.0), x))
    inside = true_z.abs() <= _INSIDE
    rmse = float((z - true_z)[inside].square().mean().sqrt())
    return Compared(log_q, z, kl, rmse)


def on_grid(of: Toy) -> tuple[Tensor, Tensor, Tensor]:
    """Places, the log-density there, and where a normal variable has the same share below it."""
    x = torch.linspace(-of.limit, of.limit, _GRID, dtype=torch.float64)
    assert of.log_prob is not None
    centres = torch.linspace(-REACH, REACH, COUNT, dtype=torch.float64)
    # By the tail that is small, so that nothing cancels.
    below, above = (torch.special.ndtr(sign * (x.unsqueeze(-1) - centres)).mean(-1) for sign in (1, -1))
    z = torch.where(below < 0.5, torch.special.ndtri(below), -torch.special.ndtri(above))
    return x, of.log_prob(x.unsqueeze(-1)), z


def _to_noise(flow: Any, x: Tensor) -> Tensor:
    if flow.bijection is not None:
        z: Tensor = flow.bijection(x)[0].squeeze(-1)
    else:
        z = flow().transform(x).squeeze(-1)
    return z if z[-1] > z[0] else -z  # the normal distribution does not know up from down


def _paint(of: Toy, found: dict[str, Compared], options: Options) -> None:
    x, truth, true_z = on_grid(of)
    with picture(options.out / "gaussians.png", 4.2 * len(found), 5.0) as figure:
        axes: Any = figure.subplots(2, len(found), sharex=True, squeeze=False)
        for (model, compared), (above, below) in zip(found.items(), axes.T, strict=True):
            colour = OTHER if model in PEERS else OURS
            above.fill_between(x, truth.exp(), color=TRUE, alpha=0.25, linewidth=0, label="true")
            above.plot(x, compared.log_density.exp(), color=colour, linewidth=1.2, label="learned")
            top = 1.3 * float(truth.exp().max())  # room for the legend
            above.set(title=f"{_TITLES[model]}: KL {compared.kl:.3g}", ylabel="density", yticks=[], ylim=(0, top))
            below.axhspan(-_INSIDE, _INSIDE, color=TRUE, alpha=0.08, linewidth=0)
            below.plot(x, true_z, color=TRUE, linewidth=3, alpha=0.4, label="true")
            below.plot(x, compared.z, color=colour, linewidth=1.2, label="learned")
            below.set(xlabel="x", ylabel="z", ylim=(-5, 5), title=f"RMSE inside ±{_INSIDE:g}: {compared.rmse:.2g}")
            above.legend(loc="upper right", ncols=2)
            below.legend(loc="upper left")
