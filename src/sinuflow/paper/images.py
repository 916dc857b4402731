"""Table "mnist_cifar10": test bits per dimension of images."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.datasets import Splits
from ..data.image_sets import IMAGE_SETS
from ..models.defaults import Recipe
from ..models.image_fitting import histogram_bits
from .comparison import Comparison, Evaluation
from .image_data import load
from .image_runs import TrainedImages, train_images
from .items import Options
from .training import Score

#: Images scored at a time, and images that are scored in float64 too.
_BATCH, _CHECKED = 250, 500


def evaluate(name: str, model: str, recipe: Recipe, splits: Splits, seed: int, options: Options) -> Evaluation:
    """Train a flow by the recipe for the size of the run, and score it."""
    run = train_images(name, model, splits, seed, options)
    x = run.logits(torch.from_numpy(splits.test))
    score = Score.of(_bits(run, x, options.device), _bits(run, x[:_CHECKED].double(), options.device))
    return Evaluation(run.trained, run.recipe, run.validation(splits.val), score)


@torch.no_grad()
def _bits(run: TrainedImages, x: Tensor, device: str) -> Tensor:
    """Bits per dimension in the precision of ``x``; the log-determinant of the pixel map is always float64."""
    with run.on(device, x.dtype) as flow:
        parts = [flow().log_prob(part.to(device)).double().cpu() for part in x.split(_BATCH)]
    return run.pixels.bits_per_dimension(torch.cat(parts), x.double())


PAPER = {"mnist": 1.06, "cifar10": 3.51}
COMPARISON = Comparison(
    "images",
    "test bits per dimension",
    PAPER,
    IMAGE_SETS,
    load,
    evaluate,
    baseline=lambda splits: histogram_bits(torch.from_numpy(splits.train), torch.from_numpy(splits.test)),
)
run = COMPARISON.run
