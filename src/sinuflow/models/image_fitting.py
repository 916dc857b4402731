"""Fit a density to images."""

from __future__ import annotations

import math
import os
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..bijections.image import ImageConditioning
from ..bijections.pixels import LEVELS, PixelMap
from ..data.image_files import Pictures, class_counts, class_indices, open_pictures
from ..data.sources import seeded
from ..errors import DataError
from ..flows.sinusoidal import ImageFlow
from ..training import ImageRows
from ..training.fit import find_device
from .defaults import Size, image_recipe
from .fitted import Run, quantiles_of
from .image import ImageModel

#: The fraction of images that are held out for validation, and their maximum number.
_VALIDATION_FRACTION, _MAX_VALIDATION_IMAGES = 0.1, 5_000
#: The minimum number of images to fit.
_MIN_IMAGES = 20
#: The number of held-out images for the quantiles of the score, and for the reconstruction error.
_SCORED_IMAGES, _INVERTED_IMAGES = 1_000, 64


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
    minutes: float | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_minutes: float = 5.0,
    resume: bool = False,
    progress: bool = True,
    architecture: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> ImageModel:
    """Fit the density of 8-bit images.

    Args:
        images: bytes of shape (N, C, H, W), or (N, H, W) for greyscale, as a tensor or an array; or the path of a
            ``.npy`` file or of a folder of PNG files, whose subfolders are classes.
        validation: validation images, with labels a pair ``(images, labels)``. By default, a tenth of the images.
        labels: the class of each image, counted from 0, for a class-conditional density; an array, or a ``.npy`` file.
        alpha: of :class:`~sinuflow.bijections.pixels.PixelMap`; by default 1e-6 for one channel and 0.05 for more.
        flips: whether to augment with random horizontal flips; by default, for more than one channel.
        size: ``"paper"``, ``"small"``, or ``"auto"``: the paper's flow if there is a GPU and many pixels.
        conditioning: ``"affine"``, shifts and log-scales, or ``"shift"``, as in the paper. By default ``"shift"`` for
            the paper's flow and with ``stability``, which is for shifts alone.
        seed: determines the split, the initial weights, the dequantization noise, and the order of the images.
        architecture: arguments of :meth:`SinusoidalFlow.image <sinuflow.SinusoidalFlow.image>` that replace defaults.

    The other arguments are those of :func:`~sinuflow.fit_table`; :class:`~sinuflow.ImageModel` has an example.
    """
    run = Run(steps, minutes, seed, device, checkpoint, checkpoint_minutes, resume, progress, architecture, training)
    data = open_pictures(images, labels)
    shape = tuple(data.images.shape[1:])
    counts = None if data.labels is None else class_counts(data.labels)
    classes = data.classes if counts is None or data.classes else [str(i) for i in range(len(counts))]
    train, held_out = _split(data, validation, classes, seed)
    target = find_device(device)
    if conditioning is None and (training or {}).get("stability") is not None:
        conditioning = "shift"
    recipe = image_recipe(shape, size, target.type == "cuda", conditioning)
    flow = run.build(ImageFlow, recipe, shape, len(classes or []))
    pixels = PixelMap((1e-6 if shape[0] == 1 else 0.05) if alpha is None else alpha)
    flips = shape[0] > 1 if flips is None else flips

    def rows(part: Pictures, flips: bool) -> ImageRows:
        context = None if part.labels is None else F.one_hot(part.labels, len(classes or [])).float()
        return ImageRows(part.images, pixels, context, flips)

    val = rows(held_out, False)
    result = run.train(flow, recipe, rows(train, flips), val)
    facts = {
        "images": data.name,
        "train_images": len(train.images),
        "validation_images": len(held_out.images),
        "flips": flips,
        "bits_per_dimension": None if result.best_nll is None else val.bits_per_dimension(result.best_nll),
        "histogram_bits": histogram_bits(train.images, held_out.images),
        **run.facts(result),
    }
    model = ImageModel(flow, pixels, classes, counts, torch.zeros(0), result.history, facts)
    original = next(flow.parameters()).device
    model.to(target)
    scored = held_out.select(torch.randperm(len(held_out.images), generator=seeded(seed, 1))[:_SCORED_IMAGES])
    model.quantiles = quantiles_of(model.bits_per_dimension(scored.images, scored.labels))
    inverted = scored.select(torch.arange(min(_INVERTED_IMAGES, len(scored.images))))
    round_trip = float(model.round_trip(inverted.images, inverted.labels).max())
    facts |= {"inverted": len(inverted.images), "round_trip": round_trip}
    return model.to(original)


def _split(data: Pictures, validation: Any, classes: list[str] | None, seed: int) -> tuple[Pictures, Pictures]:
    """Training and validation images; by default, a random tenth of the images is held out."""
    if validation is None:
        count = len(data.images)
        if count < _MIN_IMAGES:
            raise DataError(f"{data.name} holds {count} images, and at least {_MIN_IMAGES} are needed to learn from")
        order = torch.randperm(count, generator=seeded(seed))
        size = min(_MAX_VALIDATION_IMAGES, round(_VALIDATION_FRACTION * count))
        return data.select(order[size:]), data.select(order[:size])
    conditional = data.labels is not None
    held_out = open_pictures(*(validation if conditional and isinstance(validation, tuple) else (validation,)))
    if held_out.images.shape[1:] != data.images.shape[1:]:
        raise DataError(
            f"the images of validation must have shape {tuple(data.images.shape[1:])}, as those for training; "
            f"got {tuple(held_out.images.shape[1:])}"
        )
    if not conditional:
        return data, Pictures(held_out.images)
    if held_out.labels is None:
        raise DataError("the images have labels, so validation must be a pair (images, labels)")
    labels = class_indices(held_out.known_labels, classes or [], len(held_out.images))
    return data, Pictures(held_out.images, labels)


def histogram_bits(train: Tensor, test: Tensor) -> float:
    """Bits per dimension of images ``test`` under independent pixels with the histograms of ``train``.

    The histograms are smoothed by one additional count for every value.

    Example:
        >>> black = torch.zeros(256, 1, 2, 2, dtype=torch.uint8)
        >>> round(histogram_bits(black, black), 3)  # 257 of 512 counts are for black
        0.994
    """
    size = train[0].numel()
    first = torch.arange(size) * LEVELS  # the index of each pixel's first count
    counts = torch.ones(size * LEVELS, dtype=torch.float64)
    for part in train.flatten(1).split(1024):
        counts += torch.bincount((part + first).flatten(), minlength=len(counts))
    bits = -(counts / (len(train) + LEVELS)).log2()
    total = sum(float(bits[part + first].sum()) for part in test.flatten(1).split(1024))
    return total / test.numel() if test.numel() else math.nan
