"""The images of a run: whole sets, smaller ones for a laptop, and drawn ones where there is no set at all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.image_sets import ImageSplits, image_set, images_present, load_image_set
from ..errors import ArgumentError
from .items import Options

#: Images of each part, of smaller runs; and their side, in pixels.
_COUNTS = {"quick": (8_000, 1_000, 1_000), "smoke": (500, 200, 200)}
_SMOKE_SIDE = 8


def shape_of(name: str, options: Options) -> tuple[int, int, int]:
    """(C, H, W) of the images of a run: as published, half of that for a laptop, or eight by eight.

    Example:
        >>> from pathlib import Path
        >>> shape_of("cifar10", Options(Path("out"), "quick"))
        (3, 16, 16)
    """
    channels, height, width = image_set(name).shape
    if options.size == "full":
        return channels, height, width
    if options.size == "quick":
        return channels, height // 2, width // 2
    return channels, _SMOKE_SIDE, _SMOKE_SIDE


def images_of(name: str, options: Options) -> ImageSplits:
    """All images of a run."""
    shape = shape_of(name, options)
    if options.size == "full":
        return load_image_set(name, options.data)
    counts = _COUNTS[options.size]
    if options.size == "smoke":
        parts = [drawn(count, shape, seed) for seed, count in enumerate(counts)]
    else:
        splits = load_image_set(name, options.data)
        parts = [smaller(torch.from_numpy(part[:n]), shape) for part, n in zip(splits, counts, strict=True)]
    return ImageSplits(*(part.numpy() for part in parts))


def images_to_test(name: str, shape: Sequence[int], options: Options) -> Tensor:
    """Images to test with, for a flow of images of a shape."""
    if options.size == "smoke":
        return torch.from_numpy(images_of(name, options).test)
    return smaller(torch.from_numpy(load_image_set(name, options.data).test), shape)


def check_present(name: str, options: Options) -> None:
    """Say what is missing, before anything is trained."""
    if options.size != "smoke" and (options.data is None or images_present(name, options.data) is None):
        load_image_set(name, options.data)


def smaller(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Images of bytes with fewer pixels, each the mean of a square.

    Example:
        >>> smaller(torch.tensor([[[[0, 10], [20, 30]]]], dtype=torch.uint8), (1, 1, 1)).item()
        15
    """
    side = images.shape[-1] // shape[-1]
    if tuple(images.shape[1:]) != (shape[0], side * shape[1], side * shape[2]):
        raise ArgumentError(f"images of shape {tuple(images.shape[1:])} cannot be made images of {tuple(shape)}")
    if side == 1:
        return images
    # In parts: as floats, all of CIFAR-10 would take gigabytes.
    return torch.cat([F.avg_pool2d(part.float(), side).round().to(torch.uint8) for part in images.split(1000)])


def drawn(count: int, shape: Sequence[int], seed: int = 0) -> Tensor:
    """Images of bytes that stand in for a real set: a soft disc before a soft background, in colours if there are any.

    Its pixels depend on each other, as those of photographs do, and not only on their place.

    Example:
        >>> drawn(2, (3, 8, 8)).shape
        torch.Size([2, 3, 8, 8])
    """
    channels, height, width = shape
    generator = torch.Generator().manual_seed(seed)

    def chance(*size: int) -> Tensor:
        return torch.rand((count, *size, 1, 1), generator=generator)

    down, across = torch.linspace(0, 1, height).view(-1, 1), torch.linspace(0, 1, width)
    distance = ((down - chance(1)) ** 2 + (across - chance(1)) ** 2).sqrt()
    disc = torch.sigmoid((0.2 + 0.2 * chance(1) - distance) / 0.05)
    ground = 0.3 * chance(channels) + 0.2 * down * chance(channels)
    light = ground * (1 - disc) + (0.5 + 0.4 * chance(channels)) * disc
    grain = 0.02 * torch.randn((count, channels, height, width), generator=generator)
    return (255 * (light + grain)).round().clamp(0, 255).to(torch.uint8)
