"""The images of a run: full datasets, smaller images for a laptop, and synthetic ones for smoke tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.datasets import Splits
from ..data.image_sets import image_set
from ..errors import ArgumentError
from .items import Options

#: Images of each split.
_COUNTS = {"quick": (8_000, 1_000, 1_000), "smoke": (500, 200, 200)}


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
