"""From images to a model of them."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor

from ..bijections.pixels import PixelMap
from ..data.image_files import Pictures, open_pictures
from ..data.labels import class_counts, numbers_of, one_hot
from ..data.sources import seeded
from ..errors import ArgumentError, DataError
from ..flow_config import ImageConditioning
from ..flows.sinusoidal import SinusoidalFlow
from ..training import ImageRows, fit
from ..training.fit import find_device
from .image import QUANTILES, ImageModel
from .image_baseline import histogram_bits
from .image_defaults import Size, recipe

#: The share of images that are kept for validation, and the most of them.
_SHARE, _MOST = 0.1, 5_000
#: Fewer images than this tell nothing.
_FEWEST = 20
#: Held-out images that decide what is odd.
_ENOUGH = 1_000
#: Held-out images that are brought back from their noise.
_INVERTED = 64


def fit_images(
    images: Any,
    validation: Any = None,
    labels: Any = None,
    *,
    alpha: float | None = None,
    flips: bool | None = None,
    size: Size = "auto",
    conditioning: ImageConditioning | None = None,
    steps: int | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_minutes: float = 5.0,
    resume: bool = False,
    progress: bool = True,
    architecture: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> ImageModel:
    """Learn the density of images of bytes.

    Args:
        images: bytes of shape (N, C, H, W), or (N, H, W) for greyscale, as a tensor or an array; or the path of a
            ``.npy`` file or of a folder of PNG files. Subfolders are classes.
        validation: images to watch, with labels a pair ``(images, labels)``. By default, a tenth of the images.
        labels: the class of each image, counted from 0, for a density of each class; an array, or a ``.npy`` file.
        alpha: of the logit map; 1e-6 for one channel and 0.05 for more by default.
        flips: whether training exchanges left and right at random; by default, for more than one channel.
        size: ``"paper"``, ``"small"``, or ``"auto"``: the paper's flow if there is a GPU and many pixels.
        conditioning: what the networks compute: ``"affine"``, shifts and scales, or ``"shift"``, as in the paper. By
            default ``"shift"`` for the paper's flow and for training with ``stability``, which is for shifts alone.
        steps: the most training steps.
        seed: of the split, of the weights, of the noise, and of the order of the images.
        device: ``"auto"`` takes a GPU if there is one.
        checkpoint: a folder for checkpoints.
        checkpoint_minutes: minutes between checkpoints.
        resume: go on from that folder's checkpoint.
        progress: whether to show it.
        architecture: arguments of :meth:`SinusoidalFlow.image <sinuflow.SinusoidalFlow.image>` instead of the defaults.
        training: arguments of :func:`~sinuflow.fit` instead of the defaults.

    Example:
        >>> images = torch.randint(256, (40, 1, 4, 4), dtype=torch.uint8)
        >>> model = fit_images(images, steps=3, progress=False)
        >>> model.bits_per_dimension(images).shape
        torch.Size([40])
        >>> model.sample(5).shape
        torch.Size([5, 1, 4, 4])
    """
    if not 0 <= seed < 2**63:
        raise ArgumentError(f"seed must be a whole number, 0 or more; got {seed}")
    started = time.monotonic()
    found = open_pictures(images, labels)
    shape = tuple(found.images.shape[1:])
    counts = None if found.labels is None else class_counts(found.labels)
    classes = found.classes if counts is None or found.classes else [str(i) for i in range(len(counts))]
    train, held_out = _parts(found, validation, classes, seed)
    place = find_device(device)
    if conditioning is None and (training or {}).get("stability") is not None:
        conditioning = "shift"
    chosen = recipe(shape, size, place.type == "cuda", conditioning)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        options = {**chosen.architecture, **(architecture or {})}
        flow = SinusoidalFlow.image(shape, len(classes or []), **options)
    pixels = PixelMap((1e-6 if shape[0] == 1 else 0.05) if alpha is None else alpha)
    flips = shape[0] > 1 if flips is None else flips

    def rows(part: Pictures, flips: bool) -> ImageRows:
        context = None if part.labels is None else one_hot(part.labels, len(classes or []))
        return ImageRows(part.images, pixels, context, flips)

    watched = rows(held_out, False)
    result = fit(
        flow,
        rows(train, flips),
        watched,
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
        device=device,
        seed=seed,
        **{
            "checkpoint_minutes": checkpoint_minutes,
            **chosen.training,
            **(training or {}),
            **({} if steps is None else {"steps": steps}),
        },
    )
    facts = {
        "images": found.name,
        "train_images": len(train.images),
        "validation_images": len(held_out.images),
        "flips": flips,
        "seed": seed,
        "steps": result.steps,
        "best_step": result.best_step,
        "bits_per_dimension": None if result.best_nll is None else watched.bits_per_dimension(result.best_nll),
        "histogram_bits": histogram_bits(train.images, held_out.images),
        "seconds": round(time.monotonic() - started, 1),
        "torch": torch.__version__,
    }
    model = ImageModel(flow, pixels, classes, counts, torch.zeros(QUANTILES), result.history, facts)
    home = next(flow.parameters()).device
    model.to(place)
    some = _chosen(held_out, torch.randperm(len(held_out.images), generator=seeded(seed, 1))[:_ENOUGH])
    bits = model.bits_per_dimension(some.images, some.labels)
    few = _chosen(some, torch.arange(min(_INVERTED, len(some.images))))
    facts |= {"inverted": len(few.images), "round_trip": float(model.round_trip(few.images, few.labels).max())}
    model.to(home)
    model.quantiles = torch.quantile(bits, torch.linspace(0, 1, QUANTILES, dtype=torch.float64))
    return model


def _parts(found: Pictures, validation: Any, classes: list[str] | None, seed: int) -> tuple[Pictures, Pictures]:
    """What is trained on, and what is watched."""
    if validation is None:
        return _split(found, seed)
    conditional = found.labels is not None
    if conditional and isinstance(validation, tuple):
        held_out = open_pictures(*validation)
    else:
        held_out = open_pictures(validation)
    if held_out.images.shape[1:] != found.images.shape[1:]:
        raise DataError(
            f"the images of validation must have shape {tuple(found.images.shape[1:])}, as those for training; "
            f"got {tuple(held_out.images.shape[1:])}"
        )
    if not conditional:
        return found, Pictures(held_out.images)
    if held_out.labels is None:
        raise DataError("the images have labels, so validation must be a pair (images, labels)")
    labels = numbers_of(held_out.known_labels, classes or [], len(held_out.images))
    return found, Pictures(held_out.images, labels)


def _split(found: Pictures, seed: int) -> tuple[Pictures, Pictures]:
    """A tenth of the images for validation, at random, the same ones for the same seed."""
    count = len(found.images)
    if count < _FEWEST:
        raise DataError(f"{found.name} holds {count} images, and at least {_FEWEST} are needed to learn from")
    order = torch.randperm(count, generator=seeded(seed))
    held = min(_MOST, round(_SHARE * count))
    return _chosen(found, order[held:]), _chosen(found, order[:held])


def _chosen(found: Pictures, rows: Tensor) -> Pictures:
    return Pictures(found.images[rows], None if found.labels is None else found.labels[rows])
