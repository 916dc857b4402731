"""Table "mnist_cifar10": test bits per dimension of images."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.datasets import Splits
from ..data.image_sets import IMAGE_SETS
from ..models.defaults import Recipe
from ..models.image_baseline import histogram_bits
from ..training import ImageRows
from .comparison import Comparison, Evaluation
from .image_data import load
from .image_runs import ImageRun, train_images
from .items import Options

#: Images scored at a time, and images that are scored in float64 too.
_BATCH, _CHECKED = 250, 500


def evaluate(name: str, model: str, recipe: Recipe, splits: Splits, seed: int, options: Options) -> Evaluation:
    """Train a flow by the recipe for the size of the run, and score it."""
    run = train_images(name, model, splits, seed, options)
    x = run.logits(torch.from_numpy(splits.test))
    test, exact = (_bits(run, part) for part in (x, x[:_CHECKED].double()))
    validation = ImageRows(torch.from_numpy(splits.val), run.pixels).bits_per_dimension(run.outcome["best_nll"])
    return Evaluation(run, validation, test, exact)


@torch.no_grad()
def _bits(run: ImageRun, x: Tensor) -> Tensor:
    """Bits per dimension in the precision of ``x``; the log-determinant of the pixel map is always float64."""
    with run.on_device(x.dtype) as flow:
        parts = [flow().log_prob(part.to(run.options.device)).double().cpu() for part in x.split(_BATCH)]
    return run.pixels.bits_per_dimension(torch.cat(parts), x.double())


COMPARISON = Comparison(
    "test bits per dimension",
    {"mnist": 1.06, "cifar10": 3.51},
    IMAGE_SETS,
    load,
    evaluate,
    baseline=lambda splits: histogram_bits(torch.from_numpy(splits.train), torch.from_numpy(splits.test)),
)
run = COMPARISON.run
