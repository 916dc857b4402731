"""Table "mnist_cifar10": test bits per dimension of images, and the trained flows that other items show."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..bijections.pixels import PixelMap
from ..data.datasets import Splits
from ..data.image_sets import IMAGE_SETS, image_set
from ..errors import ArgumentError
from ..flows.sinusoidal import SinusoidalFlow
from ..models.defaults import Recipe
from ..models.image_fitting import histogram_bits
from ..training import ImageRows
from .comparison import Comparison, Evaluation
from .items import Options
from .recipes import recipes
from .record import Result, hardware
from .training import RecipeRun, chosen_models, is_present

#: Images of each split in smaller runs.
_COUNTS = {"quick": (8_000, 1_000, 1_000), "smoke": (500, 200, 200)}
#: Changes to a recipe's flow and training in smaller runs.
_FLOWS: dict[str, dict[str, Any]] = {
    "quick": {"blocks": 4, "channels": 8},
    "smoke": {"blocks": 2, "scales": 2, "channels": 4, "residual_blocks": 1},
}
_TRAINING: dict[str, dict[str, Any]] = {
    "quick": {"batch_size": 64, "validate_every": 100, "ema": 0.99},
    "smoke": {"batch_size": 64, "validate_every": 50, "ema": 0.95, "learning_rate": 5e-3},
}
_STEPS = {"full": None, "quick": 600, "smoke": 150}
#: Models in the order in which their runs are looked for.
_MODELS = ("today", "stable", "affine", "paper", "best")
#: Images scored at a time, and images that are scored in float64 too.
_BATCH, _CHECKED = 250, 500


def shape_of(name: str, options: Options) -> tuple[int, int, int]:
    """(C, H, W) of the images of a run."""
    channels, height, width = image_set(name).shape
    return channels, *options.of(full=(height, width), quick=(height // 2, width // 2), smoke=(8, 8))


def load(name: str, options: Options) -> Splits:
    """All images of a run."""
    shape = shape_of(name, options)
    if options.size == "smoke":
        return Splits(*(synthetic(n, shape, seed).numpy() for seed, n in enumerate(_COUNTS["smoke"])))
    splits = image_set(name).load(options.data)
    if options.size == "full":
        return splits
    parts = zip(splits, _COUNTS[options.size], strict=True)
    return Splits(*(downsample(torch.from_numpy(part[:n]), shape).numpy() for part, n in parts))


def downsample(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Byte images of a smaller shape (C, H, W), by averaging squares of pixels."""
    side = images.shape[-1] // shape[-1]
    if tuple(images.shape[1:]) != (shape[0], side * shape[1], side * shape[2]):
        raise ArgumentError(f"images of shape {tuple(images.shape[1:])} cannot be downsampled to {tuple(shape)}")
    if side == 1:
        return images
    # In parts: CIFAR-10 as float32 would take gigabytes.
    return torch.cat([F.avg_pool2d(part.float(), side).round().to(torch.uint8) for part in images.split(1000)])


def synthetic(count: int, shape: Sequence[int], seed: int = 0) -> Tensor:
    """Byte images of a soft disc on a gradient, whose pixels depend on each other."""
    channels, height, width = shape
    generator = torch.Generator().manual_seed(seed)

    def uniform(*size: int) -> Tensor:
        return torch.rand((count, *size, 1, 1), generator=generator)

    y, x = torch.linspace(0, 1, height).view(-1, 1), torch.linspace(0, 1, width)
    distance = ((y - uniform(1)) ** 2 + (x - uniform(1)) ** 2).sqrt()
    disc = torch.sigmoid((0.2 + 0.2 * uniform(1) - distance) / 0.05)
    background = 0.3 * uniform(channels) + 0.2 * y * uniform(channels)
    image = background * (1 - disc) + (0.5 + 0.4 * uniform(channels)) * disc
    noise = 0.02 * torch.randn((count, channels, height, width), generator=generator)
    return (255 * (image + noise)).round().clamp(0, 255).to(torch.uint8)


class ImageRun(RecipeRun):
    """A training run of an image flow."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return tuple(self.flow.config["image"])

    @property
    def pixels(self) -> PixelMap:
        """The map from bytes to logits."""
        return PixelMap(image_set(self.dataset).alpha)

    @contextlib.contextmanager
    def on_device(self, dtype: torch.dtype = torch.float32) -> Iterator[SinusoidalFlow]:
        """The flow on the device of the options; afterwards it is back on the CPU, in float32."""
        try:
            yield self.flow.to(self.options.device, dtype)
        finally:
            self.flow.to("cpu", torch.float32)

    def test_images(self) -> Tensor:
        """Test images in the flow's shape."""
        if self.options.size == "smoke":
            return torch.from_numpy(load(self.dataset, self.options).test)
        return downsample(torch.from_numpy(image_set(self.dataset).load(self.options.data).test), self.shape)

    def logits(self, images: Tensor) -> Tensor:
        """The flow's input for byte images, always with the same dequantization noise."""
        return torch.cat([batch.x for batch in ImageRows(images, self.pixels).in_order(1000)])

    def images(self, x: Tensor) -> Tensor:
        """Byte images of the flow's output; NaN becomes black."""
        return self.pixels.to_bytes(x.nan_to_num(nan=-math.inf)).view(-1, *self.shape)

    def measured(self, metrics: dict[str, float], comparable: str, **fields: Any) -> list[Result]:
        """Results measured on this machine, which need not be that of the training."""
        fields = {"seconds": None, "hardware": hardware(self.options.device)} | fields
        return self.results(metrics, comparable, **fields)


def recipe_of(name: str, model: str, options: Options) -> Recipe:
    """A recipe, with a smaller flow and fewer steps for smaller runs."""
    recipe = recipes(name)[model]
    training = {name: value for name, value in _TRAINING.get(options.size, {}).items() if name in recipe.training}
    return Recipe(recipe.flow | _FLOWS.get(options.size, {}), recipe.training | training)


def train(name: str, model: str, images: Splits, seed: int, options: Options) -> ImageRun:
    """Train an image flow, or read it."""
    recipe, dataset, shape = recipe_of(name, model, options), image_set(name), images.train.shape[1:]
    torch.manual_seed(seed)
    run = ImageRun(name, model, seed, recipe, options, SinusoidalFlow.image(shape, **recipe.flow))
    rows = ImageRows(torch.from_numpy(images.train), run.pixels, flips=dataset.flips)
    val = ImageRows(torch.from_numpy(images.val), run.pixels)
    identity = {"set": name, "shape": shape, "alpha": dataset.alpha, "flips": dataset.flips}
    run.train(rows, val, images, _STEPS[options.size], **identity)
    return run


def trained_flows(default: Iterable[str], options: Options) -> list[ImageRun]:
    """The flow of each dataset that ``sinuflow reproduce images`` trained and stored in ``options.runs``.

    It is the first that exists of the requested models, or else of ``today``, ``stable``, ``affine``, ``paper`` and
    ``best``. A smoke test trains it if it does not exist.
    """
    if len(options.seeds) > 1:
        raise ArgumentError("one trained flow is shown at a time: give one --seed")
    (seed,), missing, runs = options.seeds, [], []
    for name in options.datasets or default:
        chosen_models(name, (), options)  # refuses unknown models
        run = _stored(name, options)
        if run is None and options.size == "smoke":
            run = train(name, (*options.models, "today")[0], load(name, options), seed, options)
        if run is None:
            missing.append(name)
        else:
            runs.append(run)
    if missing and (options.datasets or not runs):
        raise ArgumentError(_how_to_train(missing[0], options))
    for name in missing:
        options.say(f"{name} is left out: {_how_to_train(name, options)}")
    for run in runs:
        if not is_present(image_set(run.dataset), options):
            load(run.dataset, options)  # fails before anything is computed
    return runs


def _stored(name: str, options: Options) -> ImageRun | None:
    for model in options.models or [model for model in _MODELS if model in recipes(name)]:
        run = ImageRun(name, model, options.seeds[0], recipe_of(name, model, options), options)
        finished = run.read()
        if finished is None:
            continue
        settings, run.outcome, weights = finished
        expected = {"shape": shape_of(name, options), "flow": run.recipe.flow, "training": run.training(None)}
        # Results of a full run must be those of the recipe; smaller runs may show any flow.
        if options.size == "full" and settings | json.loads(json.dumps(expected)) != settings:
            raise ArgumentError(f"{run.folder} holds another run than the recipe's: add --quick, or use another --runs")
        run.flow = SinusoidalFlow.image(settings["shape"], **settings["flow"])
        run.flow.load_state_dict(weights)
        run.flow.eval()
        return run
    return None


def _how_to_train(name: str, options: Options) -> str:
    model, seed = (*options.models, "today")[0], options.seeds[0]
    words = ["sinuflow reproduce images", *(["--quick"] if options.size == "quick" else [])]
    words += [f"--set {name} --model {model}", *([f"--seed {seed}"] if seed else [])]
    words += [f"--data {options.data or 'DIR'} --runs {options.runs or 'RUNS'}"]
    where = "no --runs was given" if options.runs is None else f"there is none in {options.runs / name}"
    return f"this needs a trained flow of {name}, and {where}: run `{' '.join(words)}` first"


def evaluate(name: str, model: str, recipe: Recipe, splits: Splits, seed: int, options: Options) -> Evaluation:
    """Train a flow by the recipe for the size of the run, and score it."""
    run = train(name, model, splits, seed, options)
    x = run.logits(torch.from_numpy(splits.test))
    test, exact = (_bits(run, part) for part in (x, x[:_CHECKED].double()))
    validation = ImageRows(torch.from_numpy(splits.val), run.pixels).bits_per_dimension(run.outcome["best_nll"])
    return run, validation, test, exact


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
