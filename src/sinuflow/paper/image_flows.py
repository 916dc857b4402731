"""Flows of images: trained by a recipe, and read again."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..bijections.pixels import PixelMap
from ..data.image_sets import Bytes, ImageSplits, image_set
from ..errors import ArgumentError
from ..flows.sinusoidal import SinusoidalFlow
from ..training import ImageRows
from .image_data import images_of, shape_of
from .items import Options
from .recipes import Recipe, recipes
from .training import Trained, chosen_models, folder_of, glimpse, is_finished, read_run, settings_of, train_as_told

#: What smaller runs have instead of the recipe's.
_FLOWS: dict[str, dict[str, Any]] = {
    "full": {},
    "quick": {"blocks": 4, "channels": 8},
    "smoke": {"blocks": 2, "scales": 2, "channels": 4, "residual_blocks": 1},
}
_TRAINING: dict[str, dict[str, Any]] = {
    "full": {},
    "quick": {"batch_size": 64, "validate_every": 100},
    "smoke": {"batch_size": 64, "validate_every": 50, "learning_rate": 5e-3},
}
#: With so few steps, an average over the last few only.
_AVERAGE = {"quick": 0.99, "smoke": 0.95}
_STEPS = {"full": None, "quick": 600, "smoke": 150}

#: Images that become numbers at once.
_AT_ONCE = 1000


class ImageFlow(NamedTuple):
    """A trained flow of images, and what belongs to it."""

    set: str
    model: str
    seed: int
    shape: tuple[int, ...]
    pixels: PixelMap
    trained: Trained
    recipe: str

    @contextlib.contextmanager
    def on(self, device: str, dtype: torch.dtype = torch.float32) -> Iterator[SinusoidalFlow]:
        """The flow itself, on a device for a while; afterwards it is on the CPU, in float32, as it was read."""
        try:
            yield self.trained.flow.to(device, dtype)
        finally:
            self.trained.flow.to("cpu", torch.float32)

    def logits(self, images: Tensor) -> Tensor:
        """What the flow sees of images of bytes, always with the same noise."""
        rows = ImageRows(images, self.pixels)
        return torch.cat([batch.x for batch in rows.in_order(_AT_ONCE)])

    def validation(self, images: Bytes) -> float:
        """Bits per dimension of the images that the weights were chosen by."""
        return ImageRows(torch.from_numpy(images), self.pixels).bits_per_dimension(self.trained.best_nll)

    def images(self, x: Tensor) -> Tensor:
        """Images of bytes of what the flow makes; what is no number becomes black."""
        return self.pixels.to_bytes(x.nan_to_num(nan=-math.inf)).view(-1, *self.shape)


def recipe_of(name: str, model: str, options: Options) -> Recipe:
    """A recipe, made smaller if the run is."""
    recipe = recipes(name)[model]
    training = recipe.training | _TRAINING[options.size]
    if "ema" in training:
        training["ema"] = _AVERAGE.get(options.size, training["ema"])
    return Recipe(recipe.flow | _FLOWS[options.size], training)


def train_images(name: str, model: str, images: ImageSplits, seed: int, options: Options) -> ImageFlow:
    """Train a flow on images, or read it from ``options.runs`` if that has been done."""
    recipe, found = recipe_of(name, model, options), image_set(name)
    shape = images.train.shape[1:]
    told = {
        "set": name,
        "shape": shape,
        "flow": recipe.flow,
        "training": settings_of(recipe, _STEPS[options.size]),
        "alpha": found.alpha,
        "flips": found.flips,
        "seed": seed,
        "rows": len(images.train),
        "data": glimpse(images),
    }
    torch.manual_seed(seed)
    flow = SinusoidalFlow.image(shape, **recipe.flow)
    pixels = PixelMap(found.alpha)
    train = ImageRows(torch.from_numpy(images.train), pixels, flips=found.flips)
    val = ImageRows(torch.from_numpy(images.val), pixels)
    trained = train_as_told(flow, train, val, told, model, folder_of(options, name))
    return ImageFlow(name, model, seed, shape, pixels, trained, recipe.digest)


def trained_flows(default: Iterable[str], options: Options) -> list[ImageFlow]:
    """The trained flow of each set, as ``sinuflow reproduce images`` left them in ``options.runs``.

    Of the models that were asked for, or else ``today``, ``stable``, ``affine``, ``paper`` and ``best``, it is the
    first that is there. The smallest runs train it on the spot.
    """
    if len(options.seeds) > 1:
        raise ArgumentError("one trained flow is shown at a time: give one --seed")
    sets = list(options.sets or default)
    for name in sets:
        chosen_models(name, (), options)  # refuses what has no recipe
    found = {name: _stored(name, options) for name in sets}
    if options.size == "smoke":
        model, seed = (*options.models, "today")[0], options.seeds[0]
        return [
            stored or train_images(name, model, images_of(name, options), seed, options)
            for name, stored in found.items()
        ]
    missing = [name for name, stored in found.items() if stored is None]
    if missing and (options.sets or len(missing) == len(found)):
        raise ArgumentError(_what_first(missing[0], options))
    for name in missing:
        options.say(f"{name} is left out: {_what_first(name, options)}")
    return [stored for stored in found.values() if stored is not None]


def _stored(name: str, options: Options) -> ImageFlow | None:
    seed = options.seeds[0]
    for model in options.models or ("today", "stable", "affine", "paper", "best"):
        folder = None if options.runs is None else options.runs / name / f"{model}-{seed}"
        if folder is not None and is_finished(folder):
            return _read(name, model, seed, folder, options)
    return None


def _read(name: str, model: str, seed: int, folder: Path, options: Options) -> ImageFlow:
    stored = read_run(folder)
    told, recipe = stored.told, recipe_of(name, model, options)
    as_now = {"shape": shape_of(name, options), "flow": recipe.flow, "training": settings_of(recipe, None)}
    # What is published as the whole run must be that of the recipe; a laptop may show any.
    if options.size == "full" and any(told.get(part) != json.loads(json.dumps(now)) for part, now in as_now.items()):
        raise ArgumentError(f"{folder} holds another run than the recipe's: add --quick, or choose another with --runs")
    flow = SinusoidalFlow.image(told["shape"], **told["flow"])
    flow.load_state_dict(stored.weights)
    trained = Trained(flow.eval(), **stored.outcome)
    return ImageFlow(name, model, seed, tuple(told["shape"]), PixelMap(told["alpha"]), trained, recipe.digest)


def _what_first(name: str, options: Options) -> str:
    model, seed = (*options.models, "today")[0], options.seeds[0]
    words = ["sinuflow reproduce images", *(["--quick"] if options.size == "quick" else [])]
    words += [f"--set {name} --model {model}", *([f"--seed {seed}"] if seed else [])]
    words += [f"--data {options.data or 'DIR'} --runs {options.runs or 'RUNS'}"]
    where = "no --runs was given" if options.runs is None else f"there is none in {options.runs / name}"
    return f"this needs a trained flow of {name}, and {where}: run `{' '.join(words)}` first"
