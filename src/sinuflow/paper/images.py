"""Table "mnist_cifar10": test bits per dimension of images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..data.image_sets import IMAGE_SETS, ImageSplits
from ..models.defaults import Recipe
from ..models.image_baseline import histogram_bits
from .comparison import Comparison, Evaluation
from .image_data import is_present, load
from .image_runs import TrainedImages, train_images
from .items import Options
from .recipes import recipes
from .record import Result, results
from .training import Score

#: Images scored at a time, and images that are scored in float64 too.
_BATCH, _CHECKED = 250, 500


METRIC = "test bits per dimension"


def evaluate(name: str, model: str, recipe: Recipe, splits: ImageSplits, seed: int, options: Options) -> Evaluation:
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


def comparable(name: str, model: str, splits: ImageSplits, options: Options) -> str:
    """Whether a result is comparable with the paper's."""
    if options.size == "smoke":
        return "no: a smaller run, on synthetic images"
    if options.size == "quick":
        return "no: a smaller run, on images of half the size"
    if tuple(len(part) for part in splits) != IMAGE_SETS[name].sizes:
        return "no: other images than the published ones"
    reason = IMAGE_SETS[name].comparable
    if model == "paper":
        return reason
    flow, of_paper = (recipes(name)[which].flow for which in (model, "paper"))
    larger = "" if flow | {"conditioning": None} == of_paper | {"conditioning": None} else "a larger flow, "
    affine = "affine conditioning, " if flow.get("conditioning") == "affine" else ""
    return f"{reason}; {larger}{affine}other training settings"


def baselines(name: str, splits: ImageSplits, options: Options) -> list[Result]:
    """The histogram of every pixel."""
    bits = histogram_bits(torch.from_numpy(splits.train), torch.from_numpy(splits.test))
    reason = "no: another model" if options.size == "full" else comparable(name, "", splits, options)
    fields: dict[str, Any] = {"rows": len(splits.test), "comparable": reason, "extra": {"size": options.size}}
    return results({METRIC: bits}, name, "independent pixels", None, **fields)


PAPER = {"mnist": 1.06, "cifar10": 3.51}
run = Comparison("images", METRIC, "images", PAPER, IMAGE_SETS, is_present, load, evaluate, comparable, baselines).run
