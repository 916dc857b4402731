"""The images of a run: full datasets, smaller images for a laptop, and synthetic ones for smoke tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.image_sets import ImageSplits, image_set, load_image_set
from ..errors import ArgumentError
from .items import Options

#: Images of each split, and the height and width of synthetic ones.
_COUNTS = {"quick": (8_000, 1_000, 1_000), "smoke": (500, 200, 200)}
_SMOKE_SIZE = 8


def shape_of(name: str, options: Options) -> tuple[int, int, int]:
    """(C, H, W) of the images of a run.

    Example:
        >>> from pathlib import Path
        >>> shape_of("cifar10", Options(Path("out"), "quick"))
        (3, 16, 16)
    """
    channels, height, width = image_set(name).shape
    height, width = options.of(full=(height, width), quick=(height // 2, width // 2), smoke=(_SMOKE_SIZE, _SMOKE_SIZE))
    return channels, height, width


def is_present(name: str, options: Options) -> bool:
    """Whether the images of a run can be loaded."""
    image_set(name)
    return options.size == "smoke" or (options.data is not None and image_set(name).count(options.data) is not None)


def load(name: str, options: Options) -> ImageSplits:
    """All images of a run."""
    shape = shape_of(name, options)
    if options.size == "smoke":
        return ImageSplits(*(synthetic(n, shape, seed).numpy() for seed, n in enumerate(_COUNTS["smoke"])))
    splits = load_image_set(name, options.data)
    if options.size == "full":
        return splits
    parts = zip(splits, _COUNTS[options.size], strict=True)
    return ImageSplits(*(downsample(torch.from_numpy(part[:n]), shape).numpy() for part, n in parts))


def load_test(name: str, shape: Sequence[int], options: Options) -> Tensor:
    """Test images of a shape."""
    if options.size == "smoke":
        return torch.from_numpy(load(name, options).test)
    return downsample(torch.from_numpy(load_image_set(name, options.data).test), shape)


def downsample(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Byte images of a smaller shape (C, H, W), by averaging squares of pixels.

    Example:
        >>> downsample(torch.tensor([[[[0, 10], [20, 30]]]], dtype=torch.uint8), (1, 1, 1)).item()
        15
    """
    side = images.shape[-1] // shape[-1]
    if tuple(images.shape[1:]) != (shape[0], side * shape[1], side * shape[2]):
        raise ArgumentError(f"images of shape {tuple(images.shape[1:])} cannot be downsampled to {tuple(shape)}")
    if side == 1:
        return images
    # In parts: CIFAR-10 as float32 would take gigabytes.
    return torch.cat([F.avg_pool2d(part.float(), side).round().to(torch.uint8) for part in images.split(1000)])


def synthetic(count: int, shape: Sequence[int], seed: int = 0) -> Tensor:
    """Byte images of a soft disc on a gradient, whose pixels depend on each other.

    Example:
        >>> synthetic(2, (3, 8, 8)).shape
        torch.Size([2, 3, 8, 8])
    """
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
