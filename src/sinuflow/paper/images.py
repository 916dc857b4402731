"""Table "mnist_cifar10": test bits per dimension of images."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..data.image_sets import IMAGE_SETS, Bytes, ImageSplits
from ..models.image_baseline import histogram_bits
from .comparison import Comparison, Evaluation
from .image_data import is_present, load
from .image_runs import TrainedImages, train_images
from .items import Options
from .recipes import Recipe, recipes
from .record import Result
from .training import Score

#: Images scored at a time, and images that are scored in float64 too.
_BATCH, _CHECKED = 250, 500


class Images(Comparison):
    """The comparison on images."""

    item, metric, examples = "images", "test bits per dimension", "images"
    paper = {"mnist": 1.06, "cifar10": 3.51}  # noqa: RUF012
    datasets = IMAGE_SETS

    def is_present(self, name: str, options: Options) -> bool:
        return is_present(name, options)

    def load(self, name: str, options: Options) -> ImageSplits:
        return load(name, options)

    def evaluate(
        self, name: str, model: str, recipe: Recipe, splits: ImageSplits, seed: int, options: Options
    ) -> Evaluation:
        run = train_images(name, model, splits, seed, options)
        return Evaluation(run.trained, run.recipe, run.validation(splits.val), score(run, splits.test, options.device))

    def comparable(self, name: str, model: str, splits: ImageSplits, options: Options) -> str:
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

    def baselines(self, name: str, splits: ImageSplits, options: Options) -> Iterable[Result]:
        bits = histogram_bits(torch.from_numpy(splits.train), torch.from_numpy(splits.test))
        comparable = "no: another model" if options.size == "full" else self.comparable(name, "", splits, options)
        yield Result(
            name,
            self.metric,
            "independent pixels",
            {None: bits},
            rows=len(splits.test),
            comparable=comparable,
            extra={"size": options.size},
        )


run = Images().run


def score(run: TrainedImages, images: Bytes, device: str) -> Score:
    """Bits per dimension by the density of pixels in float32, and of some images in float64."""
    x = run.logits(torch.from_numpy(images))
    return Score.of(_bits(run, x, device), _bits(run, x[:_CHECKED].double(), device))


@torch.no_grad()
def _bits(run: TrainedImages, x: Tensor, device: str) -> Tensor:
    """The flow has the precision of ``x``; the log-determinant of the pixel map is always float64."""
    with run.on(device, x.dtype) as flow:
        parts = [flow().log_prob(part.to(device)).double().cpu() for part in x.split(_BATCH)]
    return run.pixels.bits_per_dimension(torch.cat(parts), x.double())
